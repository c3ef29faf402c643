package test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"

	"gatehouse.internal/internal/tlsconf/tlstest"
)

// askFrom asks from an address of this machine, 127.0.0.host.
func askFrom(t *testing.T, host byte, addr string) string {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, host)}}
	conn, err := d.DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	who, err := askOn(conn)
	if err != nil {
		t.Fatalf("127.0.0.%d: %v", host, err)
	}
	return who
}

// A client whose backend is gone goes to the same second one again and again, and
// to the same whether that is learnt by a refused dial or by a health check. The
// others stay where they are.
func TestStickyFailover(t *testing.T) {
	for _, policy := range []string{"ring_hash", "maglev"} {
		t.Run(policy, func(t *testing.T) {
			const hosts = 24
			backends := []*backend{startBackend(t), startBackend(t), startBackend(t), startBackend(t)}
			p := startAgent(t, static("web", backends...)+fmt.Sprintf(`
  selector "sticky" { policy = %q }
  health_check "tcp" {
    interval            = "2s"
    timeout             = "1s"
    unhealthy_threshold = 2
  }
}
listener "web" {
  address = "127.0.0.1:0"
  cluster = "web"
  hash_on = "source_ip"
}
`, policy))
			p.awaitReady()
			addr := p.listener("web")
			first, second := make(map[byte]string), make(map[byte]string)
			for host := byte(1); host <= hosts; host++ {
				first[host] = askFrom(t, host, addr)
			}
			gone := backends[2]
			gone.kill()
			moved := 0
			round := func(when string) {
				t.Helper()
				for host := byte(1); host <= hosts; host++ {
					who := askFrom(t, host, addr)
					switch {
					case first[host] != gone.addr:
						if who != first[host] {
							t.Errorf("%s: 127.0.0.%d went from %s to %s", when, host, first[host], who)
						}
					case second[host] == "":
						second[host] = who
						moved++
					case who != second[host] || who == gone.addr:
						t.Errorf("%s: 127.0.0.%d went to %s and to %s", when, host, second[host], who)
					}
				}
			}
			round("once")
			round("refused")
			eventually(t, "the backend is unhealthy", func() bool { return len(p.cluster("web").ready) == len(backends)-1 })
			round("unhealthy")
			if moved == 0 {
				t.Error("nobody had to move")
			}
		})
	}
}

// Connections are shared over clusters by weight.
func TestWeightedClusters(t *testing.T) {
	a, b := startBackend(t), startBackend(t)
	p := startAgent(t, static("a", a)+"}\n"+static("b", b)+`}
listener "web" {
  address = "127.0.0.1:0"
  weighted_cluster "a" { weight = 3 }
  weighted_cluster "b" { weight = 1 }
}
`)
	p.awaitReady()
	addr := p.listener("web")
	for range 400 {
		askFrom(t, 1, addr)
	}
	if n := a.accepted.Load(); n < 230 || n > 370 || n+b.accepted.Load() != 400 { // 8 standard deviations
		t.Errorf("%d and %d connections, want about 300 and 100", n, b.accepted.Load())
	}
	if _, body := p.get("/listeners?format=json"); !strings.Contains(strings.Join(strings.Fields(body), ""), `"weighted_clusters":[{"name":"a","weight":3},{"name":"b","weight":1}]`) {
		t.Errorf("the listener is shown as\n%s", body)
	}
}

// TLS passes through to the backend that its server name leads to; a client that
// speaks something else is served too.
func TestServerNameSticks(t *testing.T) {
	ca := tlstest.NewCA(t, "test")
	var names []string
	for i := range 12 {
		names = append(names, fmt.Sprintf("site-%d.internal", i))
	}
	cert := ca.Issue(t, tlstest.Leaf{Names: names}).TLS(t)
	var backends []*backend
	for range 3 {
		plain, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		backends = append(backends, startBackendAt(t, tls.NewListener(plain, &tls.Config{Certificates: []tls.Certificate{cert}})))
	}
	p := startAgent(t, static("web", backends...)+`
  selector "sticky" { policy = "maglev" }
}
listener "web" {
  address = "127.0.0.1:0"
  cluster = "web"
  hash_on = "sni"
}
`)
	p.awaitReady()
	addr := p.listener("web")
	owners := make(map[string]string)
	for range 3 {
		for _, name := range names {
			c, err := tls.Dial("tcp", addr, &tls.Config{RootCAs: ca.Pool(), ServerName: name})
			if err != nil {
				t.Fatal(err)
			}
			who, err := askOn(c)
			c.Close()
			if err != nil {
				t.Fatal(err)
			}
			if first := owners[name]; first != "" && first != who {
				t.Errorf("%s went to %s and to %s", name, first, who)
			}
			owners[name] = who
		}
	}
	different := make(map[string]bool)
	for _, who := range owners {
		different[who] = true
	}
	if len(different) < 2 {
		t.Errorf("all names went to %v", different)
	}
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	fmt.Fprint(c, "GET / HTTP/1.1\r\n\r\n")
	if answer, err := io.ReadAll(c); len(answer) > 0 || err != nil { // a backend has hung up on it; to be refused would be a reset
		t.Errorf("a client without TLS got %q, %v", answer, err)
	}
	eventually(t, "hellos are counted", func() bool {
		return p.metric(`gatehouse_listener_client_hellos{listener="web",result="sni_found"}`) == float64(3*len(names)) &&
			p.metric(`gatehouse_listener_client_hellos{listener="web",result="tls_not_found"}`) == 1
	})
}

// namespaceEnv tells the test binary that it is in a network namespace of its own.
const namespaceEnv = "GATEHOUSE_TEST_NAMESPACE"

// inNamespace runs a test in a network namespace of its own, whose loopback is up.
func inNamespace(t *testing.T, test func(*testing.T)) {
	t.Helper()
	needsServer(t)
	if os.Getenv(namespaceEnv) != "" {
		shell(t, "ip link set lo up")
		test(t)
		return
	}
	for _, program := range []string{"ip", "iptables"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("%v: the test needs root and the Debian packages iproute2 and iptables", err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), namespaceEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()+" ") {
		t.Fatalf("in a network namespace, which needs root: %v\n%s", err, out)
	}
}

func shell(t *testing.T, line string) {
	t.Helper()
	words := strings.Fields(line)
	if out, err := exec.CommandContext(t.Context(), words[0], words[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
}

// What a client had connected to before iptables redirected it is told to the
// endpoint, and chosen by.
func TestOriginalDst(t *testing.T) {
	inNamespace(t, testOriginalDst)
}

func testOriginalDst(t *testing.T) {
	shell(t, "ip addr add 192.0.2.1/32 dev lo")
	shell(t, "ip route add default dev lo")
	heard := make(chan string, 10)
	var addrs []string
	for range 3 {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ln.Close() })
		addrs = append(addrs, fmt.Sprintf("%q", ln.Addr()))
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				c.SetDeadline(time.Now().Add(patience))
				if h, err := proxyproto.Read(bufio.NewReader(c)); err != nil {
					heard <- err.Error()
				} else {
					heard <- h.DestinationAddr.String() + " at " + ln.Addr().String()
				}
				c.Close()
			}
		}()
	}
	p := startAgent(t, `
cluster "web" {
  discovery "static" { endpoints = [`+strings.Join(addrs, ", ")+`] }
  selector "sticky" { policy = "ring_hash" }
  proxy_protocol { version = 2 }
}
listener "web" {
  address      = "127.0.0.1:0"
  cluster      = "web"
  hash_on      = "destination"
  original_dst = true
}
`)
	p.awaitReady()
	_, port, err := net.SplitHostPort(p.listener("web"))
	if err != nil {
		t.Fatal(err)
	}
	shell(t, "iptables -w -t nat -A OUTPUT -p tcp -d 203.0.113.0/24 -j REDIRECT --to-ports "+port)
	at := make(map[string]string)
	for range 3 {
		for i := range 9 {
			to := fmt.Sprintf("203.0.113.%d:443", i+1)
			c, err := net.DialTimeout("tcp", to, patience)
			if err != nil {
				t.Fatal(err)
			}
			said, where, _ := strings.Cut(<-heard, " at ")
			if c.Close(); said != to {
				t.Errorf("the endpoint was told %q, want %s", said, to)
			}
			if first := at[to]; first != "" && first != where {
				t.Errorf("%s went to %s and to %s", to, first, where)
			}
			at[to] = where
		}
	}
	different := make(map[string]bool)
	for _, where := range at {
		different[where] = true
	}
	if len(different) < 2 {
		t.Errorf("all destinations went to %v", different)
	}
}
