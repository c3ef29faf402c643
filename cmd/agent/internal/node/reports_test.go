package node

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/lbcore"
	"gatehouse.internal/xds"
)

func allClusters(string) bool { return true }

// told is the next load report of a cluster, each place a line.
func (r *rig) told(name string) string {
	var out []string
	for _, c := range r.Loads(func(n string) bool { return n == name }) {
		sums := make(map[string]xds.Load)
		for _, e := range c.Endpoints {
			at := fmt.Sprintf("%s/%d", e.Locality.Zone, e.Priority)
			s := sums[at]
			s.Add(e.Load)
			sums[at] = s
		}
		for at, s := range sums {
			out = append(out, fmt.Sprintf("%s issued=%d ended=%d failed=%d open=%d", at, s.Issued, s.Successful, s.Failed, s.InProgress))
		}
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// tells adds up load reports until their sum is want: counters come a little after
// what they count.
func (r *rig) tells(name, want string) {
	r.t.Helper()
	var sum xds.Load
	dropped := uint64(0)
	within(r.t, "the loads of "+name+" are "+want, func() bool {
		sum.InProgress = 0
		for _, c := range r.Loads(func(n string) bool { return n == name }) {
			dropped += c.Dropped
			for _, e := range c.Endpoints {
				sum.Add(e.Load)
			}
		}
		return fmt.Sprintf("issued=%d ended=%d failed=%d open=%d dropped=%d", sum.Issued, sum.Successful, sum.Failed, sum.InProgress, dropped) == want
	})
}

// Connections are told as they begin and end, by locality; those of endpoints that
// have left, and of clusters that were replaced, too.
func TestLoadReports(t *testing.T) { onBoth(t, testLoadReports) }

func testLoadReports(t *testing.T, r *rig) {
	one, two, bad := listen(t, "one"), listen(t, "two"), deaf(t)
	one.Locality, two.Locality = lbcore.Locality{Zone: "a"}, lbcore.Locality{Zone: "b"}
	c := clusterOf("web", eds("a"))
	c.LoadReports, c.CircuitBreakers.MaxConnections = true, 2
	r.eds.replace("a", one.Endpoint)
	spec := func(c config.Cluster) Spec {
		return Spec{Clusters: []config.Cluster{c, clusterOf("other", eds("a"))}, Listeners: []config.Listener{listenerOf("l", "web")}}
	}
	r.apply(spec(c))
	within(t, "it serves", func() bool { return len(r.Waiting()) == 0 })
	if got := r.Loads(allClusters); len(got) != 1 || got[0].Cluster != "web" || got[0].Service != "a" || len(got[0].Endpoints) != 0 {
		t.Errorf("before the first connection: %+v", got)
	}

	x := r.mustDial("l", "one")
	y := r.mustDial("l", "one")
	within(t, "two are open", func() bool { return r.cluster("web").Endpoints[0].Totals.Opened == 2 })
	if got := r.told("web"); got != "a/0 issued=2 ended=0 failed=0 open=2" {
		t.Errorf("told: %s", got)
	}
	r.refused("l") // over the breaker
	r.tells("web", "issued=0 ended=0 failed=0 open=2 dropped=1")
	y.Close()
	r.tells("web", "issued=0 ended=1 failed=0 open=1 dropped=0")

	// The endpoint leaves with a connection that goes on.
	r.eds.replace("a", two.Endpoint)
	within(t, "the other takes over", func() bool { return r.ready("web") == 1 && r.cluster("web").Selectors[0].Generation == 2 })
	within(t, "the breaker has room", func() bool { return r.cluster("web").Open.Now == 1 })
	z := r.mustDial("l", "two")
	r.tells("web", "issued=1 ended=0 failed=0 open=2 dropped=0")

	// The cluster is replaced, and the connections go on.
	old := r.serving("web")
	r.apply(spec(changed(c)))
	within(t, "it is replaced", func() bool { return r.serving("web") != old })
	x.alive()
	z.alive()
	if got := r.told("web"); got != "a/0 issued=0 ended=0 failed=0 open=1\nb/0 issued=0 ended=0 failed=0 open=1" {
		t.Errorf("after the replacement: %s", got)
	}
	x.Close()
	z.Close()
	r.tells("web", "issued=0 ended=2 failed=0 open=0 dropped=0")

	// A dial that fails is an error, and no connection.
	r.eds.replace("a", bad)
	within(t, "it has the bad one", func() bool {
		return r.cluster("web").Selectors[0].Generation == 2 && r.cluster("web").Open.Now == 0
	})
	r.refused("l")
	r.tells("web", "issued=0 ended=0 failed=1 open=0 dropped=0")

	// Without a wish for reports there are none.
	c.LoadReports = false
	r.apply(spec(changed(c)))
	within(t, "nothing is told", func() bool { return len(r.Loads(allClusters)) == 0 })
}

// ConcurrentReportLoad: whatever goes on while it is told, the sums are right, no more
// has ended than has begun, and what has left is let go of.
func TestConcurrentReportLoad(t *testing.T) {
	v := lbcore.NewView("web", new(lbcore.Hosts), lbcore.ViewConfig{})
	defer v.Close()
	var eps []lbcore.Endpoint
	for i := range 4 {
		e := endpoint(fmt.Sprintf("192.0.2.%d:80", i+1))
		e.Locality.Zone = fmt.Sprint(i % 2)
		eps = append(eps, e)
	}
	v.Update(lbcore.MustSet(eps...))
	l := newLoads(dropped{over: 7})
	members := v.Members()
	for _, m := range members {
		l.join(m)
	}
	const each = 2000
	var wg sync.WaitGroup
	for i := range 8 {
		m := members[i%len(members)]
		wg.Go(func() {
			for n := range each {
				m.StartDial()
				switch n % 4 {
				case 0:
					m.DialFailed()
				case 1:
					m.DialAbandoned()
				default:
					m.Connected()
					m.Closed(1, 1)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	var sum xds.Load
	var over uint64
	take := func(total uint64) {
		c := l.take(dropped{over: total})
		over += c.Dropped
		for _, e := range c.Endpoints {
			e.InProgress = 0
			sum.Add(e.Load)
		}
		if sum.Successful > sum.Issued {
			t.Errorf("%d have ended of %d", sum.Successful, sum.Issued)
		}
	}
	for over := false; !over; {
		select {
		case <-done:
			over = true
		default:
		}
		take(7)
	}
	for _, m := range members {
		l.leave(m)
	}
	take(9)
	if want := (xds.Load{Issued: 8 * each / 2, Successful: 8 * each / 2, Failed: 8 * each / 4}); sum != want || over != 2 {
		t.Errorf("told %+v and %d dropped, want %+v and 2", sum, over, want)
	}
	if len(l.members)+len(l.left)+len(l.rest) != 0 {
		t.Errorf("%d members are held", len(l.members))
	}
}

// However many endpoints come and go while nobody is told, what is held is bounded,
// and nothing is lost.
func TestLoadsAreBounded(t *testing.T) {
	hosts := new(lbcore.Hosts)
	l := newLoads(dropped{})
	const rounds = 3 * maxLoadPlaces
	for i := range rounds {
		v := lbcore.NewView("web", hosts, lbcore.ViewConfig{Drop: l.leave})
		e := endpoint("192.0.2.1:80")
		e.Locality.Zone = fmt.Sprint(i)
		v.Update(lbcore.MustSet(e))
		m := v.Members()[0]
		l.join(m)
		m.StartDial()
		m.Connected()
		m.Closed(0, 0)
		v.Close()
		if len(l.members) > 100 || len(l.rest) > maxLoadPlaces+1 {
			t.Fatalf("%d members and %d places are held", len(l.members), len(l.rest))
		}
	}
	issued := uint64(0)
	for _, e := range l.take(dropped{}).Endpoints {
		issued += e.Issued
	}
	if issued != rounds || len(l.members)+len(l.rest) != 0 {
		t.Errorf("%d issued, want %d", issued, rounds)
	}
}
