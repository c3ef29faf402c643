package xds

import (
	"log/slog"
	"time"
)

// A kind of log line may come in a burst of five, and then every ten seconds.
const (
	causeBurst = 5
	causeEvery = 10 * time.Second
)

// causes keep the log short whatever a server does: a line that says the same as
// the last one of its kind is left out, and so are those that come too fast. The
// next line of the kind says how many.
type causes struct {
	log  *slog.Logger
	last map[string]*cause // by kind, of which there are a few
}

type cause struct {
	text    string
	left    int // lines left out
	credit  float64
	counted time.Time
}

// tell logs a line, unless it is one to leave out. Text tells one cause from
// another.
func (c *causes) tell(level slog.Level, kind, text, msg string, args ...any) {
	now := time.Now()
	last := c.last[kind]
	switch {
	case last == nil:
		last = &cause{credit: causeBurst, counted: now}
		c.last[kind] = last
	case last.text == text:
		return
	}
	last.text = text
	last.credit = min(causeBurst, last.credit+float64(now.Sub(last.counted))/float64(causeEvery))
	last.counted = now
	if last.credit < 1 {
		last.left++
		return
	}
	last.credit--
	if last.left > 0 {
		args = append(args, "left_out", last.left)
		last.left = 0
	}
	if level >= slog.LevelWarn {
		c.log.Warn(msg, args...)
	} else {
		c.log.Info(msg, args...)
	}
}

// over says that a kind's cause is gone: if it comes again, that is news.
func (c *causes) over(kind string) {
	if last := c.last[kind]; last != nil {
		last.text = ""
	}
}
