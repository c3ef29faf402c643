package dns

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"iter"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	wire "github.com/miekg/dns"

	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/adaptive"
)

// confEvery is how often it is looked whether resolv.conf has changed.
const confEvery = 5 * time.Second

// The defaults of Config.
const (
	defaultStagger  = 150 * time.Millisecond
	defaultTimeout  = 2 * time.Second
	defaultAttempts = 2
)

// server is a nameserver and what is known of it. It is shared by all that ask.
type server struct {
	addr   netip.AddrPort
	member *lbcore.Member // its weight

	plain    atomic.Bool   // it does not know EDNS0
	asked    atomic.Uint64 // queries
	won      atomic.Uint64 // of these, whose answer was taken
	failures atomic.Uint64 // that failed
	late     atomic.Uint64 // that had no answer when another nameserver had
	strays   atomic.Uint64 // packets that were no answer
	tcp      atomic.Uint64 // queries by TCP
	latency  atomic.Int64  // mean of the last answers, nanoseconds; 0 if there was none
}

// observe takes the time into account that an answer took.
func (s *server) observe(rank adaptive.Config, took time.Duration) {
	rank.Observe(s.member, uint64(took.Microseconds()))
	for {
		old := s.latency.Load()
		mean := int64(max(took, 1))
		if old != 0 {
			mean = max(old+(mean-old)/8, 1)
		}
		if s.latency.CompareAndSwap(old, mean) {
			return
		}
	}
}

func (s *server) fail() {
	s.failures.Add(1)
	adaptive.Failed(s.member)
}

// settings are nameservers and how they are asked. They are never written again.
type settings struct {
	servers  []*server
	sel      *adaptive.Selector // over servers, in this order
	search   []string
	ndots    int
	timeout  time.Duration
	attempts int
	stagger  time.Duration
	tcp      bool
}

// pool is the nameservers that some sources share. They come from a Config, a
// Query or from resolv.conf.
type pool struct {
	c     *Client
	fixed []netip.AddrPort // of a Query; nil: what the Config or resolv.conf says
	uses  int              // by sources; the Client's mutex guards it
	list  []netip.AddrPort // those in force; it too
	slots chan struct{}    // a place each for look-ups that run

	first sync.Once // resolv.conf was read
	now   atomic.Pointer[settings]
	look  atomic.Pointer[time.Time] // when resolv.conf was looked at last; the wall clock may be set back

	reading sync.Mutex // held by who reads it, and guards what follows
	conf    confState
	said    resolvConf // by resolv.conf when it could be read last
}

// confState is what resolv.conf was when it was read last.
type confState struct {
	mod  time.Time
	size int64
	err  string
	cfg  *settled // that was in force; nil before the first time
}

// settings returns the nameservers, after a look at resolv.conf if it is time.
// While somebody looks, the others get those that were in force.
func (p *pool) settings() *settings {
	p.first.Do(func() {
		p.look.Store(new(time.Now()))
		p.reading.Lock()
		defer p.reading.Unlock()
		p.reread()
	})
	if time.Since(*p.look.Load()) >= confEvery && p.reading.TryLock() {
		defer p.reading.Unlock()
		p.look.Store(new(time.Now()))
		p.reread()
	}
	return p.now.Load()
}

// renew puts the Client's Config in force, if anybody has asked yet.
func (p *pool) renew() {
	p.reading.Lock()
	defer p.reading.Unlock()
	if p.now.Load() != nil {
		p.reread()
	}
}

// reread, whose caller holds reading, reads resolv.conf if it has changed. One that can't be read, or is empty,
// changes nothing.
func (p *pool) reread() {
	cfg := p.c.cfg.Load()
	state := confState{cfg: cfg}
	text, err := readConf(cfg.ResolvConf, &state)
	if err != nil {
		state.err = err.Error()
	}
	if state == p.conf {
		return
	}
	before := p.conf
	p.conf = state
	list := p.fixed
	if len(list) == 0 {
		list = cfg.servers
	}
	if err != nil {
		if state.err != before.err && len(list) == 0 && !os.IsNotExist(err) {
			p.c.log.Warn("resolv.conf can't be read", "path", cfg.ResolvConf, "err", err)
		}
		if before.cfg == cfg {
			return
		}
	} else {
		p.said = parseResolvConf(text)
		if len(p.said.refused) > 0 && len(list) == 0 {
			p.c.log.Warn("resolv.conf has lines that can't be used", "path", cfg.ResolvConf, "lines", p.said.refused)
		}
	}
	p.use(cfg, list, p.said)
}

func readConf(path string, state *confState) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() { // to open a pipe would be to wait for who writes
		return nil, fmt.Errorf("%s is no regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	state.mod, state.size = info.ModTime(), info.Size()
	text, err := io.ReadAll(io.LimitReader(f, maxConf))
	if err == nil && len(text) == 0 { // somebody is about to write it
		err = fmt.Errorf("%s is empty", path)
	}
	return text, err
}

// use puts what resolv.conf says in force, as far as cfg, or who names the
// nameservers in list, does not say otherwise.
func (p *pool) use(cfg *settled, list []netip.AddrPort, rc resolvConf) {
	st := &settings{
		timeout: rc.timeout, attempts: rc.attempts,
		tcp: cfg.TCP || rc.tcp && len(list) == 0, stagger: cfg.Stagger,
	}
	st.qualify(&cfg.Config, rc)
	if cfg.Timeout > 0 {
		st.timeout = cfg.Timeout
	}
	if cfg.Attempts > 0 {
		st.attempts = cfg.Attempts
	}
	if st.timeout == 0 {
		st.timeout = defaultTimeout
	}
	if st.attempts == 0 {
		st.attempts = defaultAttempts
	}
	if len(list) == 0 {
		list = rc.servers
	}
	if len(list) == 0 { // resolv.conf(5)
		list = []netip.AddrPort{netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 53)}
	}
	if err := p.build(st, list); err != nil {
		p.c.log.Error("the nameservers can't be used", "err", err) // addresses were checked: a bug
		return
	}
	p.now.Store(st)
}

// qualify sets how names without a dot at their end are tried.
func (st *settings) qualify(cfg *Config, rc resolvConf) {
	st.search, st.ndots = rc.search, rc.ndots
	if cfg.Search != nil {
		st.search = nil
		for _, s := range cfg.Search {
			if name, err := absolute(s); err == nil {
				st.search = append(st.search, name)
			}
		}
	}
	if cfg.NDots > 0 {
		st.ndots = cfg.NDots
	}
}

// Names returns the absolute names that name may mean, in the order in which they
// are tried, by what resolv.conf says now. It is one where the name ends in a dot or
// there are no search domains.
func (c Config) Names(name string) []string {
	text, _ := readConf(cmp.Or(c.ResolvConf, DefaultResolvConf), new(confState)) // without it there are no domains
	var st settings
	st.qualify(&c, parseResolvConf(text))
	return slices.Collect(st.candidates(name))
}

// build makes the selector over list.
func (p *pool) build(st *settings, list []netip.AddrPort) (err error) {
	if st.servers, err = p.c.enlist(p, list); err != nil {
		return err
	}
	in := lbcore.Input{}
	for _, s := range st.servers {
		in.Members = append(in.Members, s.member)
		in.Endpoints = append(in.Endpoints, s.member.Endpoint())
		in.Shares = append(in.Shares, 1/float64(len(st.servers)))
	}
	rank := p.c.rank()
	u64, u32, err := rank.Shape(in)
	if err != nil {
		return err
	}
	sel, err := rank.Build(in, &lbcore.Storage{U64: make([]uint64, u64), U32: make([]uint32, u32)}, func() error { return nil })
	if err != nil {
		return err
	}
	st.sel = sel.(*adaptive.Selector)
	return nil
}

// candidates yields the absolute names that name may mean, in the order in which
// they are tried.
func (st *settings) candidates(name string) iter.Seq[string] {
	return func(yield func(string) bool) {
		whole := wire.CanonicalName(name)
		if strings.HasSuffix(name, ".") {
			yield(whole)
			return
		}
		first := strings.Count(name, ".") >= st.ndots
		if first && !yield(whole) {
			return
		}
		for _, s := range st.search {
			long := whole + s
			if _, ok := wire.IsDomainName(long); ok && !yield(long) {
				return
			}
		}
		if !first {
			yield(whole)
		}
	}
}

// manner is how a look-up asks.
type manner struct {
	tcp   bool // by TCP only
	doubt bool // an answer without records is to be confirmed
	// beside is the other address family of what is looked up, or 0: a name that has
	// its addresses ends the search.
	beside uint16
}

// lookup asks for the records of name: by each name that it may mean until one has
// records, and along aliases. A failure ends the search, since a name further down
// the list might mean something else, and so do addresses of the other family;
// behind a name that exists without such records a failure is none.
func (p *pool) lookup(ctx context.Context, q question, m manner) answer {
	st := p.settings()
	m.tcp = m.tcp || st.tcp
	var a answer
	empty := false
	names := slices.Collect(st.candidates(q.name))
	for i, name := range names {
		next := p.follow(ctx, st, question{name, q.typ}, m)
		switch {
		case next.class.failed() && empty && a.class == nodata:
			return a
		case next.class == found || next.class.failed():
			return next
		}
		exists := next.class == nodata
		if empty { // NODATA says more than NXDOMAIN; the shorter TTL counts
			if next.hasTTL && a.hasTTL {
				next.ttl = min(next.ttl, a.ttl)
			}
			if a.class == nodata {
				next.class, next.err = a.class, a.err
			}
			next.left = append(slices.Clone(a.left), next.left...)
		}
		a, empty = next, true
		if exists && m.beside != 0 && i < len(names)-1 {
			other := p.follow(ctx, st, question{name, m.beside}, manner{tcp: m.tcp})
			if other.class == found || other.class.failed() {
				return a
			}
		}
	}
	return a
}

// maxFollowed is how many aliases are asked for whose records an answer lacks.
const maxFollowed = 8

// follow asks for an absolute name, and for what it is an alias of.
func (p *pool) follow(ctx context.Context, st *settings, q question, m manner) answer {
	var ttl time.Duration
	for n := 0; ; n++ {
		a := p.ask(ctx, st, q, m)
		if n > 0 && (!a.hasTTL || ttl < a.ttl) && a.class == found {
			a.ttl, a.hasTTL = ttl, true
		}
		if a.alias == "" {
			return a
		}
		if n == maxFollowed {
			return failure(refused, "more than %d answers that are aliases only", maxFollowed)
		}
		if n == 0 || a.ttl < ttl {
			ttl = a.ttl
		}
		q.name = a.alias
	}
}
