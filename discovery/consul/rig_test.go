package consul

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse.internal/discovery"
	"gatehouse.internal/lbcore"
)

// What no error and no log line may hold.
const (
	secretToken    = "7c1ec4f2-token-of-the-test"
	secretPassword = "pass-word-of-the-test"
)

// rig is a scripted Consul, a Client of it, and what they do. It is made in a
// bubble of synctest, and ends with it.
type rig struct {
	t      *testing.T
	s      *scripted
	c      *Client
	ctx    context.Context
	wg     sync.WaitGroup
	logs   *logBuffer
	begin  time.Time
	mu     sync.Mutex
	sinks  []*journal
	secret []string
	past   []*catalog // what the catalog was

	resumes *lbcore.Set // what sources begin with
}

// newRig returns a rig whose catalog has what fill puts there; edit may change
// the client's settings.
func newRig(t *testing.T, fill func(*catalog), edit func(*Config)) *rig {
	t.Helper()
	r := &rig{t: t, s: newScripted(), logs: &logBuffer{}, begin: time.Now(), secret: []string{secretToken, secretPassword}}
	if fill != nil {
		fill(r.s.cat)
	}
	cfg := Config{
		Transport: r.s, Logger: r.logs.logger(), Token: secretToken,
		HTTPAuth: "gatehouse:" + secretPassword, WaitTime: time.Minute,
	}
	if edit != nil {
		edit(&cfg)
	}
	var err error
	if r.c, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	var cancel context.CancelFunc
	r.ctx, cancel = context.WithCancel(context.Background())
	t.Cleanup(func() {
		cancel()
		r.wg.Wait()
		r.check()
	})
	return r
}

// check looks for secrets where none may be, and for where they must be.
func (r *rig) check() {
	texts := []string{r.logs.String()}
	for _, j := range r.sinks {
		texts = append(texts, j.String())
	}
	for _, c := range r.s.calls {
		if c.token != "" && !slices.Contains(r.secret, c.token) {
			r.secret = append(r.secret, c.token)
		}
	}
	for _, text := range texts {
		for _, secret := range append(r.secret, base64.StdEncoding.EncodeToString([]byte("gatehouse:"+secretPassword))) {
			if strings.Contains(text, secret) {
				r.t.Errorf("%q is told:\n%s", secret, text)
				return
			}
		}
	}
	if s := r.c.Stats(); s.Watches != 0 || s.Held != 0 || r.s.inFlight != 0 {
		r.t.Errorf("in the end: got %+v and %d requests, want no watches, nothing held, no requests", s, r.s.inFlight)
	}
}

// told keeps an error that somebody was told of.
func (r *rig) told(err error) {
	if err != nil {
		fmt.Fprintln(r.logs, err)
	}
}

// run runs f until the rig ends.
func (r *rig) run(f func(context.Context)) { r.wg.Go(func() { f(r.ctx) }) }

// watch runs a source, and returns what it reports.
func (r *rig) watch(q Query) *journal {
	r.t.Helper()
	j, _ := r.watchFor(r.ctx, q)
	return j
}

// watchFor runs a source until ctx ends; the channel is closed once it did.
func (r *rig) watchFor(ctx context.Context, q Query) (*journal, <-chan struct{}) {
	r.t.Helper()
	src, err := r.c.Service(q, r.logs.logger(), nil)
	if err != nil {
		r.t.Fatal(err)
	}
	if r.resumes != nil {
		src.(discovery.Resumer).Resume(*r.resumes)
	}
	j := &journal{begin: r.begin, latest: discovery.NewLatest()}
	r.mu.Lock()
	r.sinks = append(r.sinks, j)
	r.mu.Unlock()
	done := make(chan struct{})
	r.wg.Go(func() {
		defer close(done)
		if err := src.Watch(ctx, j); err != ctx.Err() || err == nil {
			r.t.Errorf("Watch returned %v, want the context's error", err)
		}
	})
	return j, done
}

// web watches the service web, and waits until it has reported.
func (r *rig) web() *journal {
	r.t.Helper()
	j := r.watch(Query{Service: "web"})
	synctest.Wait()
	return j
}

// change changes the scripted Consul and lets that take effect.
func (r *rig) change(edit func(*catalog)) {
	r.s.change(edit)
	synctest.Wait()
}

// set changes a switch for the requests to come; those that wait go on waiting.
func (r *rig) set(edit func(*scripted)) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	edit(r.s)
}

// pass lets virtual time pass.
func (r *rig) pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// now is how long the rig runs.
func (r *rig) now() time.Duration { return time.Since(r.begin) }

// asked are the times of the calls to a path.
func (r *rig) asked(prefix string) (list []time.Duration) {
	for _, c := range r.s.since(0, prefix) {
		list = append(list, c.at.Sub(r.begin))
	}
	return list
}

// journal is a discovery.Sink that keeps everything.
type journal struct {
	begin  time.Time
	latest *discovery.Latest

	mu    sync.Mutex
	lines []line
}

// line is one report.
type line struct {
	at  time.Duration
	set lbcore.Set
	err error
}

func (l line) String() string {
	if l.err != nil {
		return fmt.Sprintf("%v fail: %v", l.at, l.err)
	}
	return fmt.Sprintf("%v %s", l.at, brief(l.set))
}

func (j *journal) Replace(set lbcore.Set) {
	j.add(line{set: set})
	j.latest.Replace(set)
}

func (j *journal) Fail(err error) {
	j.add(line{err: err})
	j.latest.Fail(err)
}

func (j *journal) add(l line) {
	j.mu.Lock()
	defer j.mu.Unlock()
	l.at = time.Since(j.begin)
	j.lines = append(j.lines, l)
}

func (j *journal) all() []line {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.lines[:len(j.lines):len(j.lines)]
}

func (j *journal) String() string {
	var b strings.Builder
	for _, l := range j.all() {
		fmt.Fprintln(&b, l)
	}
	return b.String()
}

// tail is the end of String.
func (j *journal) tail() string {
	lines := strings.SplitAfter(j.String(), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "")
}

// now is the present state: the phase and the set in force.
func (j *journal) now() string {
	st := j.latest.State()
	if !st.Known {
		return st.Phase().String()
	}
	return strings.TrimSpace(st.Phase().String() + " " + brief(st.Set))
}

// want checks the present state.
func (j *journal) want(t *testing.T, want string) {
	t.Helper()
	if got := j.now(); got != want {
		t.Errorf("got %q, want %q; reports:\n%s", got, want, j.tail())
	}
}

// wantFail checks that the newest failure holds, and mentions each text.
func (j *journal) wantFail(t *testing.T, texts ...string) {
	t.Helper()
	err := j.latest.State().Err
	if err == nil {
		t.Errorf("no failure, want one with %q; reports:\n%s", texts, j.tail())
		return
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("got the failure %q, want %q in it", err, text)
		}
	}
}

// never checks that no report says what is told by wrong.
func (j *journal) never(t *testing.T, what string, wrong func(line) bool) {
	t.Helper()
	for _, l := range j.all() {
		if wrong(l) {
			t.Errorf("%s: %s; reports:\n%s", what, l, j.tail())
			return
		}
	}
}

func lists(n int) func(line) bool {
	return func(l line) bool { return l.err == nil && l.set.Len() == n }
}

// brief writes a set as the last bytes of 192.0.2.n:80, with "-" for unhealthy,
// "~" for draining and "*w" for a weight other than 1.
func brief(set lbcore.Set) string {
	var words []string
	for _, e := range set.All() {
		w := strings.TrimSuffix(strings.TrimPrefix(e.Addr.String(), "192.0.2."), ":80")
		switch e.Status {
		case lbcore.StatusUnhealthy:
			w += "-"
		case lbcore.StatusDraining:
			w += "~"
		}
		if e.Weight != 1 {
			w += fmt.Sprintf("*%d", e.Weight)
		}
		words = append(words, w)
	}
	return strings.Join(words, " ")
}

// logBuffer keeps log lines.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
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

func (b *logBuffer) logger() *slog.Logger { return slog.New(slog.NewTextHandler(b, nil)) }

// count returns how many lines hold text.
func (b *logBuffer) count(text string) (n int) {
	for l := range strings.Lines(b.String()) {
		if strings.Contains(l, text) {
			n++
		}
	}
	return n
}

// newContext returns a context that the test can end.
func newContext(t *testing.T) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	return ctx, cancel
}

// bubble runs f in virtual time.
func bubble(t *testing.T, f func(*testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}
