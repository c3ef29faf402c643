package leastweight

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/lbtest"
)

// drawing returns a First from which the selector draws these members.
func drawing(t *testing.T, s *selector, want ...int) uint64 {
	t.Helper()
	for first := range uint64(5_000_000) {
		at, same := first, true
		for i := 0; same && i < len(want); i++ {
			var m int
			m, at = s.draws.Next(at)
			same = m == want[i]
		}
		if same {
			return first
		}
	}
	t.Fatalf("nothing draws %v", want)
	return 0
}

func of(t testing.TB, c Config, weights ...uint32) *selector {
	return lbtest.Build(t, c, lbtest.Input(t, weights...)).(*selector)
}

func (s *selector) activate(actives ...int) {
	for i, n := range actives {
		for range n {
			s.members[i].StartDial()
		}
	}
}

// Envoy's published vector: 4, 3, 2 and 1 active, draws 3, 0, 3, 2, 1.
func TestEnvoysVector(t *testing.T) {
	s := of(t, Config{Choices: 5}, 1, 1, 1, 1)
	s.activate(4, 3, 2, 1)
	if got, _ := s.Next(lbcore.Key{}, drawing(t, s, 3, 0, 3, 2, 1)); got != 3 {
		t.Errorf("picked %d, want 3", got)
	}
}

func TestFewestOfTheDrawnWins(t *testing.T) {
	for _, c := range []struct {
		name    string
		weights []uint32
		actives []int
		down    []int
		draws   []int
		want    int
	}{
		{"fewer wins", []uint32{1, 1, 1}, []int{1, 0, 0}, nil, []int{0, 1}, 1},
		{"first drawn of the same", []uint32{1, 1, 1}, []int{2, 2, 2}, nil, []int{2, 0}, 2},
		{"strictly fewer only", []uint32{1, 1, 1}, []int{3, 2, 2}, nil, []int{0, 2, 1}, 2},
		{"with replacement", []uint32{1, 1, 1}, []int{0, 9, 0}, nil, []int{1, 1}, 1},
		{"the unready is passed over", []uint32{1, 1, 1}, []int{0, 9, 0}, []int{0}, []int{0, 1}, 1},
		{"also when drawn later", []uint32{1, 1, 1}, []int{0, 9, 0}, []int{0}, []int{1, 0}, 1},
		{"also between", []uint32{1, 1, 1}, []int{0, 9, 5}, []int{0}, []int{1, 0, 2}, 2},
		{"fewest of the unready", []uint32{1, 1, 1}, []int{5, 9, 2}, []int{0, 1, 2}, []int{0, 1, 2}, 2},
		{"by weight", []uint32{1, 3, 1}, []int{1, 2, 0}, nil, []int{0, 1}, 1},
		{"by weight, the same", []uint32{1, 2, 4}, []int{1, 2, 4}, nil, []int{2, 0, 1}, 2},
		{"by weight, more", []uint32{1, 3, 1}, []int{1, 4, 0}, nil, []int{1, 0}, 0},
		{"the idle have no load", []uint32{1, 100, 1}, []int{0, 1, 0}, nil, []int{1, 0}, 0},
		{"one of many", []uint32{1, 1, 1, 1}, []int{9, 8, 7, 6}, nil, []int{0, 1, 2, 3, 0, 1, 2}, 3},
	} {
		s := of(t, Config{Choices: len(c.draws)}, c.weights...)
		s.drain(c.down)
		s.activate(c.actives...)
		if got, _ := s.Next(lbcore.Key{}, drawing(t, s, c.draws...)); got != c.want {
			t.Errorf("%s: picked %d, want %d", c.name, got, c.want)
		}
	}
}

// drain gives s the members of a View in which some are draining.
func (s *selector) drain(down []int) {
	var eps []lbcore.Endpoint
	for i, m := range s.members {
		e := *m.Endpoint()
		if slices.Contains(down, i) {
			e.Status = lbcore.StatusDraining
		}
		eps = append(eps, e)
	}
	snap, _ := lbcore.NewView("c", new(lbcore.Hosts), lbcore.ViewConfig{}).Update(lbcore.MustSet(eps...))
	for i := range s.members {
		s.members[i] = snap.Member(i)
	}
}

func TestBias(t *testing.T) {
	bias := func(b float64) Config { return Config{Bias: new(b)} }
	// 4 active by weight 2 against 3 active by weight 1: 2 and 3 per weight;
	// by the square 8 and 9; by the cube 32 and 27; by the root 1 and 1.73.
	for _, c := range []struct {
		bias float64
		want int
	}{{1, 0}, {2, 0}, {3, 1}, {0.5, 0}, {1000, 1}} {
		s := of(t, bias(c.bias), 2, 1)
		s.activate(4, 3)
		for _, draws := range [][]int{{0, 1}, {1, 0}} {
			if got, _ := s.Next(lbcore.Key{}, drawing(t, s, draws...)); got != c.want {
				t.Errorf("bias %g: picked %d, want %d", c.bias, got, c.want)
			}
		}
	}
	// With 0 connections don't matter: the first drawn wins.
	for _, weights := range [][]uint32{{1, 1}, {2, 1}} {
		s := of(t, bias(0), weights...)
		s.activate(0, 50)
		if got, _ := s.Next(lbcore.Key{}, drawing(t, s, 1, 0)); got != 1 {
			t.Errorf("bias 0, weights %v: picked %d", weights, got)
		}
	}
}

// picked returns how often each member is picked in n picks, as parts of 1.
func (s *selector) picked(n int) []float64 {
	got := make([]float64, len(s.members))
	for range n {
		i, _ := s.Next(lbcore.Key{}, s.First(lbcore.Key{}))
		got[i] += 1 / float64(n)
	}
	return got
}

func near(t *testing.T, what string, got, want []float64) {
	t.Helper()
	for i := range want {
		if math.Abs(got[i]-want[i]) > 0.02 {
			t.Errorf("%s: shares %.3f, want %.3f", what, got, want)
			return
		}
	}
}

func TestShares(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2)) // the same draws each time
	for _, c := range []struct {
		name    string
		choices int
		weights []uint32
		actives []int
		want    []float64
	}{
		{"idle", 0, []uint32{1, 2}, nil, []float64{1. / 3, 2. / 3}},
		{"idle, ten choices", 10, []uint32{1, 2, 5}, nil, []float64{1. / 8, 2. / 8, 5. / 8}},
		{"idle, equal", 0, []uint32{4, 4, 4, 4}, nil, []float64{.25, .25, .25, .25}},
		{"as loaded as heavy", 0, []uint32{1, 2}, []int{3, 6}, []float64{1. / 3, 2. / 3}},
		{"equal, one is loaded", 0, []uint32{1, 1}, []int{1, 0}, []float64{1. / 4, 3. / 4}},
		// The loaded one is picked only if every draw is of it. Envoy's EDF
		// gives 1/2 and 1/5 to the loaded one here.
		{"the heavy one is loaded", 0, []uint32{1, 2}, []int{0, 1}, []float64{5. / 9, 4. / 9}},
		{"the light one is loaded", 0, []uint32{1, 2}, []int{1, 0}, []float64{1. / 9, 8. / 9}},
	} {
		s := of(t, Config{Choices: c.choices, Rand: rng.Uint64}, c.weights...)
		s.activate(c.actives...)
		near(t, c.name, s.picked(20000), c.want)
	}
	zero := 0.0
	s := of(t, Config{Bias: &zero, Rand: rng.Uint64}, 1, 2)
	s.activate(0, 100)
	near(t, "bias 0", s.picked(20000), []float64{1. / 3, 2. / 3})
}

// With connections that stay a while, each member holds its part of them.
func TestOpenConnectionsFollowWeights(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, weights := range [][]uint32{{1, 1, 1}, {1, 2, 4}} {
		s := of(t, Config{Rand: rng.Uint64}, weights...)
		var open []int
		for len(open) < 700 {
			i, _ := s.Next(lbcore.Key{}, s.First(lbcore.Key{}))
			s.members[i].StartDial()
			open = append(open, i)
		}
		for range 20000 { // one ends, one begins
			k := rng.IntN(len(open))
			s.members[open[k]].DialAbandoned()
			i, _ := s.Next(lbcore.Key{}, s.First(lbcore.Key{}))
			s.members[i].StartDial()
			open[k] = i
		}
		sum := 0.0
		for _, w := range weights {
			sum += float64(w)
		}
		for i, w := range weights {
			part := 700 * float64(w) / sum
			if got := float64(s.members[i].Active()); math.Abs(got-part) > 0.1*part {
				t.Errorf("weights %v: member %d holds %.0f, its part is %.0f", weights, i, got, part)
			}
		}
	}
}

// Equal members differ by a few connections at most, which is what the second
// choice is for.
func TestTwoChoicesLevel(t *testing.T) {
	weights := make([]uint32, 100)
	for i := range weights {
		weights[i] = 1
	}
	rng := rand.New(rand.NewPCG(5, 6))
	s := of(t, Config{Rand: rng.Uint64}, weights...)
	for range 10000 {
		i, _ := s.Next(lbcore.Key{}, s.First(lbcore.Key{}))
		s.members[i].StartDial()
	}
	for i, m := range s.members {
		if n := m.Active(); n < 94 || n > 106 {
			t.Errorf("member %d has %d of 10000", i, n)
		}
	}
}

func TestReadyIsPickedThroughTheSlot(t *testing.T) {
	r := lbtest.Start(t, Config{})
	r.Set("")
	if got := r.Pick(2, 1); got != "--" {
		t.Errorf("of the empty set: %s", got)
	}
	for _, weights := range [][]uint32{{1}, {1, 50, 9}} {
		r.Set("abcd", weights...)
		for _, name := range []string{"a", "b", "c", "d"} {
			r.Down("abcd")
			if got := r.Pick(5, 2); got != "-----" {
				t.Errorf("all are down: %s", got)
			}
			r.Up(name)
			if got, want := r.Pick(30, 2), strings.Repeat(name, 30); got != want {
				t.Errorf("only %s is up: %s", name, got)
			}
		}
		r.Up("abcd")
	}
}

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		config Config
		want   string // "" is good
	}{
		{Config{}, ""},
		{Config{Choices: 2}, ""},
		{Config{Choices: 10, Bias: new(1000.0)}, ""},
		{Config{Choices: 1}, "choice_count 1: want 2 to 10"},
		{Config{Choices: 11}, "choice_count 11: want 2 to 10"},
		{Config{Choices: -2}, "choice_count -2: want 2 to 10"},
		{Config{Bias: new(-0.1)}, "active_request_bias -0.1: want 0 to 1000"},
		{Config{Bias: new(1e9)}, "active_request_bias 1e+09: want 0 to 1000"},
		{Config{Bias: new(math.NaN())}, "active_request_bias NaN: want 0 to 1000"},
		{Config{Bias: new(math.Inf(1))}, "active_request_bias +Inf: want 0 to 1000"},
	} {
		err := c.config.Validate()
		_, _, shape := c.config.Shape(lbtest.Input(t, 1, 2))
		if c.want == "" {
			if err != nil || shape != nil {
				t.Errorf("%+v: %v, %v", c.config, err, shape)
			}
			continue
		}
		if err == nil || err.Error() != c.want || shape == nil || shape.Error() != "least_weight: "+c.want {
			t.Errorf("%+v: %v, %v, want %q", c.config, err, shape, c.want)
		}
	}
	if n, all := of(t, Config{}, 1, 2).Steps(); n != 32 || all {
		t.Errorf("steps: %d, %v", n, all)
	}
}
