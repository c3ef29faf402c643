package lrs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	loadv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"gatehouse.internal/lbcore"
)

// fakeServer is a server in a synctest bubble.
type fakeServer struct {
	target *Target
	start  time.Time

	mu      sync.Mutex
	refuse  error           // what Open returns
	opened  []time.Duration // since start
	streams []*fakeStream
}

type fakeStream struct {
	ctx       context.Context
	requests  chan *loadv3.LoadStatsRequest // when it is full sends block
	responses chan *loadv3.LoadStatsResponse
	end       chan error
	closed    bool
}

var errRefused = errors.New("unimplemented")

func newServer(name string) *fakeServer {
	s := &fakeServer{start: time.Now()}
	s.target = &Target{URI: name, Open: s.open, End: func(err error) (string, bool) { return fmt.Sprint(err), err == errRefused }}
	return s
}

func (s *fakeServer) open(ctx context.Context) (Stream, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened = append(s.opened, time.Since(s.start))
	if s.refuse != nil {
		return nil, s.refuse
	}
	st := &fakeStream{
		ctx: ctx, requests: make(chan *loadv3.LoadStatsRequest, 100),
		responses: make(chan *loadv3.LoadStatsResponse), end: make(chan error),
	}
	s.streams = append(s.streams, st)
	return st, nil
}

func (s *fakeServer) refuseWith(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = err
}

// stream returns the newest stream, and how many there were.
func (s *fakeServer) stream() (*fakeStream, int) {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.streams) == 0 {
		return nil, 0
	}
	return s.streams[len(s.streams)-1], len(s.streams)
}

func (st *fakeStream) Send(r *loadv3.LoadStatsRequest) error {
	select {
	case st.requests <- r:
		return nil
	case <-st.ctx.Done():
		return st.ctx.Err()
	}
}

func (st *fakeStream) Recv() (*loadv3.LoadStatsResponse, error) {
	select {
	case r := <-st.responses:
		return r, nil
	case err := <-st.end:
		return nil, err
	case <-st.ctx.Done():
		return nil, st.ctx.Err()
	}
}

func (st *fakeStream) Close() { st.closed = true }

// expect compares the next request, as text, which is empty if there is none by now.
func (st *fakeStream) expect(t *testing.T, want string) {
	t.Helper()
	synctest.Wait()
	got := ""
	select {
	case r := <-st.requests:
		got = "node " + r.GetNode().GetId()
		for _, c := range r.GetClusterStats() {
			got += fmt.Sprint("; ", c.GetClusterName(), " ", c.GetLoadReportInterval().AsDuration())
			for _, l := range c.GetUpstreamLocalityStats() {
				got += fmt.Sprintf(" issued=%d open=%d endpoints=%d", l.GetTotalIssuedRequests(), l.GetTotalRequestsInProgress(), len(l.GetUpstreamEndpointStats()))
			}
		}
	default:
	}
	if got != want {
		t.Errorf("request %q, want %q", got, want)
	}
}

// counting is where loads come from: each call has one connection more in each
// cluster.
type counting struct {
	mu    sync.Mutex
	taken map[string]time.Time
	log   []string
}

func (c *counting) loads(wanted func(string) bool) (out []ClusterLoad) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range []string{"api", "web"} {
		if wanted(name) {
			now := time.Now()
			out = append(out, ClusterLoad{Cluster: name, Interval: now.Sub(c.taken[name]), Endpoints: []EndpointLoad{
				{Addr: lbcore.UnixAddr("/run/" + name), Load: Load{Issued: 1, InProgress: 3}},
			}})
			c.taken[name] = now
		}
	}
	return out
}

func (c *counting) tell(level slog.Level, text, msg string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.log = append(c.log, fmt.Sprint(level, " ", msg, " ", args))
}

// reporting runs a Reporter until the test ends.
func reporting(t *testing.T) (*Reporter, *counting) {
	c := &counting{taken: map[string]time.Time{"api": time.Now(), "web": time.Now()}}
	r := New(Config{
		Node: &corev3.Node{Id: "n"}, Loads: c.loads, Tell: c.tell,
		Delay: func(failures int) time.Duration {
			if failures == Longest {
				return time.Hour
			}
			return time.Duration(1+failures) * time.Second
		},
	})
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	wg.Go(func() {
		if err := r.Run(ctx); err != context.Canceled {
			t.Errorf("Run returned %v", err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return r, c
}

func response(interval time.Duration, clusters ...string) *loadv3.LoadStatsResponse {
	return &loadv3.LoadStatsResponse{LoadReportingInterval: durationpb.New(interval), Clusters: clusters}
}

func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// The node comes first, reports once the server has said of what and how often, and
// each response changes that.
func TestReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := reporting(t)
		s := newServer("control")
		pass(time.Hour)
		r.Aim(s.target)
		st, _ := s.stream()
		st.expect(t, "node n")
		pass(time.Hour) // the server is silent
		st.expect(t, "")
		st.responses <- response(10*time.Second, "web")
		pass(9 * time.Second)
		st.expect(t, "")
		pass(time.Second)
		st.expect(t, "node n; web 2h0m10s issued=1 open=3 endpoints=0")
		// The same again, faster than the interval, puts nothing off.
		for range 12 {
			pass(time.Second)
			st.responses <- response(10*time.Second, "web")
		}
		st.expect(t, "node n; web 10s issued=1 open=3 endpoints=0")
		all := response(0)
		all.SendAllClusters, all.ReportEndpointGranularity = true, true
		st.responses <- all // bug 37: an interval of 0 s
		pass(MinInterval)
		st.expect(t, "node n; api 2h0m23s issued=1 open=3 endpoints=1; web 3s issued=1 open=3 endpoints=1")
		pass(MinInterval)
		st.expect(t, "node n; api 1s issued=1 open=3 endpoints=1; web 1s issued=1 open=3 endpoints=1")
		st.responses <- response(time.Second) // of nothing
		pass(time.Second)
		st.expect(t, "node n")
		if got := r.Counters(); got != (Counters{Reports: 5}) {
			t.Errorf("%+v", got)
		}
		r.Aim(nil)
		pass(time.Hour)
		if _, n := s.stream(); n != 1 || !st.closed {
			t.Errorf("%d streams, the last closed: %t", n, st.closed)
		}
		if got := r.Counters(); got.Failures != 0 {
			t.Errorf("%+v", got)
		}
	})
}

// A stream that ends is followed by another one, later each time unless there was a
// response; a refusal has the longest delay.
func TestReconnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, c := reporting(t)
		s := newServer("control")
		s.refuse = io.ErrUnexpectedEOF
		r.Aim(s.target)
		pass(8 * time.Second) // at 0, after 2 s, after 3 s
		s.refuseWith(errRefused)
		pass(2 * time.Second) // after 4 s
		s.refuseWith(nil)
		pass(time.Hour - 3*time.Second)
		if st, n := s.stream(); n != 0 {
			t.Errorf("a stream within the longest delay: %v", st)
		}
		pass(2 * time.Second)
		st, _ := s.stream()
		st.expect(t, "node n")
		st.end <- io.EOF // without a response
		pass(2 * time.Second)
		st, _ = s.stream()
		st.responses <- response(time.Second, "web")
		st.end <- io.EOF
		pass(time.Second)
		st, n := s.stream()
		if n != 3 {
			t.Fatalf("%d streams", n)
		}
		// What was asked for on an old stream is not on a new one.
		st.expect(t, "node n")
		pass(time.Minute)
		st.expect(t, "")
		s.mu.Lock()
		defer s.mu.Unlock()
		var at []string
		for _, d := range s.opened {
			at = append(at, d.String())
		}
		if want := []string{"0s", "2s", "5s", "9s", "1h0m9s", "1h0m11s", "1h0m12s"}; !slices.Equal(at, want) {
			t.Errorf("streams at %v, want %v", at, want)
		}
		if got := r.Counters(); got.Failures != 6 {
			t.Errorf("%+v", got)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if !slices.ContainsFunc(c.log, func(l string) bool { return strings.Contains(l, "WARN") && strings.Contains(l, "unimplemented") }) {
			t.Errorf("log %q", c.log)
		}
	})
}

// A server that does not read keeps the client neither from listening nor from ending,
// and loses nothing: the next report has it.
func TestSlowServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := reporting(t)
		s := newServer("control")
		r.Aim(s.target)
		st, _ := s.stream()
		st.expect(t, "node n")
		for range cap(st.requests) { // fill the pipe
			st.requests <- nil
		}
		st.responses <- response(10*time.Second, "web")
		pass(10 * time.Second)                         // taken, and not sent
		st.responses <- response(5*time.Second, "web") // heard all the same
		pass(time.Minute)
		st.end <- io.EOF
		pass(time.Second)
		st, n := s.stream()
		if n != 2 {
			t.Fatalf("%d streams", n)
		}
		st.expect(t, "node n")
		st.responses <- response(10*time.Second, "web")
		pass(10 * time.Second)
		st.expect(t, "node n; web 1m21s issued=2 open=3 endpoints=0")
	})
}

// Another server takes over at once; what the old one still says doesn't count.
func TestAim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := reporting(t)
		first, second := newServer("first"), newServer("second")
		first.refuse = io.ErrUnexpectedEOF
		r.Aim(first.target)
		synctest.Wait()
		r.Aim(second.target) // while it waits
		st, _ := second.stream()
		st.expect(t, "node n")
		st.responses <- response(time.Second, "web")
		pass(time.Second)
		st.expect(t, "node n; web 1s issued=1 open=3 endpoints=0")
		r.Aim(second.target) // the same
		if _, n := second.stream(); n != 1 || st.closed {
			t.Error("a new stream to the same server")
		}
		first.refuseWith(nil)
		r.Aim(first.target)
		if now, _ := first.stream(); now == nil || !st.closed {
			t.Errorf("the first server has %v, the stream to the second is closed: %t", now, st.closed)
		}
	})
}
