package healthsvc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/lbcore"
)

// maxAnswer bounds the answer of a GRPC probe, in bytes.
const maxAnswer = 4 << 10

// GRPC asks grpc.health.v1.Health/Check on a connection of its own. Only status
// OK with SERVING passes. What the server answers otherwise (another status of
// the service, an error of the call) is an ImmediateError, as in Envoy; that no
// answer came counts towards the threshold. Source: HealthCheck.GrpcHealthCheck.
type GRPC struct {
	Transport
	// Service is what is asked for; empty means the server as a whole.
	// Source: GrpcHealthCheck.service_name.
	Service string
	// Authority is sent as :authority. The caller takes it from the endpoint's
	// host name, the check's authority or the cluster's name, in this order.
	// Empty means the probed address, or "localhost" for a unix socket.
	Authority string
	// Metadata are sent besides, by names in lower case. Those that the protocol
	// sets are not allowed. Source: GrpcHealthCheck.initial_metadata.
	Metadata map[string][]string
}

// Validate reports the first field that can't be sent.
func (p GRPC) Validate() error {
	if err := validHost("authority", p.Authority); err != nil {
		return err
	}
	if strings.ContainsFunc(p.Service, isControl) {
		return fmt.Errorf("service_name %q: has a control character", p.Service)
	}
	for name, values := range p.Metadata {
		switch {
		case !isToken(name) || strings.ToLower(name) != name:
			return fmt.Errorf("header %q: not a name of metadata, which are in lower case", name)
		case strings.HasPrefix(name, "grpc-"), name == "te", name == "content-type", name == "user-agent", name == "host", name == "connection":
			return fmt.Errorf("header %q: the health check sets it", name)
		}
		for _, v := range values {
			if strings.ContainsFunc(v, func(r rune) bool { return r < ' ' || r >= 0x7f }) && !strings.HasSuffix(name, "-bin") {
				return fmt.Errorf("header %q: its value has a character that is not printable ASCII", name)
			}
		}
	}
	return p.Transport.validate()
}

// Kind returns "grpc".
func (p GRPC) Kind() string { return "grpc" }

// Spec returns the canonical text for Key.Spec.
func (p GRPC) Spec() string {
	var b strings.Builder
	fmt.Fprintf(&b, "grpc %q authority=%q", p.Service, p.Authority)
	for _, name := range slices.Sorted(maps.Keys(p.Metadata)) {
		fmt.Fprintf(&b, " %s=%q", name, p.Metadata[name])
	}
	return b.String() + p.Transport.spec()
}

// String says what is asked, without the metadata, which may be secret.
func (p GRPC) String() string {
	return p.Transport.with(fmt.Sprintf("service %q authority %q", p.Service, p.Authority))
}

// Probe does what GRPC says.
func (p GRPC) Probe(ctx context.Context, addr lbcore.Addr) error {
	authority := cmp.Or(p.Authority, addr.String())
	if p.Authority == "" && addr.Path() != "" {
		authority = "localhost"
	}
	d := new(grpcDial)
	conn, err := grpc.NewClient("passthrough:///probe", // addr need not be a URL
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return d.take() }),
		grpc.WithTransportCredentials(dialled{insecure.NewCredentials(), p.TLS != nil}),
		grpc.WithAuthority(authority),
		grpc.WithUserAgent("gatehouse-health-check"),
		grpc.WithNoProxy(), grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(), grpc.WithDisableHealthCheck(),
		grpc.WithMaxHeaderListSize(MaxHeader),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: MaxInterval}), // ctx has the deadline
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		grpc.WithStatsHandler(d))
	if err != nil {
		return fmt.Errorf("grpc: %w", err)
	}
	var release func()
	defer func() {
		conn.Close()
		if release != nil {
			release()
		}
	}()
	// Here, and not on a goroutine of package grpc, where a panic would end the process.
	c, release, err := p.open(ctx, addr, "h2")
	if err != nil {
		return err
	}
	d.conn = &watched{c, d}
	if len(p.Metadata) > 0 {
		ctx = metadata.NewOutgoingContext(ctx, p.Metadata)
	}
	resp, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: p.Service})
	switch {
	case err == nil && resp.GetStatus() == healthpb.HealthCheckResponse_SERVING:
		return nil
	case err == nil:
		return &ImmediateError{fmt.Errorf("grpc: service %q is %s", p.Service, resp.GetStatus())}
	}
	st := status.Convert(err)
	if d.answered.Load() {
		return &ImmediateError{fmt.Errorf("grpc: status %s: %s", codeName(st.Code()), clean(st.Message()))}
	}
	switch err := d.failure(); {
	case err != nil:
		return err
	case ctx.Err() != nil:
		return timeoutError("grpc")
	}
	return d.noAnswer(ctx, st.Message())
}

// codeName returns the name that gRPC's documentation has, as NOT_FOUND.
func codeName(c codes.Code) string {
	names := [...]string{"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
		"PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL",
		"UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"}
	if int(c) < len(names) {
		return names[c]
	}
	return fmt.Sprint(uint32(c))
}

// clean has text of a peer on one line.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		if isControl(r) {
			return ' '
		}
		return r
	}, text)
}

// grpcDial has the connection of one probe, and no second one: package grpc would
// connect again in the background. It keeps the reason why that is of no use, which
// package grpc puts into many words, and sees whether the server answered.
type grpcDial struct {
	answered atomic.Bool

	mu   sync.Mutex
	conn net.Conn // nil once it was taken
	err  error
	head []byte // the first bytes that were read, up to frameHead
	io   error  // the first of a read or write
}

// frameHead is the length and the type of an HTTP/2 frame, in bytes. The first frame
// of a server is SETTINGS. Source: RFC 9113, 4.1 and 3.4.
const frameHead, frameSettings = 4, 4

var errOnce = errors.New("a probe has one connection")

// take returns the connection, once.
func (d *grpcDial) take() (net.Conn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.conn
	if d.conn = nil; c == nil {
		return nil, errOnce
	}
	return c, nil
}

// watched notes what a server says of our certificate, see isRefusal, how it begins,
// and how the connection ends. Package grpc keeps the last error that it met, which
// is mostly errOnce.
type watched struct {
	net.Conn
	d *grpcDial
}

// Read implements net.Conn.
func (c *watched) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	d := c.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if isRefusal(err) {
		d.err = fmt.Errorf("grpc: %w", tlsconf.Explain(err))
	}
	d.head = append(d.head, b[:min(n, frameHead-len(d.head))]...)
	d.io = cmp.Or(d.io, err)
	return n, err
}

// Write implements net.Conn.
func (c *watched) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err != nil {
		c.d.mu.Lock()
		c.d.io = cmp.Or(c.d.io, err)
		c.d.mu.Unlock()
	}
	return n, err
}

// noAnswer says why there is none on a connection that was made. text is what package
// grpc has to say.
func (d *grpcDial) noAnswer(ctx context.Context, text string) error {
	const doing = "grpc: no answer"
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case string(d.head) == "HTTP":
		return errors.New(doing + ": the server speaks HTTP/1, not HTTP/2")
	case len(d.head) == frameHead && d.head[frameHead-1] != frameSettings:
		return errors.New(doing + ": the server does not speak HTTP/2")
	case d.io != nil && !errors.Is(d.io, net.ErrClosed): // else it was closed by package grpc
		return reason(ctx, doing, d.io)
	case strings.Contains(text, errOnce.Error()):
		return errors.New(doing + ": the server broke the protocol, or ended the connection")
	}
	return fmt.Errorf("%s: %s", doing, clean(text))
}

// failure returns why the connection can't be used.
func (d *grpcDial) failure() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}

// TagRPC, HandleRPC, TagConn and HandleConn implement stats.Handler: a trailer
// is what tells a status of the server from one that package grpc makes up.
func (d *grpcDial) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC implements stats.Handler.
func (d *grpcDial) HandleRPC(_ context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.InTrailer); ok {
		d.answered.Store(true)
	}
}

// TagConn implements stats.Handler.
func (d *grpcDial) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (d *grpcDial) HandleConn(context.Context, stats.ConnStats) {}

// dialled are the credentials of a connection that has been through TLS already,
// where it has any: package grpc asks them only for the scheme.
type dialled struct {
	credentials.TransportCredentials
	tls bool
}

// Info implements credentials.TransportCredentials.
func (c dialled) Info() credentials.ProtocolInfo {
	info := c.TransportCredentials.Info()
	if c.tls {
		info.SecurityProtocol = "tls"
	}
	return info
}
