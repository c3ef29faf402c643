package forwarder

import "math/bits"

// The wheel has four levels of 64 slots. A slot of level n spans 64^n ticks of
// a millisecond, so that it covers 4.6 hours; what is later waits in the last
// level and is put back when it comes up.
const (
	wheelBits   = 6
	wheelSlots  = 1 << wheelBits
	wheelLevels = 4
	wheelSpan   = 1<<(wheelBits*wheelLevels) - 1
)

// expirer is what a timer is for.
type expirer interface{ expire() }

// timer is an entry of a wheel; the zero value is in none. It is part of what
// it is for, so that setting it allocates nothing.
type timer struct {
	prev, next *timer
	at         int64 // in ticks
	of         expirer
}

// wheel is a hierarchical timing wheel (Varghese and Lauck, 1987): setting and
// stopping a timer takes the same few steps however many there are. One
// goroutine uses it. A timer never fires early, and as late as advance is
// called.
type wheel struct {
	now   int64
	used  [wheelLevels]uint64 // a bit for each slot that is not empty
	slots [wheelLevels][wheelSlots]timer
	due   timer // the list that take works through
}

// set makes t expire at the tick at, or at the next one if that has passed,
// and no more when it was to before.
func (w *wheel) set(t *timer, at int64) {
	w.stop(t)
	t.at = max(at, w.now+1)
	w.put(t)
}

func (w *wheel) put(t *timer) {
	ahead := uint64(min(t.at-w.now, wheelSpan))
	level := 0
	if ahead > 0 {
		level = (bits.Len64(ahead) - 1) / wheelBits
	}
	slot := (w.now + int64(ahead)) >> (level * wheelBits) & (wheelSlots - 1)
	head := &w.slots[level][slot]
	if head.next == nil {
		head.next, head.prev = head, head
	}
	t.prev, t.next = head.prev, head
	head.prev.next, head.prev = t, t
	w.used[level] |= 1 << slot
}

// stop keeps t from expiring.
func (w *wheel) stop(t *timer) {
	if t.next == nil {
		return
	}
	t.prev.next, t.next.prev = t.next, t.prev
	t.prev, t.next = nil, nil
}

// advance moves to the tick now and expires what is due by then, in the order
// of ticks. Timers may be set and stopped meanwhile.
func (w *wheel) advance(now int64) {
	for w.now < now {
		// Whatever happens next happens when a slot of some level begins.
		next, ok := w.next()
		if !ok || next > now {
			w.now = now
			return
		}
		w.now = next
		for level := wheelLevels - 1; level >= 0; level-- {
			if w.now&(1<<(level*wheelBits)-1) == 0 {
				w.take(level)
			}
		}
	}
}

// take empties the slot of a level that begins now: what is due expires, the
// rest goes down.
func (w *wheel) take(level int) {
	slot := w.now >> (level * wheelBits) & (wheelSlots - 1)
	if w.used[level]&(1<<slot) == 0 {
		return
	}
	w.used[level] &^= 1 << slot
	head := &w.slots[level][slot]
	// They leave the slot before anything else is put into it, and stay in a
	// list from which each can be stopped.
	list := &w.due
	list.next, list.prev = list, list
	if head.next != head {
		list.next, list.prev = head.next, head.prev
		list.next.prev, list.prev.next = list, list
		head.next, head.prev = head, head
	}
	for list.next != list {
		t := list.next
		w.stop(t)
		if t.at <= w.now {
			t.of.expire()
		} else {
			w.put(t)
		}
	}
}

// next returns the tick at which a slot that was used begins; nothing expires
// before it. It reports false if there is no timer.
func (w *wheel) next() (at int64, ok bool) {
	for level := range w.used {
		shift := level * wheelBits
		here := w.now >> shift
		// The slot of this very moment has been taken: it comes round last.
		r := bits.RotateLeft64(w.used[level], -int((here+1)&(wheelSlots-1)))
		if r == 0 {
			continue
		}
		t := (here + 1 + int64(bits.TrailingZeros64(r))) << shift
		if !ok || t < at {
			at, ok = t, true
		}
	}
	return at, ok
}
