package healthsvc

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse.internal/internal/contain"
	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/lbcore"
)

// A probe that panics has failed, and the others go on.
func TestProbePanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newScript(func(_ context.Context, a lbcore.Addr) error {
			if a == addr(1) {
				panic("boom")
			}
			return nil
		})
		panics := new(contain.Panics)
		s := run(t, Config{Panics: panics})
		one := s.Acquire(key(1), p, &Ask{Cadence: every(10 * time.Second), Thresholds: Thresholds{}})
		two := s.Acquire(key(2), p, &Ask{Cadence: every(10 * time.Second), Thresholds: Thresholds{}})
		pass(15 * time.Second)
		wantState(t, one, lbcore.HealthUnhealthy)
		wantState(t, two, lbcore.HealthHealthy)
		if n := panics.Count(contain.Probe); n != 2 {
			t.Errorf("%d panics", n)
		}
	})
}

// Whatever a kind of probe does to get its connection is on the probe's own goroutine.
func TestProbePanicsInDial(t *testing.T) {
	spoilt := Transport{TLS: &TLS{ServerName: "web", Client: func() (*tlsconf.Client, error) { panic("boom") }}}
	for _, p := range []Probe{TCP{Transport: spoilt}, HTTP{Path: "/", Transport: spoilt}, GRPC{Transport: spoilt}} {
		t.Run(p.Kind(), func(t *testing.T) {
			panics := new(contain.Panics)
			err := contained(t.Context(), p, addr(1), panics)
			if _, bug := errors.AsType[*contain.Error](err); !bug || panics.Count(contain.Probe) != 1 {
				t.Errorf("%v, %d panics", err, panics.Count(contain.Probe))
			}
		})
	}
}
