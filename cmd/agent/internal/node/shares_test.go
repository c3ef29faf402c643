package node

import (
	"math"
	"testing"

	"gatehouse.internal/cmd/agent/internal/config"
)

// Each selector says who gets what, by what it serves, whatever the policy.
func TestShares(t *testing.T) {
	r := start(t)
	eps := addresses(3)
	eps[2].Weight = 2
	c := clusterOf("web", static(eps...))
	c.Selectors = append(c.Selectors, []config.Selector{
		{Name: "ring", Policy: config.PolicyRingHash, MinimumRingSize: 1024, MaximumRingSize: 8192, HashFunction: "xx_hash"},
		{Name: "ketama", Policy: config.PolicyRingHash, MaximumRingSize: 8192, HashFunction: "ketama"},
		{Name: "maglev", Policy: config.PolicyMaglev, TableSize: 65537},
		{Name: "adaptive", Policy: config.PolicyAdaptive, Rank: config.RankInverse, LatencyOf: "connect"},
	}...)
	r.apply(Spec{Clusters: []config.Cluster{c}})
	within(t, "all selectors serve", func() bool {
		for _, s := range r.cluster("web").Selectors {
			if s.Generation == 0 {
				return false
			}
		}
		return true
	})
	check := func(what string, ready int) {
		t.Helper()
		st, all, ok := r.Node.Cluster("web")
		if !ok || st.Name != "web" || len(st.Endpoints) != 3 || len(all) != 5 {
			t.Fatalf("%s: %t, %+v, %d selectors", what, ok, st, len(all))
		}
		for _, s := range all {
			sum, heavy := 0.0, 0.0
			for _, p := range s.Parts {
				sum += p.Share
				if p.Addr == eps[2].Addr {
					heavy = p.Share
				}
			}
			if math.Abs(sum-1) > 1e-9 || len(s.Parts) != ready || s.Generation == 0 {
				t.Errorf("%s, %s: %+v, the sum is %g", what, s.Name, s, sum)
			}
			want, tolerance := 2/float64(ready+1), 0.08 // how even a ring is
			if s.Policy == config.PolicyAdaptive {
				want = 1 / float64(ready)
			}
			if s.Keys == 0 {
				tolerance = 1e-9
			}
			if math.Abs(heavy-want) > tolerance {
				t.Errorf("%s, %s: the third one's part is %g, want %g", what, s.Name, heavy, want)
			}
			if (s.Keys > 0) != (s.Policy == config.PolicyRingHash || s.Policy == config.PolicyMaglev) || (s.Ring != nil) != (s.Policy == config.PolicyRingHash) {
				t.Errorf("%s, %s (%s): %d keys, a ring of %d sectors", what, s.Name, s.Policy, s.Keys, len(s.Ring))
			}
			count := make([]int, len(s.Parts))
			for _, at := range s.Ring {
				if at < 0 {
					t.Fatalf("%s, %s: a sector is nobody's", what, s.Name)
				}
				count[at]++
			}
			for i, n := range count {
				if s.Ring != nil && math.Abs(float64(n)/RingSectors-s.Parts[i].Share) > 0.08 {
					t.Errorf("%s, %s: %d of %d sectors are for a share of %g", what, s.Name, n, len(s.Ring), s.Parts[i].Share)
				}
			}
		}
	}
	check("all ready", 3)
	if err := r.SetEnabled(t.Context(), "web", eps[0].Addr, false); err != nil {
		t.Fatal(err)
	}
	check("one disabled", 2)
	for _, name := range []string{"", "absent"} {
		if _, _, ok := r.Node.Cluster(name); ok {
			t.Errorf("there is a cluster %q", name)
		}
	}
	for _, e := range eps[1:] {
		if err := r.SetEnabled(t.Context(), "web", e.Addr, false); err != nil {
			t.Fatal(err)
		}
	}
	_, all, _ := r.Node.Cluster("web")
	for _, s := range all {
		if len(s.Parts) != 0 {
			t.Errorf("nobody takes connections: %+v", s)
		}
		for _, at := range s.Ring {
			if at != -1 {
				t.Fatalf("a sector of %s is %d", s.Name, at)
			}
		}
	}
}

// The sampled hashes lie in one sector each, and their lower bits are of all sorts.
func TestSampleHash(t *testing.T) {
	var lots [100]int
	for i := range uint64(sampledKeys) {
		h := sampleHash(i)
		if h>>50 != i {
			t.Fatalf("hash %x is number %d", h, i)
		}
		lots[h%100]++
	}
	for lot, n := range lots {
		if n < sampledKeys/100*8/10 || n > sampledKeys/100*12/10 {
			t.Errorf("lot %d has %d keys", lot, n)
		}
	}
}
