package ringhash

import (
	"math"
	"testing"

	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/lbtest"
)

// point is one of a published ring; who is a port, or the last part of a name.
type point struct {
	hash uint64
	who  int
}

var ring6 = []point{
	{833437586790550860, 94}, {928266305478181108, 92}, {1033482794131418490, 90}, {3551244743356806947, 95},
	{3851675632748031481, 93}, {5583722120771150861, 91}, {6311230543546372928, 91}, {7700377290971790572, 93},
	{13144177310400110813, 95}, {13444792449719432967, 92}, {15516499411664133160, 94}, {16117243373044804889, 90},
}

// named returns hosts at ports that say nothing, with the hash keys "90" to
// "95".
func named() []lbcore.Endpoint {
	eps := hosts(1, 6)
	for i, key := range []string{"90", "91", "92", "93", "94", "95"} {
		eps[i].HashKey = key
	}
	return eps
}

func TestEnvoysRings(t *testing.T) {
	weighted := []lbcore.Endpoint{host(90, 1), host(91, 2), host(92, 3)}
	for _, c := range []struct {
		name   string
		config Config
		eps    []lbcore.Endpoint
		shares []float64 // nil: by weight
		want   []point
	}{
		{"six hosts", Config{MinimumSize: 12}, hosts(90, 6), nil, ring6},
		{"six hash keys", Config{MinimumSize: 12}, named(), nil, []point{
			{1975508444536362413, 95}, {2376063919839173711, 95}, {2386806903309390596, 93}, {6749904478991551885, 94},
			{6803900775736438537, 93}, {7225015537174310577, 92}, {8787465352164086522, 90}, {11282020843382717940, 92},
			{13723418369486627818, 91}, {13776502110861797421, 90}, {14338313586354474791, 91}, {15364271037087512980, 94},
		}},
		{"murmur", Config{MinimumSize: 12, Function: MurmurHash2}, hosts(80, 6), nil, []point{
			{1358027074129602068, 85}, {4361834613929391114, 83}, {7224494972555149682, 84}, {7701421856454313576, 81},
			{8649315368077433379, 82}, {8739448859063030639, 84}, {9887544217113020895, 81}, {10150910876324007731, 82},
			{15168472011420622455, 83}, {15427156902705414897, 80}, {16375050414328759093, 85}, {17613279263364193813, 80},
		}},
		{"raised to a multiple", Config{MinimumSize: 3}, hosts(80, 2), nil, []point{
			{5454692015285649509, 80}, {7859399908942313493, 81}, {13838424394637650569, 80}, {16064866803292627174, 81},
		}},
		{"weights", Config{MinimumSize: 6, MaximumSize: 6}, weighted, nil, []point{
			{928266305478181108, 92}, {4443673547860492590, 92}, {5583722120771150861, 91}, {6311230543546372928, 91},
			{13444792449719432967, 92}, {16117243373044804889, 90},
		}},
		// A fourth locality, of weight 0, is left out.
		{"localities of weights 1, 2, 3", Config{MinimumSize: 6, MaximumSize: 6}, hosts(90, 3), []float64{1.0 / 6, 2.0 / 6, 3.0 / 6}, []point{
			{928266305478181108, 92}, {4443673547860492590, 92}, {5583722120771150861, 91}, {6311230543546372928, 91},
			{13444792449719432967, 92}, {16117243373044804889, 90},
		}},
		// Weights (1, 2) in a locality of weight 1 and (1, 2) in one of 2.
		{"shares", Config{MinimumSize: 9, MaximumSize: 9}, hosts(90, 4),
			[]float64{1.0 / 3 * (1.0 / 3), 2.0 / 3 * (1.0 / 3), 1.0 / 3 * (2.0 / 3), 2.0 / 3 * (2.0 / 3)}, []point{
				{928266305478181108, 92}, {3851675632748031481, 93}, {5583722120771150861, 91}, {6311230543546372928, 91},
				{7700377290971790572, 93}, {12559126875973811811, 93}, {13444792449719432967, 92}, {13784988426630141778, 93},
				{16117243373044804889, 90},
			}},
		// The ring of the comment in grpc-go's source, by the present rule.
		{"grpc", Config{MinimumSize: 10, MaximumSize: 10},
			[]lbcore.Endpoint{keyed(1, "a", 3), keyed(2, "b", 3), keyed(3, "c", 4)}, nil, []point{
				{4148279810343392165, 'a'}, {4189641231046734040, 'b'}, {5051629784258667479, 'c'}, {5637671355026233228, 'b'},
				{6560897439782492108, 'b'}, {7866922100246443948, 'a'}, {8142612688290817183, 'c'}, {14554126711339088812, 'c'},
				{14801583559950740418, 'c'}, {18017992814255492179, 'a'},
			}},
	} {
		in := lbtest.InputOf(t, c.eps...)
		if c.shares != nil {
			in.Shares = c.shares
		}
		r := build(t, c.config, in)
		if len(r.hashes) != len(c.want) {
			t.Errorf("%s: %d points, want %d", c.name, len(r.hashes), len(c.want))
			continue
		}
		for i, want := range c.want {
			if got := (point{r.hashes[i], who(in.Endpoints[r.members[i]])}); got != want {
				t.Errorf("%s: point %d is %v, want %v", c.name, i, got, want)
			}
		}
	}
}

func keyed(port int, key string, weight uint32) lbcore.Endpoint {
	e := host(port, weight)
	e.HashKey = key
	return e
}

func who(e *lbcore.Endpoint) int {
	switch len(e.HashKey) {
	case 0:
		return port(e)
	case 1:
		return int(e.HashKey[0])
	}
	return int(e.HashKey[0]-'0')*10 + int(e.HashKey[1]-'0')
}

// A number as hash key is no string: it is left out by the decoder, and the
// address counts.
func TestKeyIsTheAddressByDefault(t *testing.T) {
	a := build(t, Config{MinimumSize: 12}, lbtest.InputOf(t, hosts(90, 6)...))
	eps := hosts(90, 6)
	for i := range eps {
		eps[i].HashKey = eps[i].Addr.String()
		eps[i].Hostname = "ignored"
	}
	b := build(t, Config{MinimumSize: 12}, lbtest.InputOf(t, eps...))
	for i := range a.hashes {
		if a.hashes[i] != b.hashes[i] {
			t.Fatalf("point %d differs", i)
		}
	}
}

// bug 22: a hash above the last point goes to the first one.
func TestEnvoysLookups(t *testing.T) {
	in := lbtest.InputOf(t, hosts(90, 6)...)
	r := build(t, Config{MinimumSize: 12}, in)
	for hash, want := range map[uint64]int{
		0:                    94,
		math.MaxUint64:       94, // wraps
		3551244743356806947:  95,
		3551244743356806948:  93,
		16117243373044804880: 90,
		16117243373044804889: 90,
		16117243373044804890: 94,
		833437586790550860:   94,
		833437586790550861:   92,
	} {
		if got := port(in.Endpoints[r.owner(hash)]); got != want {
			t.Errorf("%d goes to %d, want %d", hash, got, want)
		}
	}
	// Retries go on along the ring, and around.
	walk := r.walk(0, 25)
	for i, m := range walk {
		if got, want := port(in.Endpoints[m]), ring6[i%12].who; got != want {
			t.Errorf("attempt %d for 0 goes to %d, want %d", i, got, want)
		}
	}
	if got := port(in.Endpoints[r.walk(16117243373044804889, 2)[1]]); got != 94 {
		t.Errorf("after the last point comes %d", got)
	}
	if n, all := r.Steps(); n != 32 || all {
		t.Errorf("steps: %d, %v", n, all)
	}
}

func TestEnvoysSizes(t *testing.T) {
	locality := func(weights []uint32, of [][]float64) (shares []float64) {
		sum := 0.0
		for _, w := range weights {
			sum += float64(w)
		}
		for i, hosts := range of {
			total := 0.0
			for _, w := range hosts {
				total += w
			}
			for _, w := range hosts {
				shares = append(shares, w/total*(float64(weights[i])/sum))
			}
		}
		return shares
	}
	ones := make([]float64, 1023)
	for i := range ones {
		ones[i] = 1
	}
	// A locality of one host, weight 127, and one of 1023, weight 1.
	lone := make([]int, 1024)
	lone[0] = 1016
	for _, p := range []int{1, 128, 256, 384, 512, 640, 768, 896} {
		lone[p] = 1
	}
	w123 := []lbcore.Endpoint{host(90, 1), host(91, 2), host(92, 3)}
	for _, c := range []struct {
		name   string
		config Config
		eps    []lbcore.Endpoint
		shares []float64
		counts []int
		// probes hashes spread evenly, and where they end.
		probes int
		hits   []int
	}{
		{"weights 1,2,3 by 6144", Config{MinimumSize: 6144}, w123, nil, []int{1024, 2048, 3072}, 6000, []int{987, 1932, 3081}},
		{"localities by 9216", Config{MinimumSize: 9216}, hosts(90, 4), locality([]uint32{1, 2}, [][]float64{{1, 2}, {1, 2}}),
			[]int{1024, 2048, 2048, 4096}, 9000, []int{924, 2009, 2053, 4014}},
		{"four in two", Config{MinimumSize: 2, MaximumSize: 2}, hosts(90, 4), nil, []int{1, 0, 1, 0}, 0, nil},
		{"two in 1023", Config{MinimumSize: 1023, MaximumSize: 1023}, hosts(90, 2), nil, []int{512, 511}, 1023, []int{526, 497}},
		{"one against many", Config{MinimumSize: 1024, MaximumSize: 1024}, hosts(1, 1024),
			locality([]uint32{127, 1}, [][]float64{{1}, ones}), lone, 0, nil},
		{"weights 1,2,3 by default", Config{}, w123, nil, []int{171, 342, 513}, 0, nil},
		{"three of 1024", Config{MinimumSize: 1024, MaximumSize: 1024}, hosts(1, 3), nil, []int{342, 341, 341}, 0, nil},
		{"three of at least 5", Config{MinimumSize: 5}, hosts(1, 3), nil, []int{2, 2, 2}, 0, nil},
		{"one host", Config{}, hosts(1, 1), nil, []int{1024}, 0, nil},
		{"one point", Config{MinimumSize: 1}, hosts(1, 1), nil, []int{1}, 10, []int{10}},
		{"extreme weights", Config{MinimumSize: 1, MaximumSize: 1000}, []lbcore.Endpoint{host(1, 1), host(2, math.MaxUint32)}, nil,
			[]int{1, 999}, 0, nil},
	} {
		in := lbtest.InputOf(t, c.eps...)
		if c.shares != nil {
			in.Shares = c.shares
		}
		r := build(t, c.config, in)
		for i, got := range r.counts(len(in.Members)) {
			if got != c.counts[i] {
				t.Errorf("%s: host %d has %d points, want %d", c.name, i, got, c.counts[i])
			}
		}
		hits := make([]int, len(in.Members))
		for i := range c.probes {
			hits[r.owner(uint64(i)*(math.MaxUint64/uint64(c.probes)))]++
		}
		for i, want := range c.hits {
			if hits[i] != want {
				t.Errorf("%s: host %d gets %d of %d, want %d", c.name, i, hits[i], c.probes, want)
			}
		}
	}
}

func TestXXHash(t *testing.T) {
	for key, want := range map[string]uint64{
		"": 0xef46db3751d8e999, "a": 0xd24ec4f1a98c6e5b, "abc": 0x44bc2cf5ad770999,
		"Nobody inspects the spammish repetition": 0xfbcea83c8a378bf1,
	} {
		if got := (Config{}).hash([]byte(key)); got != want || lbcore.StringKey(key).Hash != want {
			t.Errorf("%q: %#x, want %#x", key, got, want)
		}
	}
}

// MurmurHash2 as libstdc++ has it, against a second implementation straight
// from the published algorithm, for every length of tail.
func TestMurmur(t *testing.T) {
	plain := func(s string) uint64 {
		const m = 0xc6a4a7935bd1e995
		h := uint64(0xc70f6907) ^ uint64(len(s))*m
		whole := len(s) / 8 * 8
		for i := 0; i < whole; i += 8 {
			var k uint64
			for b := 7; b >= 0; b-- {
				k = k<<8 | uint64(s[i+b])
			}
			k *= m
			k ^= k >> 47
			k *= m
			h ^= k
			h *= m
		}
		if whole < len(s) {
			var k uint64
			for b := len(s) - 1; b >= whole; b-- {
				k = k<<8 | uint64(s[b])
			}
			h ^= k
			h *= m
		}
		h ^= h >> 47
		h *= m
		h ^= h >> 47
		return h
	}
	text := "127.0.0.1:80_0 and what else fits \x00\xff\x80"
	for n := range len(text) + 1 {
		if got, want := murmur2([]byte(text[:n])), plain(text[:n]); got != want {
			t.Errorf("%d bytes: %d, want %d", n, got, want)
		}
	}
}

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		config Config
		want   string // "" is good
	}{
		{Config{}, ""},
		{Config{MinimumSize: 1, MaximumSize: 1}, ""},
		{Config{Function: Ketama}, ""},
		{Config{Function: Ketama, MaximumSize: 1023}, ""}, // the minimum has no effect
		{Config{Function: Ketama, MaximumSize: LimitSize + 1}, "maximum_ring_size (8388609) > 8388608"},
		{Config{MinimumSize: LimitSize, MaximumSize: LimitSize, Function: MurmurHash2}, ""},
		{Config{MinimumSize: 20, MaximumSize: 10}, "minimum_ring_size (20) > maximum_ring_size (10)"},
		{Config{MaximumSize: 1023}, "minimum_ring_size (1024) > maximum_ring_size (1023)"},
		{Config{MinimumSize: LimitSize + 1}, "minimum_ring_size (8388609) > 8388608"},
		{Config{MaximumSize: LimitSize + 1}, "maximum_ring_size (8388609) > 8388608"},
		{Config{MinimumSize: math.MaxUint64, MaximumSize: math.MaxUint64}, "minimum_ring_size (18446744073709551615) > 8388608"},
		{Config{Function: Ketama + 1}, "hash_function 3 is not known"},
	} {
		err := c.config.Validate()
		_, _, shape := c.config.Shape(lbtest.InputOf(t, hosts(1, 1)...))
		if c.want == "" {
			if err != nil || shape != nil {
				t.Errorf("%+v: %v, %v", c.config, err, shape)
			}
			continue
		}
		if err == nil || err.Error() != c.want || shape == nil || shape.Error() != "ring_hash: "+c.want {
			t.Errorf("%+v: %v, %v, want %q", c.config, err, shape, c.want)
		}
	}
}
