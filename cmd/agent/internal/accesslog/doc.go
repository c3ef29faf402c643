// Package accesslog writes a line for each connection that has ended, in JSON or
// in a format made of Envoy's operators.
//
// # Usage
//
//	format, unknown, err := accesslog.Parse(`[%START_TIME%] %RESPONSE_FLAGS%`)
//	…
//	logs, err := accesslog.Open(files, accesslog.Config{Path: "stdout", Format: "json", Sample: 1})
//	logs.Write(record) // from forwarder.Config.OnDone
//	logs.Close()
//
// # Formats
//
// "json" writes an object a line with the keys of JSON's comment, "text" the line
// of Text, and anything else is a format string. In it %OPERATOR%, or
// %OPERATOR(ARGUMENT)% or %OPERATOR:LENGTH%, which cuts the value to so many bytes,
// stands for a value, and %% for a percent sign. What has no value is "-".
//
//	START_TIME                             when it was accepted, UTC, as 2026-01-02T03:04:05.678Z; or as the argument says, in strftime's %Y %m %d %H %M %S %F %T %s, and %f or %1f to %9f
//	DURATION                               milliseconds until its end
//	BYTES_RECEIVED, BYTES_SENT             from and to the client
//	RESPONSE_FLAGS, RESPONSE_FLAGS_LONG    how it ended: see package forwarder
//	CONNECTION_TERMINATION_DETAILS         what lies behind the flag, in words
//	UPSTREAM_TRANSPORT_FAILURE_REASON      the same, if no endpoint could be connected (UF)
//	DOWNSTREAM_REMOTE_ADDRESS              the client, as its PROXY header says if it has one; also DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT and DOWNSTREAM_REMOTE_PORT
//	DOWNSTREAM_LOCAL_ADDRESS               the listener's, or what a PROXY header or original_dst says; also …_WITHOUT_PORT and DOWNSTREAM_LOCAL_PORT
//	UPSTREAM_HOST                          the endpoint, or the one dialled last, by its own address
//	UPSTREAM_REMOTE_ADDRESS                the same, by the one of its addresses that was connected to; also …_WITHOUT_PORT and UPSTREAM_REMOTE_PORT
//	UPSTREAM_CLUSTER, UPSTREAM_CLUSTER_RAW the cluster
//	UPSTREAM_REQUEST_ATTEMPT_COUNT         how many endpoints were dialled
//	UPSTREAM_CONNECTION_POOL_READY_DURATION microseconds until one was connected
//	DOWNSTREAM_PEER_URI_SAN, _DNS_SAN      the name in the client's certificate, if it is one of that kind
//	FILTER_CHAIN_NAME                      of a listener of the control plane
//	HOSTNAME                               the host's
//	LISTENER_NAME, SELECTOR_GENERATION     Gatehouse's own
//
// Envoy's other operators, and unknown ones, are told to whoever parses the
// format and print "-": formats may be carried over as they are.
//
// # Which connections
//
// A log has all connections, or a sample of them, each drawn for itself; those that ended
// with a flag may be left out of the draw, and all get a line then. A listener of the
// control plane may want those of a duration or of some flags.
//
// # Who writes what
//
// Clients and endpoints have a say in what an error says and in the names of
// certificates. What they write is escaped as in JSON, so that no line can be
// made up: quotes, backslashes and all that can't be printed. A value is cut to
// 1024 bytes.
//
// # Concurrency
//
// Write may be called from anywhere, by event loops too: it formats the line in
// memory that is kept for reuse and puts it into a bounded queue, see package
// logfile. A line that does not fit is lost and counted. Open and Close may be
// called from anywhere, Close once.
//
// # Limitations
//
// The listener's address is the one that it is bound to, so that a wildcard stays
// one. The end of line is added; Envoy wants it in the format.
package accesslog
