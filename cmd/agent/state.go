package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/discovery"
	"gatehouse.internal/discovery/consul"
	"gatehouse.internal/healthsvc"
	"gatehouse.internal/internal/lastgood"
	"gatehouse.internal/lbcore"
)

// maxVerdictAge is how old verdicts of an earlier run may be.
const maxVerdictAge = 10 * time.Minute

// pruneEvery is how often what nothing uses any more is removed from state_dir.
const pruneEvery = 10 * time.Minute

// openState opens state_dir; nil without one.
func openState(cfg *config.Config, log *slog.Logger) (*lastgood.Store, error) {
	if cfg.StateDir == "" {
		return nil, nil
	}
	store, err := lastgood.Open(lastgood.Config{Dir: cfg.StateDir, Logger: log})
	if err == nil {
		return store, nil
	}
	if locked, ok := errors.AsType[*lastgood.LockedError](err); ok {
		return nil, fmt.Errorf("state_dir: %w", locked)
	}
	return nil, configError{fmt.Errorf("state_dir: %w", err)}
}

// scopes returns what endpoints depend on beside the settings of their blocks.
func scopes(cfg *config.Config) map[string]string {
	c, d := cfg.Consul, cfg.DNS
	return map[string]string{
		config.DiscoveryConsul: strings.Join([]string{c.Address, c.Datacenter, c.Namespace, c.Partition}, " "),
		config.DiscoveryDNS:    fmt.Sprintf("%q %q %q %d", d.Nameservers, d.ResolvConf, d.Search, d.NDots),
	}
}

// verdicts are those of the health checks, on disk.
type verdicts struct {
	svc  *healthsvc.Service
	item *lastgood.Item
	last atomic.Pointer[[]byte] // as exported last
}

// restore takes those of an earlier run.
func (v *verdicts) restore(log *slog.Logger) {
	r, ok := v.item.Load()
	if !ok {
		return
	}
	n, err := v.svc.Import(r.Payload, r.Confirmed, maxVerdictAge)
	if err != nil {
		v.item.Damaged(err)
		return
	}
	log.Info("verdicts of health checks of before the restart count until probes say otherwise",
		"verdicts", n, "age", lastgood.Age(r.Confirmed).Round(time.Second).String(), "max_age", maxVerdictAge.String())
}

// export notes the present ones. At the end of ctx clusters give up their checks, and
// what was noted before stays.
func (v *verdicts) export(ctx context.Context) ([]byte, error) {
	b, err := v.svc.Export()
	if err != nil {
		return nil, err
	}
	if ctx.Err() == nil {
		v.last.Store(&b)
	}
	if last := v.last.Load(); last != nil {
		return *last, nil
	}
	return b, nil
}

// keep has them written from now on, until ctx ends.
func (v *verdicts) keep(ctx context.Context) {
	v.item.PutOften(func() ([]byte, error) { return v.export(ctx) })
	v.item.Fresh(true)
}

// prune has what nothing uses any more removed, while it is known what is wanted.
func (a *agent) prune(ctx context.Context) error {
	tick := time.NewTicker(pruneEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			a.health.Forget()
			if len(a.wanted.waiting(muted(a.cfg.Load()))) == 0 {
				a.store.Prune()
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// restoredLines says, a line each, what in force is of an earlier run.
func (a *agent) restoredLines() []string {
	return append(a.wanted.restored(), a.node.Restored()...)
}

// restoredAge says how old what was known before the restart is, if err tells of
// that; else it is empty.
func restoredAge(err error) string {
	r, ok := errors.AsType[*discovery.RestoredError](err)
	if !ok {
		return ""
	}
	return lastgood.Age(r.Confirmed).Round(time.Second).String()
}

// catalog is what the catalog says of listeners, on disk. The goroutine that watches
// it owns it.
type catalog struct {
	item     *lastgood.Item
	said     func(consul.Listeners)
	kept     []consul.Listener
	restored *discovery.RestoredError // until the catalog has answered
}

// keptListener is a consul.Listener on disk.
type keptListener struct {
	Service string `json:"service"`
	Address string `json:"address"`
}

// restore says what an earlier run knew, and returns it.
func (c *catalog) restore() []consul.Listener {
	r, ok := c.item.Load()
	if !ok {
		return nil
	}
	list, err := decodeListeners(r.Payload)
	if err != nil {
		c.item.Damaged(err)
		return nil
	}
	c.kept, c.restored = list, &discovery.RestoredError{Confirmed: r.Confirmed, Reason: discovery.ErrNoAnswer}
	c.said(consul.Listeners{Known: true, Listeners: list, Err: c.restored})
	return list
}

// say takes what the catalog says.
func (c *catalog) say(l consul.Listeners) {
	if l.Err == nil {
		c.restored = nil
	} else if c.restored != nil {
		l.Err = &discovery.RestoredError{Confirmed: c.restored.Confirmed, Reason: l.Err}
	}
	if l.Known && c.restored == nil && !slices.Equal(c.kept, l.Listeners) {
		c.kept = l.Listeners
		list := l.Listeners
		c.item.Put(func() ([]byte, error) { return encodeListeners(list) })
	}
	c.item.Fresh(l.Known && l.Err == nil)
	c.said(l)
}

func encodeListeners(list []consul.Listener) ([]byte, error) {
	out := make([]keptListener, 0, len(list))
	for _, l := range list {
		out = append(out, keptListener{l.Service, l.Address.String()})
	}
	return json.Marshal(out)
}

func decodeListeners(b []byte) (list []consul.Listener, err error) {
	var in []keptListener
	if err := json.Unmarshal(b, &in); err != nil {
		return nil, err
	}
	if in == nil {
		return nil, errors.New("it has no list of listeners")
	}
	for _, l := range in {
		a, err := lbcore.ParseAddr(l.Address)
		switch {
		case err != nil:
			return nil, err
		case l.Service == "" || !a.AddrPort().Addr().IsLoopback():
			return nil, fmt.Errorf("service %q asks for %s: want a loopback address", l.Service, a)
		}
		list = append(list, consul.Listener{Service: l.Service, Address: a})
	}
	return list, nil
}
