package forward

import (
	"fmt"
	"time"
)

// window measures for a time and a while of warming up before it. cost is asked
// at its ends.
type window struct {
	begin, end int64
	cost       func() (costs, error)
	before     costs
	open       bool
}

// newWindow returns one that lasts d and is warmed up for a quarter of that.
func newWindow(d time.Duration, cost func() (costs, error)) *window {
	now := monotonic()
	return &window{begin: now + int64(d/4), end: now + int64(d/4+d), cost: cost}
}

// patience is how much longer a measurement may take for the first thing to end: of a
// short one on a busy machine nothing may have.
const patience = 5 * time.Second

// at says if what ends at now counts, and done when the time is over and any of it has
// counted: n has.
func (w *window) at(now int64, n int) (counts, done bool, err error) {
	if !w.open && now >= w.begin {
		w.open = true
		if w.before, err = w.cost(); err != nil {
			return false, true, err
		}
		now = monotonic() // asking takes a while
		w.begin, w.end = now, w.end+now-w.begin
	}
	return w.open, now >= w.end && (n > 0 || now >= w.end+int64(patience)), nil
}

// result returns the figures of n operations that a window saw.
func (w *window) result(group string, now int64, n int, latency []int64) (Values, error) {
	after, err := w.cost()
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, fmt.Errorf("%s: nothing came back", group)
	}
	return figures(group, time.Duration(now-w.begin), n, latency, w.before, after), nil
}
