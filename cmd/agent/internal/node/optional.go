package node

import (
	"context"
	"fmt"
	"time"

	"gatehouse.internal/cmd/agent/internal/config"
)

// The waits between attempts to open an optional listener.
const (
	firstRetry = 5 * time.Second
	lastRetry  = time.Minute
)

// closed is an optional listener that can't be opened.
type closed struct {
	cfg    config.Listener
	reason string
	next   time.Time
	wait   time.Duration // after the next failure
}

func (c *closed) status() ListenerStatus {
	return ListenerStatus{
		Name: c.cfg.Name, Origin: string(c.cfg.Origin), Address: c.cfg.Address,
		Cluster: c.cfg.Cluster, Weighted: c.cfg.WeightedClusters, Selector: c.cfg.Selector, Unsupported: c.reason,
	}
}

// openOptional opens a listener that was closed, or returns nil: then it is
// noted why.
func (r *runner) openOptional(ctx context.Context, c *closed) *listener {
	l, err := r.open(ctx, c.cfg, nil)
	if err == nil {
		delete(r.closed, c.cfg.Name)
		r.put(ctx, c.cfg, l, nil)
		return l
	}
	reason := err.Error()
	for name, l := range r.listeners {
		if l.cfg.Address == c.cfg.Address {
			reason += fmt.Sprintf(" by listener %q", name)
		}
	}
	if c.reason != reason {
		c.reason = reason
		r.n.log.Warn("listener can't be opened, it is left out and tried again", "listener", c.cfg.Name, "err", reason)
	}
	r.closed[c.cfg.Name] = c
	if now := time.Now(); !now.Before(c.next) {
		c.next = now.Add(c.wait)
		c.wait = min(2*c.wait, lastRetry)
	}
	return nil
}

// openAgain tries the listeners again whose time has come.
func (r *runner) openAgain(ctx context.Context) {
	if r.n.draining.Load() {
		return // for good
	}
	if !r.n.cfg.Change(func() { r.openClosed(ctx) }) {
		later := time.Now().Add(firstRetry)
		for _, c := range r.closed {
			if c.next.Before(later) {
				c.next = later
			}
		}
	}
	for _, l := range r.listeners {
		if l.lame() && !time.Now().Before(l.retry) {
			l.retry = time.Now().Add(firstRetry)
			r.put(ctx, l.cfg, nil, nil)
		}
	}
	r.resetRetry()
}

// openClosed opens those of the closed listeners whose time has come.
func (r *runner) openClosed(ctx context.Context) {
	opened := make(map[string]*listener)
	for name, c := range r.closed {
		if !time.Now().Before(c.next) {
			if l := r.openOptional(ctx, c); l != nil {
				opened[name] = l
			}
		}
	}
	if len(opened) > 0 {
		r.serve(ctx, opened)
	}
}

// resetRetry sets the timer to the next attempt, if there is one.
func (r *runner) resetRetry() {
	r.retry.Stop()
	var next time.Time
	for _, c := range r.closed {
		if next.IsZero() || c.next.Before(next) {
			next = c.next
		}
	}
	for _, l := range r.listeners {
		if l.lame() && (next.IsZero() || l.retry.Before(next)) {
			next = l.retry
		}
	}
	if !next.IsZero() {
		r.retry.Reset(time.Until(next))
	}
}
