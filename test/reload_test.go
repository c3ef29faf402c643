package test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
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
)

// reloaded is what the tests read of the answer to POST /reload.
type reloaded struct {
	Result string
	Error  string
	Errors []struct {
		File         string
		Line, Column int
		Message      string
	}
	Bind      bool `json:"bind_failed"`
	Clusters  reloadedNames
	Listeners reloadedNames
	Settings  []string
	Restart   []string                        `json:"needs_restart"`
	NotWarm   []struct{ Cluster, Why string } `json:"not_warm"`
}

type reloadedNames struct{ Added, Changed, Removed, Unchanged []string }

func (n reloadedNames) String() string {
	return fmt.Sprintf("+%v ~%v -%v =%v", n.Added, n.Changed, n.Removed, n.Unchanged)
}

// reload has the agent read its configuration again.
func (p *process) reload() (code int, r reloaded) {
	p.t.Helper()
	client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Post("http://"+p.admin()+"/reload", "", nil)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	if err := json.Unmarshal(body, &r); err != nil {
		p.t.Fatalf("/reload: %v\n%s", err, body)
	}
	return resp.StatusCode, r
}

// mustReload is reload with a result that is wanted.
func (p *process) mustReload(code int, result string) reloaded {
	p.t.Helper()
	got, r := p.reload()
	if got != code || r.Result != result {
		p.t.Fatalf("reload: %d %+v, want %d %s", got, r, code, result)
	}
	return r
}

// freePorts returns addresses of loopback that nobody listens on, with ports that the
// kernel gives to no client meanwhile.
func freePorts(t *testing.T, n int) (addrs []string) {
	t.Helper()
	for len(addrs) < n {
		ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10000+rand.IntN(20000)))
		if err != nil {
			t.Log(err)
			continue
		}
		defer ln.Close()
		addrs = append(addrs, ln.Addr().String())
	}
	return addrs
}

// frontend is the one cluster and the two listeners of the tests.
type frontend struct {
	backends      []*backend
	cluster, more string // in the cluster, and beside it
	still, moving string // addresses of the listeners
}

func (f frontend) String() string {
	return fmt.Sprintf("admin { address = \"127.0.0.1:0\" }\ndrain_timeout = \"10m\"\n%s%s}\n%s", static("web", f.backends...), f.cluster, f.more) +
		fmt.Sprintf("listener \"still\" {\n  address = %q\n  cluster = \"web\"\n}\n", f.still) +
		fmt.Sprintf("listener \"moving\" {\n  address = %q\n  cluster = \"web\"\n}\n", f.moving)
}

// followers connect to a listener that moves: while it does to either address, as
// clients that are told of both.
type followers struct {
	addrs atomic.Pointer[[]string]
	end   func()
	made  atomic.Int64
	mu    sync.Mutex
	errs  []error
}

func startFollowers(t *testing.T, addr string) *followers {
	f := new(followers)
	f.to(addr)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	f.end = func() { cancel(); wg.Wait() }
	t.Cleanup(f.end)
	for range 3 {
		wg.Go(func() {
			pace := time.NewTicker(10 * time.Millisecond)
			defer pace.Stop()
			for {
				select {
				case <-pace.C:
				case <-ctx.Done():
					return
				}
				if err := f.connect(ctx); err != nil && ctx.Err() == nil {
					f.mu.Lock()
					f.errs = append(f.errs, err)
					f.mu.Unlock()
				}
				f.made.Add(1)
			}
		})
	}
	return f
}

// to says where it is, or may be while it moves.
func (f *followers) to(addrs ...string) { f.addrs.Store(&addrs) }

// connect is refused only if it is by all addresses, which are those from before or
// after this began.
func (f *followers) connect(ctx context.Context) (err error) {
	known := f.addrs.Load()
	for {
		for _, addr := range *known {
			if _, err = ask(ctx, addr); !errors.Is(err, syscall.ECONNREFUSED) {
				return err
			}
		}
		next := f.addrs.Load()
		if next == known {
			return err
		}
		known = next
	}
}

func (f *followers) noErrors(t *testing.T) {
	t.Helper()
	f.end()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.errs) > 0 || f.made.Load() < 100 {
		t.Errorf("%d of %d connections to the listener that moves failed: %v", len(f.errs), f.made.Load(), errors.Join(f.errs[:min(3, len(f.errs))]...))
	}
}

// Under a constant load of connections no reload, good or bad, has one refused or
// reset, and those that were open before live on.
func TestReloadLosesNothing(t *testing.T) {
	a, b, c := startBackend(t), startBackend(t), startBackend(t)
	ports := freePorts(t, 4)
	file := filepath.Join(t.TempDir(), "gatehouse.hcl")
	f := frontend{backends: []*backend{a, b}, still: ports[0], moving: ports[1]}
	write(t, file, f.String())
	p := startAgentWith(t, "run", "-config-file", file, "-log-json")
	p.awaitReady()

	tr := startTraffic(t, f.still)
	follow := startFollowers(t, f.moving)
	var held []net.Conn
	for _, addr := range []string{f.still, f.moving} {
		for range 5 {
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := askOn(conn); err != nil {
				t.Fatal(err)
			}
			held = append(held, conn)
		}
	}
	tr.lands(t, a, b)

	check := "  health_check \"tcp\" {\n    interval = \"5s\"\n    timeout = \"5s\"\n  }\n"
	steps := []struct {
		name   string
		change func(*frontend)
		broken string // in the place of the file
		want   string
	}{
		{name: "endpoints", change: func(f *frontend) { f.backends = []*backend{b, c} }, want: "+[] ~[web] -[] =[]"},
		{name: "a mistake in syntax", broken: "cluster \"web\" {\n", want: "refused"},
		{name: "selector", change: func(f *frontend) { f.cluster = "  selector \"all\" { policy = \"least_weight\" }\n" }, want: "+[] ~[web] -[] =[]"},
		{name: "an unknown key", broken: "nope = 1\n", want: "refused"},
		{name: "health check", change: func(f *frontend) { f.cluster += check }, want: "+[] ~[web] -[] =[]"},
		{name: "an address that is taken", change: func(f *frontend) { f.moving = a.addr }, want: "taken"},
		{name: "an address", change: func(f *frontend) { f.moving = ports[2] }, want: "+[] ~[] -[] =[web]"},
		{name: "a cluster that is not there", broken: f.String() + "listener \"no\" {\n  address = \"127.0.0.1:1\"\n  cluster = \"no\"\n}\n", want: "refused"},
		{name: "one more cluster", change: func(f *frontend) { f.more = static("more", a) + "}\n" }, want: "+[more] ~[] -[] =[web]"},
		{name: "nothing", change: func(*frontend) {}, want: "+[] ~[] -[] =[web more]"},
		{name: "all at once", change: func(f *frontend) {
			f.backends, f.cluster, f.more, f.moving = []*backend{a, b, c}, "  selector \"all\" { policy = \"random\" }\n", "", ports[3]
		}, want: "+[] ~[web] -[more] =[]"},
	}
	for i := range 20 {
		step := steps[i%len(steps)]
		was := f
		text := step.broken
		if text == "" {
			step.change(&f)
			text = f.String()
		}
		if step.want != "taken" {
			follow.to(was.moving, f.moving)
		}
		write(t, file, text)
		switch {
		case step.want == "refused":
			r := p.mustReload(http.StatusBadRequest, "refused")
			if len(r.Errors) == 0 || r.Errors[0].File != file || r.Errors[0].Line == 0 {
				t.Errorf("%d, %s: mistakes %+v", i, step.name, r.Errors)
			}
		case step.want == "taken":
			if r := p.mustReload(http.StatusConflict, "refused"); !r.Bind || !strings.Contains(r.Error, `listener "moving"`) {
				t.Errorf("%d, %s: %+v", i, step.name, r)
			}
			f = was
		default:
			r := p.mustReload(http.StatusOK, "in_force")
			if i < len(steps) && r.Clusters.String() != step.want {
				t.Errorf("%d, %s: clusters %v, want %s", i, step.name, r.Clusters, step.want)
			}
		}
		follow.to(f.moving)
		// What was in force before a refusal is, and what is new is: at once.
		who, err := ask(t.Context(), f.moving)
		if err != nil || !slices.ContainsFunc(f.backends, func(b *backend) bool { return b.addr == who }) {
			t.Fatalf("%d, %s: a connection to the listener that moves led to %q, %v", i, step.name, who, err)
		}
		if was.moving != f.moving {
			if _, err := ask(t.Context(), was.moving); err == nil {
				t.Errorf("%d, %s: it is open where it was", i, step.name)
			}
		}
		tr.lands(t, f.backends...)
	}
	for _, conn := range held {
		if _, err := askOn(conn); err != nil {
			t.Errorf("a connection from before the reloads: %v", err)
		}
	}
	tr.stop()
	tr.noErrors(t)
	follow.noErrors(t)
	p.servedAll()
	if n := p.metric(`gatehouse_agent_reloads{result="refused"}`); n != 8 {
		t.Errorf("%v reloads are counted as refused", n)
	}
	if n := p.metric("gatehouse_agent_reload_ok"); n != 1 {
		t.Errorf("the last reload counts as refused")
	}
}

// What did not change is not touched: nothing is built, probed or opened anew.
func TestReloadTouchesNothing(t *testing.T) {
	a, b := startBackend(t), startBackend(t)
	p := startAgent(t, static("web", a, b)+`
  health_check "tcp" { interval = "1h" }
  selector "ring" { policy = "ring_hash" }
}
`+webListener)
	p.awaitReady()
	addr := p.listener("web")
	before, probed := p.cluster("web"), a.accepted.Load()
	rebuilds := p.metric(`gatehouse_selector_rebuilds{cluster="web",selector="ring"}`)
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := askOn(conn); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		r := p.mustReload(http.StatusOK, "in_force")
		if r.Clusters.String() != "+[] ~[] -[] =[web]" || r.Listeners.String() != "+[] ~[] -[] =[web]" || len(r.Settings)+len(r.Restart) > 0 {
			t.Errorf("%+v", r)
		}
	}
	after := p.cluster("web")
	if after.generation != before.generation || p.metric(`gatehouse_selector_rebuilds{cluster="web",selector="ring"}`) != rebuilds {
		t.Errorf("it was built anew: %+v, before %+v", after, before)
	}
	if n := a.accepted.Load() - probed; n > 1 { // the connection
		t.Errorf("%d connections came to a backend", n)
	}
	if n := p.metric(`gatehouse_listener_connections{listener="web"}`); n != 1 {
		t.Errorf("the listener counts %v connections: it was opened anew", n)
	}
	if _, err := askOn(conn); err != nil || p.listener("web") != addr {
		t.Errorf("%v; listens on %s, before on %s", err, p.listener("web"), addr)
	}
}

// SIGHUP reloads too, and the log tells the mistakes. What needs a restart is named
// and stays, and the rest is in force.
func TestReloadBySignal(t *testing.T) {
	a, b := startBackend(t), startBackend(t)
	file := configFile(t, static("web", a)+"}\n"+webListener)
	p := startAgentWith(t, "run", "-config-file", file, "-log-json")
	p.awaitReady()
	addr := p.listener("web")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}

	write(t, file, string(text)+"gate { max_stuckk = 1 }\n")
	p.cmd.Process.Signal(syscall.SIGHUP)
	eventually(t, "the log tells the mistake", func() bool {
		e := p.logged("a mistake in the configuration", "by", "SIGHUP")
		mistake, _ := e["mistake"].(string)
		return strings.HasPrefix(mistake, file+":") && strings.Contains(mistake, "max_stuck")
	})
	eventually(t, "it is counted", func() bool { return p.metric("gatehouse_agent_reload_ok") == 0 })
	if who, err := ask(t.Context(), addr); err != nil || who != a.addr {
		t.Errorf("%q, %v", who, err)
	}

	write(t, file, strings.Replace(string(text), a.addr, b.addr, 1)+"gate { max_stuck = 1 }\nlog { level = \"debug\" }\n")
	p.cmd.Process.Signal(syscall.SIGHUP)
	eventually(t, "the new endpoint is in force", func() bool { who, err := ask(t.Context(), addr); return err == nil && who == b.addr })
	eventually(t, "the log says what needs a restart", func() bool {
		e := p.logged("settings are not in force before the agent is restarted", "by", "SIGHUP")
		return e != nil && fmt.Sprint(e["settings"]) == "[gate.max_stuck]"
	})
	if r := p.mustReload(http.StatusOK, "in_part"); !slices.Equal(r.Restart, []string{"gate.max_stuck"}) || len(r.Settings) != 0 {
		t.Errorf("it is not said again: %+v", r)
	}
	if _, body := p.get("/logging"); body != "level: debug\n" {
		t.Errorf("/logging: %s", body)
	}
}

// A cluster that can't be ready is named, once the wait is over.
func TestReloadNamesWhatIsNotWarm(t *testing.T) {
	a := startBackend(t)
	file := configFile(t, static("web", a)+"}\n"+webListener)
	p := startAgentWith(t, "run", "-config-file", file, "-log-json")
	p.awaitReady()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	write(t, file, string(text)+"cluster \"late\" {\n  discovery \"file\" { path = \""+filepath.Join(t.TempDir(), "no.hcl")+"\" }\n}\n")
	client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Post("http://"+p.admin()+"/reload?wait=50ms", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var r reloaded
	if err := json.NewDecoder(resp.Body).Decode(&r); err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK || r.Result != "in_part" || len(r.NotWarm) != 1 || r.NotWarm[0].Cluster != "late" || !strings.HasPrefix(r.NotWarm[0].Why, "discovery") {
		t.Errorf("%s %+v", resp.Status, r)
	}
}

// Another control plane takes over with a reload, under load: what the first one said
// stays in force until the second one has answered. Then files take over from both.
func TestReloadControlPlane(t *testing.T) {
	a, b, c := startBackend(t), startBackend(t), startBackend(t)
	one, two := newControl(t), newControl(t)
	one.start()
	one.set(edsCluster("web", "web", clusterv3.Cluster_ROUND_ROBIN), assignment(t, "web", a.addr, b.addr))
	two.start()
	two.set(edsCluster("web", "web", clusterv3.Cluster_ROUND_ROBIN), assignment(t, "web", c.addr))
	head := "admin { address = \"127.0.0.1:0\" }\n"
	file := configFile(t, one.node(webListener))
	p := startAgentWith(t, "run", "-config-file", file, "-log-json")
	p.awaitReady()
	tr := startTraffic(t, p.listener("web"))
	tr.lands(t, a, b)

	write(t, file, head+two.node(webListener))
	if r := p.mustReload(http.StatusOK, "in_force"); !slices.Equal(r.Settings, []string{"xds.server_uri"}) {
		t.Errorf("%+v", r)
	}
	eventually(t, "the second one's endpoint is in force", func() bool { return slices.Equal(p.cluster("web").ready, []string{c.addr}) })
	tr.lands(t, c)
	one.set() // nobody listens to it any more

	// Those that are away change nothing, however often one takes the place of another.
	for range 3 {
		away := newControl(t)
		write(t, file, head+away.node(webListener))
		p.mustReload(http.StatusOK, "in_force")
		eventually(t, "it is seen that it is away", func() bool { return strings.Contains(p.cluster("web").err, away.addr) })
		tr.lands(t, c)
	}

	write(t, file, head+fmt.Sprintf("node { id = %q }\n", nodeID)+static("web", a)+"}\n"+webListener)
	if r := p.mustReload(http.StatusOK, "in_force"); r.Clusters.String() != "+[web] ~[] -[] =[]" {
		t.Errorf("%+v", r)
	}
	tr.lands(t, a)
	tr.stop()
	tr.noErrors(t)
	p.servedAll()
}

// An endpoint that the operator disables gets no new connection from then on, over a
// reload that replaces its cluster too, and /clusters shows it; open connections live.
func TestDisable(t *testing.T) {
	a, b := startBackend(t), startBackend(t)
	file := configFile(t, static("web", a, b)+"}\n"+webListener)
	p := startAgentWith(t, "run", "-config-file", file, "-log-json")
	p.awaitReady()
	tr := startTraffic(t, p.listener("web"))
	tr.lands(t, a, b)
	var held []net.Conn
	for range 4 {
		conn, err := net.Dial("tcp", p.listener("web"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := askOn(conn); err != nil {
			t.Fatal(err)
		}
		held = append(held, conn)
	}
	command := func(args ...string) {
		t.Helper()
		path, err := binary()
		if err != nil {
			t.Fatal(err)
		}
		args = append([]string{args[0], "-http-addr", p.admin()}, args[1:]...)
		if out, err := exec.Command(path, args...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", args, err, out)
		}
	}
	command("disable", "web", b.addr)
	tr.lands(t, a)
	if _, body := p.get("/clusters"); !strings.Contains(body, "web::"+b.addr+"::health_flags::/gatehouse_disabled\n") {
		t.Errorf("/clusters does not show it:\n%s", body)
	}
	write(t, file, "admin { address = \"127.0.0.1:0\" }\n"+static("web", a, b)+"  selector \"all\" { policy = \"random\" }\n}\n"+webListener)
	command("reload")
	tr.lands(t, a)
	command("enable", "web", b.addr)
	tr.lands(t, a, b)
	for _, conn := range held {
		if _, err := askOn(conn); err != nil {
			t.Errorf("a connection from before: %v", err)
		}
	}
	tr.stop()
	tr.noErrors(t)
}
