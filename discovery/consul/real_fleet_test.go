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

// kindsOfChange are what may happen to the services s10 and on, which have one
// instance each: what is done, and the sets that are seen then.
func kindsOfChange(s *consultest.Server, is []consultest.Instance) (changes []change) {
	add := func(kind string, n int, want string, edit func(*consultest.Instance)) {
		i := is[n]
		edit(&i)
		addr := fmt.Sprintf("127.1.0.%d", n+1)
		changes = append(changes, change{kind, n, func() { s.RegisterMany(i) }, fmt.Sprintf(want, addr)})
	}
	add("critical", 10, "%s-", func(i *consultest.Instance) { i.Status = api.HealthCritical })
	add("warning with another weight", 11, "%s*3", func(i *consultest.Instance) {
		i.Status, i.Weights = api.HealthWarning, api.AgentWeights{Passing: 1, Warning: 3}
	})
	add("a second instance", 12, "%s 1", func(i *consultest.Instance) { i.ID, i.Address = "second", "192.0.2.1" })
	add("weight", 13, "%s*5", func(i *consultest.Instance) { i.Weights = api.AgentWeights{Passing: 5, Warning: 1} })
	return append(changes, change{"deregistered", 14, func() { s.Replace("s14") }, ""})
}

type change struct {
	kind string
	n    int
	make func()
	want string
}

// Line 4 of what is asked of many services: with 500 on one agent nothing is
// refused, the connections stay few, and each kind of change is seen. How soon,
// and what it costs, is printed: no bound of time holds on every machine.
func TestRealFiveHundred(t *testing.T) {
	s := consultest.Start(t, consultest.Options{MaxConnsPerClient: 200})
	is := fleet(500)
	s.RegisterMany(is...)
	r := newReal(t, consul.Config{Address: s.Addr()})
	most := 0
	during(func() {
		began := time.Now()
		var all []*watching
		for i := range is {
			all = append(all, r.watch(consul.Query{Service: is[i].Name}))
		}
		for _, w := range all {
			w.seeOf(1)
		}
		t.Logf("500 sources have their first set after %v", time.Since(began).Round(time.Millisecond))
		measure(t, r, s, is, all)
		for i, w := range all {
			for _, rep := range w.rec.Reports() {
				if rep.Err != nil || rep.Set.Len() == 0 && i != 14 {
					t.Errorf("s%d: %s", i, rep)
				}
			}
		}
	}, func() { most = max(most, r.Stats().Connections) })
	t.Logf("connections: at most %d, now %d", most, r.Stats().Connections)
	if most > 64 || most < 5 {
		t.Errorf("there were up to %d connections, want some and at most 64", most)
	}
	if got := r.Stats(); got.Throttled != 0 || got.Failures != 0 || !got.SharedQueries {
		t.Errorf("got %+v, want no failures and shared queries", got)
	}
}

// The same of sources that have a query each.
func TestRealForty(t *testing.T) {
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
	measure(t, r, s, is, all)
	if got := r.Stats(); got.Failures != 0 || got.SharedQueries {
		t.Errorf("got %+v, want no failures and a query each", got)
	}
}

// measure makes changes to services that are read by all, and prints what that
// takes.
func measure(t *testing.T, r *real, s *consultest.Server, is []consultest.Instance, all []*watching) {
	t.Helper()
	began := time.Now()
	for last := uint64(0); last != r.Stats().Requests; <-time.After(2 * time.Second) {
		last = r.Stats().Requests
	}
	t.Logf("calm after %v and %d requests", time.Since(began).Round(time.Second), r.Stats().Requests)
	requests, used := r.rest(10 * time.Second)
	t.Logf("at rest: %.0f requests and %v of CPU time a minute", requests, used.Round(time.Millisecond))
	for _, c := range kindsOfChange(s, is) {
		t.Logf("%s: seen after %v", c.kind, all[c.n].takes(c.make, c.want))
	}
	// Something changes all the time, but not the service that is looked at.
	var took []time.Duration
	requestsBefore := r.Stats().Requests
	began = time.Now()
	status := map[bool]string{true: api.HealthCritical, false: api.HealthPassing}
	for i := range 32 {
		noise := is[20+i/2]
		noise.Status = status[i%2 == 0]
		s.RegisterMany(noise)
		<-time.After(250 * time.Millisecond)
		if i%8 == 7 {
			quiet := is[15+i/8]
			quiet.Status = api.HealthCritical
			took = append(took, all[15+i/8].takes(func() { s.RegisterMany(quiet) }, fmt.Sprintf("127.1.0.%d-", 15+i/8+1)))
		}
	}
	a := float64(time.Minute) / float64(time.Since(began))
	t.Logf("while others change: seen after %v; %.0f requests a minute", took, a*float64(r.Stats().Requests-requestsBefore))
}
