admin {
  address = "unix:///run/gatehouse/admin.sock"
  token   = "never in a configuration"
  unix {
    mode = "0999"
  }
}
