consul {
  register {
    tags             = ["edge"]
    deregister_after = "1h"
  }
}
