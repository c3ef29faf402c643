package healthsvc

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// step is one thing that callers do, 7 ms after the one before.
type step struct {
	Key      int
	Interval time.Duration
	Release  int // which of the key's Refs, if there are any; -1: acquire
}

// TestStreamsAgainstModel compares when probes start, exactly, with a model
// that knows neither heap nor lines: a key's next probe is due an interval of
// its fastest cadence after the last, and a key begins when its first Ref does.
func TestStreamsAgainstModel(t *testing.T) {
	gen := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
		return step{
			Key:      rapid.IntRange(0, 2).Draw(t, "key"),
			Interval: rapid.SampledFrom([]time.Duration{5, 10, 30, 50}).Draw(t, "interval") * time.Millisecond,
			Release:  rapid.IntRange(-1, 2).Draw(t, "release"),
		}
	}), 1, 40)
	rapid.Check(t, func(rt *rapid.T) {
		steps := gen.Draw(rt, "steps")
		var wrong string
		synctest.Test(t, func(t *testing.T) {
			p := newScript(nil)
			s := run(t, Config{})
			var refs [3][]*Ref
			var asks [3][]time.Duration
			var last [3]time.Duration
			var want [3][]time.Duration
			now := time.Duration(0)
			fire := func(k int, at time.Duration) {
				last[k] = at
				want[k] = append(want[k], at)
			}
			advance := func(d time.Duration) {
				for k := range asks {
					for len(asks[k]) > 0 && last[k]+slices.Min(asks[k]) <= now+d {
						fire(k, last[k]+slices.Min(asks[k]))
					}
				}
				now += d
				pass(d)
			}
			for _, st := range steps {
				advance(7 * time.Millisecond)
				k := st.Key
				if st.Release >= 0 && len(refs[k]) > 0 {
					i := st.Release % len(refs[k])
					refs[k][i].Release()
					refs[k], asks[k] = slices.Delete(refs[k], i, i+1), slices.Delete(asks[k], i, i+1)
				} else {
					fresh := len(refs[k]) == 0
					refs[k] = append(refs[k], s.Acquire(key(k), p, &Ask{Cadence: every(st.Interval), Thresholds: Thresholds{}}))
					asks[k] = append(asks[k], st.Interval)
					if fresh || last[k]+slices.Min(asks[k]) <= now {
						fire(k, now)
					}
				}
				synctest.Wait()
			}
			advance(200 * time.Millisecond)
			for k := range want {
				if got := p.at(addr(k)); fmt.Sprint(got) != fmt.Sprint(want[k]) {
					wrong += fmt.Sprintf("key %d was probed at\n%v, want\n%v\n", k, got, want[k])
				}
			}
			if p.overlap {
				wrong += "two probes of one key at a time\n"
			}
			live := 0
			for k := range refs {
				if len(refs[k]) > 0 {
					live++
				}
			}
			if st := s.Stats(); st.Targets != live || len(s.targets) != live {
				wrong += fmt.Sprintf("%d targets, %d keys held, want %d\n", st.Targets, len(s.targets), live)
			}
		})
		if wrong != "" {
			rt.Fatal(wrong)
		}
	})
}

// TestManyCallers is for the race detector: it acquires, releases and reads
// from many goroutines while probes run.
func TestManyCallers(t *testing.T) {
	s := run(t, Config{Workers: 8})
	p := newScript(nil)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			var held []*Ref
			for i := range 2000 {
				c := every(time.Duration(1+(i+g)%5) * time.Millisecond)
				held = append(held, s.Acquire(key(i*(g+1)%50), p, &Ask{Cadence: c, Thresholds: Thresholds{Healthy: uint32(i % 2), Unhealthy: uint32(g % 3)}, OnChange: func() {}}))
				if len(held) > 20 {
					held[i%20].Release()
					held[i%20].State().Load()
					held[(i+1)%20].Status()
					held = slices.Delete(held, i%20, i%20+1)
					s.Stats()
				}
			}
			for _, r := range held {
				r.Release()
			}
		})
	}
	wg.Wait()
	poll(t, "every key is forgotten", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.targets) == 0
	})
	if st := s.Stats(); st.Targets != 0 || st.Refs != 0 || p.overlap {
		t.Errorf("stats %+v, overlap %t", st, p.overlap)
	}
}

// poll waits until ok.
func poll(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(30 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited in vain: %s", what)
		}
	}
}
