package test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"

	"gatehouse.internal/discovery/consul/consultest"
	"gatehouse.internal/discovery/dns/dnstest"
)

// stateDir returns the line of a configuration for a directory that is not there
// yet.
func stateDir(t *testing.T) (dir, line string) {
	dir = filepath.Join(t.TempDir(), "state")
	return dir, fmt.Sprintf("state_dir = %q\n", dir)
}

// restored is what is shown of a cluster with endpoints of before the restart.
type restored struct {
	State    string
	Restored *struct {
		AgeSeconds float64 `json:"age_seconds"`
	}
}

func (p *process) source(name string) (s restored) {
	p.t.Helper()
	_, body := p.get("/clusters?format=json")
	var cs struct {
		ClusterStatuses []struct {
			Name      string
			Gatehouse struct{ Source restored }
		} `json:"cluster_statuses"`
	}
	if err := json.Unmarshal([]byte(body), &cs); err != nil {
		p.t.Fatal(err)
	}
	for _, c := range cs.ClusterStatuses {
		if c.Name == name {
			s = c.Gatehouse.Source
		}
	}
	return s
}

// servesStale checks that the agent, just started, forwards to b though nobody has
// answered it, is ready, and says in all places that what it has is old.
func (p *process) servesStale(b *backend) {
	p.t.Helper()
	p.awaitReady()
	if who, err := ask(p.t.Context(), p.listener("web")); err != nil || who != b.addr {
		p.t.Errorf("answered by %q, %v, want %s", who, err, b.addr)
	}
	if s := p.source("web"); s.State != "stale" || s.Restored == nil || s.Restored.AgeSeconds < 0 || s.Restored.AgeSeconds > 600 {
		p.t.Errorf("shown as %+v", s)
	}
	if _, body := p.get("/clusters"); !strings.Contains(body, "web::gatehouse_source_restored::confirmed=") {
		p.t.Errorf("the text does not show it:\n%s", body)
	}
	if code, body := p.get("/ready"); code != http.StatusOK || !strings.HasPrefix(body, "LIVE\n") || !strings.Contains(body, `cluster "web": stale, `) {
		p.t.Errorf("/ready: %d\n%s", code, body)
	}
	if p.metric(`gatehouse_source_restored{cluster="web"}`) != 1 || p.metric(`gatehouse_source_confirmed_age{cluster="web"}`) < 0 {
		p.t.Error("the metrics do not show it")
	}
	if e := p.logged("discovery has not answered since the restart, what was known before is in force", "cluster", "web"); e == nil || e["age"] == nil {
		p.t.Error("the log does not tell it")
	}
	p.servedAll()
}

// servesFresh checks that the agent has had an answer.
func (p *process) servesFresh(want ...*backend) {
	p.t.Helper()
	p.awaitReadyEndpoints("web", "the answer is in force", want...)
	eventually(p.t, "it is fresh", func() bool { s := p.source("web"); return s.State == "fresh" && s.Restored == nil })
	eventually(p.t, "/ready does not call it stale", func() bool { _, body := p.get("/ready"); return body == "LIVE\n" })
	startTraffic(p.t, p.listener("web")).lands(p.t, want...)
}

// The agent starts while its control plane is away, and forwards by what it knew:
// clusters, endpoints and their health.
func TestStateXDS(t *testing.T) { bothVariants(t, stateXDS) }

func stateXDS(t *testing.T, cp *control) {
	a, b := startBackend(t), startBackend(t)
	_, line := stateDir(t)
	cp.start()
	cp.set(edsCluster("web", "web", clusterv3.Cluster_ROUND_ROBIN), assignment(t, "web", a.addr))
	p := startAgent(t, cp.node(line+webListener))
	p.awaitReady()
	startTraffic(t, p.listener("web")).lands(t, a)
	if code := p.end(syscall.SIGTERM); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	cp.stop()

	p = startAgent(t, cp.node(line+webListener))
	p.servesStale(a)
	if _, body := p.get("/ready"); !strings.Contains(body, "clusters of the control plane: stale, ") {
		t.Errorf("/ready:\n%s", body)
	}
	if p.logged("verdicts of health checks of before the restart count until probes say otherwise", "", "") == nil {
		t.Error("the verdicts were not read")
	}

	// It comes back with another endpoint, and with the names of versions that it had
	// used before.
	cp.set(edsCluster("web", "web", clusterv3.Cluster_ROUND_ROBIN), assignment(t, "web", b.addr))
	cp.start()
	p.servesFresh(b)
	if got := cp.nacks(); got != nil {
		t.Errorf("NACKs: %q", got)
	}

	// Killed: what was in force for longer than it takes to write it is there.
	eventually(t, "the change is written", func() bool { _, body := p.get("/server_info"); return strings.Contains(body, `"state_dir"`) })
	written := p.metric("gatehouse_state_written")
	cp.set(edsCluster("web", "web", clusterv3.Cluster_ROUND_ROBIN), assignment(t, "web", a.addr))
	p.awaitReadyEndpoints("web", "the change is in force", a)
	eventually(t, "the change is written", func() bool { return p.metric("gatehouse_state_written") > written })
	p.end(syscall.SIGKILL)
	cp.stop()
	p = startAgent(t, cp.node(line+webListener))
	p.servesStale(a)
	cp.set() // and all is gone when it is back
	cp.start()
	eventually(t, "the deleted cluster is gone", func() bool { return p.cluster("web").state == "" })
}

// Reloads that exchange the client of a control plane that is away lose nothing: the
// agent forwards on, and forwards after a restart.
func TestStateReload(t *testing.T) { bothVariants(t, stateReload) }

func stateReload(t *testing.T, cp *control) {
	a := startBackend(t)
	_, line := stateDir(t)
	cp.start()
	cp.set(edsCluster("web", "web", clusterv3.Cluster_ROUND_ROBIN), assignment(t, "web", a.addr))
	config := cp.node(line + webListener)
	file := configFile(t, config)
	p := startAgentWith(t, "run", "-config-file", file, "-log-json")
	p.awaitReady()
	tr := startTraffic(t, p.listener("web"))
	tr.lands(t, a)
	cp.stop()
	for i := range 4 {
		write(t, file, "admin { address = \"127.0.0.1:0\" }\n"+strings.Replace(config, "xds {", fmt.Sprintf("xds {\n  user_agent_version = \"1.0.%d\"\n", i), 1))
		p.mustReload(http.StatusOK, "in_force")
		eventually(t, "the new client has tried", func() bool { return strings.Contains(p.cluster("web").err, "connection refused") })
	}
	tr.stop()
	tr.noErrors(t)
	if code := p.end(syscall.SIGTERM); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	p = startAgentWith(t, "run", "-config-file", file, "-log-json")
	p.servesStale(a)
}

// A host with Consul only: endpoints, and the listeners that services ask for.
func TestStateConsul(t *testing.T) {
	needsServer(t)
	a, b := startBackend(t), startBackend(t)
	s := consultest.Start(t, consultest.Options{})
	_, line := stateDir(t)
	asked, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := asked.Addr().String()
	asked.Close()
	in := instance("a", a)
	in.Tags = []string{"gatehouse.listen=" + address}
	s.Register(in)
	config := line + consulWeb(s.Addr(), "listeners = true")
	p := startAgent(t, config)
	p.awaitReady()
	startTraffic(t, p.listener("web")).lands(t, a)
	startTraffic(t, p.listener("web@"+address)).lands(t, a)
	p.end(syscall.SIGTERM)
	s.Shutdown()

	p = startAgent(t, config)
	p.servesStale(a)
	if who, err := ask(t.Context(), p.listener("web@"+address)); err != nil || who != a.addr {
		t.Errorf("the catalog's listener: answered by %q, %v", who, err)
	}
	if _, body := p.get("/ready"); !strings.Contains(body, "listeners of the catalog: stale, ") {
		t.Errorf("/ready:\n%s", body)
	}
	s.Launch()
	s.AwaitReady()
	s.Register(instance("b", b))
	p.servesFresh(a, b)
}

// A host with DNS only.
func TestStateDNS(t *testing.T) {
	needsServer(t)
	a, b := startBackend(t), startBackend(t)
	d := dnstest.New(t)
	_, line := stateDir(t)
	records := func(backends ...*backend) []string {
		lines := []string{"local-ttl=0", "host-record=here.test,127.0.0.1"}
		for _, x := range backends {
			_, port, _ := net.SplitHostPort(x.addr)
			lines = append(lines, "srv-host=_web._tcp.test,here.test,"+port+",10,1")
		}
		return lines
	}
	d.Start(records(a)...)
	config := line + fmt.Sprintf(`
dns {
  nameservers = ["%s"]
  timeout     = "500ms"
}
cluster "web" {
  discovery "dns" {
    name        = "_web._tcp.test."
    type        = "srv"
    refresh     = "50ms"
    min_backoff = "50ms"
    max_backoff = "100ms"
  }
}
`, d.Addr) + webListener
	p := startAgent(t, config)
	p.awaitReady()
	startTraffic(t, p.listener("web")).lands(t, a)
	p.end(syscall.SIGTERM)
	d.Stop()

	p = startAgent(t, config)
	p.servesStale(a)
	d.Start(records(b)...)
	p.servesFresh(b)
}

// What was learnt may not count for readiness, though it serves: however long the answers
// take, where initial_timeout ends the wait for what has never been known.
func TestStateStaleIsNotReady(t *testing.T) {
	cp := newControl(t)
	a := startBackend(t)
	_, line := stateDir(t)
	cp.start()
	cp.set(edsCluster("web", "web", clusterv3.Cluster_ROUND_ROBIN), assignment(t, "web", a.addr))
	p := startAgent(t, cp.node(line+webListener))
	p.awaitReady()
	p.end(syscall.SIGTERM)
	cp.stop()
	p = startAgent(t, cp.node(line+"stale_is_ready = false\ninitial_timeout = \"1s\"\n"+
		"cluster \"never\" {\n  discovery \"file\" { path = \"/nonexistent/endpoints.json\" }\n}\n"+webListener))
	eventually(t, "it serves", func() bool { who, err := ask(t.Context(), p.listener("web")); return err == nil && who == a.addr })
	eventually(t, "initial_timeout is over", func() bool {
		_, body := p.get("/server_info")
		var info struct {
			Uptime string `json:"uptime_current_epoch"`
		}
		_ = json.Unmarshal([]byte(body), &info) // what is no JSON has no uptime
		up, err := time.ParseDuration(info.Uptime)
		return err == nil && up >= 2*time.Second
	})
	if code, body := p.get("/ready"); code != http.StatusServiceUnavailable || !strings.Contains(body, "before the restart") {
		t.Errorf("/ready: %d\n%s", code, body)
	}
	cp.start()
	p.awaitReady()
}

// Two agents can't have one directory, and files that are damaged cost themselves.
func TestStateFaults(t *testing.T) {
	needsServer(t)
	a := startBackend(t)
	dir, line := stateDir(t)
	list := filepath.Join(t.TempDir(), "web.hcl")
	write(t, list, fmt.Sprintf("endpoints = [%q]\n", a.addr))
	config := line + fmt.Sprintf("cluster \"web\" {\n  discovery \"file\" {\n    path = %q\n  }\n}\n", list) + webListener
	p := startAgent(t, config)
	p.awaitReady()
	second := startAgent(t, config)
	if code := second.wait(); code != 1 {
		t.Errorf("the second agent ends with code %d, want 1", code)
	}
	if out := second.output(); !strings.Contains(out, "is in use by process "+fmt.Sprint(p.cmd.Process.Pid)) {
		t.Errorf("the second agent says\n%s", out)
	}
	p.end(syscall.SIGTERM)
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%s: %v, %v", dir, info.Mode(), err)
	}

	// The list is broken when the agent starts: the last good one counts.
	write(t, list, "endpoints = [")
	p = startAgent(t, config)
	p.servesStale(a)
	p.end(syscall.SIGTERM)

	files, err := filepath.Glob(filepath.Join(dir, "*.state"))
	if err != nil || len(files) == 0 {
		t.Fatalf("files %q, %v", files, err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		b[len(b)/2]++
		if err := os.WriteFile(f, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(t, list, fmt.Sprintf("endpoints = [%q]\n", a.addr))
	p = startAgent(t, config)
	p.awaitReady()
	startTraffic(t, p.listener("web")).lands(t, a)
	if n := p.metric("gatehouse_state_damaged"); n < 1 {
		t.Errorf("%v files are counted as damaged", n)
	}
	eventually(t, "it is set aside", func() bool {
		aside, err := filepath.Glob(filepath.Join(dir, "*.damaged-*"))
		return err == nil && len(aside) > 0
	})
	if p.logged("a file of state_dir can't be used and is set aside, the agent goes on without it", "", "") == nil {
		t.Error("the log does not tell it")
	}
}
