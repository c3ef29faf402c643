package consul_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse.internal/discovery"
	"gatehouse.internal/discovery/consul"
	"gatehouse.internal/discovery/consul/consultest"
	"gatehouse.internal/discovery/discoverytest"
	"gatehouse.internal/lbcore"
)

// real is a Client of a real Consul, and what runs on it until the test ends.
type real struct {
	*consul.Client
	t    testing.TB
	logs *logBuffer
	ctx  context.Context
	end  context.CancelFunc // and wg.Wait
	wg   sync.WaitGroup
}

// newReal returns a client of what cfg says, with its Run running.
func newReal(t testing.TB, cfg consul.Config) *real {
	t.Helper()
	r := &real{t: t, logs: &logBuffer{}}
	cfg.Logger = slog.New(slog.NewTextHandler(r.logs, nil))
	var err error
	if r.Client, err = consul.New(cfg); err != nil {
		t.Fatal(err)
	}
	r.ctx, r.end = context.WithCancel(context.Background())
	t.Cleanup(func() {
		r.end()
		r.wg.Wait()
		if s := r.Stats(); s.Watches != 0 || s.Held != 0 {
			t.Errorf("in the end: got %+v, want no watches and nothing held", s)
		}
	})
	r.wg.Go(func() { r.Run(r.ctx) })
	return r
}

// of returns a client of an agent that is reached without TLS.
func of(t testing.TB, s *consultest.Server) *real {
	t.Helper()
	return newReal(t, consul.Config{Address: s.Addr()})
}

// watch runs the source of q.
func (r *real) watch(q consul.Query) *watching {
	r.t.Helper()
	src, err := r.Service(q, slog.New(slog.NewTextHandler(r.logs, nil)), nil)
	if err != nil {
		r.t.Fatal(err)
	}
	w := &watching{t: r.t, latest: discovery.NewLatest()}
	w.rec.Within = time.Minute
	r.wg.Go(func() {
		if err := src.Watch(r.ctx, w); err == nil || err != r.ctx.Err() {
			r.t.Errorf("Watch returned %v, want the context's error", err)
		}
	})
	return w
}

// web watches the service web.
func (r *real) web() *watching { return r.watch(consul.Query{Service: "web"}) }

// watching is what a source has reported.
type watching struct {
	t      testing.TB
	rec    discoverytest.Recorder
	latest *discovery.Latest
	next   int // reports before it are accounted for
	from   int // those before it don't count for only

	mu sync.Mutex
	at []time.Time // of each report
}

// Replace implements discovery.Sink.
func (w *watching) Replace(set lbcore.Set) {
	w.add(func() { w.rec.Replace(set); w.latest.Replace(set) })
}

// Fail implements discovery.Sink.
func (w *watching) Fail(err error) { w.add(func() { w.rec.Fail(err); w.latest.Fail(err) }) }

func (w *watching) add(record func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at = append(w.at, time.Now())
	record()
}

// when returns the time of the report at next.
func (w *watching) when() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.at[w.next]
}

// wait waits for a report that is not accounted for yet.
func (w *watching) wait(what string, ok func(discoverytest.Report) bool) {
	w.t.Helper()
	w.next = w.rec.Wait(w.t, what, w.next, ok)
}

// see waits for a set; see brief.
func (w *watching) see(want string) {
	w.t.Helper()
	w.wait(fmt.Sprintf("the set %q", want), func(rep discoverytest.Report) bool { return rep.Err == nil && brief(rep.Set) == want })
}

// seeOf waits for a set of so many endpoints.
func (w *watching) seeOf(n int) {
	w.t.Helper()
	w.wait(fmt.Sprintf("a set of %d", n), func(rep discoverytest.Report) bool { return rep.Err == nil && rep.Set.Len() == n })
}

// fail waits for a failure that mentions all texts.
func (w *watching) fail(texts ...string) error {
	w.t.Helper()
	w.wait(fmt.Sprintf("a failure with %q", texts), func(rep discoverytest.Report) bool {
		for _, text := range texts {
			if rep.Err == nil || !strings.Contains(rep.Err.Error(), text) {
				return false
			}
		}
		return true
	})
	return w.rec.Reports()[w.next].Err
}

// mark has the waits from now on look at new reports only.
func (w *watching) mark() { w.next = len(w.rec.Reports()) }

// held checks that the set in force is still this one.
func (w *watching) held(want string) {
	w.t.Helper()
	if st := w.latest.State(); brief(st.Set) != want {
		w.t.Errorf("in force: got %q, want %q; reports:\n%s", brief(st.Set), want, &w.rec)
	}
}

// fromNow has only look at what was reported since the last wait.
func (w *watching) fromNow() { w.from = w.next }

// only checks that the sets reported were these, each any number of times and
// in any order.
func (w *watching) only(sets ...string) {
	w.t.Helper()
	for i, rep := range w.rec.Reports() {
		ok := rep.Err != nil || i < w.from
		for _, set := range sets {
			ok = ok || brief(rep.Set) == set
		}
		if !ok {
			w.t.Errorf("report %d is %q, want none but %q; reports:\n%s", i, brief(rep.Set), sets, &w.rec)
			return
		}
	}
}

// fresh waits until the set in force is this one, and without doubt.
func (w *watching) fresh(want string) {
	w.t.Helper()
	until(w.t, fmt.Sprintf("%q is fresh", want), func() bool {
		st := w.latest.State()
		return st.Phase() == discovery.PhaseFresh && brief(st.Set) == want
	})
}

// neverFailed checks that there was no failure.
func (w *watching) neverFailed() {
	w.t.Helper()
	for i, rep := range w.rec.Reports() {
		if rep.Err != nil {
			w.t.Errorf("report %d is a failure: %v", i, rep.Err)
		}
	}
}

// brief writes a set as addresses less 192.0.2. and :80, with "-" for unhealthy,
// "~" for draining and "*w" for a weight other than 1.
func brief(set lbcore.Set) string {
	var words []string
	for _, e := range set.All() {
		w := strings.TrimSuffix(strings.TrimPrefix(e.Addr.String(), "192.0.2."), ":80")
		switch e.Status {
		case lbcore.StatusHealthy:
		case lbcore.StatusUnhealthy:
			w += "-"
		case lbcore.StatusDraining:
			w += "~"
		default:
			w += "?" + e.Status.String()
		}
		if e.Weight != 1 {
			w += fmt.Sprintf("*%d", e.Weight)
		}
		words = append(words, w)
	}
	return strings.Join(words, " ")
}

// instance is the nth of the service web, at 192.0.2.n:80.
func instance(n int) consultest.Instance {
	return consultest.Instance{Name: "web", ID: fmt.Sprintf("web-%d", n), Address: fmt.Sprintf("192.0.2.%d", n), Port: 80}
}

// age has the index of s grow by more than what happens after a restart or a
// restored snapshot has it grow again.
func age(s *consultest.Server) {
	for range 30 {
		s.RegisterMany(consultest.Instance{Name: "other"})
	}
}

// until waits until ok is true, of something that reports nothing.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	limit := time.NewTimer(time.Minute)
	defer limit.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("it is not so within a minute that %s", what)
		}
	}
}

// during runs f and looks at something meanwhile, every 10 ms.
func during(f, look func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			look()
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	})
	defer wg.Wait()
	defer cancel()
	f()
}

// logBuffer keeps log lines.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// step logs when a part of a test begins.
func step(t testing.TB, what string) {
	t.Helper()
	t.Logf("%s %s", time.Now().Format("05.0"), what)
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// logged waits for a log line with text.
func (r *real) logged(text string) {
	r.t.Helper()
	until(r.t, fmt.Sprintf("%q is logged", text), func() bool { return strings.Contains(r.logs.String(), text) })
}
