package lrs

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	loadv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
)

// Stream is one StreamLoadStats. Send and Recv may be called at the same time by one
// goroutine each; both end when the context does that the stream was opened with.
// After that, and not before, comes Close.
type Stream interface {
	Send(*loadv3.LoadStatsRequest) error
	Recv() (*loadv3.LoadStatsResponse, error)
	Close()
}

// Target is the server that loads are reported to.
type Target struct {
	URI  string
	Open func(context.Context) (Stream, error)
	// End says why a stream ended, or was not opened, with err, and whether that is
	// not expected to be better soon.
	End func(err error) (reason string, refused bool)
}

// Config configures a Reporter. All is required.
type Config struct {
	// Node is who reports. It is not written to.
	Node *corev3.Node
	// Loads returns what has happened since its last call in those clusters that
	// are wanted, of all that may be reported. It is called by one goroutine.
	Loads func(wanted func(cluster string) bool) []ClusterLoad
	// Delay returns how long to wait before the next stream: after so many that
	// ended without a response, 0 after one that had one, and Longest after one
	// that was refused.
	Delay func(failures int) time.Duration
	// Tell logs a line, unless text is what it was the last time, or lines come too
	// fast. It is called by one goroutine.
	Tell func(level slog.Level, text, msg string, args ...any)
}

// Longest is Delay's argument for the longest delay.
const Longest = 1 << 30

// Counters are totals since New.
type Counters struct {
	// Reports were sent; Failures are streams that ended or were not opened.
	Reports, Failures uint64
}

// Reporter reports loads. Make one with New.
type Reporter struct {
	cfg    Config
	target atomic.Pointer[Target]
	wake   chan struct{} // one slot: the target may be another

	reports, failures atomic.Uint64

	// Run's goroutine's.
	unsent []ClusterLoad // taken, and not sent yet
}

// New returns a Reporter that does nothing before Run.
func New(cfg Config) *Reporter {
	cfg.Node = withFeature(cfg.Node)
	return &Reporter{cfg: cfg, wake: make(chan struct{}, 1)}
}

// Aim has loads reported to t, which is compared by its address, from now on; nil is
// nobody.
func (r *Reporter) Aim(t *Target) {
	if r.target.Swap(t) != t {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

// Counters returns the totals.
func (r *Reporter) Counters() Counters { return Counters{r.reports.Load(), r.failures.Load()} }

// Run reports until ctx ends, and returns its error. Nothing that it has started is
// left then.
func (r *Reporter) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	failures := 0
	for ctx.Err() == nil {
		t := r.target.Load()
		if t == nil {
			select {
			case <-r.wake:
			case <-ctx.Done():
			}
			continue
		}
		heard, err := r.converse(ctx, t)
		if ctx.Err() != nil {
			break
		}
		if r.target.Load() != t {
			failures = 0
			continue
		}
		r.failures.Add(1)
		reason, refused := t.End(err)
		switch {
		case refused:
			failures = Longest
		case heard:
			failures = 0
		case failures == Longest:
			failures = 1
		default:
			failures++
		}
		r.cfg.Tell(slog.LevelWarn, reason, "loads can't be reported", "server", t.URI, "err", reason)
		timer.Reset(r.cfg.Delay(failures))
		for waiting := true; waiting; {
			select {
			case <-timer.C:
				waiting = false
			case <-r.wake:
				waiting = r.target.Load() == t
			case <-ctx.Done():
				waiting = false
			}
		}
	}
	return ctx.Err()
}

// converse opens a stream to t and reports on it until it ends, or t is no longer the
// target. It reports whether there was a response. Sending and receiving don't wait
// for each other.
func (r *Reporter) converse(ctx context.Context, t *Target) (heard bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	st, err := t.Open(ctx)
	if err != nil {
		cancel()
		return false, err
	}
	var wg sync.WaitGroup
	defer st.Close()
	defer wg.Wait()
	defer cancel()

	responses, over := make(chan *loadv3.LoadStatsResponse), make(chan error, 1)
	wg.Go(func() {
		for {
			m, err := st.Recv()
			if err != nil {
				over <- err
				return
			}
			select {
			case responses <- m:
			case <-ctx.Done():
				return
			}
		}
	})
	sent, sending, reporting := make(chan error, 1), false, false
	send := func(m *loadv3.LoadStatsRequest) {
		sending = true
		wg.Go(func() { sent <- st.Send(m) })
	}
	send(&loadv3.LoadStatsRequest{Node: r.cfg.Node})

	var asked terms
	timer := time.NewTimer(0)
	timer.Stop()
	defer timer.Stop()
	for {
		select {
		case m := <-responses:
			before := asked.interval
			if asked = read(m); asked.interval != before { // a server that repeats itself changes nothing
				timer.Reset(asked.interval)
			}
			heard = true
			r.cfg.Tell(slog.LevelInfo, "", "loads are reported", "server", t.URI, "interval", asked.interval)
		case <-timer.C:
			timer.Reset(asked.interval)
			if sending { // the server does not read: the next report has it all
				continue
			}
			r.unsent = append(owed(r.unsent), r.cfg.Loads(asked.wants)...)
			reporting = true
			send(report(r.cfg.Node, r.unsent, asked.endpoints))
		case err := <-sent:
			sending = false
			switch {
			case err == nil && reporting:
				r.reports.Add(1)
				r.unsent = nil
			case err == nil: // the node
			case !errors.Is(err, io.EOF): // else the stream is over, and Recv says why
				return heard, err
			}
		case err := <-over:
			return heard, err
		case <-r.wake:
			if r.target.Load() != t {
				return heard, nil
			}
		case <-ctx.Done():
			return heard, ctx.Err()
		}
	}
}
