package config

import (
	"net/http"
	"time"

	"gatehouse.internal/healthsvc"
	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/lbcore"
)

// The kinds of HealthCheck.
const (
	CheckTCP  = "tcp"
	CheckHTTP = "http"
	CheckGRPC = "grpc"
)

// The values of HealthCheck.Initial.
const (
	InitialUnknown = "unknown"
	InitialHealthy = "healthy"
)

// HealthCheck is one active check of every endpoint of a cluster.
// Source: envoy.config.core.v3.HealthCheck.
type HealthCheck struct {
	Kind string `hcl:",label" enum:"tcp|http|grpc"`
	// Interval is the time between two probes. Default 5s, from 1ms to 24h.
	Interval time.Duration `hcl:"interval" default:"5s" range:"1ms..24h"`
	// UnhealthyInterval is the time to the next probe after one that fails;
	// UnhealthyEdgeInterval and HealthyEdgeInterval are those while an endpoint is
	// on its way to unhealthy and to healthy. Default: UnhealthyInterval as
	// Interval, UnhealthyEdgeInterval as UnhealthyInterval, HealthyEdgeInterval as
	// Interval; from 1ms to 24h.
	UnhealthyInterval     time.Duration `hcl:"unhealthy_interval" range:"1ms..24h"`
	UnhealthyEdgeInterval time.Duration `hcl:"unhealthy_edge_interval" range:"1ms..24h"`
	HealthyEdgeInterval   time.Duration `hcl:"healthy_edge_interval" range:"1ms..24h"`
	// NoTrafficInterval takes the place of all of these until the cluster has had
	// its first connection, and NoTrafficHealthyInterval its place after a probe
	// that passes. Default: they don't (clusters of the control plane: 60s, as in
	// Envoy); from 1ms to 24h.
	NoTrafficInterval        time.Duration `hcl:"no_traffic_interval" range:"1ms..24h"`
	NoTrafficHealthyInterval time.Duration `hcl:"no_traffic_healthy_interval" range:"1ms..24h"`
	// Timeout bounds a whole probe, from dial to last byte. Default 1s, from
	// 1ms, at most Interval.
	Timeout time.Duration `hcl:"timeout" default:"1s" range:"1ms..24h"`
	// HealthyThreshold is how many probes in a row must pass before an
	// unhealthy endpoint is healthy; one is enough for a new one. Default 2,
	// from 1 to 1000.
	HealthyThreshold uint32 `hcl:"healthy_threshold" default:"2" range:"1..1000"`
	// UnhealthyThreshold is how many probes in a row must fail before a
	// healthy endpoint is unhealthy. Default 3, from 1 to 1000.
	UnhealthyThreshold uint32 `hcl:"unhealthy_threshold" default:"3" range:"1..1000"`
	// InitialJitter spreads the first probe over this time. Default 0, up to
	// 24h.
	InitialJitter time.Duration `hcl:"initial_jitter" range:"0s..24h"`
	// IntervalJitter adds up to this much to each interval. Default 0, up to
	// 24h.
	IntervalJitter time.Duration `hcl:"interval_jitter" range:"0s..24h"`
	// IntervalJitterPercent adds up to this part of Interval to each interval.
	// Default 0, up to 10000.
	IntervalJitterPercent uint32 `hcl:"interval_jitter_percent" range:"0..10000"`
	// Initial is what counts before the first verdict: an endpoint that is unknown
	// takes no connections, one that is healthy does. Default unknown.
	Initial string `hcl:"initial" default:"unknown" enum:"unknown|healthy"`
	// Share lets other clusters with the same check share its probes. Default
	// true; without it the endpoints are probed for this cluster alone.
	Share bool `hcl:"share" default:"true"`
	// AlwaysLogFailures logs each probe that fails, not only changes.
	// Source: HealthCheck.always_log_health_check_failures.
	AlwaysLogFailures bool `hcl:"always_log_failures"`
	// AltPort is probed in place of the port that takes connections, but for
	// endpoints that name an address for probes themselves, and for unix sockets.
	// Default 0, which is the same port. Source: HealthCheck.alt_port.
	AltPort uint32 `hcl:"alt_port" range:"0..65535"`
	// TransportMatch, if there are any labels, are what probes find their transport
	// socket by in a cluster that has Transport; of TLS only ALPN counts there. Files
	// can't set it. Source: HealthCheck.transport_socket_match_criteria.
	TransportMatch lbcore.Labels
	// TLS has probes speak TLS.
	TLS CheckTLS `hcl:"tls,block"`
	// ProxyProtocol has probes begin with a PROXY protocol header.
	ProxyProtocol CheckProxy `hcl:"proxy_protocol,block"`

	// Send (tcp) is written after connecting. It is taken for a secret.
	// Source: TcpHealthCheck.send.
	Send Payload `hcl:"send" for:"tcp" secret:"true"`
	// Receive (tcp) must come back, these pieces in this order, with anything
	// between them. Without Send and Receive connecting is enough.
	// Source: TcpHealthCheck.receive.
	Receive []Payload `hcl:"receive" for:"tcp"`

	// Method (http) is the request's method. Default GET.
	// Source: HttpHealthCheck.method.
	Method string `hcl:"method" for:"http" default:"GET" enum:"GET|HEAD|POST|PUT|DELETE|OPTIONS|TRACE|PATCH"`
	// Path (http) begins with a slash and may have a query. Default "/".
	// Source: HttpHealthCheck.path.
	Path string `hcl:"path" for:"http" default:"/"`
	// Host (http) is the host in the request to endpoints that have no host name for
	// probes. Empty means the cluster's name. Source: HttpHealthCheck.host.
	Host string `hcl:"host" for:"http"`
	// Headers (http, grpc) are sent besides; for grpc they are the metadata, with
	// names in lower case. Their values are taken for secrets.
	// Source: HttpHealthCheck.request_headers_to_add, initial_metadata.
	Headers map[string]string `hcl:"headers" for:"http|grpc" secret:"true"`
	// ExpectedStatuses (http) pass. Empty means 200 only. Each is written as
	// one status or as two with both included: 204, "200-299".
	// Source: HttpHealthCheck.expected_statuses.
	ExpectedStatuses []StatusRange `hcl:"expected_statuses" for:"http"`
	// RetriableStatuses (http) count towards UnhealthyThreshold; any other that
	// is not expected makes the endpoint unhealthy at once.
	// Source: HttpHealthCheck.retriable_statuses.
	RetriableStatuses []StatusRange `hcl:"retriable_statuses" for:"http"`

	// ServiceName (grpc) is the service to ask for. Empty means the server as a
	// whole. Source: GrpcHealthCheck.service_name.
	ServiceName string `hcl:"service_name" for:"grpc"`
	// Authority (grpc) is sent to endpoints that have no host name for probes.
	// Empty means the cluster's name. Source: GrpcHealthCheck.authority.
	Authority string `hcl:"authority" for:"grpc"`
}

// CheckTLS is a health check's side of TLS. It takes nothing from the cluster's
// block: a probe without its own does not speak TLS.
type CheckTLS struct {
	// Enabled is whether there is the block.
	Enabled bool
	// CAFile has the authorities that servers are verified by, as PEM. Empty means
	// those of the system.
	CAFile string `hcl:"ca_file"`
	// CertFile and KeyFile are the certificate to show and its key, as PEM. Both or
	// none. All files are watched.
	CertFile string `hcl:"cert_file"`
	KeyFile  string `hcl:"key_file"`
	// ServerName is sent as SNI, and the server's certificate must be valid for it.
	// Default: the host name of the endpoint for probes, its host name, or its IP
	// address, the first that there is.
	ServerName string `hcl:"server_name"`
	// ALPN are the protocols to offer. Default: http/1.1 for http, h2 for grpc.
	// Source: HealthCheck.tls_options.
	ALPN []string `hcl:"alpn_protocols"`
}

// Client returns the settings of a tlsconf.Client, which checks with the same
// files can share: names and protocols are the probe's. Sessions are not kept, as
// probes don't resume them.
func (t *CheckTLS) Client() tlsconf.ClientConfig {
	return tlsconf.ClientConfig{CAFile: t.CAFile, CertFile: t.CertFile, KeyFile: t.KeyFile, MaxSessions: -1}
}

// upstream returns what a cluster's block with the same arguments is.
func (t *CheckTLS) upstream() *UpstreamTLS {
	return &UpstreamTLS{Enabled: t.Enabled, CAFile: t.CAFile, CertFile: t.CertFile, KeyFile: t.KeyFile, ServerName: t.ServerName, ALPN: t.ALPN}
}

// CheckProxy is the PROXY protocol header of a health check: version 1 names the
// probe's own connection, version 2 says LOCAL.
type CheckProxy struct {
	// Version is 1 or 2.
	//
	// It is 0, which is off, only without the block.
	Version uint32 `hcl:"version" required:"true" range:"1..2"`
}

// Payload is bytes that a probe sends or expects. It is written as text, or in
// hex behind 0x: "PING\r\n", "0x0d0a".
type Payload string

// StatusRange is a half-open range of statuses, as the probe takes it.
type StatusRange = healthsvc.StatusRange

// Probe is what a health check asks of endpoints.
type Probe interface {
	healthsvc.Probe
	// Spec is the text for healthsvc.Key.Spec.
	Spec() string
	// Validate reports what can't be sent or makes no sense. It begins with the
	// name of an argument.
	Validate() error
}

// Probe returns what h asks of endpoints that host is the name of for probes. via
// is its connection but for the PROXY header; its TLS is nil without h.TLS.
func (h *HealthCheck) Probe(host string, via healthsvc.Transport) Probe {
	via.ProxyVersion = uint8(h.ProxyProtocol.Version)
	switch h.Kind {
	case CheckHTTP:
		headers := make(http.Header, len(h.Headers))
		for name, value := range h.Headers {
			headers[name] = []string{value}
		}
		return &healthsvc.HTTP{
			Transport: via, Method: h.Method, Path: h.Path, Host: host, Headers: headers,
			Expected: h.ExpectedStatuses, Retriable: h.RetriableStatuses,
		}
	case CheckGRPC:
		metadata := make(map[string][]string, len(h.Headers))
		for name, value := range h.Headers {
			metadata[name] = []string{value}
		}
		return &healthsvc.GRPC{Transport: via, Service: h.ServiceName, Authority: host, Metadata: metadata}
	}
	p := &healthsvc.TCP{Transport: via, Send: []byte(h.Send)}
	for _, block := range h.Receive {
		p.Receive = append(p.Receive, []byte(block))
	}
	return p
}

// HostName returns the host name that the check itself gives, or "".
func (h *HealthCheck) HostName() string {
	if h.Kind == CheckGRPC {
		return h.Authority
	}
	return h.Host
}

// Cadence returns when h probes.
func (h *HealthCheck) Cadence() healthsvc.Cadence {
	return healthsvc.Cadence{
		Interval: h.Interval, UnhealthyInterval: h.UnhealthyInterval,
		UnhealthyEdgeInterval: h.UnhealthyEdgeInterval, HealthyEdgeInterval: h.HealthyEdgeInterval,
		NoTrafficInterval: h.NoTrafficInterval, NoTrafficHealthyInterval: h.NoTrafficHealthyInterval,
		Timeout: h.Timeout, InitialJitter: h.InitialJitter,
		IntervalJitter: h.IntervalJitter, IntervalJitterPercent: h.IntervalJitterPercent,
	}
}
