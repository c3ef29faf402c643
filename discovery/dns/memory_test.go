package dns

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Whatever the answers and their times: a record is known while one of the last
// answers had it, and until a run of one kind has lasted as long as its hold says;
// and no look-up comes sooner than the settings allow, or later.
func TestMemoryProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		hold := func(name string) time.Duration {
			return time.Duration(rapid.IntRange(0, 40).Draw(t, name)) * time.Second
		}
		q := Query{
			Misses: rapid.IntRange(1, 3).Draw(t, "misses"),
			Hold:   Hold{NXDomain: hold("nxdomain"), NoData: hold("nodata"), Refused: hold("refused"), Timeout: hold("timeout")},
		}.withDefaults()
		holds := map[class]time.Duration{nxdomain: q.Hold.NXDomain, nodata: q.Hold.NoData, refused: q.Hold.Refused, timeout: q.Hold.Timeout}
		m := newMemory(&q, question{})
		now := time.Unix(1000, 0)

		answers := 0                     // with records, so far
		seen := make(map[netip.Addr]int) // the last of these that had it
		var run []time.Time              // of one kind
		kind, believedEmpty := found, false
		for range rapid.IntRange(1, 40).Draw(t, "answers") {
			a := answer{class: class(rapid.IntRange(0, int(timeout)).Draw(t, "class"))}
			if a.hasTTL = rapid.Bool().Draw(t, "hasTTL"); a.hasTTL {
				a.ttl = time.Duration(rapid.IntRange(0, 10000).Draw(t, "ttl")) * time.Second
			}
			if a.class == found {
				for n := range byte(6) {
					if n == 0 || rapid.Bool().Draw(t, "listed") {
						a.addrs = append(a.addrs, netip.AddrFrom4([4]byte{192, 0, 2, n}))
					}
				}
				answers++
				for _, ip := range a.addrs {
					seen[ip] = answers
				}
				maps.DeleteFunc(seen, func(_ netip.Addr, last int) bool { return answers-last >= q.Misses })
				kind, run, believedEmpty = found, nil, false
			} else {
				a.err = errors.New("no records")
				if a.class != kind {
					kind, run = a.class, nil
				}
				run = append(run, now)
				if h := holds[kind]; h > 0 && len(run) > 1 && now.Sub(run[0]) >= h {
					clear(seen)
					believedEmpty = !kind.failed()
				}
			}
			m.take(a, now, rapid.Float64Range(0, 0.999).Draw(t, "random"))

			want := slices.SortedFunc(maps.Keys(seen), netip.Addr.Compare)
			if got := m.sortedAddrs(); !slices.Equal(got, want) {
				t.Fatalf("records %v, want %v", got, want)
			}
			if m.empty != believedEmpty && kind != found && !kind.failed() {
				t.Fatalf("that there are none is believed: %t, want %t", m.empty, believedEmpty)
			}
			least, most := min(q.MinTTL, q.MinBackoff), max(q.MaxTTL, q.MaxBackoff)
			if wait := m.due.Sub(now); wait < least*84/100 || wait > most*116/100 {
				t.Fatalf("the next look-up is %v later", wait)
			}
			// Until a hold is over it is asked for again in time.
			if end := holds[kind]; kind != found && end > 0 && len(want) > 0 && !kind.failed() && m.due.After(run[0].Add(end+q.MinBackoff)) {
				t.Fatalf("the hold is over at %v, and asked for at %v", run[0].Add(end), m.due)
			}
			now = m.due.Add(time.Duration(rapid.IntRange(0, 3000).Draw(t, "took")) * time.Millisecond)
		}
	})
}
