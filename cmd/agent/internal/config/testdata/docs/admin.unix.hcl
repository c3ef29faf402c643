admin {
  address = "unix:///run/gatehouse/admin.sock"
  unix {
    mode  = "0660"
    group = "operators"
  }
}
