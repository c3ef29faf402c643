package discovery_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse.internal/discovery"
	"gatehouse.internal/internal/lastgood"
	"gatehouse.internal/lbcore"
)

// scripted is a Source that a test speaks for.
type scripted struct {
	say     chan func(discovery.Sink)
	resumed *lbcore.Set
}

func (s *scripted) Resume(set lbcore.Set) { s.resumed = &set }

func (s *scripted) Watch(ctx context.Context, sink discovery.Sink) error {
	for {
		select {
		case f := <-s.say:
			f(sink)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// life is one run of a process that keeps what a source says.
type life struct {
	*scripted
	latest *discovery.Latest
	end    func()
}

func keeps(t *testing.T, dir, name string) *life {
	t.Helper()
	store, err := lastgood.Open(lastgood.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	l := &life{scripted: &scripted{say: make(chan func(discovery.Sink))}, latest: discovery.NewLatest()}
	ctx, cancel := context.WithCancel(t.Context())
	stored, watched := make(chan error), make(chan error)
	go func() { stored <- store.Run(ctx) }()
	go func() {
		item := store.Item(lastgood.Key{Kind: "endpoints", Name: name})
		defer item.Release()
		watched <- discovery.Keep(ctx, l.scripted, item, true, l.latest)
	}()
	l.end = func() {
		cancel()
		<-watched
		<-stored
		store.Close()
	}
	synctest.Wait()
	return l
}

func (l *life) says(f func(discovery.Sink)) {
	l.say <- f
	synctest.Wait()
}

func restored(st discovery.State) *discovery.RestoredError {
	r, _ := errors.AsType[*discovery.RestoredError](st.Err)
	return r
}

// What a source said last is in force after a restart, as stale, until it says
// something; then that counts, also if it is none.
func TestKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "state")
		one, two := lbcore.MustSet(ep("10.0.0.1:80")), lbcore.MustSet(ep("10.0.0.1:80"), ep("10.0.0.2:80"))

		l := keeps(t, dir, "web")
		if st := l.latest.State(); st.Phase() != discovery.PhaseUnknown || l.resumed != nil {
			t.Errorf("with nothing kept: %s", st)
		}
		l.says(func(s discovery.Sink) { s.Replace(one) })
		time.Sleep(time.Minute)
		l.says(func(s discovery.Sink) { s.Replace(two) })
		time.Sleep(time.Minute)
		at := time.Now()
		l.end()

		time.Sleep(time.Hour)
		l = keeps(t, dir, "web")
		st := l.latest.State()
		if st.Phase() != discovery.PhaseStale || !st.Set.Equal(two) || l.resumed == nil || !l.resumed.Equal(two) {
			t.Fatalf("after the restart: %s with %d endpoints, resumed %v", st, st.Set.Len(), l.resumed)
		}
		if r := restored(st); r == nil || !errors.Is(st.Err, discovery.ErrNoAnswer) || at.Sub(r.Confirmed).Abs() > time.Second || !st.Confirmed.Equal(r.Confirmed) {
			t.Errorf("after the restart: %s, confirmed %s", st, st.Confirmed)
		}
		// It fails: that is why, and the age goes on.
		down := errors.New("down")
		l.says(func(s discovery.Sink) { s.Fail(down) })
		if st := l.latest.State(); restored(st) == nil || !errors.Is(st.Err, down) || !st.Set.Equal(two) {
			t.Errorf("when it fails: %s", st)
		}
		time.Sleep(time.Hour)
		l.end()

		l = keeps(t, dir, "web")
		if r := restored(l.latest.State()); r == nil || at.Sub(r.Confirmed).Abs() > time.Second {
			t.Errorf("after a run without an answer: %s", l.latest.State())
		}
		l.says(func(s discovery.Sink) { s.Replace(lbcore.Set{}) })
		if st := l.latest.State(); st.Phase() != discovery.PhaseFresh || st.Set.Len() != 0 {
			t.Errorf("when it says that there is none: %s with %d endpoints", st, st.Set.Len())
		}
		l.says(func(s discovery.Sink) { s.Fail(down) })
		if st := l.latest.State(); restored(st) != nil || st.Phase() != discovery.PhaseStale {
			t.Errorf("when it fails later: %s", st)
		}
		l.end()

		l = keeps(t, dir, "web")
		if st := l.latest.State(); !st.Known || st.Set.Len() != 0 {
			t.Errorf("an empty set after the restart: %s with %d endpoints", st, st.Set.Len())
		}
		l.end()
		l = keeps(t, dir, "api")
		if st := l.latest.State(); st.Known {
			t.Errorf("another source has %d endpoints", st.Set.Len())
		}
		l.end()
	})
}

// A set that can't be read is set aside.
func TestKeepDamaged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "state")
		store, err := lastgood.Open(lastgood.Config{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- store.Run(ctx) }()
		store.Item(lastgood.Key{Kind: "endpoints", Name: "web"}).Put(func() ([]byte, error) { return []byte(`{"endpoints":[{}]}`), nil })
		time.Sleep(2 * time.Second)
		cancel()
		<-done
		store.Close()
		l := keeps(t, dir, "web")
		if st := l.latest.State(); st.Phase() != discovery.PhaseUnknown {
			t.Errorf("it is %s", st)
		}
		l.end()
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		aside := 0
		for _, e := range entries {
			if strings.Contains(e.Name(), ".damaged-") {
				aside++
			}
		}
		if aside != 1 {
			t.Errorf("%d files are set aside: %v", aside, entries)
		}
	})
}

// Combined sources pass on that they have not answered, and one that has nothing
// from before does not hold up the others.
func TestRestoredCombined(t *testing.T) {
	set := lbcore.MustSet(ep("10.0.0.1:80"))
	before := &scripted{say: make(chan func(discovery.Sink))}
	silent := &scripted{say: make(chan func(discovery.Sink))}
	for name, src := range map[string]discovery.Source{
		"ordered": discovery.Ordered(silent, before), "prioritised": discovery.Prioritised(before, silent),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				before.say, silent.say = make(chan func(discovery.Sink)), make(chan func(discovery.Sink))
				ctx, cancel := context.WithCancel(t.Context())
				latest, done := discovery.NewLatest(), make(chan error)
				go func() { done <- src.Watch(ctx, latest) }()
				at := time.Now().Add(-time.Hour)
				before.say <- func(s discovery.Sink) {
					discovery.ReplaceStale(s, set, &discovery.RestoredError{Confirmed: at, Reason: discovery.ErrNoAnswer})
				}
				synctest.Wait()
				if st := latest.State(); restored(st) == nil || !st.Set.Equal(set) || !st.Confirmed.Equal(at) {
					t.Errorf("%s with %d endpoints, confirmed %s", st, st.Set.Len(), st.Confirmed)
				}
				before.say <- func(s discovery.Sink) { s.Replace(set) }
				synctest.Wait()
				if st := latest.State(); restored(st) != nil {
					t.Errorf("after the answer: %s", st)
				}
				cancel()
				<-done
			})
		})
	}
}

func ep(s string) lbcore.Endpoint {
	a, err := lbcore.ParseAddr(s)
	if err != nil {
		panic(err)
	}
	return lbcore.Endpoint{Addr: a, Weight: 1}
}
