package healthsvc

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"gatehouse.internal/lbcore"
)

func atOnce(err error) bool {
	_, is := errors.AsType[*ImmediateError](err)
	return is
}

type check func(context.Context, *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error)

type healthServer struct {
	healthpb.UnimplementedHealthServer
	check check
}

func (s healthServer) Check(ctx context.Context, r *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	return s.check(ctx, r)
}

func serving(context.Context, *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
}

// handed is a listener of connections that are given to it.
type handed struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (l *handed) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, io.EOF
	}
}

func (l *handed) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

func (l *handed) Addr() net.Addr { return &net.UnixAddr{Name: "handed", Net: "unix"} }

// told is a connection whose closing is told.
type told struct {
	net.Conn
	closed chan struct{}
	once   sync.Once
}

func (c *told) Close() error {
	defer c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// grpcServer returns what serves one connection after another with the health
// service, or without one where c is nil.
func grpcServer(t testing.TB, c check) func(context.Context, net.Conn) {
	srv := grpc.NewServer()
	if c != nil {
		healthpb.RegisterHealthServer(srv, healthServer{check: c})
	}
	l := &handed{conns: make(chan net.Conn), done: make(chan struct{})}
	var wg sync.WaitGroup
	wg.Go(func() { srv.Serve(l) })
	t.Cleanup(func() {
		srv.Stop()
		wg.Wait()
	})
	return func(ctx context.Context, c net.Conn) {
		tc := &told{Conn: c, closed: make(chan struct{})}
		select {
		case l.conns <- tc:
		case <-ctx.Done():
			return
		}
		select {
		case <-tc.closed:
		case <-ctx.Done():
		}
	}
}

func TestGRPCAnswers(t *testing.T) {
	answers := func(s healthpb.HealthCheckResponse_ServingStatus) check {
		return func(context.Context, *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
			return &healthpb.HealthCheckResponse{Status: s}, nil
		}
	}
	fails := func(c codes.Code) check {
		return func(context.Context, *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
			return nil, status.Error(c, "that is why")
		}
	}
	type answerOf struct {
		name  string
		check check
		want  string
	}
	all := []answerOf{
		{"serving", serving, ""},
		{"not serving", answers(healthpb.HealthCheckResponse_NOT_SERVING), `grpc: service "web" is NOT_SERVING`},
		{"unknown", answers(healthpb.HealthCheckResponse_UNKNOWN), `grpc: service "web" is UNKNOWN`},
		{"service unknown", answers(healthpb.HealthCheckResponse_SERVICE_UNKNOWN), `grpc: service "web" is SERVICE_UNKNOWN`},
		{"another number", answers(77), `grpc: service "web" is 77`},
		{"no health service", nil, "grpc: status UNIMPLEMENTED: unknown service grpc.health.v1.Health"},
	}
	for c := codes.Canceled; c <= codes.Unauthenticated; c++ {
		all = append(all, answerOf{c.String(), fails(c), "grpc: status " + codeName(c) + ": that is why"})
	}
	reasons := make(map[string]bool)
	both(t, func(t *testing.T, network string) {
		for _, a := range all {
			t.Run(a.name, func(t *testing.T) {
				b := serve(t, network, grpcServer(t, a.check))
				err := probeOnce(t, GRPC{Service: "web"}, b.addr)
				wantError(t, err, a.want)
				if err != nil {
					reasons[err.Error()] = true
					if !atOnce(err) {
						t.Errorf("%v is an answer, and does not count at once", err)
					}
				}
			})
		}
	})
	if len(reasons) != len(all)-1 {
		t.Errorf("%d reasons for %d answers: %v", len(reasons), len(all)-1, reasons)
	}
}

func TestCodeNames(t *testing.T) {
	for c := codes.OK; c <= codes.Unauthenticated; c++ {
		var back codes.Code
		if err := back.UnmarshalJSON([]byte(`"` + codeName(c) + `"`)); err != nil || back != c {
			t.Errorf("%d is %q: %v", c, codeName(c), err)
		}
	}
	if got := codeName(99); got != "99" {
		t.Errorf("an unknown code is %q", got)
	}
}

// says returns what sends text, ends its side and reads until the peer closes.
func says(text string) func(context.Context, net.Conn) {
	return func(_ context.Context, c net.Conn) {
		io.WriteString(c, text)
		c.(interface{ CloseWrite() error }).CloseWrite()
		io.Copy(io.Discard, c)
	}
}

// What is no answer counts towards the threshold.
func TestGRPCWithoutAnswer(t *testing.T) {
	both(t, func(t *testing.T, network string) {
		for name, c := range map[string]struct {
			talk func(context.Context, net.Conn)
			want string
		}{
			"closes":      {func(context.Context, net.Conn) {}, "grpc: no answer: "},
			"ends":        {says(""), "grpc: no answer: connection closed by the peer"},
			"http/1.1":    {says("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"), "grpc: no answer: the server speaks HTTP/1, not HTTP/2"},
			"something":   {says(strings.Repeat("x", 100)), "grpc: no answer: the server does not speak HTTP/2"},
			"a bit":       {says("SSH"), "grpc: no answer: connection closed by the peer"},
			"a bad frame": {says("\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x01\x06\x00\x00\x00\x00\x00x"), "grpc: no answer: "},
		} {
			t.Run(name, func(t *testing.T) {
				b := serve(t, network, c.talk)
				err := probeOnce(t, GRPC{}, b.addr)
				wantError(t, err, c.want)
				if atOnce(err) {
					t.Errorf("%v counts at once", err)
				}
				if err != nil && (strings.Contains(err.Error(), b.addr.String()) || strings.Contains(err.Error(), "127.0.0.1") || strings.Contains(err.Error(), errOnce.Error())) {
					t.Errorf("%v has an address, or says what a probe does instead of what the server did", err)
				}
				if n := b.accepts.Load(); n != 1 {
					t.Errorf("%d connections, want one", n)
				}
			})
		}
	})
	wantError(t, probeOnce(t, GRPC{}, lbcore.UnixAddr(filepath.Join(t.TempDir(), "none"))), "connect: no such file")
	wantTimeout(t, probeUntil(t, GRPC{}, "tcp", func(ctx context.Context, c net.Conn, expire func()) {
		c.Read(make([]byte, 1))
		expire()
		<-ctx.Done()
	}), "grpc: timed out")
	slow := func(expire func()) check {
		return func(ctx context.Context, r *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
			expire()
			<-ctx.Done()
			return nil, ctx.Err()
		}
	}
	wantTimeout(t, probeUntil(t, GRPC{}, "tcp", func(ctx context.Context, c net.Conn, expire func()) {
		grpcServer(t, slow(expire))(ctx, c)
	}), "grpc: timed out")
}

func TestGRPCRequest(t *testing.T) {
	for _, c := range []struct {
		p                  GRPC
		authority, service string
	}{
		{GRPC{}, "", ""},
		{GRPC{Authority: "web.internal", Service: "a.B"}, "web.internal", "a.B"},
		{GRPC{Authority: "outbound|80||web", Metadata: map[string][]string{"x-token": {"one", "two"}}}, "outbound|80||web", ""},
	} {
		b := serve(t, "tcp", grpcServer(t, func(ctx context.Context, r *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
			md, _ := metadata.FromIncomingContext(ctx)
			if got := md.Get(":authority"); c.authority != "" && (len(got) != 1 || got[0] != c.authority) {
				t.Errorf("authority %q, want %q", got, c.authority)
			}
			if got := md.Get("x-token"); len(got) != len(c.p.Metadata["x-token"]) {
				t.Errorf("metadata %q", md)
			}
			if got := md.Get("user-agent"); len(got) != 1 || !strings.HasPrefix(got[0], "gatehouse-health-check") {
				t.Errorf("user agent %q", got)
			}
			if r.Service != c.service {
				t.Errorf("service %q, want %q", r.Service, c.service)
			}
			return serving(ctx, r)
		}))
		wantError(t, probeOnce(t, c.p, b.addr), "")
		wantError(t, probeOnce(t, c.p, b.addr), "")
		if n := b.accepts.Load(); n != 2 {
			t.Errorf("two probes made %d connections", n)
		}
	}
}

func TestGRPCValidate(t *testing.T) {
	md := func(name, value string) GRPC { return GRPC{Metadata: map[string][]string{name: {value}}} }
	for _, c := range []struct {
		p    GRPC
		want string
	}{
		{GRPC{Service: "a.B", Authority: "web:80", Metadata: map[string][]string{"x": {"y"}}}, ""},
		{GRPC{Authority: "*"}, `authority "*": a wildcard`},
		{GRPC{Authority: "a b"}, `authority "a b": want a host`},
		{GRPC{Service: "a\nb"}, `service_name "a\nb"`},
		{md("X", "y"), `header "X": not a name`},
		{md("", "y"), `header "": not a name`},
		{md(":path", "y"), `header ":path": not a name`},
		{md("grpc-timeout", "y"), `header "grpc-timeout": the health check sets it`},
		{md("content-type", "y"), `header "content-type": the health check sets it`},
		{md("x", "ü"), `header "x": its value`},
		{md("x-bin", "ü"), ""},
	} {
		wantError(t, c.p.Validate(), c.want)
	}
}

func TestGRPCSpec(t *testing.T) {
	specs := make(map[string]bool)
	for _, p := range []GRPC{
		{}, {Service: "a"}, {Authority: "a"}, {Metadata: map[string][]string{"a": {"b"}}}, {Metadata: map[string][]string{"a": {"b", "c"}}},
	} {
		if specs[p.Spec()] {
			t.Errorf("%q twice", p.Spec())
		}
		specs[p.Spec()] = true
	}
}

// The path of a socket may be what is no part of a URL.
func TestGRPCOddPath(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a%zz ?#.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer()
	healthpb.RegisterHealthServer(srv, healthServer{check: serving})
	var wg sync.WaitGroup
	wg.Go(func() { srv.Serve(l) })
	defer wg.Wait()
	defer srv.Stop()
	wantError(t, probeOnce(t, GRPC{}, lbcore.UnixAddr(path)), "")
}
