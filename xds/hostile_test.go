package xds

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// hostileServer does on its streams what it is told to, which may change.
type hostileServer struct {
	t    *testing.T
	addr string

	mu      sync.Mutex
	handle  func(*hostileStream) error
	changed chan struct{} // closed when handle changes
	rounds  int           // deeds done, since the change
	grown   chan struct{} // closed by the next one
}

// hostileStream is one stream of it.
type hostileStream struct {
	grpc.ServerStream
	server  *hostileServer
	delta   bool
	n       int // rounds before
	changed <-chan struct{}
}

// bytesCodec takes messages for what they are: bytes.
type bytesCodec struct{}

func (bytesCodec) Name() string { return "proto" }

func (bytesCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (bytesCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

func newHostileServer(t *testing.T) *hostileServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &hostileServer{t: t, addr: l.Addr().String(), changed: make(chan struct{}), grown: make(chan struct{})}
	s := grpc.NewServer(grpc.WaitForHandlers(true), grpc.ForceServerCodecV2(bytesCodec{}), grpc.UnknownServiceHandler(func(_ any, ss grpc.ServerStream) error {
		method, _ := grpc.MethodFromServerStream(ss)
		h.mu.Lock()
		at := &hostileStream{ss, h, strings.Contains(method, "Delta"), h.rounds, h.changed}
		handle := h.handle
		h.mu.Unlock()
		return handle(at)
	}))
	var wg sync.WaitGroup
	wg.Go(func() { s.Serve(l) })
	t.Cleanup(func() { h.become(func(*hostileStream) error { return nil }); s.Stop(); wg.Wait() })
	return h
}

// become ends all streams; the next ones are handled so.
func (h *hostileServer) become(handle func(*hostileStream) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.handle, h.rounds = handle, 0
	close(h.changed)
	h.changed = make(chan struct{})
}

// done counts a deed.
func (s *hostileStream) done() {
	h := s.server
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.changed == (<-chan struct{})(h.changed) {
		h.rounds++
		close(h.grown)
		h.grown = make(chan struct{})
	}
}

// wait returns after so many deeds.
func (h *hostileServer) wait(rounds int) {
	h.t.Helper()
	deadline := time.After(60 * time.Second)
	for {
		h.mu.Lock()
		n, grown := h.rounds, h.grown
		h.mu.Unlock()
		if n >= rounds {
			return
		}
		select {
		case <-grown:
		case <-deadline:
			h.t.Fatalf("%d of %d rounds", n, rounds)
		}
	}
}

// rest keeps the stream open until the server changes or the client leaves.
func (s *hostileStream) rest() error {
	select {
	case <-s.changed:
		return nil
	case <-s.Context().Done():
		return s.Context().Err()
	}
}

// resource is a resource of a response, in its two forms.
func resource(name, version, typ string, body []byte) *discoveryv3.Resource {
	return &discoveryv3.Resource{Name: name, Version: version, Resource: &anypb.Any{TypeUrl: typ, Value: body}}
}

// responseOf returns a response of that type in one of the variants.
func responseOf(delta bool, typ, version, nonce string, removed []string, errs []*discoveryv3.ResourceError, list ...*discoveryv3.Resource) proto.Message {
	if delta {
		return &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typ, SystemVersionInfo: version, Nonce: nonce, Resources: list, RemovedResources: removed, ResourceErrors: errs}
	}
	r := &discoveryv3.DiscoveryResponse{TypeUrl: typ, VersionInfo: version, Nonce: nonce, ResourceErrors: errs}
	for _, x := range list {
		r.Resources = append(r.Resources, x.Resource)
	}
	return r
}

// respond sends a response of that type in the stream's variant.
func (s *hostileStream) respond(typ, version, nonce string, removed []string, errs []*discoveryv3.ResourceError, list ...*discoveryv3.Resource) error {
	b, err := proto.Marshal(responseOf(s.delta, typ, version, nonce, removed, errs, list...))
	if err != nil {
		return err
	}
	return s.SendMsg(b)
}

// webResource is the assignment "web" with one endpoint, 10.0.0.n.
func webResource(t *testing.T, n int) *discoveryv3.Resource {
	return resource("web", fmt.Sprint(n), AssignmentType, marshal(t, web(n)))
}

// good serves web with the endpoint 10.0.0.n, and reads whatever comes.
func good(t *testing.T, n int) func(*hostileStream) error {
	return func(s *hostileStream) error {
		var b []byte
		if err := s.RecvMsg(&b); err != nil {
			return err
		}
		if err := s.respond(AssignmentType, fmt.Sprint("v", n), fmt.Sprint("n", n), nil, nil, webResource(t, n)); err != nil {
			return err
		}
		go func() { // it ends with the stream
			for b := []byte(nil); s.RecvMsg(&b) == nil; {
			}
		}()
		return s.rest()
	}
}

// TestHostileServers: whatever a server does over real sockets, in both variants,
// the last good state is served on, a cause has one clear log line and all have a
// rate, memory stays bounded, and a server that is good again is taken up. bug 21:
// also if it hangs.
func TestHostileServers(t *testing.T) {
	const large = 10 << 20
	eds := func(t *testing.T, i int, with func(*endpointv3.ClusterLoadAssignment)) *discoveryv3.Resource {
		m := cla("web", locality(0, lb(socket("10.0.0.1", 80), weight(0))))
		with(m)
		return resource("web", fmt.Sprint("bad", i), AssignmentType, marshal(t, m))
	}
	var list []*discoveryv3.Resource
	var removed []string
	for i := range 100_000 {
		name := fmt.Sprint("unheard-of-", i)
		list = append(list, resource(name, "v", AssignmentType, marshal(t, cla(name, locality(0, lb(socket("10.0.0.1", 80)))))))
		removed = append(removed, "gone-"+name)
	}
	many := map[bool][]byte{ // by whether it is for the incremental variant
		false: marshal(t, responseOf(false, AssignmentType, "v", "n", removed, nil, list...)),
		true:  marshal(t, responseOf(true, AssignmentType, "v", "n", removed, nil, list...)),
	}
	for name, tt := range map[string]struct {
		rounds int                        // that are waited for
		deed   func(*hostileStream) error // calls done for each
		log    string                     // is in a line
	}{
		"any bytes": {40, func(s *hostileStream) error {
			r := rand.New(rand.NewPCG(uint64(s.n), 7))
			b := make([]byte, r.IntN(2000))
			for i := range b {
				b[i] = byte(r.Uint32())
			}
			if s.n%2 == 0 && len(b) > 8 { // begins like a response
				copy(b, "\x0a\x02v1\x12\x7f")
			}
			err := s.SendMsg(b)
			s.done()
			if err == nil {
				err = s.rest()
			}
			return err
		}, "the server sent what is no response"},
		"the wrong type": {1, func(s *hostileStream) error {
			for i := range 100 {
				n := fmt.Sprint(i)
				for _, err := range []error{
					s.respond("type.googleapis.com/unheard.of.Type"+n, "v"+n, "n"+n, nil, nil, webResource(t, 9)),
					s.respond(ClusterType, "v"+n, "n"+n, nil, nil, resource("web", n, ClusterType, marshal(t, edsCluster("web")))),
					s.respond(AssignmentType, "v"+n, "n"+n, nil, nil, resource("web", n, ClusterType, marshal(t, edsCluster("web")))),
					s.respond(AssignmentType, "v"+n, "n"+n, nil, nil, resource("web", n, AssignmentType, []byte("\x0a\x03web\x12\x7f"))),
				} {
					if err != nil {
						return err
					}
				}
			}
			s.done()
			return s.rest()
		}, "xds response refused"},
		"resources of 10 MB": {5, func(s *hostileStream) error {
			for i := range 5 {
				if err := s.respond(AssignmentType, fmt.Sprint(i), fmt.Sprint(i), nil, nil, eds(t, i, func(m *endpointv3.ClusterLoadAssignment) {
					m.Endpoints[0].LbEndpoints[0].GetEndpoint().Hostname = strings.Repeat("h", large)
				})); err != nil {
					return err
				}
				s.done()
			}
			return s.rest()
		}, "load_balancing_weight: 0: want at least 1"},
		"words of 10 MB": {5, func(s *hostileStream) error {
			long := fmt.Sprint(s.n, strings.Repeat("w", large))
			for _, err := range []error{
				s.respond(long, "v", "n", nil, nil),
				s.respond(AssignmentType, long, "n", nil, nil, eds(t, 1, func(*endpointv3.ClusterLoadAssignment) {})),
				s.respond(AssignmentType, "v", "n", nil, nil, resource(long, "v", AssignmentType, marshal(t, cla(long, locality(0))))),
				s.respond(AssignmentType, "v", "n", nil, nil, eds(t, 2, func(m *endpointv3.ClusterLoadAssignment) {
					m.Endpoints[0].LbEndpoints[0] = lb(socket(long, 80))
				})),
				s.respond(AssignmentType, "v", "n", nil, []*discoveryv3.ResourceError{{
					ResourceName: &discoveryv3.ResourceName{Name: "web"}, ErrorDetail: status.New(codes.NotFound, long).Proto(),
				}}),
			} {
				if err != nil {
					return err
				}
				s.done()
			}
			return s.rest()
		}, "xds response refused"},
		"last words of 1 MB": {10, func(s *hostileStream) error {
			s.done()
			return status.Error(codes.PermissionDenied, fmt.Sprint(s.n, strings.Repeat("w", 1<<20)))
		}, "PermissionDenied"},
		"100,000 names": {1, func(s *hostileStream) error {
			err := s.SendMsg(many[s.delta])
			s.done()
			if err == nil {
				err = s.rest()
			}
			return err
		}, ""},
		"10 MB of nothing": {3, func(s *hostileStream) error { // endpoints of two bytes each
			body := append([]byte("\x0a\x03web\x12\x80\x80\x80\x05"), strings.Repeat("\x12\x00", large/2)...)
			for range 3 {
				if err := s.respond(AssignmentType, "v", "n", nil, nil, resource("web", "v", AssignmentType, body)); err != nil {
					return err
				}
				s.done()
			}
			return s.rest()
		}, "not a ClusterLoadAssignment: more than 2097152 elements of lists"},
		"more resources than there may be": {5, func(s *hostileStream) error {
			err := s.SendMsg([]byte(strings.Repeat("\x12\x00", 1<<19)))
			s.done()
			if err == nil {
				err = s.rest()
			}
			return err
		}, "more than 262144 resources"},
		"a flood": {1, func(s *hostileStream) error {
			for i := range 5_000 {
				if err := s.respond(AssignmentType, fmt.Sprint(i), fmt.Sprint(i), nil, nil, eds(t, i, func(m *endpointv3.ClusterLoadAssignment) {
					m.Endpoints[0].LbEndpoints[0] = lb(socket(fmt.Sprint("300.0.0.", i), 80))
				})); err != nil {
					return err
				}
			}
			s.done()
			return s.rest()
		}, "want an IP address"},
		"silence": {1, func(s *hostileStream) error {
			s.done()
			return s.rest()
		}, ""},
		"the end of every stream at once": {40, func(s *hostileStream) error {
			s.done()
			if s.n%2 == 0 {
				return nil
			}
			return status.Error(codes.Unavailable, fmt.Sprint("not now ", s.n))
		}, "xds server can't be reached"},
		"an answer and the end of every stream": {40, func(s *hostileStream) error {
			err := s.respond(AssignmentType, "v1", "n1", nil, nil, webResource(t, 1))
			s.done()
			return err
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			bothVariants(t, func(t *testing.T, protocol Protocol) {
				h := newHostileServer(t)
				h.handle = good(t, 1)
				var log logBuffer
				c, err := NewClient(Config{
					Servers: []Server{{URI: h.addr, Protocol: protocol}}, Node: Node{ID: "n"}, Logger: slog.New(slog.NewTextHandler(&log, nil)),
					BackoffBase: 2 * time.Millisecond, BackoffMax: 10 * time.Millisecond,
				})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(context.Background())
				var wg sync.WaitGroup
				wg.Go(func() { c.Run(ctx) })
				t.Cleanup(func() { cancel(); wg.Wait() })
				rec, _ := watchEDS(t, c, "web")
				rec.WaitSet(t, 0, addr("10.0.0.1:80"))
				rec.Within = 2 * time.Minute // what is on its way is taken in first

				var before, after runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&before)
				h.become(tt.deed)
				h.wait(tt.rounds)
				runtime.GC()
				runtime.ReadMemStats(&after)
				grown := int64(after.HeapAlloc) - int64(before.HeapAlloc)
				// What is on its way is some messages of 10 MB, here and at the server.
				if t.Logf("%d KiB more are in use", grown>>10); grown > 160<<20 {
					t.Errorf("%d MiB more are in use", grown>>20)
				}

				h.become(good(t, 2))
				end := rec.WaitSet(t, 1, addr("10.0.0.2:80"))
				for _, r := range rec.Reports()[1:end] {
					if r.Err == nil && r.String() != "[10.0.0.1:80]" {
						t.Errorf("told of %v", r)
					}
					if r.Err != nil && len(r.Err.Error()) > 2000 {
						t.Errorf("an error of %d bytes", len(r.Err.Error()))
					}
				}
				runtime.GC()
				runtime.GC() // the first one leaves what is in pools
				runtime.ReadMemStats(&after)
				if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 64<<20 {
					t.Errorf("%d MiB more are in use in the end", grown>>20)
				}
				checkLog(t, log.String(), tt.log)
			})
		})
	}
}

// checkLog wants a few lines, none of which is long, and one with those words.
func checkLog(t *testing.T, log, words string) {
	t.Helper()
	kinds := make(map[string]int)
	for line := range strings.Lines(log) {
		_, msg, _ := strings.Cut(line, "msg=")
		msg, _, _ = strings.Cut(msg, " source=")
		kinds[msg]++
		if len(line) > 8000 {
			t.Errorf("a line of %d bytes: %s…", len(line), line[:200])
		}
	}
	for msg, n := range kinds {
		if n > max(causeBurst+2, 17) { // of unknown types sixteen are told
			t.Errorf("%d times %s", n, msg)
		}
	}
	if !strings.Contains(log, words) {
		t.Errorf("no line says %q:\n%.3000s", words, log)
	}
}
