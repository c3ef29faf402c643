package forwarder

import (
	"context"
	"log/slog"
	"time"
)

const drainLogEvery = 5 * time.Second

// DrainSpread returns how long before the end of a drain of that length connections begin
// to be closed, where spread is wanted: at most half of it, so that each may go on for
// half of it at least.
func DrainSpread(spread, timeout time.Duration) time.Duration { return min(spread, timeout/2) }

// Drain stops accepting, as Stop says, waits until the open connections have ended by themselves or ctx
// ends, and resets those that remain. If ctx has a deadline, connections are reset
// one after the other within Config.DrainSpread before it, and within its last half. It returns how many were reset,
// once Run has returned or is about to. Without a Run it closes the socket.
// Further calls wait for the same end with a deadline of their own.
func (l *Listener) Drain(ctx context.Context) (cut int) {
	before := l.counters.cut.Load()
	l.mu.Lock()
	if l.state < running {
		l.state = over
		close(l.ended)
	}
	l.mu.Unlock()
	l.Stop()
	begin := time.Now()
	tick := time.NewTicker(drainLogEvery)
	defer tick.Stop()
	var spread <-chan time.Time // nil is never
	until, bounded := ctx.Deadline()
	if bounded && l.cfg.DrainSpread > 0 {
		left := time.Until(until)
		timer := time.NewTimer(left - DrainSpread(l.cfg.DrainSpread, left))
		defer timer.Stop()
		spread = timer.C
	}
	tell := func(level slog.Level, what string) {
		args := []any{"remaining", l.counters.active.Load(), "since", begin}
		if bounded {
			args = append(args, "until", until)
		}
		l.log.Log(ctx, level, what, args...)
	}
	for {
		select {
		case <-l.ended:
			return int(l.counters.cut.Load() - before)
		case <-tick.C:
			tell(slog.LevelInfo, "draining")
		case <-spread:
			tell(slog.LevelInfo, "closing connections one after the other")
			l.leave(until)
		case <-ctx.Done():
			if l.counters.active.Load() > 0 {
				tell(slog.LevelWarn, "cutting connections, the time to drain is over")
			}
			l.mu.Lock()
			select {
			case <-l.expired:
			default:
				close(l.expired)
			}
			l.mu.Unlock()
			<-l.ended
			return int(l.counters.cut.Load() - before)
		}
	}
}

// leave has the connections closed one after the other.
func (l *Listener) leave(until time.Time) {
	l.draining.CompareAndSwap(nil, newEnding(Ending{Err: ErrDrained, Within: max(time.Until(until), 0)}))
	l.Review()
}
