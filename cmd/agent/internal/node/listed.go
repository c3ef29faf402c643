package node

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync/atomic"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/discovery"
	"gatehouse.internal/lbcore"
)

// listed is the Source of endpoints that a cluster's settings list themselves.
// When these alone change the cluster stays, with what it knows of each
// endpoint, and gets another set. Run's goroutine owns it.
type listed struct {
	endpoints []lbcore.Endpoint // as listed
	latest    *discovery.Latest // the source's reader is the one reader
	passed    atomic.Uint64     // how many of latest's updates have been reported
}

func newListed(endpoints []lbcore.Endpoint, set lbcore.Set) *listed {
	l := &listed{endpoints: endpoints, latest: discovery.NewLatest()}
	l.latest.Replace(set)
	return l
}

// Watch implements discovery.Source.
func (l *listed) Watch(ctx context.Context, sink discovery.Sink) error {
	for ctx.Err() == nil {
		st := l.latest.State()
		sink.Replace(st.Set)
		l.passed.Store(st.Updates)
		select {
		case <-l.latest.Changed():
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

// unlisted returns cfg without what may change while a cluster stays: the endpoints that
// it lists, and certificates and authorities of the control plane.
func unlisted(cfg config.Cluster) config.Cluster {
	cfg.Discovery = slices.Clone(cfg.Discovery)
	for i := range cfg.Discovery {
		cfg.Discovery[i].Endpoints = nil
	}
	cfg.Transport = immaterial(cfg.Transport)
	return cfg
}

// alike returns the cluster of e whose settings are those of cfg, but for what
// unlisted leaves out, the newer one first; nil if there is none.
func (e *entry) alike(cfg config.Cluster) *cluster {
	cfg = unlisted(cfg)
	for _, c := range []*cluster{e.next, e.serving} {
		if c != nil && reflect.DeepEqual(c.cfg, cfg) {
			return c
		}
	}
	return nil
}

// relist returns what has to be done for c, which is alike, to have the
// endpoints that cfg lists, and its certificates. On an error nothing is to be done.
func (c *cluster) relist(cfg config.Cluster) (changes []func(), err error) {
	rest := c.listed
	for _, d := range cfg.Discovery {
		if d.Kind != config.DiscoveryStatic {
			continue
		}
		l := rest[0]
		rest = rest[1:]
		if slices.Equal(l.endpoints, d.Endpoints) {
			continue
		}
		set, dropped, err := lbcore.NewSet(d.Endpoints)
		if err != nil {
			return nil, fmt.Errorf("cluster %q: %w", cfg.Name, err)
		}
		changes = append(changes, func() {
			c.dups.Note(dropped)
			l.endpoints = d.Endpoints
			l.latest.Replace(set)
		})
	}
	return append(changes, c.transport.rotate(cfg.Transport)...), nil
}
