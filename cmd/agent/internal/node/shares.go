package node

import (
	"slices"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/adaptive"
)

// The keys that Shares asks for, evenly spread, and how many are asked between two
// moments in which storage may be reused; RingSectors of them are the picture of a
// ring.
const (
	sampledKeys = 1 << 14
	pinnedKeys  = 1 << 8
	RingSectors = 1 << 9
)

// SelectorShares is how one selector shares new connections by what it serves now.
type SelectorShares struct {
	Name, Policy string
	Generation   uint64
	// Keys is how many evenly spread keys were picked for, so that each Part counts
	// in steps of 1/Keys. It is 0 where keys have no say: there the parts are those
	// of the weights, as between endpoints with equally many connections.
	Keys  int
	Parts []Part // by address; whoever gets nothing is left out
	// Ring, of the policy ring_hash, has RingSectors sectors of the space of hashes
	// from 0 on: each is the index in Parts of who gets the key in its middle, or -1.
	Ring []int
}

// Part is the share of new connections that an endpoint gets, above 0 and up to 1.
type Part struct {
	Addr  lbcore.Addr
	Share float64
}

// Cluster describes one cluster that has endpoints of its own, and how its selectors
// share new connections, or returns false. It takes milliseconds where keys have a
// say. It may be called from anywhere.
func (n *Node) Cluster(name string) (ClusterStatus, []SelectorShares, bool) {
	t := n.table.Load()
	c := t.clusters[name]
	if c == nil {
		return ClusterStatus{}, nil, false
	}
	st := c.status(true)
	if next := t.warming[name]; next != nil {
		st.Waiting = "changed settings are not in force yet: " + next.waiting()
	}
	shares := make([]SelectorShares, 0, len(st.Selectors))
	for _, slot := range c.group.Slots() {
		s := SelectorShares{Name: slot.Name(), Policy: slot.Policy(), Generation: slot.Stats().Generation}
		if slot.Keyed() {
			s.sample(n.cfg.Gate, slot)
		} else {
			s.weigh(slot)
		}
		shares = append(shares, s)
	}
	return st, shares, true
}

// weigh shares by the weights, or by what an adaptive selector has learnt.
func (s *SelectorShares) weigh(slot *lbcore.Slot) {
	var weight func(*lbcore.Member, uint32) float64
	if s.Policy == config.PolicyAdaptive {
		weight = func(m *lbcore.Member, _ uint32) float64 { return adaptive.Weight(m) }
	}
	for _, sh := range slot.Shares(weight) {
		if sh.Part > 0 {
			s.Parts = append(s.Parts, Part{sh.Addr(), sh.Part})
		}
	}
	slices.SortFunc(s.Parts, func(a, b Part) int { return a.Addr.Compare(b.Addr) })
}

// sample has the slot pick for keys whose hashes are spread evenly, ketama's too.
func (s *SelectorShares) sample(gate *lbcore.Gate, slot *lbcore.Slot) {
	s.Keys = sampledKeys
	owners := make([]*lbcore.Member, sampledKeys)
	got := make(map[*lbcore.Member]int)
	for from := 0; from < sampledKeys; from += pinnedKeys {
		r := gate.Pin()
		for i := from; i < from+pinnedKeys; i++ {
			hash := sampleHash(uint64(i))
			p := slot.Pick(r, lbcore.Key{Hash: hash, CRC: uint32(hash >> 32), Set: true}, 1)
			if m := p.Next(); m != nil {
				owners[i] = m
				got[m]++
			}
		}
		r.Unpin()
		if len(got) == 0 {
			break // nobody is acceptable, else each key leads to somebody
		}
	}
	for m, n := range got {
		s.Parts = append(s.Parts, Part{m.Addr(), float64(n) / sampledKeys})
	}
	slices.SortFunc(s.Parts, func(a, b Part) int { return a.Addr.Compare(b.Addr) })
	if s.Policy != config.PolicyRingHash {
		return
	}
	s.Ring = make([]int, RingSectors)
	for i := range s.Ring {
		s.Ring[i] = -1
		if m := owners[i*sampledKeys/RingSectors+sampledKeys/RingSectors/2]; m != nil {
			s.Ring[i], _ = slices.BinarySearchFunc(s.Parts, m.Addr(), func(p Part, a lbcore.Addr) int { return p.Addr.Compare(a) })
		}
	}
}

// sampleHash returns a hash in the i-th of sampledKeys equal parts of all hashes. Its
// lower bits look random, since the choice of a priority goes by these.
func sampleHash(i uint64) uint64 {
	const width = 1 << 50 // 2^64 / sampledKeys
	return i*width + i*0x9e3779b97f4a7c15%width
}
