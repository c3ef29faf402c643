package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"gatehouse.internal/lbcore"
)

// ErrUnknown is what the error of SetEnabled wraps where there is no such cluster
// or endpoint.
var ErrUnknown = errors.New("not known")

// enablement is the operator's word on an endpoint.
type enablement struct {
	cluster string
	addr    lbcore.Addr
	enabled bool
	ahead   bool       // the address may come later
	done    chan error // one slot
}

// SetEnabled is the operator's word on an endpoint: one that is disabled gets no
// new connection, not even in a panic. It stays in force over reloads and what
// discovery lists, until the operator says otherwise or an override of discovery's
// does, and ends with the agent. It returns when it is in force. It may be called
// from anywhere while Run runs, and waits for it otherwise.
func (n *Node) SetEnabled(ctx context.Context, cluster string, a lbcore.Addr, enabled bool) error {
	e := enablement{cluster: cluster, addr: a, enabled: enabled, done: make(chan error, 1)}
	select {
	case n.words <- e:
		return <-e.done
	case <-ctx.Done():
		return ctx.Err()
	}
}

// tell passes the operator's word on to the owners of the cluster, that of one
// which is to replace it too: what it took over was said before it began.
func (r *runner) tell(e enablement) error {
	at := r.clusters[e.cluster]
	if at == nil {
		_, a, err := r.n.one(e.cluster)
		if a != nil {
			err = fmt.Errorf("cluster %q has no endpoints of its own, it consists of %q: %w", e.cluster, a.cfg.Aggregate, ErrUnknown)
		}
		return cmp.Or(err, ErrUnknown)
	}
	err := at.serving.tell(e)
	if at.next != nil {
		e.ahead = err == nil
		err = at.next.tell(e)
	}
	if err == nil {
		r.n.log.Info("the operator's word on an endpoint", "cluster", e.cluster, "endpoint", e.addr, "enabled", e.enabled)
	}
	return err
}

// tell has the owner obey e. Run's goroutine calls it: owners wait for nobody.
func (c *cluster) tell(e enablement) error {
	e.done = make(chan error, 1)
	select {
	case c.asked <- e:
		return <-e.done
	case <-c.over: // with the agent
		return fmt.Errorf("cluster %q has ended", c.cfg.Name)
	}
}

// enable is the owner's part of SetEnabled.
func (c *cluster) enable(e enablement) error {
	if e.ahead {
		c.view.Foretell(e.addr, e.enabled)
	} else if err := c.view.SetEnabled(e.addr, e.enabled); err != nil {
		return fmt.Errorf("%w: %w", err, ErrUnknown)
	}
	c.show() // for the cluster that may replace this one
	return nil
}

// Unsettled is a cluster whose settings are not in force yet, or that can't take
// connections yet, and why.
type Unsettled struct {
	Cluster string `json:"cluster"`
	Why     string `json:"why"`
}

// Unsettled returns those of the named clusters that are; a name that is not there
// is none. It may be called from anywhere.
func (n *Node) Unsettled(names []string) []Unsettled {
	t, all := n.table.Load(), []Unsettled{}
	for _, name := range names {
		c := t.clusters[name]
		if next := t.warming[name]; next != nil {
			c = next
		}
		if c == nil {
			continue
		}
		why := c.behind()
		if why == "" {
			why = c.waiting()
		}
		if why == "" && c == t.warming[name] {
			why = "it is about to take over"
		}
		if why != "" {
			all = append(all, Unsettled{name, why})
		}
	}
	return all
}

// behind returns why what the settings list is not taken up yet, or "".
func (c *cluster) behind() string {
	for _, l := range c.listed {
		if l.passed.Load() != l.latest.State().Updates {
			return "the endpoints that its settings list are not taken up yet"
		}
	}
	return ""
}

// Look has the TLS files of clusters, health checks and listeners looked at now, and
// returns when what they hold is in force, as far as it can be used. The error is
// ctx's. It may be called from anywhere while Run runs.
func (n *Node) Look(ctx context.Context) error {
	t := n.table.Load()
	files := make(map[interface{ Look(context.Context) error }]bool)
	for _, some := range []map[string]*cluster{t.clusters, t.warming} {
		for _, c := range some {
			for _, s := range append(c.transport.shared(), c.checks.tls...) {
				if s == nil {
					continue
				}
				if client, err := s.get(); err == nil {
					files[client] = true
				}
			}
		}
	}
	for _, l := range t.listeners {
		if l.draining.Load() {
			continue
		}
		shown := l.shown.Load()
		if shown.tls != nil {
			files[shown.tls.server] = true
		}
		for _, c := range shown.chains {
			if c.tls != nil {
				files[c.tls] = true
			}
		}
	}
	errs := make(chan error, len(files))
	for f := range files {
		go func() { errs <- f.Look(ctx) }()
	}
	var all []error
	for range files {
		all = append(all, <-errs)
	}
	return errors.Join(all...)
}

// SetDrainTimeout changes Config.DrainTimeout for listeners that leave from now on.
// It may be called from anywhere.
func (n *Node) SetDrainTimeout(d time.Duration) { n.drainTimeout.Store(int64(d)) }
