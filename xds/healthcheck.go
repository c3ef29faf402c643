package xds

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"math"
	"net/http"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"gatehouse.internal/healthsvc"
	"gatehouse.internal/lbcore"
)

// maxHealthChecks bounds the checks of a cluster, since each multiplies probes.
const maxHealthChecks = 16

// What becomes of the fields of a health check.
var (
	checkFields = map[string]use{
		"timeout": applied, "interval": applied, "initial_jitter": applied, "interval_jitter": applied,
		"interval_jitter_percent": applied, "unhealthy_threshold": applied, "healthy_threshold": applied,
		"unhealthy_interval": applied, "unhealthy_edge_interval": applied, "healthy_edge_interval": applied,
		"no_traffic_interval": applied, "no_traffic_healthy_interval": applied, "alt_port": applied,
		"always_log_health_check_failures": applied, "tls_options": applied, "transport_socket_match_criteria": applied,
		"tcp_health_check": applied, "http_health_check": applied, "grpc_health_check": applied,

		"name": harmless, "reuse_connection": harmless, "event_log_path": harmless, "event_logger": harmless,
		"event_service": harmless,

		"always_log_health_check_success": ignored, "custom_health_check": refused,
	}
	tcpCheckFields = map[string]use{"send": applied, "receive": applied, "proxy_protocol_config": applied}

	httpCheckFields = map[string]use{
		"host": applied, "path": applied, "method": applied, "expected_statuses": applied, "retriable_statuses": applied,
		"request_headers_to_add": applied, "codec_client_type": applied,

		"request_headers_to_remove": harmless, "response_buffer_size": harmless, "use_alpn_protocol": harmless,

		"send": refused, "receive": refused, "service_name_matcher": refused,
	}
	grpcCheckFields = map[string]use{"service_name": applied, "authority": applied, "initial_metadata": applied}
)

// healthChecks reads the active checks. A check of a kind that the health service
// can't run makes the cluster unsupported; one that makes no sense, or can't be
// sent, is an error, as Envoy's own checks of it are.
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
			return fmt.Errorf("%s%w", path, fieldFirst(err))
		}
		if hc.GetCustomHealthCheck() == nil {
			if err := h.probe().Validate(); err != nil {
				return fmt.Errorf("%s%s.%w", path, h.kind(), fieldFirst(err))
			}
		}
		r.fields(hc, path, checkFields)
		r.c.HealthChecks = append(r.c.HealthChecks, h)
	}
	return nil
}

// fieldFirst has a mistake in the words of healthsvc, as `path "x": must begin
// with a slash`, begin with the field and a colon.
func fieldFirst(err error) error {
	name, rest, _ := strings.Cut(err.Error(), " ")
	if name == "header" {
		name = "headers"
	}
	return fmt.Errorf("%s: %s", strings.TrimSuffix(name, ":"), rest)
}

// kind returns the field that the probe is in.
func (h *HealthCheck) kind() string {
	switch {
	case h.HTTP != nil:
		return "http_health_check"
	case h.GRPC != nil:
		return "grpc_health_check"
	}
	return "tcp_health_check"
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
		name  string
		d     *durationpb.Duration
		least time.Duration
		to    *time.Duration
	}{
		{"initial_jitter", hc.GetInitialJitter(), 0, &h.InitialJitter},
		{"interval_jitter", hc.GetIntervalJitter(), 0, &h.IntervalJitter},
		{"unhealthy_interval", hc.GetUnhealthyInterval(), 1, &h.UnhealthyInterval},
		{"unhealthy_edge_interval", hc.GetUnhealthyEdgeInterval(), 1, &h.UnhealthyEdgeInterval},
		{"healthy_edge_interval", hc.GetHealthyEdgeInterval(), 1, &h.HealthyEdgeInterval},
		{"no_traffic_interval", hc.GetNoTrafficInterval(), 1, &h.NoTrafficInterval},
		{"no_traffic_healthy_interval", hc.GetNoTrafficHealthyInterval(), 1, &h.NoTrafficHealthyInterval},
	} {
		if d.d == nil {
			continue
		}
		if err := d.d.CheckValid(); err != nil {
			return h, fmt.Errorf("%s: %w", d.name, err)
		}
		if *d.to = d.d.AsDuration(); *d.to < d.least {
			want := "at least 0s"
			if d.least > 0 {
				want = "more than 0s"
			}
			return h, fmt.Errorf("%s: %s: want %s", d.name, *d.to, want)
		}
	}
	h.NoTrafficInterval = cmp.Or(h.NoTrafficInterval, DefaultNoTrafficInterval)
	h.ALPN = hc.GetTlsOptions().GetAlpnProtocols()
	for _, p := range h.ALPN {
		if p == "" || len(p) > 255 {
			return h, fmt.Errorf("tls_options.alpn_protocols: %.40q: want 1 to 255 bytes", p)
		}
	}
	h.TransportMatch = labelsOf(hc.GetTransportSocketMatchCriteria(), lbcore.Labels{})
	h.AlwaysLogFailures = hc.GetAlwaysLogHealthCheckFailures()
	if h.Port = hc.GetAltPort().GetValue(); h.Port > math.MaxUint16 {
		return h, fmt.Errorf("alt_port: %d: want at most %d", h.Port, math.MaxUint16)
	}
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
		h.HTTP, err = r.readHTTPCheck(c.HttpHealthCheck, path)
	case *corev3.HealthCheck_GrpcHealthCheck_:
		r.fields(c.GrpcHealthCheck, path+"grpc_health_check.", grpcCheckFields)
		h.GRPC, err = readGRPCCheck(c.GrpcHealthCheck)
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
	if p := c.GetProxyProtocolConfig(); p != nil {
		if t.ProxyVersion = 1; p.GetVersion() == corev3.ProxyProtocolConfig_V2 {
			t.ProxyVersion = 2 // LOCAL: TLVs would be those of a client
		}
	}
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

func (r *clusterReader) readHTTPCheck(c *corev3.HealthCheck_HttpHealthCheck, path string) (*healthsvc.HTTP, error) {
	if t := c.GetCodecClientType(); t != typev3.CodecClientType_HTTP1 {
		r.refuse("%shttp_health_check.codec_client_type %s", path, t)
	}
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
	if h.Headers, err = r.readHeaders(c.GetRequestHeadersToAdd(), path+"http_health_check.request_headers_to_add"); err != nil {
		return nil, fmt.Errorf("http_health_check.request_headers_to_add%w", err)
	}
	return &h, nil
}

func readGRPCCheck(c *corev3.HealthCheck_GrpcHealthCheck) (*healthsvc.GRPC, error) {
	g := healthsvc.GRPC{Service: c.GetServiceName(), Authority: c.GetAuthority()}
	for i, o := range c.GetInitialMetadata() {
		name := strings.ToLower(o.GetHeader().GetKey())
		if name == "" {
			return nil, fmt.Errorf("grpc_health_check.initial_metadata[%d].header.key: missing", i)
		}
		if g.Metadata == nil {
			g.Metadata = make(map[string][]string)
		}
		g.Metadata[name] = append(g.Metadata[name], headerValue(o.GetHeader()))
	}
	return &g, nil
}

// readHeaders returns the headers to add. Envoy fills in "%…%" in values, and
// this program does not: path is that of the field then.
func (r *clusterReader) readHeaders(options []*corev3.HeaderValueOption, path string) (h http.Header, err error) {
	for i, o := range options {
		name, value := o.GetHeader().GetKey(), headerValue(o.GetHeader())
		if name == "" {
			return nil, fmt.Errorf("[%d].header.key: missing", i)
		}
		if strings.Contains(value, "%") {
			r.refuse("%s[%d]: a value with %%", path, i)
		}
		if h == nil {
			h = make(http.Header)
		}
		h.Add(name, value)
	}
	return h, nil
}

func headerValue(h *corev3.HeaderValue) string {
	if raw := h.GetRawValue(); len(raw) > 0 {
		return string(raw)
	}
	return h.GetValue()
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
