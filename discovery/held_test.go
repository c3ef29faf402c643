package discovery_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse.internal/discovery"
	"gatehouse.internal/lbcore"
)

func TestHeldError(t *testing.T) {
	reason := errors.New("no leader")
	held := &discovery.HeldError{
		Listed: 1, Known: 5, Reason: reason,
		Until: time.Date(2030, 1, 2, 3, 4, 5, 6, time.FixedZone("", 3600)),
	}
	const want = "only 1 of 5 endpoints are listed, which is not believed before 2030-01-02T02:04:05Z: no leader"
	if got := held.Error(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	err := fmt.Errorf("service web: %w", held)
	if got, ok := errors.AsType[*discovery.HeldError](err); !ok || got != held {
		t.Errorf("%v is not found in %v", held, err)
	}
	if !errors.Is(err, reason) {
		t.Errorf("%v is not found in %v", reason, err)
	}
}

// Confirmed moves with every Replace, of an equal set too, and with no Fail.
func TestLatestConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		l := discovery.NewLatest()
		if got := l.State().Confirmed; !got.IsZero() {
			t.Errorf("before any report: got %v, want the zero time", got)
		}
		for i, step := range []struct {
			do   func()
			want time.Duration // -1: never
		}{
			{func() { l.Fail(errors.New("boom")) }, -1},
			{func() { l.Replace(setOf(1)) }, 2 * time.Second},
			{func() { l.Replace(setOf(1)) }, 3 * time.Second},
			{func() { l.Fail(errors.New("boom")) }, 3 * time.Second},
			{func() { l.Fail(nil) }, 3 * time.Second},
			{func() { l.Replace(setOf(1)) }, 6 * time.Second},
			{func() { l.Replace(lbcore.Set{}) }, 7 * time.Second},
		} {
			<-time.After(time.Second)
			step.do()
			got := time.Duration(-1)
			if c := l.State().Confirmed; !c.IsZero() {
				got = c.Sub(start)
			}
			if got != step.want {
				t.Errorf("step %d: got %v, want %v", i, got, step.want)
			}
		}
	})
}
