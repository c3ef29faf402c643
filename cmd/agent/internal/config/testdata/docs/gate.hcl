gate {
  stuck_after = "5s"
  max_storage = 268435456 # 256 MiB
}
