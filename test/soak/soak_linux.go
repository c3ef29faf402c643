package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"

	"gatehouse.internal/discovery/consul/consultest"
)

// options say what a run is.
type options struct {
	duration time.Duration
	within   time.Duration // how long after it ended a state may be in force
	binary   string
	consul   bool
	out      func(format string, args ...any)
}

// The tolerances of what must be flat.
const (
	rssShare      = 4 // 1/rssShare more
	rssMore       = 24 << 20
	fdsMore       = 16
	goroutineMore = 32
)

const (
	clientsEach = 3
	tickEvery   = 40 * time.Millisecond // of each client
	flapEvery   = 6 * checkInterval     // at least
	maxShown    = 20                    // violations
)

// cluster is one with a source, a listener, and what was in force.
type cluster struct {
	name, addr string
	source     source
	members    *timeline
}

type soak struct {
	t        testing.TB
	o        options
	a        *agent
	b        *backends
	control  *control
	healthy  *timeline
	clusters []*cluster
	pause    sync.RWMutex // held by who wants no connections

	conns, bytes                      atomic.Uint64
	changes, flaps, reloads, absences int
	lastSwap                          map[*cluster]time.Time
	lastFlap                          time.Time

	before                 *process // that was taken over from, and may drain yet
	stops, takeovers, held int

	mu         sync.Mutex
	restarting bool
	postponed  []exchanged // while restarting
	restarts   []restart
	cut, late  int // connections: by stop and start, and at the end of a drain
	violations int
	shown      []string
}

// wrong notes a violation with its evidence.
func (s *soak) wrong(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.violations++; len(s.shown) < maxShown {
		s.shown = append(s.shown, time.Now().Format(clock)+" "+fmt.Sprintf(format, args...))
	}
}

// run runs the soak, and returns how many violations there were.
func run(t testing.TB, o options) int {
	dir, err := os.MkdirTemp("", "gatehouse-soak-")
	if err != nil {
		t.Fatal(err)
	}
	s := &soak{t: t, o: o, lastSwap: make(map[*cluster]time.Time)}
	defer func() {
		if s.violations == 0 {
			os.RemoveAll(dir)
		} else {
			o.out("the agent's logs and configuration are in %s", dir)
		}
	}()
	s.b = startBackends(t, 6, s.wrong)
	s.healthy = &timeline{name: "healthy", lag: 2 * checkInterval}
	s.control = newControl(t, s.b)
	s.control.start()
	add := func(name string, src source) {
		s.clusters = append(s.clusters, &cluster{name: name, addr: freeAddr(t), source: src, members: &timeline{name: "members of " + name, lag: src.lag()}})
	}
	add("eds", s.control)
	add("file", &file{t, s.b, filepath.Join(dir, "endpoints.hcl")})
	add("static", &static{b: s.b})
	nameserver := newNames(t, s.b)
	add("dns", nameserver)
	consul := ""
	if o.consul {
		server := consultest.Start(t, consultest.Options{})
		add("consul", &catalog{s: server, b: s.b})
		consul = fmt.Sprintf("consul { address = %q }\n", server.Addr())
	}
	all := make([]int, s.b.n)
	for i := range all {
		all[i] = i
	}
	s.healthy.publish(all)
	for _, c := range s.clusters {
		members := pick(all, 3)
		c.source.say(members)
		c.members.publish(members)
	}
	s.a = &agent{t: t, binary: o.binary, dir: dir, admin: freeAddr(t)}
	conf := func() string { return s.conf(dir, nameserver.addr, consul) }
	s.a.configure(conf())
	t.Cleanup(func() {
		for _, p := range s.a.all {
			p.kill()
		}
	})
	s.a.process = s.a.launch()
	if !s.a.until(s.a.fresh) {
		s.wrong("the agent is not ready")
		return s.report(usage{}, usage{})
	}

	stop := make(chan struct{})
	var wg sync.WaitGroup
	for _, c := range s.clusters {
		for range clientsEach {
			wg.Go(func() { s.client(c, stop) })
		}
	}
	base, last := s.churn(conf)
	close(stop)
	wg.Wait()
	if code := s.a.stop(); code != 0 {
		s.wrong("the agent has ended with %d", code)
	}
	for _, text := range []string{"DATA RACE", "panic:", "fatal error:", "goroutine 1 ["} {
		if s.a.logsHave("WARNING: "+text) || s.a.logsHave("\n"+text) {
			s.wrong("a log of the agent has %q", text)
		}
	}
	return s.report(base, last)
}

// conf is the agent's configuration.
func (s *soak) conf(dir, nameserver, consul string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `node { id = %q }
admin { address = %q }
state_dir = %q
drain_timeout = %q
xds {
  server_uri = %q
  clusters   = true
}
dns {
  nameservers = [%q]
}
%s`, nodeID, s.a.admin, filepath.Join(dir, "state"), drainTimeout, s.control.addr, nameserver, consul)
	for i, c := range s.clusters {
		policies := []string{"round_robin", "ring_hash", "least_weight", "random", "adaptive", "maglev"}
		if conf := c.source.conf(); conf != "" {
			fmt.Fprintf(&b, `cluster %q {
  %s
  health_check "http" {
    interval = %q
    timeout  = %q
    alt_port = %d
    host     = "soak"
    healthy_threshold = 1
  }
  selector "default" { policy = %q }
}
`, c.name, conf, checkInterval, checkInterval, s.b.health, policies[i%len(policies)])
		}
		fmt.Fprintf(&b, "listener %q {\n  address = %q\n  cluster = %q\n  hash_on = \"source_ip_port\"\n}\n", c.name, c.addr, c.name)
	}
	return b.String()
}

// client exchanges bodies with a cluster until stop.
func (s *soak) client(c *cluster, stop <-chan struct{}) {
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		size := rand.IntN(4 << 10)
		switch n := rand.IntN(100); {
		case n == 0:
			size = rand.IntN(maxBody)
		case n < 10:
			size = rand.IntN(256 << 10)
		}
		s.pause.RLock()
		e := s.exchange(c, size, nil)
		s.pause.RUnlock()
		s.judge(e)
	}
}

// exchanged is what came of one exchange.
type exchanged struct {
	*cluster
	who          int
	began, ended time.Time
	err          error
}

func (s *soak) exchange(c *cluster, size int, pause func()) exchanged {
	e := exchanged{cluster: c, began: time.Now()}
	e.who, e.err = exchange(c.addr, size, pause)
	e.ended = time.Now()
	s.conns.Add(1)
	s.bytes.Add(2 * uint64(size))
	return e
}

// judge says what was wrong with an exchange. That waits while the agent is restarted:
// what was in force then is known later.
func (s *soak) judge(e exchanged) {
	if s.isPostponed(e) {
		return
	}
	if e.who >= 0 {
		from := e.began.Add(-s.o.within)
		if !e.members.had(e.who, from, e.ended) {
			s.wrong("wrong route in %s: backend %d was no member, from %s to %s\n%s", e.name, e.who, e.began.Format(clock), e.ended.Format(clock), e.members.evidence())
		}
		if !s.healthy.had(e.who, from, e.ended) {
			s.wrong("wrong route in %s: backend %d was not healthy, from %s to %s\n%s", e.name, e.who, e.began.Format(clock), e.ended.Format(clock), s.healthy.evidence())
		}
	}
	switch {
	case e.err == nil:
	case errors.Is(e.err, errWrong):
		s.wrong("wrong bytes in %s by backend %d: %v", e.name, e.who, e.err)
	case !s.mayBeCut(e):
		s.wrong("a connection of %s by backend %d has failed, from %s to %s: %v\n%s%s%s", e.name, e.who, e.began.Format(clock), e.ended.Format(clock), e.err,
			e.members.evidence(), s.healthy.evidence(), s.lastRestart())
	}
}

// pick draws n of all.
func pick(all []int, n int) []int {
	out := slices.Clone(all)
	rand.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	out = out[:n]
	slices.Sort(out)
	return out
}

// churn changes things at random until the time is over, and returns what the agent
// took once the last restart was over, and in the end. That is later where the machine
// is so slow that there was not a restart of each kind yet.
func (s *soak) churn(conf func() string) (base, last usage) {
	began := time.Now()
	calm := began.Add(s.o.duration * 6 / 10) // no restart after it
	end := began.Add(s.o.duration)
	nextRestart, settled := began.Add(min(s.o.duration/5, 20*time.Second)), calm.Add(s.o.duration/10)
	measured := false
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	all := s.healthy.now() // at the beginning
	var awaySince time.Time
	var back func()
	for now := range tick.C {
		if s.a.ended() {
			s.wrong("the agent has ended by itself with %d", s.a.cmd.ProcessState.ExitCode())
			return base, last
		}
		if now.After(end) && measured {
			break
		}
		due := now.After(nextRestart) && (now.Before(calm) || s.stops == 0 || s.takeovers == 0)
		if !awaySince.IsZero() && (now.Sub(awaySince) > 3*time.Second || now.After(calm) || due) {
			s.controlBack(back)
			awaySince = time.Time{}
		}
		switch n := rand.IntN(20); {
		case due:
			s.restart(all)
			nextRestart = time.Now().Add(max(s.o.duration/20, 5*time.Second))
			if next := time.Now().Add(s.o.duration / 10); next.After(settled) {
				settled = next
			}
		case now.After(settled) && !measured:
			base, measured = s.measure(), true
		case n == 0:
			s.flap(all)
		case n == 1:
			s.reload(conf, all)
		case n == 2 && awaySince.IsZero() && now.Before(calm) && (s.before == nil || s.before.ended()): // of two one would come back first
			back = s.clusters[0].members.leave(0)
			s.control.stop()
			s.absences++
			awaySince = now
		case n == 3:
			s.control.policy = []clusterv3.Cluster_LbPolicy{clusterv3.Cluster_ROUND_ROBIN, clusterv3.Cluster_LEAST_REQUEST, clusterv3.Cluster_RING_HASH}[rand.IntN(3)]
			s.control.publish()
			s.changes++
		case n < 15:
			s.changeOne(all)
		}
	}
	return base, s.measure()
}

// changeOne makes other backends the members of one of the clusters, if its time has come.
func (s *soak) changeOne(all []int) {
	c := s.clusters[rand.IntN(len(s.clusters))]
	if _, inConf := c.source.(*static); inConf || time.Since(s.lastSwap[c]) < c.source.pause() {
		return // by a reload, or later
	}
	s.lastSwap[c] = time.Now()
	s.change(c, all)
}

// change makes other backends the members of a cluster.
func (s *soak) change(c *cluster, all []int) {
	members := pick(all, 2+rand.IntN(len(all)-2))
	if c.source.pause() > 0 {
		members = slices.Clone(c.members.now())
		for {
			next := rand.IntN(len(all))
			if !slices.Contains(members, next) {
				members[rand.IntN(len(members))] = next
				slices.Sort(members)
				break
			}
		}
	}
	// What is said is in force at some moment between here and there.
	back := c.members.leave(0)
	c.members.publish(members)
	c.source.say(members)
	back()
	s.changes++
}

// flap makes a backend sick, or the one that is well again. One at a time is, and no two
// soon after each other, so that of each cluster somebody is well, and known to be.
func (s *soak) flap(all []int) {
	if time.Since(s.lastFlap) <= flapEvery {
		return
	}
	s.lastFlap = time.Now()
	next := all
	if len(s.healthy.now()) == len(all) {
		next = pick(all, len(all)-1)
	}
	back := s.healthy.leave(0)
	s.healthy.publish(next)
	for _, i := range all {
		s.b.sick[i].Store(!slices.Contains(next, i))
	}
	back()
	s.flaps++
}

// reload changes what the configuration lists, and has the agent read it.
func (s *soak) reload(conf func() string, all []int) {
	for _, c := range s.clusters {
		if _, ok := c.source.(*static); !ok {
			continue
		}
		back := c.members.leave(0)
		s.change(c, all)
		s.a.configure(conf())
		if rand.IntN(2) == 0 {
			s.a.cmd.Process.Signal(syscall.SIGHUP)
		}
		code, body, err := s.a.ask("POST", "/reload") // answers when it is in force
		back()
		if err != nil || code != 200 || !strings.Contains(body, `"result": "in_force"`) {
			s.wrong("a reload: %d %v %s", code, err, body)
		}
	}
	s.reloads++
}

// controlBack starts the control plane, and waits until the agent has come.
func (s *soak) controlBack(back func()) {
	s.control.start()
	if !s.a.until(func() bool { return s.control.open.Load() > 0 }) {
		s.wrong("the agent does not come back to the control plane")
	}
	back()
}

// measure returns what the agent takes while it has no connections.
func (s *soak) measure() (u usage) {
	s.endBefore()
	s.pause.Lock()
	defer s.pause.Unlock()
	if !s.a.until(func() bool {
		var err error
		u, err = s.a.usage()
		return err == nil && u.active == 0
	}) {
		s.wrong("connections stay that no client has: %d", u.active)
	}
	return u
}

// report prints what was done and what was wrong, and returns how much.
func (s *soak) report(base, last usage) int {
	if s.violations == 0 || base.fds > 0 {
		if most := base.rss + base.rss/rssShare + rssMore; last.rss > most {
			s.wrong("memory has grown: %d MiB after warming up, %d MiB in the end", base.rss>>20, last.rss>>20)
		}
		if last.fds > base.fds+fdsMore {
			s.wrong("descriptors have grown: %d after warming up, %d in the end", base.fds, last.fds)
		}
		if last.goroutines > base.goroutines+goroutineMore {
			s.wrong("goroutines have grown: %d after warming up, %d in the end", base.goroutines, last.goroutines)
		}
	}
	var names []string
	for _, c := range s.clusters {
		names = append(names, c.name)
	}
	o := s.o.out
	o("sources      %s", strings.Join(names, ", "))
	if !s.o.consul {
		o("left out     consul: it is not built; ./test/consul/build builds it")
	}
	o("churn        %d changes of members, %d flaps of health, %d absences of the control plane, %d reloads", s.changes, s.flaps, s.absences, s.reloads)
	o("restarts     %d by stop and start, %d takeovers", s.stops, s.takeovers)
	o("connections  %d, with %d MiB in both directions; %d were cut or refused by stop and start; %d were held over takeovers, %d cut at the end of a drain",
		s.conns.Load(), s.bytes.Load()>>20, s.cut, s.held, s.late)
	o("memory       %d MiB after warming up, %d MiB in the end", base.rss>>20, last.rss>>20)
	o("descriptors  %d after warming up, %d in the end", base.fds, last.fds)
	o("goroutines   %d after warming up, %d in the end", base.goroutines, last.goroutines)
	o("violations   %d", s.violations)
	for _, text := range s.shown {
		o("  %s", text)
	}
	if s.violations > len(s.shown) {
		o("  and %d more", s.violations-len(s.shown))
	}
	return s.violations
}

// build builds the agent into dir.
func build(dir string, flags ...string) (string, error) {
	path := filepath.Join(dir, "gatehouse")
	args := append([]string{"build", "-o", path}, flags...)
	if out, err := exec.Command("go", append(args, "gatehouse.internal/cmd/agent")...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
}
