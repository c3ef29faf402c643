package telemetry

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"gatehouse.internal/forwarder"
)

// Clusters come, go, come again and are replaced, connections are made, time passes, and
// there is no room for all: no counter on a page ever goes backwards, none vanishes while
// it is told, and while there is room each is the number of connections that a cluster of
// the name ever had, as far as its series was kept.
func TestCountersNeverGoBackwards(t *testing.T) { rapid.Check(t, testCountersNeverGoBackwards) }

func testCountersNeverGoBackwards(t *rapid.T) {
	now := time.Unix(0, 0)
	const retention = time.Minute
	names := []string{"a", "b", "c", "d", "e", "f"}
	running := make(map[string]uint64)    // what the one that runs counts
	ever := make(map[string]uint64)       // of the name, while it is remembered
	last := make(map[string]time.Time)    // when it was told
	before := make(map[seriesKey]float64) // on the page
	told := make(map[string]bool)         // of clusters that ran then
	tel, err := New(Config{Retention: retention})
	if err != nil {
		t.Fatal(err)
	}
	room := rapid.Bool().Draw(t, "room")
	if !room {
		tel.rec.max = 5
	}
	tel.collect = func(r *Recorder) {
		for _, name := range names {
			n, ok := running[name]
			if !ok {
				continue
			}
			r.Counter(ClusterConnections, n, name)
			r.Histogram(ClusterConnect, forwarder.LatencyCounts{Buckets: [...]uint64{2: n, 16: 0}, Sum: time.Duration(n) * time.Second}, name)
			r.Gauge(ClusterReady, float64(n), name)
		}
	}
	look := func() {
		tel.rec.begin(now)
		tel.collect(&tel.rec)
		tel.rec.end()
		for name := range running {
			last[name] = now
		}
		for name, at := range last {
			if now.Sub(at) > retention {
				delete(last, name)
				delete(ever, name)
			}
		}
		page := make(map[seriesKey]float64)
		for k, s := range tel.rec.all {
			switch k.m {
			case ClusterConnections:
				page[k] = float64(s.base + s.last)
			case ClusterConnect:
				c := s.hist.total()
				page[k] = c.Sum.Seconds()
				if c.Sum != time.Duration(c.Count())*time.Second {
					t.Fatalf("%v: a sum of %v and %d connects", k.labels, c.Sum, c.Count())
				}
			}
		}
		for k, v := range page {
			if v < before[k] && (room || told[k.labels[0]]) {
				t.Fatalf("%v went from %v to %v", k.labels, before[k], v)
			}
			if name := k.labels[0]; room && v != float64(ever[name]) {
				t.Fatalf("%s of %s is %v, want %v", k.m.name, name, v, ever[name])
			}
		}
		for k := range before {
			if _, told := running[k.labels[0]]; told && room {
				if _, there := page[k]; !there {
					t.Fatalf("%v has vanished", k.labels)
				}
			}
		}
		if n := len(tel.rec.all); !room && n > tel.rec.max+2 { // those without labels
			t.Fatalf("%d series", n)
		}
		before = page
		clear(told)
		for name := range running {
			told[name] = true
		}
	}
	for range rapid.IntRange(1, 40).Draw(t, "steps") {
		name := rapid.SampledFrom(names).Draw(t, "name")
		switch rapid.IntRange(0, 4).Draw(t, "step") {
		case 0:
			delete(running, name)
			look()
		case 1: // it comes, or is replaced by one that counts anew
			if running[name] == 0 {
				running[name] = 0
			} else {
				look()
				running[name] = 0
			}
			look()
		case 2:
			if _, ok := running[name]; ok {
				n := uint64(rapid.IntRange(1, 1000).Draw(t, "connections"))
				running[name] += n
				ever[name] += n
			}
			look()
		case 3:
			now = now.Add(time.Duration(rapid.IntRange(1, 90).Draw(t, "seconds")) * time.Second)
			look()
		case 4:
			look()
		}
	}
}

// What control planes name without end has an end here: those that have gone leave
// first, those that are there stay, and what is of the agent itself has a place always.
func TestSeriesHaveABound(t *testing.T) {
	round := 0
	tel := newTest(t, func(r *Recorder) {
		r.Counter(ClusterConnections, 1, "stays")
		for i := range 3 {
			r.Counter(ClusterConnections, 1, fmt.Sprintf("new-%d-%d", round, i))
		}
		r.Gauge(AgentReady, 1)
	})
	tel.rec.max = 10
	for round = range 50 {
		tel.Flush()
		if n := len(tel.rec.all); n > 10+3 {
			t.Fatalf("%d series", n)
		}
	}
	has(t, tel, `gatehouse_cluster_connections{cluster="stays"} 1`, `gatehouse_telemetry_series_left_out 0`, `gatehouse_agent_ready 1`)
	tel.rec.max = 2 // fewer than those that are there
	round++
	tel.Flush()
	round++
	has(t, tel, `gatehouse_cluster_connections{cluster="stays"} 1`, `gatehouse_agent_ready 1`)
	if got := scrape(t, tel); !strings.Contains(got, "gatehouse_telemetry_series_left_out ") || strings.Contains(got, "gatehouse_telemetry_series_left_out 0\n") {
		t.Errorf("nothing is left out:\n%s", got)
	}
}
