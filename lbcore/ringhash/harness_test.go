package ringhash

import (
	"net/netip"
	"testing"
	"unsafe"

	"gatehouse.internal/lbcore"
)

// host returns 127.0.0.1 with that port, as in Envoy's tests.
func host(port int, weight uint32) lbcore.Endpoint {
	ip := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	return lbcore.Endpoint{Addr: lbcore.IPAddr(netip.AddrPortFrom(ip, uint16(port))), Weight: weight}
}

// hosts returns n hosts of weight 1 from a port on.
func hosts(port, n int) (eps []lbcore.Endpoint) {
	for i := range n {
		eps = append(eps, host(port+i, 1))
	}
	return eps
}

func port(e *lbcore.Endpoint) int { return int(e.Addr.AddrPort().Port()) }

func noYield() error { return nil }

// build builds in storage full of rubbish, and checks that Shape said how much
// is needed.
func build(t testing.TB, c Config, in lbcore.Input) *ring[uint16] {
	t.Helper()
	u64, u32, err := c.Shape(in)
	if err != nil {
		t.Fatal(err)
	}
	st := &lbcore.Storage{U64: make([]uint64, u64), U32: make([]uint32, u32)}
	for i := range st.U64 {
		st.U64[i] = 0xdead<<48 | uint64(i)
	}
	for i := range st.U32 {
		st.U32[i] = 0xbad << 20
	}
	sel, err := c.Build(in, st, noYield)
	if err != nil {
		t.Fatal(err)
	}
	r := sel.(*ring[uint16])
	if len(r.hashes) != u64 || len(r.members) != u64 {
		t.Fatalf("%d points and %d members, Shape said %d", len(r.hashes), len(r.members), u64)
	}
	if &r.hashes[0] != &st.U64[0] || unsafe.Pointer(&r.members[0]) != unsafe.Pointer(&st.U32[0]) {
		t.Fatal("the ring is not in the storage that was given")
	}
	return r
}

// counts returns the points of each member.
func (r *ring[M]) counts(n int) []int {
	counts := make([]int, n)
	for _, m := range r.members {
		counts[int(m)]++
	}
	return counts
}

// byHost returns the points of each member by its address.
func (r *ring[M]) byHost(in lbcore.Input) map[lbcore.Addr]int {
	points := make(map[lbcore.Addr]int)
	for i, n := range r.counts(len(in.Members)) {
		points[in.Endpoints[i].Addr] = n
	}
	return points
}

// owner returns the member that gets a hash.
func (r *ring[M]) owner(hash uint64) int {
	m, _ := r.Next(lbcore.Key{}, r.First(lbcore.Key{Hash: hash, Set: true}))
	return m
}

// walk returns the first n candidates for a hash.
func (r *ring[M]) walk(hash uint64, n int) (ms []int) {
	at := r.First(lbcore.Key{Hash: hash, Set: true})
	for range n {
		var m int
		m, at = r.Next(lbcore.Key{}, at)
		ms = append(ms, m)
	}
	return ms
}
