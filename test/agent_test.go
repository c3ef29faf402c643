package test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

func static(name string, b ...*backend) string {
	var addrs []string
	for _, x := range b {
		addrs = append(addrs, fmt.Sprintf("%q", x.addr))
	}
	return fmt.Sprintf("cluster %q {\n  discovery \"static\" { endpoints = [%s] }\n", name, strings.Join(addrs, ", "))
}

// A port that is taken exits with 3 and names the listener.
func TestPortTaken(t *testing.T) {
	a := startBackend(t)
	p := startAgent(t, static("web", a)+fmt.Sprintf(`}
listener "web" {
  address = %q
  cluster = "web"
}
`, a.addr))
	if code := p.wait(); code != 3 {
		t.Errorf("exit code %d, want 3", code)
	}
	if out := p.output(); !strings.Contains(out, `listener \"web\"`) || !strings.Contains(out, "address already in use") {
		t.Errorf("the error does not name the listener:\n%s", out)
	}
}

// One backend is killed under load: only connections that it had are lost.
func TestBackendKilled(t *testing.T) {
	a, b := startBackend(t), startBackend(t)
	p := startAgent(t, static("web", a, b)+`
  health_check "tcp" {
    interval = "100ms"
    timeout  = "100ms"
  }
}
`+webListener)
	p.awaitReady()
	tr := startTraffic(t, p.listener("web"))
	tr.lands(t, a, b)
	b.kill()
	eventually(t, "the killed backend is unhealthy", func() bool { return slices.Equal(p.cluster("web").ready, []string{a.addr}) })
	tr.lands(t, a)
	tr.stop()
	p.servedAll()
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if n := len(tr.errs); n > 3 { // one a client
		t.Errorf("%d connections failed, more than the killed backend can have had: %v", n, tr.errs)
	}
}

// Two clusters with one backend and one check share a probe stream, also when
// their intervals differ: the backend counts as many accepts as the faster one
// asks for, not more.
func TestProbesAreShared(t *testing.T) {
	a := startBackend(t)
	check := func(interval string) string {
		return fmt.Sprintf("  health_check \"tcp\" {\n    interval = %q\n    timeout = \"50ms\"\n  }\n}\n", interval)
	}
	p := startAgent(t, static("fast", a)+check("100ms")+static("slow", a)+check("130ms"))
	p.awaitReady()

	// Both streams, were there two, would be in the accepts of the backend. To
	// compare with no clock of the test's own, a second backend is probed by
	// one cluster alone in the same process.
	b := startBackend(t)
	q := startAgent(t, static("alone", b)+check("100ms"))
	q.awaitReady()
	fromA, fromB := a.accepted.Load(), b.accepted.Load()
	eventually(t, "the lone backend has been probed 40 times more", func() bool { return b.accepted.Load() >= fromB+40 })
	shared, alone := a.accepted.Load()-fromA, b.accepted.Load()-fromB
	// Two streams would make 40 + 40*100/130 = 70.
	if shared > alone*5/4+2 {
		t.Errorf("the shared backend was probed %d times while one stream makes %d", shared, alone)
	}
	if _, body := p.get("/stats/prometheus"); !strings.Contains(body, "gatehouse_health_targets 1\n") ||
		!strings.Contains(body, "gatehouse_health_references 2\n") {
		t.Error("the metrics do not show 1 target and 2 references")
	}
}

// SIGTERM drains: nothing new is accepted, /ready says so, open connections go
// on and may end by themselves.
func TestDrain(t *testing.T) {
	a := startBackend(t)
	p := startAgent(t, "drain_timeout = \"60s\"\n"+static("web", a)+"}\n"+webListener)
	p.awaitReady()
	addr := p.listener("web")
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if who, err := askOn(c); err != nil || who != a.addr {
		t.Fatalf("%q, %v", who, err)
	}
	p.cmd.Process.Signal(syscall.SIGTERM)
	eventually(t, "nothing new is accepted", func() bool { _, err := ask(t.Context(), addr); return err != nil })
	if code, body := p.get("/ready"); code != http.StatusServiceUnavailable || !strings.Contains(body, "DRAINING") {
		t.Errorf("/ready while draining: %d %s", code, body)
	}
	if who, err := askOn(c); err != nil || who != a.addr {
		t.Errorf("the open connection while draining: %q, %v", who, err)
	}
	c.Close()
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// POST /drain_listeners drains while the agent runs on: with graceful open
// connections end in time, without they stay.
func TestDrainListeners(t *testing.T) {
	a := startBackend(t)
	p := startAgent(t, "drain_timeout = \"300ms\"\n"+static("web", a)+"}\n"+webListener)
	p.awaitReady()
	addr := p.listener("web")
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := askOn(c); err != nil {
		t.Fatal(err)
	}
	post := func(path string) {
		t.Helper()
		client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
		r, err := client.Post("http://"+p.admin()+path, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		if r.StatusCode != http.StatusOK {
			t.Errorf("POST %s: %s", path, r.Status)
		}
	}
	post("/drain_listeners")
	if code, body := p.get("/ready"); code != http.StatusServiceUnavailable || !strings.Contains(body, "DRAINING") {
		t.Errorf("/ready while draining: %d %s", code, body)
	}
	eventually(t, "nothing new is accepted", func() bool { _, err := ask(t.Context(), addr); return err != nil })
	if who, err := askOn(c); err != nil || who != a.addr {
		t.Errorf("the open connection: %q, %v", who, err)
	}
	post("/drain_listeners?graceful")
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the open connection ended with %v, want a reset", err)
	}
	post("/drain_listeners?graceful")
	if code, _ := p.get("/live"); code != http.StatusOK {
		t.Errorf("/live after the drain: %d", code)
	}
	p.cmd.Process.Signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// Garbage grows to less than by Go's default, unless the environment says how far.
func TestGarbage(t *testing.T) {
	for gogc, want := range map[string]float64{"": 75, "150": 150} {
		t.Setenv("GOGC", gogc)
		p := startAgent(t, "")
		if got := p.metric("go_gc_gogc_percent"); got != want {
			t.Errorf("GOGC=%q: %v percent, want %v", gogc, got, want)
		}
	}
}

// A second signal ends at once, and a drain's deadline is one.
func TestDrainEnds(t *testing.T) {
	for _, tt := range []struct {
		name, timeout string
		signals       int
	}{{"second signal", "600s", 2}, {"deadline", "100ms", 1}} {
		t.Run(tt.name, func(t *testing.T) {
			a := startBackend(t)
			p := startAgent(t, fmt.Sprintf("drain_timeout = %q\n", tt.timeout)+static("web", a)+"}\n"+webListener)
			p.awaitReady()
			c, err := net.Dial("tcp", p.listener("web"))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := askOn(c); err != nil {
				t.Fatal(err)
			}
			p.cmd.Process.Signal(syscall.SIGTERM)
			if tt.signals == 2 {
				eventually(t, "it drains", func() bool { return p.logged("draining", "", "") != nil })
				p.cmd.Process.Signal(syscall.SIGTERM)
			}
			if code := p.wait(); code != 0 {
				t.Errorf("exit code %d", code)
			}
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, io.EOF) {
				t.Errorf("the connection that was left: %v", err)
			}
		})
	}
}

// Unix sockets on both sides, and for the admin interface.
func TestUnixSockets(t *testing.T) {
	dir := t.TempDir()
	a := startBackendOn(t, "unix", filepath.Join(dir, "backend.sock"))
	front, admin := filepath.Join(dir, "front.sock"), filepath.Join(dir, "admin.sock")
	file := filepath.Join(dir, "gatehouse.hcl")
	write(t, file, fmt.Sprintf(`
admin { address = "unix://%s" }
cluster "web" {
  discovery "static" { endpoints = ["unix://%s"] }
  health_check "tcp" { interval = "1s" }
}
listener "web" {
  address = "unix://%s"
  cluster = "web"
}
`, admin, a.addr, front))
	p := startAgentWith(t, "run", "-config-file", file, "-log-json")
	p.listener("web")
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", admin)
	}}}
	eventually(t, "the agent becomes ready", func() bool {
		r, err := client.Get("http://admin/ready")
		if err != nil {
			return false
		}
		r.Body.Close()
		return r.StatusCode == http.StatusOK
	})
	if who, err := ask(t.Context(), front); err != nil || who != a.addr {
		t.Errorf("%q, %v", who, err)
	}
}

// A client's address sticks to a backend with hash_on, whatever its port.
func TestSourceIPSticks(t *testing.T) {
	a, b, c := startBackend(t), startBackend(t), startBackend(t)
	p := startAgent(t, static("web", a, b, c)+`
  selector "sticky" { policy = "ring_hash" }
}
listener "web" {
  address = "127.0.0.1:0"
  cluster = "web"
  hash_on = "source_ip"
}
`)
	p.awaitReady()
	addr := p.listener("web")
	owners := make(map[string]bool)
	for host := 1; host <= 20; host++ {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(host))}}
		first := ""
		for range 5 {
			conn, err := d.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			who, err := askOn(conn)
			conn.Close()
			if err != nil {
				t.Fatal(err)
			}
			if first == "" {
				first = who
			}
			if who != first {
				t.Errorf("127.0.0.%d went to %s and to %s", host, first, who)
			}
		}
		owners[first] = true
	}
	if len(owners) != 3 {
		t.Errorf("20 addresses are owned by %v, want all three", owners)
	}
}
