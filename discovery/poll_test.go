package discovery_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse.internal/discovery"
	"gatehouse.internal/discovery/discoverytest"
	"gatehouse.internal/lbcore"
)

// answers is a scripted Lookup: the nth call gets the nth answer, later ones
// the last.
type answers struct {
	start time.Time
	at    []time.Duration // of the calls
	list  []answer
}

type answer struct {
	set lbcore.Set
	ttl time.Duration
	err error
}

func (a *answers) lookup(context.Context) (lbcore.Set, time.Duration, error) {
	n := min(len(a.at), len(a.list)-1)
	a.at = append(a.at, time.Since(a.start))
	return a.list[n].set, a.list[n].ttl, a.list[n].err
}

// watchFor runs src for d of the bubble's time.
func watchFor(t *testing.T, src discovery.Source, d time.Duration) *discoverytest.Recorder {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	r := new(discoverytest.Recorder)
	if err := src.Watch(ctx, r); err != context.DeadlineExceeded {
		t.Errorf("Watch returned %v, want %v", err, context.DeadlineExceeded)
	}
	return r
}

func half() float64 { return 0.5 } // no jitter

func TestPollTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &answers{start: time.Now(), list: []answer{
			{set: setOf(1), ttl: 20 * time.Second},
			{set: setOf(2), ttl: 0},              // floor: 5 s
			{set: setOf(3), ttl: 24 * time.Hour}, // cap: 60 s
		}}
		r := watchFor(t, discovery.Poll{Lookup: a.lookup, MinTTL: 5 * time.Second, MaxTTL: time.Minute}, 90*time.Second)
		if want := []time.Duration{0, 20 * time.Second, 25 * time.Second, 85 * time.Second}; !slices.Equal(a.at, want) {
			t.Errorf("looked up at %v, want %v", a.at, want)
		}
		r.WaitSet(t, 0, discoverytest.Endpoint(3).Addr)
	})
}

func TestPollBackoff(t *testing.T) {
	boom := answer{err: errors.New("boom")}
	for _, c := range []struct {
		name string
		rand func() float64
		want []time.Duration
	}{
		{"without jitter", half, []time.Duration{0, 1000, 3000, 7000, 12000, 17000}},
		{"least", func() float64 { return 0 }, []time.Duration{0, 800, 2400, 5600, 9600, 13600, 17600}},
		{"most", func() float64 { return 1 }, []time.Duration{0, 1200, 3600, 8400, 14400}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &answers{start: time.Now(), list: []answer{boom}}
				r := watchFor(t, discovery.Poll{Lookup: a.lookup, MaxBackoff: 5 * time.Second, Rand: c.rand}, 18*time.Second)
				for i := range c.want {
					c.want[i] *= time.Millisecond
				}
				if !slices.Equal(a.at, c.want) {
					t.Errorf("looked up at %v, want %v", a.at, c.want)
				}
				if n := len(r.Reports()); n != len(c.want) {
					t.Errorf("%d reports of %d lookups", n, len(c.want))
				}
			})
		})
	}
}

// After a success the back-off begins anew.
func TestPollBackoffResets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		boom := answer{err: errors.New("boom")}
		a := &answers{start: time.Now(), list: []answer{boom, boom, {set: setOf(1), ttl: time.Second}, boom, boom}}
		watchFor(t, discovery.Poll{Lookup: a.lookup, Rand: half}, 6*time.Second)
		want := []time.Duration{0, time.Second, 3 * time.Second, 4 * time.Second, 5 * time.Second}
		if !slices.Equal(a.at, want) {
			t.Errorf("looked up at %v, want %v", a.at, want)
		}
	})
}

func TestPollTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		hang := func(ctx context.Context) (lbcore.Set, time.Duration, error) {
			<-ctx.Done()
			return lbcore.Set{}, 0, ctx.Err()
		}
		r := new(discoverytest.Recorder)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- discovery.Poll{Lookup: hang, Timeout: 3 * time.Second}.Watch(ctx, r) }()
		r.WaitFail(t, 0, "no answer within 3s: context deadline exceeded")
		if d := time.Since(start); d != 3*time.Second {
			t.Errorf("failed after %v, want 3s", d)
		}
		// In the second lookup the caller gives up: that is no failure.
		<-time.After(2 * time.Second)
		before := len(r.Reports())
		cancel()
		if err := <-done; err != context.Canceled {
			t.Errorf("Watch returned %v, want %v", err, context.Canceled)
		}
		if n := len(r.Reports()); n != before {
			t.Errorf("the end of the context was reported:\n%s", r)
		}
	})
}

func TestPollWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &answers{start: time.Now(), list: []answer{{err: errors.New("boom")}, {set: setOf(1), ttl: time.Hour}, {set: setOf(2), ttl: time.Hour}}}
		wake := make(chan struct{}, 1)
		time.AfterFunc(300*time.Millisecond, func() { wake <- struct{}{} })
		time.AfterFunc(10*time.Second, func() { wake <- struct{}{} })
		watchFor(t, discovery.Poll{Lookup: a.lookup, Wake: wake}, time.Minute)
		if want := []time.Duration{0, 300 * time.Millisecond, 10 * time.Second}; !slices.Equal(a.at, want) {
			t.Errorf("looked up at %v, want %v", a.at, want)
		}
	})
}

func TestPollRefusesBadSettings(t *testing.T) {
	lookup := (&answers{list: []answer{{}}}).lookup
	for name, p := range map[string]discovery.Poll{
		"no lookup":          {},
		"negative timeout":   {Lookup: lookup, Timeout: -1},
		"negative ttl":       {Lookup: lookup, MinTTL: -1},
		"ttl upside down":    {Lookup: lookup, MinTTL: 2, MaxTTL: 1},
		"negative back-off":  {Lookup: lookup, MinBackoff: -1},
		"back-off backwards": {Lookup: lookup, MinBackoff: 2, MaxBackoff: 1},
	} {
		r := new(discoverytest.Recorder)
		if err := p.Watch(t.Context(), r); err == nil || len(r.Reports()) > 0 {
			t.Errorf("%s: got error %v and %d reports, want an error and none", name, err, len(r.Reports()))
		}
	}
	// A floor above the default cap, and a back-off likewise, are no mistake.
	synctest.Test(t, func(t *testing.T) {
		a := &answers{start: time.Now(), list: []answer{{err: errors.New("boom")}, {ttl: time.Second}}}
		watchFor(t, discovery.Poll{Lookup: a.lookup, MinTTL: 2 * time.Hour, MinBackoff: time.Minute, Rand: half}, 3*time.Hour)
		if want := []time.Duration{0, time.Minute, 2*time.Hour + time.Minute}; !slices.Equal(a.at, want) {
			t.Errorf("looked up at %v, want %v", a.at, want)
		}
	})
}
