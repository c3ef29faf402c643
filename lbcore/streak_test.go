package lbcore_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"gatehouse.internal/lbcore"
)

// tripping returns a member that notes failures in a row, and how often somebody
// was called.
func tripping(lengths ...uint32) (*lbcore.Member, *atomic.Int64) {
	calls := new(atomic.Int64)
	s := &lbcore.Streaks{OnTrip: func() { calls.Add(1) }}
	copy(s.Lengths[:], lengths)
	v := lbcore.NewView("v", new(lbcore.Hosts), lbcore.ViewConfig{Streaks: s})
	return listing(v, same), calls
}

// TestStreaks compares trips with a count that begins again with each success
// and when an ejection ends; OnTrip is called when there is something to take.
func TestStreaks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lengths := [2]uint32{uint32(rapid.IntRange(0, 4).Draw(t, "a")), uint32(rapid.IntRange(0, 4).Draw(t, "b"))}
		m, calls := tripping(lengths[:]...)
		streak, want, wantCalls := uint32(0), [2]uint32{}, int64(0)
		t.Repeat(map[string]func(*rapid.T){
			"failed": func(*rapid.T) {
				m.StartDial()
				m.DialFailed()
				streak++
				for i, l := range lengths {
					if l > 0 && streak%l == 0 {
						if want[i]++; want[i] == 1 {
							wantCalls++
						}
					}
				}
			},
			"abandoned": func(*rapid.T) { m.StartDial(); m.DialAbandoned() },
			"connected": func(*rapid.T) { m.StartDial(); m.Connected(); streak = 0 },
			"take": func(t *rapid.T) {
				if got := m.TakeTrips(); got != want {
					t.Fatalf("trips are %v, want %v", got, want)
				}
				want = [2]uint32{}
			},
			"ejection": func(*rapid.T) {
				m.SetEjected(true)
				m.SetEjected(false)
				streak, want = 0, [2]uint32{}
			},
			"": func(t *rapid.T) {
				if calls.Load() != wantCalls {
					t.Fatalf("OnTrip was called %d times, want %d", calls.Load(), wantCalls)
				}
			},
		})
	})
}

// No failure is lost when many report at once, and whoever takes trips when he is
// called gets all of them.
func TestStreaksAtOnce(t *testing.T) {
	const reporters, each = 8, 3000
	wake := make(chan struct{}, 1)
	s := &lbcore.Streaks{Lengths: [2]uint32{3, 1}, OnTrip: func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	}}
	m := listing(lbcore.NewView("v", new(lbcore.Hosts), lbcore.ViewConfig{Streaks: s}), same)
	var wg, owner sync.WaitGroup
	var sum [2]uint32
	done := make(chan struct{})
	take := func() {
		got := m.TakeTrips()
		sum[0] += got[0]
		sum[1] += got[1]
	}
	owner.Go(func() {
		for {
			select {
			case <-wake:
				take()
			case <-done:
				select {
				case <-wake:
					take()
				default:
				}
				return
			}
		}
	})
	for range reporters {
		wg.Go(func() {
			for range each {
				m.StartDial()
				m.DialFailed()
			}
		})
	}
	wg.Wait()
	close(done)
	owner.Wait()
	if sum != [2]uint32{reporters * each / 3, reporters * each} {
		t.Errorf("trips are %v", sum)
	}
}

// Reports cost no allocation, whether somebody notes failures in a row or not.
func TestReportsAllocateNothing(t *testing.T) {
	noting, _ := tripping(5, 3)
	plain := listing(lbcore.NewView("v", new(lbcore.Hosts), lbcore.ViewConfig{}), same)
	for _, m := range []*lbcore.Member{noting, plain} {
		if n := testing.AllocsPerRun(100, func() {
			for range 6 {
				m.StartDial()
				m.DialFailed()
			}
			m.StartDial()
			m.Connected()
			m.Closed(1, 1)
		}); n != 0 {
			t.Errorf("%v allocations", n)
		}
	}
}
