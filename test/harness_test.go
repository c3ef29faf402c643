package test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience is how long a test waits for something that must happen; it is no
// measure of speed.
const patience = 30 * time.Second

// binaryDir is where binaries are built; TestMain removes it.
var binaryDir = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "gatehouse-test-") })

// binary is the agent, built once with the race detector, and fastBinary the
// one that users run: where the detector watches, selectors are in Go's heap.
var binary, fastBinary = built("gatehouse-race", "-race"), built("gatehouse")

// built returns what builds the agent once, and from then on tells its path.
func built(name string, flags ...string) func() (string, error) {
	return builtFrom(name, "../cmd/agent", flags...)
}

// builtFrom is built for another program of this module.
func builtFrom(name, pkg string, flags ...string) func() (string, error) {
	return sync.OnceValues(func() (string, error) {
		dir, err := binaryDir()
		if err != nil {
			return "", err
		}
		path := filepath.Join(dir, name)
		args := append([]string{"build", "-o", path}, flags...)
		if out, err := exec.Command("go", append(args, pkg)...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("go build: %w\n%s", err, out)
		}
		return path, nil
	})
}

// builtIn is built for a program of a module of its own, a directory of test.
func builtIn(module, name, pkg string) func() (string, error) {
	return sync.OnceValues(func() (string, error) {
		dir, err := binaryDir()
		if err != nil {
			return "", err
		}
		path := filepath.Join(dir, name)
		cmd := exec.Command("go", "build", "-o", path, pkg)
		cmd.Dir, cmd.Env = module, append(os.Environ(), "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("go build of %s: %w\n%s", pkg, err, out)
		}
		return path, nil
	})
}

func TestMain(m *testing.M) {
	if os.Getenv(lonelyEnv) != "" {
		serveLonely()
	}
	if os.Getenv(taskEnv) != "" {
		serveTask()
	}
	code := m.Run()
	if dir, err := binaryDir(); err == nil {
		os.RemoveAll(dir)
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// needsServer leaves a test out of a -short run.
func needsServer(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("left out by -short: it needs the built binary or a server")
	}
}

// eventually waits until ok, and fails the test when it is not so in time.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("it is not so that %s", what)
		}
	}
}

// process is a running agent.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended; then code is set
	code int

	mu  sync.Mutex
	log []map[string]any
	raw bytes.Buffer
}

// startAgent runs the agent with a configuration of its own, whose admin
// address is of the kernel's choice.
func startAgent(t *testing.T, hcl string) *process {
	t.Helper()
	return start(t, binary, "run", "-config-file", configFile(t, hcl), "-log-json")
}

// startFastAgent is startAgent without the race detector.
func startFastAgent(t *testing.T, hcl string) *process {
	t.Helper()
	return start(t, fastBinary, "run", "-config-file", configFile(t, hcl), "-log-json")
}

func startAgentWith(t *testing.T, args ...string) *process {
	t.Helper()
	return start(t, binary, args...)
}

func configFile(t *testing.T, hcl string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "gatehouse.hcl")
	write(t, file, "admin { address = \"127.0.0.1:0\" }\n"+hcl)
	return file
}

func start(t *testing.T, binary func() (string, error), args ...string) *process {
	t.Helper()
	return startCommand(t, exec.Command(program(t, binary), args...))
}

// program returns the path of a binary.
func program(t *testing.T, binary func() (string, error)) string {
	t.Helper()
	needsServer(t)
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// startCommand starts an agent, whose stderr is its log.
func startCommand(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, cmd: cmd, done: make(chan struct{})}
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		p.read(stderr)
		p.cmd.Wait()
		p.code = p.cmd.ProcessState.ExitCode()
	}()
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		<-p.done
		if t.Failed() {
			t.Logf("the agent's log:\n%s", p.output())
		}
		if strings.Contains(p.output(), "DATA RACE") {
			t.Errorf("the agent has a data race:\n%s", p.output())
		}
	})
	return p
}

func (p *process) read(r io.Reader) {
	for lines := bufio.NewScanner(r); lines.Scan(); {
		var entry map[string]any
		json.Unmarshal(lines.Bytes(), &entry)
		p.mu.Lock()
		p.raw.Write(lines.Bytes())
		p.raw.WriteByte('\n')
		if entry != nil {
			p.log = append(p.log, entry)
		}
		p.mu.Unlock()
	}
}

func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.raw.String()
}

// logged returns the newest entry of that message with that attribute, or nil.
func (p *process) logged(msg, key, value string) map[string]any {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := len(p.log) - 1; i >= 0; i-- {
		if e := p.log[i]; e["msg"] == msg && (key == "" || e[key] == value) {
			return e
		}
	}
	return nil
}

// address waits for the log line in which something tells where it listens.
func (p *process) address(msg, key, value string) string {
	p.t.Helper()
	var addr string
	eventually(p.t, fmt.Sprintf("the agent logs %q for %q", msg, value), func() bool {
		select {
		case <-p.done:
			p.t.Fatalf("the agent has ended with code %d", p.code)
		default:
		}
		if e := p.logged(msg, key, value); e != nil {
			addr, _ = e["address"].(string)
		}
		return addr != ""
	})
	return addr
}

func (p *process) admin() string               { return p.address("admin interface", "", "") }
func (p *process) listener(name string) string { return p.address("listening", "listener", name) }

// get asks the admin interface.
func (p *process) get(path string) (code int, body string) {
	p.t.Helper()
	client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Get("http://" + p.admin() + path)
	if err != nil {
		p.t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return r.StatusCode, string(b)
}

func (p *process) awaitReady() {
	p.t.Helper()
	eventually(p.t, "the agent becomes ready", func() bool { code, _ := p.get("/ready"); return code == http.StatusOK })
}

// metric returns the value of a metric, as it is named with its labels.
func (p *process) metric(name string) float64 {
	p.t.Helper()
	_, body := p.get("/stats/prometheus")
	for line := range strings.Lines(body) {
		if text, ok := strings.CutPrefix(line, name+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
			if err != nil {
				p.t.Fatal(err)
			}
			return v
		}
	}
	p.t.Fatalf("no metric %s", name)
	return 0
}

// servedAll fails the test if a connection has got no endpoint.
func (p *process) servedAll() {
	p.t.Helper()
	_, body := p.get("/stats/prometheus")
	for _, flag := range []string{"UH", "UF", "NC"} {
		if strings.Contains(body, `gatehouse_listener_ended{flag="`+flag+`"`) {
			p.t.Errorf("connections have ended with %s: they got no endpoint", flag)
		}
	}
}

// clusters is what the tests read of /clusters?format=json.
type clusters struct {
	ClusterStatuses []struct {
		Name         string
		HostStatuses []struct {
			Address struct {
				SocketAddress struct {
					Address   string
					PortValue int `json:"port_value"`
				} `json:"socket_address"`
				Pipe struct{ Path string }
			}
			HealthStatus map[string]any `json:"health_status"`
			Weight       int
			Gatehouse    struct {
				Ready  bool
				Health string
			}
		} `json:"host_statuses"`
		Gatehouse struct {
			Origin, Unsupported string
			Waiting             string
			Generation          uint64
			Duplicates          uint64
			Ready               int
			Source              struct{ State, Error string }
			Selectors           []selector
		}
	} `json:"cluster_statuses"`
}

type selector struct {
	Name, Policy       string
	Generation, Reused uint64
	StorageBytes       float64 `json:"storage_bytes"`
}

// cluster is one of clusters, reduced to what the tests compare.
type cluster struct {
	ready, unready []string
	generation     uint64
	state, err     string
	unsupported    string
	waiting        string
	duplicates     uint64
	policy         string
	selectors      map[string]selector
}

// cluster returns what the agent shows of a cluster; the zero value if nothing.
func (p *process) cluster(name string) cluster {
	p.t.Helper()
	_, body := p.get("/clusters?format=json")
	var cs clusters
	if err := json.Unmarshal([]byte(body), &cs); err != nil {
		p.t.Fatalf("/clusters: %v\n%s", err, body)
	}
	var out cluster
	for _, c := range cs.ClusterStatuses {
		if c.Name != name {
			continue
		}
		g := c.Gatehouse
		out = cluster{generation: g.Generation, state: g.Source.State, err: g.Source.Error, unsupported: g.Unsupported, waiting: g.Waiting, duplicates: g.Duplicates}
		out.selectors = make(map[string]selector)
		for _, s := range g.Selectors {
			out.selectors[s.Name] = s
			out.policy = s.Policy
			out.generation = min(out.generation, s.Generation)
		}
		for _, h := range c.HostStatuses {
			addr := h.Address.Pipe.Path
			if addr == "" {
				addr = net.JoinHostPort(h.Address.SocketAddress.Address, fmt.Sprint(h.Address.SocketAddress.PortValue))
			}
			if h.Gatehouse.Ready {
				out.ready = append(out.ready, addr)
			} else {
				out.unready = append(out.unready, addr)
			}
		}
	}
	return out
}

// end sends a signal and returns the exit code.
func (p *process) end(s syscall.Signal) int {
	p.t.Helper()
	p.cmd.Process.Signal(s)
	return p.wait()
}

func (p *process) wait() int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Fatal("the agent does not end")
	}
	return p.code
}

func write(t *testing.T, file, text string) {
	t.Helper()
	tmp := file + ".tmp"
	if err := os.WriteFile(tmp, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(tmp, file); err != nil {
		t.Fatal(err)
	}
}

// backend is a TCP server that answers each line with its own address.
type backend struct {
	ln       net.Listener
	addr     string
	accepted atomic.Int64
	wg       sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{} // nil once killed
}

func startBackend(t *testing.T) *backend { return startBackendOn(t, "tcp", "127.0.0.1:0") }

func startBackendOn(t *testing.T, network, addr string) *backend {
	t.Helper()
	needsServer(t)
	ln, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	return startBackendAt(t, ln)
}

func startBackendAt(t *testing.T, ln net.Listener) *backend {
	b := &backend{ln: ln, addr: ln.Addr().String(), conns: make(map[net.Conn]struct{})}
	b.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			b.accepted.Add(1)
			b.wg.Go(func() { b.serve(c) })
		}
	})
	t.Cleanup(b.kill)
	return b
}

func (b *backend) serve(c net.Conn) {
	defer c.Close()
	b.mu.Lock()
	alive := b.conns != nil
	if alive {
		b.conns[c] = struct{}{}
	}
	b.mu.Unlock()
	if !alive {
		return
	}
	for lines := bufio.NewScanner(c); lines.Scan(); {
		if _, err := fmt.Fprintln(c, b.addr); err != nil {
			break
		}
	}
	b.mu.Lock()
	delete(b.conns, c)
	b.mu.Unlock()
}

// kill closes everything at once.
func (b *backend) kill() {
	b.ln.Close()
	b.mu.Lock()
	for c := range b.conns {
		if tc, ok := c.(*net.TCPConn); ok {
			tc.SetLinger(0)
		}
		c.Close()
	}
	b.conns = nil
	b.mu.Unlock()
	b.wg.Wait()
}

// ask makes one connection and returns who answered.
func ask(ctx context.Context, addr string) (string, error) {
	network := "tcp"
	if strings.HasPrefix(addr, "/") {
		network = "unix"
	}
	c, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return "", err
	}
	defer c.Close()
	return askOn(c)
}

// askOn exchanges a line over an open connection.
func askOn(c net.Conn) (string, error) {
	c.SetDeadline(time.Now().Add(patience))
	if _, err := fmt.Fprintln(c, "who"); err != nil {
		return "", err
	}
	answer, err := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(answer), err
}

// traffic connects through a listener again and again.
type traffic struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
	asking sync.RWMutex // read-held for each connection

	mu     sync.Mutex
	round  int // grows with each reset
	shares map[string]int
	errs   []error
}

// startTraffic connects to addr from a few goroutines until stopped.
func startTraffic(t *testing.T, addr string) *traffic {
	t.Helper()
	return startTrafficAt(t, addr, 15*time.Millisecond)
}

// startTrafficAt is startTraffic with the time between two connections of each
// goroutine.
func startTrafficAt(t *testing.T, addr string, each time.Duration) *traffic {
	t.Helper()
	return startTrafficBy(t, each, func(ctx context.Context) (string, error) { return ask(ctx, addr) })
}

// startTrafficBy is startTrafficAt by another way to ask.
func startTrafficBy(t *testing.T, each time.Duration, ask func(context.Context) (string, error)) *traffic {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	tr := &traffic{cancel: cancel, shares: make(map[string]int)}
	for range 3 {
		tr.wg.Go(func() {
			pace := time.NewTicker(each) // TIME_WAIT holds a port for a minute
			defer pace.Stop()
			for ctx.Err() == nil {
				tr.mu.Lock()
				round := tr.round
				tr.mu.Unlock()
				tr.asking.RLock()
				who, err := ask(ctx)
				tr.asking.RUnlock()
				tr.mu.Lock()
				if err == nil && round == tr.round {
					tr.shares[who]++
				} else if err != nil && ctx.Err() == nil {
					tr.errs = append(tr.errs, err)
				}
				tr.mu.Unlock()
				select {
				case <-pace.C:
				case <-ctx.Done():
				}
			}
		})
	}
	t.Cleanup(tr.stop)
	return tr
}

func (tr *traffic) stop() {
	tr.cancel()
	tr.wg.Wait()
}

// between calls f while no connection is under way, which the end of a backend would
// reset.
func (tr *traffic) between(f func()) {
	tr.asking.Lock()
	defer tr.asking.Unlock()
	f()
}

// reset begins to count anew, connections that begin from now on.
func (tr *traffic) reset() {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.round++
	tr.shares = make(map[string]int)
}

// count returns the answers since reset, in all and by backend.
func (tr *traffic) count() (total int, shares map[string]int) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	shares = make(map[string]int)
	for k, n := range tr.shares {
		shares[k] = n
		total += n
	}
	return total, shares
}

// lands waits for enough connections since now, and checks that they landed on
// want and on nobody else.
func (tr *traffic) lands(t *testing.T, want ...*backend) {
	t.Helper()
	tr.reset()
	const enough = 30
	eventually(t, "enough connections are made", func() bool { n, _ := tr.count(); return n >= enough*len(want) })
	_, shares := tr.count()
	for _, b := range want {
		if shares[b.addr] == 0 {
			t.Errorf("nothing landed on %s: %v", b.addr, shares)
		}
		delete(shares, b.addr)
	}
	if len(shares) > 0 {
		t.Errorf("connections landed elsewhere: %v", shares)
	}
}

// noErrors fails the test if a connection has failed.
func (tr *traffic) noErrors(t *testing.T) {
	t.Helper()
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if len(tr.errs) > 0 {
		t.Errorf("%d connections failed: %v", len(tr.errs), errors.Join(tr.errs[:min(3, len(tr.errs))]...))
	}
}
