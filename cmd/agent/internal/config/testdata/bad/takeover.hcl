takeover {
  socket  = "run/gatehouse.sock"
  timeout = "2h"
}
