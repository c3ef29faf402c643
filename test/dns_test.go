package test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"gatehouse.internal/discovery/dns/dnstest"
)

// The agent takes endpoints from a real nameserver, beside one that is dead: it
// follows changes, keeps what it knows while nobody answers, and shows the
// nameservers. A static list behind the name takes what that can't.
func TestDNS(t *testing.T) {
	needsServer(t)
	a, b, spare := startBackend(t), startBackend(t), startBackend(t)
	d, dead := dnstest.New(t), dnstest.New(t) // the second is never started
	port := func(addr string) string { return addr[strings.LastIndexByte(addr, ':')+1:] }
	records := func(backends ...*backend) []string {
		lines := []string{"local-ttl=0", "host-record=here.test,127.0.0.1"}
		for _, x := range backends {
			lines = append(lines, "srv-host=_web._tcp.test,here.test,"+port(x.addr)+",10,1")
		}
		return lines
	}
	d.Start(records(a)...)
	p := startAgent(t, fmt.Sprintf(`
dns {
  nameservers = ["%s", "%s"]
  stagger     = "20ms"
  timeout     = "500ms"
}
cluster "web" {
  mode = "priority"
  discovery "dns" {
    name        = "_web._tcp.test."
    type        = "srv"
    refresh     = "50ms"
    min_backoff = "50ms"
    max_backoff = "100ms"
  }
  discovery "static" { endpoints = ["%s"] }
}
`, d.Addr, dead.Addr, spare.addr)+webListener)
	p.awaitReady()
	tr := startTraffic(t, p.listener("web"))
	tr.lands(t, a)

	d.Stop()
	d.Start(records(a, b)...)
	eventually(t, "the second backend is seen", func() bool {
		return slices.Equal(p.cluster("web").ready, sorted(a.addr, b.addr, spare.addr))
	})
	tr.lands(t, a, b)

	d.Stop()
	eventually(t, "the outage is told", func() bool { return strings.Contains(p.cluster("web").err, "no answer in time") })
	if got := p.cluster("web").ready; !slices.Equal(got, sorted(a.addr, b.addr, spare.addr)) {
		t.Errorf("ready during the outage: %q", got)
	}
	tr.lands(t, a, b)

	d.Start(records(b)...)
	eventually(t, "the first backend has left", func() bool {
		return slices.Equal(p.cluster("web").ready, sorted(b.addr, spare.addr)) && p.cluster("web").state == "fresh"
	})
	tr.lands(t, b)
	tr.stop()
	tr.noErrors(t)

	for path, wants := range map[string][]string{
		"/clusters":             {"gatehouse_nameserver::default::" + d.Addr.String(), "web::gatehouse_discovery::0::dns::fresh endpoints=1", "web::gatehouse_discovery::1::static::fresh endpoints=1"},
		"/clusters?format=json": {`"nameservers"`, d.Addr.String(), dead.Addr.String(), `"latency_seconds"`, `"kind": "dns"`},
		"/stats/prometheus":     {"gatehouse_nameserver_share{", "gatehouse_nameserver_weight{", "gatehouse_nameserver_latency{", "gatehouse_nameserver_late{", "gatehouse_nameserver_failures{", "gatehouse_dns_lookups "},
	} {
		eventually(t, path+" shows the nameservers", func() bool {
			_, body := p.get(path)
			return !slices.ContainsFunc(wants, func(w string) bool { return !strings.Contains(body, w) })
		})
	}
}
