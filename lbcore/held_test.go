package lbcore_test

import (
	"runtime"
	"sync"
	"testing"
	"weak"

	"gatehouse.internal/lbcore"
)

// What is open to an address counts for all Views of a name, as long as one lists the
// address or has connections to it, and for no other name.
func TestHeldOverViews(t *testing.T) {
	hosts := new(lbcore.Hosts)
	view := func(name string) (*lbcore.View, *lbcore.Member) {
		v := lbcore.NewView(name, hosts, lbcore.ViewConfig{})
		return v, listing(v, same)
	}
	first, a := view("c")
	_, other := view("d")
	a.StartDial()
	a.Connected()
	second, b := view("c")
	b.StartDial()
	want := func(n int64) {
		t.Helper()
		if b.Held() != n || a.Held() != 1 || other.Held() != 0 {
			t.Errorf("%d are held, %d of them from before, and %d by another cluster; want %d, 1 and none", b.Held(), a.Held(), other.Held(), n)
		}
	}
	want(2)
	b.DialFailed()
	want(1)
	first.Close()
	second.Close()
	third, c := view("c") // while only a connection is left
	if a.StartDial(); c.Held() != 2 {
		t.Errorf("%d are held, want 2", c.Held())
	}
	a.DialAbandoned()
	a.Closed(0, 0)
	third.Close()
	if _, d := view("c"); c.Held() != 0 || d.Held() != 0 {
		t.Errorf("%d and %d are held in the end", c.Held(), d.Held())
	}
}

// A connection that stays open while the settings change again and again holds its own
// View and the present one, and not all those between.
func TestHeldHoldsNoViewsBetween(t *testing.T) {
	hosts := new(lbcore.Hosts)
	old := lbcore.NewView("c", hosts, lbcore.ViewConfig{})
	m := listing(old, same)
	m.StartDial()
	m.Connected()
	var between []weak.Pointer[lbcore.View]
	var last *lbcore.Member
	for range 50 {
		next := lbcore.NewView("c", hosts, lbcore.ViewConfig{})
		last = listing(next, same)
		old.Close()
		between = append(between, weak.Make(next))
		old = next
	}
	runtime.GC()
	held := 0
	for _, v := range between {
		if v.Value() != nil {
			held++
		}
	}
	if held > 3 || last.Held() != 1 {
		t.Errorf("%d Views are held, %d connections", held, last.Held())
	}
	m.Closed(0, 0)
	if last.Held() != 0 {
		t.Errorf("%d connections in the end", last.Held())
	}
	old.Close()
	if hosts.Len() != 0 {
		t.Errorf("%d hosts in the end", hosts.Len())
	}
}

// None is lost while connections come and go on all CPUs and Views follow on each other.
func TestHeldAtOnce(t *testing.T) {
	hosts := new(lbcore.Hosts)
	v := lbcore.NewView("c", hosts, lbcore.ViewConfig{})
	m := listing(v, same)
	for range 200 {
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 20 {
					m.StartDial()
					m.Connected()
				}
			})
		}
		next := lbcore.NewView("c", hosts, lbcore.ViewConfig{})
		n := listing(next, same)
		wg.Wait()
		if n.Held() != 80 { // those of the one before
			t.Fatalf("%d are held, want 80", n.Held())
		}
		v.Close()
		for range 80 {
			wg.Go(func() { m.Closed(0, 0) })
		}
		wg.Wait()
		if n.Held() != 0 {
			t.Fatalf("%d are held in the end", n.Held())
		}
		v, m = next, n
	}
}
