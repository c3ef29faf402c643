package adsgrpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/xds/internal/core"
)

// The settings of a connection. gRPC servers close connections that ping more
// often than every five minutes, unless configured otherwise; TCP's own
// keepalive, which nobody forbids, sees a dead host sooner.
const (
	pingEvery   = 5 * time.Minute
	pingTimeout = 20 * time.Second
)

var tcpKeepAlive = net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 10 * time.Second, Count: 3}

// Options are what the Transports of a client have in common.
type Options struct {
	// Node is sent in the first message of each stream. It is not written to.
	Node *corev3.Node
	// UserAgent is gRPC's, which goes into HTTP headers.
	UserAgent string
	// MaxMessage bounds a response, in bytes.
	MaxMessage int
	// PingEvery and PingTimeout are gRPC's keepalive. 0 means 5 min and 20 s.
	PingEvery, PingTimeout time.Duration
	// Dial makes the connections, as net.Dialer's DialContext does. Nil means a
	// net.Dialer with TCP keepalive.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Logger gets a line for each rotation of certificates. Nil means none.
	Logger *slog.Logger
}

// Transport opens the streams to one server. New makes it.
type Transport struct {
	server Server
	opts   Options
	tls    *tlsconf.Client // nil without TLS

	variant  core.Variant // of the next stream, or the open one
	switched bool         // the other variant was refused just before
	unfit    error        // why the last message could not be taken
}

// New returns a Transport. It reads the files of TLS, and starts nothing. An
// error begins with the name of the field that is wrong.
func New(s Server, o Options) (*Transport, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	if o.Dial == nil {
		o.Dial = (&net.Dialer{KeepAliveConfig: tcpKeepAlive}).DialContext
	}
	t := &Transport{server: s, opts: o, variant: s.Protocol.variant()}
	if s.TLS != nil {
		var err error
		t.tls, err = tlsconf.NewClient(tlsconf.ClientConfig{
			CAFile: s.TLS.CAFile, CertFile: s.TLS.CertFile, KeyFile: s.TLS.KeyFile,
			ServerName: s.TLS.ServerName, Logger: o.Logger,
		})
		if err != nil {
			return nil, fmt.Errorf("tls: %w", err)
		}
	}
	return t, nil
}

// Run loads the files of TLS again when they change, until ctx ends.
func (t *Transport) Run(ctx context.Context) error {
	if t.tls != nil {
		return t.tls.Run(ctx)
	}
	<-ctx.Done()
	return ctx.Err()
}

// Open opens a stream. It ends when ctx does, and must be closed then too.
func (t *Transport) Open(ctx context.Context) (*Stream, error) {
	t.unfit = nil
	codec := &codec{}
	ctx, conn, cause, err := t.connect(ctx, grpc.MaxCallRecvMsgSize(t.opts.MaxMessage), grpc.ForceCodecV2(codec))
	if err != nil {
		return nil, err
	}
	s := &Stream{t: t, conn: conn, codec: codec}
	client := discoveryv3.NewAggregatedDiscoveryServiceClient(conn)
	if t.variant == core.Delta {
		s.delta, err = client.DeltaAggregatedResources(ctx)
	} else {
		s.sotw, err = client.StreamAggregatedResources(ctx)
	}
	if err != nil {
		conn.Close()
		return nil, cause(err)
	}
	return s, nil
}

// connect returns a connection of its own to the server, the context for its stream,
// and what finds the cause of an error of opening that. It may be called by several
// goroutines.
func (t *Transport) connect(ctx context.Context, opts ...grpc.CallOption) (_ context.Context, _ *grpc.ClientConn, cause func(error) error, _ error) {
	ctx, err := t.server.outgoing(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	var refused atomic.Pointer[error] // the last dial's; gRPC wraps it beyond recognition
	note := func(err error) {
		if err != nil {
			refused.Store(&err)
		}
	}
	dial := func(ctx context.Context, target string) (net.Conn, error) {
		network, addr := "tcp", target
		if path, ok := strings.CutPrefix(target, "unix://"); ok {
			network, addr = "unix", path
		}
		conn, err := t.opts.Dial(ctx, network, addr)
		note(err)
		return conn, err
	}
	creds := insecure.NewCredentials()
	if t.tls != nil {
		creds = handshakes{credentials.NewTLS(t.tls.Config("")), note}
	}
	conn, err := grpc.NewClient(t.server.URI,
		grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(dial),
		grpc.WithDisableServiceConfig(),
		grpc.WithUserAgent(t.opts.UserAgent),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: cmp.Or(t.opts.PingEvery, pingEvery), Timeout: cmp.Or(t.opts.PingTimeout, pingTimeout),
		}),
		grpc.WithDefaultCallOptions(opts...),
	)
	if err != nil {
		return nil, nil, nil, err
	}
	return ctx, conn, func(err error) error {
		if dialled := refused.Load(); dialled != nil && status.Code(err) == codes.Unavailable {
			return *dialled
		}
		return err
	}, nil
}

// handshakes are TLS credentials that tell of what fails.
type handshakes struct {
	credentials.TransportCredentials
	note func(error)
}

func (h handshakes) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, info, err := h.TransportCredentials.ClientHandshake(ctx, authority, conn)
	if err != nil {
		err = tlsconf.Explain(err)
		h.note(err)
	}
	return c, info, err
}

func (h handshakes) Clone() credentials.TransportCredentials {
	return handshakes{h.TransportCredentials.Clone(), h.note}
}

// End says why a stream ended, or was not opened, with err, and how to go on.
// Heard says that it had a response. The words of the server in it are not
// many, whatever it said.
func (t *Transport) End(err error, heard bool) (reason string, how core.Ending) {
	reason, code := words(err)
	auto := t.server.Protocol == "" || t.server.Protocol == Auto
	switch {
	case t.unfit != nil:
		return t.unfit.Error(), core.Unfit
	case !heard && notThere(code, err):
		if !auto {
			return fmt.Sprintf("%s: protocol %s is not there, the other one may be", reason, t.variant), core.Refused
		}
		t.variant = other(t.variant)
		if t.switched = !t.switched; t.switched {
			return reason, core.Again
		}
		return reason, core.Refused
	}
	t.switched = false
	switch code {
	case codes.ResourceExhausted:
		if heard || strings.Contains(reason, "larger than max") {
			return reason, core.Unfit
		}
	case codes.Unauthenticated, codes.PermissionDenied, codes.InvalidArgument, codes.Unimplemented:
		return reason, core.Refused
	}
	return reason, core.Lost
}

// notThere reports whether err says that the server has no such method. Consul
// has no code for it.
func notThere(code codes.Code, err error) bool {
	return code == codes.Unimplemented || code == codes.Unknown && strings.Contains(status.Convert(err).Message(), "not implemented")
}

func other(v core.Variant) core.Variant {
	if v == core.Delta {
		return core.StateOfTheWorld
	}
	return core.Delta
}

// words returns the words for what ended a stream, not too many, and gRPC's code.
func words(err error) (string, codes.Code) {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno.Error(), codes.Unavailable
	}
	if err == io.EOF {
		return "the server ended the stream", codes.OK
	}
	if s, ok := status.FromError(err); ok {
		return fmt.Sprintf("%s (%s)", core.Clip(s.Message()), s.Code()), s.Code()
	}
	return core.Clip(err.Error()), codes.Unavailable
}

// Look has Run look at the TLS files now, and returns when what they hold is for the
// connections from then on, if it can be used. The error is ctx's.
func (t *Transport) Look(ctx context.Context) error {
	if t.tls == nil {
		return nil
	}
	return t.tls.Look(ctx)
}
