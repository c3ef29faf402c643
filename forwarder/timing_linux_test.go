package forwarder

import (
	"testing"
	"time"
)

// The limits on time that the synctest tests and those with the loops' clock
// look at closely, on real sockets and clocks for both relays.
func TestTimesRealSockets(t *testing.T) { onEach(t, testTimesRealSockets) }

func testTimesRealSockets(t *testing.T) {
	t.Run("connect timeout", func(t *testing.T) {
		up := newCluster(t, silent(t), backend(t, anyPort, echo))
		up.dial.Timeout = 100 * time.Millisecond
		r := start(t, Config{Upstream: up})
		c := client(t, r.Addr())
		exchange(t, c, "hello")
		_ = c.Close()
		if rec := r.record(t); rec.Attempts != 2 || rec.Endpoint != up.member(1).Addr() {
			t.Errorf("record %+v", rec)
		}
		if _, failed, _, _ := up.member(0).Counters(); failed != 1 {
			t.Errorf("%d failed dials", failed)
		}
	})
	for name, tt := range map[string]struct {
		s    Settings
		flag Flag
	}{
		"idle":         {Settings{IdleTimeout: 100 * time.Millisecond}, FlagSI},
		"max duration": {Settings{MaxDuration: 100 * time.Millisecond, MaxDurationJitter: 50}, FlagDT},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, Config{Settings: tt.s, Upstream: newCluster(t, backend(t, anyPort, echo))})
			c := client(t, r.Addr())
			wantReset(t, c)
			if rec := r.record(t); rec.Flag != tt.flag {
				t.Errorf("record %+v", rec)
			}
		})
	}
}
