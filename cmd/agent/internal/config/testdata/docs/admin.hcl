admin { address = "unix:///run/gatehouse/admin.sock" }
