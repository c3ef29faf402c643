package test

import (
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// With all the connections that the descriptors allow, and more clients than
// that, probes go on, the admin interface answers, and what is open lives; most
// of them are readers that have stopped in the middle of a flood, for which the
// agent would have pipes.
func TestDescriptorReserve(t *testing.T) {
	a := startBackend(t)
	flood := startFlood(t)
	p := start(t, func() (string, error) { return "/bin/sh", nil }, "-c", "ulimit -n 400 && exec \"$@\"", "sh",
		mustBinary(t), "run", "-log-json", "-config-file", configFile(t, static("web", a)+`
  health_check "tcp" {
    interval = "200ms"
    timeout  = "200ms"
  }
}
`+webListener+fmt.Sprintf(`
cluster "flood" {
  discovery "static" { endpoints = [%q] }
}
listener "flood" {
  address = "127.0.0.1:0"
  cluster = "flood"
}
`, flood)))
	p.awaitReady()
	const fit, clients = (400 - 256 - 400/8) / 2, 200
	if n := p.metric("gatehouse_agent_max_connections"); n != fit {
		t.Fatalf("%v connections fit 400 descriptors, want %d", n, fit)
	}
	addr := p.listener("web")
	var open []net.Conn
	const stopped = fit - 10
	var slow []net.Conn
	for range stopped {
		c, err := net.Dial("tcp", p.listener("flood"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(2 * patience))
		slow = append(slow, c)
	}
	eventually(t, "there are too few pipes", func() bool {
		for _, c := range slow {
			if _, err := io.CopyN(io.Discard, c, 1<<20); err != nil {
				t.Fatal(err)
			}
		}
		return p.metric("gatehouse_agent_extra_descriptors_refused") > 0
	})
	for range clients {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			continue // reset before it was connected
		}
		defer c.Close()
		if _, err := askOn(c); err == nil {
			open = append(open, c)
		}
	}
	if len(open) != fit-stopped {
		t.Errorf("%d of %d clients were served, want %d", len(open), clients, fit-stopped)
	}
	if n := p.metric("gatehouse_agent_extra_descriptors"); n < 32 || n > 64 {
		t.Errorf("%v descriptors beyond two a connection, want at most 64", n)
	}
	probes := p.metric(`gatehouse_health_probes{kind="tcp",result="passed"}`)
	eventually(t, "probes go on", func() bool { return p.metric(`gatehouse_health_probes{kind="tcp",result="passed"}`) > probes+3 })
	if ready := p.cluster("web").ready; !slices.Equal(ready, []string{a.addr}) {
		t.Errorf("ready are %v", ready)
	}
	for _, c := range open {
		if who, err := askOn(c); err != nil || who != a.addr {
			t.Fatalf("an open connection: %q, %v", who, err)
		}
	}
	if n := p.metric(`gatehouse_listener_over_limit{limit="limits.max_connections",listener="web"}`); n != clients-fit+stopped {
		t.Errorf("%v are counted, want %d", n, clients-fit+stopped)
	}
	open[0].Close()
	eventually(t, "there is room again", func() bool { _, err := ask(t.Context(), addr); return err == nil })
	if n := p.metric(fmt.Sprintf("gatehouse_listener_accept_errors{listener=%q}", "web")); n != 0 {
		t.Errorf("%v accepts have failed", n)
	}
}

// Probes of more silent endpoints than there are descriptors leave those of clients,
// of the admin interface and of other checks alone.
func TestSilentEndpointsLeaveDescriptors(t *testing.T) {
	a := startBackend(t)
	var silent []string
	for range 500 { // they listen, and nobody accepts
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		silent = append(silent, fmt.Sprintf("%q", ln.Addr()))
	}
	p := start(t, func() (string, error) { return "/bin/sh", nil }, "-c", "ulimit -n 400 && exec \"$@\"", "sh",
		mustBinary(t), "run", "-log-json", "-config-file", configFile(t, static("web", a)+`
  health_check "tcp" {
    interval = "200ms"
    timeout  = "200ms"
  }
}
`+webListener+fmt.Sprintf(`
cluster "silent" {
  required = false
  discovery "static" { endpoints = [%s] }
  health_check "tcp" {
    interval = "1s"
    timeout  = "1s"
    receive  = ["hello"]
  }
}
`, strings.Join(silent, ", "))))
	p.awaitReady()
	if n := p.metric("gatehouse_health_workers"); n != 400/8 {
		t.Errorf("%v probes at once, want %d", n, 400/8)
	}
	eventually(t, "many probes have timed out", func() bool {
		if who, err := ask(t.Context(), p.listener("web")); err != nil || who != a.addr {
			t.Fatalf("a client was answered by %q, %v", who, err)
		}
		return p.metric(`gatehouse_health_probes{kind="tcp",result="timeout"}`) >= 200
	})
	if n := p.metric(`gatehouse_health_probes{kind="tcp",result="local"}`); n != 0 {
		t.Errorf("%v probes had no descriptor", n)
	}
}

// startFlood starts an endpoint that sends without end.
func startFlood(t *testing.T) (addr string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				for b := make([]byte, 64<<10); ; {
					if _, err := c.Write(b); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() { ln.Close(); wg.Wait() })
	return ln.Addr().String()
}

func mustBinary(t *testing.T) string {
	t.Helper()
	needsServer(t)
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// 9,500 clients that say nothing where a PROXY header or a ClientHello is due are
// bounded and counted, and harm nobody: when some have left there is room for who
// speaks, and other listeners know nothing of it.
func TestSilentClients(t *testing.T) {
	const clients = 9500
	a := startBackend(t)
	for name, tc := range map[string]struct {
		waits, limit string
		held         int
	}{
		"PROXY headers, bounded": {`proxy_protocol { accept_from = ["127.0.0.0/8"] }`, "proxy_protocol.max_pending", 1024},
		"PROXY headers": {`proxy_protocol {
    accept_from = ["127.0.0.0/8"]
    timeout     = "1h"
    max_pending = 7000
  }`, "proxy_protocol.max_pending", 7000},
		"ClientHellos": {`hash_on = "sni"
  tls_inspector {
    timeout     = "1h"
    max_pending = 7000
  }`, "tls_inspector.max_pending", 7000},
	} {
		t.Run(name, func(t *testing.T) {
			p := startFastAgent(t, static("web", a)+"}\n"+webListener+fmt.Sprintf(`
listener "silent" {
  address = "127.0.0.1:0"
  cluster = "web"
  %s
}
`, tc.waits))
			p.awaitReady()
			addr := p.listener("silent")
			silent := make([]net.Conn, 0, clients)
			for range clients {
				if c, err := net.Dial("tcp", addr); err == nil { // else it was reset before it was connected
					silent = append(silent, c)
				}
			}
			pending := fmt.Sprintf(`gatehouse_listener_pending{limit=%q,listener="silent"}`, tc.limit)
			over := fmt.Sprintf(`gatehouse_listener_over_limit{limit=%q,listener="silent"}`, tc.limit)
			eventually(t, "all are counted", func() bool { return int(p.metric(pending)) == tc.held })
			eventually(t, "the others are counted", func() bool { return int(p.metric(over)) == clients-tc.held })
			if who, err := ask(t.Context(), p.listener("web")); err != nil || who != a.addr {
				t.Errorf("at another listener: %q, %v", who, err)
			}
			for _, c := range silent[:100] {
				c.Close()
			}
			eventually(t, "there is room again", func() bool { return int(p.metric(pending)) == tc.held-100 })
			c, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if tc.limit == "proxy_protocol.max_pending" {
				if _, err := io.WriteString(c, "PROXY UNKNOWN\r\n"); err != nil {
					t.Fatal(err)
				}
			}
			if who, err := askOn(c); err != nil || who != a.addr {
				t.Errorf("at the same listener: %q, %v", who, err)
			}
			c.Close()
			for _, c := range silent[100:] {
				c.Close()
			}
			eventually(t, "nobody is waited for any more", func() bool { return p.metric(pending) == 0 })
			if code := p.end(syscall.SIGTERM); code != 0 {
				t.Errorf("exit code %d", code)
			}
		})
	}
}
