package ringhash

import (
	"cmp"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/lbtest"
)

// at returns the endpoint of an address.
func at(t testing.TB, addr string, weight uint32) lbcore.Endpoint {
	t.Helper()
	a, err := lbcore.ParseAddr(addr)
	if err != nil {
		t.Fatal(err)
	}
	return lbcore.Endpoint{Addr: a, Weight: weight}
}

func buildKetama(t testing.TB, c Config, in lbcore.Input) *ketama {
	t.Helper()
	c.Function = Ketama
	return lbtest.Build(t, c, in).(*ketama)
}

// walk returns the addresses of the first n candidates for a key.
func (r *ketama) walk(in lbcore.Input, key string, n int) (got []string) {
	k := lbcore.StringKey(key)
	at := r.First(k)
	for range n {
		var m int
		m, at = r.Next(k, at)
		got = append(got, in.Endpoints[m].Addr.String())
	}
	return got
}

// The maps that Pingora's tests assert.
func TestKetamaVectors(t *testing.T) {
	local := func(ips ...int) (eps []lbcore.Endpoint) {
		for _, ip := range ips {
			eps = append(eps, at(t, fmt.Sprintf("127.0.0.%d:6443", ip), 1))
		}
		return eps
	}
	ten := []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	ports := func(host string, ports ...string) (eps []lbcore.Endpoint) {
		for _, p := range ports {
			eps = append(eps, at(t, host+":"+p, 1))
		}
		return eps
	}
	b1, b2, b3 := at(t, "1.1.1.1:80", 1), at(t, "1.0.0.1:80", 1), at(t, "1.0.0.255:80", 1)
	names := map[string]string{"1.1.1.1:80": "b1", "1.0.0.1:80": "b2", "1.0.0.255:80": "b3"}
	for _, c := range []struct {
		name string
		eps  []lbcore.Endpoint
		keys string // one key with its walk, or keys with who is first
		want string
	}{
		{"ten", local(ten...), "a b", "127.0.0.10:6443 127.0.0.5:6443"},
		{"eleven", local(append(ten, 11)...), "a b", "127.0.0.10:6443 127.0.0.5:6443"},
		{"three", ports("127.0.0.1", "7777", "7778", "7779"), "doghash", "7778 7779 7779 7777 7777 7778 7778 7779"},
		{"two", ports("127.0.0.1", "7777", "7779"), "doghash", "7779 7779 7777 7777 7779"},
		{"IPv6", ports("[::1]", "7777", "7778", "7779"), "doghash", "7777 7778 7777 7778 7778 7777 7779"},
		{"keys of three", []lbcore.Endpoint{b1, b2, b3}, "test0 test1 test2 test3 test4 test5 test6 test7 test8 test9",
			"b2 b1 b1 b1 b1 b3 b1 b3 b1 b2"},
		{"keys of two", []lbcore.Endpoint{b1, b2}, "test0 test1 test2 test3 test4 test5 test6 test7 test8 test9",
			"b2 b1 b1 b1 b1 b2 b1 b1 b1 b2"},
	} {
		in := lbtest.InputOf(t, c.eps...)
		r := buildKetama(t, Config{}, in)
		keys, want := strings.Fields(c.keys), strings.Fields(c.want)
		var got []string
		if len(keys) == 1 {
			got = r.walk(in, keys[0], len(want))
		} else {
			for _, key := range keys {
				got = append(got, r.walk(in, key, 1)...)
			}
		}
		for i, a := range got {
			if name, ok := names[a]; ok {
				got[i] = name
			} else if !strings.Contains(want[i], ":") {
				got[i] = a[strings.LastIndexByte(a, ':')+1:]
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", c.name, got, want)
		}
	}
}

// plainKetama is the rule written down without a thought for speed.
func plainKetama(servers []string, weights []uint32) (points []point) {
	for m, server := range servers {
		prev := uint32(0)
		for range 160 * weights[m] {
			le := string([]byte{byte(prev), byte(prev >> 8), byte(prev >> 16), byte(prev >> 24)})
			prev = crc32.ChecksumIEEE([]byte(server + le))
			points = append(points, point{uint64(prev), m})
		}
	}
	slices.SortFunc(points, func(a, b point) int { return cmp.Or(cmp.Compare(a.hash, b.hash), cmp.Compare(a.who, b.who)) })
	return slices.CompactFunc(points, func(a, b point) bool { return a.hash == b.hash })
}

func TestKetamaEqualsThePlainOne(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var eps []lbcore.Endpoint
		for _, p := range rapid.SliceOfNDistinct(rapid.IntRange(1, 500), 1, 20, rapid.ID).Draw(rt, "ports") {
			e := host(p, rapid.Uint32Range(1, 12).Draw(rt, "weight"))
			if p%2 == 0 {
				e.Addr = lbcore.IPAddr(netip.AddrPortFrom(netip.AddrFrom16([16]byte{0: 0xfd, 15: byte(p % 5)}), uint16(p)))
			}
			// Hosts of one key have one chain of points: all of them collide.
			if rapid.IntRange(0, 4).Draw(rt, "same") == 0 {
				e.HashKey = "same:1"
			}
			eps = append(eps, e)
		}
		in := lbtest.InputOf(t, eps...)
		var servers []string
		var weights []uint32
		for _, e := range in.Endpoints {
			weights = append(weights, e.Weight)
			if e.HashKey != "" {
				servers = append(servers, "same\x001")
			} else {
				ip := e.Addr.AddrPort()
				servers = append(servers, ip.Addr().String()+"\x00"+strconv.Itoa(int(ip.Port())))
			}
		}
		want := plainKetama(servers, weights)
		r := buildKetama(t, Config{}, in)
		if len(r.hashes) != len(want) {
			rt.Fatalf("%d points, want %d", len(r.hashes), len(want))
		}
		for i, p := range want {
			if got := (point{r.hashes[i] >> 32, int(uint32(r.hashes[i]))}); got != p {
				rt.Fatalf("point %d is %v, want %v", i, got, p)
			}
		}
		for range 50 {
			crc := rapid.OneOf(rapid.Uint32(), rapid.Map(rapid.SampledFrom(want), func(p point) uint32 { return uint32(p.hash) })).Draw(rt, "crc")
			crc += uint32(rapid.IntRange(-1, 1).Draw(rt, "by"))
			i := max(0, slices.IndexFunc(want, func(p point) bool { return p.hash >= uint64(crc) }))
			k := lbcore.Key{CRC: crc, Hash: rapid.Uint64().Draw(rt, "hash"), Set: true}
			at := r.First(k)
			for j := range 5 {
				var m int
				if m, at = r.Next(k, at); m != want[(i+j)%len(want)].who {
					rt.Fatalf("candidate %d for %d is %d, want %d", j, crc, m, want[(i+j)%len(want)].who)
				}
			}
		}
	})
}

// How nginx reads the name of a server.
func TestServerNames(t *testing.T) {
	for key, want := range map[string]string{
		"10.0.0.1:443":        "10.0.0.1\x00443",
		"[::1]:443":           "[::1]\x00443",
		"web-1.example":       "web-1.example\x00",
		"web-1.example:80":    "web-1.example\x0080",
		"web-1:":              "web-1\x00",
		"web:1x":              "web:1x\x00",
		"17":                  "17\x00",
		":17":                 "\x0017",
		"unix:/run/x.sock":    "/run/x.sock\x00",
		"UNIX:/run/x.sock:17": "/run/x.sock:17\x00",
		"unix":                "unix\x00",
	} {
		e := host(1, 1)
		e.HashKey = key
		if got := string(appendServer([]byte("x"), &e)); got != "x"+want {
			t.Errorf("%q is read as %q, want %q", key, got[1:], want)
		}
	}
	for addr, want := range map[string]string{
		"10.0.0.1:443":          "10.0.0.1\x00443",
		"[2001:DB8::0:1]:443":   "2001:db8::1\x00443",
		"[::ffff:10.0.0.1]:443": "10.0.0.1\x00443",
		"unix:///run/x.sock":    "/run/x.sock\x00",
		"unix:///run/x:17":      "/run/x:17\x00",
	} {
		e := at(t, addr, 1)
		if got := string(appendServer(nil, &e)); got != want {
			t.Errorf("%q is hashed as %q, want %q", addr, got, want)
		}
	}
}

// An endpoint's points depend on nothing but itself: the newcomer gains, the
// leaver loses, and a weight that grows gains, and nobody else.
func TestKetamaMovesNoOtherKeys(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var eps []lbcore.Endpoint
		for _, p := range rapid.SliceOfNDistinct(rapid.IntRange(1, 500), 2, 20, rapid.ID).Draw(rt, "ports") {
			eps = append(eps, host(p, rapid.Uint32Range(1, 5).Draw(rt, "weight")))
		}
		changed := eps[0]
		fewer := slices.Clone(eps)
		if w := rapid.Uint32Range(0, changed.Weight-1).Draw(rt, "less"); w > 0 {
			fewer[0].Weight = w
		} else {
			fewer = fewer[1:]
		}
		with := lbtest.InputOf(t, rapid.Permutation(eps).Draw(rt, "order")...)
		without := lbtest.InputOf(t, fewer...)
		a, b := buildKetama(t, Config{}, with), buildKetama(t, Config{}, without)
		const keys = 500
		moved, collisions := 0, 0
		for i := range keys {
			key := "key " + strconv.Itoa(i)
			is, was := a.walk(with, key, 1)[0], b.walk(without, key, 1)[0]
			if is == was {
				continue
			}
			if moved++; is != changed.Addr.String() {
				collisions++
			}
		}
		if collisions > 1 { // of points; one among the few thousand that there are is rare
			rt.Fatalf("%d keys moved between others", collisions)
		}
		total, more := 0.0, float64(changed.Weight)
		for _, e := range eps {
			total += float64(e.Weight)
		}
		if len(fewer) == len(eps) {
			more -= float64(fewer[0].Weight)
		}
		if fair := keys * more / total; float64(moved) > 2*fair+30 {
			rt.Fatalf("%d of %d moved, fair is %.0f", moved, keys, fair)
		}
	})
}

// How even the shares are follows from the points a host has.
func TestKetamaShares(t *testing.T) {
	for _, weight := range []uint32{1, 10} {
		const n = 50
		var eps []lbcore.Endpoint
		for i := range n {
			eps = append(eps, host(1+i, weight))
		}
		r := buildKetama(t, Config{}, lbtest.InputOf(t, eps...))
		parts := make([]float64, n)
		for i, h := range r.hashes {
			prev := r.hashes[(i+len(r.hashes)-1)%len(r.hashes)]
			parts[uint32(h)] += float64(uint32(h>>32)-uint32(prev>>32)) / (1 << 32)
		}
		sd := 1 / math.Sqrt(float64(160*weight))
		for m, p := range parts {
			if dev := p*n - 1; math.Abs(dev) > 5*sd {
				t.Errorf("weight %d: host %d has %.3f of its share", weight, m, p*n)
			}
		}
	}
}

// Without a key picks spread over all.
func TestKetamaWithoutKey(t *testing.T) {
	r := lbtest.Start(t, Config{Function: Ketama})
	r.Set("abcd")
	got := r.Pick(4000, 1)
	for _, name := range []string{"a", "b", "c", "d"} {
		if n := strings.Count(got, name); n < 700 || n > 1300 {
			t.Errorf("%d of %s in 4000", n, name)
		}
	}
	r.Down("abd")
	if got := r.Pick(50, 3); got != strings.Repeat("c", 50) {
		t.Errorf("only c is up: %s", got)
	}
}

// Weights and endpoints without measure end in a ring of the largest size, in
// which each has its part.
func TestKetamaIsClamped(t *testing.T) {
	many := make([]lbcore.Endpoint, 100_000)
	for i := range many {
		many[i] = lbcore.Endpoint{Addr: lbtest.Addr(1), Weight: math.MaxUint32 - uint32(i%3)}
		ip := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		many[i].Addr = lbcore.IPAddr(netip.AddrPortFrom(ip, 80))
	}
	for _, c := range []struct {
		name   string
		config Config
		eps    []lbcore.Endpoint
		size   int
		counts []int // of the first hosts
	}{
		{"as large as it may be", Config{MaximumSize: 1024}, []lbcore.Endpoint{host(1, 1), host(2, 5)}, 960, []int{160, 800}},
		{"one more", Config{MaximumSize: 1119}, []lbcore.Endpoint{host(1, 1), host(2, 6)}, 1119, []int{160, 959}},
		{"not one more", Config{MaximumSize: 1120}, []lbcore.Endpoint{host(1, 1), host(2, 6)}, 1120, []int{160, 960}},
		{"weights of a million", Config{MaximumSize: 30_000}, []lbcore.Endpoint{host(1, 1e6), host(2, 2e6)}, 30_000, []int{10_000, 20_000}},
		{"the largest weights", Config{MaximumSize: 10_000}, []lbcore.Endpoint{host(1, math.MaxUint32), host(2, math.MaxUint32), host(3, 1)}, 10_000, []int{5000, 5000, 0}},
		{"a hundred thousand endpoints", Config{MaximumSize: 200_000}, many, 200_000, []int{3, 2, 2}},
		{"fewer points than endpoints", Config{MaximumSize: 3}, hosts(1, 6), 3, []int{1, 0, 1, 0, 1, 0}},
	} {
		c.config.Function = Ketama
		in := lbtest.InputOf(t, c.eps...)
		u64, u32, err := c.config.Shape(in)
		if err != nil || u64 != c.size || u32 != buckets(u64)+1 {
			t.Errorf("%s: %d and %d words, want %d points; %v", c.name, u64, u32, c.size, err)
			continue
		}
		for i, want := range c.counts {
			got := 0
			runs, err := c.config.runs(in, new(lbcore.Pacer))
			if err != nil {
				t.Fatal(err)
			}
			for m, points := range runs {
				if m == i {
					got = points
				}
			}
			if got < want-1 || got > want+1 {
				t.Errorf("%s: host %d has %d points, want %d", c.name, i, got, want)
			}
		}
		r := buildKetama(t, c.config, in)
		if len(r.hashes) > c.size || len(r.hashes) < c.size*99/100 {
			t.Errorf("%s: %d points, want %d", c.name, len(r.hashes), c.size)
		}
	}
	// The largest by default.
	in := lbtest.InputOf(t, host(1, math.MaxUint32), host(2, math.MaxUint32))
	if u64, _, err := (Config{Function: Ketama}).Shape(in); err != nil || u64 != LimitSize {
		t.Errorf("%d points, %v", u64, err)
	}
}

func TestKetamaYieldAborts(t *testing.T) {
	var eps []lbcore.Endpoint
	for i := range 50 {
		eps = append(eps, host(1+i, 5))
	}
	in, c := lbtest.InputOf(t, eps...), Config{Function: Ketama}
	u64, u32, err := c.Shape(in)
	if err != nil {
		t.Fatal(err)
	}
	st := &lbcore.Storage{U64: make([]uint64, u64), U32: make([]uint32, u32)}
	calls := 0
	if _, err := c.Build(in, st, func() error { calls++; return nil }); err != nil {
		t.Fatal(err)
	}
	// Each point is hashed, counted and moved in up to two rounds, sorted,
	// compared with the one before, and indexed.
	if passes := u64 / lbcore.PacerSteps; calls < 6*passes-6 || calls > 9*passes+9 {
		t.Errorf("%d calls for %d points", calls, u64)
	}
	stop := errors.New("stop")
	for at := 1; at <= calls; at++ {
		n := 0
		sel, err := c.Build(in, st, func() error {
			if n++; n >= at {
				return stop
			}
			return nil
		})
		if err != stop || sel != nil || n != at {
			t.Fatalf("stopped at call %d: %v, %v after %d", at, sel, err, n)
		}
	}
}
