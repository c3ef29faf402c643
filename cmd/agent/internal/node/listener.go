package node

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"gatehouse.internal/cmd/agent/internal/accesslog"
	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/forwarder"
	"gatehouse.internal/lbcore"
)

// listener is one listener with where its connections go.
type listener struct {
	cfg    config.Listener // Run's goroutine, until it is leaving
	fwd    *forwarder.Listener
	target atomic.Pointer[target]
	shown  atomic.Pointer[config.Listener]
	logs   atomic.Pointer[accesslog.Logs]
	ended  atomic.Bool // drained
	left   atomic.Bool // draining
}

// target is what a listener asks. It is never written.
type target struct {
	slot *lbcore.Slot // nil: refuse
	dial *forwarder.Dial
	none *forwarder.Refusal
}

// Pick implements forwarder.Upstream.
func (l *listener) Pick(r *lbcore.Reader, k lbcore.Key) (lbcore.Picks, *forwarder.Dial, error) {
	for {
		t := l.target.Load()
		if t.slot == nil {
			return lbcore.Picks{}, t.dial, t.none
		}
		candidates := t.dial.Attempts
		if t.dial.MaxPerEndpoint != 0 { // some may be passed over
			candidates = lbcore.MaxPicks
		}
		picks := t.slot.Pick(r, k, candidates)
		if picks.Len() > 0 {
			return picks, t.dial, nil
		}
		// A cluster that was replaced ends after its listeners have turned away.
		if l.target.Load() == t {
			return picks, t.dial, t.refusal()
		}
	}
}

// refusal returns why the slot has nobody.
func (t *target) refusal() *forwarder.Refusal {
	st := t.slot.Stats()
	if st.Rebuilds > 0 || st.Err == nil {
		return t.none
	}
	return &forwarder.Refusal{Flag: t.none.Flag, Reason: t.none.Reason + ": " + failure(t.slot, st.Err)}
}

// aim points the listener to its cluster.
func (l *listener) aim(t *table) {
	refuse := func(format string, args ...any) *target {
		return &target{
			dial: &forwarder.Dial{Cluster: l.cfg.Cluster},
			none: &forwarder.Refusal{Flag: forwarder.FlagNC, Reason: fmt.Sprintf(format, args...)},
		}
	}
	c := t.clusters[l.cfg.Cluster]
	reason, unsupported := t.unsupported[l.cfg.Cluster]
	switch {
	case unsupported:
		l.target.Store(refuse("cluster %q is not supported: %s", l.cfg.Cluster, reason))
	case c == nil:
		l.target.Store(refuse("cluster %q is not known", l.cfg.Cluster))
	case c.group.Slot(l.cfg.Selector) == nil:
		l.target.Store(refuse("cluster %q has no selector %q", l.cfg.Cluster, l.cfg.Selector))
	default:
		l.target.Store(&target{slot: c.group.Slot(l.cfg.Selector), dial: c.dial, none: c.none})
	}
}

func (l *listener) status() ListenerStatus {
	cfg := l.shown.Load()
	return ListenerStatus{
		Name: cfg.Name, Origin: string(cfg.Origin), Address: l.fwd.Addr(),
		Cluster: cfg.Cluster, Selector: cfg.Selector,
		Stats: l.fwd.Stats(), OnLoops: l.fwd.OnLoops(), Draining: l.left.Load(),
	}
}

func settings(cfg config.Listener) forwarder.Settings {
	s := forwarder.Settings{
		MaxConnections: cfg.MaxConnections, IdleTimeout: cfg.IdleTimeout, HalfClosedTimeout: cfg.HalfClosedTimeout,
		MaxDuration: cfg.MaxConnectionDuration, MaxDurationJitter: cfg.MaxConnectionDurationJitter,
	}
	if cfg.HashOn == config.HashOnSourceIP {
		s.HashOn = forwarder.HashSourceIP
	}
	if p := cfg.ProxyProtocol; len(p.AcceptFrom) > 0 {
		s.Proxy = &forwarder.ProxyIn{From: p.AcceptFrom, Optional: p.Optional, Timeout: p.Timeout, MaxPending: p.MaxPending}
	}
	return s
}

// has reports whether a listener is open where cfg wants it.
func (r *runner) has(cfg config.Listener) bool {
	have := r.listeners[cfg.Name]
	return have != nil && have.cfg.Address == cfg.Address
}

// open opens the socket of a listener.
func (r *runner) open(ctx context.Context, cfg config.Listener) (*listener, error) {
	l := new(listener)
	logs, err := accesslog.Open(r.n.cfg.Files, accessLogs(cfg)...)
	if err != nil {
		return nil, fmt.Errorf("listener %q: access_log: %w", cfg.Name, err)
	}
	l.logs.Store(logs)
	done := l.done
	if also := r.n.cfg.OnDone; also != nil {
		done = func(rec *forwarder.Record) { l.done(rec); also(rec) }
	}
	l.fwd, err = forwarder.New(forwarder.Config{
		Name: cfg.Name, Addr: cfg.Address, Upstream: l, Gate: r.n.cfg.Gate, Settings: settings(cfg),
		Loops: r.n.cfg.Loops, Listen: r.n.cfg.Listen, Logger: r.n.log, OnDone: done,
		Open: r.n.cfg.Open, MaxOpen: r.n.cfg.MaxOpen, DrainSpread: r.n.cfg.DrainSpread,
	})
	if err == nil {
		if err = l.fwd.Bind(ctx); err == nil {
			return l, nil
		}
		err = &BindError{cfg.Name, err}
	}
	logs.Close()
	return nil, err
}

// done is told of each connection that has ended.
func (l *listener) done(rec *forwarder.Record) { l.logs.Load().Write(rec) }

func accessLogs(cfg config.Listener) (out []accesslog.Config) {
	for _, a := range cfg.AccessLogs {
		out = append(out, accesslog.Config(a))
	}
	return out
}

// openLogs opens the access logs of listeners that are open and get others, for
// put. On an error none is.
func (r *runner) openLogs(want []config.Listener) error {
	r.logs = make(map[string]*accesslog.Logs)
	for _, cfg := range want {
		if !r.has(cfg) || slices.Equal(r.listeners[cfg.Name].cfg.AccessLogs, cfg.AccessLogs) {
			continue
		}
		logs, err := accesslog.Open(r.n.cfg.Files, accessLogs(cfg)...)
		if err != nil {
			for _, l := range r.logs {
				l.Close()
			}
			return fmt.Errorf("listener %q: access_log: %w", cfg.Name, err)
		}
		r.logs[cfg.Name] = logs
	}
	return nil
}

// openAll opens the sockets of the listeners that are new or have moved. On an
// error none is open.
func (r *runner) openAll(ctx context.Context, want []config.Listener) (map[string]*listener, error) {
	opened := make(map[string]*listener)
	for _, cfg := range want {
		if r.has(cfg) {
			continue
		}
		l, err := r.open(ctx, cfg)
		if err != nil {
			for _, l := range opened {
				l.fwd.Drain(ctx) // closes the socket
				l.logs.Load().Close()
			}
			return nil, err
		}
		opened[cfg.Name] = l
	}
	return opened, nil
}

// adopt makes want, which are open, and optional, as far as they can be opened,
// the listeners that accept connections.
func (r *runner) adopt(ctx context.Context, want, optional []config.Listener, opened map[string]*listener) {
	for name, l := range r.listeners {
		named := func(cfg config.Listener) bool { return cfg.Name == name }
		moves := func(cfg config.Listener) bool { return named(cfg) && !r.has(cfg) }
		if !slices.ContainsFunc(want, named) && !slices.ContainsFunc(optional, named) || slices.ContainsFunc(optional, moves) {
			delete(r.listeners, name)
			r.retire(ctx, l)
		}
	}
	for _, cfg := range want {
		r.put(ctx, cfg, opened[cfg.Name])
	}
	before := r.closed
	r.closed = make(map[string]*closed)
	for _, cfg := range optional {
		if r.has(cfg) {
			r.put(ctx, cfg, nil)
			continue
		}
		c := &closed{wait: firstRetry}
		if was := before[cfg.Name]; was != nil && was.cfg.Address == cfg.Address {
			c = was
		}
		c.cfg = cfg
		if l := r.openOptional(ctx, c); l != nil {
			opened[cfg.Name] = l
		}
	}
	r.serve(ctx, opened)
	r.resetRetry()
}

// put makes l, or the listener of that name if l is nil, what cfg says.
func (r *runner) put(ctx context.Context, cfg config.Listener, l *listener) {
	have := r.listeners[cfg.Name]
	if l != nil {
		if have != nil {
			r.retire(ctx, have)
		}
		have = l
		r.listeners[cfg.Name] = l
	} else {
		if err := have.fwd.Set(settings(cfg)); err != nil {
			r.n.log.Error("settings are not applied", "listener", cfg.Name, "err", err)
		}
		if logs := r.logs[cfg.Name]; logs != nil {
			have.logs.Swap(logs).Close()
			delete(r.logs, cfg.Name)
		}
	}
	have.cfg = cfg
	have.shown.Store(&cfg)
}

// serve has opened listeners accept connections.
func (r *runner) serve(ctx context.Context, opened map[string]*listener) {
	r.settle() // before the first connection asks
	for name, l := range opened {
		if r.n.draining.Load() { // since this Apply began: Drain may not have found l
			l.fwd.Drain(ctx)
			continue
		}
		r.n.log.Info("listening", "listener", name, "address", l.fwd.Addr())
		r.wg.Go(func() {
			if err := l.fwd.Run(ctx); err != nil && ctx.Err() == nil {
				r.n.log.Error("listener ended", "listener", name, "err", err)
			}
		})
	}
}

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
		Cluster: c.cfg.Cluster, Selector: c.cfg.Selector, Unsupported: c.reason,
	}
}

// openOptional opens a listener that was closed, or returns nil: then it is
// noted why.
func (r *runner) openOptional(ctx context.Context, c *closed) *listener {
	l, err := r.open(ctx, c.cfg)
	if err == nil {
		delete(r.closed, c.cfg.Name)
		r.put(ctx, c.cfg, l)
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
	r.resetRetry()
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
	if !next.IsZero() {
		r.retry.Reset(time.Until(next))
	}
}

// retire closes the socket of l and drains it in the background.
func (r *runner) retire(ctx context.Context, l *listener) {
	l.left.Store(true)
	l.fwd.Stop() // so that the next Apply can open the address
	r.leaving = append(r.leaving, l)
	r.wg.Go(func() {
		bounded, cancel := context.WithTimeout(ctx, r.n.cfg.DrainTimeout)
		defer cancel()
		cut := l.fwd.Drain(bounded)
		r.n.log.Info("listener drained", "listener", l.shown.Load().Name, "cut", cut)
		l.logs.Load().Close()
		l.ended.Store(true)
		poke(r.n.wake)
	})
}
