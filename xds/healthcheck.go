package xds

import (
	"encoding/hex"
	"fmt"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"gatehouse.internal/healthsvc"
)

// maxHealthChecks bounds the checks of a cluster, since each multiplies probes.
const maxHealthChecks = 16

// What becomes of the fields of a health check.
var (
	checkFields = map[string]use{
		"timeout": applied, "interval": applied, "initial_jitter": applied, "interval_jitter": applied,
		"interval_jitter_percent": applied, "unhealthy_threshold": applied, "healthy_threshold": applied,
		"tcp_health_check": applied, "http_health_check": applied,

		"name": harmless, "reuse_connection": harmless, "event_log_path": harmless, "event_logger": harmless,
		"event_service": harmless, "always_log_health_check_failures": harmless,
		"always_log_health_check_success": harmless,

		"grpc_health_check": refused, "custom_health_check": refused, "tls_options": refused,
		"transport_socket_match_criteria": refused,
	}
	tcpCheckFields = map[string]use{"send": applied, "receive": applied, "proxy_protocol_config": refused}

	httpCheckFields = map[string]use{
		"host": applied, "path": applied, "method": applied, "expected_statuses": applied, "retriable_statuses": applied,

		"request_headers_to_remove": harmless, "response_buffer_size": harmless, "use_alpn_protocol": harmless,

		"send": refused, "receive": refused, "request_headers_to_add": refused, "codec_client_type": refused,
		"service_name_matcher": refused,
	}
)

// healthChecks reads the active checks. A check that the health service can't
// run, though it is valid, makes the cluster unsupported.
func (r *clusterReader) healthChecks(m *clusterv3.Cluster) error {
	if n := len(m.GetHealthChecks()); n > maxHealthChecks {
		r.refuse("health_checks: %d, more than %d", n, maxHealthChecks)
		return nil
	}
	for i, hc := range m.GetHealthChecks() {
		path := fmt.Sprintf("health_checks[%d].", i)
		h, err := r.healthCheck(hc, path)
		if err != nil {
			return fmt.Errorf("%s%w", path, err)
		}
		if err := h.Cadence.Validate(); err != nil {
			r.refuse("%s%v", path, err)
		}
		if h.TCP != nil {
			if err := h.TCP.Validate(); err != nil {
				r.refuse("%stcp_health_check.%v", path, err)
			}
		}
		if h.HTTP != nil {
			if err := h.HTTP.Validate(); err != nil {
				r.refuse("%shttp_health_check.%v", path, err)
			}
		}
		r.fields(hc, path, checkFields)
		r.c.HealthChecks = append(r.c.HealthChecks, h)
	}
	return nil
}

// healthCheck reads one check. An error begins with the rest of the path.
func (r *clusterReader) healthCheck(hc *corev3.HealthCheck, path string) (h HealthCheck, err error) {
	if h.Timeout, err = required(hc.GetTimeout(), "timeout"); err != nil {
		return h, err
	}
	if h.Interval, err = required(hc.GetInterval(), "interval"); err != nil {
		return h, err
	}
	for _, d := range []struct {
		name string
		d    *durationpb.Duration
	}{{"initial_jitter", hc.GetInitialJitter()}, {"interval_jitter", hc.GetIntervalJitter()}} {
		if d.d == nil {
			continue
		}
		if err := d.d.CheckValid(); err != nil {
			return h, fmt.Errorf("%s: %w", d.name, err)
		}
		if d.d.AsDuration() < 0 {
			return h, fmt.Errorf("%s: %s: want at least 0s", d.name, d.d.AsDuration())
		}
	}
	h.InitialJitter, h.IntervalJitter = hc.GetInitialJitter().AsDuration(), hc.GetIntervalJitter().AsDuration()
	h.IntervalJitterPercent = hc.GetIntervalJitterPercent()
	if hc.GetUnhealthyThreshold() == nil {
		return h, fmt.Errorf("unhealthy_threshold: missing")
	}
	if hc.GetHealthyThreshold() == nil {
		return h, fmt.Errorf("healthy_threshold: missing")
	}
	h.Unhealthy, h.Healthy = hc.GetUnhealthyThreshold().GetValue(), hc.GetHealthyThreshold().GetValue()
	switch c := hc.GetHealthChecker().(type) {
	case *corev3.HealthCheck_TcpHealthCheck_:
		r.fields(c.TcpHealthCheck, path+"tcp_health_check.", tcpCheckFields)
		h.TCP, err = readTCPCheck(c.TcpHealthCheck)
	case *corev3.HealthCheck_HttpHealthCheck_:
		r.fields(c.HttpHealthCheck, path+"http_health_check.", httpCheckFields)
		h.HTTP, err = readHTTPCheck(c.HttpHealthCheck)
	case nil:
		err = fmt.Errorf("health_checker: missing")
	}
	return h, err
}

func required(d *durationpb.Duration, name string) (v time.Duration, err error) {
	if d == nil {
		return 0, fmt.Errorf("%s: missing", name)
	}
	if v, err = positive(d); err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return v, nil
}

func readTCPCheck(c *corev3.HealthCheck_TcpHealthCheck) (*healthsvc.TCP, error) {
	var t healthsvc.TCP
	var err error
	if c.GetSend() != nil {
		if t.Send, err = readPayload(c.GetSend()); err != nil {
			return nil, fmt.Errorf("tcp_health_check.send.%w", err)
		}
	}
	for i, p := range c.GetReceive() {
		b, err := readPayload(p)
		if err != nil {
			return nil, fmt.Errorf("tcp_health_check.receive[%d].%w", i, err)
		}
		t.Receive = append(t.Receive, b)
	}
	return &t, nil
}

// readPayload returns the bytes of p, which are hex digits or plain.
func readPayload(p *corev3.HealthCheck_Payload) ([]byte, error) {
	switch v := p.GetPayload().(type) {
	case *corev3.HealthCheck_Payload_Text:
		b, err := hex.DecodeString(v.Text)
		if err != nil || len(b) == 0 {
			return nil, fmt.Errorf("text: %q: want pairs of hex digits", v.Text)
		}
		return b, nil
	case *corev3.HealthCheck_Payload_Binary:
		return v.Binary, nil
	}
	return nil, fmt.Errorf("payload: missing")
}

func readHTTPCheck(c *corev3.HealthCheck_HttpHealthCheck) (*healthsvc.HTTP, error) {
	h := healthsvc.HTTP{Path: c.GetPath(), Host: c.GetHost()}
	if h.Path == "" {
		return nil, fmt.Errorf("http_health_check.path: missing")
	}
	switch c.GetMethod() {
	case corev3.RequestMethod_METHOD_UNSPECIFIED:
	case corev3.RequestMethod_CONNECT:
		return nil, fmt.Errorf("http_health_check.method: CONNECT is not allowed")
	default:
		h.Method = c.GetMethod().String()
	}
	var err error
	if h.Expected, err = readStatuses(c.GetExpectedStatuses()); err != nil {
		return nil, fmt.Errorf("http_health_check.expected_statuses%w", err)
	}
	if h.Retriable, err = readStatuses(c.GetRetriableStatuses()); err != nil {
		return nil, fmt.Errorf("http_health_check.retriable_statuses%w", err)
	}
	return &h, nil
}

func readStatuses(ranges []*typev3.Int64Range) (out []healthsvc.StatusRange, err error) {
	for i, r := range ranges {
		if r.GetStart() < 100 || r.GetEnd() > 600 || r.GetStart() >= r.GetEnd() {
			return nil, fmt.Errorf("[%d]: [%d, %d): want a range within [100, 600)", i, r.GetStart(), r.GetEnd())
		}
		out = append(out, healthsvc.StatusRange{Start: int(r.GetStart()), End: int(r.GetEnd())})
	}
	return out, nil
}
