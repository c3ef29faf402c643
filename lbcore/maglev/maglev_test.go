package maglev

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
	"pgregory.net/rapid"

	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/lbtest"
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

// many returns n hosts with these weights in turn.
func many(n int, weights ...uint32) (eps []lbcore.Endpoint) {
	for i := range n {
		ip := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		eps = append(eps, lbcore.Endpoint{Addr: lbcore.IPAddr(netip.AddrPortFrom(ip, 80)), Weight: weights[i%len(weights)]})
	}
	return eps
}

// slots builds a table and returns the member of each slot.
func slots(t testing.TB, size int, in lbcore.Input) []int {
	t.Helper()
	s := lbtest.Build(t, Config{TableSize: uint64(size)}, in).(*table)
	got := make([]int, s.size)
	for i := range got {
		// What a pick finds is what the table says.
		m, _ := s.Next(lbcore.Key{Hash: uint64(i) + s.size*uint64(i%7), Set: true}, 0)
		if got[i] = s.get(uint64(i)); m != got[i] {
			t.Fatalf("slot %d holds %d, a pick gives %d", i, got[i], m)
		}
	}
	return got
}

func counts(slots []int, n int) []int {
	c := make([]int, n)
	for _, m := range slots {
		c[m]++
	}
	return c
}

func TestEnvoysTables(t *testing.T) {
	named := hosts(1, 6)
	for i := range named {
		named[i].HashKey = strconv.Itoa(90 + i)
	}
	for _, c := range []struct {
		name   string
		size   int
		eps    []lbcore.Endpoint
		shares []float64 // nil: by weight
		want   []int
	}{
		{"six hosts", 7, hosts(90, 6), nil, []int{2, 4, 0, 1, 5, 0, 3}},
		{"six hash keys", 7, named, nil, []int{2, 5, 0, 3, 4, 1, 0}},
		{"weights", 17, []lbcore.Endpoint{host(90, 1), host(91, 2)}, nil,
			[]int{1, 0, 0, 1, 0, 1, 1, 0, 1, 1, 1, 1, 1, 0, 1, 0, 1}},
		{"localities of one weight", 17, []lbcore.Endpoint{host(90, 1), host(91, 2)}, []float64{.5, .5},
			[]int{1, 0, 0, 1, 0, 1, 1, 0, 0, 1, 0, 1, 0, 0, 1, 0, 1}},
		// One more locality, with :92, has weight 0 and is left out.
		{"localities 8 and 2", 17, hosts(90, 2), []float64{.8, .2},
			[]int{1, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0}},
	} {
		in := lbtest.InputOf(t, c.eps...)
		if c.shares != nil {
			in.Shares = c.shares
		}
		if got := slots(t, c.size, in); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestEnvoysCounts(t *testing.T) {
	lone := make([]float64, 1024) // a locality of one host, weight 127, and one of 1023, weight 1
	lone[0] = 127. / 128
	few := make([]int, 1024)
	few[0] = 64514
	for i := 1; i < 1024; i++ {
		lone[i] = 1. / 1023 * (1. / 128)
		few[i] = 1
	}
	for _, c := range []struct {
		name   string
		eps    []lbcore.Endpoint
		shares []float64
		want   []int
	}{
		{"weights 1 and 2", []lbcore.Endpoint{host(90, 1), host(91, 2)}, nil, []int{21846, 43691}},
		{"three equal", hosts(90, 3), nil, []int{21846, 21846, 21845}},
		{"localities 127 and 1", hosts(1, 1024), lone, few},
	} {
		in := lbtest.InputOf(t, c.eps...)
		if c.shares != nil {
			in.Shares = c.shares
		}
		if got := counts(slots(t, 0, in), len(c.want)); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got[:2], c.want[:2])
		}
	}
}

func TestEnvoysPermutations(t *testing.T) {
	in := lbtest.InputOf(t, hosts(90, 3)...)
	f := &filler{in: in, size: DefaultTableSize, pace: new(lbcore.Pacer), order: []uint32{0, 1, 2}, next: make([]uint32, 3), skip: make([]uint32, 3)}
	if err := f.permute(); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(f.next, []uint32{58304, 57809, 22927}) || !slices.Equal(f.skip, []uint32{65526, 30622, 26902}) {
		t.Errorf("offsets %v, skips %v", f.next, f.skip)
	}
}

func TestEnvoysRetries(t *testing.T) {
	in := lbtest.InputOf(t, hosts(90, 6)...)
	s := lbtest.Build(t, Config{TableSize: 7}, in)
	k := lbcore.Key{Hash: 10, Set: true}
	at := s.First(k)
	for attempt, want := range []int{1, 0, 5} {
		var m int
		if m, at = s.Next(k, at); m != want {
			t.Errorf("attempt %d goes to %d, want %d", attempt, m, want)
		}
	}
	if n, all := s.Steps(); n != 32 || all {
		t.Errorf("steps: %d, %v", n, all)
	}
}

// plain is Envoy's rule written down without a thought for speed.
func plain(size int, in lbcore.Input) []int {
	type entry struct {
		member             int
		key                string
		offset, skip, next uint64
		weight, target     float64
	}
	var entries []*entry
	for i, e := range in.Endpoints {
		d := xxhash.NewWithSeed(1)
		d.WriteString(e.Key())
		entries = append(entries, &entry{
			member: i, key: e.Key(), weight: in.Shares[i],
			offset: xxhash.Sum64String(e.Key()) % uint64(size), skip: d.Sum64()%uint64(size-1) + 1,
		})
	}
	slices.SortStableFunc(entries, func(a, b *entry) int { return cmp.Compare(a.key, b.key) })
	slots := make([]int, size)
	for i := range slots {
		slots[i] = -1
	}
	filled, heaviest := 0, slices.Max(in.Shares)
	for iteration := 1; filled < size; iteration++ {
		for _, e := range entries {
			if filled == size {
				break
			}
			if float64(iteration)*e.weight < e.target {
				continue
			}
			e.target += heaviest
			slot := func() uint64 { return (e.offset + e.skip*e.next) % uint64(size) }
			for slots[slot()] >= 0 {
				e.next++
			}
			slots[slot()] = e.member
			e.next++
			filled++
		}
	}
	return slots
}

var primes = []int{2, 3, 7, 17, 101, 251, 499, 1009}

// endpoints draws up to n endpoints of random weights and keys.
func endpoints(t *rapid.T, n int) []lbcore.Endpoint {
	weights := rapid.SampledFrom([]*rapid.Generator[uint32]{
		rapid.Just[uint32](1), rapid.Uint32Range(1, 3), rapid.Uint32Range(1, 100), rapid.Uint32Min(1),
		rapid.SampledFrom([]uint32{1, 1, 1, 1, 1000, math.MaxUint32}),
	}).Draw(t, "kind")
	var eps []lbcore.Endpoint
	for _, p := range rapid.SliceOfNDistinct(rapid.IntRange(1, 20000), 1, n, rapid.ID).Draw(t, "ports") {
		e := host(p, weights.Draw(t, "weight"))
		e.HashKey = rapid.SampledFrom([]string{"", "", "", "", "same", "same too", "a", "longer than the words of a key", "k" + strconv.Itoa(p)}).Draw(t, "key")
		eps = append(eps, e)
	}
	return eps
}

// A table equals the plain one: where hosts have one key, where they are more
// than the slots, and where one outweighs all others. The order of the input
// does not matter.
//
// bug 25: the order of hosts moves no key.
func TestTableEqualsThePlainOne(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		size := rapid.SampledFrom(primes).Draw(rt, "size")
		eps := endpoints(rt, 40)
		in := lbtest.InputOf(t, eps...)
		got, want := slots(t, size, in), plain(size, in)
		if !slices.Equal(got, want) {
			rt.Fatalf("%v\nwant %v", got, want)
		}
		other := lbtest.InputOf(t, rapid.Permutation(eps).Draw(rt, "order")...)
		if !slices.Equal(slots(t, size, other), got) {
			rt.Fatal("the order of the input matters")
		}
	})
	// Beyond 256 and 65,536 hosts slots have more bits.
	for _, c := range []struct {
		size, hosts int
		weights     []uint32
	}{
		{1009, 256, []uint32{3, 1, 2}}, {1009, 257, []uint32{3, 1, 2}}, {101, 300, []uint32{3, 1, 2}},
		{1009, 1<<16 + 1, []uint32{1}},
	} {
		in := lbtest.InputOf(t, many(c.hosts, c.weights...)...)
		if got, want := slots(t, c.size, in), plain(c.size, in); !slices.Equal(got, want) {
			t.Errorf("%d hosts in %d slots differ", c.hosts, c.size)
		}
	}
}

// The host's part of the slots differs from its share by what the rounds can
// make of it.
func TestShares(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		size := rapid.SampledFrom(primes).Draw(rt, "size")
		in := lbtest.InputOf(t, endpoints(rt, 30)...)
		n := len(in.Members)
		for i, c := range counts(slots(t, size, in), n) {
			part := in.Shares[i] * float64(size)
			if float64(c) > part+2 || float64(c) < part-1-float64(n)*in.Shares[i] {
				rt.Fatalf("host %d of %d has %d of %d slots, its part is %.2f", i, n, c, size, part)
			}
			if c == 0 && n <= size {
				rt.Fatalf("host %d of %d has none of %d slots", i, n, size)
			}
			if in.Equal() && (c < size/n || c > size/n+1) {
				rt.Fatalf("host %d of %d equal ones has %d of %d slots", i, n, c, size)
			}
		}
	})
}

// The newcomer gets its share, and few keys move between others: Maglev's
// price for even shares.
func TestFewKeysMove(t *testing.T) {
	for _, n := range []int{2, 10, 100, 500} {
		with := slots(t, 0, lbtest.InputOf(t, many(n+1, 1)...))
		without := slots(t, 0, lbtest.InputOf(t, many(n, 1)...))
		gained, others := 0, 0
		for i := range with {
			switch {
			case with[i] == n:
				gained++
			case with[i] != without[i]: // the first n members are the same
				others++
			}
		}
		share := DefaultTableSize / (n + 1)
		if gained < share || gained > share+1 || others > DefaultTableSize/50+2*share {
			t.Errorf("from %d hosts to %d: the newcomer has gained %d of %d slots, %d moved between others", n, n+1, gained, len(with), others)
		}
	}
}

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		size uint64
		want string // "" is good
	}{
		{0, ""}, {2, ""}, {3, ""}, {65537, ""}, {5000011, ""},
		{1, "table_size (1) is not prime"},
		{4, "table_size (4) is not prime"},
		{65536, "table_size (65536) is not prime"},
		{66049, "table_size (66049) is not prime"}, // 257 x 257
		{5000010, "table_size (5000010) is not prime"},
		{5000012, "table_size (5000012) > 5000011"},
		{5000077, "table_size (5000077) > 5000011"},
		{math.MaxUint64, "table_size (18446744073709551615) > 5000011"},
	} {
		config := Config{TableSize: c.size}
		err := config.Validate()
		_, _, shape := config.Shape(lbtest.InputOf(t, hosts(1, 1)...))
		if c.want == "" {
			if err != nil || shape != nil {
				t.Errorf("%d: %v, %v", c.size, err, shape)
			}
			continue
		}
		if err == nil || err.Error() != c.want || shape == nil || shape.Error() != "maglev: "+c.want {
			t.Errorf("%d: %v, %v, want %q", c.size, err, shape, c.want)
		}
	}
}

// Sets and weights without measure: the work and the storage are bounded.
func TestBadInput(t *testing.T) {
	const n = 100_000
	in := lbtest.InputOf(t, many(n, 1)...)
	weighing := func(weight func(i int) float64) (shares []float64) {
		sum := 0.0
		for i := range n {
			sum += weight(i)
		}
		for i := range n {
			shares = append(shares, weight(i)/sum)
		}
		return shares
	}
	equal := in.Shares
	heavy := weighing(func(i int) float64 { return []float64{1, math.MaxUint32}[i/(n-1)] })
	// The sum is far beyond 32 bits.
	large := weighing(func(i int) float64 { return []float64{math.MaxUint32, math.MaxUint32 - 1, 7}[i%3] })
	same := slices.Repeat([]*lbcore.Endpoint{{HashKey: "same"}}, n)
	for _, c := range []struct {
		name      string
		endpoints []*lbcore.Endpoint
		shares    []float64
		size      uint64
	}{
		{"more hosts than slots", in.Endpoints, equal, 0},
		{"weights beyond 32 bits", in.Endpoints, large, 0},
		{"one outweighs all", in.Endpoints, heavy, 200_003},
		{"one key", same, equal, 200_003},
	} {
		in.Endpoints, in.Shares = c.endpoints, c.shares
		config := Config{TableSize: c.size}
		u64, u32, err := config.Shape(in)
		if err != nil {
			t.Fatal(err)
		}
		if bytes := uint64(8*u64 + 4*u32); bytes > 5*config.size()+64*n {
			t.Errorf("%s: %d bytes", c.name, bytes)
		}
		st := &lbcore.Storage{U64: make([]uint64, u64), U32: make([]uint32, u32)}
		calls := 0
		sel, err := config.Build(in, st, func() error { calls++; return nil })
		if err != nil {
			t.Fatal(err)
		}
		// 20 steps a slot, and for the sort 20 a host.
		if steps := uint64(calls) * lbcore.PacerSteps; steps > 20*config.size()+25*n {
			t.Errorf("%s: %d steps", c.name, steps)
		}
		tab := sel.(*table)
		owned := make([]int, n)
		for i := range tab.size {
			owned[tab.get(i)]++
		}
		for i, share := range in.Shares {
			if part := share * float64(tab.size); float64(owned[i]) > part+2 || float64(owned[i]) < part*(1-float64(n)/float64(tab.size))-1 {
				t.Errorf("%s: host %d has %d slots, its part is %.2f", c.name, i, owned[i], part)
				break
			}
		}
	}
}

// A build calls yield all along, and gives up at once with its error.
func TestYieldAborts(t *testing.T) {
	in := lbtest.InputOf(t, many(5000, 1, 2, 3)...)
	c := Config{TableSize: 10_007}
	u64, u32, err := c.Shape(in)
	if err != nil {
		t.Fatal(err)
	}
	st := &lbcore.Storage{U64: make([]uint64, u64), U32: make([]uint32, u32)}
	calls := 0
	first, err := c.Build(in, st, func() error { calls++; return nil })
	if err != nil {
		t.Fatal(err)
	}
	want := slices.Clone(first.(*table).words)
	stop := errors.New("stop")
	for at := 1; at <= calls; at += 3 {
		n := 0
		sel, err := c.Build(in, st, func() error {
			if n++; n >= at {
				return stop
			}
			return nil
		})
		if err != stop || sel != nil || n != at {
			t.Fatalf("stopped at call %d of %d: %v, %v after %d", at, calls, sel, err, n)
		}
	}
	// And a build after that, in the same storage, is as good as any.
	sel, err := c.Build(in, st, func() error { return nil })
	if err != nil || !slices.Equal(sel.(*table).words, want) {
		t.Error("a build after one that was given up is wrong")
	}
}

// Every slot of a table of each width takes and gives what it is given, and
// the storage is no larger than its width needs.
func TestWidths(t *testing.T) {
	for members, bits := range map[int]int{1: 8, 256: 8, 257: 16, 65536: 16, 65537: 32, 1 << 20: 32} {
		tab := newTable(1009, members)
		if n, want := tab.length(), (1009*bits+31)/32; n != want {
			t.Fatalf("%d members: %d words, want %d", members, n, want)
		}
		tab.words = make([]uint32, tab.length())
		want := make([]int, tab.size)
		for _, i := range rand.Perm(len(want)) {
			want[i] = rand.IntN(members)
			tab.set(uint64(i), uint32(want[i]))
		}
		for i, w := range want {
			if got := tab.get(uint64(i)); got != w {
				t.Fatalf("%d members: slot %d holds %d, want %d", members, i, got, w)
			}
		}
	}
}

func TestPicksThroughTheSlot(t *testing.T) {
	r := lbtest.Start(t, Config{TableSize: 101})
	r.Set("")
	if got := r.Pick(2, 1); got != "--" {
		t.Errorf("of the empty set: %s", got)
	}
	for _, weights := range [][]uint32{{1}, {1, 50, 9}} {
		r.Set("abcd", weights...)
		r.Down("abcd")
		for _, name := range []string{"a", "b", "c", "d"} {
			if got := r.Pick(5, 2); got != "-----" {
				t.Errorf("all are down: %s", got)
			}
			r.Up(name)
			if got, want := r.Pick(30, 2), strings.Repeat(name, 30); got != want {
				t.Errorf("only %s is up: %s", name, got)
			}
			r.Down(name)
		}
		r.Up("abcd")
	}
	// Without a key picks spread over all.
	got := r.Pick(3000, 1)
	for name, n := range map[string]int{"a": 50, "b": 2459, "c": 443, "d": 50} {
		if c := strings.Count(got, name); math.Abs(float64(c-n)) > 30+0.1*float64(n) {
			t.Errorf("%d of %s in 3000, want %d", c, name, n)
		}
	}
	// Weight 0 is never picked.
	r.Set("abc", 1, 0, 1)
	if got := r.Pick(500, 3); strings.ContainsAny(got, "b-") {
		t.Errorf("one has weight 0: %s", got)
	}
}

// Keys of those who are ready stay where they are, whoever else is down, and
// the keys of one that is down spread over all others.
func TestKeysOfTheReadyStay(t *testing.T) {
	in := lbtest.InputOf(t, hosts(1, 10)...)
	s := lbtest.Build(t, Config{}, in)
	heirs := make([]int, 10)
	for i := range 10_000 {
		k := lbcore.StringKey(fmt.Sprint("key ", i))
		m, at := s.Next(k, s.First(k))
		for m == 3 { // is down
			if m, at = s.Next(k, at); m != 3 {
				heirs[m]++
			}
		}
	}
	for m, n := range heirs {
		if m != 3 && (n < 60 || n > 170) {
			t.Errorf("host %d has inherited %d of about 1000 keys", m, n)
		}
	}
}
