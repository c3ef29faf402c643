package lbcore_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse.internal/lbcore"
)

// failure is what a group's OnError is told.
type failure struct {
	slot       string
	generation uint64
	err        error
}

type failures struct{ record[failure] }

func (f *failures) onError(slot string, generation uint64, err error) {
	f.add(failure{slot, generation, err})
}

func TestBackoffIsExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var at []time.Duration
		l := &lab{build: func(n int64, _ func() error) error {
			at = append(at, time.Since(began))
			if n <= 11 {
				return errBuild
			}
			return nil
		}}
		var told failures
		c := (&cluster{builders: []lbcore.Builder{l}, onError: told.onError}).start(t)
		c.settle(set(1))
		want, sum := []time.Duration{0}, time.Duration(0)
		for _, ms := range []int{10, 20, 40, 80, 160, 320, 640, 1000, 1000, 1000, 1000} {
			sum += time.Duration(ms) * time.Millisecond
			want = append(want, sum)
		}
		equal(t, "attempts", at, want)
		st := c.stats()[0]
		if st.Failed != 11 || st.Rebuilds != 1 || st.Coalesced != 0 || st.Err != nil || st.Queue != sum {
			t.Errorf("%+v", st)
		}
		if f := told.all(); len(f) != 11 || f[10] != (failure{"a", 1, errBuild}) {
			t.Errorf("told of %v", f)
		}
		// The next failure starts over.
		at = nil
		l.build = func(n int64, _ func() error) error {
			at = append(at, time.Since(began))
			if len(at) < 3 {
				return errBuild
			}
			return nil
		}
		began = time.Now()
		c.settle(set(2))
		equal(t, "attempts", at, []time.Duration{0, 10 * time.Millisecond, 30 * time.Millisecond})
	})
}

func TestNewGenerationEndsBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		good := false
		l := &lab{build: func(n int64, _ func() error) error {
			if good || n == 1 {
				return nil
			}
			return errBuild
		}}
		c := start(t, l)
		c.settle(set(0))
		c.update(set(1))
		pass(5 * time.Second) // deep in the back-off of one second
		st := c.stats()[0]
		if st.Failed < 9 || st.Err != errBuild || st.Generation != 1 {
			t.Fatalf("%+v", st)
		}
		if g, ok := c.slot(0).Pending(); !ok || g != 2 {
			t.Errorf("pending: %d, %v", g, ok)
		}
		equal(t, "picked meanwhile, though it has left", c.seen(0), []int{0})

		// A newer one that fails too begins with the shortest back-off.
		before := time.Now()
		c.update(set(2))
		synctest.Wait()
		if got := c.stats()[0]; got.Failed != st.Failed+1 || got.Coalesced != 1 {
			t.Errorf("a newer generation was not tried at once: %+v", got)
		}
		pass(10 * time.Millisecond)
		if got := c.stats()[0]; got.Failed != st.Failed+2 {
			t.Errorf("the back-off did not begin again: %+v", got)
		}
		good = true
		c.settle(set(3))
		if d := time.Since(before); d != 10*time.Millisecond {
			t.Errorf("published after %v", d)
		}
		if st := c.stats()[0]; st.Err != nil || st.Generation != 4 || st.Rebuilds != 2 || st.Coalesced != 2 {
			t.Errorf("%+v", st)
		}
	})
}

// A newer generation that comes during a build that fails is tried at once.
func TestNewGenerationDuringFailingBuild(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		c := start(t, &lab{build: func(n int64, _ func() error) error {
			if n == 1 {
				<-release
				return errBuild
			}
			return nil
		}})
		c.update(set(1))
		synctest.Wait()
		c.update(set(2))
		before := time.Now()
		close(release)
		c.wait(2)
		// Two requests: one published, one replaced before it was.
		if st := c.stats()[0]; time.Since(before) != 0 || st.Failed != 1 || st.Rebuilds != 1 || st.Coalesced != 1 {
			t.Errorf("after %v: %+v", time.Since(before), st)
		}
		equal(t, "picked", c.seen(0), []int{2})
	})
}

// A panic in a build, or before it, is no more than a build that has failed: what is
// published serves, the permit is free, and it is tried again.
func TestPanicInBuild(t *testing.T) {
	boom := func(n int64) error {
		if n == 2 || n == 3 {
			panic("boom")
		}
		return nil
	}
	for name, l := range map[string]*lab{
		"build": {build: func(n int64, _ func() error) error { return boom(n) }},
		"shape": {shape: boom},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var told failures
				c := (&cluster{builders: []lbcore.Builder{l}, onError: told.onError}).start(t)
				other := (&cluster{gate: c.gate, builders: []lbcore.Builder{order{}}}).start(t)
				c.settle(set(1))
				before := time.Now()
				c.update(set(1, 2))
				synctest.Wait()
				equal(t, "picked after a panic", c.seen(0), []int{1})
				other.settle(set(5)) // the permit is free
				if err := c.stats()[0].Err; err == nil || !strings.Contains(err.Error(), "boom") || !strings.Contains(err.Error(), "harness_test.go") {
					t.Errorf("the error does not say what and where: %v", err)
				} else if p, ok := errors.AsType[*lbcore.PanicError](err); !ok || p.Value != "boom" || len(p.Stack) == 0 {
					t.Errorf("%#v", err)
				}
				c.wait(2)
				if d := time.Since(before); d != 30*time.Millisecond {
					t.Errorf("published after %v", d)
				}
				if st := c.stats()[0]; st.Failed != 2 || st.Rebuilds != 2 || st.Err != nil || len(told.all()) != 2 {
					t.Errorf("%+v, told %v", st, told.all())
				}
			})
		})
	}
}

func TestShapeErrorIsNotRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told failures
		l := &lab{shape: func(n int64) error {
			if n == 2 {
				return errBuild
			}
			return nil
		}}
		c := (&cluster{builders: []lbcore.Builder{l}, onError: told.onError}).start(t)
		c.settle(set(1))
		c.update(set(2))
		pass(time.Hour)
		st := c.stats()[0]
		if st.Failed != 1 || st.Generation != 1 || l.shapes.Load() != 2 || l.builds.sum.Load() != 1 {
			t.Errorf("%+v, %d shapes, %d builds", st, l.shapes.Load(), l.builds.sum.Load())
		}
		if f := told.all(); st.Err == nil || !strings.Contains(st.Err.Error(), errBuild.Error()) || len(f) != 1 || f[0].generation != 2 {
			t.Errorf("%v, told %v", st.Err, f)
		}
		if g, ok := c.slot(0).Pending(); ok {
			t.Errorf("generation %d is pending", g)
		}
		equal(t, "picked meanwhile", c.seen(0), []int{1})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.group.WaitGeneration(ctx, 2); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("waiting for it: %v", err)
		}
		c.settle(set(3))
		if st := c.stats()[0]; st.Err != nil || st.Rebuilds != 2 {
			t.Errorf("%+v", st)
		}
	})
}

// A policy that returns nothing is an error, and not a crash of the next pick.
func TestBuilderThatReturnsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, nothing{})
		c.update(set(1))
		synctest.Wait()
		if st := c.stats()[0]; st.Failed != 1 || st.Err == nil || st.Rebuilds != 0 {
			t.Errorf("%+v", st)
		}
		if p := c.pick(0, lbcore.Key{}, 1); p.Len() != 0 {
			t.Error("it picks")
		}
	})
}

type nothing struct{ order }

func (nothing) Build(lbcore.Input, *lbcore.Storage, func() error) (lbcore.Selector, error) {
	return nil, nil
}

// A policy that asks for what can't be is an error that another membership may
// mend, and not a crash.
func TestImpossibleShape(t *testing.T) {
	for _, words := range []int{-1, 1 << 20, math.MaxInt} {
		synctest.Test(t, func(t *testing.T) {
			l := &lab{words: words}
			c := (&cluster{gate: lbcore.NewGate(lbcore.GateConfig{MaxStorage: 8<<20 - 1}), builders: []lbcore.Builder{l}}).start(t)
			c.update(set(1))
			pass(time.Second)
			if st := c.stats()[0]; st.Failed != 1 || !strings.Contains(st.Err.Error(), "gate.max_storage (8388607)") {
				t.Errorf("%d words: %+v", words, st)
			}
			l.words = 1
			c.settle(set(2))
			if st := c.stats()[0]; st.Err != nil {
				t.Errorf("%d words: %v", words, st.Err)
			}
		})
	}
}

func TestCancelDuringBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &lab{build: func(int64, func() error) error { return errBuild }}
		c := start(t, l)
		c.update(set(1))
		pass(5 * time.Second)
		n, before := l.builds.sum.Load(), time.Now()
		c.stop()
		if d := time.Since(before); d != 0 {
			t.Errorf("stopping took %v", d)
		}
		pass(time.Hour)
		if l.builds.sum.Load() != n {
			t.Error("built after the end")
		}
		if g, ok := c.slot(0).Pending(); !ok || g != 1 {
			t.Errorf("pending: %d, %v", g, ok)
		}
	})
}

// A build that is cancelled puts its request back, publishes nothing, and
// frees the permit only when it has ended.
func TestCancelDuringBuild(t *testing.T) {
	for _, obeys := range []bool{false, true} {
		t.Run(fmt.Sprintf("yield=%v", obeys), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				l := &lab{build: func(n int64, yield func() error) error {
					if n < 2 {
						return nil
					}
					<-release
					if obeys {
						if err := yield(); !errors.Is(err, context.Canceled) {
							t.Errorf("yield says %v", err)
						}
						return errBuild
					}
					return nil
				}}
				c := start(t, l)
				other := (&cluster{gate: c.gate, builders: []lbcore.Builder{order{}}}).start(t)
				c.settle(set(1))
				c.update(set(2))
				synctest.Wait()
				c.cancel()
				other.update(set(5))
				synctest.Wait()
				if other.group.Served() != 0 {
					t.Error("another build began before the cancelled one ended")
				}
				close(release)
				c.stop()
				other.wait(1)
				if g, ok := c.slot(0).Pending(); !ok || g != 2 {
					t.Errorf("pending: %d, %v", g, ok)
				}
				if st := c.stats()[0]; st.Generation != 1 || st.Failed != 0 || st.Rebuilds != 1 || st.Coalesced != 0 {
					t.Errorf("%+v", st)
				}
				equal(t, "what was published still answers", c.seen(0), []int{1})
			})
		})
	}
}

// A cancelled build does not put its request over a newer one.
func TestCancelDuringBuildKeepsTheNewer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		c := start(t, &lab{build: block(1, release)})
		c.update(set(1))
		synctest.Wait()
		c.update(set(2))
		c.cancel()
		close(release)
		c.stop()
		if g, ok := c.slot(0).Pending(); !ok || g != 2 {
			t.Errorf("pending: %d, %v", g, ok)
		}
		if st := c.stats()[0]; st.Coalesced != 1 || st.Generation != 0 {
			t.Errorf("%+v", st)
		}
	})
}

func TestCancelWhileWaitingForTheGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		c := start(t, &lab{build: block(1, release)})
		other := (&cluster{gate: c.gate, builders: []lbcore.Builder{order{}}}).start(t)
		third := (&cluster{gate: c.gate, builders: []lbcore.Builder{order{}}}).start(t)
		c.update(set(1))
		synctest.Wait()
		other.update(set(1))
		synctest.Wait()
		third.update(set(1))
		synctest.Wait()
		other.stop() // at once, though the build goes on
		if g, ok := other.slot(0).Pending(); !ok || g != 1 {
			t.Errorf("pending: %d, %v", g, ok)
		}
		close(release)
		c.wait(1)
		third.wait(1)
		if other.group.Served() != 0 {
			t.Error("built after the end")
		}
	})
}

// With a context that has ended nothing begins any more, though the gate is
// free.
func TestNothingBeginsAfterTheEnd(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 30 {
		l := &lab{}
		v := lbcore.NewView("c", new(lbcore.Hosts), lbcore.ViewConfig{})
		g := lbcore.NewGroup(lbcore.GroupConfig{
			View: v, Gate: lbcore.NewGate(lbcore.GateConfig{}), Slots: []lbcore.SlotConfig{{Builder: l}},
		})
		snap, _ := v.Update(set(1))
		g.Rebuild(snap)
		if err := g.Run(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
		if _, pending := g.Slots()[0].Pending(); !pending || l.shapes.Load() != 0 {
			t.Fatalf("pending %v, %d shapes", pending, l.shapes.Load())
		}
	}
}

// A request that a newer one replaces while its size is looked at counts as
// coalesced.
func TestReplacedBetweenTheLanes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c *cluster
		l := &lab{words: largeWords}
		l.shape = func(n int64) error {
			if n == 1 {
				c.update(set(1, 2))
			}
			return nil
		}
		c = start(t, l)
		c.settle(set(1))
		synctest.Wait()
		c.wait(2)
		if st := c.stats()[0]; st.Rebuilds != 1 || st.Coalesced != 1 || l.builds.sum.Load() != 1 {
			t.Errorf("%+v, %d builds", st, l.builds.sum.Load())
		}
	})
}
