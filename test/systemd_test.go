package test

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// notified is a service manager's socket, and what it was told.
type notified struct {
	t    *testing.T
	path string
	wg   sync.WaitGroup

	mu   sync.Mutex
	said []string // messages, their lines joined by spaces
	read int      // those that await has passed
}

func listenNotify(t *testing.T) *notified {
	t.Helper()
	n := &notified{t: t, path: filepath.Join(t.TempDir(), "notify")}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: n.path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	n.wg.Go(func() {
		for buf := make([]byte, 64<<10); ; {
			size, err := conn.Read(buf)
			if err != nil {
				return
			}
			n.mu.Lock()
			n.said = append(n.said, strings.ReplaceAll(strings.TrimSpace(string(buf[:size])), "\n", " "))
			n.mu.Unlock()
		}
	})
	t.Cleanup(func() {
		conn.Close()
		n.wg.Wait()
		if t.Failed() {
			t.Logf("the service manager was told %q", n.said)
		}
	})
	return n
}

// await waits for a message, after those that it has returned before, and returns it
// and what came before it.
func (n *notified) await(like string) (message string, before []string) {
	n.t.Helper()
	re := regexp.MustCompile(like)
	eventually(n.t, "the service manager is told "+like, func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		for i, m := range n.said[n.read:] {
			if re.MatchString(m) {
				message, before = m, slices.Clone(n.said[n.read:][:i])
				n.read += i + 1
				return true
			}
		}
		return false
	})
	return message, before
}

// startManaged starts an agent as a service manager does: with these variables, and
// with sockets by name.
func startManaged(t *testing.T, file string, env []string, names []string, sockets ...*os.File) *process {
	t.Helper()
	// The shell becomes the agent, and so it knows the process's number before.
	cmd := exec.Command("/bin/sh", "-c", `LISTEN_PID=$$ exec "$0" "$@"`, program(t, binary), "run", "-config-file", file, "-log-json")
	cmd.Env = append(os.Environ(), env...)
	if len(sockets) > 0 {
		cmd.Env = append(cmd.Env, fmt.Sprintf("LISTEN_FDS=%d", len(sockets)), "LISTEN_FDNAMES="+strings.Join(names, ":"))
		cmd.ExtraFiles = sockets
	}
	return startCommand(t, cmd)
}

// A service manager is told of the start, reloads good and bad, life and the stop.
func TestNotify(t *testing.T) {
	needsServer(t)
	n, b, dir := listenNotify(t), startBackend(t), t.TempDir()
	file, endpoints, at := filepath.Join(dir, "gatehouse.hcl"), filepath.Join(dir, "endpoints.json"), freePorts(t, 1)[0]
	config := fmt.Sprintf("admin { address = \"127.0.0.1:0\" }\ninitial_timeout = \"0s\"\ncluster \"web\" {\n  discovery \"file\" { path = %q }\n}\n"+
		"listener \"web\" {\n  address = %q\n  cluster = \"web\"\n}\n", endpoints, at)
	write(t, file, config)
	p := startManaged(t, file, []string{"NOTIFY_SOCKET=" + n.path, "WATCHDOG_USEC=1000000"}, nil)

	_, early := n.await(`STATUS=initializing, waiting for 1, first: .*web`) // alone, or with a beat
	_, more := n.await(`^WATCHDOG=1 EXTEND_TIMEOUT_USEC=\d+`)
	write(t, endpoints, fmt.Sprintf(`{"endpoints": [%q]}`, b.addr))
	_, before := n.await(`^READY=1 STATUS=1 clusters, 1 of 1 endpoints ready, 0 connections$`)
	for _, m := range slices.Concat(early, more, before) {
		if strings.Contains(m, "READY=1") {
			t.Errorf("it was ready too early: %q", m)
		}
	}
	conn, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if who, err := askOn(conn); err != nil || who != b.addr {
		t.Fatalf("%q, %v", who, err)
	}
	n.await("^WATCHDOG=1")
	n.await("^WATCHDOG=1")

	reload := func(want string) {
		t.Helper()
		p.cmd.Process.Signal(syscall.SIGHUP)
		m, _ := n.await("^RELOADING=1 MONOTONIC_USEC=")
		var now unix.Timespec
		unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
		usec, err := strconv.ParseInt(m[strings.LastIndex(m, "=")+1:], 10, 64)
		if since := time.Duration(now.Nano()) - time.Duration(usec)*time.Microsecond; err != nil || since < 0 || since > patience {
			t.Errorf("%q: %v ago, %v", m, since, err)
		}
		if m, _ := n.await("^READY=1"); strings.Contains(m, "the last reload was refused") != (want == "refused") {
			t.Errorf("%q after a reload that is to be %s", m, want)
		}
	}
	reload("in force")
	write(t, file, config+"listener \"broken\" {}\n")
	reload("refused")
	write(t, file, config)
	reload("in force")

	p.cmd.Process.Signal(syscall.SIGTERM)
	n.await(`^STOPPING=1 EXTEND_TIMEOUT_USEC=\d+ STATUS=`)
	for range 2 {
		n.await(`^WATCHDOG=1 EXTEND_TIMEOUT_USEC=\d+`)
	}
	if who, err := askOn(conn); err != nil || who != b.addr {
		t.Errorf("while it drains: %q, %v", who, err)
	}
	conn.Close()
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// socketOf returns a duplicate of a listening socket.
func socketOf(t *testing.T, ln net.Listener) *os.File {
	t.Helper()
	f, err := ln.(interface{ File() (*os.File, error) }).File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// Sockets that a service manager passes are for the listeners of their names. Who
// connects while no agent runs waits for the next one.
func TestSocketActivation(t *testing.T) {
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
	stray, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer stray.Close()
	file := filepath.Join(t.TempDir(), "gatehouse.hcl")
	config := func(own string) string {
		return fmt.Sprintf("admin { address = \"127.0.0.1:0\" }\n%s}\n"+
			"listener \"web\" {\n  address = %q\n  cluster = \"web\"\n}\n"+
			"listener \"local\" {\n  address = \"unix://%s\"\n  cluster = \"web\"\n}\n"+
			"listener \"own\" {\n  address = %q\n  cluster = \"web\"\n}\n", static("web", b), tcp.Addr(), path, own)
	}
	write(t, file, config("127.0.0.1:0"))
	names, sockets := []string{"web", "nobody", "local"}, []*os.File{socketOf(t, tcp), socketOf(t, stray), socketOf(t, local)}

	for range 2 {
		var early []net.Conn
		for _, addr := range []net.Addr{tcp.Addr(), local.Addr()} {
			c, err := net.Dial(addr.Network(), addr.String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			early = append(early, c)
		}
		p := startManaged(t, file, nil, names, sockets...)
		for _, c := range early {
			if who, err := askOn(c); err != nil || who != b.addr {
				t.Errorf("who had connected before the agent ran: %q, %v", who, err)
			}
			c.Close()
		}
		p.awaitReady()
		for _, addr := range []string{tcp.Addr().String(), path, p.listener("own")} {
			if who, err := ask(t.Context(), addr); err != nil || who != b.addr {
				t.Errorf("%s: %q, %v", addr, who, err)
			}
		}
		eventually(t, "the stray socket is logged", func() bool {
			return strings.Contains(p.output(), "is for no listener") && strings.Contains(p.output(), `"name":"nobody"`)
		})
		if n := strings.Count(p.output(), "is for no listener"); n != 1 {
			t.Errorf("%d sockets are said to be stray, want 1", n)
		}
		if left := openSockets(t, p, stray); left != 0 {
			t.Errorf("the agent has the stray socket open %d times", left)
		}
		// A reload leaves them alone.
		p.mustReload(200, "in_force")
		if who, err := ask(t.Context(), tcp.Addr().String()); err != nil || who != b.addr {
			t.Errorf("after a reload: %q, %v", who, err)
		}
		if code := p.end(syscall.SIGTERM); code != 0 {
			t.Errorf("exit code %d", code)
		}
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the agent has removed the service manager's socket: %v", err)
	}

	// One that is not where its listener is meant to be, and one that is for another process.
	p := startManaged(t, file, nil, []string{"web", "own", "local"}, sockets...)
	if code := p.wait(); code != 3 || !strings.Contains(p.output(), stray.Addr().String()) || !strings.Contains(p.output(), "ListenStream=") {
		t.Errorf("exit code %d", code)
	}
	cmd := exec.Command(program(t, binary), "run", "-config-file", file, "-log-json")
	cmd.Env = append(os.Environ(), "LISTEN_PID=1", "LISTEN_FDS=1", "LISTEN_FDNAMES=web")
	cmd.ExtraFiles = []*os.File{socketOf(t, tcp)}
	if p := startCommand(t, cmd); p.wait() != 3 || !strings.Contains(p.output(), "address already in use") {
		t.Errorf("it has taken a socket that is for another process: exit code %d", p.code)
	}
}

// openSockets returns how often a process has a socket open.
func openSockets(t *testing.T, p *process, ln net.Listener) (n int) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(int(socketOf(t, ln).Fd()), &st); err != nil {
		t.Fatal(err)
	}
	dir := fmt.Sprintf("/proc/%d/fd", p.cmd.Process.Pid)
	fds, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if to, _ := os.Readlink(filepath.Join(dir, fd.Name())); to == fmt.Sprintf("socket:[%d]", st.Ino) {
			n++
		}
	}
	return n
}

const (
	systemdFiles = "../deploy/systemd"
	systemdUnits = "/usr/lib/systemd/system"
)

// tool returns the path of a program of a Debian package.
func tool(t *testing.T, name, debianPackage string) string {
	t.Helper()
	needsServer(t)
	for _, name := range []string{name, "/usr/sbin/" + name, "/sbin/" + name} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Fatalf("there is no %s: install the Debian package %s", name, debianPackage)
	return ""
}

// output runs a program, which must succeed, and returns what it says.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// copyFile copies a file into a directory that it makes.
func copyFile(t *testing.T, from, to string, mode os.FileMode) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(to), 0o755)
	}
	if err == nil {
		err = os.WriteFile(to, text, mode)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// The units are what systemd takes, without a word of warning, and exposed little.
func TestSystemdUnits(t *testing.T) {
	analyze := tool(t, "systemd-analyze", "systemd")
	root := t.TempDir()
	targets, err := filepath.Glob(systemdUnits + "/*.target")
	if err != nil || len(targets) == 0 {
		t.Fatalf("there are no units in %s: install the Debian package systemd", systemdUnits)
	}
	slices, err := filepath.Glob(systemdUnits + "/*.slice")
	if err != nil {
		t.Fatal(err)
	}
	for _, unit := range append(targets, slices...) {
		copyFile(t, unit, filepath.Join(root, unit), 0o644)
	}
	for _, unit := range []string{"gatehouse.service", "gatehouse.socket"} {
		copyFile(t, filepath.Join(systemdFiles, unit), filepath.Join(root, systemdUnits, unit), 0o644)
	}
	copyFile(t, program(t, fastBinary), filepath.Join(root, "usr/bin/gatehouse"), 0o755)
	if says := output(t, analyze, "verify", "--root="+root, "gatehouse.service", "gatehouse.socket"); says != "" {
		t.Errorf("systemd-analyze verify says:\n%s", says)
	}

	// So is the drop-in that docs/security.md has for DynamicUser.
	text, err := os.ReadFile("../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "gatehouse.service.d/user.conf\n")
	dropIn, _, ok := strings.Cut(after, "\n\n")
	if !ok || !strings.Contains(dropIn, "DynamicUser=yes") {
		t.Fatalf("docs/security.md has no drop-in: %q", dropIn)
	}
	dir := filepath.Join(root, systemdUnits, "gatehouse.service.d")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "user.conf"), regexp.MustCompile(`(?m)^    `).ReplaceAllString(dropIn, "")+"\n")
	if says := output(t, analyze, "verify", "--root="+root, "gatehouse.service", "gatehouse.socket"); says != "" {
		t.Errorf("systemd-analyze verify of the unit with DynamicUser says:\n%s", says)
	}
	unit, err := os.ReadFile(filepath.Join(systemdFiles, "gatehouse.service"))
	if err != nil {
		t.Fatal(err)
	}
	for _, caps := range regexp.MustCompile(`(?m)^(?:Ambient|CapabilityBounding).*=(.*)$`).FindAllStringSubmatch(string(unit), -1) {
		if caps[1] != "CAP_NET_BIND_SERVICE" {
			t.Errorf("the unit has %s", caps[0])
		}
	}

	for _, line := range []string{"Type=notify", "NotifyAccess=main", "FileDescriptorStoreMax=1024"} {
		if !strings.Contains(string(unit), "\n"+line+"\n") {
			t.Errorf("the unit has no %s", line)
		}
	}

	says := output(t, analyze, "security", "--offline=true", "--threshold=20", filepath.Join(systemdFiles, "gatehouse.service"))
	level := regexp.MustCompile(`Overall exposure level for gatehouse.service: ([0-9.]+)`).FindStringSubmatch(says)
	if level == nil {
		t.Fatalf("systemd-analyze security says:\n%s", says)
	}
	if n, err := strconv.ParseFloat(level[1], 64); err != nil || n > 2 {
		t.Errorf("the exposure is %s, want 2.0 at most:\n%s", level[1], says)
	}
}

// The unit's user, directories and first configuration are as the agent needs them.
func TestSystemdSurroundings(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	conf := func(name string) string {
		path, err := filepath.Abs(filepath.Join(systemdFiles, name))
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	output(t, tool(t, "systemd-sysusers", "systemd"), "--root="+root, conf("gatehouse.sysusers.conf"))
	passwd, err := os.ReadFile(filepath.Join(root, "etc/passwd"))
	if err != nil || !strings.Contains(string(passwd), "gatehouse:") {
		t.Fatalf("passwd: %s, %v", passwd, err)
	}
	if os.Getuid() != 0 {
		t.Fatal("systemd-tmpfiles gives directories to the user of the agent, which takes root")
	}
	output(t, tool(t, "systemd-tmpfiles", "systemd"), "--root="+root, "--create", conf("gatehouse.tmpfiles.conf"))
	for dir, want := range map[string]os.FileMode{"etc/gatehouse.d": 0o750, "var/lib/gatehouse": 0o700, "var/log/gatehouse": 0o750, "run/gatehouse": 0o755} {
		if fi, err := os.Stat(filepath.Join(root, dir)); err != nil || fi.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want %v", dir, fi, err, want)
		}
	}

	// The files that are shipped are valid, with all that they mention.
	cmd := exec.Command(program(t, fastBinary), "validate", "-config-file", filepath.Join(systemdFiles, "gatehouse.hcl"))
	cmd.Env = append(os.Environ(), variables(t)...)
	cmd.Env = append(cmd.Env, "GATEHOUSE_STATE_DIR="+t.TempDir())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("gatehouse.hcl with gatehouse.env: %v\n%s", err, out)
	}
	example := filepath.Join(t.TempDir(), "example.hcl")
	write(t, example, uncommented(t, "gatehouse.hcl", regexp.MustCompile(`^#(consul|cluster|listener|  |}|$)`)))
	cmd = exec.Command(program(t, fastBinary), "validate", "-config-file", example)
	cmd.Env = append(os.Environ(), "GATEHOUSE_STATE_DIR="+t.TempDir())
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "1 clusters, 1 listeners") {
		t.Errorf("the example of gatehouse.hcl: %v\n%s", err, out)
	}
}

// uncommented returns a shipped file with what it has in comments that are settings.
func uncommented(t *testing.T, name string, setting *regexp.Regexp) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(systemdFiles, name))
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for lines := bufio.NewScanner(strings.NewReader(string(text))); lines.Scan(); {
		line := lines.Text()
		if setting.MatchString(line) {
			line = line[1:]
		}
		fmt.Fprintln(&out, line)
	}
	return out.String()
}

// variables are those of gatehouse.env, the commented ones too, as systemd reads them.
func variables(t *testing.T) (env []string) {
	t.Helper()
	assignment := regexp.MustCompile(`^#?[A-Z_]+=`)
	for line := range strings.Lines(uncommented(t, "gatehouse.env", assignment)) {
		switch line = strings.TrimSpace(line); {
		case line == "" || line[0] == '#':
		case !assignment.MatchString(line):
			t.Errorf("gatehouse.env: %q is no assignment", line)
		default:
			env = append(env, strings.Replace(line, "/etc/gatehouse.d/consul_token", "/dev/null", 1))
		}
	}
	if len(env) == 0 {
		t.Error("gatehouse.env names no variable")
	}
	return env
}
