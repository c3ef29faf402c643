package loglimit

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Limit
		lines := func() (n int, held uint64) {
			for range 1000 {
				if h, ok := l.Allow(); ok {
					n++
					held += h
				}
			}
			return n, held
		}
		for _, tt := range []struct {
			after time.Duration
			lines int
			held  uint64
		}{
			{0, Burst, 0}, {Every / 2, 0, 0}, {Every/2 + 1, 1, 1000 - Burst + 1000}, {3*Every + 1, 3, 999}, {time.Hour, Burst, 997},
		} {
			time.Sleep(tt.after)
			if n, held := lines(); n != tt.lines || held != tt.held {
				t.Errorf("after %s: %d lines and %d held, want %d and %d", tt.after, n, held, tt.lines, tt.held)
			}
		}
	})
}
