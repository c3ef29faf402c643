package forwarder

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

type bell struct {
	timer
	rings func()
}

func (b *bell) expire() { b.rings() }

// TestPropertyWheel compares the wheel with a plain list of what is due when.
func TestPropertyWheel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &wheel{now: rapid.Int64Range(0, 1<<40).Draw(t, "start")}
		due := make(map[int]int64) // by bell
		var rung []int
		bells := make([]*bell, 8)
		for i := range bells {
			bells[i] = new(bell)
			bells[i].of = bells[i]
			bells[i].rings = func() {
				if at, ok := due[i]; !ok || at != w.now {
					t.Fatalf("bell %d rang at %d, due at %d, %v", i, w.now, at, ok)
				}
				delete(due, i)
				rung = append(rung, i)
				// One in three is set again, as idle connections are.
				if i%3 == 0 {
					due[i] = w.now + int64(i)*977 + 1
					w.set(&bells[i].timer, due[i])
				}
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			i := rapid.IntRange(0, len(bells)-1).Draw(t, "bell")
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0, 1:
				ahead := rapid.OneOf(rapid.Int64Range(-3, 130), rapid.Int64Range(0, 300_000), rapid.Int64Range(0, 1<<26)).Draw(t, "ahead")
				due[i] = max(w.now+ahead, w.now+1)
				w.set(&bells[i].timer, w.now+ahead)
			case 2:
				delete(due, i)
				w.stop(&bells[i].timer)
			case 3:
				to := w.now + rapid.OneOf(rapid.Int64Range(0, 70), rapid.Int64Range(0, 5_000), rapid.Int64Range(0, 1<<22)).Draw(t, "by")
				w.advance(to)
				if w.now != to {
					t.Fatalf("at %d after an advance to %d", w.now, to)
				}
				for i, at := range due {
					if at <= to {
						t.Fatalf("bell %d was due at %d and has not rung at %d", i, at, to)
					}
				}
			}
			if at, ok := w.next(); len(due) > 0 {
				first := int64(1 << 62)
				for _, d := range due {
					first = min(first, d)
				}
				if !ok || at > first {
					t.Fatalf("next is %d, %v; something is due at %d", at, ok, first)
				}
			}
		}
	})
}

func TestWheelStopsAmongTheDue(t *testing.T) {
	var w wheel
	var rung []string
	var a, b bell
	a.of, b.of = &a, &b
	a.rings = func() { rung = append(rung, "a"); w.stop(&b.timer) }
	b.rings = func() { rung = append(rung, "b") }
	w.set(&a.timer, 5)
	w.set(&b.timer, 5)
	w.advance(100)
	if !slices.Equal(rung, []string{"a"}) {
		t.Errorf("rang %v; a stops b", rung)
	}
	if _, ok := w.next(); ok {
		t.Error("something is left")
	}
}

func TestWheelAllocatesNothing(t *testing.T) {
	var w wheel
	var b bell
	b.of, b.rings = &b, func() {}
	if n := testing.AllocsPerRun(100, func() {
		w.set(&b.timer, w.now+5000)
		w.advance(w.now + 6000)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
