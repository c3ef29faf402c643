package adsgrpc

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"

	"gatehouse.internal/xds/internal/core"
)

// rawServer is a server that knows nothing of messages: it hands on what comes
// and sends what it is told to.
type rawServer struct {
	addr    string
	streams chan *rawStream
}

// rawStream is one stream of it. Its test must send one value to end.
type rawStream struct {
	grpc.ServerStream
	method string
	md     metadata.MD
	end    chan error
}

func (s *rawStream) recv(t *testing.T) []byte {
	t.Helper()
	var b []byte
	if err := s.RecvMsg(&b); err != nil {
		t.Fatal(err)
	}
	return b
}

func (s *rawStream) send(t *testing.T, b []byte) {
	t.Helper()
	if err := s.SendMsg(&b); err != nil {
		t.Fatal(err)
	}
}

// rawCodec takes messages for what they are: bytes.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

func newRawServer(t *testing.T, opts ...grpc.ServerOption) *rawServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &rawServer{addr: l.Addr().String(), streams: make(chan *rawStream)}
	ctx, cancel := context.WithCancel(context.Background())
	opts = append(opts, grpc.WaitForHandlers(true), grpc.ForceServerCodecV2(rawCodec{}), grpc.UnknownServiceHandler(func(_ any, ss grpc.ServerStream) error {
		s := &rawStream{ServerStream: ss, end: make(chan error, 1)}
		s.method, _ = grpc.MethodFromServerStream(ss)
		s.md, _ = metadata.FromIncomingContext(ss.Context())
		select {
		case r.streams <- s:
		case <-ctx.Done():
			return ctx.Err()
		}
		select {
		case err := <-s.end:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}))
	s := grpc.NewServer(opts...)
	var wg sync.WaitGroup
	wg.Go(func() { s.Serve(l) })
	t.Cleanup(func() { cancel(); s.Stop(); wg.Wait() })
	return r
}

// next returns the next stream.
func (r *rawServer) next(t *testing.T) *rawStream {
	t.Helper()
	select {
	case s := <-r.streams:
		return s
	case <-time.After(20 * time.Second):
		t.Fatal("no stream")
		return nil
	}
}

func newTransport(t *testing.T, s Server, with ...func(*Options)) *Transport {
	t.Helper()
	o := Options{Node: &corev3.Node{Id: "n"}, UserAgent: "test/1", MaxMessage: 4 << 20}
	for _, w := range with {
		w(&o)
	}
	tr, err := New(s, o)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// open opens a stream and sends the first request.
func open(t *testing.T, tr *Transport) (*Stream, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	s, err := tr.Open(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	t.Cleanup(func() { cancel(); s.Close() })
	err = s.Send(core.Request{Variant: s.Variant(), Type: "t", Node: true})
	return s, err
}

// refused opens a stream that is to fail, and returns the words and how to go on.
func refused(t *testing.T, tr *Transport) (string, core.Ending) {
	t.Helper()
	s, err := open(t, tr)
	if err == nil {
		_, err = s.Recv()
	}
	if err == nil {
		err = errors.New("it works")
	}
	return tr.End(err, false)
}

// raw is a message as gRPC hands it to a codec.
func raw(b []byte) mem.BufferSlice { return mem.BufferSlice{mem.SliceBuffer(b)} }
