cluster "ranges" {
  discovery "file" { path = "x" }
  outlier_detection {
    interval                      = "0s"
    base_ejection_time            = "25h"
    max_ejection_time             = "0s"
    max_ejection_time_jitter      = "-1s"
    max_ejection_percent          = 101
    consecutive_5xx               = -1
    enforcing_consecutive_5xx     = 100.5
    always_eject_one_host         = "yes"
    success_rate_stdev_factor     = 1.9
    failure_percentage_threshold  = 4294967296
    enforcing_failure_percentages = 1
  }
}
cluster "order" {
  discovery "file" { path = "x" }
  outlier_detection {
    max_ejection_time                         = "10s"
    consecutive_local_origin_failure          = 3
    enforcing_failure_percentage_local_origin = 100
  }
}
cluster "split" {
  discovery "file" { path = "x" }
  outlier_detection {
    base_ejection_time                 = "10m"
    split_external_local_origin_errors = true
    consecutive_5xx                    = 3
    enforcing_success_rate             = 0
    consecutive_local_origin_failure   = 3
  }
}
cluster "twice" {
  discovery "file" { path = "x" }
  outlier_detection {}
  outlier_detection = true
}
cluster "elsewhere" {
  discovery "file" { path = "x" }
  consecutive_5xx = 3
}
