xds { server_uri = "dns:///control :15010" }
