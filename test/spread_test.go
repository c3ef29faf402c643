package test

import (
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Where chance decides, the bounds are six standard deviations or more from what
// is expected: less than one run in a thousand million fails for bad luck.

// entry is an endpoint of a list in HCL.
func entry(b *backend, attributes string) string {
	return fmt.Sprintf("{ address = %q, %s }", b.addr, attributes)
}

// fixed is a cluster of these endpoints, and a listener by its name.
func fixed(name, settings string, entries ...string) string {
	return fmt.Sprintf(`
cluster %[1]q {
  discovery "static" { endpoints = [%[2]s] }
%[3]s
}
`, name, strings.Join(entries, ", "), settings) + listenerFor(name)
}

func listenerFor(cluster string) string {
	return fmt.Sprintf(`
listener %[1]q {
  address = "127.0.0.1:0"
  cluster = %[1]q
  hash_on = "source_ip"
}
`, cluster)
}

// landings makes n connections, one after the other, and counts by who answers.
func landings(t *testing.T, addr string, n int) map[string]int {
	t.Helper()
	counts := make(map[string]int)
	for range n {
		who, err := ask(t.Context(), addr)
		if err != nil {
			t.Fatal(err)
		}
		counts[who]++
	}
	return counts
}

// landsOnly makes connections and checks that they land on all of want and on
// nobody else. Each of want is due a quarter of them or more.
func landsOnly(t *testing.T, addr string, want ...*backend) {
	t.Helper()
	var addrs []string
	for _, b := range want {
		addrs = append(addrs, b.addr)
	}
	got := landings(t, addr, 100)
	if !slices.Equal(slices.Sorted(maps.Keys(got)), sorted(addrs...)) {
		t.Errorf("connections landed on %v, want %v", got, addrs)
	}
}

// Most endpoints fail their checks: with a panic threshold all get connections,
// without one only the healthy endpoint does.
func TestPanicThreshold(t *testing.T) {
	a, b, c, d := startBackend(t), startBackend(t), startBackend(t), startBackend(t)
	check := fmt.Sprintf(`
  health_check "tcp" {
    interval            = "1s"
    unhealthy_threshold = 2
    send                = "who\n"
    receive             = [%q]
  }
`, a.addr) // as all but a answer something else
	list := []string{entry(a, ""), entry(b, ""), entry(c, ""), entry(d, "")}
	p := startAgent(t, fixed("panics", "panic_threshold = 50"+check, list...)+
		fixed("calm", check, list...)+fixed("late", "panic_threshold = 20"+check, list...))
	eventually(t, "all but one have failed their checks", func() bool {
		_, body := p.get("/clusters")
		return strings.Count(body, "::health_flags::/failed_active_hc\n") == 9 && slices.Equal(p.cluster("calm").ready, []string{a.addr})
	})
	landsOnly(t, p.listener("panics"), a, b, c, d)
	landsOnly(t, p.listener("calm"), a)
	landsOnly(t, p.listener("late"), a)
}

// Connections stay near: in the zone of the node, else in its region, and leave
// that only when nobody is left there.
func TestPreferLocal(t *testing.T) {
	near, region, far := startBackend(t), startBackend(t), startBackend(t)
	p := startAgent(t, `
node {
  locality {
    region = "eu"
    zone   = "eu-1a"
  }
}
`+fixed("web", `
  prefer_local = true
  health_check "tcp" {
    interval = "500ms"
    timeout  = "500ms"
  }
`,
		entry(far, `locality = { region = "us", zone = "us-1a" }`),
		entry(region, `locality = { region = "eu", zone = "eu-1b" }`),
		entry(near, `locality = { region = "eu", zone = "eu-1a" }`)))
	eventually(t, "all are ready", func() bool { return len(p.cluster("web").ready) == 3 })
	web := p.listener("web")
	landsOnly(t, web, near)
	near.kill()
	eventually(t, "the near endpoint is down", func() bool { return slices.Contains(p.cluster("web").unready, near.addr) })
	landsOnly(t, web, region)
	region.kill()
	eventually(t, "the region is down", func() bool { return slices.Contains(p.cluster("web").unready, region.addr) })
	landsOnly(t, web, far)
	p.servedAll()
}

// A locality of one endpoint gets three times what one of three endpoints gets,
// if the weights of localities say so and count.
func TestLocalityWeighted(t *testing.T) {
	a, b, c, d := startBackend(t), startBackend(t), startBackend(t), startBackend(t)
	const zone = `locality = { zone = "1" }, locality_weight = 1`
	list := []string{entry(a, zone), entry(b, zone), entry(c, zone), entry(d, `locality = { zone = "2" }, locality_weight = 3`)}
	p := startAgent(t, fixed("weighted", "locality_weighted = true", list...)+fixed("flat", "", list...))
	p.awaitReady()
	const n = 300
	if got := landings(t, p.listener("weighted"), n); got[d.addr] < n/2 || len(got) != 4 {
		t.Errorf("of %d connections three quarters are due to %s: %v", n, d.addr, got)
	}
	if got := landings(t, p.listener("flat"), n); got[d.addr] > n/2 || len(got) != 4 {
		t.Errorf("of %d connections a quarter is due to %s: %v", n, d.addr, got)
	}
}

// A newcomer begins with a small part of its weight and ends with all of it.
func TestSlowStart(t *testing.T) {
	a, b := startBackend(t), startBackend(t)
	file := filepath.Join(t.TempDir(), "web.hcl")
	list := func(ready ...string) {
		t.Helper()
		write(t, file, fmt.Sprintf(`endpoints = ["%s"]`, strings.Join(ready, `", "`)))
	}
	list(a.addr)
	// Until nearly nine tenths of the window it is a tenth.
	p := startAgent(t, fmt.Sprintf(`
cluster "web" {
  discovery "file" { path = %q }
  slow_start {
    window     = "3s"
    aggression = 0.05
  }
}
`, file)+listenerFor("web"))
	p.awaitReady()
	web := p.listener("web")
	share := regexp.MustCompile(`(?m)^web::` + regexp.QuoteMeta(b.addr) + `::gatehouse_slow_start_share::(\S+)$`)
	shown := func() float64 {
		t.Helper()
		_, body := p.get("/clusters")
		m := share.FindStringSubmatch(body)
		if m == nil {
			return 1
		}
		f, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	// The first endpoint has to have passed its own window: a newcomer beside
	// one as new as itself is not slow. If it has not, there is another go.
	const n = 120
	eventually(t, "a newcomer is slow", func() bool {
		list(a.addr)
		eventually(t, "the newcomer has gone", func() bool { return slices.Equal(p.cluster("web").ready, []string{a.addr}) })
		generation := p.cluster("web").generation
		list(a.addr, b.addr)
		eventually(t, "the newcomer is served", func() bool { return p.cluster("web").generation > generation })
		before := shown()
		got := landings(t, web, n)
		if before > 0.2 || shown() > 0.2 {
			return false
		}
		if got[b.addr] > 48 { // a sixth, 20, at most is due to it
			t.Errorf("the newcomer got %d of %d connections", got[b.addr], n)
		}
		return true
	})
	eventually(t, "the newcomer has all of its weight", func() bool { return shown() == 1 })
	if got := landings(t, web, n); got[b.addr] < 49 {
		t.Errorf("after its window the newcomer got %d of %d connections", got[b.addr], n)
	}
}

// One source address keeps many connections open: all are at one endpoint, or,
// with a factor, at all of them within the bound.
func TestHashBalanceFactor(t *testing.T) {
	a, b, c, d := startBackend(t), startBackend(t), startBackend(t), startBackend(t)
	list := []string{entry(a, ""), entry(b, ""), entry(c, ""), entry(d, "")}
	sticky := func(name, more string) string {
		return fixed(name, "selector \"sticky\" {\n  policy = \"ring_hash\"\n"+more+"}", list...)
	}
	p := startAgent(t, sticky("bounded", "hash_balance_factor = 125\n")+sticky("free", ""))
	p.awaitReady()
	const n = 40
	hold := func(name string) map[string]int {
		t.Helper()
		counts := make(map[string]int)
		for range n {
			conn, err := net.Dial("tcp", p.listener(name))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close() })
			who, err := askOn(conn)
			if err != nil {
				t.Fatal(err)
			}
			counts[who]++
		}
		return counts
	}
	if got := hold("free"); len(got) != 1 {
		t.Errorf("without a bound one source address led to %v", got)
	}
	// A quarter of 125 % of 40 is 12.5; up to the bound, 13, one more is let in.
	for who, m := range hold("bounded") {
		if m > 14 {
			t.Errorf("%s has %d of %d connections", who, m, n)
		}
	}
}

// An endpoint that has not answered its first check is missing, and connections
// spill over to the next priority, unless new ones don't count.
func TestIgnoreNewHosts(t *testing.T) {
	a, spare := startBackend(t), startBackend(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	const check = `
  health_check "tcp" {
    interval = "1m"
    timeout  = "1m"
    send     = "who\n"
    receive  = ["127.0.0.1"]
  }
`
	late := fmt.Sprintf("%q", ln.Addr()) // accepts nothing yet
	p := startAgent(t, fixed("counts", check, entry(a, ""), late, entry(spare, "priority = 1"))+
		fixed("ignores", "ignore_new_hosts_until_first_hc = true"+check, entry(a, ""), late, entry(spare, "priority = 1")))
	for _, name := range []string{"counts", "ignores"} {
		eventually(t, "all others are ready", func() bool { return slices.Equal(p.cluster(name).ready, sorted(a.addr, spare.addr)) })
	}
	landsOnly(t, p.listener("counts"), a, spare) // 70 % and 30 %
	landsOnly(t, p.listener("ignores"), a)
	b := startBackendAt(t, ln)
	for _, name := range []string{"counts", "ignores"} {
		eventually(t, "the new endpoint is ready", func() bool { return slices.Contains(p.cluster(name).ready, b.addr) })
		landsOnly(t, p.listener(name), a, b)
	}
}

// The heavy endpoint of two is down: by number half of a priority is there, by
// weight a tenth.
func TestWeightedPriorityHealth(t *testing.T) {
	a, b, spare := startBackend(t), startBackend(t), startBackend(t)
	list := []string{entry(a, "weight = 1"), entry(b, `weight = 9, health_status = "unhealthy"`), entry(spare, "priority = 1")}
	p := startAgent(t, fixed("weights", "weighted_priority_health = true", list...)+fixed("numbers", "", list...))
	p.awaitReady()
	const n = 300
	if got := landings(t, p.listener("weights"), n); got[spare.addr] < n/2 || got[b.addr] > 0 {
		t.Errorf("by weights 86 %% of %d connections are due to %s: %v", n, spare.addr, got)
	}
	if got := landings(t, p.listener("numbers"), n); got[spare.addr] > n/2 || got[b.addr] > 0 {
		t.Errorf("by numbers 30 %% of %d connections are due to %s: %v", n, spare.addr, got)
	}
}

// A cluster of the control plane panics with less than half of its endpoints
// available, if it doesn't say otherwise.
func TestXDSPanicThreshold(t *testing.T) {
	all := []*backend{startBackend(t), startBackend(t), startBackend(t), startBackend(t)}
	cp := newControl(t)
	cp.start()
	list := func(healthy int) {
		t.Helper()
		web, never := edsCluster("web", "web", clusterv3.Cluster_ROUND_ROBIN), edsCluster("never", "web", clusterv3.Cluster_ROUND_ROBIN)
		web.HealthChecks, never.HealthChecks = nil, nil
		never.CommonLbConfig = &clusterv3.Cluster_CommonLbConfig{HealthyPanicThreshold: &typev3.Percent{Value: 0}}
		la := assignment(t, "web", all[0].addr, all[1].addr, all[2].addr, all[3].addr)
		for _, e := range la.Endpoints[0].LbEndpoints[healthy:] {
			e.HealthStatus = corev3.HealthStatus_UNHEALTHY
		}
		cp.set(web, never, la)
	}
	list(1)
	p := startAgent(t, cp.node(listenerFor("web")+listenerFor("never")))
	p.awaitReady()
	settled := func(healthy int) {
		t.Helper()
		eventually(t, fmt.Sprintf("%d endpoints are ready", healthy), func() bool {
			return len(p.cluster("web").ready) == healthy && len(p.cluster("never").ready) == healthy
		})
	}
	settled(1)
	landsOnly(t, p.listener("web"), all...)
	landsOnly(t, p.listener("never"), all[0])
	list(2)
	settled(2)
	landsOnly(t, p.listener("web"), all[:2]...)
	landsOnly(t, p.listener("never"), all[:2]...)
	if got := cp.nacks(); got != nil {
		t.Errorf("NACKs: %q", got)
	}
}

// EDS says when connections spill over to the next priority.
func TestXDSOverprovisioning(t *testing.T) {
	a, b, spare := startBackend(t), startBackend(t), startBackend(t)
	cp := newControl(t)
	cp.start()
	list := func(factor uint32) {
		t.Helper()
		web := edsCluster("web", "web", clusterv3.Cluster_ROUND_ROBIN)
		web.HealthChecks = nil
		la := assignment(t, "web", a.addr, b.addr)
		la.Endpoints[0].LbEndpoints[1].HealthStatus = corev3.HealthStatus_UNHEALTHY
		next := assignment(t, "web", spare.addr).Endpoints[0]
		next.Priority = 1
		la.Endpoints = append(la.Endpoints, next)
		if factor > 0 {
			la.Policy = &endpointv3.ClusterLoadAssignment_Policy{OverprovisioningFactor: wrapperspb.UInt32(factor)}
		}
		cp.set(web, la)
	}
	list(200)
	p := startAgent(t, cp.node(listenerFor("web")))
	p.awaitReady()
	takes := func(percent int) {
		t.Helper()
		line := fmt.Sprintf("web::gatehouse_load::default::priority=0 distance=0 endpoints=2 healthy=%d%% degraded=0%% panic=false\n", percent)
		eventually(t, fmt.Sprintf("the first priority takes %d %%", percent), func() bool {
			_, body := p.get("/clusters")
			return strings.Contains(body, line)
		})
	}
	takes(100)
	landsOnly(t, p.listener("web"), a)
	list(100)
	takes(50)
	landsOnly(t, p.listener("web"), a, spare)
	list(0)
	takes(70)
	landsOnly(t, p.listener("web"), a, spare)
	if got := cp.nacks(); got != nil {
		t.Errorf("NACKs: %q", got)
	}
}
