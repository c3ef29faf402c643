package dns

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	wire "github.com/miekg/dns"

	"gatehouse.internal/discovery/discoverytest"
	"gatehouse.internal/lbcore"
)

// zone is what DNS has to say; all nameservers of a network share it.
type zone struct {
	mu      sync.Mutex
	records []wire.RR
	rcodes  map[string]int // by name, in place of records
	noSOA   bool           // answers without records have no SOA record
	minTTL  uint32         // of the SOA record
}

// rr parses records in the form of a zone file.
func rr(lines ...string) (all []wire.RR) {
	for _, l := range lines {
		r, err := wire.NewRR(l)
		if err != nil {
			panic(err)
		}
		all = append(all, r)
	}
	return all
}

// set makes these all the records there are.
func (z *zone) set(lines ...string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.records = rr(lines...)
	z.rcodes = nil
}

// fail makes name answer with a code.
func (z *zone) fail(name string, rcode int) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.rcodes == nil {
		z.rcodes = make(map[string]int)
	}
	z.rcodes[name] = rcode
}

// reply answers as a nameserver does that asks for everybody.
func (z *zone) reply(m *wire.Msg) *wire.Msg {
	z.mu.Lock()
	defer z.mu.Unlock()
	r := new(wire.Msg)
	r.SetReply(m)
	r.RecursionAvailable = true
	if len(m.Question) != 1 {
		r.Rcode = wire.RcodeFormatError
		return r
	}
	q := m.Question[0]
	if code, ok := z.rcodes[strings.ToLower(q.Name)]; ok && code != wire.RcodeSuccess {
		r.Rcode = code
		if code == wire.RcodeNameError && !z.noSOA {
			r.Ns = rr(fmt.Sprintf("test. 3600 IN SOA ns.test. root.test. 1 2 3 4 %d", z.minTTL))
		}
		return r
	}
	name, known := q.Name, false
	for range 20 {
		alias := ""
		for _, rec := range z.records {
			h := rec.Header()
			if !strings.EqualFold(h.Name, name) {
				continue
			}
			known = true
			if h.Rrtype == q.Qtype {
				r.Answer = append(r.Answer, wire.Copy(rec))
			} else if c, ok := rec.(*wire.CNAME); ok {
				r.Answer = append(r.Answer, wire.Copy(rec))
				alias = c.Target
			}
		}
		if alias == "" {
			break
		}
		name, known = alias, false
	}
	if q.Qtype == wire.TypeSRV {
		for _, rec := range z.records {
			if t := rec.Header().Rrtype; t == wire.TypeA || t == wire.TypeAAAA {
				r.Extra = append(r.Extra, wire.Copy(rec))
			}
		}
	}
	if !known {
		r.Rcode = wire.RcodeNameError
	}
	if !slices.ContainsFunc(r.Answer, func(x wire.RR) bool { return x.Header().Rrtype == q.Qtype }) && !z.noSOA {
		r.Ns = rr(fmt.Sprintf("test. 3600 IN SOA ns.test. root.test. 1 2 3 4 %d", z.minTTL))
	}
	return r
}

// fit packs r for UDP as nameservers do.
func fit(m, r *wire.Msg, tcp bool) []byte {
	limit := wire.MaxMsgSize
	if !tcp {
		limit = wire.MinMsgSize
		if opt := m.IsEdns0(); opt != nil {
			limit = int(opt.UDPSize())
			r.SetEdns0(4096, false)
		}
	}
	r.Compress = true
	if b, err := r.Pack(); err == nil && len(b) <= limit {
		return b
	}
	t := new(wire.Msg)
	t.MsgHdr, t.Question, t.Truncated = r.MsgHdr, r.Question, true
	b, err := t.Pack()
	if err != nil {
		panic(err)
	}
	return b
}

// asked is a query that a nameserver got.
type asked struct {
	at   time.Time
	q    wire.Question
	tcp  bool
	edns uint16 // the size that it offers, 0 without EDNS0
	from netip.AddrPort
	id   uint16
}

// nameserver is one that a test scripts. Its fields are the test's until it is
// asked; change changes them later.
type nameserver struct {
	zone  *zone
	at    netip.AddrPort
	mu    sync.Mutex
	delay time.Duration
	down  bool // it is silent
	// hook answers in place of the zone, if it does not return nil: with packets,
	// each from an address; the zero one is the nameserver's.
	hook func(m *wire.Msg, tcp bool) []packet
	log  []asked
}

type packet struct {
	data []byte
	from netip.AddrPort
}

func (s *nameserver) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *nameserver) queries() []asked {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.log)
}

// handle returns what the nameserver answers, and after what time.
func (s *nameserver) handle(query []byte, tcp bool, from netip.AddrPort) ([]packet, time.Duration) {
	m := new(wire.Msg)
	if err := m.Unpack(query); err != nil {
		panic(fmt.Sprintf("a query can't be unpacked: %v", err))
	}
	s.mu.Lock()
	a := asked{at: time.Now(), q: m.Question[0], tcp: tcp, from: from, id: m.Id}
	if opt := m.IsEdns0(); opt != nil {
		a.edns = opt.UDPSize()
	}
	s.log = append(s.log, a)
	defer s.mu.Unlock()
	if s.down {
		return nil, 0
	}
	if s.hook != nil {
		if ps := s.hook(m, tcp); ps != nil {
			return ps, s.delay
		}
	}
	return []packet{{data: fit(m, s.zone.reply(m), tcp)}}, s.delay
}

// says returns a hook that changes the zone's answer.
func (s *nameserver) says(change func(m, r *wire.Msg)) func(*wire.Msg, bool) []packet {
	return func(m *wire.Msg, tcp bool) []packet {
		r := s.zone.reply(m)
		change(m, r)
		return []packet{{data: fit(m, r, tcp)}}
	}
}

// network is nameservers in memory, whose time is that of testing/synctest.
type network struct {
	zone *zone

	mu      sync.Mutex
	servers map[netip.AddrPort]*nameserver
	ports   uint16 // of sockets
	open    int
	most    int
}

func newNetwork(servers int) *network {
	n := &network{zone: &zone{minTTL: 5}, servers: make(map[netip.AddrPort]*nameserver)}
	for i := range servers {
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, 100, byte(i + 1)}), 53)
		n.servers[at] = &nameserver{zone: n.zone, at: at, delay: time.Millisecond}
	}
	return n
}

func (n *network) server(i int) *nameserver { return n.servers[n.list()[i]] }

func (n *network) list() (all []netip.AddrPort) {
	for at := range n.servers {
		all = append(all, at)
	}
	slices.SortFunc(all, netip.AddrPort.Compare)
	return all
}

// queries counts what all nameservers were asked.
func (n *network) queries() (all []asked) {
	for _, at := range n.list() {
		all = append(all, n.servers[at].queries()...)
	}
	slices.SortStableFunc(all, func(a, b asked) int { return a.at.Compare(b.at) })
	return all
}

func (n *network) client(t *testing.T, cfg Config) *Client {
	t.Helper()
	if cfg.Nameservers == nil {
		cfg.Nameservers = n.list()
	}
	if cfg.ResolvConf == "" {
		cfg.ResolvConf = t.TempDir() + "/none"
	}
	c, err := newClient(cfg, transport{n.packet, n.stream})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (n *network) packet(context.Context, string) (net.PacketConn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ports++
	n.open++
	n.most = max(n.most, n.open)
	return &socket{n: n, in: make(chan packet, 100), closed: make(chan struct{}), alarm: newAlarm(),
		at: netip.AddrPortFrom(netip.MustParseAddr("192.0.2.200"), 10000+n.ports)}, nil
}

func (n *network) stream(ctx context.Context, at netip.AddrPort) (net.Conn, error) {
	s := n.servers[at]
	if s == nil {
		return nil, errors.New("connection refused")
	}
	here, there := net.Pipe()
	go func() {
		defer there.Close()
		for {
			var size [2]byte
			if _, err := io.ReadFull(there, size[:]); err != nil {
				return
			}
			b := make([]byte, binary.BigEndian.Uint16(size[:]))
			if _, err := io.ReadFull(there, b); err != nil {
				return
			}
			ps, delay := s.handle(b, true, netip.AddrPort{})
			timer := time.NewTimer(delay)
			<-timer.C
			for _, p := range ps {
				if _, err := there.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(p.data))), p.data...)); err != nil {
					return
				}
			}
		}
	}()
	return here, nil
}

// socket is a UDP socket.
type socket struct {
	n      *network
	at     netip.AddrPort
	in     chan packet
	once   sync.Once
	closed chan struct{}
	alarm  *alarm
}

func (s *socket) WriteTo(b []byte, to net.Addr) (int, error) {
	server := s.n.servers[to.(*net.UDPAddr).AddrPort()]
	if server == nil {
		return len(b), nil // nobody is there
	}
	ps, delay := server.handle(slices.Clone(b), false, s.at)
	time.AfterFunc(delay, func() {
		for _, p := range ps {
			if !p.from.IsValid() {
				p.from = server.at
			}
			select {
			case s.in <- p:
			default:
			}
		}
	})
	return len(b), nil
}

func (s *socket) ReadFrom(b []byte) (int, net.Addr, error) {
	select {
	case p := <-s.in:
		return copy(b, p.data), net.UDPAddrFromAddrPort(p.from), nil
	case <-s.closed:
		return 0, nil, net.ErrClosed
	case <-s.alarm.rings():
		return 0, nil, os.ErrDeadlineExceeded
	}
}

func (s *socket) Close() error {
	s.once.Do(func() {
		close(s.closed)
		s.alarm.set(time.Time{})
		s.n.mu.Lock()
		s.n.open--
		s.n.mu.Unlock()
	})
	return nil
}

func (s *socket) LocalAddr() net.Addr                { return net.UDPAddrFromAddrPort(s.at) }
func (s *socket) SetDeadline(t time.Time) error      { s.alarm.set(t); return nil }
func (s *socket) SetReadDeadline(t time.Time) error  { s.alarm.set(t); return nil }
func (s *socket) SetWriteDeadline(t time.Time) error { return nil }

// alarm is a deadline.
type alarm struct {
	mu    sync.Mutex
	rung  chan struct{}
	timer *time.Timer
}

func newAlarm() *alarm { return &alarm{rung: make(chan struct{})} }

func (a *alarm) rings() chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.rung
}

func (a *alarm) set(t time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.timer != nil {
		a.timer.Stop()
		a.timer = nil
	}
	switch d := time.Until(t); {
	case t.IsZero():
	case d <= 0:
		a.ring()
	default:
		a.timer = time.AfterFunc(d, func() {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.ring()
		})
	}
}

// ring ends all waits; what is over stays over, which is enough here.
func (a *alarm) ring() {
	select {
	case <-a.rung:
	default:
		close(a.rung)
	}
}

// watching is a source that is watched.
type watching struct {
	t   *testing.T
	c   *Client
	src *Source
	rec *discoverytest.Recorder
}

// watch watches a source until the test ends. A bubble of synctest must have ended
// it before: call end.
func (c *Client) watch(t *testing.T, q Query) (w *watching, end func()) {
	t.Helper()
	return c.watchWith(t, q, func(*Source) {})
}

// watchWith is watch of a source that is prepared.
func (c *Client) watchWith(t *testing.T, q Query, prepare func(*Source)) (w *watching, end func()) {
	t.Helper()
	src, err := c.Source(q, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	prepare(src)
	w = &watching{t: t, c: c, src: src, rec: &discoverytest.Recorder{Within: time.Hour}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- src.Watch(ctx, w.rec) }()
	return w, func() {
		t.Helper()
		cancel()
		if err := <-done; err != context.Canceled {
			t.Errorf("Watch returned %v", err)
		}
	}
}

// state returns the last set, and the failure after it.
func (w *watching) state() (set lbcore.Set, known bool, err error) {
	for _, r := range w.rec.Reports() {
		if r.Err != nil {
			err = r.Err
		} else {
			set, known, err = r.Set, true, nil
		}
	}
	return set, known, err
}

// wants checks what the source says by now: the endpoints as text, with weight and
// priority where they are not 1 and 0, and a part of the failure.
func (w *watching) wants(fails string, endpoints ...string) {
	w.t.Helper()
	set, known, err := w.state()
	got := texts(set)
	if !known {
		got = []string{"unknown"}
	}
	if !slices.Equal(got, endpoints) {
		w.t.Errorf("endpoints: got %q, want %q; reports:\n%s", got, endpoints, w.rec)
	}
	switch {
	case fails == "" && err != nil:
		w.t.Errorf("it fails: %v", err)
	case fails != "" && (err == nil || !strings.Contains(err.Error(), fails)):
		w.t.Errorf("failure: got %v, want one with %q", err, fails)
	}
}

func texts(set lbcore.Set) (all []string) {
	for _, e := range set.All() {
		s := e.Addr.String()
		if e.Weight != 1 || e.Priority != 0 {
			s += fmt.Sprintf(" w%d p%d", e.Weight, e.Priority)
		}
		all = append(all, s)
	}
	return all
}

// web asks for the addresses of web.test.
func web() Query { return Query{Name: "web.test.", Type: A, Port: 80, Hold: DefaultHold()} }

// service asks for the SRV records of _web._tcp.test.
func service() Query {
	return Query{Name: "_web._tcp.test.", Type: SRV, Targets: A, Hold: DefaultHold()}
}

// pass lets time go by in a bubble of synctest, and waits until what is due then is
// done.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func contextOf(t *testing.T) (context.Context, context.CancelFunc) {
	return context.WithCancel(t.Context())
}
