package node

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"sync/atomic"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/forwarder"
	"gatehouse.internal/lbcore"
)

// way is where the connections of a listener go, or those of one of its filter
// chains.
type way struct {
	targets  []config.WeightedCluster // Run's goroutine, as are the next and left
	selector string
	attempts int // endpoints that are dialled; 0 is what the cluster says. It is never written once there are connections
	left     bool
	routes   atomic.Pointer[routes]
}

// routes are where the connections of a listener go. They are never written.
type routes struct {
	targets []target
	total   uint64 // the sum of the weights, at most 2^32-1
}

// one draws a target, by a number that is any of 2^32 with the same chance.
func (r *routes) one(lot uint32) *target {
	if len(r.targets) == 1 {
		return &r.targets[0]
	}
	at := uint32(uint64(lot) * r.total >> 32) // below total
	for i := range r.targets {
		if at < r.targets[i].upTo {
			return &r.targets[i]
		}
	}
	return &r.targets[len(r.targets)-1] // not reached
}

// target is one cluster that takes connections of a listener.
type target struct {
	upTo    uint32       // the sum of the weights so far, its own included
	slot    *lbcore.Slot // nil: refuse
	cluster *cluster     // that has it
	dial    *forwarder.Dial
	none    *forwarder.Refusal
	several *aggregate // in place of slot and cluster
}

// candidates is how many a connection may need that makes so many attempts, 0 for
// what the cluster says.
func (t *target) candidates(attempts int) int {
	if t.dial.MaxPerEndpoint != 0 { // some may be passed over
		return lbcore.MaxPicks
	}
	return cmp.Or(attempts, t.dial.Attempts)
}

// Pick implements forwarder.Upstream. Of several clusters it asks one: if that
// has nobody, so has the connection. Where all candidates have left before they
// were dialled the forwarder asks once more, and there is another draw.
func (w *way) Pick(r *lbcore.Reader, k lbcore.Key) (lbcore.Picks, *forwarder.Dial, error) {
	lot := uint32(0)
	if len(w.routes.Load().targets) > 1 {
		lot = rand.Uint32() // of the thread's own source
	}
	for {
		rs := w.routes.Load()
		t := rs.one(lot)
		var picks lbcore.Picks
		switch a := t.several; {
		case t.slot != nil:
			if no := t.cluster.refuse(); no != nil {
				return picks, t.dial, no
			}
			picks = t.slot.Pick(r, k, t.candidates(w.attempts))
		case a != nil:
			var child int
			if picks, child = a.chain.Pick(r, k, max(w.attempts, a.most)); picks.Len() > 0 {
				to := &a.children[child]
				if no := to.cluster.refuse(); no != nil {
					return lbcore.Picks{}, to.dial, no
				}
				return picks, to.dial, nil
			}
		default:
			return picks, t.dial, t.none
		}
		if picks.Len() > 0 {
			return picks, t.dial, nil
		}
		// A cluster that was replaced ends after its listeners have turned away.
		if w.routes.Load() == rs {
			return picks, t.dial, t.refusal()
		}
	}
}

// refuse returns why a connection is dropped, or can't be had, or nil.
func (c *cluster) refuse() error {
	if d := c.drops.Load(); d != nil {
		if no := d.refuse(); no != nil {
			return no
		}
	}
	return c.mesh.refuse()
}

// refusal returns why the slot has nobody.
func (t *target) refusal() *forwarder.Refusal {
	if t.slot == nil {
		return t.none
	}
	st := t.slot.Stats()
	if st.Rebuilds > 0 || st.Err == nil {
		return t.none
	}
	return &forwarder.Refusal{Flag: t.none.Flag, Reason: t.none.Reason + ": " + failure(t.slot, st.Err)}
}

// aim points the way to its clusters.
func (w *way) aim(t *table) {
	before := w.routes.Load()
	rs := new(routes)
	for i, c := range w.targets {
		to := w.targetOf(t, c.Name)
		// What a listener that is leaving has accepted still picks, also from a
		// cluster that has left with it and ends after it.
		if w.left && t.clusters[c.Name] == nil && t.aggregates[c.Name] == nil && before != nil && i < len(before.targets) {
			to = before.targets[i]
		}
		rs.total += uint64(c.Weight)
		to.upTo = uint32(rs.total)
		rs.targets = append(rs.targets, to)
	}
	w.routes.Store(rs)
}

// aimNow points w to the clusters that there are while the state is being changed: it
// may have connections before settle is through.
func (r *runner) aimNow(w *way) {
	t := &table{clusters: make(map[string]*cluster), unsupported: r.reasons, aggregates: r.n.table.Load().aggregates}
	for _, c := range w.targets {
		if e := r.clusters[c.Name]; e != nil {
			t.clusters[c.Name] = e.serving
		}
	}
	w.aim(t)
}

// targetOf returns what cluster name is at present.
func (w *way) targetOf(t *table, name string) target {
	refuse := func(format string, args ...any) target {
		return target{
			dial: &forwarder.Dial{Cluster: name},
			none: &forwarder.Refusal{Flag: forwarder.FlagNC, Reason: fmt.Sprintf(format, args...)},
		}
	}
	c, a := t.clusters[name], t.aggregates[name]
	reason, unsupported := t.unsupported[name]
	switch {
	case unsupported:
		return refuse("cluster %q is not supported: %s", name, reason)
	case a != nil && w.selector != "" && w.selector != config.DefaultSelector:
		return refuse("cluster %q has no selector %q", name, w.selector)
	case a != nil:
		return target{several: a, dial: &forwarder.Dial{Cluster: name}, none: a.none}
	case c == nil:
		return refuse("cluster %q is not known", name)
	case c.group.Slot(w.selector) == nil:
		return refuse("cluster %q has no selector %q", name, w.selector)
	}
	return target{slot: c.group.Slot(w.selector), cluster: c, dial: c.dial, none: c.none}
}
