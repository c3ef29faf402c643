package roundrobin

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/lbtest"
)

// from starts at a ticket.
func from(ticket uint64) Config { return Config{Start: func() uint64 { return ticket }} }

func expect(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: picked %s, want %s", what, got, want)
	}
}

func TestPlainCases(t *testing.T) {
	r := lbtest.Start(t, from(0))
	expect(t, "before the first set", r.Pick(2, 1), "--")
	r.Set("")
	expect(t, "the empty set", r.Pick(2, 1), "--")
	r.Set("abc")
	r.Down("b")
	expect(t, "b is down", r.Pick(4, 1), "acac")
	r.Up("b")
	expect(t, "b is up again", r.Pick(3, 1), "abc")
	r.Down("abc")
	expect(t, "all are down", r.Pick(5, 1), "-----")
	r.Up("abc")
	expect(t, "all are up again", r.Pick(4, 1), "abca")
	r.Set("b")
	expect(t, "only one", r.Pick(3, 1), "bbb")
	r.Set("")
	expect(t, "nobody is left", r.Pick(1, 1), "-")
}

// The turn of one that is down does not go to its neighbour.
func TestSkippedTurnIsNotTheNeighbours(t *testing.T) {
	for _, want := range []int{1, 2, 3, 8} { // retries have no say
		r := lbtest.Start(t, from(0))
		r.Set("abcde")
		r.Down("bc")
		expect(t, fmt.Sprintf("two are down, %d wanted", want), r.Pick(9, want), "adeadeade")
		r.Down("e")
		expect(t, fmt.Sprintf("the last too, %d wanted", want), r.Pick(6, want), "adadad")
	}
}

// bug 27: agents that are told at once don't all begin with the same host.
func TestStart(t *testing.T) {
	for ticket, want := range map[uint64]string{
		0: "abcabc", 1: "bcabca", 2: "cabcab", 3: "abcabc", 1 << 40: "bcabca",
		math.MaxUint64: "abcabc", math.MaxUint64 - 1: "cabcab", math.MaxUint64 - 2: "bcabca",
	} {
		r := lbtest.Start(t, from(ticket))
		r.Set("abc")
		expect(t, fmt.Sprint("from ", ticket), r.Pick(6, 1), want)
		// Near the end of the numbers the one who is ready must be found too.
		r = lbtest.Start(t, from(ticket))
		r.Set("abc")
		r.Down("ac")
		expect(t, fmt.Sprint("only b, from ", ticket), r.Pick(3, 1), "bbb")
	}

	// By default slots don't all begin with the same.
	in, seen := lbtest.Input(t, 1, 1, 1, 1, 1, 1, 1, 1), make(map[int]int)
	for range 400 {
		s := lbtest.Build(t, Config{}, in)
		i, _ := s.Next(lbcore.Key{}, s.First(lbcore.Key{}))
		seen[i]++
	}
	for i := range 8 {
		if seen[i] < 15 || seen[i] > 110 {
			t.Errorf("%d of 400 begin with %d", seen[i], i)
		}
	}
}

func TestCursorGoesOnOverRebuilds(t *testing.T) {
	r := lbtest.Start(t, from(0))
	r.Set("abcd")
	expect(t, "at first", r.Pick(2, 1), "ab")
	r.Set("abcde")
	expect(t, "one more", r.Pick(4, 1), "cdea")
	// 6 tickets are drawn: the cursor is at position 6 of whatever comes.
	r.Set("abc")
	expect(t, "fewer", r.Pick(2, 1), "ab")
	r.Set("abc", 3, 1, 2)
	weighted := r.Pick(6, 1)
	for name, n := range map[string]int{"a": 3, "b": 1, "c": 2} {
		if strings.Count(weighted, name) != n {
			t.Errorf("weighted: picked %s, want %d of %s", weighted, n, name)
		}
	}
	r.Set("abc")
	p := r.Pick(3, 1)
	if p != "abc" && p != "bca" && p != "cab" {
		t.Errorf("equal again: picked %s", p)
	}
	// Health alone rebuilds nothing and moves nothing.
	r.Down("a")
	r.Up("a")
	expect(t, "after a flip", r.Pick(3, 1), p)

	// Churn does not favour anybody: with a rebuild after each pick.
	counts := make(map[byte]int)
	for i := range 60 {
		r.Set("abc"+string(rune('x'+i%2)), 1)
		counts[r.Pick(1, 1)[0]]++
	}
	for _, c := range []byte("abc") {
		if counts[c] != 15 {
			t.Errorf("under churn: %v", counts)
		}
	}
}

// Heavy endpoints don't get their picks in a row.
func TestWeightsAreSmooth(t *testing.T) {
	for _, want := range []int{1, 3} { // retries have no say
		r := lbtest.Start(t, from(0))
		r.Set("abc", 8, 1, 1)
		got := r.Pick(400, want)
		for name, n := range map[string]int{"a": 320, "b": 40, "c": 40} {
			if c := strings.Count(got, name); c < n-2 || c > n+2 {
				t.Errorf("%d wanted: %d of %s in 400, want %d", want, c, name, n)
			}
		}
		for _, row := range []string{"bb", "cc", strings.Repeat("a", 10)} {
			if strings.Contains(got, row) {
				t.Errorf("%d wanted: %s in a row: %s", want, row, got[:60])
			}
		}
	}
}

// Those of one weight don't all sit out the same turns.
func TestLightOnesTakeTurns(t *testing.T) {
	r := lbtest.Start(t, from(0))
	r.Set("abcde", 2, 1, 1, 1, 1)
	if got := r.Pick(600, 1); strings.Contains(got, "aa") || strings.Count(got, "a") != 200 {
		t.Errorf("%d of a in 600: %s", strings.Count(got, "a"), got[:60])
	}
}

// The cursor is one and the same over every kind of rebuild, and another for
// another policy's selector.
func TestCursorIsHandedOn(t *testing.T) {
	of := func(s lbcore.Selector) *cursor { return s.(interface{ handOn() *cursor }).handOn() }
	weights := [][]uint32{{1, 1, 1}, {1, 2, 3}, {1, 2}, {4, 4}, {1, math.MaxUint32}}
	for _, a := range weights {
		for _, b := range weights {
			prev, in := lbtest.Build(t, Config{}, lbtest.Input(t, a...)), lbtest.Input(t, b...)
			in.Prev = prev
			if of(lbtest.Build(t, Config{}, in)) != of(prev) {
				t.Errorf("from %v to %v the cursor is lost", a, b)
			}
			in.Prev = nil
			if of(lbtest.Build(t, Config{}, in)) == of(prev) {
				t.Error("a cursor that nobody handed on")
			}
		}
	}
}

// Those who are ready share by their weights what the one who is down leaves.
func TestWeightsWhileOneIsDown(t *testing.T) {
	r := lbtest.Start(t, from(0))
	r.Set("abcd", 1, 2, 4, 8)
	r.Down("d")
	got := r.Pick(1400, 1)
	for name, n := range map[string]int{"a": 200, "b": 400, "c": 800, "d": 0} {
		if c := strings.Count(got, name); math.Abs(float64(c-n)) > 0.06*float64(n) {
			t.Errorf("%d of %s in 1400, want %d", c, name, n)
		}
	}
}

// Concurrent picks of equal weights are as even as others: each ticket is
// drawn once.
func TestConcurrentPicksAreEven(t *testing.T) {
	r := lbtest.Start(t, Config{})
	r.Set("abcdefg")
	const goroutines, each = 7, 300
	counts := make([][256]int, goroutines)
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for _, c := range []byte(r.Pick(each, 1)) {
				counts[g][c]++
			}
		})
	}
	wg.Wait()
	for c := byte('a'); c <= 'g'; c++ {
		sum := 0
		for g := range counts {
			sum += counts[g][c]
		}
		if sum != each {
			t.Errorf("%c has had %d picks, want %d", c, sum, each)
		}
	}
}

// With one down, its turn may go to the next one when picks meet, but nobody
// else loses one: no position is passed over unseen.
func TestConcurrentPicksPastOneThatIsDown(t *testing.T) {
	r := lbtest.Start(t, Config{})
	r.Set("abcd")
	r.Down("b")
	var mu sync.Mutex
	counts := make(map[byte]int)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			got := r.Pick(5000, 1)
			mu.Lock()
			defer mu.Unlock()
			for _, c := range []byte(got) {
				counts[c]++
			}
		})
	}
	wg.Wait()
	a, c, d := counts['a'], counts['c'], counts['d']
	if max(a, d)-min(a, d) > 8 || c < a-8 || c > 2*a+8 {
		t.Errorf("a has had %d, c %d, d %d", a, c, d)
	}
	if counts['b']+counts['-'] != 0 {
		t.Errorf("the one that is down, or none, was picked: %v", counts)
	}
}

func TestSteps(t *testing.T) {
	if n, all := lbtest.Build(t, Config{}, lbtest.Input(t, 1, 1, 1)).Steps(); n != 3 || !all {
		t.Errorf("equal: %d, %v", n, all)
	}
	for _, heavy := range []uint32{2, 1 << 20} {
		if n, all := lbtest.Build(t, Config{}, lbtest.Input(t, 1, heavy, 1)).Steps(); n != 32 || all {
			t.Errorf("weighted: %d, %v", n, all)
		}
	}
}
