package forwarder

import (
	"testing"
	"testing/synctest"
	"time"
)

// A line each sampleEvery, by a clock that nobody sets: by the wall clock, set back by
// a year, there would be none for a year.
func TestSampler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s sampler
		for _, tt := range []struct {
			after time.Duration
			ok    bool
			held  uint64
		}{
			{0, true, 0}, {0, false, 0}, {sampleEvery - 1, false, 0}, {1, true, 2}, {time.Hour, true, 0}, {0, false, 0},
		} {
			time.Sleep(tt.after)
			if held, ok := s.allow(); ok != tt.ok || held != tt.held {
				t.Errorf("after %s: %t and %d held, want %t and %d", tt.after, ok, held, tt.ok, tt.held)
			}
		}
	})
	var s sampler
	s.allow()
	if last := *s.last.Load(); last == last.Round(0) { // not in a bubble, where no time has one
		t.Errorf("%s has no monotonic reading", last)
	}
}
