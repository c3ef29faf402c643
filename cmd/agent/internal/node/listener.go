package node

import (
	"context"
	"fmt"
	"sync/atomic"

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
	t := l.target.Load()
	if t.slot == nil {
		return lbcore.Picks{}, t.dial, t.none
	}
	picks := t.slot.Pick(r, k, t.dial.Attempts)
	if picks.Len() == 0 {
		return picks, t.dial, t.none
	}
	return picks, t.dial, nil
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
		Stats: l.fwd.Stats(), Draining: l.left.Load(),
	}
}

func settings(cfg config.Listener) forwarder.Settings {
	s := forwarder.Settings{
		MaxConnections: cfg.MaxConnections, IdleTimeout: cfg.IdleTimeout, HalfClosedTimeout: cfg.HalfClosedTimeout,
	}
	if cfg.HashOn == config.HashOnSourceIP {
		s.HashOn = forwarder.HashSourceIP
	}
	return s
}

// open opens the sockets of the listeners that are new or have moved. On an
// error none is open.
func (r *runner) open(ctx context.Context, want []config.Listener) (map[string]*listener, error) {
	opened := make(map[string]*listener)
	for _, cfg := range want {
		if have := r.listeners[cfg.Name]; have != nil && have.cfg.Address == cfg.Address {
			continue
		}
		l := new(listener)
		var err error
		l.fwd, err = forwarder.New(forwarder.Config{
			Name: cfg.Name, Addr: cfg.Address, Upstream: l, Gate: r.n.cfg.Gate, Settings: settings(cfg),
			Listen: r.n.cfg.Listen, Logger: r.n.log, OnDone: r.n.cfg.OnDone,
		})
		if err == nil {
			if err = l.fwd.Bind(ctx); err != nil {
				err = &BindError{cfg.Name, err}
			}
		}
		if err != nil {
			for _, l := range opened {
				l.fwd.Drain(ctx) // closes the socket
			}
			return nil, err
		}
		opened[cfg.Name] = l
	}
	return opened, nil
}

// adopt makes want the listeners that accept connections.
func (r *runner) adopt(ctx context.Context, want []config.Listener, opened map[string]*listener) {
	keep := make(map[string]bool)
	for _, cfg := range want {
		keep[cfg.Name] = true
		have := r.listeners[cfg.Name]
		if l := opened[cfg.Name]; l != nil {
			if have != nil {
				r.retire(ctx, have)
			}
			have = l
			r.listeners[cfg.Name] = l
		} else {
			if err := have.fwd.Set(settings(cfg)); err != nil {
				r.n.log.Error("settings are not applied", "listener", cfg.Name, "err", err)
			}
		}
		have.cfg = cfg
		have.shown.Store(&cfg)
	}
	for name, l := range r.listeners {
		if !keep[name] {
			delete(r.listeners, name)
			r.retire(ctx, l)
		}
	}
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
		l.ended.Store(true)
		poke(r.n.wake)
	})
}
