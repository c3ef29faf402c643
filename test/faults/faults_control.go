//go:build linux

package main

import (
	"bytes"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"gatehouse.internal/discovery/consul/consultest"
	"gatehouse.internal/discovery/dns/dnstest"
)

// control starts a control plane of that kind at a new address, or at addr. It is
// told about endpoints by say.
func (w *world) control(kind, addr string) *child {
	c := &child{w: w, name: "control plane", args: []string{"control", kind}, addr: addr}
	w.Cleanup(c.kill)
	return c
}

// list is a line for a control plane.
func list(backends ...*child) string {
	var addrs []string
	for _, b := range backends {
		addrs = append(addrs, b.addr)
	}
	return strings.Join(addrs, ",")
}

// eds is the configuration of an agent with a control plane.
func eds(addr string) string {
	return fmt.Sprintf("node { id = %q }\nxds { server_uri = %q }\n", nodeID, addr) + web(`  discovery "eds" {}`, checked)
}

// controlled starts a control plane, three backends of which it lists two, and the
// agent.
func (w *world) controlled() (cp, a, b, c *child) {
	a, b, c = w.three()
	cp = w.control("good", "127.0.0.21:0")
	cp.wants = list(a, b)
	cp.start()
	w.start(eds(cp.addr))
	w.until("both endpoints are ready", func() bool { return w.agent.serves(a, b) })
	return cp, a, b, c
}

// stale waits until the agent says that its endpoints are old.
func (w *world) stale() {
	w.seen("the cluster is stale", func() bool { return w.agent.cluster("web").state == "stale" })
}

// back has the control plane list others when it is back, and waits for them.
func (w *world) back(cp, a, b *child, how func()) {
	w.over(func() { how(); cp.say(list(a, b)) }, "the news of the control plane is in force", func() bool {
		return w.agent.serves(a, b) && w.agent.cluster("web").state == "fresh"
	})
}

func controlKilled(w *world) {
	cp, a, b, c := w.controlled()
	w.begin(cp.kill)
	w.stale()
	w.hold(w.pick(5*time.Second, time.Second))
	w.expect(w.agent.serves(a, b), "the endpoints were not kept")
	w.back(cp, b, c, func() { cp.wants = list(b, c); cp.start() })
}

func controlAway(w *world) {
	a, b, c := w.three()
	cp := w.control("good", "127.0.0.21:0")
	cp.wants = list(a, b)
	cp.start()
	state := filepath.Join(w.dir, "state")
	hcl := fmt.Sprintf("state_dir = %q\n", state) + eds(cp.addr)
	first := w.runAgent(hcl)
	w.until("both endpoints are ready", func() bool { return first.serves(a, b) })
	w.until("what was learnt is written", func() bool {
		files, err := filepath.Glob(filepath.Join(state, "assignments-*.state"))
		return err == nil && files != nil
	})
	w.begin(func() { cp.kill(); first.p.Stop() })
	w.start(hcl)
	w.stale()
	w.expect(w.agent.serves(a, b), "the endpoints of before the restart are not in force")
	w.hold(w.pick(3*time.Second, time.Second))
	w.back(cp, b, c, func() { cp.wants = list(b, c); cp.start() })
}

func controlHung(w *world) {
	cp, a, b, c := w.controlled()
	w.begin(func() { cp.signal(syscall.SIGSTOP) })
	w.hold(w.pick(10*time.Second, 2*time.Second))
	w.expect(w.agent.serves(a, b), "the endpoints were not kept")
	w.expect(w.agent.cluster("web").state == "fresh", "the cluster is %s", w.agent.cluster("web").state)
	w.unseen("the cluster was still called fresh")
	w.back(cp, b, c, func() { cp.signal(syscall.SIGCONT) })
}

func controlFlapping(w *world) {
	cp, a, b, c := w.controlled()
	w.begin(cp.kill)
	w.stale()
	for range int(w.pick(10, 3)) {
		cp.start()
		w.hold(700 * time.Millisecond)
		cp.kill()
		w.hold(300 * time.Millisecond)
	}
	w.expect(w.agent.serves(a, b), "the endpoints were not kept")
	w.back(cp, b, c, func() { cp.wants = list(b, c); cp.start() })
	w.note("%.0f streams were opened anew", w.agent.metric("gatehouse_xds_reconnects"))
}

func controlGarbage(w *world) {
	cp, a, b, c := w.controlled()
	w.begin(cp.kill)
	w.stale()
	for _, kind := range []string{"bytes", "grpc"} {
		bad := w.control(kind, cp.addr)
		bad.start()
		if kind == "grpc" {
			w.until("its resources are refused", func() bool {
				return w.nacks() > 0
			})
		}
		w.hold(w.pick(4*time.Second, time.Second))
		w.expect(w.agent.serves(a, b), "the endpoints were not kept when it answered with %s", kind)
		bad.kill()
	}
	w.note("%.0f responses were refused", w.nacks())
	w.back(cp, b, c, func() { cp.wants = list(b, c); cp.start() })
}

// nacks counts responses that were refused.
func (w *world) nacks() (n float64) {
	for name, v := range w.agent.metrics() {
		if strings.HasPrefix(name, "gatehouse_xds_nacks{") {
			n += v
		}
	}
	return n
}

// shaped stands between the agent and something, and can be slow.
func (w *world) shaped(upstream string) *toxiproxy.Proxy {
	zerolog.SetGlobalLevel(zerolog.Disabled) // toxics have a logger of their own
	srv := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	p := toxiproxy.NewProxy(srv, "shaped", "127.0.0.31:0", upstream)
	w.check(p.Start())
	w.Cleanup(p.Stop)
	return p
}

// toxic adds one, in the words of toxiproxy.
func (w *world) toxic(p *toxiproxy.Proxy, name, stream string, attributes string) {
	_, err := p.Toxics.AddToxicJson(bytes.NewBufferString(fmt.Sprintf(
		`{"name": "%[1]s_%[2]s", "type": "%[1]s", "stream": "%[2]s", "attributes": %[3]s}`, name, stream, attributes)))
	w.check(err)
}

func controlSlow(w *world) {
	a, b, c := w.three()
	cp := w.control("good", "127.0.0.21:0")
	cp.wants = list(a, b)
	cp.start()
	p := w.shaped(cp.addr)
	w.start(eds(p.Listen))
	w.until("both endpoints are ready", func() bool { return w.agent.serves(a, b) })
	w.begin(func() {
		for _, stream := range []string{"upstream", "downstream"} {
			w.toxic(p, "latency", stream, `{"latency": 1500, "jitter": 500}`)
			w.toxic(p, "bandwidth", stream, `{"rate": 1}`) // kB a second
		}
		cp.say(list(b, c))
	})
	w.nothing("an answer that comes late is like one that there is no cause for yet")
	late := w.until("the news is in force", func() bool { return w.agent.serves(b, c) }).Sub(w.began)
	w.note("what it had to say was in force after %.1f s", late.Seconds())
	w.expect(late <= 15*time.Second || !w.spec.Timed, "news took %s", late)
	w.hold(w.pick(3*time.Second, 500*time.Millisecond))
	w.over(func() { p.Toxics.ResetToxics(w.ctx); cp.say(list(a, b, c)) }, "the news is in force", func() bool { return w.agent.serves(a, b, c) })
}

// instance is a backend as an instance of service "web".
func instance(b *child) consultest.Instance {
	host, port, _ := net.SplitHostPort(b.addr)
	var n int
	fmt.Sscan(port, &n)
	return consultest.Instance{Name: "web", ID: "web-" + b.name, Address: host, Port: n}
}

// consul starts three servers and an agent that asks one that does not lead.
func (w *world) consul() (cluster *consultest.Cluster, asked *consultest.Server, a, b, c *child) {
	a, b, c = w.three()
	cluster = consultest.StartCluster(w, 3, consultest.Options{})
	asked = cluster.Follower()
	asked.RegisterMany(instance(a), instance(b))
	w.start(fmt.Sprintf("consul { address = %q }\n", asked.Addr()) + web(`  discovery "consul" {}`, checked))
	w.until("both endpoints are ready", func() bool { return w.agent.serves(a, b) })
	return cluster, asked, a, b, c
}

func consulLeader(w *world) {
	cluster, asked, a, b, c := w.consul()
	leader := cluster.Leader()
	w.begin(leader.Kill)
	w.over(func() {
		cluster.Leader()
		asked.RegisterMany(instance(c))
	}, "what the next leader has taken is in force", func() bool { return w.agent.serves(a, b, c) })
	if at := w.agent.told("", w.began); at.IsZero() {
		w.nothing("followers answer as before, and no warning was logged")
	} else {
		w.out.SeenAs, w.out.DetectMS = "the log has a warning", new(at.Sub(w.began).Milliseconds())
	}
	w.note("(over is from the leader's death on, the election included)")
}

func consulQuorum(w *world) {
	cluster, asked, a, b, c := w.consul()
	var gone []*consultest.Server
	for _, s := range cluster.Servers {
		if s != asked {
			gone = append(gone, s)
		}
	}
	w.begin(func() {
		for _, s := range gone {
			s.Kill()
		}
	})
	w.seen("the agent tells it", func() bool { s := w.agent.cluster("web"); return s.state == "stale" || s.err != "" })
	w.note("told as: %s", w.agent.cluster("web").err)
	w.hold(w.pick(5*time.Second, time.Second))
	w.expect(w.agent.serves(a, b), "the endpoints were not kept")
	w.over(func() {
		for _, s := range gone {
			s.Launch()
		}
		cluster.Leader()
		asked.RegisterMany(instance(c))
	}, "what the leader has taken is in force", func() bool { return w.agent.serves(a, b, c) })
	w.note("(over is from the start of the servers on, the election included)")
}

func dnsBlackHole(w *world) {
	a, b, c := w.three()
	d, other := dnstest.New(w), dnstest.New(w)
	records := func(bs ...*child) (lines []string) {
		lines = []string{"local-ttl=0"}
		for _, x := range bs {
			host, port, _ := net.SplitHostPort(x.addr)
			lines = append(lines, "host-record="+x.name+".test,"+host, "srv-host=_web._tcp.test,"+x.name+".test,"+port+",10,1")
		}
		return lines
	}
	d.Start(records(a, b)...)
	other.Start(records(a, b)...)
	w.start(fmt.Sprintf("dns {\n  nameservers = [\"%s\", \"%s\"]\n  timeout = \"1s\"\n}\n", d.Addr, other.Addr) + web(`  discovery "dns" {
    name        = "_web._tcp.test."
    type        = "srv"
    refresh     = "500ms"
    min_backoff = "500ms"
    max_backoff = "2s"
  }`, checked))
	w.until("both endpoints are ready", func() bool { return w.agent.serves(a, b) })
	w.begin(func() {
		var rules []string
		for _, at := range []uint16{d.Addr.Port(), other.Addr.Port()} {
			rules = append(rules, fmt.Sprintf("udp dport %d drop", at), fmt.Sprintf("tcp dport %d drop", at))
		}
		w.filter(rules...)
	})
	w.stale()
	w.hold(w.pick(10*time.Second, time.Second))
	w.expect(w.agent.serves(a, b), "the endpoints were not kept")
	w.over(func() {
		for _, x := range []*dnstest.Dnsmasq{d, other} {
			x.Stop()
		}
		w.filter()
		for _, x := range []*dnstest.Dnsmasq{d, other} {
			x.Start(records(a, b, c)...)
		}
	}, "the new records are in force", func() bool { return w.agent.serves(a, b, c) && w.agent.cluster("web").state == "fresh" })
}
