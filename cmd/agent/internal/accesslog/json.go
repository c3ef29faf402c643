package accesslog

import (
	"strconv"

	"gatehouse.internal/forwarder"
)

// appendJSON appends r as an object, whose keys are Envoy's operators in lower
// case. Text that is not known is left out, and durations are in milliseconds:
//
//	{"start_time":"2026-01-02T03:04:05.678Z","listener_name":"web",
//	"downstream_remote_address":"127.0.0.1:4711","downstream_local_address":"127.0.0.1:8080",
//	"upstream_cluster":"web","upstream_host":"10.0.0.1:80",
//	"upstream_remote_address":"10.0.0.1:80","selector_generation":3,
//	"upstream_request_attempt_count":1,"connect_duration":0.25,"duration":12,
//	"bytes_received":5,"bytes_sent":7,"response_flags":"UC",
//	"connection_termination_details":"read: connection reset by peer",
//	"downstream_peer_name":"spiffe://example.org/client"}
func appendJSON(b []byte, r *forwarder.Record) []byte {
	b = append(b, `{"start_time":"`...)
	b = append(startTime(b, r), '"')
	text := func(key string, v value) {
		at := len(b)
		b = append(append(append(b, `,"`...), key...), `":"`...)
		from := len(b)
		if b = v(b, r); len(b) == from {
			b = b[:at]
			return
		}
		b = append(cut(b, from, maxValue), '"')
	}
	number := func(key string, v value) {
		b = append(append(append(b, `,"`...), key...), `":`...)
		b = v(b, r)
	}
	text("listener_name", operators["LISTENER_NAME"])
	text("downstream_remote_address", operators["DOWNSTREAM_REMOTE_ADDRESS"])
	text("downstream_local_address", operators["DOWNSTREAM_LOCAL_ADDRESS"])
	text("upstream_cluster", operators["UPSTREAM_CLUSTER"])
	text("upstream_host", operators["UPSTREAM_HOST"])
	text("upstream_remote_address", operators["UPSTREAM_REMOTE_ADDRESS"])
	number("selector_generation", operators["SELECTOR_GENERATION"])
	number("upstream_request_attempt_count", operators["UPSTREAM_REQUEST_ATTEMPT_COUNT"])
	if r.Connect > 0 {
		number("connect_duration", func(b []byte, r *forwarder.Record) []byte {
			return strconv.AppendFloat(b, float64(r.Connect.Microseconds())/1000, 'f', -1, 64)
		})
	}
	number("duration", operators["DURATION"])
	number("bytes_received", operators["BYTES_RECEIVED"])
	number("bytes_sent", operators["BYTES_SENT"])
	text("response_flags", operators["RESPONSE_FLAGS"])
	text("connection_termination_details", details)
	text("downstream_peer_name", func(b []byte, r *forwarder.Record) []byte { return escape(b, r.PeerName) })
	text("requested_server_name", operators["REQUESTED_SERVER_NAME"])
	return append(b, '}')
}
