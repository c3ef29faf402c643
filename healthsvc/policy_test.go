package healthsvc

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"gatehouse.internal/lbcore"
)

// turns is a probe whose results are in the order given; the last one stays.
func turns(results ...error) *script {
	var mu sync.Mutex
	return newScript(func(context.Context, lbcore.Addr) error {
		mu.Lock()
		defer mu.Unlock()
		err := results[0]
		if len(results) > 1 {
			results = results[1:]
		}
		return err
	})
}

// Source: Envoy's HealthCheckerImplBase::interval, and its example.
func TestIntervalsFollowResults(t *testing.T) {
	c := Cadence{
		Interval: 10 * time.Second, UnhealthyInterval: 5 * time.Second,
		UnhealthyEdgeInterval: 2 * time.Second, HealthyEdgeInterval: time.Second, Timeout: time.Second,
	}
	synctest.Test(t, func(t *testing.T) {
		p := turns(nil, nil, errDown, errDown, errDown, errDown, nil, nil, nil)
		s := run(t, Config{})
		r := s.Acquire(key(1), p, &Ask{Cadence: c, Thresholds: Thresholds{Healthy: 2, Unhealthy: 3}})
		pass(55 * time.Second)
		wantStarts(t, p, addr(1), seconds(
			0,  // passes: healthy at once, 10
			10, // passes, 10
			20, // fails: pending, 2
			22, // fails: pending, 2
			24, // fails: unhealthy, 5
			29, // fails, 5
			34, // passes: pending, 1
			35, // passes: healthy, 10
			45, 55,
		))
		wantState(t, r, lbcore.HealthHealthy)
	})
}

// A change that one view waits for has the stream run at the edge for all.
func TestEdgeOfOneView(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := turns(nil, errDown, errDown, errDown, errDown)
		s := run(t, Config{})
		edge := Cadence{Interval: 10 * time.Second, UnhealthyEdgeInterval: time.Second, Timeout: time.Second}
		quick := s.Acquire(key(1), p, &Ask{Cadence: every(6 * time.Second), Thresholds: Thresholds{Unhealthy: 1}})
		slow := s.Acquire(key(1), p, &Ask{Cadence: edge, Thresholds: Thresholds{Unhealthy: 3}})
		pass(13 * time.Second)
		wantStarts(t, p, addr(1), seconds(0, 6, 7, 8))
		wantState(t, quick, lbcore.HealthUnhealthy)
		wantState(t, slow, lbcore.HealthUnhealthy)
		if st := slow.Status(); st.Interval != 6*time.Second || st.NextProbe.Sub(p.begin) != 14*time.Second {
			t.Errorf("status %+v", st)
		}
		pass(time.Second)
		wantStarts(t, p, addr(1), seconds(0, 6, 7, 8, 14))
	})
}

func TestNoTrafficInterval(t *testing.T) {
	c := Cadence{Interval: time.Second, Timeout: time.Second, NoTrafficInterval: 10 * time.Second, NoTrafficHealthyInterval: 20 * time.Second}
	synctest.Test(t, func(t *testing.T) {
		p := turns(errDown, nil)
		s := run(t, Config{})
		var traffic atomic.Bool
		r := s.Acquire(key(1), p, &Ask{Cadence: c, Thresholds: Thresholds{Healthy: 1}, Traffic: &traffic})
		pass(35 * time.Second)
		wantStarts(t, p, addr(1), seconds(0, 10, 30))
		traffic.Store(true) // counts from the next result on
		pass(18500 * time.Millisecond)
		wantStarts(t, p, addr(1), seconds(0, 10, 30, 50, 51, 52, 53))
		traffic.Store(false)
		pass(time.Second)
		traffic.Store(true)
		r.Review() // or at once
		pass(time.Second)
		wantStarts(t, p, addr(1), seconds(0, 10, 30, 50, 51, 52, 53, 54, 55))
		r.Release()
		r.Review()
	})
	synctest.Test(t, func(t *testing.T) {
		p := newScript(nil)
		s := run(t, Config{})
		s.Acquire(key(1), p, &Ask{Cadence: c, Traffic: new(atomic.Bool)})
		pass(time.Second)
		busy := s.Acquire(key(1), p, &Ask{Cadence: every(3 * time.Second)}) // another view has traffic
		pass(6 * time.Second)
		busy.Release()
		pass(20 * time.Second)
		wantStarts(t, p, addr(1), seconds(0, 3, 6, 26))
	})
}

func TestDegraded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var changes atomic.Int32
		p := turns(nil, ErrDegraded, errDown, errDown, ErrDegraded, nil)
		s := run(t, Config{})
		r := s.Acquire(key(1), p, &Ask{Cadence: every(time.Second), Thresholds: Thresholds{Unhealthy: 2}, OnChange: func() { changes.Add(1) }})
		want := func(h lbcore.Health, n int32) {
			t.Helper()
			synctest.Wait()
			wantState(t, r, h)
			if changes.Load() != n {
				t.Errorf("%d changes, want %d", changes.Load(), n)
			}
			pass(time.Second)
		}
		pass(time.Millisecond)
		want(lbcore.HealthHealthy, 1)
		want(lbcore.HealthDegraded, 2) // at once
		late := s.Acquire(key(1), p, &Ask{Cadence: every(time.Second), Thresholds: Thresholds{Unhealthy: 1}})
		wantState(t, late, lbcore.HealthUnhealthy) // the failure was just now
		want(lbcore.HealthDegraded, 2)
		want(lbcore.HealthUnhealthy, 3)
		want(lbcore.HealthDegraded, 4)
		another := s.Acquire(key(1), p, &Ask{Cadence: every(time.Second), Thresholds: Thresholds{Unhealthy: 7}})
		wantState(t, another, lbcore.HealthHealthy)
		want(lbcore.HealthHealthy, 5)
		if st := s.Stats(); len(st.Kinds) != 1 || st.Kinds[0].Failed != 2 || st.Kinds[0].Passed < 5 {
			t.Errorf("stats %+v", st)
		}
	})
}

// A change of thresholds is no result: what is too little for the new ones leaves
// the verdict as it was, and counts towards them.
func TestVerdictOutlivesThresholds(t *testing.T) {
	for _, c := range []struct {
		name     string
		results  []error
		old, new Thresholds
		want     lbcore.Health
		after    int // further results like the last until the verdict is another
	}{
		{"a blip", []error{nil, errDown}, Thresholds{Healthy: 2, Unhealthy: 3}, Thresholds{Healthy: 2, Unhealthy: 5}, lbcore.HealthHealthy, 4},
		{"a pass between failures", []error{errDown, nil}, Thresholds{Healthy: 3, Unhealthy: 3}, Thresholds{Healthy: 4, Unhealthy: 3}, lbcore.HealthUnhealthy, 3},
		{"enough for the new ones", []error{nil, errDown, errDown}, Thresholds{Unhealthy: 5}, Thresholds{Unhealthy: 2}, lbcore.HealthUnhealthy, -1},
		{"unknown", []error{errDown}, Thresholds{Unhealthy: 3, InitialHealthy: true}, Thresholds{Unhealthy: 4, InitialHealthy: true}, lbcore.HealthUnknown, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := run(t, Config{})
				p := turns(c.results...)
				old := s.Acquire(key(1), p, &Ask{View: "web", Cadence: every(time.Second), Thresholds: c.old})
				// Another view, of another mind, has no say.
				other := s.Acquire(key(1), p, &Ask{View: "other", Cadence: every(time.Second), Thresholds: Thresholds{Healthy: 1, Unhealthy: 1}})
				pass(time.Duration(len(c.results))*time.Second - time.Second/2)
				since := old.Status().Since
				r := s.Acquire(key(1), p, &Ask{View: "web", Cadence: every(time.Second), Thresholds: c.new})
				was := old.State().Load()
				old.Release()
				wantState(t, r, c.want)
				if st := r.Status(); was == c.want && !st.Since.Equal(since) {
					t.Errorf("since %s, want %s as before", st.Since, since)
				}
				for i := range c.after {
					wantState(t, r, c.want)
					pass(time.Second)
					if i == c.after-1 {
						wantState(t, r, other.State().Load())
					}
				}
			})
		})
	}
}

// Sharers with different timeouts judge each probe by their own, whoever came
// first, and the duration of what they see is that of one probe.
func TestEachIsJudgedByItsOwnTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		takes := cell[time.Duration]{v: 300 * time.Millisecond}
		var fail cell[error]
		p := newScript(func(ctx context.Context, _ lbcore.Addr) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(takes.get()):
				return fail.get()
			}
		})
		var text bytes.Buffer
		s := run(t, Config{Log: slog.New(slog.NewTextHandler(&text, nil))})
		three := Thresholds{Healthy: 1, Unhealthy: 3}
		lenient := s.Acquire(key(1), p, &Ask{View: "lenient", Cadence: Cadence{Interval: 10 * time.Second, Timeout: 5 * time.Second}, Thresholds: three})
		pass(15 * time.Second)
		strict := s.Acquire(key(1), p, &Ask{View: "strict", Cadence: Cadence{Interval: time.Second, Timeout: 100 * time.Millisecond}, Thresholds: three, AlwaysLogFailures: true})
		wantState(t, strict, lbcore.HealthUnhealthy) // the last took longer
		pass(15500 * time.Millisecond)
		wantState(t, lenient, lbcore.HealthHealthy)
		wantState(t, strict, lbcore.HealthUnhealthy)
		if st := strict.Status(); st.LastError != "took 300ms: timed out" || st.Passing || st.Streak < 10 {
			t.Errorf("status %+v", st)
		}
		if st := lenient.Status(); st.LastError != "" || !st.Passing || st.Cadence.Timeout != 5*time.Second {
			t.Errorf("status %+v", st)
		}
		if k := s.Keys()[0]; k.Status.State != lbcore.HealthUnknown || !k.Status.Passing ||
			k.Views[0].LastError != "" || k.Views[1].LastError != "took 300ms: timed out" {
			t.Errorf("key %+v", k)
		}
		if n := strings.Count(text.String(), `msg="probe failed" endpoint=10.0.0.1:80 check=script err="took 300ms: timed out"`); n < 10 {
			t.Errorf("%d failures are logged:\n%s", n, &text)
		}
		if k := s.Stats().Kinds[0]; k.Failed+k.TimedOut != 0 {
			t.Errorf("stats %+v", k)
		}

		takes.set(50 * time.Millisecond)
		pass(2 * time.Second)
		wantState(t, strict, lbcore.HealthHealthy)
		fail.set(&ImmediateError{errDown})
		takes.set(200 * time.Millisecond) // for one a failure at once, for the other one of three
		pass(time.Second)
		wantState(t, lenient, lbcore.HealthUnhealthy)
		wantState(t, strict, lbcore.HealthHealthy)
		fail.set(nil)
		takes.set(time.Hour)
		pass(20 * time.Second)
		wantState(t, strict, lbcore.HealthUnhealthy)
		wantState(t, lenient, lbcore.HealthUnhealthy)

		// With the longest gone, the next is what probes run to. What was cut short by
		// it says nothing to one who came later and waits longer.
		lenient.Release()
		pass(10 * time.Second)
		late := s.Acquire(key(1), p, &Ask{View: "late", Cadence: Cadence{Interval: 10 * time.Second, Timeout: 4 * time.Second}, Thresholds: three})
		wantState(t, late, lbcore.HealthUnknown)
		takes.set(3 * time.Second)
		pass(10 * time.Second)
		wantState(t, late, lbcore.HealthHealthy)
		wantState(t, strict, lbcore.HealthUnhealthy)
		if p.overlap {
			t.Error("two probes at a time")
		}
	})
}

func TestOwnKeysAreProbedAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newScript(nil)
		s := run(t, Config{})
		mine := key(1)
		mine.Owner = "web"
		a := s.Acquire(key(1), p, &Ask{View: "a", Cadence: every(10 * time.Second)})
		b := s.Acquire(mine, p, &Ask{View: "web", Cadence: every(10 * time.Second)})
		c := s.Acquire(mine, p, &Ask{View: "web", Cadence: every(10 * time.Second)})
		pass(time.Second)
		if len(p.at(addr(1))) != 2 || a.Status().Sharers != 1 || b.Status().Sharers != 2 || c.State() != b.State() {
			t.Errorf("%d probes, status %+v, %+v", len(p.at(addr(1))), a.Status(), b.Status())
		}
	})
}

func TestKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newScript(func(_ context.Context, a lbcore.Addr) error {
			if a == addr(2) {
				return errDown
			}
			return nil
		})
		s := run(t, Config{})
		begin := time.Now()
		s.Acquire(key(2), p, &Ask{View: "b", Cadence: every(9 * time.Second)})
		s.Acquire(key(2), p, &Ask{View: "a", Cadence: every(5 * time.Second), Thresholds: Thresholds{Unhealthy: 3, InitialHealthy: true}})
		s.Acquire(key(1), p, &Ask{View: "b", Cadence: every(time.Hour)})
		s.Acquire(key(3), p, &Ask{View: "b", Cadence: every(time.Hour)}).Release()
		pass(2 * time.Second)
		if st := s.Stats(); st.Views != 2 || st.Targets != 2 || st.Refs != 3 {
			t.Errorf("stats %+v", st)
		}
		keys := s.Keys()
		if len(keys) != 2 || keys[0].Addr != addr(1) || keys[1].Addr != addr(2) {
			t.Fatalf("keys %+v", keys)
		}
		k := keys[1]
		if st := k.Status; st.Kind != "script" || st.Probe != "as the test says" || st.LastError != "down" || st.Interval != 5*time.Second ||
			!st.NextProbe.Equal(begin.Add(5*time.Second)) || st.Sharers != 2 || st.Passing || st.Streak != 1 {
			t.Errorf("key is %+v", st)
		}
		if len(k.Views) != 2 || k.Views[0].View != "a" || k.Views[0].State != lbcore.HealthUnknown ||
			k.Views[1].View != "b" || k.Views[1].State != lbcore.HealthUnhealthy || k.Views[1].Cadence.Interval != 9*time.Second {
			t.Errorf("views are %+v", k.Views)
		}
	})
}

func TestAlwaysLogFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		s := run(t, Config{Log: slog.New(slog.NewTextHandler(&text, nil))})
		r := s.Acquire(key(1), turns(errDown), &Ask{Cadence: every(time.Second), AlwaysLogFailures: true})
		s.Acquire(key(1), turns(errDown), &Ask{Cadence: every(time.Second)})
		pass(2500 * time.Millisecond)
		r.Release()
		pass(5 * time.Second)
		if n := strings.Count(text.String(), `msg="probe failed" endpoint=10.0.0.1:80 check=script err=down`); n != 3 {
			t.Errorf("%d failures are logged, want 3:\n%s", n, &text)
		}
	})
}

// The number of workers is enough for all to time out at once, and to start at
// the pace of a burst.
func TestWorkersFollowTheTargets(t *testing.T) {
	s := NewService(Config{})
	p := newScript(nil)
	want := func(n int) {
		t.Helper()
		if got := s.Stats().Workers; got != n {
			t.Errorf("%d workers, want %d", got, n)
		}
	}
	var refs []*Ref
	for i := range 1000 {
		refs = append(refs, s.Acquire(key(i), p, &Ask{Cadence: Cadence{Interval: 10 * time.Millisecond, Timeout: 10 * time.Millisecond}}))
	}
	want(1001)
	long := s.Acquire(key(5000), p, &Ask{Cadence: Cadence{Interval: 10 * time.Second, Timeout: 2 * time.Second}})
	want(4000)
	long.Release()
	edge := s.Acquire(key(1), p, &Ask{Cadence: Cadence{Interval: time.Hour, UnhealthyInterval: time.Millisecond, Timeout: time.Second}})
	want(2000)
	edge.Release()
	want(1001)
	for _, r := range refs {
		r.Release()
	}
	if len(s.views) != 0 {
		t.Errorf("views %v without targets", s.views)
	}
	if s.loads.share != 0 || len(s.loads.timeouts) != 0 {
		t.Errorf("without targets the loads are %+v", s.loads)
	}
	s = NewService(Config{MaxWorkers: 300})
	s.Acquire(key(1), p, &Ask{Cadence: every(time.Second)})
	want(300)
	if got := NewService(Config{Workers: 7, MaxWorkers: 5}).Stats().Workers; got != 7 {
		t.Errorf("%d workers, want 7", got)
	}
}

// All 3,000 time out, each of its own timeout, and none is late.
func TestAllTimeOutInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newScript(func(ctx context.Context, _ lbcore.Addr) error {
			<-ctx.Done()
			return ctx.Err()
		})
		s := run(t, Config{})
		for i := range 3000 {
			s.Acquire(key(i), p, &Ask{Cadence: Cadence{Interval: 4 * time.Second, Timeout: 3900 * time.Millisecond}})
		}
		pass(19 * time.Second)
		if st := s.Stats(); st.Late != 0 || st.InFlight > st.Workers || p.most > 3000 || p.overlap {
			t.Errorf("stats %+v, at most %d in flight, overlap %t", st, p.most, p.overlap)
		}
		for i := range 3000 {
			if n := len(p.at(addr(i))); n < 4 || n > 5 {
				t.Fatalf("target %d was probed %d times in 19 s", i, n)
			}
		}
	})
}

// A process that stood still blames no endpoint for what ran out meanwhile.
func TestTimeoutsOfAPauseDoNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hang atomic.Bool
		p := newScript(func(ctx context.Context, a lbcore.Addr) error {
			if a == addr(1) && hang.Load() {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
		s := run(t, Config{})
		stall := sync.OnceFunc(func() { <-time.After(time.Minute) })
		r := s.Acquire(key(1), p, &Ask{Cadence: every(10 * time.Second)})
		s.Acquire(key(2), p, &Ask{Cadence: every(time.Second)})
		pass(9 * time.Second)
		hang.Store(true)
		pass(2 * time.Second) // its probe is in flight
		s.Acquire(key(3), p, &Ask{Cadence: every(time.Hour), OnChange: stall})
		pass(time.Minute)
		hang.Store(false)
		pass(time.Second)
		wantState(t, r, lbcore.HealthHealthy)
		if st := s.Stats(); st.Kinds[0].Local != 1 || st.Kinds[0].TimedOut != 0 {
			t.Errorf("stats %+v", st)
		}
	})
}

// With few targets too: no timer is due while the process stands still.
func TestTimeoutOfAPauseWithOneTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hang atomic.Bool
		p := newScript(func(ctx context.Context, a lbcore.Addr) error {
			if a == addr(1) && hang.Load() {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
		s := run(t, Config{})
		stall := sync.OnceFunc(func() { <-time.After(2100 * time.Millisecond) })
		r := s.Acquire(key(1), p, &Ask{Cadence: Cadence{Interval: time.Minute, Timeout: 10 * time.Second}, Thresholds: Thresholds{Unhealthy: 1}})
		pass(59 * time.Second)
		hang.Store(true)
		pass(2 * time.Second) // its probe is in flight
		s.Acquire(key(2), p, &Ask{Cadence: every(time.Hour), OnChange: stall})
		pass(9200 * time.Millisecond)
		hang.Store(false)
		wantState(t, r, lbcore.HealthHealthy)
		if st := s.Stats(); st.Kinds[0].Local != 1 || st.Kinds[0].TimedOut != 0 {
			t.Errorf("stats %+v", st)
		}
		pass(time.Minute)
		hang.Store(true)
		pass(2 * time.Minute) // without a pause it counts
		wantState(t, r, lbcore.HealthUnhealthy)
	})
}

// TestManyViewsOneStream is the promise: 200 clusters with intervals of their
// own over 500 backends that overlap make as many probes as the fastest of each
// backend alone, exactly, and no two of one key at a time.
func TestManyViewsOneStream(t *testing.T) {
	const clusters, backends, each = 200, 500, 50
	synctest.Test(t, func(t *testing.T) {
		p := newScript(nil)
		s := run(t, Config{})
		intervals := []time.Duration{5 * time.Second, 6 * time.Second, 7500 * time.Millisecond, 10 * time.Second, 15 * time.Second}
		fastest := make(map[int]time.Duration)
		refs := 0
		for c := range clusters {
			d := intervals[c%len(intervals)]
			for i := range each {
				b := (c*7 + i*i*3 + i) % backends
				if f, ok := fastest[b]; !ok || d < f {
					fastest[b] = d
				}
				s.Acquire(key(b), p, &Ask{View: fmt.Sprint(c), Cadence: Cadence{Interval: d, Timeout: time.Second}, Thresholds: Thresholds{Healthy: uint32(c % 3), Unhealthy: uint32(c % 4)}})
				refs++
			}
		}
		const total = 50 * 15 * time.Second // 50 intervals of the slowest
		pass(total)
		st := s.Stats()
		if st.Targets != len(fastest) || st.Refs != refs || refs != clusters*each || st.Late != 0 {
			t.Errorf("stats %+v with %d backends", st, len(fastest))
		}
		if p.overlap {
			t.Error("two probes of one key at a time")
		}
		for b, d := range fastest {
			got := p.at(addr(b))
			// The first start is the burst's, then one each interval.
			if want := int((total-got[0])/d) + 1; len(got) != want {
				t.Fatalf("backend %d was probed %d times, want %d at %s", b, len(got), want, d)
			}
			for i := range got[1:] {
				if got[i+1]-got[i] != d {
					t.Fatalf("backend %d: probes %s apart, want %s", b, got[i+1]-got[i], d)
				}
			}
		}
	})
}

// TestIntervalsAgainstModel compares when the probes of a key start, exactly, with
// a model that looks at the whole history of results for each Ref: its verdict,
// whether a change is pending, and which interval follows, in the words of the
// documentation. The stream takes the shortest.
func TestIntervalsAgainstModel(t *testing.T) {
	type sharer struct {
		C       Cadence
		T       Thresholds
		Traffic bool
	}
	d := rapid.Custom(func(t *rapid.T) time.Duration { return time.Duration(rapid.IntRange(1, 20).Draw(t, "s")) * time.Second })
	maybe := rapid.Custom(func(t *rapid.T) time.Duration {
		return time.Duration(rapid.IntRange(0, 1).Draw(t, "set")) * d.Draw(t, "d")
	})
	gen := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) sharer {
		return sharer{
			Cadence{
				Interval: d.Draw(t, "interval"), Timeout: time.Millisecond, UnhealthyInterval: maybe.Draw(t, "unhealthy"),
				UnhealthyEdgeInterval: maybe.Draw(t, "unhealthy edge"), HealthyEdgeInterval: maybe.Draw(t, "healthy edge"),
				NoTrafficInterval: maybe.Draw(t, "no traffic"), NoTrafficHealthyInterval: maybe.Draw(t, "no traffic healthy"),
			},
			Thresholds{Healthy: rapid.Uint32Range(0, 3).Draw(t, "healthy"), Unhealthy: rapid.Uint32Range(0, 3).Draw(t, "unhealthy")},
			rapid.Bool().Draw(t, "traffic"),
		}
	}), 1, 3)
	either := func(ds ...time.Duration) time.Duration {
		for _, d := range ds {
			if d != 0 {
				return d
			}
		}
		return 0
	}
	rapid.Check(t, func(rt *rapid.T) {
		sharers := gen.Draw(rt, "sharers")
		passes := rapid.SliceOfN(rapid.Bool(), 1, 20).Draw(rt, "passes")
		results := make([]error, len(passes))
		for i, pass := range passes {
			if !pass {
				results[i] = errDown
			}
		}
		want := []time.Duration{0}
		for i, pass := range passes[:len(passes)-1] {
			shortest := time.Hour
			for _, s := range sharers {
				var history []observation
				for _, p := range passes[:i+1] {
					history = append(history, observation{pass: p})
				}
				good := modelState(s.T, history) == lbcore.HealthHealthy
				next := s.C.Interval
				switch {
				case !s.Traffic && s.C.NoTrafficInterval > 0 && pass && good:
					next = either(s.C.NoTrafficHealthyInterval, s.C.NoTrafficInterval)
				case !s.Traffic && s.C.NoTrafficInterval > 0:
					next = s.C.NoTrafficInterval
				case !pass && good:
					next = either(s.C.UnhealthyEdgeInterval, s.C.UnhealthyInterval, next)
				case !pass:
					next = either(s.C.UnhealthyInterval, next)
				case !good:
					next = either(s.C.HealthyEdgeInterval, next)
				}
				shortest = min(shortest, next)
			}
			want = append(want, want[i]+shortest)
		}
		var got []time.Duration
		synctest.Test(t, func(t *testing.T) {
			p := turns(results...)
			s := run(t, Config{})
			for _, sh := range sharers {
				traffic := new(atomic.Bool)
				traffic.Store(sh.Traffic)
				s.Acquire(key(1), p, &Ask{Cadence: sh.C, Thresholds: sh.T, Traffic: traffic})
			}
			pass(want[len(want)-1] + time.Millisecond)
			got = p.at(addr(1))
		})
		if fmt.Sprint(got) != fmt.Sprint(want) {
			rt.Fatalf("probed at %v, want %v", got, want)
		}
	})
}
