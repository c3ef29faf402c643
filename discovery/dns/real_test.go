package dns

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	wire "github.com/miekg/dns"

	"gatehouse.internal/discovery"
	"gatehouse.internal/discovery/discoverytest"
	"gatehouse.internal/discovery/dns/dnstest"
	"gatehouse.internal/lbcore"
)

// serve answers on real sockets, UDP and TCP of one port on loopback, until the
// test ends.
func serve(t *testing.T, s *nameserver) netip.AddrPort {
	t.Helper()
	udp, tcp := dnstest.Listen(t)
	s.at = udp.LocalAddr().(*net.UDPAddr).AddrPort()
	handler := wire.HandlerFunc(func(w wire.ResponseWriter, m *wire.Msg) {
		query, err := m.Pack()
		if err != nil {
			return
		}
		_, isTCP := w.RemoteAddr().(*net.TCPAddr)
		ps, delay := s.handle(query, isTCP, sender(w.RemoteAddr()))
		<-time.After(delay)
		for _, p := range ps {
			w.Write(p.data)
		}
	})
	var wg sync.WaitGroup
	servers := []*wire.Server{{PacketConn: udp, Handler: handler, UDPSize: wire.MaxMsgSize}, {Listener: tcp, Handler: handler}}
	for _, server := range servers {
		started := make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		wg.Go(func() { server.ActivateAndServe() })
		<-started
	}
	t.Cleanup(func() {
		for _, server := range servers {
			server.Shutdown()
		}
		wg.Wait()
	})
	return s.at
}

// quick is a Query whose times are short.
func quick(q Query) Query {
	q.MinTTL, q.Refresh = 5*time.Millisecond, 20*time.Millisecond
	q.MinBackoff, q.MaxBackoff = 5*time.Millisecond, 20*time.Millisecond
	q.Hold = Hold{NXDomain: time.Millisecond, NoData: time.Millisecond}
	return q
}

// lines are the records of endpoints.
func (q Query) lines(eps []lbcore.Endpoint) (lines []string) {
	for _, e := range eps {
		at := e.Addr.AddrPort()
		if q.Type == SRV {
			target := strings.ReplaceAll(at.Addr().String(), ".", "-") + ".test."
			lines = append(lines, fmt.Sprintf("%s 0 IN SRV 1 %d %d %s", q.Name, e.Weight, at.Port(), target),
				// Not asked for again: it would be gone before its SRV record is.
				fmt.Sprintf("%s 600 IN A %s", target, at.Addr()))
		} else {
			lines = append(lines, fmt.Sprintf("%s 0 IN A %s", q.Name, at.Addr()))
		}
	}
	return lines
}

// The suite of all sources, by real sockets: with two misses as by default, and
// with one, where nothing lingers.
func TestConformance(t *testing.T) {
	for name, q := range map[string]Query{
		"a":    {Name: "web.test.", Type: A, Port: 80},
		"srv":  {Name: "_web._tcp.test.", Type: SRV, Targets: A},
		"dual": {Name: "web.test.", Type: AAAAA, Port: 80},
		"tcp":  {Name: "web.test.", Type: A, Port: 80, TCP: true},
	} {
		for misses := 1; misses <= 2; misses++ {
			q := quick(q)
			q.Misses = misses
			t.Run(fmt.Sprintf("%s, %d", name, misses), func(t *testing.T) {
				s := &nameserver{zone: new(zone)}
				at := serve(t, s)
				discoverytest.Run(t, discoverytest.Harness{
					// Addresses of one name have no weights, and those of SRV records are
					// added up.
					NoDuplicates: true,
					Lingers:      misses > 1,
					New: func(t *testing.T) (discovery.Source, discoverytest.World) {
						s.zone.set(q.lines(discoverytest.First())...)
						s.change(func() { s.hook = nil })
						c, err := New(Config{Nameservers: []netip.AddrPort{at}, ResolvConf: filepath.Join(t.TempDir(), "none"), Timeout: 10 * time.Second, Attempts: 1})
						if err != nil {
							t.Fatal(err)
						}
						src, err := c.Source(q, nil, nil)
						if err != nil {
							t.Fatal(err)
						}
						return src, discoverytest.World{
							Set: func(eps []lbcore.Endpoint) { s.zone.set(q.lines(eps)...) },
							Break: func() {
								s.change(func() { s.hook = s.says(func(_, r *wire.Msg) { r.Answer, r.Rcode = nil, wire.RcodeServerFailure }) })
							},
							Heal: func() { s.change(func() { s.hook = nil }) },
						}
					},
				})
			})
		}
	}
}

// A nameserver on real sockets with delay, loss, truncation and lies beside two
// others.
func TestRealSockets(t *testing.T) {
	z := new(zone)
	var lines, want []string
	for i := range 200 {
		lines = append(lines, fmt.Sprintf("web.test. 0 IN A 192.0.2.%d", i))
		want = append(want, fmt.Sprintf("192.0.2.%d:80", i))
	}
	z.set(lines...)
	bad, good := &nameserver{zone: z}, &nameserver{zone: z}
	n := 0
	bad.hook = func(m *wire.Msg, tcp bool) []packet {
		n++
		r := z.reply(m)
		switch n % 5 {
		case 0: // loss
			return []packet{}
		case 1: // a lie, and then the truth
			r.Id++
			r.Answer = rr("web.test. 0 IN A 203.0.113.66")
			return []packet{{data: fit(m, r, tcp)}, {data: fit(m, z.reply(m), tcp)}}
		case 2:
			r.Rcode, r.Answer = wire.RcodeServerFailure, nil
			return []packet{{data: fit(m, r, tcp)}}
		case 3: // garbage behind the question
			return []packet{{data: append(fit(m, r, false)[:26], 0xc0, 0x0c, 1)}}
		}
		return nil // truncated, as by UDP it has to be
	}
	c, err := New(Config{Nameservers: []netip.AddrPort{serve(t, bad), serve(t, good)}, Stagger: 20 * time.Millisecond, Timeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	q := quick(web())
	q.Name = "web.test."
	src, err := c.Source(q, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := contextOf(t)
	rec := new(discoverytest.Recorder)
	var wg sync.WaitGroup
	wg.Go(func() { src.Watch(ctx, rec) })
	defer wg.Wait()
	defer cancel()
	at := -1
	for range 40 {
		at = rec.Wait(t, "the whole set", at+1, func(r discoverytest.Report) bool { return r.Err == nil })
		if got := texts(rec.Reports()[at].Set); !slices.Equal(got, want) {
			t.Fatalf("report %d: %d endpoints", at, len(got))
		}
	}
	if st := c.Stats(); st.Nameservers[0].TCP+st.Nameservers[1].TCP == 0 || st.Nameservers[0].Queries == 0 || st.Nameservers[1].Queries == 0 {
		t.Errorf("%+v", st)
	}
}

// A real dnsmasq: addresses of both families, SRV records, aliases, names that
// aren't there, a large answer, and its end and return.
func TestDnsmasq(t *testing.T) {
	d := dnstest.New(t)
	records := []string{
		"local-ttl=0",
		"host-record=web.test,192.0.2.1,2001:db8::1",
		"host-record=a.test,192.0.2.11", "host-record=b.test,192.0.2.12",
		"srv-host=_web._tcp.test,a.test,8001,10,3", "srv-host=_web._tcp.test,b.test,8002,20,5",
		"srv-host=_none._tcp.test", "cname=alias.test,web.test", "txt-record=text.test,x",
	}
	for i := range 120 {
		records = append(records, fmt.Sprintf("host-record=big.test,198.51.100.%d", i+1))
	}
	d.Start(records...)
	c, err := New(Config{Nameservers: []netip.AddrPort{d.Addr}, Search: []string{"test"}, Timeout: time.Second, Attempts: 1})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	ctx, cancel := contextOf(t)
	defer wg.Wait()
	defer cancel()
	watch := func(q Query) *discoverytest.Recorder {
		src, err := c.Source(quick(q), nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		rec := new(discoverytest.Recorder)
		wg.Go(func() { src.Watch(ctx, rec) })
		return rec
	}
	sets := func(rec *discoverytest.Recorder, from int, want ...string) int {
		t.Helper()
		return rec.Wait(t, fmt.Sprint(want), from, func(r discoverytest.Report) bool {
			return r.Err == nil && slices.Equal(texts(r.Set), want)
		})
	}
	webs := watch(Query{Name: "web", Type: AAAAA, Port: 80})
	aliases := watch(Query{Name: "alias.test.", Type: A, Port: 81})
	srvs := watch(Query{Name: "_web._tcp.test.", Type: SRV})
	none := watch(Query{Name: "_none._tcp.test.", Type: SRV})
	missing := watch(Query{Name: "missing.test.", Type: A, Port: 80})
	text := watch(Query{Name: "text.test.", Type: A, Port: 80})
	big := watch(Query{Name: "big.test.", Type: A, Port: 80})

	sets(webs, 0, "192.0.2.1:80", "[2001:db8::1]:80")
	sets(aliases, 0, "192.0.2.1:81")
	sets(srvs, 0, "192.0.2.11:8001 w3 p0", "192.0.2.12:8002 w5 p1")
	sets(none, 0)
	sets(missing, 0)
	sets(text, 0)
	big.Wait(t, "120 endpoints", 0, func(r discoverytest.Report) bool { return r.Err == nil && r.Set.Len() == 120 })
	if n := c.Stats().Nameservers[0]; n.TCP == 0 {
		t.Errorf("no answer came by TCP: %+v", n)
	}

	d.Stop()
	at := webs.WaitFail(t, 0, "no answer in time")
	d.Start("local-ttl=0", "host-record=web.test,192.0.2.2")
	sets(webs, at, "192.0.2.2:80")
	for i, r := range webs.Reports() {
		if r.Err == nil && r.Set.Len() == 0 {
			t.Errorf("report %d is of no endpoints:\n%s", i, webs)
		}
	}
}
