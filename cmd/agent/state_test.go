package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse.internal/discovery"
	"gatehouse.internal/discovery/consul"
	"gatehouse.internal/healthsvc"
	"gatehouse.internal/internal/lastgood"
	"gatehouse.internal/lbcore"
)

// stored runs a store until the function that it returns is called.
func stored(t *testing.T, dir string) (*lastgood.Store, func()) {
	t.Helper()
	s, err := lastgood.Open(lastgood.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	return s, func() {
		cancel()
		<-done
		s.Close()
	}
}

func catalogListener(t *testing.T, service, address string) consul.Listener {
	t.Helper()
	a, err := lbcore.ParseAddr(address)
	if err != nil {
		t.Fatal(err)
	}
	return consul.Listener{Service: service, Address: a}
}

// What the catalog said is there after a restart, as old, until it says something.
func TestListenersOfBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "state")
		list := []consul.Listener{catalogListener(t, "api", "127.0.0.1:80"), catalogListener(t, "web", "[::1]:80")}
		var last consul.Listeners
		life := func() (*catalog, func()) {
			s, end := stored(t, dir)
			last = consul.Listeners{}
			return &catalog{item: s.Item(lastgood.Key{Kind: "listeners"}), said: func(l consul.Listeners) { last = l }}, end
		}
		c, end := life()
		if got := c.restore(); got != nil || last.Known {
			t.Errorf("with nothing kept: %v, %+v", got, last)
		}
		c.say(consul.Listeners{Err: errors.New("down")}) // which says nothing
		c.say(consul.Listeners{Known: true, Listeners: list})
		time.Sleep(time.Minute)
		end()

		time.Sleep(time.Hour)
		c, end = life()
		if got := c.restore(); !slices.Equal(got, list) || !last.Known || !slices.Equal(last.Listeners, list) || restoredAge(last.Err) != "1h0m0s" {
			t.Errorf("after the restart: %v, %+v, age %q", got, last, restoredAge(last.Err))
		}
		c.say(consul.Listeners{Known: true, Listeners: list, Err: errors.New("down")})
		if restoredAge(last.Err) == "" || !strings.Contains(last.Err.Error(), "down") {
			t.Errorf("when it fails: %v", last.Err)
		}
		c.say(consul.Listeners{Known: true, Listeners: list[:1]})
		if last.Err != nil {
			t.Errorf("when it has answered: %v", last.Err)
		}
		c.say(consul.Listeners{Known: true, Listeners: list[:1], Err: errors.New("down")})
		if restoredAge(last.Err) != "" {
			t.Errorf("when it fails later: %v", last.Err)
		}
		end()

		c, end = life()
		if got := c.restore(); !slices.Equal(got, list[:1]) {
			t.Errorf("after the next restart: %v", got)
		}
		end()
	})
}

// What is on disk opens no address but loopback.
func FuzzDecodeListeners(f *testing.F) {
	f.Add([]byte(`[{"service":"web","address":"127.0.0.1:80"}]`))
	f.Add([]byte(`[{"service":"web","address":"0.0.0.0:80"}]`))
	f.Add([]byte(`[{"service":"","address":"127.0.0.1:80"}]`))
	f.Add([]byte(`[{"service":"web","address":"unix:///x"}]`))
	f.Add([]byte(`{}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, b []byte) {
		list, err := decodeListeners(b)
		if err != nil {
			return
		}
		if list == nil && !bytes.Contains(b, []byte("[")) {
			t.Fatalf("%s is taken for no listeners", b)
		}
		for _, l := range list {
			if l.Service == "" || !l.Address.AddrPort().Addr().IsLoopback() {
				t.Fatalf("%s gives %+v", b, l)
			}
		}
	})
}

// Verdicts that are too old don't count.
func TestVerdictsAreBoundedByAge(t *testing.T) {
	for age, want := range map[time.Duration]lbcore.Health{time.Minute: lbcore.HealthHealthy, maxVerdictAge + time.Minute: lbcore.HealthUnknown} {
		synctest.Test(t, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "state")
			k := healthsvc.Key{Addr: catalogListener(t, "web", "127.0.0.1:80").Address, Spec: "x"}
			ask := &healthsvc.Ask{View: "web", Cadence: healthsvc.Cadence{Interval: time.Second, Timeout: time.Second}}
			life := func(do func(*verdicts)) {
				s, end := stored(t, dir)
				ctx, cancel := context.WithCancel(t.Context())
				v := &verdicts{svc: healthsvc.NewService(healthsvc.Config{}), item: s.Item(lastgood.Key{Kind: "verdicts"})}
				v.restore(slog.New(slog.DiscardHandler))
				ran := make(chan error)
				do(v)
				go func() { ran <- v.svc.Run(ctx) }()
				v.keep(ctx)
				time.Sleep(time.Minute)
				v.export(ctx)
				cancel()
				<-ran
				end()
			}
			life(func(v *verdicts) { v.svc.Acquire(k, passes{}, ask) })
			time.Sleep(age)
			life(func(v *verdicts) {
				if got := v.svc.Acquire(k, passes{}, ask).State().Load(); got != want {
					t.Errorf("%s later it is %s, want %s", age, got, want)
				}
			})
		})
	}
}

// passes is a probe that passes.
type passes struct{}

func (passes) Probe(context.Context, lbcore.Addr) error { return nil }
func (passes) Kind() string                             { return "test" }
func (passes) String() string                           { return "test" }

// Who joins what givers say knows which of it is old.
func TestWantedOfBefore(t *testing.T) {
	old := &discovery.RestoredError{Confirmed: time.Now().Add(-time.Hour), Reason: discovery.ErrNoAnswer}
	for _, waits := range []bool{false, true} {
		w := wanted{wake: make(chan struct{}, 1), staleWaits: waits}
		l := consul.Listeners{Known: true, Err: old}
		w.catalog.said.Store(&l)
		w.catalog.taken.Store(&l)
		if got := w.waiting(mute{cds: true, lds: true}); (len(got) == 1) != waits {
			t.Errorf("it waits for %q", got)
		}
		if w.stale(mute{cds: true, lds: true}) != waits || w.stale(mute{cds: true, lds: true, catalog: true}) {
			t.Errorf("stale: %t, and %t of who is not asked", !waits, !w.stale(mute{cds: true, lds: true, catalog: true}))
		}
		if got := w.restored(); len(got) != 1 || got[0] != "listeners of the catalog: stale, those of before the restart, 1h0m0s old" {
			t.Errorf("restored: %q", got)
		}
	}
}
