package test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// crowd is many backends, whose accepts are noted in the order in which they come.
type crowd struct {
	addrs []string

	mu  sync.Mutex
	log []accept
}

type accept struct {
	backend int
	at      time.Time
}

func startCrowd(t *testing.T, n int) *crowd {
	t.Helper()
	c := &crowd{addrs: make([]string, n)}
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait) // after the listeners are closed
	for i := range n {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ln.Close() })
		c.addrs[i] = ln.Addr().String()
		wg.Go(func() {
			for {
				conn, err := ln.Accept()
				if err != nil {
					return
				}
				c.mu.Lock()
				c.log = append(c.log, accept{i, time.Now()})
				c.mu.Unlock()
				conn.Close()
			}
		})
	}
	return c
}

// accepts returns those from the nth on.
func (c *crowd) accepts(n int) []accept {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]accept(nil), c.log[n:]...)
}

func (c *crowd) len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.log)
}

// An agent that was stopped for several intervals, as a suspended machine is, goes on
// with one probe for each backend, at the pace of 2,000 a second: those that it has
// missed are not made up for. What was in flight says nothing of its backend.
func TestPausedAgentMakesNoHerd(t *testing.T) {
	const (
		backends = 800
		interval = time.Second
		missed   = 5
		pace     = 2000 // a second
		// Starts that may come before their turn at that pace: what paceSlack of
		// healthsvc lets through, and what was about to connect when it was stopped.
		early = 70
	)
	c := startCrowd(t, backends)
	check := fmt.Sprintf("  health_check \"tcp\" {\n    interval = %q\n    timeout = \"900ms\"\n  }\n}\n", interval)
	p := startFastAgent(t, listing("crowd", c.addrs...)+check)
	// Another agent is the clock of the pause.
	clock := startCounted(t)
	q := startFastAgent(t, listing("clock", clock.addr)+check)
	p.awaitReady()
	q.awaitReady()
	ready := func() bool { return p.metric(`gatehouse_cluster_ready{cluster="crowd"}`) == backends }
	eventually(t, "all backends are ready", ready)
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	stopped := clock.accepts.Load()
	eventually(t, "the pause is over", func() bool { return clock.accepts.Load() >= stopped+missed+1 })
	before := c.len()
	cont := time.Now()
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all backends are probed again", func() bool {
		probed := make(map[int]bool)
		for _, a := range c.accepts(before) {
			probed[a.backend] = true
		}
		return len(probed) == backends
	})

	// Whatever slows a test down makes accepts later, never sooner: these bounds hold
	// on any machine.
	of := make(map[int]int)
	for k, a := range c.accepts(before) {
		took := a.at.Sub(cont)
		if soonest := time.Duration(k-early) * time.Second / pace; took < soonest {
			t.Fatalf("accept %d after the pause came %s after its end, want at least %s: they come as a herd", k+1, took, soonest)
		}
		// One that was in flight, one that was due, and one each interval.
		if of[a.backend]++; of[a.backend] > 2+int(took/interval) {
			t.Fatalf("backend %d was probed %d times within %s after a pause of %d intervals", a.backend, of[a.backend], took, missed)
		}
	}
	eventually(t, "all backends are ready after the pause", ready)
	if out := p.output(); strings.Contains(out, "probe verdict changed") {
		t.Error("the pause has changed a verdict")
	}
}

// lonelyEnv makes this program the backend of a process of its own.
const lonelyEnv = "GATEHOUSE_TEST_LONELY"

// serveLonely tells its address, and serves http until it is killed.
func serveLonely() {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err == nil {
		fmt.Println(ln.Addr())
		err = http.Serve(ln, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// A backend that is stopped goes on accepting, as its kernel does that: who only
// connects finds it well, an http check fails by its deadline, and passes once the
// backend runs again. What `gatehouse endpoints` says follows.
func TestStoppedBackend(t *testing.T) {
	needsServer(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b := exec.Command(exe)
	b.Env = append(os.Environ(), lonelyEnv+"=1")
	out, err := b.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.Process.Kill() // ends one that is stopped too
		b.Wait()
	})
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	addr = strings.TrimSpace(addr)

	check := func(kind, more string) string {
		return fmt.Sprintf("  health_check %q {\n    interval = \"500ms\"\n    timeout = \"400ms\"\n    unhealthy_threshold = 2\n    healthy_threshold = 1\n%s  }\n}\n", kind, more)
	}
	p := startFastAgent(t, listing("http", addr)+check("http", "    path = \"/health\"\n")+listing("tcp", addr)+check("tcp", ""))
	p.awaitReady()
	type endpoint struct {
		Cluster, Address, Status, Why string
		Ready                         bool
		Since                         *time.Time
		NextProbe                     *time.Time `json:"next_probe"`
		LastError                     string     `json:"last_error"`
	}
	endpoints := func() map[string]endpoint {
		t.Helper()
		path, err := fastBinary()
		if err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(path, "endpoints", "-json", "-http-addr", p.admin()).Output()
		if err != nil {
			t.Fatal(err)
		}
		var all struct{ Endpoints []endpoint }
		if err := json.Unmarshal(out, &all); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		by := make(map[string]endpoint)
		for _, e := range all.Endpoints {
			by[e.Cluster] = e
		}
		return by
	}
	eventually(t, "both clusters are ready", func() bool {
		es := endpoints()
		return es["http"].Ready && es["tcp"].Ready
	})

	if err := b.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the http check fails by its deadline, after it has connected", func() bool {
		e := endpoints()["http"]
		return !e.Ready && e.Status == "failed" && e.Since != nil && e.Address == addr && strings.Contains(e.Why, "http check fails") &&
			e.LastError == "http check: response: timed out"
	})
	// Many probes of the silent backend later who only connects is well still.
	timedOut := `gatehouse_health_probes{kind="http",result="timeout"}`
	passed := `gatehouse_health_probes{kind="tcp",result="passed"}`
	from, fromPassed := p.metric(timedOut), p.metric(passed)
	eventually(t, "both checks go on", func() bool { return p.metric(timedOut) >= from+3 && p.metric(passed) >= fromPassed+3 })
	if e := endpoints()["tcp"]; !e.Ready {
		t.Errorf("the tcp check of a backend whose kernel accepts: %+v", e)
	}

	if err := b.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the http check passes again", func() bool { return endpoints()["http"].Ready })
}
