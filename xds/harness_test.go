package xds

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"gatehouse.internal/discovery/discoverytest"
	"gatehouse.internal/xds/internal/adsgrpc"
	"gatehouse.internal/xds/internal/core"
)

// fakeServer is the other end of a Client's streams, for tests in a synctest
// bubble, where a response or a dial takes no time.
type fakeServer struct {
	t      *testing.T
	client *Client
	start  time.Time
	log    logBuffer          // lines of level info and above
	stop   func()             // ends the client
	ends   *adsgrpc.Transport // judges how streams end

	variant core.Variant  // of the streams
	held    chan struct{} // dials wait until it is closed; nil for not at all

	mu     sync.Mutex
	refuse error           // what dials get in place of a stream
	dials  []time.Duration // since start
	newest *fakeStream
}

func (f *fakeServer) Run(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func (f *fakeServer) End(err error, heard bool) (string, core.Ending) {
	return f.ends.End(err, heard)
}

// Open is a dial.
func (f *fakeServer) Open(ctx context.Context) (stream, error) {
	if f.held != nil {
		<-f.held
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dials = append(f.dials, time.Since(f.start))
	if f.refuse != nil {
		return nil, f.refuse
	}
	f.newest = &fakeStream{
		ctx: ctx, variant: f.variant, requests: make(chan core.Request, 100),
		responses: make(chan core.Response), fail: make(chan error),
	}
	return f.newest, nil
}

// refuseWith makes dials fail from now on, or work again.
func (f *fakeServer) refuseWith(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuse = err
}

// dialled returns when the client dialled, from the start or the last reset on.
func (f *fakeServer) dialled(reset bool) (d []time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d = f.dials
	if reset {
		f.start, f.dials = time.Now(), nil
	}
	return d
}

// stream returns the newest stream.
func (f *fakeServer) stream() *fakeStream {
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.newest
}

// logBuffer is a log that may be read while it is written.
type logBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

type fakeStream struct {
	ctx       context.Context
	variant   core.Variant
	requests  chan core.Request // nil: sends block
	responses chan core.Response
	fail      chan error
	broken    error // what Send returns
	closed    bool
}

func (s *fakeStream) Send(r core.Request) error {
	if s.broken != nil {
		return s.broken
	}
	select {
	case s.requests <- r:
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

func (s *fakeStream) Recv() (core.Response, error) {
	select {
	case r := <-s.responses:
		return r, nil
	case err := <-s.fail:
		return core.Response{}, err
	case <-s.ctx.Done():
		return core.Response{}, s.ctx.Err()
	}
}

func (s *fakeStream) Variant() core.Variant { return s.variant }

func (s *fakeStream) Close() { s.closed = true }

// newFake returns a server and its client, which runs until the test ends.
func newFake(t *testing.T, with ...func(*fakeServer)) *fakeServer { return newFakes(t, 1, with...)[0] }

// newFakes returns servers and their client, which prefers the first. With is
// for the first.
func newFakes(t *testing.T, n int, with ...func(*fakeServer)) (all []*fakeServer) {
	f := &fakeServer{t: t, start: time.Now()}
	cfg := Config{
		Node: Node{ID: "n"},
		Logger: slog.New(slog.NewTextHandler(&f.log, &slog.HandlerOptions{
			ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == slog.TimeKey {
					return slog.Attr{}
				}
				return a
			},
		})),
	}
	var transports []transport
	for i := range n {
		s := f
		if i > 0 {
			s = &fakeServer{t: t, start: f.start}
		}
		cfg.Servers = append(cfg.Servers, Server{URI: [...]string{"control:18000", "second:18000", "third:18000"}[i], Protocol: ProtocolSotW})
		var err error
		if s.ends, err = adsgrpc.New(cfg.Servers[i], adsgrpc.Options{}); err != nil {
			t.Fatal(err)
		}
		all, transports = append(all, s), append(transports, s)
	}
	if _, err := cfg.validate(); err != nil {
		t.Fatal(err)
	}
	client := newClient(cfg, transports...)
	for _, s := range all {
		s.client = client
	}
	f.client.rand = func() float64 { return 0.5 } // no jitter
	for _, w := range with {
		w(f)
	}
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	wg.Go(func() {
		if err := f.client.Run(ctx); err != context.Canceled {
			t.Errorf("Run returned %v", err)
		}
	})
	f.stop = func() { cancel(); wg.Wait() }
	for _, s := range all {
		s.stop = f.stop
	}
	t.Cleanup(f.stop)
	return all
}

// next returns the next request, or fails the test if there is none by now.
func (f *fakeServer) next() core.Request {
	f.t.Helper()
	select {
	case r := <-f.stream().requests:
		return r
	default:
		f.t.Fatal("no request")
		panic("unreachable")
	}
}

// quiet fails the test if there is a request.
func (f *fakeServer) quiet() {
	f.t.Helper()
	select {
	case r := <-f.stream().requests:
		f.t.Fatalf("unexpected request %+v", r)
	default:
	}
}

// answer sends a response as it stands.
func (f *fakeServer) answer(r core.Response) {
	f.t.Helper()
	f.stream().responses <- r
	synctest.Wait()
}

// respond sends a response with the version and nonce of that number.
func (f *fakeServer) respond(typ string, n int, resources ...proto.Message) {
	f.t.Helper()
	r := core.Response{Type: typ, Version: fmt.Sprint("v", n), Nonce: fmt.Sprint("n", n)}
	for _, m := range resources {
		r.Resources = append(r.Resources, core.Resource{Type: typ, Body: marshal(f.t, m)})
	}
	f.stream().responses <- r
	synctest.Wait()
}

// refuses has the first dials refused once something is wanted: see asked.
func refuses(f *fakeServer) { f.refuse, f.held = syscall.ECONNREFUSED, make(chan struct{}) }

// asked lets a server that refuses do so.
func (f *fakeServer) asked() {
	synctest.Wait()
	close(f.held)
}

// watch runs a Watch of an EDS resource until stop.
func (f *fakeServer) watch(name string) (rec *discoverytest.Recorder, stop func()) {
	return watchEDS(f.t, f.client, name)
}

func watchEDS(t *testing.T, c *Client, name string) (rec *discoverytest.Recorder, stop func()) {
	rec = new(discoverytest.Recorder)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := c.EDS(name, nil).Watch(ctx, rec); err != context.Canceled {
			t.Errorf("Watch of %q returned %v", name, err)
		}
	})
	stop = func() { cancel(); wg.Wait() }
	t.Cleanup(stop)
	return rec, stop
}

// reports checks the reports of rec, as text, since the last call.
func reports(t *testing.T, rec *discoverytest.Recorder, seen *int, want ...string) {
	t.Helper()
	synctest.Wait()
	var got []string
	for _, r := range rec.Reports()[*seen:] {
		got = append(got, r.String())
	}
	*seen += len(got)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("reports (-want +got):\n%s", d)
	}
}

// web returns an assignment called web with one endpoint, 10.0.0.n.
func web(n int) proto.Message {
	return cla("web", locality(0, lb(socket(fmt.Sprint("10.0.0.", n), 80))))
}

func badWeb() proto.Message { return cla("web", locality(0, lb(socket("10.0.0.1", 80), weight(0)))) }

const badWeight = `endpoints[0].lb_endpoints[0].load_balancing_weight: 0: want at least 1`

// pass lets d go by and waits until all is quiet.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// times formats durations for comparison.
func times(d []time.Duration) (out []string) {
	for _, x := range d {
		out = append(out, x.Round(time.Millisecond).String())
	}
	return out
}
