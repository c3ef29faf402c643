//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"testing"
	"time"
)

// patience is how long what must happen may take; it is no measure of speed.
const patience = 60 * time.Second

// settleWithin is how long the agent may take to be what it was before.
const settleWithin = time.Minute

// The load that a fault has unless it says otherwise.
const (
	askRate     = 100 // a second
	streamCount = 6
	askPatience = 5 * time.Second
)

// spec is what the process of one fault is told.
type spec struct {
	Fault  string `json:"fault"`
	Quick  bool   `json:"quick"`
	Timed  bool   `json:"timed"`
	Agent  string `json:"agent"`            // the binary
	Skewed string `json:"skewed,omitempty"` // the one whose wall clock is ours, in a fault with clock
}

// world is where one fault happens. It is a testing.TB for consultest and dnstest,
// which are for tests otherwise: of that it has what they call, and nothing else.
type world struct {
	testing.TB // nil

	spec     spec
	f        fault
	ctx      context.Context
	dir      string
	cleanups []func()
	out      outcome

	agent *agent
	load  *load

	rate, streams int // of the load; the fault may change them before it starts the agent
	patience      time.Duration
	began, ended  time.Time // of the fault
	good          time.Time // when the agent was as before
	peak          int       // bytes resident, while the fault lasted
}

// stop ends a fault that can't go on; why is among the failures.
type stop struct{}

// These are testing.TB's.
func (w *world) Helper()                  {}
func (w *world) Name() string             { return w.f.name }
func (w *world) Context() context.Context { return w.ctx }
func (w *world) Cleanup(f func())         { w.cleanups = append(w.cleanups, f) }
func (w *world) Failed() bool             { return len(w.out.Failures) > 0 }
func (w *world) Log(args ...any)          { fmt.Fprintln(os.Stderr, args...) }
func (w *world) Logf(f string, args ...any) {
	fmt.Fprintf(os.Stderr, f+"\n", args...)
}
func (w *world) Errorf(f string, args ...any) {
	w.out.Failures = append(w.out.Failures, fmt.Sprintf(f, args...))
}
func (w *world) Fatalf(f string, args ...any) { w.Errorf(f, args...); panic(stop{}) }
func (w *world) Fatal(args ...any)            { w.Fatalf("%s", strings.TrimSpace(fmt.Sprintln(args...))) }
func (w *world) TempDir() string {
	dir, err := os.MkdirTemp(w.dir, "")
	w.check(err)
	return dir
}

// check ends the fault on an error.
func (w *world) check(err error) {
	if err != nil {
		w.Fatal(err)
	}
}

// expect notes a failure unless ok.
func (w *world) expect(ok bool, f string, args ...any) {
	if !ok {
		w.Errorf(f, args...)
	}
}

func (w *world) note(f string, args ...any) {
	w.out.Notes = append(w.out.Notes, fmt.Sprintf(f, args...))
}

// pick returns the longer time, or the shorter one of a quick run.
func (w *world) pick(long, short time.Duration) time.Duration {
	if w.spec.Quick {
		return short
	}
	return long
}

// until waits for what must happen and returns when it has.
func (w *world) until(what string, ok func() bool) time.Time {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for limit := time.Now().Add(patience); ; {
		if ok() {
			return time.Now()
		}
		if time.Now().After(limit) {
			w.Fatalf("it is not so that %s, after %s", what, patience)
		}
		select {
		case <-tick.C:
		case <-w.ctx.Done():
			w.Fatalf("it is not so that %s: %v", what, w.ctx.Err())
		}
	}
}

// hold lets a time pass.
func (w *world) hold(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		if w.agent != nil {
			if n, err := w.agent.p.Resident(); err == nil {
				w.peak = max(w.peak, n)
			}
		}
		time.Sleep(min(100*time.Millisecond, max(0, time.Until(end))))
	}
}

// start starts the agent and its load, and measures the base.
func (w *world) start(hcl string, env ...string) {
	w.Helper()
	w.agent = w.runAgent(hcl, env...)
	w.startLoad("tcp", w.agent.listener("web"))
}

func (w *world) startLoad(network, addr string) {
	w.Helper()
	w.load = startLoad(w.ctx, network, addr, w.rate, w.streams, w.patience)
	w.until("bytes come back on all streams", w.load.moving())
	w.hold(w.pick(2*time.Second, 500*time.Millisecond))
	for range 5 {
		u := w.agent.usage()
		w.out.Base.Goroutines = max(w.out.Base.Goroutines, u.Goroutines)
		w.out.Base.Descriptors = max(w.out.Base.Descriptors, u.Descriptors)
		w.out.Base.Resident = max(w.out.Base.Resident, u.Resident)
		w.hold(50 * time.Millisecond)
	}
}

// begin makes the fault.
func (w *world) begin(f func()) {
	w.began = time.Now()
	f()
}

// seen waits until something tells of the fault.
func (w *world) seen(what string, ok func() bool) {
	w.Helper()
	w.out.SeenAs, w.out.DetectMS = what, new(w.until(what, ok).Sub(w.began).Milliseconds())
}

// told is seen by the first line of the log with that message since the fault began,
// at the moment at which it came.
func (w *world) told(msg string) {
	w.Helper()
	var at time.Time
	what := fmt.Sprintf("the log has %q", msg)
	w.until(what, func() bool { at = w.agent.told(msg, w.began); return !at.IsZero() })
	w.out.SeenAs, w.out.DetectMS = what, new(at.Sub(w.began).Milliseconds())
}

// nothing says why there is nothing to detect.
func (w *world) nothing(why string) { w.out.SeenAs = why }

// unseen says what has not told of the fault so far.
func (w *world) unseen(what string) {
	w.out.SeenAs, w.out.UnseenMS = what, new(time.Since(w.began).Milliseconds())
}

// over takes the fault away and waits until the agent is as before.
func (w *world) over(f func(), what string, ok func() bool) {
	w.Helper()
	w.ended = time.Now()
	f()
	w.good = w.until(what, ok)
	w.until("somebody is served", func() bool { _, ok := w.load.served(w.ended); return ok })
}

// settle waits until the agent takes what it took before, under the same load.
func (w *world) settle() {
	w.Helper()
	from := time.Now()
	w.until("bytes come back on all streams again", w.load.moving())
	for {
		w.out.After = w.agent.usage()
		if w.out.After.settled(w.out.Base, w.f.want.memory, w.spec.Timed) {
			w.out.SettledMS = new(time.Since(from).Milliseconds())
			return
		}
		if time.Since(from) > settleWithin {
			w.Errorf("after %s the agent takes %s, and before the fault %s", settleWithin, w.out.After, w.out.Base)
			return
		}
		w.hold(200 * time.Millisecond)
	}
}

// sum adds what the load has seen.
func (w *world) sum() {
	l := w.load
	l.stop()
	w.out.Asks = l.count
	w.out.Streams = l.streams
	if l.own != nil {
		w.Errorf("the load: %v", l.own)
	}
	if w.good.IsZero() {
		return
	}
	last := w.good
	if t, ok := l.served(w.ended); ok && t.After(last) {
		last = t
	}
	for _, t := range l.bad {
		if t.After(last) {
			last = t
		}
	}
	w.out.RecoverMS = new(last.Sub(w.ended).Milliseconds())
}

// take makes the fault of a spec happen, and returns what came of it.
func take(ctx context.Context, f fault, s spec) (out outcome) {
	began := time.Now()
	w := &world{spec: s, f: f, ctx: ctx, rate: askRate, streams: streamCount, patience: askPatience}
	if !f.clock {
		w.spec.Skewed = ""
	}
	if !s.Timed {
		w.patience = patience
	}
	w.out = outcome{Fault: f.name, What: f.what, Expect: f.want.String()}
	step := func(f func()) (ok bool) {
		defer func() {
			switch x := recover().(type) {
			case nil:
			case stop:
			default:
				w.Errorf("panic: %v\n%s", x, debug.Stack())
			}
		}()
		f()
		return true
	}
	var err error
	if w.dir, err = os.MkdirTemp("", "gatehouse-faults-"); err != nil {
		w.Errorf("%v", err)
		return w.out
	}
	defer os.RemoveAll(w.dir)
	if step(func() { f.run(w); w.settle() }) {
		w.sum()
		for _, bad := range f.want.judge(&w.out, s.Timed) {
			w.Errorf("%s", bad)
		}
	} else if w.load != nil {
		w.sum()
	}
	if w.agent != nil {
		if strings.Contains(w.agent.output(), "DATA RACE") {
			w.Errorf("the agent has a data race")
		}
		if err := w.agent.p.Ended(); err != nil {
			w.Errorf("the agent: %v", err)
		}
		if w.Failed() {
			if w.load != nil {
				w.Logf("what asks and streams met first, by kind: %v", w.load.first)
			}
			w.Logf("the agent's log of %s:\n%s", f.name, w.agent.output())
		}
	}
	for i := len(w.cleanups) - 1; i >= 0; i-- {
		step(w.cleanups[i])
	}
	w.out.OK = !w.Failed()
	w.out.TookMS = time.Since(began).Milliseconds()
	return w.out
}

// output runs a command line of a few words.
func (w *world) command(words ...string) {
	w.Helper()
	if out, err := exec.CommandContext(w.ctx, words[0], words[1:]...).CombinedOutput(); err != nil {
		w.Fatalf("%s: %v: %s", strings.Join(words, " "), err, out)
	}
}

// filter puts these rules of nftables in the place of those before. Packets are met
// where they come in: the sender of one that may not go out would be told.
func (w *world) filter(rules ...string) {
	w.Helper()
	w.command("nft", "add table inet f; add chain inet f in { type filter hook input priority 0; }; flush chain inet f in")
	for _, r := range rules {
		w.command("nft", "add rule inet f in "+r)
	}
}
