package xds

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"gatehouse.internal/xds/internal/core"
)

// A stream is one ADS stream in the core's terms. Send and Recv may be called
// at the same time by one goroutine each; both end when the context does that
// the stream was opened with.
type stream interface {
	// Send returns when the message is on its way to the server.
	Send(core.Request) error
	Recv() (core.Response, error)
	// Close frees the connection. Neither Send nor Recv may be running.
	Close()
}

// adsStream is a stream over a gRPC connection of its own: a new attempt is a
// new dial, so that nobody's back-off but the client's own counts.
type adsStream struct {
	grpc.BidiStreamingClient[discoveryv3.DiscoveryRequest, discoveryv3.DiscoveryResponse]
	conn *grpc.ClientConn
	node *corev3.Node
}

// The settings of the connection. gRPC servers close connections that ping
// more often than every five minutes, unless configured otherwise; TCP's own
// keepalive, which nobody forbids, sees a dead host sooner.
const (
	pingEvery   = 5 * time.Minute
	pingTimeout = 20 * time.Second
)

var tcpKeepAlive = net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 10 * time.Second, Count: 3}

// openADS returns the function that opens streams to the server of cfg.
func openADS(cfg Config, node *corev3.Node) func(context.Context) (stream, error) {
	return func(ctx context.Context) (stream, error) {
		var refused atomic.Pointer[error] // the last dial's; gRPC wraps it beyond recognition
		dial := func(ctx context.Context, target string) (net.Conn, error) {
			network, addr := "tcp", target
			if path, ok := strings.CutPrefix(target, "unix://"); ok {
				network, addr = "unix", path
			}
			conn, err := cfg.Dial(ctx, network, addr)
			if err != nil {
				refused.Store(&err)
			}
			return conn, err
		}
		conn, err := grpc.NewClient(cfg.ServerURI,
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(dial),
			grpc.WithDisableServiceConfig(),
			grpc.WithUserAgent(userAgent+"/"+cfg.Version),
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingEvery, Timeout: pingTimeout}),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(cfg.MaxMessage)),
		)
		if err != nil {
			return nil, err
		}
		s, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
		if err != nil {
			conn.Close()
			if dialled := refused.Load(); dialled != nil && status.Code(err) == codes.Unavailable {
				return nil, *dialled
			}
			return nil, err
		}
		return &adsStream{s, conn, node}, nil
	}
}

func (s *adsStream) Close() { s.conn.Close() }

func (s *adsStream) Send(r core.Request) error {
	m := &discoveryv3.DiscoveryRequest{
		TypeUrl:       r.Type,
		VersionInfo:   r.Version,
		ResponseNonce: r.Nonce,
		ResourceNames: r.Names,
	}
	if r.Node {
		m.Node = s.node
	}
	if r.Error != "" {
		m.ErrorDetail = status.New(codes.InvalidArgument, r.Error).Proto()
	}
	return s.BidiStreamingClient.Send(m)
}

func (s *adsStream) Recv() (core.Response, error) {
	m, err := s.BidiStreamingClient.Recv()
	if err != nil {
		return core.Response{}, err
	}
	r := core.Response{Type: m.GetTypeUrl(), Version: m.GetVersionInfo(), Nonce: m.GetNonce()}
	for _, res := range m.GetResources() {
		r.Resources = append(r.Resources, core.Resource{Type: res.GetTypeUrl(), Body: res.GetValue()})
	}
	return r, nil
}

// reason returns the words for what ended a stream.
func reason(err error) string {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno.Error()
	}
	if err == io.EOF {
		return "the server ended the stream"
	}
	if s, ok := status.FromError(err); ok {
		return fmt.Sprintf("%s (%s)", s.Message(), s.Code())
	}
	return err.Error()
}

// event is what a session reports. Exactly one field is set.
type event struct {
	opened, sent bool
	response     *core.Response
	closed       error // never nil; the session is over
}

// session is one stream from the attempt to open it until its end.
type session struct {
	events chan event        // unbuffered: no message is read before the one before it was taken in
	out    chan core.Request // one slot; the core has no more than one request on its way
}

// serve runs a session. It reports to whoever reads events until ctx ends, and
// returns when its goroutines have ended.
func (c *Client) serve(ctx context.Context, s *session) {
	emit := func(ctx context.Context, e event) {
		select {
		case s.events <- e:
		case <-ctx.Done():
		}
	}
	emit(ctx, event{closed: c.converse(ctx, s, emit)})
}

// converse opens a stream and reads from it until it ends, while a goroutine
// sends: a server that doesn't read must not keep the client from reading.
func (c *Client) converse(ctx context.Context, s *session, emit func(context.Context, event)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	st, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer st.Close()
	emit(ctx, event{opened: true})
	var sender sync.WaitGroup
	sender.Go(func() {
		for {
			select {
			case r := <-s.out:
				if err := st.Send(r); err == io.EOF {
					return // the stream is over, and Recv says why
				} else if err != nil {
					cancel(err)
					return
				}
				emit(ctx, event{sent: true})
			case <-ctx.Done():
				return
			}
		}
	})
	defer func() {
		cancel(nil)
		sender.Wait()
	}()
	for {
		r, err := st.Recv()
		if err != nil {
			return cmp.Or(context.Cause(ctx), err)
		}
		emit(ctx, event{response: &r})
	}
}
