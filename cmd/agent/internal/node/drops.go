package node

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync/atomic"

	"gatehouse.internal/forwarder"
	"gatehouse.internal/lbcore"
)

// dropping is what of a cluster's connections discovery wants dropped. It is never
// written, but for the counters.
type dropping []dropCategory

type dropCategory struct {
	lbcore.Drop
	refusal *forwarder.Refusal
	dropped *atomic.Uint64
}

// refuse decides about one connection: nil has it go on. It takes no lock and
// allocates nothing.
func (d dropping) refuse() *forwarder.Refusal {
	for i := range d {
		if rand.Uint32N(1_000_000) < d[i].PerMillion { // of the thread's own source
			d[i].dropped.Add(1)
			return d[i].refusal
		}
	}
	return nil
}

// setDrops has connections be dropped as discovery says. Counters go on, also those
// of categories that come back.
func (c *cluster) setDrops(drops lbcore.Drops) {
	if drops == c.present {
		return
	}
	c.present = drops
	var d dropping
	for x := range drops.All() {
		d = append(d, dropCategory{x, &forwarder.Refusal{
			Flag: forwarder.FlagDO, Reason: fmt.Sprintf("cluster %q drops connections: category %q", c.cfg.Name, x.Category),
		}, c.dropCounts.of(x.Category)})
	}
	if d == nil {
		c.drops.Store(nil)
		return
	}
	c.drops.Store(&d)
}

// maxDropCategories bounds how many categories a cluster counts on its own over its
// life; those beyond are one, by the name of otherCategories.
const (
	maxDropCategories = 64
	otherCategories   = "other"
)

// dropCounts counts connections that were dropped, by category. The map is never
// written.
type dropCounts struct {
	counters atomic.Pointer[map[string]*atomic.Uint64]
}

// of returns the counter of a category. One goroutine at a time calls it.
func (d *dropCounts) of(category string) *atomic.Uint64 {
	var all map[string]*atomic.Uint64
	if p := d.counters.Load(); p != nil {
		all = *p
	}
	if all[category] == nil && len(all) >= maxDropCategories {
		category = otherCategories
	}
	if all[category] == nil {
		next := maps.Clone(all)
		if next == nil {
			next = make(map[string]*atomic.Uint64)
		}
		next[category] = new(atomic.Uint64)
		d.counters.Store(&next)
		all = next
	}
	return all[category]
}

// totals returns the counts of all categories, nil if there are none. It may be called
// from anywhere.
func (d *dropCounts) totals() map[string]uint64 {
	counters := d.counters.Load()
	if counters == nil {
		return nil
	}
	all := make(map[string]uint64, len(*counters))
	for category, n := range *counters {
		all[category] = n.Load()
	}
	return all
}

// dropStatus describes what is and was dropped, by the names of the categories. It may
// be called from anywhere.
func (c *cluster) dropStatus() (all []DropStatus) {
	totals := c.dropCounts.totals()
	now := make(map[string]uint32)
	if d := c.drops.Load(); d != nil {
		for _, x := range *d {
			now[x.Category] = x.PerMillion
		}
	}
	for _, category := range slices.Sorted(maps.Keys(totals)) {
		all = append(all, DropStatus{category, now[category], totals[category]})
	}
	return all
}
