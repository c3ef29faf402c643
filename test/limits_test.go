package test

import (
	"fmt"
	"net"
	"slices"
	"testing"
)

// With all the connections that the descriptors allow, and more clients than
// that, probes go on, the admin interface answers, and what is open lives.
func TestDescriptorReserve(t *testing.T) {
	a := startBackend(t)
	p := start(t, func() (string, error) { return "/bin/sh", nil }, "-c", "ulimit -n 400 && exec \"$@\"", "sh",
		mustBinary(t), "run", "-log-json", "-config-file", configFile(t, static("web", a)+`
  health_check "tcp" {
    interval = "200ms"
    timeout  = "200ms"
  }
}
`+webListener))
	p.awaitReady()
	const fit, clients = (400 - 256) / 2, 200
	if n := p.metric("gatehouse_agent_max_connections"); n != fit {
		t.Fatalf("%v connections fit 400 descriptors, want %d", n, fit)
	}
	addr := p.listener("web")
	var open []net.Conn
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
	if len(open) != fit {
		t.Errorf("%d of %d clients were served, want %d", len(open), clients, fit)
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
	if n := p.metric(`gatehouse_listener_over_limit{limit="limits.max_connections",listener="web"}`); n != clients-fit {
		t.Errorf("%v are counted, want %d", n, clients-fit)
	}
	open[0].Close()
	eventually(t, "there is room again", func() bool { _, err := ask(t.Context(), addr); return err == nil })
	if n := p.metric(fmt.Sprintf("gatehouse_listener_accept_errors{listener=%q}", "web")); n != 0 {
		t.Errorf("%v accepts have failed", n)
	}
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
