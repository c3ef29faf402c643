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

// Nameservers that disagree on whether the name is gone or its records are say the
// same of these: they are given up after the longer of the two holds.
func TestNXDomainAndNoDataAreOneRun(t *testing.T) {
	for _, tt := range []struct {
		name string
		hold Hold
		want time.Duration // from the first answer; 0 is never
	}{
		{"equal", Hold{NXDomain: 30 * time.Second, NoData: 30 * time.Second}, 30 * time.Second},
		{"the longer one", Hold{NXDomain: 30 * time.Second, NoData: time.Minute}, time.Minute},
		{"for ever", Hold{NXDomain: 30 * time.Second}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			q := Query{Hold: tt.hold}.withDefaults()
			m := newMemory(&q, question{})
			began := time.Unix(1000, 0)
			m.take(answer{addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}, began, 0.5)
			gone := time.Duration(0)
			for n := 0; n < 1000 && gone == 0; n++ {
				at := began.Add(time.Duration(n) * time.Second)
				m.take(answer{class: nodata + class(n%2), err: errors.New("no records")}, at, 0.5)
				if n > 0 && len(m.addrs) == 0 {
					gone = at.Sub(began)
				}
			}
			if gone != tt.want || m.empty != (tt.want > 0) {
				t.Errorf("given up after %v, want %v; empty %t", gone, tt.want, m.empty)
			}
		})
	}
}

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
		kind, both, believedEmpty := found, false, false
		held := func() time.Duration {
			if a, b := holds[nxdomain], holds[nodata]; both && min(a, b) > 0 {
				return max(a, b)
			} else if both {
				return 0
			}
			return holds[kind]
		}
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
				kind, run, both, believedEmpty = found, nil, false, false
			} else {
				a.err = errors.New("no records")
				if negative := !a.class.failed() && !kind.failed() && kind != found; a.class != kind && !negative {
					run, both = nil, false
				} else if a.class != kind {
					both = true
				}
				kind, run = a.class, append(run, now)
				if h := held(); h > 0 && len(run) > 1 && now.Sub(run[0]) >= h {
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
			if end := held(); kind != found && end > 0 && len(want) > 0 && !kind.failed() && m.due.After(run[0].Add(end+q.MinBackoff)) {
				t.Fatalf("the hold is over at %v, and asked for at %v", run[0].Add(end), m.due)
			}
			now = m.due.Add(time.Duration(rapid.IntRange(0, 3000).Draw(t, "took")) * time.Millisecond)
		}
	})
}
