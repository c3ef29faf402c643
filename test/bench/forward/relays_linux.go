package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// threads is how many a relay has: worker threads or processes, or GOMAXPROCS.
const threads = 2

// world is what a Spec needs to be running.
type world struct {
	Spec
	dir      string
	backend  *process
	port     int      // of the backend
	relay    *process // nil for Direct
	procs    procs    // of the relay
	listen   int      // the relay's port
	admin    int      // of Gatehouse
	cert     certificate
	ringFile string // of the large ring's endpoints
	webFile  string // of the listener's, in Busy
}

// open starts the backend and the relay, and returns when that has connected a
// client. The caller must call close.
func open(ctx context.Context, s Spec) (w *world, err error) {
	w = &world{Spec: s}
	defer func() {
		if err != nil {
			w.close()
			w = nil
		}
	}()
	if w.dir, err = os.MkdirTemp("", "gatehouse-bench-"); err != nil {
		return w, err
	}
	w.ringFile, w.webFile = filepath.Join(w.dir, "ring.hcl"), filepath.Join(w.dir, "web.hcl")
	if w.backend, w.port, err = startBackend(ctx, s.Backend); err != nil {
		return w, err
	}
	if s.Relay == Direct {
		return w, nil
	}
	for _, p := range []*int{&w.listen, &w.admin} {
		if *p, err = freePort(); err != nil {
			return w, err
		}
	}
	if s.encrypted() {
		if w.cert, err = newCertificate(w.dir); err != nil {
			return w, err
		}
	}
	cmd, err := w.command()
	if err != nil {
		return w, err
	}
	cmd.Dir = w.dir
	if s.Relay != Gatehouse { // which has event loops, and Ps for them and for the rest
		cmd.Env = append(os.Environ(), fmt.Sprintf("GOMAXPROCS=%d", threads))
	} else if s.Procs > 0 {
		cmd.Env = append(os.Environ(), fmt.Sprintf("GOMAXPROCS=%d", s.Procs))
	}
	if w.relay, err = start(cmd); err != nil {
		return w, err
	}
	if err := w.relay.until(ctx, func() error { return w.ready(ctx) }); err != nil {
		return w, err
	}
	w.procs, err = family(w.relay.cmd.Process.Pid)
	return w, err
}

func (w *world) close() {
	for _, p := range []*process{w.relay, w.backend} {
		if p != nil {
			p.stop()
		}
	}
	os.RemoveAll(w.dir)
}

// ready says if a client gets its byte back, and all servers are there.
func (w *world) ready(ctx context.Context) error {
	if w.Case == Health {
		return w.probed(ctx)
	}
	if w.Relay == Gatehouse {
		m, err := scrape(ctx, w.admin)
		if err != nil {
			return err
		}
		if n := m[`gatehouse_cluster_ready{cluster="web"}`]; int(n) < w.Servers {
			return fmt.Errorf("%v of %d servers are ready", n, w.Servers)
		}
		if w.rings() && m[`gatehouse_selector_generation{cluster="ring",selector="ring"}`] < 1 {
			return fmt.Errorf("the large ring is not built")
		}
	}
	c, err := net.DialTimeout("tcp4", fmt.Sprintf("127.0.0.1:%d", w.listen), time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	if w.encrypted() {
		c = w.cert.client(c)
	}
	c.SetDeadline(time.Now().Add(time.Second))
	b := []byte{echoes}
	if _, err := c.Write(b); err != nil {
		return err
	}
	_, err = c.Read(b)
	return err
}

// to returns where connection i of the load generator goes.
func (w *world) to(i int) unix.SockaddrInet4 {
	if w.Relay == Direct {
		i %= w.Servers
		return unix.SockaddrInet4{Addr: [4]byte{127, 1, byte(i >> 8), byte(i)}, Port: w.port}
	}
	return unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: w.listen}
}

// server returns the address of server i.
func (w *world) server(i int) string {
	return fmt.Sprintf("127.1.%d.%d:%d", i>>8, i&255, w.port)
}

// checked says if servers are checked.
func (w *world) checked() bool { return !w.idles() && w.Case != Churn }

// room is how many connections the relay is configured for.
func (w *world) room() int {
	if w.idles() {
		return w.Count + 50
	}
	return 2000
}

func (w *world) command() (*exec.Cmd, error) {
	switch w.Relay {
	case Gatehouse:
		return w.gatehouse()
	case HAProxy, HAProxySplice:
		return w.haproxy()
	case Nginx:
		return w.nginx()
	case TCPProxy:
		return exec.Command(w.Exe, fmt.Sprintf("127.0.0.1:%d", w.listen), fmt.Sprint(w.port), fmt.Sprint(w.Servers)), nil
	}
	return nil, fmt.Errorf("%q: %w", w.Relay, errRelay)
}

// write writes a file of the world and returns its path.
func (w *world) write(name, text string) (string, error) {
	path := filepath.Join(w.dir, name)
	return path, os.WriteFile(path, []byte(text), 0o600)
}

func (w *world) gatehouse() (*exec.Cmd, error) {
	if w.Case == Health {
		return w.probing()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "node { id = \"bench\" }\nadmin { address = \"127.0.0.1:%d\" }\nlog { level = \"warn\" }\nrelay { event_loops = %d }\nlimits { max_connections = %d }\n", w.admin, threads, w.room())
	interval := "5s"
	fmt.Fprint(&b, "cluster \"web\" {\n")
	if w.Case == Busy {
		interval = "1s"
		fmt.Fprintf(&b, " discovery \"file\" { path = %q }\n", w.webFile)
	} else {
		fmt.Fprintf(&b, " discovery \"static\" {\n%s }\n", w.endpoints(w.Servers, 0))
	}
	if w.checked() {
		fmt.Fprintf(&b, " health_check \"tcp\" {\n  interval = %q\n  timeout = \"1s\"\n }\n", interval)
	}
	fmt.Fprint(&b, " selector \"ring\" { policy = \"ring_hash\" }\n}\n")
	fmt.Fprintf(&b, "listener \"web\" {\n address = \"127.0.0.1:%d\"\n cluster = \"web\"\n hash_on = \"source_ip\"\n idle_timeout = \"1h\"\n", w.listen)
	if w.encrypted() {
		fmt.Fprintf(&b, " tls {\n  cert_file = %q\n  key_file = %q\n }\n", w.cert.certFile, w.cert.keyFile)
	}
	fmt.Fprint(&b, "}\n")
	if w.rings() {
		fmt.Fprintf(&b, "cluster \"ring\" {\n discovery \"file\" { path = %q }\n selector \"ring\" {\n  policy = \"ring_hash\"\n  minimum_ring_size = %d\n }\n}\n", w.ringFile, w.Points)
		if err := w.churn(0); err != nil {
			return nil, err
		}
	}
	path, err := w.write("gatehouse.hcl", b.String())
	return exec.Command(w.Exe, "run", "-config-file", path), err
}

// ringServers is how many endpoints the large ring has: few, so that what is
// measured is the ring and not the membership.
const ringServers = 100

// endpoints returns a list of n servers, one of them another one for each turn.
func (w *world) endpoints(n, turn int) string {
	var b strings.Builder
	fmt.Fprint(&b, "endpoints = [\n")
	for i := range n {
		if turn > 0 && i == turn%n {
			i += n * (1 + turn%2)
		}
		fmt.Fprintf(&b, " %q,\n", w.server(i))
	}
	fmt.Fprint(&b, "]\n")
	return b.String()
}

// churn writes the file of the large ring's endpoints, and in Busy that of the
// listener's.
func (w *world) churn(turn int) error {
	replace := func(path string, n int) error {
		tmp, err := w.write("tmp", w.endpoints(n, turn))
		if err != nil {
			return err
		}
		return os.Rename(tmp, path)
	}
	if w.Case == Busy {
		if err := replace(w.webFile, w.Servers); err != nil {
			return err
		}
	}
	return replace(w.ringFile, ringServers)
}

func (w *world) haproxy() (*exec.Cmd, error) {
	exe, err := program(w.Relay)
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "global\n nbthread %d\n maxconn %d\n", threads, w.room())
	if w.Relay == HAProxySplice {
		fmt.Fprintf(&b, " tune.pipesize 1048576\n stats socket %s/stats\n", w.dir)
	}
	fmt.Fprint(&b, "defaults\n mode tcp\n timeout connect 5s\n timeout client 1h\n timeout server 1h\n")
	if w.Relay == HAProxySplice {
		fmt.Fprint(&b, " option splice-request\n option splice-response\n")
	}
	fmt.Fprintf(&b, "listen web\n bind 127.0.0.1:%d backlog 4096", w.listen)
	if w.encrypted() {
		fmt.Fprintf(&b, " ssl crt %s ciphersuites %s no-tls-tickets", w.cert.both, cipher)
	}
	fmt.Fprint(&b, "\n balance source\n hash-type consistent\n")
	check := ""
	switch {
	case w.Case == Health && w.Interval == 0:
	case w.Case == Health:
		check = fmt.Sprintf(" check inter %d", w.Interval.Milliseconds())
	case w.checked():
		check = " check inter 5s"
	}
	for i := range w.Servers {
		fmt.Fprintf(&b, " server s%d %s%s\n", i, w.server(i), check)
	}
	path, err := w.write("haproxy.cfg", b.String())
	return exec.Command(exe, "-db", "-f", path), err
}

func (w *world) nginx() (*exec.Cmd, error) {
	exe, err := program(w.Relay)
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "load_module %s;\ndaemon off;\nworker_processes %d;\npid %s/pid;\nlock_file %[3]s/lock;\nerror_log stderr error;\n", nginxStream, threads, w.dir)
	if os.Getuid() == 0 {
		fmt.Fprint(&b, "user root;\n") // the workers' files are in a directory of ours
	}
	fmt.Fprintf(&b, "events { worker_connections %d; }\nstream {\n upstream web {\n  hash $remote_addr consistent;\n", 2*w.room()+100)
	for i := range w.Servers {
		fmt.Fprintf(&b, "  server %s;\n", w.server(i))
	}
	ssl := ""
	if w.encrypted() {
		ssl = " ssl"
	}
	fmt.Fprintf(&b, " }\n server {\n  listen 127.0.0.1:%d%s reuseport backlog=4096;\n  proxy_pass web;\n  proxy_timeout 1h;\n  proxy_half_close on;\n", w.listen, ssl)
	if w.encrypted() {
		fmt.Fprintf(&b, "  ssl_certificate %s;\n  ssl_certificate_key %s;\n  ssl_protocols TLSv1.3;\n  ssl_session_tickets off;\n  ssl_conf_command Ciphersuites %s;\n", w.cert.certFile, w.cert.keyFile, cipher)
	}
	fmt.Fprint(&b, " }\n}\n")
	path, err := w.write("nginx.conf", b.String())
	return exec.Command(exe, "-e", "stderr", "-p", w.dir, "-c", path), err
}

// spliced asks HAProxy how many bytes it has spliced.
func (w *world) spliced() (float64, error) {
	c, err := net.Dial("unix", filepath.Join(w.dir, "stats"))
	if err != nil {
		return 0, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := fmt.Fprintln(c, "show info"); err != nil {
		return 0, err
	}
	b, err := io.ReadAll(c)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		// Its name is misspelt in some versions, as in 2.6.
		name, n, _ := strings.Cut(line, ":")
		if name == "TotalSplicdedBytesOut" || name == "TotalSplicedBytesOut" {
			return strconv.ParseFloat(strings.TrimSpace(n), 64)
		}
	}
	return 0, errors.New("haproxy does not say what it has spliced")
}
