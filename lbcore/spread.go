package lbcore

import (
	"cmp"
	"slices"
)

// place is where a selector stands among those of one generation.
type place struct {
	priority, distance uint8
	locality           Locality // the zero value unless each has its selector
}

// compare orders places by preference; localities are all alike in that.
func (p place) compare(q place) int {
	return cmp.Or(p.compareTier(q),
		cmp.Compare(p.locality.Region, q.locality.Region),
		cmp.Compare(p.locality.Zone, q.locality.Zone),
		cmp.Compare(p.locality.SubZone, q.locality.SubZone))
}

// compareTier is compare without localities.
func (p place) compareTier(q place) int {
	return cmp.Or(cmp.Compare(p.priority, q.priority), cmp.Compare(p.distance, q.distance))
}

// partInput is what one selector is built from, with the place where it stands.
type partInput struct {
	place
	Input
	weight uint32 // of the locality, if it has one
}

// distance returns how far l is from s.Local: 0 in its zone, 1 in its region, 2
// elsewhere. What Local doesn't say is everywhere.
func (s *Spread) distance(l *Locality) uint8 {
	switch {
	case !s.PreferLocal:
		return 0
	case s.Local.Region != "" && l.Region != s.Local.Region:
		return 2
	case s.Local.Zone != "" && l.Zone != s.Local.Zone:
		return 1
	}
	return 0
}

// bucket is the endpoints that share their load by their own weights alone.
type bucket struct {
	place
	n      int
	sum    uint64  // of the endpoints' weights
	weight uint32  // of the locality; the largest that an endpoint says
	share  float64 // of the bucket in its selector
	part   int
}

// inputs returns what the selectors of snap are built from, the most preferred
// first: one for each tier, or one for each locality of a tier where localities
// weigh and the policy isn't keyed. Where they weigh, endpoints in localities of
// weight 0 are left out, as are those of weight 0 everywhere.
func inputs(snap *Snapshot, spread Spread, keyed bool) (parts []partInput) {
	buckets, in := sortIn(snap, &spread)
	order := make([]int, len(buckets))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return buckets[a].compare(buckets[b].place) })
	for i := 0; i < len(order); {
		// The buckets of one selector.
		end, n, weights := i, 0, uint64(0)
		for ; end < len(order); end++ {
			b := &buckets[order[end]]
			if end > i && (!keyed || b.compareTier(buckets[order[i]].place) != 0) {
				break
			}
			n += b.n
			weights += uint64(b.weight)
		}
		for _, k := range order[i:end] {
			b := &buckets[k]
			b.part, b.share = len(parts), 1
			if end-i > 1 {
				b.share = float64(b.weight) / float64(weights)
			}
		}
		b := &buckets[order[i]]
		p := partInput{place: b.place, weight: b.weight, Input: Input{
			Members:   make([]*Member, 0, n),
			Endpoints: make([]*Endpoint, 0, n),
			Shares:    make([]float64, 0, n),
		}}
		if keyed {
			p.locality = Locality{}
		}
		parts = append(parts, p)
		i = end
	}
	for i, k := range in {
		if k < 0 {
			continue
		}
		b, e := &buckets[k], &snap.Set.eps[i]
		p := &parts[b.part]
		p.Members = append(p.Members, snap.members[i])
		p.Endpoints = append(p.Endpoints, e)
		p.Shares = append(p.Shares, float64(e.Weight)/float64(b.sum)*b.share)
	}
	return parts
}

// sortIn puts the endpoints of snap into buckets, and returns for each of them
// the bucket it is in, -1 for those that are left out.
func sortIn(snap *Snapshot, spread *Spread) (buckets []bucket, in []int32) {
	in = make([]int32, snap.Set.Len())
	known := make(map[place]int32)
	last := int32(-1)
	for i := range snap.Set.eps {
		e := &snap.Set.eps[i]
		if in[i] = -1; e.Weight == 0 || spread.LocalityWeighted && e.LocalityWeight == 0 {
			continue
		}
		at := place{priority: e.Priority, distance: spread.distance(&e.Locality)}
		if spread.LocalityWeighted {
			at.locality = e.Locality
		}
		if last < 0 || buckets[last].place != at { // neighbours are often of one place
			k, ok := known[at]
			if !ok {
				k = int32(len(buckets))
				known[at] = k
				buckets = append(buckets, bucket{place: at})
			}
			last = k
		}
		in[i] = last
		b := &buckets[last]
		b.n++
		b.sum += uint64(e.Weight)
		b.weight = max(b.weight, e.LocalityWeight)
	}
	return buckets, in
}
