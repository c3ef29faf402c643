package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	wire "github.com/miekg/dns"

	"gatehouse.internal/discovery/dns"
)

// dnsDelays are what the nameservers take; the first dies and comes back.
var dnsDelays = []time.Duration{time.Millisecond, 20 * time.Millisecond, 200 * time.Millisecond}

// dnsStagger is after what time our client asks the next nameserver: its default.
const dnsStagger = 150 * time.Millisecond

// dnsWorkers is how many look-ups are under way at once.
const dnsWorkers = 4

// fixedTimeout is how long a fixed-order client waits for a nameserver: the default
// of resolv.conf(5), which is net.Resolver's too.
const fixedTimeout = 5 * time.Second

const (
	goResolver = "net.Resolver"
	fixedOrder = "fixed order"
)

// dnsPhases are the times of a measurement.
var dnsPhases = []string{"before", "during", "after"}

// benchDNS measures look-ups by three nameservers of which the best dies and comes
// back.
func benchDNS(ctx context.Context, r *runner) (rows []row) {
	subjects := []string{ours, goResolver, fixedOrder}
	var jobs []job
	for _, s := range subjects {
		jobs = append(jobs, job{spec: spec{Kind: "dns", Subject: s, EachMS: int(r.lookups.Milliseconds())}, guess: 3*r.lookups + fixedTimeout})
	}
	outs := r.rounds(ctx, jobs)
	goal := float64(2*(dnsDelays[1]+dnsStagger)) / float64(time.Millisecond)
	for _, phase := range dnsPhases {
		what := map[string]string{"before": "all alive", "during": "the best is dead", "after": "it is back"}[phase]
		for _, q := range []string{"p50", "p99"} {
			for i, s := range subjects {
				x, ok := outs[i].row("look-up, "+what+", "+q, s, "ms", phase+" "+q)
				if ok && s == ours && phase == "during" && q == "p99" {
					x = x.atMost(goal)
				}
				rows = append(rows, x)
			}
		}
		x, ok := outs[0].row("share of the best, "+what, ours, "", phase+" share")
		if ok && phase == "after" {
			x = x.atLeast(0.5)
		}
		rows = append(rows, x)
	}
	return rows
}

// nameserver answers every question for an address after some time.
type nameserver struct {
	conn  net.PacketConn
	delay time.Duration
	dead  atomic.Bool
}

func (n *nameserver) addr() netip.AddrPort { return n.conn.LocalAddr().(*net.UDPAddr).AddrPort() }

// serve answers until the socket is closed.
func (n *nameserver) serve() {
	for buf := make([]byte, 4096); ; {
		size, from, err := n.conn.ReadFrom(buf)
		if err != nil {
			return
		}
		m := new(wire.Msg)
		if n.dead.Load() || m.Unpack(buf[:size]) != nil || len(m.Question) != 1 {
			continue
		}
		r := new(wire.Msg)
		r.SetReply(m)
		r.RecursionAvailable = true
		if m.Question[0].Qtype == wire.TypeA {
			r.Answer = []wire.RR{&wire.A{
				Hdr: wire.RR_Header{Name: m.Question[0].Name, Rrtype: wire.TypeA, Class: wire.ClassINET, Ttl: 1}, A: net.IPv4(192, 0, 2, 1),
			}}
		}
		packed, err := r.Pack()
		if err != nil {
			continue
		}
		time.AfterFunc(n.delay, func() { n.conn.WriteTo(packed, from) })
	}
}

// takeDNS measures one client.
func takeDNS(ctx context.Context, s spec) (values, error) {
	var servers []*nameserver
	var list []netip.AddrPort
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, d := range dnsDelays {
		conn, err := net.ListenPacket("udp4", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		n := &nameserver{conn: conn, delay: d}
		servers, list = append(servers, n), append(list, n.addr())
		wg.Go(n.serve)
	}
	lookup, share, err := dnsClient(s.Subject, list)
	if err != nil {
		return nil, err
	}
	each := time.Duration(s.EachMS) * time.Millisecond
	if _, err := lookups(ctx, lookup, each/2); err != nil { // learn
		return nil, err
	}
	vs := make(values)
	for _, phase := range dnsPhases {
		servers[0].dead.Store(phase == "during")
		if phase == "after" { // it has to be noticed
			if _, err := lookups(ctx, lookup, each/2); err != nil {
				return nil, err
			}
		}
		took, err := lookups(ctx, lookup, each)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", phase, err)
		}
		slices.Sort(took)
		vs[phase+" p50"] = float64(quantile(took, 0.5)) / float64(time.Millisecond)
		vs[phase+" p99"] = float64(quantile(took, 0.99)) / float64(time.Millisecond)
		if share != nil {
			vs[phase+" share"] = share()
		}
	}
	return vs, nil
}

// lookups has the workers look names up, one after the other, for that time and
// once at least, and returns what each look-up took.
func lookups(ctx context.Context, lookup func(context.Context, string) error, d time.Duration) (took []time.Duration, err error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	end := time.Now().Add(d)
	for range dnsWorkers {
		wg.Go(func() {
			for first := true; first || time.Now().Before(end); first = false {
				began := time.Now()
				lerr := lookup(ctx, fmt.Sprintf("n%d.test.", names.Add(1))) // each its own: nobody shares an answer
				now := time.Now()
				mu.Lock()
				took = append(took, now.Sub(began))
				err = errors.Join(err, lerr)
				mu.Unlock()
				if lerr != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	return took, err
}

var names atomic.Uint64

// dnsClient returns what looks a name up, and what says how many look-ups begin with
// the best nameserver, if anything does.
func dnsClient(subject string, list []netip.AddrPort) (lookup func(context.Context, string) error, share func() float64, err error) {
	switch subject {
	case ours:
		c, err := dns.New(dns.Config{Nameservers: list, Stagger: dnsStagger})
		if err != nil {
			return nil, nil, err
		}
		lookup = func(ctx context.Context, name string) error {
			_, err := c.LookupAddrs(ctx, dns.A, name)
			return err
		}
		share = func() float64 {
			for _, n := range c.Stats().Nameservers {
				if n.Address == list[0] {
					return n.Share
				}
			}
			return 0
		}
	case goResolver:
		// Its nameservers are those of resolv.conf, of which it asks one after the
		// other, each for 5 s: whichever it means, the nth try of a look-up is at our
		// nth nameserver.
		type tries struct{}
		r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			n := 0
			if t, ok := ctx.Value(tries{}).(*atomic.Int64); ok {
				n = int(t.Add(1)-1) % len(list)
			}
			return new(net.Dialer).DialContext(ctx, network, list[n].String())
		}}
		lookup = func(ctx context.Context, name string) error {
			_, err := r.LookupNetIP(context.WithValue(ctx, tries{}, new(atomic.Int64)), "ip4", name)
			return err
		}
	case fixedOrder:
		c := &wire.Client{Timeout: fixedTimeout}
		lookup = func(ctx context.Context, name string) error {
			m := new(wire.Msg)
			m.SetQuestion(name, wire.TypeA)
			var errs []error
			for _, at := range list {
				if _, _, err := c.ExchangeContext(ctx, m, at.String()); err == nil {
					return nil
				} else {
					errs = append(errs, err)
				}
			}
			return errors.Join(errs...)
		}
	default:
		return nil, nil, fmt.Errorf("no client %q", subject)
	}
	return lookup, share, nil
}
