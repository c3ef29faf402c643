package test

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Counters go on while a cluster has other settings, and while it is gone; when it comes
// again they go on from there. Nothing of them is counted twice.
func TestCountersOverReloads(t *testing.T) {
	needsServer(t)
	one := startBackend(t)
	file := filepath.Join(t.TempDir(), "gatehouse.hcl")
	at := freePorts(t, 1)[0]
	config := func(with string) {
		write(t, file, "admin { address = \"127.0.0.1:0\" }\ndrain_timeout = \"1s\"\n"+with)
	}
	web := func(more string) string {
		return fmt.Sprintf("%s%s}\nlistener \"web\" {\n  address = %q\n  cluster = \"web\"\n}\n", static("web", one), more, at)
	}
	config(web(""))
	p := startAgentWith(t, "run", "-config-file", file, "-log-json")
	p.awaitReady()
	use := func(n int) {
		t.Helper()
		for range n {
			c, err := net.Dial("tcp", at)
			if err != nil {
				t.Fatal(err)
			}
			if who, err := askOn(c); err != nil || who != one.addr {
				t.Fatalf("%q, %v", who, err)
			}
			c.Close()
		}
	}
	counted := func(what string, want float64) {
		t.Helper()
		for _, name := range []string{
			`gatehouse_cluster_connections{cluster="web"}`, `gatehouse_cluster_connect_time_count{cluster="web"}`,
			`gatehouse_cluster_connect_time_bucket{cluster="web",le="+Inf"}`, `gatehouse_cluster_first_byte_time_count{cluster="web"}`,
			`gatehouse_listener_connections{listener="web"}`,
		} {
			eventually(t, fmt.Sprintf("%s: %s is %v", what, name, want), func() bool { return p.metric(name) == want })
		}
	}
	use(5)
	counted("at first", 5)
	config(web("  max_connect_attempts = 2\n"))
	p.mustReload(200, "in_force")
	use(2)
	counted("with other settings", 7)
	config("")
	p.mustReload(200, "in_force")
	counted("while it is gone", 7)
	config(web(""))
	p.mustReload(200, "in_force")
	counted("when it has come again", 7)
	use(9) // more than the one before
	counted("and serves", 16)
}

// An agent sends what it counts to the servers that its configuration names.
func TestMetricsAreSent(t *testing.T) {
	needsServer(t)
	statsd, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer statsd.Close()
	socket := filepath.Join(t.TempDir(), "dsd")
	dogstatsd, err := net.ListenPacket("unixgram", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer dogstatsd.Close()
	statsite, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer statsite.Close()
	startAgent(t, fmt.Sprintf(`
telemetry {
  statsd_address   = %q
  dogstatsd_addr   = "unix://%s"
  dogstatsd_tags   = ["env:blue"]
  statsite_address = %q
  prefix_filter    = ["+edge.agent"]
  filter_default   = false
  metrics_prefix   = "edge"
}
`, statsd.LocalAddr(), socket, statsite.Addr()))
	until := time.Now().Add(patience)
	for who, pc := range map[string]net.PacketConn{"edge.agent.ready:1|g\n": statsd, "edge.agent.ready:1|g|#env:blue\n": dogstatsd} {
		pc.SetReadDeadline(until)
		buf := make([]byte, 1<<16)
		for all := ""; !strings.Contains(all, who); {
			n, _, err := pc.ReadFrom(buf)
			if err != nil {
				t.Fatalf("%v: %q", err, all)
			}
			if all += string(buf[:n]); strings.Contains(all, "edge.gate.") {
				t.Errorf("what is filtered is sent: %q", all)
			}
		}
	}
	for all := ""; !strings.Contains(all, "edge.agent.ready:1|g\n"); {
		statsite.(*net.TCPListener).SetDeadline(until)
		c, err := statsite.Accept()
		if err != nil {
			t.Fatalf("%v: %q", err, all)
		}
		c.SetReadDeadline(until)
		buf := make([]byte, 1<<16)
		for err == nil {
			var n int
			n, err = c.Read(buf)
			all += string(buf[:n])
		}
		c.Close()
	}
}
