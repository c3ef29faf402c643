package dns

import (
	"math"
	"net/netip"
	"slices"
	"strings"

	"gatehouse.internal/lbcore"
)

// target is an SRV record with the addresses of its target.
type target struct {
	srv
	addrs []netip.Addr
}

// zeroShare is what a weight of 1 is where the weight 0 is 1: RFC 2782 wants very
// little for it, but not nothing.
const zeroShare = 64

// endpoints returns what SRV records, in order, amount to, and the addresses that
// occurred again.
//
// Priorities become 0, 1, 2 in their order, and all from lbcore.MaxPriority on are
// one. The weights of a tier are those of the records where every target has one
// address and no weight is 0 beside others. Elsewhere all of the tier are 64 times as
// large, for a 0 to be 1, and for a target's to be shared by its addresses.
func endpoints(targets []target) (eps []lbcore.Endpoint, merged []lbcore.Dropped) {
	type key struct {
		at   netip.AddrPort
		tier uint8
	}
	var order []key
	weights := make(map[key]uint64)
	hosts := make(map[netip.AddrPort]string)
	tier := -1
	for rest := targets; len(rest) > 0; {
		n := 1
		for n < len(rest) && rest[n].priority == rest[0].priority {
			n++
		}
		tier = min(tier+1, lbcore.MaxPriority)
		for _, w := range tierWeights(rest[:n]) {
			k := key{w.at, uint8(tier)}
			if _, again := weights[k]; again {
				merged = append(merged, dropped(k.at, k.tier, w.weight))
			} else if _, better := hosts[w.at]; better {
				merged = append(merged, dropped(k.at, k.tier, w.weight))
				continue
			} else {
				order = append(order, k)
				hosts[w.at] = w.host
			}
			weights[k] += w.weight
		}
		rest = rest[n:]
	}
	for _, k := range order {
		eps = append(eps, lbcore.Endpoint{
			Addr: lbcore.IPAddr(k.at), Weight: uint32(min(weights[k], math.MaxUint32)), Priority: k.tier, Hostname: hosts[k.at],
		})
	}
	return eps, merged
}

func dropped(at netip.AddrPort, tier uint8, weight uint64) lbcore.Dropped {
	return lbcore.Dropped{Index: -1, Endpoint: lbcore.Endpoint{
		Addr: lbcore.IPAddr(at), Weight: uint32(min(weight, math.MaxUint32)), Priority: tier,
	}}
}

// weighed is an address and its weight in a tier.
type weighed struct {
	at     netip.AddrPort
	weight uint64
	host   string
}

// tierWeights returns the addresses of a tier's targets.
func tierWeights(tier []target) (all []weighed) {
	zero, some, shared := false, false, false
	for _, t := range tier {
		zero = zero || t.weight == 0
		some = some || t.weight > 0
		shared = shared || len(t.addrs) > 1
	}
	for _, t := range tier {
		weight := uint64(t.weight)
		switch {
		case !some:
			weight = 1
		case zero && weight == 0:
			weight = 1
		case zero:
			weight *= zeroShare
		}
		if shared {
			if !zero || !some {
				weight *= zeroShare
			}
			weight = max(weight/uint64(max(len(t.addrs), 1)), 1)
		}
		host := strings.TrimSuffix(t.target, ".")
		for _, ip := range t.addrs {
			all = append(all, weighed{netip.AddrPortFrom(ip, t.port), weight, host})
		}
	}
	slices.SortStableFunc(all, func(a, b weighed) int { return a.at.Compare(b.at) })
	return all
}
