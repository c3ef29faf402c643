telemetry {
  statsd_address            = "127.0.0.1:8125"
  prometheus_retention_time = "1h"
}
