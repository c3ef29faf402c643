package discoverytest

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse.internal/discovery"
	"gatehouse.internal/lbcore"
)

// faultVar names the fault of the source in a child process.
const faultVar = "GATEHOUSE_DISCOVERYTEST_FAULT"

// toy is a world in memory and the source that watches it, with a fault.
type toy struct {
	fault string

	mu      sync.Mutex
	eps     []lbcore.Endpoint
	broken  bool
	changed chan struct{} // one slot
}

func newToy(fault string) *toy {
	return &toy{fault: fault, eps: First(), changed: make(chan struct{}, 1)}
}

func (w *toy) update(change func()) {
	w.mu.Lock()
	change()
	w.mu.Unlock()
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

func (w *toy) world() World {
	return World{
		Set:   func(eps []lbcore.Endpoint) { w.update(func() { w.eps = slices.Clone(eps) }) },
		Break: func() { w.update(func() { w.broken = true }) },
		Heal:  func() { w.update(func() { w.broken = false }) },
	}
}

func (w *toy) look() ([]lbcore.Endpoint, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.broken {
		return nil, errors.New("the world is broken")
	}
	return w.eps, nil
}

func (w *toy) Watch(ctx context.Context, sink discovery.Sink) error {
	if w.fault == "leaves a goroutine" {
		go func() { <-make(chan struct{}) }()
	}
	if w.fault == "reports for ever" {
		go func() {
			for {
				sink.Replace(lbcore.MustSet(First()...))
				<-time.After(time.Millisecond)
			}
		}()
	}
	if w.fault == "knows too much" {
		sink.Replace(lbcore.MustSet(First()...))
	}
	known := false
	for {
		eps, err := w.look()
		switch {
		case ctx.Err() != nil:
		case err != nil && w.fault == "empties on failure":
			sink.Fail(err)
			sink.Replace(lbcore.Set{})
		case err != nil && w.fault == "hides failures":
		case err != nil:
			sink.Fail(err)
		case len(eps) == 0 && w.fault == "ignores the empty set":
		case known && w.fault == "ignores changes":
		default:
			if w.fault == "reports a part first" && len(eps) > 1 {
				sink.Replace(lbcore.MustSet(eps[0]))
			}
			if w.fault == "fails at each change" && known {
				sink.Fail(errors.New("wait a moment"))
			}
			if w.fault == "keeps the last duplicate" {
				eps = slices.Clone(eps)
				slices.Reverse(eps)
			}
			set, _, err := lbcore.NewSet(eps)
			if err != nil {
				return err
			}
			if w.fault != "says nothing" {
				sink.Replace(set)
			}
			known = true
		}
		if w.fault == "ends by itself" && known {
			return nil
		}
		select {
		case <-w.changed:
		case <-ctx.Done():
			switch w.fault {
			case "returns nil":
				return nil
			case "never ends":
				select {}
			}
			return ctx.Err()
		}
	}
}

func TestRunPassesAGoodSource(t *testing.T) {
	Run(t, Harness{New: func(*testing.T) (discovery.Source, World) {
		w := newToy("")
		return w, w.world()
	}})
}

// Each fault is found, by the check that is meant to find it. A failing suite
// needs a process of its own.
func TestRunFindsFaults(t *testing.T) {
	for _, c := range []struct{ fault, check, want string }{
		{"says nothing", "first report", "no report of [192.0.2.1:80 192.0.2.2:80]"},
		{"ignores changes", "change", "no report of [192.0.2.2:80 192.0.2.3:80]"},
		{"fails at each change", "change", "a change was reported as a failure"},
		{"reports a part first", "change", "a set that was not listed then"},
		{"empties on failure", "failure keeps the set", "a set that was not listed then"},
		{"hides failures", "failure keeps the set", "no report of a failure"},
		{"knows too much", "broken from the start", "reports of a source that knew nothing"},
		{"ignores the empty set", "empty is a fact", "no report of []"},
		{"ignores the empty set", "empty from the start", "no report of []"},
		{"keeps the last duplicate", "first duplicate is kept", "got 7, want 5"},
		{"returns nil", "first report", "Watch returned <nil>, want the context's error"},
		{"ends by itself", "first report", "Watch returned"},
		{"never ends", "cancelled before Watch", "did not return within"},
		{"never ends", "cancelled while broken", "did not return within"},
		{"leaves a goroutine", "first report", "found unexpected goroutines"},
		{"reports for ever", "watched again", "found unexpected goroutines"},
	} {
		t.Run(c.fault+"/"+c.check, func(t *testing.T) {
			t.Parallel()
			run := "-test.run=^TestFaultySource$/^" + strings.ReplaceAll(c.check, " ", "_") + "$"
			cmd := exec.CommandContext(t.Context(), os.Args[0], run)
			cmd.Env = append(os.Environ(), faultVar+"="+c.fault)
			out, err := cmd.CombinedOutput()
			if _, failed := errors.AsType[*exec.ExitError](err); !failed || !strings.Contains(string(out), c.want) {
				t.Errorf("got %v, want a failure with %q:\n%s", err, c.want, out)
			}
		})
	}
}

// TestFaultySource is the child process of TestRunFindsFaults; by itself it
// runs the source without a fault.
func TestFaultySource(t *testing.T) {
	h := Harness{New: func(*testing.T) (discovery.Source, World) {
		w := newToy(os.Getenv(faultVar))
		return w, w.world()
	}}
	if os.Getenv(faultVar) != "" {
		h.Within = 2 * time.Second // to fail fast
	}
	Run(t, h)
}
