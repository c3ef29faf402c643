limits { max_connections = 20000 }
