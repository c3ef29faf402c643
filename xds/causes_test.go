package xds

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// One line a cause, and a rate for causes that change all the time.
func TestCauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		c := causes{slog.New(slog.NewTextHandler(&out, nil)), make(map[string]*cause)}
		lines := func() int { return strings.Count(out.String(), "\n") }
		for range 100 {
			c.tell(slog.LevelWarn, "a", "same", "told")
			pass(time.Minute)
		}
		if lines() != 1 {
			t.Errorf("%d lines for one cause:\n%s", lines(), out.String())
		}
		c.over("a")
		c.tell(slog.LevelInfo, "a", "same", "told")
		if lines() != 2 || !strings.Contains(out.String(), "level=INFO") {
			t.Errorf("%d lines once it was over", lines())
		}
		out.Reset()
		for n := range 1000 {
			c.tell(slog.LevelWarn, "b", fmt.Sprint(n), "told", "n", n)
			pass(100 * time.Millisecond)
		}
		if n := lines(); n < 10 || n > causeBurst+11 {
			t.Errorf("%d lines within 100 s", n)
		}
		if !strings.Contains(out.String(), "left_out=99") {
			t.Errorf("what was left out is not told:\n%s", out.String())
		}
	})
}
