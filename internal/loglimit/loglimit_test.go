package loglimit

import (
	"fmt"
	"log/slog"
	"strings"
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

func TestHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		log := slog.New(Handler(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
		count := func(text string) int { return strings.Count(out.String(), text) }
		derived := log.With("cluster", "web").WithGroup("g")
		for i := range 500 {
			log.Info("cluster added", "n", i)
			derived.Info("cluster added", "n", i)
			log.Debug("a connection has ended")
		}
		log.Error("ended")
		if count("cluster added") != HandlerBurst || count("a connection has ended") != 500 || count("ended") != 501 {
			t.Errorf("%d, %d and %d lines", count("cluster added"), count("a connection has ended"), count("ended"))
		}
		out.Reset()
		time.Sleep(Every)
		log.Info("cluster added")
		log.Info("cluster added")
		if got, want := out.String(), "not_logged=800"; strings.Count(got, "\n") != 1 || !strings.Contains(got, want) {
			t.Errorf("after a while: %q, want %s", got, want)
		}
		// Whatever is logged, the limits are bounded, and so are the lines.
		out.Reset()
		for i := range 10 * maxMessages {
			log.Warn(fmt.Sprint("what a peer has sent: ", i))
		}
		if n := count("what a peer"); n > maxMessages+Burst+HandlerBurst {
			t.Errorf("%d lines of messages that differ", n)
		}
	})
}
