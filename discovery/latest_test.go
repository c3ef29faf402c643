package discovery_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"gatehouse.internal/discovery"
	"gatehouse.internal/discovery/discoverytest"
	"gatehouse.internal/lbcore"
)

func setOf(ns ...byte) lbcore.Set {
	var eps []lbcore.Endpoint
	for _, n := range ns {
		eps = append(eps, discoverytest.Endpoint(n))
	}
	return lbcore.MustSet(eps...)
}

// woken takes the wake of l, if there is one.
func woken(l *discovery.Latest) bool {
	select {
	case <-l.Changed():
		return true
	default:
		return false
	}
}

func TestLatestPhases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		l := discovery.NewLatest()
		boom := errors.New("boom")
		steps := []struct {
			name  string
			do    func()
			text  string
			wakes bool
			since time.Duration
		}{
			{"nothing", func() {}, "unknown", false, 0},
			{"fail before any set", func() { l.Fail(boom) }, "failing: boom", true, 2 * time.Second},
			{"fail again alike", func() { l.Fail(boom) }, "failing: boom", false, 2 * time.Second},
			{"fail otherwise", func() { l.Fail(errors.New("bang")) }, "failing: bang", true, 2 * time.Second},
			{"first set", func() { l.Replace(setOf(1)) }, "fresh", true, 5 * time.Second},
			{"equal set", func() { l.Replace(setOf(1)) }, "fresh", false, 5 * time.Second},
			{"other set", func() { l.Replace(setOf(1, 2)) }, "fresh", true, 5 * time.Second},
			{"fail", func() { l.Fail(boom) }, "stale since 2000-01-01T00:00:08Z: boom", true, 8 * time.Second},
			{"fail for longer", func() { l.Fail(boom) }, "stale since 2000-01-01T00:00:08Z: boom", false, 8 * time.Second},
			{"equal set clears", func() { l.Replace(setOf(1, 2)) }, "fresh", true, 10 * time.Second},
			{"empty is a fact", func() { l.Replace(lbcore.Set{}) }, "fresh", true, 10 * time.Second},
			{"no reason", func() { l.Fail(nil) }, "stale since 2000-01-01T00:00:12Z: the source failed without a reason", true, 12 * time.Second},
		}
		for _, s := range steps {
			time.AfterFunc(time.Second, s.do) // one second a step
			<-time.After(time.Second)
			synctest.Wait()
			st := l.State()
			if st.String() != s.text || st.Since.Sub(start) != s.since {
				t.Errorf("%s: got %q since %v, want %q since %v", s.name, st, st.Since.Sub(start), s.text, s.since)
			}
			if got := woken(l); got != s.wakes {
				t.Errorf("%s: woken %v, want %v", s.name, got, s.wakes)
			}
		}
		if st := l.State(); st.Updates != 3 || st.Failures != 6 || !st.Known || st.Set.Len() != 0 {
			t.Errorf("in the end: got %d updates, %d failures, known %v, %d endpoints; want 3, 6, true, 0",
				st.Updates, st.Failures, st.Known, st.Set.Len())
		}
	})
}

func TestLatestKeepsTheSetWhenItFails(t *testing.T) {
	l := discovery.NewLatest()
	l.Replace(setOf(1, 2))
	l.Fail(errors.New("boom"))
	if st := l.State(); !st.Known || !st.Set.Equal(setOf(1, 2)) || st.Phase() != discovery.PhaseStale {
		t.Errorf("got %v with %d endpoints, want stale with 2", st, st.Set.Len())
	}
}

func TestLatestWakesOnce(t *testing.T) {
	l := discovery.NewLatest()
	for n := range 1000 {
		l.Replace(setOf(byte(n%250+4), byte(n/250)))
	}
	want := setOf(byte(999%250+4), byte(999/250))
	if !woken(l) || woken(l) {
		t.Error("1,000 reports to a sleeping reader: want exactly one wake")
	}
	if st := l.State(); !st.Set.Equal(want) {
		t.Errorf("got %v, want the newest %v", discoverytest.Addrs(st.Set), discoverytest.Addrs(want))
	}
}

// A reader that follows the wakes always ends at the last report.
func TestLatestConcurrent(t *testing.T) {
	l := discovery.NewLatest()
	var wg sync.WaitGroup
	for w := range byte(4) {
		wg.Go(func() {
			for n := range 500 {
				if n%7 == 0 {
					l.Fail(fmt.Errorf("writer %d", w))
				}
				l.Replace(setOf(w, byte(n)|0x80))
			}
		})
	}
	stop := make(chan struct{})
	seen := make(chan discovery.State)
	go func() {
		var st discovery.State
		for {
			select {
			case <-l.Changed():
				st = l.State()
			case <-stop:
				if woken(l) {
					st = l.State()
				}
				seen <- st
				return
			}
		}
	}()
	wg.Wait()
	l.Replace(setOf(42))
	close(stop)
	if st := <-seen; !st.Set.Equal(setOf(42)) || st.Err != nil {
		t.Errorf("got %v %v, want [42]", st, discoverytest.Addrs(st.Set))
	}
}

// Latest against the obvious model, with a reader that looks now and then.
func TestLatestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := discovery.NewLatest()
		var known, news bool
		var set lbcore.Set
		var failure string
		t.Repeat(map[string]func(*rapid.T){
			"replace": func(t *rapid.T) {
				s := setOf(rapid.SliceOfNDistinct(rapid.ByteMax(2), 0, 2, rapid.ID[byte]).Draw(t, "set")...)
				news = news || !known || failure != "" || !s.Equal(set)
				known, set, failure = true, s, ""
				l.Replace(s)
			},
			"fail": func(t *rapid.T) {
				e := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "err")
				news = news || failure != e
				failure = e
				l.Fail(errors.New(e))
			},
			"read": func(t *rapid.T) {
				if got := woken(l); got != news {
					t.Fatalf("woken: got %v, want %v", got, news)
				}
				news = false
			},
			"": func(t *rapid.T) {
				st := l.State()
				if st.Known != known || !st.Set.Equal(set) || (st.Err == nil) != (failure == "") || (st.Err != nil && st.Err.Error() != failure) {
					t.Fatalf("got %+v, want known %v, %v, error %q", st, known, set, failure)
				}
			},
		})
	})
}
