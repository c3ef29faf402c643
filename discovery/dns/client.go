package dns

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse.internal/discovery"
	"gatehouse.internal/internal/contain"
	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/adaptive"
)

// maxLookups is how many look-ups run at once by the same nameservers, and
// maxTargetLookups how many of these are for the targets of one SRV name: if nobody
// answers for them, others get their turn. Each has a socket for every nameserver that
// it waits for.
const (
	maxLookups       = 256
	maxTargetLookups = 32
)

// lookupLimit bounds one look-up, with all names and aliases that it leads to. It
// leaves time for one round by nameservers that take maxTimeout.
const lookupLimit = maxTimeout + 10*time.Second

// Client asks DNS for all sources of a process. What is known of a nameserver
// serves all of them. Make one with New. Its methods may be called from anywhere.
type Client struct {
	cfg  atomic.Pointer[settled]
	log  *slog.Logger
	bugs *contain.Panics
	tr   transport
	draw func() uint64  // random; nil is adaptive's
	rand func() float64 // from 0 to less than 1
	def  *pool          // of Config's nameservers

	lookups, failures atomic.Int64

	// The mutex is held for the making of a list of nameservers at most.
	mu      sync.Mutex
	watched map[*watch]bool // all that run
	view    *lbcore.View    // all nameservers of all pools
	servers map[netip.AddrPort]*server
	pools   []*pool // the default one first
}

// New returns a Client, and reads resolv.conf. Mistakes are those of
// Config.Validate; that resolv.conf can't be read is none.
func New(cfg Config) (*Client, error) { return newClient(cfg, sockets) }

func newClient(cfg Config, tr transport) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("dns: %w", err)
	}
	c := &Client{
		log: cfg.Logger, bugs: cfg.Panics, tr: tr, rand: rand.Float64,
		view:    lbcore.NewView("nameservers", new(lbcore.Hosts), lbcore.ViewConfig{}),
		servers: make(map[netip.AddrPort]*server), watched: make(map[*watch]bool),
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	c.cfg.Store(settle(cfg))
	c.def = c.join(nil) // for as long as the Client lives
	c.def.settings()
	return c, nil
}

// settled is a Config with its defaults. It is never written.
type settled struct {
	Config
	servers []netip.AddrPort // in order, each once; nil: those of resolv.conf
}

func settle(cfg Config) *settled {
	if cfg.ResolvConf == "" {
		cfg.ResolvConf = DefaultResolvConf
	}
	if cfg.Stagger == 0 {
		cfg.Stagger = defaultStagger
	}
	return &settled{cfg, ordered(cfg.Nameservers)}
}

// ordered returns list in order, each of it once; nil if it is empty.
func ordered(list []netip.AddrPort) (all []netip.AddrPort) {
	for _, at := range list {
		if at, err := ParseServer(at.String()); err == nil { // 0.0.0.0 becomes 127.0.0.1
			all = append(all, at)
		}
	}
	slices.SortFunc(all, netip.AddrPort.Compare)
	return slices.Compact(all)
}

// Set has look-ups from now on be as cfg says, but for its Logger, and all sources
// look anew at once: the answers that they have may be those of nameservers that
// should not be asked any more. What is known of nameservers that stay is kept. The
// error is that of Config.Validate: then nothing has changed.
func (c *Client) Set(cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("dns: %w", err)
	}
	c.cfg.Store(settle(cfg))
	c.mu.Lock()
	pools := slices.Clone(c.pools)
	for _, p := range pools {
		p.uses++ // stays meanwhile
	}
	c.mu.Unlock()
	for _, p := range pools {
		p.renew()
		c.leave(p)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for w := range c.watched {
		select {
		case w.renewed <- struct{}{}:
		default:
		}
	}
	return nil
}

// watching notes that w runs, or that it has ended.
func (c *Client) watching(w *watch, runs bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if runs {
		c.watched[w] = true
	} else {
		delete(c.watched, w)
	}
}

func (c *Client) rank() adaptive.Config { return adaptive.Config{Rand: c.draw} }

// Source returns the source of q's endpoints. Log gets what does not fail it and
// may be nil, and so may dups, which counts addresses that occur more than once.
// The error is that of Query.Validate.
func (c *Client) Source(q Query, log *slog.Logger, dups *discovery.Duplicates) (*Source, error) {
	if err := q.Validate(); err != nil {
		return nil, fmt.Errorf("dns: %w", err)
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Source{c: c, q: q.withDefaults(), log: log, dups: dups, look: make(chan struct{}, 1)}, nil
}

// join returns the pool of these nameservers, for one more user.
func (c *Client) join(list []netip.AddrPort) *pool {
	fixed := ordered(list)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.pools { // the Client's own have no fixed ones
		if slices.Equal(p.fixed, fixed) {
			p.uses++
			return p
		}
	}
	p := &pool{c: c, fixed: fixed, uses: 1, slots: make(chan struct{}, maxLookups)}
	c.pools = append(c.pools, p)
	return p
}

// leave ends what join began.
func (c *Client) leave(p *pool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.uses--; p.uses > 0 {
		return
	}
	c.pools = slices.DeleteFunc(c.pools, func(x *pool) bool { return x == p })
	c.update() // can't fail where it could before
}

// enlist makes list the nameservers of p, and returns them in the order of their
// addresses.
func (c *Client) enlist(p *pool, list []netip.AddrPort) ([]*server, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p.list = list
	if err := c.update(); err != nil {
		return nil, err
	}
	var all []*server
	for _, at := range list {
		all = append(all, c.servers[at])
	}
	slices.SortFunc(all, func(a, b *server) int { return a.addr.Compare(b.addr) })
	return slices.Compact(all), nil
}

// update makes the nameservers of all pools the view's.
func (c *Client) update() error {
	var eps []lbcore.Endpoint
	for _, p := range c.pools {
		for _, at := range p.list {
			eps = append(eps, lbcore.Endpoint{Addr: lbcore.IPAddr(at), Weight: 1})
		}
	}
	set, _, err := lbcore.NewSet(eps)
	if err != nil {
		return err
	}
	snap, _ := c.view.Update(set)
	c.view.Sweep(snap.Generation) // forgets those that are not listed any more
	servers := make(map[netip.AddrPort]*server)
	for i, e := range snap.Set.All() {
		at := e.Addr.AddrPort()
		s := c.servers[at]
		if s == nil || s.member != snap.Member(i) {
			s = &server{addr: at, member: snap.Member(i)}
		}
		servers[at] = s
	}
	c.servers = servers
	return nil
}

// Stats are counters of a Client since it was made.
type Stats struct {
	// Lookups have ended, Failures of them without an answer.
	Lookups, Failures uint64
	// Watches is how many sources are watched now.
	Watches int
	// Nameservers are those in use, in the order of groups and addresses. One that
	// is in several groups is in the list as often, with the same counters.
	Nameservers []NameserverStats
}

// NameserverStats describe a nameserver.
type NameserverStats struct {
	// Group is "default", or the nameservers of the Query that names them.
	Group   string
	Address netip.AddrPort
	// Weight is what is learnt of it, from 1 to 2^24; Share is its part of the
	// queries that begin with it, from 0 to 1, Explore aside.
	Weight, Share float64
	// Latency is a mean of the last answers that won, 0 before the first.
	Latency time.Duration
	// Queries were sent to it; Won had their answers taken, Failures failed, Late had
	// no answer when another nameserver had.
	Queries, Won, Failures, Late uint64
	// Strays are packets that were no answer to the query at whose port they came;
	// TCP counts queries by TCP.
	Strays, TCP uint64
}

// Stats returns the present state.
func (c *Client) Stats() Stats {
	st := Stats{Lookups: uint64(c.lookups.Load()), Failures: uint64(c.failures.Load())}
	c.mu.Lock()
	st.Watches = len(c.watched)
	pools := slices.Clone(c.pools)
	c.mu.Unlock()
	for i, p := range pools {
		group := "default"
		if i > 0 {
			var names []string
			for _, at := range p.fixed {
				names = append(names, at.String())
			}
			group = strings.Join(names, ",")
		}
		first, sum := len(st.Nameservers), 0.0
		now := p.now.Load()
		if now == nil { // nobody has asked yet
			continue
		}
		for _, s := range now.servers {
			n := NameserverStats{
				Group: group, Address: s.addr, Weight: adaptive.Weight(s.member), Latency: time.Duration(s.latency.Load()),
				Queries: s.asked.Load(), Won: s.won.Load(), Failures: s.failures.Load(), Late: s.late.Load(),
				Strays: s.strays.Load(), TCP: s.tcp.Load(),
			}
			sum += n.Weight
			st.Nameservers = append(st.Nameservers, n)
		}
		for j := range st.Nameservers[first:] {
			st.Nameservers[first+j].Share = st.Nameservers[first+j].Weight / sum
		}
	}
	return st
}

// lookup runs one look-up when there is a slot for it.
func (c *Client) lookup(ctx context.Context, p *pool, q question, m manner) answer {
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return failure(timeout, "%s: %w", q, ctx.Err())
	}
	defer func() { <-p.slots }()
	ctx, cancel := context.WithTimeout(ctx, lookupLimit)
	defer cancel()
	a := p.lookup(ctx, q, m)
	c.lookups.Add(1)
	if a.class.failed() {
		c.failures.Add(1)
	}
	return a
}

// LookupAddrs looks name's addresses of type t up once, by the default
// nameservers, and returns them in order. It is for measurements; a source keeps
// what it knows.
func (c *Client) LookupAddrs(ctx context.Context, t Type, name string) (addrs []netip.Addr, err error) {
	for _, family := range t.families() {
		a := c.lookup(ctx, c.def, question{name, family}, manner{})
		if a.class.failed() {
			return nil, a.err
		}
		if a.err != nil {
			err = a.err
		}
		addrs = append(addrs, a.addrs...)
	}
	if len(addrs) > 0 {
		err = nil
	}
	return addrs, err
}
