package test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/cache/types"

	"gatehouse.internal/internal/sdnotify"
)

// keeper is a service manager that keeps sockets, as systemd does: each once, until it is
// told to close it.
type keeper struct {
	t    *testing.T
	addr string

	mu   sync.Mutex
	kept []*os.File // with their names
}

func startKeeper(t *testing.T) *keeper {
	t.Helper()
	k := &keeper{t: t, addr: filepath.Join(t.TempDir(), "notify")}
	r, err := sdnotify.Listen(k.addr, k.handle)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { r.Run() })
	t.Cleanup(func() {
		r.Close()
		wg.Wait()
		for _, f := range k.kept {
			f.Close()
		}
	})
	return k
}

func (k *keeper) handle(m sdnotify.Message) {
	k.mu.Lock()
	defer k.mu.Unlock()
	name := m.Fields["FDNAME"]
	if m.Fields["FDSTOREREMOVE"] == "1" {
		k.kept = slices.DeleteFunc(k.kept, func(f *os.File) bool {
			if f.Name() == name {
				f.Close()
			}
			return f.Name() == name
		})
	}
	if m.Fields["FDSTORE"] != "1" {
		m.CloseFiles()
		return
	}
	for _, fd := range m.Files {
		f := os.NewFile(uintptr(fd), name)
		st, err := f.Stat()
		if err != nil || slices.ContainsFunc(k.kept, func(g *os.File) bool { is, err := g.Stat(); return err == nil && os.SameFile(is, st) }) {
			f.Close()
			continue
		}
		k.kept = append(k.kept, f)
	}
}

// has waits until n sockets are kept.
func (k *keeper) has(n int) {
	k.t.Helper()
	eventually(k.t, fmt.Sprintf("%d sockets are kept", n), func() bool { return k.count() == n })
}

func (k *keeper) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.kept)
}

// start starts an agent with what is kept.
func (k *keeper) start(file string) *process {
	k.t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	var names []string
	for _, f := range k.kept {
		names = append(names, f.Name())
	}
	return startManaged(k.t, file, []string{"NOTIFY_SOCKET=" + k.addr}, names, k.kept...)
}

// crashing is an agent's configuration, and who connects to it while it crashes.
type crashing struct {
	t        *testing.T
	b        *backend
	file     string
	at, gone string      // listeners, one of which is taken away
	local    string      // path of a listener
	socket   os.FileInfo // of local, which stays the same

	mu      sync.Mutex
	served  int
	refused []error
}

func newCrashing(t *testing.T) *crashing {
	t.Helper()
	needsServer(t)
	dir, ports := t.TempDir(), freePorts(t, 3)
	c := &crashing{t: t, b: startBackend(t), file: filepath.Join(dir, "gatehouse.hcl"), at: ports[0], gone: ports[1], local: filepath.Join(dir, "web.sock")}
	write(t, c.file, fmt.Sprintf("admin { address = %q }\nstate_dir = %q\ndrain_timeout = \"10s\"\n%s}\n", ports[2], filepath.Join(dir, "state"), static("web", c.b))+
		listenerText("web", c.at)+listenerText("local", "unix://"+c.local)+listenerText("any", "127.0.0.1:0")+listenerText("gone", c.gone))
	return c
}

func listenerText(name, addr string) string {
	return fmt.Sprintf("listener %q {\n  address = %q\n  cluster = \"web\"\n}\n", name, addr)
}

// takeAway takes a listener out of the configuration.
func (c *crashing) takeAway() {
	c.t.Helper()
	text, err := os.ReadFile(c.file)
	if err != nil {
		c.t.Fatal(err)
	}
	write(c.t, c.file, strings.Replace(string(text), listenerText("gone", c.gone), "", 1))
}

// ready waits until a process is.
func (c *crashing) ready(p *process) {
	c.t.Helper()
	p.awaitReady()
	fi, err := os.Lstat(c.local)
	switch {
	case err != nil:
		c.t.Error(err)
	case c.socket == nil:
		c.socket = fi
	case !os.SameFile(fi, c.socket):
		c.t.Error("the socket has another file than before")
	}
}

// knock connects to two listeners again and again until stop.
func (c *crashing) knock() (stop func()) {
	ask := func(network, addr string) func(context.Context) (string, error) {
		return func(ctx context.Context) (string, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			c.mu.Lock()
			if err != nil && ctx.Err() == nil {
				c.refused = append(c.refused, err)
			}
			c.mu.Unlock()
			if err != nil {
				return "", err
			}
			defer conn.Close()
			who, err := askOn(conn)
			c.mu.Lock()
			if err == nil { // else it was one of those that the agent had accepted before it crashed
				c.served++
			}
			c.mu.Unlock()
			return who, err
		}
	}
	tcp := startTrafficBy(c.t, 5*time.Millisecond, ask("tcp", c.at))
	local := startTrafficBy(c.t, 5*time.Millisecond, ask("unix", c.local))
	return func() { tcp.stop(); local.stop() }
}

// drains has p end in order: it refuses who comes, and serves a connection that is open
// until that ends. begun is called after the signal.
func (c *crashing) drains(p *process, begun func()) {
	t := c.t
	t.Helper()
	open, err := net.Dial("tcp", c.at)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if who, err := askOn(open); err != nil || who != c.b.addr {
		t.Fatalf("%q, %v", who, err)
	}
	p.cmd.Process.Signal(syscall.SIGTERM)
	begun()
	eventually(t, "it refuses", func() bool { _, err := os.Lstat(c.local); return os.IsNotExist(err) })
	refuses(t, "while it drains", c.at, c.local)
	if who, err := askOn(open); err != nil || who != c.b.addr {
		t.Errorf("while it drains: %q, %v", who, err)
	}
	open.Close()
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// goesOn waits until more connections are served, and fails the test if one was refused.
func (c *crashing) goesOn(when string) {
	c.t.Helper()
	count := func() int { c.mu.Lock(); defer c.mu.Unlock(); return c.served }
	enough := count() + 50
	eventually(c.t, when+": connections are served", func() bool { return count() >= enough })
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.refused) > 0 {
		c.t.Errorf("%s: %d connections were refused: %v", when, len(c.refused), c.refused[0])
		c.refused = nil
	}
}

// wait connects while no agent runs; served has all of them be served.
func (c *crashing) wait() (served func()) {
	c.t.Helper()
	var waiting []net.Conn
	for range 10 {
		for network, addr := range map[string]string{"tcp": c.at, "unix": c.local} {
			conn, err := net.Dial(network, addr)
			if err != nil {
				c.t.Fatalf("while no agent runs: %v", err)
			}
			c.t.Cleanup(func() { conn.Close() })
			waiting = append(waiting, conn)
		}
	}
	return func() {
		c.t.Helper()
		for _, conn := range waiting {
			if who, err := askOn(conn); err != nil || who != c.b.addr {
				c.t.Errorf("who had connected while no agent ran: %q, %v", who, err)
			}
			conn.Close()
		}
	}
}

// refuses fails the test unless nobody listens at these addresses.
func refuses(t *testing.T, when string, addrs ...string) {
	t.Helper()
	for _, addr := range addrs {
		if !refused(addr) {
			t.Errorf("%s: a connection to %s is not refused", when, addr)
		}
	}
}

// refused reports whether nobody listens at an address.
func refused(addr string) bool {
	network := "tcp"
	if strings.HasPrefix(addr, "/") {
		network = "unix"
	}
	conn, err := net.Dial(network, addr)
	if err == nil {
		conn.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrNotExist)
}

// Where an agent crashes, its service manager has the listening sockets that it opened
// itself: nobody is refused, and the next one serves who has connected meanwhile. What
// the next configuration does not have is closed, and a drain refuses at once.
func TestCrashUnderAManager(t *testing.T) {
	c, k := newCrashing(t), startKeeper(t)
	p := k.start(c.file)
	c.ready(p)
	k.has(4) // with the admin interface, without the port of the system's choice
	stop := c.knock()
	defer stop()
	c.goesOn("before")
	for _, crash := range []syscall.Signal{syscall.SIGKILL, syscall.SIGABRT} {
		if code := p.end(crash); code == 0 {
			t.Errorf("%v: exit code %d", crash, code)
		}
		served := c.wait()
		if crash == syscall.SIGABRT {
			c.takeAway()
		}
		p = k.start(c.file)
		served()
		c.ready(p)
		c.goesOn(fmt.Sprint("after ", crash))
	}
	k.has(3)
	refuses(t, "a listener that is not wanted", c.gone)
	stop()

	c.drains(p, func() { k.has(0) })
	if n := k.count(); n != 0 {
		t.Errorf("%d sockets are kept after the end", n)
	}
}

// A process that has taken over keeps its sockets as the one before did, which takes none
// of them away when it ends.
func TestCrashAfterATakeover(t *testing.T) {
	c, k := newCrashing(t), startKeeper(t)
	p := k.start(c.file)
	c.ready(p)
	k.has(4)
	stop := c.knock()
	defer stop()
	c.takeAway()
	next := exec.Command(program(t, binary), "run", "-config-file", c.file, "-log-json", "-takeover")
	next.Env = append(os.Environ(), "NOTIFY_SOCKET="+k.addr)
	heir := startCommand(t, next)
	says(t, heir, "has taken over")
	if code := p.wait(); code != 0 {
		t.Errorf("the old one has ended with %d", code)
	}
	k.has(3)
	refuses(t, "a listener that is not wanted", c.gone)
	c.goesOn("after the takeover")
	heir.end(syscall.SIGKILL)
	served := c.wait()
	p = k.start(c.file)
	served()
	c.ready(p)
	c.goesOn("after the crash")
	stop()
	if code := p.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
	refuses(t, "after the end", c.at, c.local)
}

// supervise starts an agent under run -supervised, whose temporary files are in tmp.
func supervise(t *testing.T, file string, more ...string) (p *process, tmp string) {
	t.Helper()
	tmp = t.TempDir()
	cmd := exec.Command(program(t, binary), append([]string{"run", "-supervised", "-config-file", file, "-log-json"}, more...)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	return startCommand(t, cmd), tmp
}

// child waits for an agent that its supervisor has started, another one than before.
func child(t *testing.T, p *process, before int) (pid int) {
	t.Helper()
	eventually(t, "the supervisor has started an agent", func() bool {
		e := p.logged("the agent is started", "", "")
		n, _ := e["pid"].(float64)
		pid = int(n)
		return pid != 0 && pid != before
	})
	return pid
}

// awaitAgent waits until an agent answers that has become ready after n others.
func awaitAgent(t *testing.T, p *process, n int) {
	t.Helper()
	eventually(t, "the agent is ready", func() bool { return strings.Count(p.output(), `"msg":"ready"`) > n })
}

// run -supervised starts an agent again that has crashed, with its sockets, and ends as
// that ends.
func TestSupervised(t *testing.T) {
	c := newCrashing(t)
	p, tmp := supervise(t, c.file, "--")
	pid := child(t, p, 0)
	c.ready(p)
	stop := c.knock()
	defer stop()
	c.goesOn("before")
	for i, crash := range []syscall.Signal{syscall.SIGKILL, syscall.SIGABRT} {
		syscall.Kill(pid, crash)
		eventually(t, "the crash is noticed", func() bool { return strings.Count(p.output(), "the agent has crashed") == i+1 })
		served := c.wait()
		pid = child(t, p, pid)
		served()
		awaitAgent(t, p, i+1)
		c.ready(p)
		c.goesOn(fmt.Sprint("after ", crash))
	}
	if !strings.Contains(p.output(), "goroutine ") {
		t.Error("the stacks of the one that was aborted are lost")
	}

	// Signals reach the agent.
	c.takeAway()
	p.cmd.Process.Signal(syscall.SIGHUP)
	says(t, p, "the configuration is taken up")
	eventually(t, "a listener that is not wanted refuses", func() bool { return refused(c.gone) })
	p.cmd.Process.Signal(syscall.SIGUSR2)
	if e := says(t, p, "the process that was to take over has ended, this one goes on"); !strings.Contains(fmt.Sprint(e["err"]), "run -supervised") {
		t.Errorf("%v", e)
	}
	syscall.Kill(pid, syscall.SIGKILL)
	child(t, p, pid)
	awaitAgent(t, p, 3)
	c.ready(p)
	refuses(t, "a listener that is not wanted, after a crash", c.gone)
	c.goesOn("after the last crash")
	stop()

	c.drains(p, func() {})
	if left, _ := filepath.Glob(filepath.Join(tmp, "*")); left != nil {
		t.Errorf("files are left: %q", left)
	}
}

// Whoever supervises the supervisor sees what no restart mends: an agent that does not
// become ready ends it, with the same code, and its end ends the agent.
func TestSupervisedEnds(t *testing.T) {
	t.Run("a mistake", func(t *testing.T) {
		p, _ := supervise(t, configFile(t, "nonsense {}\n"))
		if code := p.wait(); code != 2 || !strings.Contains(p.output(), "nonsense") {
			t.Errorf("exit code %d", code)
		}
	})
	t.Run("no flag of it", func(t *testing.T) {
		if p := startAgentWith(t, "run", "-supervised"); p.wait() != 2 || !strings.Contains(p.output(), "needs -config-file") {
			t.Errorf("exit code %d", p.code)
		}
	})
	t.Run("an address in use", func(t *testing.T) {
		b := startBackend(t)
		p, _ := supervise(t, configFile(t, static("web", b)+"}\n"+listenerText("web", b.addr)))
		if code := p.wait(); code != 3 {
			t.Errorf("exit code %d", code)
		}
	})
	t.Run("killed before it is ready", func(t *testing.T) {
		p, _ := supervise(t, configFile(t, "initial_timeout = \"0s\"\ncluster \"web\" {\n  discovery \"file\" { path = \"/nonexistent/endpoints.json\" }\n}\n"+listenerText("web", freePorts(t, 1)[0])))
		says(t, p, "listening")
		syscall.Kill(child(t, p, 0), syscall.SIGKILL)
		if code := p.wait(); code != 137 {
			t.Errorf("exit code %d", code)
		}
	})
	t.Run("ended by itself", func(t *testing.T) {
		c := newCrashing(t)
		p, _ := supervise(t, c.file)
		c.ready(p)
		syscall.Kill(child(t, p, 0), syscall.SIGTERM)
		if code := p.wait(); code != 0 {
			t.Errorf("exit code %d", code)
		}
	})
	t.Run("the supervisor is killed", func(t *testing.T) {
		c := newCrashing(t)
		p, _ := supervise(t, c.file)
		c.ready(p)
		p.end(syscall.SIGKILL) // stderr stays open as long as the agent has it
		if p.logged("ended", "", "") == nil {
			t.Error("the agent has not ended in order")
		}
		refuses(t, "after the end", c.at, c.local)
	})
	t.Run("another manager", func(t *testing.T) {
		cmd := exec.Command(program(t, binary), "run", "-supervised", "-config-file", configFile(t, ""))
		cmd.Env = append(os.Environ(), "NOTIFY_SOCKET=/nonexistent")
		if p := startCommand(t, cmd); p.wait() != 2 || !strings.Contains(p.output(), "a service manager already") {
			t.Errorf("exit code %d", p.code)
		}
	})
}

// children returns the processes that a process has started, or has got from others.
func children(t *testing.T, pid int) (all []int) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) { // the thread has ended
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		for _, field := range strings.Fields(string(text)) {
			n, err := strconv.Atoi(field)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, n)
		}
	}
	return all
}

// As the first process of a container the supervisor has the orphans of all others, and
// leaves no zombie; and it does there what it does elsewhere.
func TestSupervisedAsFirstProcess(t *testing.T) {
	unshare := tool(t, "unshare", "util-linux")
	if os.Getuid() != 0 {
		t.Fatal("a process namespace takes root")
	}
	c := newCrashing(t)
	cmd := exec.Command(unshare, "--pid", "--fork", "--kill-child", "--mount-proc",
		"/bin/sh", "-c", `(sleep 1 & exit 0) & exec "$0" "$@"`, program(t, binary), "run", "-supervised", "-config-file", c.file, "-log-json")
	cmd.Env = append(os.Environ(), "TMPDIR="+t.TempDir())
	p := startCommand(t, cmd)
	c.ready(p)
	first := children(t, cmd.Process.Pid)
	if len(first) != 1 {
		t.Fatalf("unshare has the children %v", first)
	}
	only := func(before int) (pid int) {
		t.Helper()
		eventually(t, "the agent is its only child", func() bool {
			all := children(t, first[0])
			if len(all) == 1 && all[0] != before {
				pid = all[0]
			}
			return pid != 0
		})
		return pid
	}
	agent := only(0)
	syscall.Kill(agent, syscall.SIGKILL)
	served := c.wait()
	only(agent)
	served()
	awaitAgent(t, p, 1)
	c.ready(p)
	syscall.Kill(first[0], syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	refuses(t, "after the end", c.at, c.local)
}

// Nobody takes over from an agent that is supervised: its end would be the supervisor's.
func TestNoTakeoverOfTheSupervised(t *testing.T) {
	c := newCrashing(t)
	p, _ := supervise(t, c.file)
	c.ready(p)
	next := startAgentWith(t, "run", "-config-file", c.file, "-log-json", "-takeover")
	if code := next.wait(); code != 1 || !strings.Contains(next.output(), "run -supervised") {
		t.Errorf("exit code %d", code)
	}
	if who, err := ask(t.Context(), c.at); err != nil || who != c.b.addr {
		t.Errorf("%q, %v", who, err)
	}
}

// Listeners of the control plane are kept too, until it has said that they are gone.
func TestCrashOfControlledListeners(t *testing.T) {
	b, cp := startBackend(t), newControl(t)
	ports := freePorts(t, 2)
	resources := func(listeners ...string) (all []types.Resource) {
		all = append(all, staticCluster(t, "web", b.addr))
		for _, addr := range listeners {
			all = append(all, lds(t, "at "+addr, addr, tcpProxy(t, "web")))
		}
		return all
	}
	cp.start()
	cp.set(resources(ports...)...)
	p, _ := supervise(t, configFile(t, cp.listening("")))
	pid := child(t, p, 0)
	p.awaitReady()
	for i := range 2 {
		for _, addr := range ports {
			if who, err := ask(t.Context(), addr); err != nil || who != b.addr {
				t.Errorf("%s: %q, %v", addr, who, err)
			}
		}
		syscall.Kill(pid, syscall.SIGKILL)
		eventually(t, "the crash is noticed", func() bool { return strings.Count(p.output(), "the agent has crashed") == i+1 })
		early, err := net.Dial("tcp", ports[0])
		if err != nil {
			t.Fatalf("while no agent runs: %v", err)
		}
		defer early.Close()
		if i == 1 {
			cp.set(resources(ports[0])...)
		}
		pid = child(t, p, pid)
		if who, err := askOn(early); err != nil || who != b.addr {
			t.Errorf("who had connected while no agent ran: %q, %v", who, err)
		}
		early.Close()
		awaitAgent(t, p, i+1)
	}
	eventually(t, "a listener that is gone refuses", func() bool { return refused(ports[1]) })
	if code := p.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
