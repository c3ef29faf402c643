package node

import (
	"maps"
	"time"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/forwarder"
	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/lbcore"
)

// heritage is what a cluster takes over from the one that it replaces, whose
// connections go on.
type heritage struct {
	manual     map[lbcore.Addr]bool
	ends       *forwarder.Ends
	open       *forwarder.Count
	pending    *forwarder.Count
	latency    *forwarder.Latency
	loads      *loads
	dropCounts *dropCounts
	failures   *tlsconf.Failures // of TLS to endpoints
	// former are endpoints of the clusters before, which may have connections
	// that this one's View does not know of, and since when nobody lists them.
	// The owner writes it.
	former map[lbcore.Addr]time.Time
	// before is the cluster that this one replaces, whose ejections go on; nil
	// once this one serves. The owner writes it.
	before *cluster
}

// bequeath returns what the successor of c takes over; c may be nil. It may be
// called from anywhere.
func (c *cluster) bequeath() heritage {
	if c == nil {
		return heritage{
			ends: new(forwarder.Ends), open: new(forwarder.Count), pending: new(forwarder.Count), latency: new(forwarder.Latency),
			dropCounts: new(dropCounts), failures: new(tlsconf.Failures),
		}
	}
	sh := c.shown.Load()
	h := heritage{
		manual: sh.manual, ends: c.ends, open: c.open, pending: c.pending, latency: c.latency, loads: c.loads, dropCounts: c.dropCounts, failures: c.failures,
		former: maps.Clone(sh.former), before: c,
	}
	if h.former == nil {
		h.former = make(map[lbcore.Addr]time.Time)
	}
	for _, ep := range sh.endpoints {
		h.former[ep.Addr()] = time.Time{}
	}
	return h
}

// formerFor is for how much longer than close_after former endpoints are
// followed: a dial may have been in progress.
const formerFor = time.Minute

// endConnections brings up to date which endpoints are to lose their
// connections. A cluster that does not serve yet, or any more, has no say.
func (c *cluster) endConnections() {
	t := c.table.Load()
	if t.clusters[c.cfg.Name] != c {
		return
	}
	removal, onRemoval := c.ending(c.cfg.OnRemoval, forwarder.ErrRemoved)
	illness, onIllness := c.ending(c.cfg.OnUnhealthy, forwarder.ErrUnhealthy)
	illness.SpareNew = true // connections of a panic
	want := make(map[lbcore.Addr]forwarder.Ending)
	if !onRemoval && len(c.former) > 0 { // they would pile up
		clear(c.former)
		c.stale = true
	}
	if onRemoval || onIllness {
		listed := make(map[lbcore.Addr]bool)
		served := c.group.Served()
		for _, m := range c.view.Members() {
			withdrawn := m.Withdrawn()
			listed[m.Addr()] = !withdrawn
			switch {
			// While a selector has it, it may still be chosen.
			case onRemoval && (m.Gone(served) || m.Disabled()):
				want[m.Addr()] = removal
			case onIllness && !withdrawn && (m.Health() == lbcore.HealthUnhealthy || m.Ejected() || m.Endpoint().Status == lbcore.StatusUnhealthy):
				want[m.Addr()] = illness
			}
		}
		for a, since := range c.former {
			switch {
			case !c.warm.Load():
			case listed[a]:
				c.former[a] = time.Time{}
			case since.IsZero():
				c.former[a], want[a] = time.Now(), removal
			case time.Since(since) < removal.Within+formerFor:
				want[a] = removal
			default:
				delete(c.former, a)
				c.stale = true
			}
		}
	}
	if !c.ends.Set(want) {
		return
	}
	if n := len(want); n > 0 {
		c.log.Info("connections to endpoints that are removed or unhealthy are being closed", "endpoints", n)
	}
	for _, l := range t.listeners {
		l.fwd.Review()
	}
}

// removed has the connections of a cluster that is removed end as those of an
// endpoint that is. Run's goroutine calls it once no listener leads there.
func (c *cluster) removed(listeners []*listener) {
	e, ok := c.ending(c.cfg.OnRemoval, forwarder.ErrRemoved)
	if !ok {
		return
	}
	c.log.Info("connections of a removed cluster are being closed", "connections", c.open.Open(), "within", e.Within)
	c.ends.SetAll(e)
	for _, l := range listeners {
		l.fwd.Review()
	}
}

// ending returns how a setting has connections closed, and whether it does.
func (c *cluster) ending(setting string, err error) (forwarder.Ending, bool) {
	switch setting {
	case config.EndClose:
		return forwarder.Ending{Err: err}, true
	case config.EndCloseAfter:
		return forwarder.Ending{Err: err, Within: c.cfg.CloseAfter}, true
	}
	return forwarder.Ending{}, false
}
