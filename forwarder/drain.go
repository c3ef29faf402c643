package forwarder

import (
	"context"
	"log/slog"
	"time"
)

const drainLogEvery = 5 * time.Second

// Drain stops accepting, as Stop says, waits until the open connections have ended by themselves or ctx
// ends, and resets those that remain. If ctx has a deadline, connections are reset
// one after the other within DrainSpread before it. It returns how many were reset,
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
		timer := time.NewTimer(time.Until(until) - l.cfg.DrainSpread)
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
