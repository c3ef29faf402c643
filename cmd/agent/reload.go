package main

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"gatehouse.internal/cmd/agent/internal/admin"
	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/cmd/agent/internal/node"
	"gatehouse.internal/discovery/consul"
	"gatehouse.internal/discovery/dns"
	"gatehouse.internal/xds"
)

// reloading is what a reload of the configuration needs. One goroutine runs
// reloads, one after the other.
type reloading struct {
	requests chan chan admin.Reload // who asks and waits
	hangup   chan struct{}          // one slot: SIGHUP asks
	results  [admin.ReloadResults]atomic.Uint64
	// lastRefused says that the files are not what runs: the last reload took
	// nothing up.
	lastRefused atomic.Bool
	// onReload, if set before run, is told when a reload begins and when what it
	// has taken up is in force, as a service manager wants to be.
	onReload func(begins bool)
}

// reload reads the configuration anew, and returns when it is in force, or wait
// after it was taken up: then it says what is missing. On a mistake nothing has
// changed. It may be called from anywhere; the error is ctx's.
func (a *agent) reload(ctx context.Context, wait time.Duration) (admin.Reload, error) {
	done := make(chan admin.Reload, 1)
	select {
	case a.requests <- done:
	case <-ctx.Done():
		return admin.Reload{}, ctx.Err()
	}
	r := <-done
	a.awaitWarm(ctx, &r, wait)
	return r, nil
}

// reloads runs the reloads that are asked for, until ctx ends.
func (a *agent) reloads(ctx context.Context) error {
	for {
		select {
		case done := <-a.requests:
			done <- a.reloadNow(ctx, "/reload")
		case <-a.hangup:
			a.reloadNow(ctx, "SIGHUP")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// reloadNow reloads, and logs and counts how that went.
func (a *agent) reloadNow(ctx context.Context, by string) admin.Reload {
	if a.onReload != nil {
		a.onReload(true)
		defer a.onReload(false)
	}
	var r admin.Reload
	next, err := a.readAgain()
	if err == nil {
		r, err = a.become(ctx, next)
	}
	if err != nil {
		why := err.Error()
		errs, _ := errors.AsType[config.Errors](err)
		if errs != nil {
			why = mistakes(len(errs)) + " in it"
			for _, e := range errs {
				a.log.Error("a mistake in the configuration", "by", by, "mistake", e.Error())
			}
		}
		const refused = "the configuration is not taken up, what ran runs on"
		none := compare[string](nil, nil, nil)
		r = admin.Reload{
			Result: admin.ReloadRefused, Error: refused + ": " + why, Errors: errs,
			Clusters: none, Listeners: none, Settings: []string{}, NeedsRestart: []string{}, NotWarm: []node.Unsettled{},
		}
		_, r.Bind = errors.AsType[*node.BindError](err)
		a.log.Error(refused, "by", by, "err", why)
	} else {
		for _, w := range next.Warnings {
			a.log.Warn("the configuration says what may not be meant", "warning", w.Error())
		}
		if len(r.NeedsRestart) > 0 {
			a.log.Warn("settings are not in force before the agent is restarted", "by", by, "settings", r.NeedsRestart)
		}
		count := func(c admin.Changes) []int {
			return []int{len(c.Added), len(c.Changed), len(c.Removed), len(c.Unchanged)}
		}
		a.log.Info("the configuration is taken up", "by", by, "settings", r.Settings,
			"clusters_added_changed_removed_unchanged", count(r.Clusters), "listeners_added_changed_removed_unchanged", count(r.Listeners))
	}
	a.results[r.Result].Add(1)
	a.lastRefused.Store(err != nil)
	return r
}

func (a *agent) readAgain() (*config.Config, error) {
	switch {
	case a.draining.Load():
		return nil, errDraining
	case a.handing.Load() || a.taking():
		return nil, errTakeover
	case a.read == nil:
		return nil, errors.New("this agent has no configuration to read again")
	}
	return a.read()
}

var errDraining = errors.New("the agent is draining")

// become makes next what runs, as far as that goes without a restart. On an error
// nothing has changed: what can fail comes first.
func (a *agent) become(ctx context.Context, next *config.Config) (admin.Reload, error) {
	running := a.cfg.Load()
	after, settings, restart := running.Reload(next)
	r := admin.Reload{
		Settings: settings, NeedsRestart: restart, Warnings: next.Warnings,
		Clusters:  compare(running.Clusters, after.Clusters, func(c config.Cluster) string { return c.Name }),
		Listeners: compare(running.Listeners, after.Listeners, func(l config.Listener) string { return l.Name }),
	}
	if len(restart) > 0 {
		r.Result = admin.ReloadInPart
	}
	c, err := a.clients(running, after)
	if err != nil {
		return r, err
	}
	if c.dns != nil { // clusters that are new want it at once
		a.dns.Store(c.dns)
	}
	err = a.wanted.reread(ctx, node.Spec{Clusters: after.Clusters, Listeners: after.Listeners}, muted(after))
	if err == nil && a.draining.Load() { // since: nothing is opened any more
		err = errDraining
	}
	if err != nil {
		if c.dns != nil {
			a.dns.Store(nil)
		}
		return r, err
	}
	a.cfg.Store(after)
	a.change(c)
	bounded, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	err = a.node.Look(bounded)
	if client := a.xds.load(); client != nil {
		err = errors.Join(err, client.Look(bounded))
	}
	if a.adminTLS != nil {
		err = errors.Join(err, a.adminTLS.Look(bounded))
	}
	if err != nil {
		a.log.Warn("tls files were not looked at in time, that follows", "err", err)
	}
	a.node.SetDrainTimeout(after.DrainTimeout)
	if running.Log.Level != after.Log.Level && a.level != nil { // else what was said meanwhile stays
		a.level.Set(after.Log.Level)
	}
	return r, nil
}

// lookWithin bounds the wait until TLS files have been looked at.
const lookWithin = 5 * time.Second

// compare returns which of the named things differ.
func compare[T any](before, after []T, name func(T) string) admin.Changes {
	c := admin.Changes{Added: []string{}, Changed: []string{}, Removed: []string{}, Unchanged: []string{}}
	was := make(map[string]T, len(before))
	for _, x := range before {
		was[name(x)] = x
	}
	for _, x := range after {
		n := name(x)
		switch old, ok := was[n]; {
		case !ok:
			c.Added = append(c.Added, n)
		case reflect.DeepEqual(old, x):
			c.Unchanged = append(c.Unchanged, n)
		default:
			c.Changed = append(c.Changed, n)
		}
		delete(was, n)
	}
	for n := range was {
		c.Removed = append(c.Removed, n)
	}
	slices.Sort(c.Removed)
	return c
}

// clients are what a configuration asks, where another one did not, or otherwise.
type clients struct {
	xds       *xds.Client
	xdsConfig *xds.Config // of xds
	consul    *consul.Client
	dns       *dns.Client
	// noXDS says that no control plane is asked any more, and the functions, if set,
	// change a client that stays.
	noXDS             bool
	setConsul, setDNS func() error
}

// clients makes those that after needs where running is in force; that is nil at
// the start. They have no effect yet.
func (a *agent) clients(running, after *config.Config) (c clients, err error) {
	if running == nil || !reflect.DeepEqual(running.XDS, after.XDS) {
		xc, err := bootstrap(after)
		if err != nil {
			return c, err
		}
		if c.noXDS = xc == nil; xc != nil {
			xc.Logger, xc.State, xc.Panics = a.log, a.store, a.panics
			xc.Loads = func(wanted func(string) bool) []xds.ClusterLoad { return a.node.Loads(wanted) }
			c.xdsConfig = xc
			if c.xds, err = xds.NewClient(*xc); err != nil {
				return c, err
			}
		}
	}
	have := a.dns.Load()
	if have == nil && (after.UsesDNS() || after.XDS.Clusters) || have != nil && !reflect.DeepEqual(running.DNS, after.DNS) {
		dc, err := dnsConfig(after.DNS)
		if err = errors.Join(err, dc.Validate()); err != nil {
			return c, err
		}
		dc.Logger, dc.Panics = a.log, a.panics
		if have != nil {
			c.setDNS = func() error { return have.Set(dc) }
		} else if c.dns, err = dns.New(dc); err != nil {
			return c, err
		}
	}
	return c, a.consulClient(running, after, &c)
}

// consulClient is the part of clients that is about Consul.
func (a *agent) consulClient(running, after *config.Config, c *clients) (err error) {
	have := a.consul.load()
	if have == nil && !after.UsesConsul() || have != nil && reflect.DeepEqual(running.Consul, after.Consul) {
		return nil
	}
	cc := consulConfig(after.Consul)
	if err = cc.Validate(); err != nil {
		return err
	}
	if have != nil && cc.SameButAccess(consulConfig(running.Consul)) &&
		running.Consul.Listeners == after.Consul.Listeners && reflect.DeepEqual(running.Consul.Register, after.Consul.Register) {
		c.setConsul = func() error { return have.SetAccess(cc) }
		return nil
	}
	cc.Logger, cc.Panics = a.log, a.panics
	c.consul, err = consul.New(cc)
	return err
}

// change has the agent ask as c says, which can't fail where clients did not. The
// configuration is in force already.
func (a *agent) change(c clients) {
	if c.xds != nil || c.noXDS {
		a.xdsConfig.Store(c.xdsConfig)
		a.xds.put(c.xds)
	}
	if c.consul != nil {
		a.consul.put(c.consul)
	}
	for _, set := range []func() error{c.setConsul, c.setDNS} {
		if set == nil {
			continue
		}
		if err := set(); err != nil {
			a.log.Error("settings are not in force", "err", err)
		}
	}
}

// warmEvery is how often it is looked whether what a reload began is in force.
const warmEvery = 20 * time.Millisecond

// awaitWarm waits until the clusters that r tells of are in force, at most wait,
// and notes those that are not.
func (a *agent) awaitWarm(ctx context.Context, r *admin.Reload, wait time.Duration) {
	if r.Result == admin.ReloadRefused {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	tick := time.NewTicker(warmEvery)
	defer tick.Stop()
	names := slices.Concat(r.Clusters.Added, r.Clusters.Changed)
	for {
		r.NotWarm = a.node.Unsettled(names)
		if len(r.NotWarm) == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			r.Result = admin.ReloadInPart
			return
		}
	}
}
