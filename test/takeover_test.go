package test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"gatehouse.internal/internal/takeover"
)

// restarts is the program that makes connections while the agent is restarted.
var restarts = builtFrom("restarts", "./restarts")

// heir is an agent that is to be taken over from, and what it needs.
type heir struct {
	*process
	t                      *testing.T
	file, endpoints, state string
	at, local              string
	b                      *backend
}

// startHeir starts an agent with a listener at a port and one at a unix socket, and
// waits until it is ready.
func startHeir(t *testing.T, more string, env ...string) *heir {
	t.Helper()
	needsServer(t)
	dir := t.TempDir()
	h := &heir{
		t: t, b: startBackend(t), file: filepath.Join(dir, "gatehouse.hcl"), endpoints: filepath.Join(dir, "endpoints.json"),
		state: filepath.Join(dir, "state"), local: filepath.Join(dir, "web.sock"),
	}
	write(t, h.endpoints, fmt.Sprintf(`{"endpoints": [%q]}`, h.b.addr))
	h.configure(more)
	h.process = h.start(nil, env...)
	h.awaitReady()
	h.at = h.listener("web")
	return h
}

// configure writes the configuration.
func (h *heir) configure(more string) {
	h.t.Helper()
	write(h.t, h.file, fmt.Sprintf(`admin { address = "127.0.0.1:0" }
state_dir = %q
drain_timeout = "20s"
cluster "web" {
  discovery "file" { path = %q }
  health_check "tcp" {}
}
listener "web" {
  address = "127.0.0.1:0"
  cluster = "web"
}
listener "local" {
  address = "unix://%s"
  cluster = "web"
}
%s`, h.state, h.endpoints, h.local, more))
}

// start starts one more process.
func (h *heir) start(flags []string, env ...string) *process {
	h.t.Helper()
	cmd := exec.Command(program(h.t, binary), append([]string{"run", "-config-file", h.file, "-log-json"}, flags...)...)
	cmd.Env = append(os.Environ(), env...)
	return startCommand(h.t, cmd)
}

// serves fails the test if not both listeners serve.
func (h *heir) serves(when string) {
	h.t.Helper()
	for _, at := range []string{h.at, h.local} {
		if who, err := ask(h.t.Context(), at); err != nil || who != h.b.addr {
			h.t.Errorf("%s: %s: %q, %v", when, at, who, err)
		}
	}
}

// says waits until a process has logged a message.
func says(t *testing.T, p *process, msg string) map[string]any {
	t.Helper()
	var entry map[string]any
	eventually(t, fmt.Sprintf("it says %q", msg), func() bool { entry = p.logged(msg, "", ""); return entry != nil })
	return entry
}

// Under constant load nobody is refused and nobody reset before the drain's deadline,
// neither by takeovers nor where the socket is a service manager's.
func TestRestarts(t *testing.T) {
	cmd := exec.Command(program(t, restarts), "-agent", program(t, binary), "-rate", "200", "-restarts", "3", "-every", "1s", "-held", "5", "-json")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s%s", err, out, stderr.String())
	}
	modes := make(map[string]bool)
	for lines := range strings.Lines(string(out)) {
		var r struct {
			Mode                                                        string
			Restarts, Connections, OK, Refused, Reset, Held, HeldBroken int
		}
		if err := json.Unmarshal([]byte(lines), &r); err != nil {
			t.Fatal(err)
		}
		modes[r.Mode] = true
		if r.Restarts != 3 || r.Connections < 100 || r.OK != r.Connections || r.Held != 15 {
			t.Errorf("%s", lines)
		}
	}
	if !modes["takeover"] || !modes["activation"] {
		t.Errorf("%s", out)
	}
}

// A process that takes over has everything that the one before had: the ports, the
// unix sockets with their files, the admin interface, and what was learnt. That one
// drains, and a connection that it has goes on.
func TestTakeover(t *testing.T) {
	h := startHeir(t, "")
	admin := h.admin()
	open, err := net.Dial("tcp", h.at)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if who, err := askOn(open); err != nil || who != h.b.addr {
		t.Fatalf("%q, %v", who, err)
	}
	if err := os.Remove(h.endpoints); err != nil { // from now on only the state knows
		t.Fatal(err)
	}
	next := h.start([]string{"-takeover"})
	says(t, next, "has taken over")
	says(t, h.process, "the process has taken over")
	if next.listener("web") != h.at || next.admin() != admin {
		t.Errorf("it listens at %s and %s, want %s and %s", next.listener("web"), next.admin(), h.at, admin)
	}
	if e := next.logged("verdicts of health checks of before the restart count until probes say otherwise", "", ""); e == nil || e["verdicts"] != 1.0 {
		t.Errorf("verdicts: %v", e)
	}
	h.serves("after the takeover")
	if who, err := askOn(open); err != nil || who != h.b.addr {
		t.Errorf("a connection of before: %q, %v", who, err)
	}
	if n := next.metric(`gatehouse_agent_takeovers{result="taken"}`); n != 1 {
		t.Errorf("takeovers: %v", n)
	}
	if n := next.metric(`gatehouse_listener_connections{listener="web"}`); n < 1 {
		t.Errorf("the new one has accepted %v connections", n)
	}
	open.Close()
	if code := h.wait(); code != 0 {
		t.Errorf("the old one has ended with %d", code)
	}
	h.serves("after the old one has ended")
	// And on to the third.
	third := h.start([]string{"-takeover"})
	says(t, third, "has taken over")
	if code := next.wait(); code != 0 {
		t.Errorf("the second one has ended with %d", code)
	}
	h.serves("after the second one has ended")
	if code := third.end(syscall.SIGTERM); code != 0 {
		t.Errorf("the third one has ended with %d", code)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(h.file), "*.sock")); left != nil {
		t.Errorf("files are left behind: %q", left)
	}
	if left, _ := filepath.Glob(filepath.Join(h.state, "*.sock")); left != nil {
		t.Errorf("files are left behind: %q", left)
	}
}

// A listener that the new configuration does not have leaves no file of its socket
// behind, and a directory of the state may be named otherwise.
func TestTakeoverOfOtherConfiguration(t *testing.T) {
	h := startHeir(t, "")
	text, err := os.ReadFile(h.file)
	if err != nil {
		t.Fatal(err)
	}
	without, _, _ := strings.Cut(string(text), "listener \"local\"")
	other := filepath.Join(t.TempDir(), "other")
	if err := os.Symlink(filepath.Dir(h.file), other); err != nil {
		t.Fatal(err)
	}
	write(t, h.file, strings.Replace(without, h.state, filepath.Join(other, "state"), 1))
	next := h.start([]string{"-takeover"})
	says(t, next, "has taken over")
	if code := h.wait(); code != 0 {
		t.Errorf("the old one has ended with %d", code)
	}
	if _, err := os.Lstat(h.local); !os.IsNotExist(err) {
		t.Errorf("the socket of a listener that is gone: %v", err)
	}
	if who, err := ask(t.Context(), h.at); err != nil || who != h.b.addr {
		t.Errorf("the other listener: %q, %v", who, err)
	}
	third := h.start([]string{"-takeover"})
	says(t, third, "has taken over")
	if code := next.wait(); code != 0 {
		t.Errorf("the second one has ended with %d", code)
	}
	if code := third.end(syscall.SIGTERM); code != 0 {
		t.Errorf("the third one has ended with %d", code)
	}
}

// Whatever becomes of a process that is to take over, the one that runs runs on, with
// its sockets, its state and reloads.
func TestTakeoverFails(t *testing.T) {
	const unready = "cluster \"new\" {\n  discovery \"file\" { path = \"/nonexistent/endpoints.json\" }\n}\n"
	for name, c := range map[string]struct {
		config, flag string
		act          func(t *testing.T, h *heir, next *process)
		code         int
		want         string // of the new one's log
		asked        bool   // the old one was told
	}{
		"bad configuration": {config: "nonsense {}\n", code: 2, want: "nonsense"},
		"an address in use": {config: "listener \"other\" {\n  address = \"TAKEN\"\n  cluster = \"web\"\n}\n", code: 3, want: "address already in use", asked: true},
		"not ready in time": {config: unready + "takeover { timeout = \"1s\" }\n", code: 1, want: "not ready within 1s", asked: true},
		"killed": {config: unready, act: func(t *testing.T, _ *heir, next *process) {
			next.cmd.Process.Kill()
		}, code: -1, want: "taking over from a running agent", asked: true},
		"stopped": {config: unready, act: func(t *testing.T, _ *heir, next *process) {
			next.cmd.Process.Signal(syscall.SIGTERM)
		}, code: 0, want: "draining", asked: true},
	} {
		t.Run(name, func(t *testing.T) {
			h := startHeir(t, "")
			tr := startTraffic(t, h.at)
			other, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close()
			h.configure(strings.ReplaceAll(c.config, "TAKEN", other.Addr().String()))
			next := h.start([]string{"-takeover"})
			if c.act != nil {
				says(t, next, "listening")
				says(t, h.process, "a process asks to take over")
				if code, _ := h.reload(); code != 409 {
					t.Errorf("a reload meanwhile: %d", code)
				}
				c.act(t, h, next)
			}
			if code := next.wait(); code != c.code || !strings.Contains(next.output(), c.want) {
				t.Errorf("it has ended with %d, want %d and %q:\n%s", code, c.code, c.want, next.output())
			}
			if c.asked {
				says(t, h.process, "the process has not taken over, this one goes on as before")
				if n := h.metric(`gatehouse_agent_takeovers{result="failed"}`); n != 1 {
					t.Errorf("failed takeovers: %v", n)
				}
			}
			h.serves("after it")
			written := h.metric("gatehouse_state_written")
			second := startBackend(t)
			write(t, h.endpoints, fmt.Sprintf(`{"endpoints": [%q, %q]}`, h.b.addr, second.addr))
			tr.lands(t, h.b, second)
			eventually(t, "the state is written again", func() bool { return h.metric("gatehouse_state_written") > written })
			if n := h.metric("gatehouse_state_failing"); n != 0 {
				t.Error("the state can't be written")
			}
			tr.stop()
			tr.noErrors(t)
			// The next one that is good can.
			h.configure("")
			says(t, h.start([]string{"-takeover"}), "has taken over")
			if code := h.wait(); code != 0 {
				t.Errorf("the old one has ended with %d", code)
			}
		})
	}
}

// An agent that is ended while another process takes over ends.
func TestEndDuringTakeover(t *testing.T) {
	for range 5 { // whichever of its parts ends first
		h := startHeir(t, "")
		var taker *takeover.Taker
		eventually(t, "it gives its sockets", func() bool {
			var err error
			taker, err = takeover.Dial(t.Context(), filepath.Join(h.state, "takeover.sock"), takeover.Hello{StateDir: h.state})
			return err == nil
		})
		h.cmd.Process.Signal(syscall.SIGTERM)
		if code := h.end(syscall.SIGINT); code != 0 {
			t.Errorf("exit code %d", code)
		}
		taker.CloseSockets()
		taker.Close()
	}
}

// Where the agent ends while the one that takes over is not ready, that one is the only one:
// it serves what it can at once, and is ready after initial_timeout as after any start.
func TestEndOfTheGiver(t *testing.T) {
	const unready = "initial_timeout = \"2s\"\ncluster \"new\" {\n  discovery \"file\" { path = \"/nonexistent/endpoints.json\" }\n}\n"
	for name, c := range map[string]struct {
		signal syscall.Signal
		code   int
	}{"killed": {syscall.SIGKILL, -1}, "ended": {syscall.SIGTERM, 0}} {
		t.Run(name, func(t *testing.T) {
			h := startHeir(t, "")
			open, err := net.Dial("tcp", h.at)
			if err != nil {
				t.Fatal(err)
			}
			defer open.Close()
			if who, err := askOn(open); err != nil || who != h.b.addr {
				t.Fatalf("%q, %v", who, err)
			}
			h.configure(unready)
			next := h.start([]string{"-takeover"})
			says(t, next, "listening")
			says(t, h.process, "a process asks to take over")
			h.cmd.Process.Signal(c.signal)
			if e := says(t, next, "has taken over"); e["the_agent_before_had_ended"] != true {
				t.Errorf("%v", e)
			}
			h.serves("before it is ready")
			if next.logged("ready", "", "") != nil {
				t.Error("it was ready before it has taken over")
			}
			if c.signal == syscall.SIGTERM {
				if who, err := askOn(open); err != nil || who != h.b.addr {
					t.Errorf("a connection of the one that drains: %q, %v", who, err)
				}
				open.Close()
			}
			if code := h.wait(); code != c.code {
				t.Errorf("the old one has ended with %d, want %d", code, c.code)
			}
			h.serves("after the old one has ended")
			next.awaitReady()
			// It has all that the old one had, and writes the state.
			h.configure("")
			third := h.start([]string{"-takeover"})
			says(t, third, "has taken over")
			if code := next.wait(); code != 0 {
				t.Errorf("the second one has ended with %d", code)
			}
			h.serves("by the third")
			if code := third.end(syscall.SIGTERM); code != 0 {
				t.Errorf("the third one has ended with %d", code)
			}
			if _, err := os.Lstat(h.local); !os.IsNotExist(err) {
				t.Errorf("the file of its socket: %v", err)
			}
		})
	}
}

// giver is the test in the place of an agent that is taken over from: it has the sockets of
// the listener web and of takeovers.
type giver struct {
	*takeover.Giver
	web  net.Listener
	next *process
}

// give starts a process that takes over from the test, and gives it the sockets.
func give(t *testing.T, file, state string, web net.Listener) *giver {
	t.Helper()
	if err := os.MkdirAll(state, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(state, "takeover.sock")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	g := &giver{web: web, next: startAgentWith(t, "run", "-takeover", "-config-file", file, "-log-json")}
	conn, err := ln.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	if g.Giver, _, err = takeover.Accept(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	f, err := ln.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := g.Give(t.Context(), []takeover.Socket{
		{Kind: takeover.KindListener, Name: "web", Address: web.Addr().String(), File: socketOf(t, web)},
		{Kind: takeover.KindTakeover, Address: "unix://" + path, File: f},
	}); err != nil {
		t.Fatal(err)
	}
	return g
}

// accepted accepts n connections of the socket that both have.
func (g *giver) accepted(t *testing.T, n int) {
	t.Helper()
	g.web.(*net.TCPListener).SetDeadline(time.Now().Add(patience))
	for i := range n {
		c, err := g.web.Accept()
		if err != nil {
			t.Fatalf("%d of %d connections came to the one that has given the socket: %v", i, n, err)
		}
		c.Close()
	}
}

// heirless writes a configuration for give.
func heirless(t *testing.T, more string) (file, state string, b *backend, web net.Listener) {
	t.Helper()
	needsServer(t)
	web, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { web.Close() })
	dir := t.TempDir()
	file, state, b = filepath.Join(dir, "gatehouse.hcl"), filepath.Join(dir, "state"), startBackend(t)
	write(t, file, fmt.Sprintf("admin { address = \"127.0.0.1:0\" }\nstate_dir = %q\n%scluster \"web\" {\n  discovery \"static\" { endpoints = [%q] }\n}\n"+
		"listener \"web\" {\n  address = %q\n  cluster = \"web\"\n}\n", state, more, b.addr, web.Addr()))
	return file, state, b, web
}

// A process that is ready accepts nothing, and writes nothing, before it is told to go.
func TestTakeoverWaitsForGo(t *testing.T) {
	file, state, b, web := heirless(t, "")
	g := give(t, file, state, web)
	if err := g.AwaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	const n = 50
	for range n {
		c, err := net.Dial("tcp", web.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	g.accepted(t, n)
	if kept, _ := filepath.Glob(filepath.Join(state, "*.state")); len(kept) > 0 {
		t.Errorf("it has written %q", kept)
	}
	if err := g.Commit(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	says(t, g.next, "has taken over")
	if who, err := ask(t.Context(), web.Addr().String()); err != nil || who != b.addr {
		t.Errorf("%q, %v", who, err)
	}
}

// A process that has accepted and is not wanted after all drains what it has, and takes
// nothing more.
func TestRefusedAfterAccepting(t *testing.T) {
	file, state, b, web := heirless(t, "")
	g := give(t, file, state, web)
	if err := g.AwaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	var open net.Conn
	err := g.Commit(t.Context(), func() {
		var err error
		if open, err = net.Dial("tcp", web.Addr().String()); err != nil {
			t.Fatal(err)
		}
		if who, err := askOn(open); err != nil || who != b.addr {
			t.Errorf("%q, %v", who, err)
		}
		g.Refuse(t.Context(), errors.New("not now"))
	})
	if err == nil {
		t.Fatal("it is told that it has taken over")
	}
	defer open.Close()
	says(t, g.next, "has not taken over, what was accepted meanwhile goes on as in any drain")
	eventually(t, "it accepts no more", func() bool { return g.next.logged("draining", "by", "takeover") != nil })
	eventually(t, "the state is let go", func() bool {
		f, err := os.Open(filepath.Join(state, "lock"))
		if err != nil {
			return false
		}
		defer f.Close()
		return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
	})
	if who, err := askOn(open); err != nil || who != b.addr {
		t.Errorf("a connection that it has accepted: %q, %v", who, err)
	}
	open.Close()
	if code := g.next.wait(); code != 1 || !strings.Contains(g.next.output(), "the agent before goes on: refused: not now") {
		t.Errorf("exit code %d\n%s", code, g.next.output())
	}
	c, err := net.Dial("tcp", web.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	g.accepted(t, 1)
	if _, err := os.Lstat(filepath.Join(state, "takeover.sock")); err != nil {
		t.Errorf("where the next process asks: %v", err)
	}
}

// Who asks for a successor again and again gets one after the other, and nobody is
// refused.
func TestSuccessorsAtOnce(t *testing.T) {
	h := startHeir(t, "")
	tr := startTraffic(t, h.at)
	for range 20 {
		h.cmd.Process.Signal(syscall.SIGUSR2)
	}
	says(t, h.process, "the process has taken over")
	var pid int
	eventually(t, "it names its successor", func() bool {
		e := h.logged("the process has taken over", "", "")
		p, _ := e["pid"].(float64)
		pid = int(p)
		return pid > 0
	})
	t.Cleanup(func() { syscall.Kill(pid, syscall.SIGKILL) })
	says(t, h.process, "ended") // its stderr stays open as long as the successor's
	h.serves("by the successor")
	tr.stop()
	tr.noErrors(t)
	if n := strings.Count(h.output(), `"msg":"starting the process that is to take over"`); n != 1 {
		t.Errorf("%d successors were started", n)
	}
	syscall.Kill(pid, syscall.SIGTERM)
	eventually(t, "the successor ends", func() bool { _, err := os.Stat(h.local); return os.IsNotExist(err) })
}

// A process that is ready when the one before has died serves all the same, also who
// has connected between.
func TestTakeoverOfADeadProcess(t *testing.T) {
	h := startHeir(t, "")
	if err := os.Rename(h.endpoints, h.endpoints+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(h.state+".new", 0o700); err != nil {
		t.Fatal(err)
	}
	next := h.start([]string{"-takeover"}, "GATEHOUSE_STATE_DIR="+h.state+".new", "GATEHOUSE_TAKEOVER_SOCKET="+filepath.Join(h.state, "takeover.sock"))
	says(t, next, "listening")
	h.end(syscall.SIGKILL)
	early, err := net.Dial("tcp", h.at)
	if err != nil {
		t.Fatal(err)
	}
	defer early.Close()
	if err := os.Rename(h.endpoints+".away", h.endpoints); err != nil {
		t.Fatal(err)
	}
	if e := says(t, next, "has taken over"); e["the_agent_before_had_ended"] != true {
		t.Errorf("%v", e)
	}
	if who, err := askOn(early); err != nil || who != h.b.addr {
		t.Errorf("who had connected before: %q, %v", who, err)
	}
	h.serves("after it")
	if code := next.end(syscall.SIGTERM); code != 0 {
		t.Errorf("it has ended with %d", code)
	}
}

// Where no agent runs -takeover is a start, and what others write at the socket harms
// nobody.
func TestTakeoverOfNobody(t *testing.T) {
	h := startHeir(t, "")
	if code := h.end(syscall.SIGTERM); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	h.process = h.start([]string{"-takeover"})
	says(t, h.process, "no agent runs to take over from, starting as without -takeover")
	h.awaitReady()
	h.at = h.listener("web")
	h.serves("started so")
	socket := filepath.Join(h.state, "takeover.sock")
	if fi, err := os.Stat(socket); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", fi, err)
	}
	for _, text := range []string{"", "\n", "GET / HTTP/1.1\r\n\r\n", `{"type":"hello","version":99}` + "\n", strings.Repeat("x", 1<<20)} {
		c, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		c.Write([]byte(text)) // it may close before the end
		c.Close()
	}
	eventually(t, "all of them are refused", func() bool { return h.metric(`gatehouse_agent_takeovers{result="failed"}`) == 5 })
	h.serves("after garbage")

	if code := h.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if e := h.logged("can't accept a process that is to take over", "", ""); e != nil {
		t.Errorf("its end is told as a failure: %v", e)
	}
	p := startAgentWith(t, "run", "-takeover", "-config-file", configFile(t, ""))
	if code := p.wait(); code != 2 || !strings.Contains(p.output(), "takeover.socket") {
		t.Errorf("without a socket: %d\n%s", code, p.output())
	}
}

// Who connects to the socket and says nothing holds up nobody who takes over; and so many
// are listened to at once.
func TestTakeoverBesideSilence(t *testing.T) {
	h := startHeir(t, "")
	socket := filepath.Join(h.state, "takeover.sock")
	silent := func(n int) {
		for range n {
			c, err := net.Dial("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
		}
	}
	silent(15)
	next := h.start([]string{"-takeover"})
	says(t, next, "has taken over")
	if code := h.wait(); code != 0 {
		t.Errorf("the old one has ended with %d", code)
	}
	silent(16)
	_, err := takeover.Dial(t.Context(), socket, takeover.Hello{})
	if r, ok := errors.AsType[*takeover.Refusal](err); !ok || !strings.Contains(r.Text, "16 others ask to take over") {
		t.Errorf("one more: %v", err)
	}
	h.serves("beside all of them")
}

// SIGUSR2 has an agent start its successor, and a service manager is told whom to watch
// from then on.
func TestSuccessor(t *testing.T) {
	n := listenNotify(t)
	h := startHeir(t, "", "NOTIFY_SOCKET="+n.path, "WATCHDOG_USEC=1000000", "WATCHDOG_PID=0")
	n.await("^READY=1")
	h.cmd.Process.Signal(syscall.SIGUSR2)
	m, _ := n.await(`^MAINPID=\d+$`)
	var pid int
	fmt.Sscanf(m, "MAINPID=%d", &pid)
	if pid == 0 || pid == h.cmd.Process.Pid {
		t.Fatalf("%q", m)
	}
	t.Cleanup(func() { syscall.Kill(pid, syscall.SIGKILL) })
	n.await("^READY=1")
	for range 2 {
		n.await("^WATCHDOG=1")
	}
	h.serves("by the successor")
	says(t, h.process, "ended") // its stderr stays open as long as the successor's
	if _, before := n.await("^WATCHDOG=1"); strings.Contains(strings.Join(before, " "), "STOPPING") {
		t.Errorf("the old one has told of its end: %q", before)
	}
	h.serves("when the old one has ended")
	syscall.Kill(pid, syscall.SIGTERM)
	n.await("^STOPPING=1")
	eventually(t, "it ends", func() bool { _, err := os.Stat(h.local); return os.IsNotExist(err) })

	// One that ends before it accepts has never been the service's.
	h = startHeir(t, "", "NOTIFY_SOCKET="+n.path, "WATCHDOG_USEC=1000000")
	n.await("^READY=1")
	taker, err := takeover.Dial(t.Context(), filepath.Join(h.state, "takeover.sock"), takeover.Hello{})
	if err != nil {
		t.Fatal(err)
	}
	taker.CloseSockets()
	if err := errors.Join(taker.Ready(t.Context()), taker.Close()); err != nil {
		t.Fatal(err)
	}
	says(t, h.process, "the process has not taken over, this one goes on as before")
	for range 2 {
		if _, before := n.await("^WATCHDOG=1"); strings.Contains(strings.Join(before, " "), "MAINPID") {
			t.Errorf("a process that did not accept is the service's: %q", before)
		}
	}
	h.serves("after it")

	// One that comes to nothing is no longer the service's.
	h = startHeir(t, "takeover { timeout = \"1s\" }\n", "NOTIFY_SOCKET="+n.path)
	n.await("^READY=1")
	h.configure("takeover { timeout = \"1s\" }\nnonsense {}\n")
	h.cmd.Process.Signal(syscall.SIGUSR2)
	says(t, h.process, "the process that was to take over has ended, this one goes on")
	h.serves("after it")
}

// Where an agent crashes, the sockets that a service manager has given it live on: who
// connects meanwhile waits, and the next one serves.
func TestSocketsSurviveACrash(t *testing.T) {
	needsServer(t)
	b := startBackend(t)
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	path := filepath.Join(t.TempDir(), "web.sock")
	local, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	file := filepath.Join(t.TempDir(), "gatehouse.hcl")
	write(t, file, fmt.Sprintf("admin { address = \"127.0.0.1:0\" }\n%s}\nlistener \"web\" {\n  address = %q\n  cluster = \"web\"\n}\n"+
		"listener \"local\" {\n  address = \"unix://%s\"\n  cluster = \"web\"\n}\n", static("web", b), tcp.Addr(), path))
	start := func() *process {
		return startManaged(t, file, nil, []string{"web", "local"}, socketOf(t, tcp), socketOf(t, local))
	}
	p := start()
	p.awaitReady()
	for _, crash := range []syscall.Signal{syscall.SIGABRT, syscall.SIGKILL} {
		open, err := net.Dial("tcp", tcp.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if who, err := askOn(open); err != nil || who != b.addr {
			t.Fatalf("%q, %v", who, err)
		}
		code := p.end(crash)
		switch { // as after a panic, which ends a Go program in the same way
		case crash == syscall.SIGABRT && (code != 2 || !strings.Contains(p.output(), "goroutine ")):
			t.Errorf("exit code %d, and no stack:\n%s", code, p.output())
		case crash == syscall.SIGKILL && code == 0:
			t.Errorf("exit code %d", code)
		}
		if _, err := askOn(open); err == nil {
			t.Error("a connection has survived the crash")
		}
		open.Close()
		var waiting []net.Conn
		for range 20 {
			for _, addr := range []net.Addr{tcp.Addr(), local.Addr()} {
				c, err := net.Dial(addr.Network(), addr.String())
				if err != nil {
					t.Fatalf("while no agent runs: %v", err)
				}
				defer c.Close()
				waiting = append(waiting, c)
			}
		}
		p = start()
		for _, c := range waiting {
			if who, err := askOn(c); err != nil || who != b.addr {
				t.Errorf("who had connected while no agent ran: %q, %v", who, err)
			}
		}
	}
}

// Sockets of a service manager pass on too, and are kept like those that it gave.
func TestTakeoverOfGivenSockets(t *testing.T) {
	needsServer(t)
	b := startBackend(t)
	path := filepath.Join(t.TempDir(), "web.sock")
	local, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	dir := t.TempDir()
	file := filepath.Join(dir, "gatehouse.hcl")
	write(t, file, fmt.Sprintf("admin { address = \"127.0.0.1:0\" }\ntakeover { socket = %q }\n%s}\n"+
		"listener \"local\" {\n  address = \"unix://%s\"\n  cluster = \"web\"\n}\n", filepath.Join(dir, "takeover.sock"), static("web", b), path))
	p := startManaged(t, file, nil, []string{"local"}, socketOf(t, local))
	p.awaitReady()
	for range 2 {
		next := startAgentWith(t, "run", "-config-file", file, "-log-json", "-takeover")
		says(t, next, "has taken over")
		if code := p.wait(); code != 0 {
			t.Errorf("exit code %d", code)
		}
		if who, err := ask(t.Context(), path); err != nil || who != b.addr {
			t.Errorf("%q, %v", who, err)
		}
		p = next
	}
	// A reload may take the listener away and bring it back: the socket is still there.
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	without, _, _ := strings.Cut(string(text), "listener \"local\"")
	write(t, file, without)
	p.mustReload(200, "in_force")
	write(t, file, string(text))
	p.mustReload(200, "in_force")
	if who, err := ask(t.Context(), path); err != nil || who != b.addr {
		t.Errorf("after reloads: %q, %v", who, err)
	}
	if code := p.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the agent has removed the service manager's socket: %v", err)
	}
}
