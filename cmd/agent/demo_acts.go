package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"gatehouse.internal/cmd/agent/internal/node"
	"gatehouse.internal/lbcore"
)

// listed returns the backends that the control plane lists.
func (d *demo) listed() []*demoBackend {
	return slices.DeleteFunc(slices.Clone(d.backends), func(b *demoBackend) bool { return !b.listed })
}

func (d *demo) addBackend() error {
	b, err := newDemoBackend()
	if err != nil {
		return err
	}
	d.backends = append(d.backends, b)
	d.start("backend "+b.addr(), b.run)
	return nil
}

// stopOne has a backend stop accepting, as a process that was killed, and
// waits until the agent has noticed.
func (d *demo) stopOne(ctx context.Context) error {
	var b *demoBackend
	for _, x := range d.listed() {
		if !x.stopped.Load() {
			b = x
			break
		}
	}
	if b == nil {
		return nil
	}
	at := time.Now()
	d.clients.stoppedAt(b.addr())
	b.stop()
	d.say("%s stops: its listening socket and its connections are gone", b.addr())
	err := d.until(ctx, "the stopped backend is noticed", func() bool {
		seen := 0
		for _, c := range d.agent.node.Status().Clusters {
			for _, e := range c.Endpoints {
				if e.Addr.String() == b.addr() && e.Health == lbcore.HealthUnhealthy {
					seen++
				}
			}
		}
		return seen == 2 // in both clusters, by one probe
	})
	if err != nil {
		return err
	}
	d.report.DetectionMS = max(1, time.Since(at).Milliseconds())
	d.clients.detected()
	d.say("%s is unhealthy in both clusters after %d ms; selectors stay as they are", b.addr(), d.report.DetectionMS)
	return nil
}

// reviveOne starts the stopped backend again, so that another round can begin.
func (d *demo) reviveOne(ctx context.Context) error {
	for _, b := range d.listed() {
		if !b.stopped.Load() {
			continue
		}
		// A connection of somebody may have the port for a moment.
		if err := d.until(ctx, "the stopped backend's address is free", func() bool { return b.revive() == nil }); err != nil {
			return err
		}
		d.start("backend "+b.addr(), b.run)
		d.clients.revived(b.addr())
		d.say("%s is started again", b.addr())
		if err := d.until(ctx, "the revived backend is ready", func() bool { return d.endpoint(b).Ready }); err != nil {
			return err
		}
	}
	return nil
}

// addOne has the control plane list another backend.
func (d *demo) addOne(ctx context.Context) error {
	if err := d.addBackend(); err != nil {
		return err
	}
	b := d.backends[len(d.backends)-1]
	if err := d.control.publish(d.listed()); err != nil {
		return err
	}
	d.say("%s is added through EDS", b.addr())
	return d.until(ctx, "the new backend is ready", func() bool { return d.endpoint(b).Ready })
}

// removeOne has the control plane forget the oldest backend that serves.
func (d *demo) removeOne(ctx context.Context) error {
	for _, b := range d.listed() {
		if b.stopped.Load() {
			continue
		}
		b.listed = false
		if err := d.control.publish(d.listed()); err != nil {
			return err
		}
		d.say("%s is removed through EDS; its connections live on", b.addr())
		return d.until(ctx, "the removed backend has left", func() bool { return !d.endpoint(b).Ready })
	}
	return nil
}

// endpoint returns what the agent knows of b in the cluster web.
func (d *demo) endpoint(b *demoBackend) node.EndpointStatus {
	for _, c := range d.agent.node.Status().Clusters {
		for _, e := range c.Endpoints {
			if c.Name == "web" && e.Addr.String() == b.addr() {
				return e
			}
		}
	}
	return node.EndpointStatus{}
}

// tell prints the shares since the last time, and what selectors serve.
func (d *demo) tell() {
	shares := d.clients.shares()
	for _, l := range slices.Sorted(shares.listeners()) {
		var parts []string
		for _, b := range d.backends {
			if n := shares[share{l, b.addr()}]; n > 0 {
				parts = append(parts, fmt.Sprintf("%s %d", b.addr(), n))
			}
		}
		d.say("  listener %-7s %s", l+":", strings.Join(parts, ", "))
	}
	var gens []string
	for _, c := range d.agent.node.Status().Clusters {
		for _, s := range c.Selectors {
			gens = append(gens, fmt.Sprintf("%s/%s (%s) generation %d", c.Name, s.Name, s.Policy, s.Generation))
		}
	}
	d.say("  selectors: %s", strings.Join(gens, ", "))
}

// finish fills in the report.
func (d *demo) finish() *demoReport {
	r := &d.report
	d.clients.fill(r)
	healthy := make(map[string]bool)
	for _, c := range d.agent.node.Status().Clusters {
		r.Probes.Views++
		for _, e := range c.Endpoints {
			healthy[e.Addr.String()] = healthy[e.Addr.String()] || e.Health == lbcore.HealthHealthy && !e.Withdrawn
		}
		for _, s := range c.Selectors {
			r.Selectors = append(r.Selectors, demoSelector{c.Name, s.Name, s.Policy, s.Generation, s.Rebuilds, s.Coalesced})
		}
	}
	for _, b := range d.backends {
		r.Endpoints = append(r.Endpoints, demoEndpoint{b.addr(), int(b.served.Load()), healthy[b.addr()]})
	}
	r.Probes.Targets = d.agent.health.Stats().Targets
	d.say("%d connections, %d failed, %d cut with the stopped backend; %d endpoints are probed, once each for %d views",
		r.Connections, r.Failed, r.Cut, r.Probes.Targets, r.Probes.Views)
	return r
}
