package healthsvc

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse.internal/lbcore"
)

// The verdicts of a run count in the next one until a probe says otherwise.
func TestVerdictsOfBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := errors.New("down")
		bad := map[lbcore.Addr]error{addr(2): down, addr(3): ErrDegraded}
		gate := make(chan struct{})
		close(gate)
		p := newScript(func(_ context.Context, a lbcore.Addr) error { <-gate; return bad[a] })
		ask := &Ask{View: "web", Cadence: every(10 * time.Second), Thresholds: Thresholds{Healthy: 3, Unhealthy: 3}}
		s := run(t, Config{})
		var refs []*Ref
		for n := range 4 {
			refs = append(refs, s.Acquire(key(n+1), p, ask))
		}
		pass(time.Minute)
		kept, err := s.Export()
		if err != nil {
			t.Fatal(err)
		}
		if again, _ := s.Export(); &again[0] != &kept[0] {
			t.Error("the same verdicts are exported twice")
		}
		for _, r := range refs {
			r.Release()
		}
		if none, err := s.Export(); err != nil || string(none) != "[]" {
			t.Errorf("without checks: %s, %v", none, err)
		}

		// The next run: nothing has been probed yet.
		gate = make(chan struct{})
		s = run(t, Config{})
		if n, err := s.Import(kept, time.Now(), time.Hour); n != 4 || err != nil {
			t.Fatalf("%d verdicts, %v", n, err)
		}
		refs = nil
		for n := range 5 {
			refs = append(refs, s.Acquire(key(n+1), p, ask))
		}
		other := *ask
		other.View, other.Thresholds.Healthy = "api", 2
		refs = append(refs, s.Acquire(key(1), p, &other)) // another view, by other thresholds, knows nothing
		for i, want := range []lbcore.Health{
			lbcore.HealthHealthy, lbcore.HealthUnhealthy, lbcore.HealthDegraded, lbcore.HealthHealthy, lbcore.HealthUnknown, lbcore.HealthUnknown,
		} {
			wantState(t, refs[i], want)
			if st := refs[i].Status(); st.Restored != (want != lbcore.HealthUnknown) || !st.LastProbe.IsZero() {
				t.Errorf("%d: status %+v", i, st)
			}
		}
		// They go on as old as they are: a process that is started again and again
		// before it has probed anything must not renew them.
		again, err := s.Export()
		if n := strings.Count(string(again), `"confirmed"`); n != 4 || err != nil {
			t.Errorf("before the first probes %d verdicts are old, %v: %s", n, err, again)
		}
		bad[addr(1)] = down // thresholds count as if it were the same run
		delete(bad, addr(2))
		delete(bad, addr(3))
		close(gate)
		for n, want := range [][4]lbcore.Health{
			{lbcore.HealthHealthy, lbcore.HealthUnhealthy, lbcore.HealthHealthy, lbcore.HealthHealthy},
			{lbcore.HealthHealthy, lbcore.HealthUnhealthy, lbcore.HealthHealthy, lbcore.HealthHealthy},
			{lbcore.HealthUnhealthy, lbcore.HealthHealthy, lbcore.HealthHealthy, lbcore.HealthHealthy},
		} {
			pass(time.Second)
			for i, want := range want {
				wantState(t, refs[i], want)
				if old := refs[i].Status().Restored; old != (i < 2 && n < 2) {
					t.Errorf("%d: after %d results: that its verdict is of before: %t", i, n+1, old)
				}
			}
			if n == 0 { // results against it don't renew it
				if b, err := s.Export(); strings.Count(string(b), `"confirmed"`) != 2 || err != nil {
					t.Errorf("after a result against two of them: %v: %s", err, b)
				}
			}
			pass(9 * time.Second)
		}
		for age, want := range map[time.Duration]int{time.Hour: 4, time.Minute: 0} {
			time.Sleep(2 * time.Minute)
			if n, err := NewService(Config{}).Import(again, time.Now(), age); n != want || err != nil {
				t.Errorf("%d are younger than %s, %v, want %d", n, age, err, want)
			}
		}
		for _, r := range refs {
			r.Release()
		}
	})
}

// Anybody may export while verdicts change.
func TestExportByMany(t *testing.T) {
	s := NewService(Config{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for range 200 {
				if _, err := s.Export(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 200 {
		s.Acquire(key(1), newScript(nil), &Ask{Cadence: every(time.Second)}).Release()
	}
	wg.Wait()
}

// A verdict that a probe has confirmed is as old as the export, also where nothing else
// has changed.
func TestConfirmedVerdictsAreNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ask := &Ask{View: "web", Cadence: every(10 * time.Second)}
		s := run(t, Config{})
		r := s.Acquire(key(1), newScript(nil), ask)
		pass(time.Minute)
		kept, err := s.Export()
		if err != nil {
			t.Fatal(err)
		}
		r.Release()
		s = run(t, Config{})
		if _, err := s.Import(kept, time.Now(), time.Hour); err != nil {
			t.Fatal(err)
		}
		r = s.Acquire(key(1), newScript(nil), ask)
		for _, want := range []int{1, 0} {
			if b, err := s.Export(); strings.Count(string(b), `"confirmed"`) != want || err != nil {
				t.Errorf("want %d verdicts of before, %v: %s", want, err, b)
			}
			pass(time.Second)
		}
		r.Release()
	})
}

// Who lets unknown endpoints take connections does not by that let one that was
// unhealthy.
func TestUnhealthyOfBeforeStaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newScript(func(context.Context, lbcore.Addr) error { return errors.New("down") })
		ask := &Ask{View: "web", Cadence: every(10 * time.Second), Thresholds: Thresholds{Unhealthy: 3, InitialHealthy: true}}
		s := run(t, Config{})
		r := s.Acquire(key(1), p, ask)
		pass(time.Minute)
		kept, err := s.Export()
		if err != nil {
			t.Fatal(err)
		}
		r.Release()
		s = run(t, Config{})
		if _, err := s.Import(kept, time.Now(), time.Hour); err != nil {
			t.Fatal(err)
		}
		r = s.Acquire(key(1), p, ask)
		for range 10 {
			wantState(t, r, lbcore.HealthUnhealthy)
			pass(5 * time.Second)
		}
		r.Release()
	})
}

// What this run has seen goes before what an earlier one knew, and a verdict by other
// thresholds is another.
func TestResultsGoBeforeVerdictsOfBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var err error
		p := newScript(func(context.Context, lbcore.Addr) error { return err })
		lenient := &Ask{View: "web", Cadence: every(10 * time.Second), Thresholds: Thresholds{Unhealthy: 3, InitialHealthy: true}}
		s := run(t, Config{})
		r := s.Acquire(key(1), p, lenient)
		pass(time.Second)
		wantState(t, r, lbcore.HealthHealthy)
		kept, xerr := s.Export()
		if xerr != nil {
			t.Fatal(xerr)
		}
		r.Release()

		err = errors.New("down")
		s = run(t, Config{})
		if _, err := s.Import(kept, time.Now(), time.Hour); err != nil {
			t.Fatal(err)
		}
		stricter := *lenient
		stricter.View, stricter.Thresholds.Unhealthy = "api", 2
		other := s.Acquire(key(1), p, &stricter)
		wantState(t, other, lbcore.HealthUnknown)
		pass(time.Second) // one failure, which is too few for either
		r = s.Acquire(key(1), p, lenient)
		wantState(t, r, lbcore.HealthUnknown)
		other.Release()
		r.Release()
	})
}

func TestForget(t *testing.T) {
	s := NewService(Config{})
	for text, want := range map[string]string{
		"": "JSON", `{}`: "unmarshal", `null`: "no list of verdicts", `[{"address":"10.0.0.1:80","state":"fine"}]`: `state "fine"`, `[{"address":"x","state":"unknown"}]`: `state "unknown"`,
	} {
		if n, err := s.Import([]byte(text), time.Now(), time.Hour); n != 0 || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %d, %v, want an error with %q", text, n, err, want)
		}
	}
	if n, err := s.Import([]byte(`[{"address":"10.0.0.1:80","state":"healthy"}]`), time.Now(), time.Hour); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	s.Forget()
	if s.imported != nil {
		t.Error("it is remembered")
	}
}

// What a check sends may be secret, and is not exported.
func TestExportHasNoSecrets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := run(t, Config{})
		k := Key{Addr: addr(1), Spec: "authorization: sesame"}
		r := s.Acquire(k, newScript(nil), &Ask{Cadence: every(time.Second)})
		pass(time.Second)
		b, err := s.Export()
		if err != nil || !strings.Contains(string(b), "healthy") || strings.Contains(string(b), "sesame") {
			t.Errorf("%s, %v", b, err)
		}
		r.Release()
	})
}

func FuzzImport(f *testing.F) {
	f.Add([]byte(`[{"address":"10.0.0.1:80","spec":"00","healthy_threshold":1,"timeout":1000,"state":"healthy"}]`))
	f.Add([]byte(`[{"state":"degraded"},{"state":"unhealthy","owner":"x"}]`))
	f.Add([]byte(`[{"state":1}]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := NewService(Config{})
		n, err := s.Import(b, time.Now(), time.Hour)
		if err != nil && (n != 0 || s.imported != nil) {
			t.Fatalf("%d verdicts of what is refused: %v", n, err)
		}
	})
}
