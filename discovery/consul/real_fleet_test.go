package consul_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"gatehouse.internal/discovery/consul"
	"gatehouse.internal/discovery/consul/consultest"
)

// cpu returns what this process has used so far.
func cpu(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// rest waits for d and returns what r costs meanwhile, a minute.
func (r *real) rest(d time.Duration) (requests float64, used time.Duration) {
	r.t.Helper()
	requestsBefore, cpuBefore := r.Stats().Requests, cpu(r.t)
	select {
	case <-time.After(d):
	case <-r.t.Context().Done():
	}
	a := float64(time.Minute) / float64(d)
	return a * float64(r.Stats().Requests-requestsBefore), time.Duration(a * float64(cpu(r.t)-cpuBefore))
}

// takes makes a change and returns how long it takes until w sees it.
func (w *watching) takes(change func(), want string) time.Duration {
	w.t.Helper()
	w.mark()
	began := time.Now()
	change()
	w.see(want)
	return w.when().Sub(began).Round(time.Millisecond)
}

// With 500 services on one agent nothing is refused, the connections stay few,
// and each kind of change is seen. How soon, and what it costs, is printed: no
// bound of time holds on every machine.
func TestRealFiveHundred(t *testing.T) {
	s := consultest.Start(t, consultest.Options{MaxConnsPerClient: 200})
	is := fleet(500)
	s.RegisterMany(is...)
	r := newReal(t, consul.Config{Address: s.Addr()})
	var all []*watching
	watch := func(n int) {
		for len(all) < n {
			all = append(all, r.watch(consul.Query{Service: is[len(all)].Name}))
		}
		for _, w := range all {
			w.seeOf(1)
		}
	}
	most := 0
	sampled := func(f func()) { during(f, func() { most = max(most, r.Stats().Connections) }) }
	began := time.Now()
	sampled(func() {
		// Each of as many as may has a query of its own, and goes on with it.
		watch(48)
		until(t, "48 wait", func() bool { return r.Stats().Connections >= 48 })
		watch(500)
	})
	t.Logf("500 sources have their first set after %v", time.Since(began).Round(time.Millisecond))
	r.calm()
	t.Logf("all is calm after %v and %d requests", time.Since(began).Round(time.Second), r.Stats().Requests)
	requests, used := r.rest(10 * time.Second)
	t.Logf("at rest: %.0f requests and %v of CPU time a minute", requests, used.Round(time.Millisecond))
	sampled(func() { changes(t, r, s, is, all) })

	t.Logf("connections: at most %d, now %d", most, r.Stats().Connections)
	if most == 0 || most > 64 {
		t.Errorf("there were up to %d connections, want some and at most 64", most)
	}
	if got := r.Stats(); got.Throttled != 0 || got.Failures != 0 || !got.SharedQueries {
		t.Errorf("got %+v, want no failures and shared queries", got)
	}
	for i, w := range all {
		for _, rep := range w.rec.Reports() {
			if rep.Err != nil || rep.Set.Len() == 0 && is[i].Name != deregistered {
				t.Errorf("%s: %s", is[i].Name, rep)
			}
		}
	}
}

// The same of sources that have a query each.
func TestRealForty(t *testing.T) {
	t.Parallel()
	s := consultest.Start(t, consultest.Options{})
	is := fleet(40)
	s.RegisterMany(is...)
	r := newReal(t, consul.Config{Address: s.Addr()})
	var all []*watching
	for i := range is {
		all = append(all, r.watch(consul.Query{Service: is[i].Name}))
	}
	for _, w := range all {
		w.seeOf(1)
	}
	requests, _ := r.rest(10 * time.Second)
	t.Logf("at rest: %.0f requests a minute", requests)
	changes(t, r, s, is, all)
	if got := r.Stats(); got.Failures != 0 || got.SharedQueries {
		t.Errorf("got %+v, want no failures and a query each", got)
	}
}

// calm waits until nothing is asked for a second.
func (r *real) calm() {
	r.t.Helper()
	for last := uint64(0); last != r.Stats().Requests; {
		last = r.Stats().Requests
		r.rest(time.Second)
	}
}

// deregistered is the service of that change.
const deregistered = "s14"

// changes makes changes to services that all read, and prints when they are
// seen.
func changes(t *testing.T, r *real, s *consultest.Server, is []consultest.Instance, all []*watching) {
	t.Helper()
	change := func(kind string, n int, want string, edit func(*consultest.Instance)) {
		t.Helper()
		i := is[n]
		edit(&i)
		took := all[n].takes(func() { s.RegisterMany(i) }, fmt.Sprintf(want, fmt.Sprintf("127.1.0.%d", n+1)))
		t.Logf("%s: seen after %v", kind, took)
	}
	weighed, fresh := is[9], is[9]
	weighed.Weights = api.AgentWeights{Passing: 7, Warning: 1}
	fresh.Name, fresh.ID = "fresh", "fresh"
	took := all[9].takes(func() { s.RegisterMany(fresh, weighed) }, "127.1.0.10*7")
	t.Logf("weight together with another, new service: seen after %v", took)
	change("critical", 10, "%s-", func(i *consultest.Instance) { i.Status = api.HealthCritical })
	change("warning with another weight", 11, "%s*3", func(i *consultest.Instance) {
		i.Status, i.Weights = api.HealthWarning, api.AgentWeights{Passing: 1, Warning: 3}
	})
	change("registered", 12, "%s 1", func(i *consultest.Instance) { i.ID, i.Address = "second", "192.0.2.1" })
	change("weight", 13, "%s*5", func(i *consultest.Instance) { i.Weights = api.AgentWeights{Passing: 5, Warning: 1} })
	t.Logf("deregistered: seen after %v", all[14].takes(func() { s.Replace(deregistered) }, ""))

	// Something changes all the time, but not the service that is looked at.
	var times []time.Duration
	before, began := r.Stats().Requests, time.Now()
	status := map[bool]string{true: api.HealthCritical, false: api.HealthPassing}
	for i := range 16 {
		noise := is[20+i/2]
		noise.Status = status[i%2 == 0]
		s.RegisterMany(noise)
		r.rest(200 * time.Millisecond)
		if i%4 == 3 {
			n := 15 + i/4
			quiet := is[n]
			quiet.Status = api.HealthCritical
			times = append(times, all[n].takes(func() { s.RegisterMany(quiet) }, fmt.Sprintf("127.1.0.%d-", n+1)))
		}
	}
	a := float64(time.Minute) / float64(time.Since(began))
	t.Logf("while others change: seen after %v; %.0f requests a minute", times, a*float64(r.Stats().Requests-before))
}

// What sources cost at rest: an iteration is a second of it. Each reads again
// every five minutes, so -benchtime=600x tells all.
func BenchmarkRealRest(b *testing.B) {
	for _, n := range []int{40, 500} {
		b.Run(fmt.Sprintf("sources=%d", n), func(b *testing.B) {
			s := consultest.Start(b, consultest.Options{})
			is := fleet(n)
			s.RegisterMany(is...)
			r := newReal(b, consul.Config{Address: s.Addr()})
			for i := range is {
				r.watch(consul.Query{Service: is[i].Name})
			}
			r.calm()
			before, used, connections := r.Stats().Requests, cpu(b), 0
			tick := time.NewTicker(time.Second)
			defer tick.Stop()
			for b.Loop() {
				<-tick.C
				connections = max(connections, r.Stats().Connections)
			}
			minutes := b.Elapsed().Minutes()
			b.ReportMetric(float64(r.Stats().Requests-before)/minutes, "requests/min")
			b.ReportMetric(float64((cpu(b)-used).Milliseconds())/minutes, "cpu-ms/min")
			b.ReportMetric(float64(connections), "connections")
		})
	}
}
