package node

import (
	"sync"
	"time"

	"gatehouse.internal/lbcore"
	"gatehouse.internal/xds"
)

// maxLoadPlaces bounds the localities that are remembered of endpoints that have left
// since the last load report; what is beyond them counts for no locality.
const maxLoadPlaces = 1024

// loads counts the connections of a cluster for load reports. Clusters that replace
// each other share one, so that nothing is lost with them, nor with endpoints that
// leave. Nil is for a cluster without load reports. Its methods may be called from
// anywhere; connections don't call them.
type loads struct {
	mu      sync.Mutex
	since   time.Time
	members map[*lbcore.Member]counted
	left    map[*lbcore.Member]bool // of members, those that no View has any more
	sweepAt int                     // when so many have left, those are let go of that can be
	rest    map[loadPlace]xds.Load  // of members that have ended
	dropped dropped                 // that was told
}

// dropped counts connections that were dropped: over a circuit breaker, and by
// category of drop_overloads. The map is never written.
type dropped struct {
	over       uint64
	byCategory map[string]uint64
}

// counted is what was told of a member.
type counted struct{ issued, successful, failed uint64 }

type loadPlace struct {
	lbcore.Locality
	priority uint8
}

// newLoads returns what counts from now on. Dropped is the total until now.
func newLoads(dropped dropped) *loads {
	return &loads{
		since: time.Now(), members: make(map[*lbcore.Member]counted), left: make(map[*lbcore.Member]bool),
		rest: make(map[loadPlace]xds.Load), dropped: dropped,
	}
}

// join has a new member counted.
func (l *loads) join(m *lbcore.Member) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.members[m]; !known {
		l.members[m] = counted{}
	}
}

// leave tells that no View has m any more. Its connections are counted until they have
// ended.
func (l *loads) leave(m *lbcore.Member) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.left) >= l.sweepAt { // and not m: who has picked it just now may dial it
		l.settle()
		l.sweepAt = 2*len(l.left) + 16
	}
	if _, known := l.members[m]; known {
		l.left[m] = true
	}
}

// settle lets go of members that have left and have no connections any more.
func (l *loads) settle() {
	for m := range l.left {
		if m.Active() > 0 {
			continue
		}
		e := l.count(m)
		p := loadPlace{e.Locality, e.Priority}
		if _, known := l.rest[p]; !known && len(l.rest) >= maxLoadPlaces {
			p = loadPlace{priority: p.priority}
		}
		r := l.rest[p]
		if r.Add(e.Load); r != (xds.Load{}) {
			l.rest[p] = r
		}
		delete(l.left, m)
		delete(l.members, m)
	}
}

// count returns what has happened at m since the last call.
func (l *loads) count(m *lbcore.Member) xds.EndpointLoad {
	last := l.members[m]
	opened, failed, _, _ := m.Counters() // before what is open: see Open
	open := uint64(m.Open())
	now := counted{issued: opened, successful: last.successful, failed: failed}
	if opened > open {
		now.successful = max(last.successful, opened-open)
	}
	l.members[m] = now
	at := m.Endpoint()
	return xds.EndpointLoad{
		Addr: at.Addr, Locality: at.Locality, Priority: at.Priority,
		Load: xds.Load{
			Issued: now.issued - last.issued, Successful: now.successful - last.successful, Failed: now.failed - last.failed, InProgress: open,
		},
	}
}

// take returns what has happened since the last call. Dropped is the total until now.
func (l *loads) take(dropped dropped) (c xds.ClusterLoad) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settle()
	for m := range l.members {
		if e := l.count(m); e.Load != (xds.Load{}) {
			c.Endpoints = append(c.Endpoints, e)
		}
	}
	for p, load := range l.rest {
		c.Endpoints = append(c.Endpoints, xds.EndpointLoad{Locality: p.Locality, Priority: p.priority, Load: load})
	}
	clear(l.rest)
	now := time.Now()
	c.Interval, l.since = now.Sub(l.since), now
	c.Dropped = dropped.over - l.dropped.over
	for category, n := range dropped.byCategory {
		if n -= l.dropped.byCategory[category]; n > 0 {
			if c.DroppedBy == nil {
				c.DroppedBy = make(map[string]uint64)
			}
			c.DroppedBy[category] = n
		}
	}
	l.dropped = dropped
	return c
}

// dropped returns how many connections were dropped until now.
func (h *heritage) dropped() dropped {
	return dropped{h.open.Refused() + h.pending.Refused(), h.dropCounts.totals()}
}

// Loads returns what has happened since the last call in those clusters that are
// wanted, of all whose loads are reported. It may be called from anywhere, by one
// goroutine at a time.
func (n *Node) Loads(wanted func(cluster string) bool) (all []xds.ClusterLoad) {
	for name, c := range n.table.Load().clusters {
		if c.loads == nil || !wanted(name) {
			continue
		}
		load := c.loads.take(c.dropped())
		load.Cluster = name
		for _, b := range c.blocks {
			if b.name != name { // that of the EDS resource
				load.Service = b.name
			}
		}
		all = append(all, load)
	}
	return all
}
