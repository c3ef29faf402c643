package node

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"gatehouse.internal/cmd/agent/internal/accesslog"
	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/forwarder"
	"gatehouse.internal/forwarder/rbac"
	"gatehouse.internal/internal/tlsconf"
)

// chain is a filter chain of a listener. It stays, with its connections, while its
// settings do, but for TLS; when they change, or it is gone, its connections drain.
type chain struct {
	way
	key     string // tells it from the others of its listener
	cfg     config.FilterChain
	logs    atomic.Pointer[accesslog.Logs]
	rbac    []*rbac.Filter
	refuse  *forwarder.Refusal // nil: it serves
	leaving forwarder.Ends
	open    forwarder.Count
	ended   atomic.Bool // its connections have ended, or their time is over

	// What follows Run's goroutine alone has. cant is why there is no TLS that could
	// be used, and then the chain refuses.
	tls    *tlsconf.Server
	cancel context.CancelFunc // of tls
	cant   *forwarder.Refusal
	noLogs string // why it goes without its access logs, or empty
}

func (c *chain) done(rec *forwarder.Record) { c.logs.Load().Write(rec) }

// noTLS returns cfg without what may change while the chain stays.
func noTLS(cfg config.FilterChain) config.FilterChain {
	if cfg.TLS != nil {
		cfg.TLS, cfg.NoTLS = new(tlsconf.ServerConfig), "" // whether there is to be any
	}
	return cfg
}

// sameBase reports whether two listeners differ in their chains alone.
func sameBase(a, b config.Listener) bool {
	bare := func(l config.Listener) config.Listener {
		if l.Control != nil {
			c := *l.Control
			c.Chains, c.Default = nil, nil
			l.Control = &c
		}
		return l
	}
	return reflect.DeepEqual(bare(a), bare(b))
}

// planned is a chain that is to be in force.
type planned struct {
	*chain
	want config.FilterChain
	tls  *tlsconf.Server
	cant *forwarder.Refusal // why it has no TLS
}

// plan returns the chains that cfg wants, as far as may be those of have, and what
// the forwarder is told of them. It has no effect on those that there are. What a
// chain can't have makes it refuse its connections.
func (r *runner) plan(cfg config.Listener, have []*chain) (all []planned, told *forwarder.Chains, err error) {
	free := make(map[string]*chain, len(have))
	for _, c := range have {
		free[c.key] = c
	}
	one := func(want config.FilterChain, kind string) *forwarder.FilterChain {
		p, key := planned{want: want}, fmt.Sprintf("%s %q %v", kind, want.Name, want.Match) // no two are alike
		if c := free[key]; c != nil && reflect.DeepEqual(noTLS(c.cfg), noTLS(want)) {
			p.chain = c
			delete(free, key)
		} else {
			p.chain = r.newChain(cfg, want)
			p.key = key
		}
		fc := &forwarder.FilterChain{
			Name: want.Name, Match: want.Match, Upstream: &p.way, RBAC: p.rbac, Refuse: p.refuse, Open: &p.open, Leaving: &p.leaving, OnDone: p.done,
			Settings: forwarder.Settings{
				IdleTimeout: want.IdleTimeout, HalfClosedTimeout: cfg.HalfClosedTimeout, MaxConnectAttempts: want.MaxConnectAttempts,
				MaxDuration: want.MaxConnectionDuration, MaxDurationJitter: want.MaxConnectionDurationJitter, HandshakeTimeout: want.HandshakeTimeout,
			},
		}
		if want.HashOn == config.HashOnSourceIP {
			fc.Settings.HashOn = forwarder.HashSourceIP
		}
		if fc.Refuse == nil && want.TLS != nil {
			if p.tls, p.cant = r.secureChain(cfg.Name, p.chain, &want); p.cant != nil {
				fc.Refuse = p.cant
			}
			fc.Settings.TLS = p.tls
		}
		all = append(all, p)
		return fc
	}
	var list []*forwarder.FilterChain
	for _, want := range cfg.Control.Chains {
		list = append(list, one(want, "chain"))
	}
	var rest *forwarder.FilterChain
	switch {
	case cfg.Control.Unsupported != "":
		rest = one(config.FilterChain{Unsupported: cfg.Control.Unsupported}, "default")
	case cfg.Control.Default != nil:
		rest = one(*cfg.Control.Default, "default")
	}
	if told, err = forwarder.NewChains(list, rest); err != nil { // it was checked
		unplan(all, have)
		return nil, nil, fmt.Errorf("listener %q: %w", cfg.Name, err)
	}
	return all, told, nil
}

// unplan lets go of the chains that are not in have.
func unplan(all []planned, have []*chain) {
	kept := setOf(have)
	for _, p := range all {
		if !kept[p.chain] {
			p.logs.Load().Close()
		}
	}
}

func setOf(chains []*chain) map[*chain]bool {
	set := make(map[*chain]bool, len(chains))
	for _, c := range chains {
		set[c] = true
	}
	return set
}

// newChain makes a chain.
func (r *runner) newChain(cfg config.Listener, want config.FilterChain) *chain {
	c := &chain{cfg: want}
	c.way.targets, c.way.attempts = want.Clusters, want.MaxConnectAttempts
	r.aimNow(&c.way)
	refuse := func(format string, args ...any) {
		c.refuse = &forwarder.Refusal{Flag: forwarder.FlagNR, Reason: fmt.Sprintf("filter chain %q: ", want.Name) + fmt.Sprintf(format, args...)}
	}
	if want.Unsupported != "" {
		refuse("not supported: %s", want.Unsupported)
	}
	for _, f := range want.RBAC {
		filter, err := rbac.New(f.Rules, f.Shadow)
		if err != nil { // it was checked
			refuse("rbac: %v", err)
			break
		}
		c.rbac = append(c.rbac, filter)
	}
	r.openChainLogs(cfg.Name, c)
	return c
}

// openChainLogs opens the access logs of a chain. Connections don't wait for those that
// can't be had.
func (r *runner) openChainLogs(listener string, c *chain) {
	var want []accesslog.Config
	for _, a := range c.cfg.AccessLogs {
		want = append(want, accesslog.Config(a))
	}
	logs, err := accesslog.Open(r.n.cfg.Files, want...)
	if err == nil {
		c.noLogs = ""
	} else {
		if c.noLogs != err.Error() {
			c.noLogs = err.Error()
			r.n.log.Error("access logs of a filter chain can't be had, they are tried again", "listener", listener, "filter_chain", c.cfg.Name, "err", err)
		}
		logs, _ = accesslog.Open(r.n.cfg.Files)
	}
	c.logs.Store(logs) // the one before had nothing open
}

// secureChain returns what ends TLS for a chain, which is what there is if the
// settings are the same, or why its connections are refused.
func (r *runner) secureChain(listener string, c *chain, want *config.FilterChain) (*tlsconf.Server, *forwarder.Refusal) {
	cant := func(why any) (*tlsconf.Server, *forwarder.Refusal) {
		return nil, &forwarder.Refusal{Flag: forwarder.FlagNR, Reason: fmt.Sprintf("filter chain %q: %v", want.Name, why)}
	}
	if want.NoTLS != "" {
		return cant("no tls: " + want.NoTLS)
	}
	if c.tls != nil && reflect.DeepEqual(c.cfg.TLS, want.TLS) {
		return c.tls, nil
	}
	tc := *want.TLS
	tc.Logger = r.n.log.With("listener", listener, "filter_chain", want.Name)
	server, err := tlsconf.NewServer(tc)
	if err != nil {
		return cant(err)
	}
	return server, nil
}

// putChains has l run the chains that the forwarder has been told of.
func (r *runner) putChains(ctx context.Context, l *listener, all []planned) {
	before := l.chains
	l.chains = nil
	for _, p := range all {
		c := p.chain
		if p.tls != c.tls {
			c.stop()
			if c.tls = p.tls; c.tls != nil {
				var own context.Context
				own, c.cancel = context.WithCancel(ctx)
				r.wg.Go(func() { p.tls.Run(own) })
				log := r.n.log.With("listener", l.fwd.Name(), "filter_chain", p.want.Name)
				logTLS(log, c.tls.Status())
				tlsconf.LogExposed(log, c.tls.Status())
			}
		}
		if c.noLogs != "" {
			r.openChainLogs(l.fwd.Name(), c)
		}
		if p.cant != nil || c.noLogs != "" {
			l.retry = time.Now().Add(firstRetry)
		}
		if p.cant != nil && (c.cant == nil || c.cant.Reason != p.cant.Reason) {
			r.n.log.Warn("a filter chain has no tls, and refuses connections", "listener", l.fwd.Name(), "err", p.cant)
		}
		c.cfg, c.cant = p.want, p.cant
		l.chains = append(l.chains, c)
	}
	stay := setOf(l.chains)
	if left := slices.DeleteFunc(before, func(c *chain) bool { return stay[c] }); len(left) > 0 {
		r.drainChains(ctx, l, left)
	}
}

// logsTo reports whether l writes the access logs that cfg wants.
func (l *listener) logsTo(cfg config.Listener) bool {
	return l.noLogs == "" && slices.Equal(l.cfg.AccessLogs, cfg.AccessLogs)
}

// logsOf opens the access logs of l. One of the control plane goes without those that
// it can't have, until they can be had: who may connect does not depend on a file.
func (r *runner) logsOf(l *listener, cfg config.Listener) (*accesslog.Logs, error) {
	logs, err := accesslog.Open(r.n.cfg.Files, accessLogs(cfg)...)
	if err == nil || cfg.Control == nil {
		if err == nil {
			l.noLogs = ""
		}
		return logs, err
	}
	if l.noLogs != err.Error() {
		l.noLogs = err.Error()
		r.n.log.Error("access logs of a listener can't be had, they are tried again", "listener", cfg.Name, "err", err)
	}
	l.retry = time.Now().Add(firstRetry)
	return accesslog.Open(r.n.cfg.Files)
}

// lame reports whether l lacks something that it may have without a word of the
// control plane: files may come. That is TLS of a chain, or access logs.
func (l *listener) lame() bool {
	return l.noLogs != "" || slices.ContainsFunc(l.chains, func(c *chain) bool { return c.cant != nil && c.cfg.NoTLS == "" || c.noLogs != "" })
}

// stop ends the rotation of the chain's certificates.
func (c *chain) stop() {
	if c.cancel != nil {
		c.cancel()
	}
	c.cancel, c.tls = nil, nil
}

// lookEvery is how often a drain looks which chains have no connection any more, and
// settled is how long after it has begun: some may not have found their chain yet.
const (
	lookEvery = 10 * time.Second
	settled   = time.Minute
)

// drainChains lets the connections of chains that have left go on for as long as
// those of a listener may.
func (r *runner) drainChains(ctx context.Context, l *listener, left []*chain) {
	for _, c := range left {
		c.stop()
		c.left = true
	}
	l.former = append(l.former, left...)
	timeout := time.Duration(r.n.drainTimeout.Load())
	spread := forwarder.DrainSpread(r.n.cfg.DrainSpread, timeout)
	end := func(chains []*chain) {
		for _, c := range chains {
			c.logs.Load().Close()
			c.ended.Store(true)
		}
		poke(r.n.wake)
	}
	r.wg.Go(func() {
		begin := time.Now()
		over := time.NewTimer(timeout - spread)
		defer over.Stop()
		look := time.NewTicker(lookEvery)
		defer look.Stop()
		for spreading := false; len(left) > 0; {
			select {
			case <-over.C:
				if spreading {
					end(left)
					return
				}
				spreading = true
				for _, c := range left {
					c.leaving.SetAll(forwarder.Ending{Err: forwarder.ErrDrained, Within: spread})
				}
				l.fwd.Review()
				over.Reset(spread)
			case <-look.C:
				if time.Since(begin) < settled {
					continue
				}
				var busy, idle []*chain
				for _, c := range left {
					if c.open.Open() > 0 {
						busy = append(busy, c)
					} else {
						idle = append(idle, c)
					}
				}
				end(idle)
				left = busy
			case <-l.over:
				end(left)
				return
			case <-ctx.Done():
				end(left)
				return
			}
		}
	})
}

// ways are where connections of l go, those of chains that have left last.
func (l *listener) ways() (all []*way) {
	if len(l.targets) > 0 { // it is, or was, one without chains
		all = append(all, &l.way)
	}
	for _, c := range l.chains {
		all = append(all, &c.way)
	}
	for _, c := range l.former {
		all = append(all, &c.way)
	}
	return all
}

// ChainStatus describes a filter chain of a listener.
type ChainStatus struct {
	Name     string
	Clusters []config.WeightedCluster // is not to be written
	// Unsupported is why the chain refuses its connections, or empty.
	Unsupported string
	// Secured says that the chain is to have TLS. If it has none that could be used it
	// is Unsupported, and TLS is nil, as it is without Secured, or what has expired.
	Secured bool
	TLS     *tlsconf.Status
}

// shownChains is what dumps read of chains.
func shownChains(chains []*chain) (all []shownChain) {
	for _, c := range chains {
		s := shownChain{name: c.cfg.Name, clusters: c.cfg.Clusters, unsupported: c.cfg.Unsupported, secured: c.cfg.TLS != nil, tls: c.tls}
		if c.cant != nil {
			s.unsupported = c.cant.Reason
		}
		all = append(all, s)
	}
	return all
}

type shownChain struct {
	name, unsupported string
	clusters          []config.WeightedCluster
	secured           bool
	tls               *tlsconf.Server
}

func (s *shownChain) status() ChainStatus {
	st := ChainStatus{Name: s.name, Clusters: s.clusters, Unsupported: s.unsupported, Secured: s.secured}
	if s.tls != nil {
		st.TLS = new(s.tls.Status())
		if err := s.tls.Expired(); err != nil {
			st.Unsupported = err.Error()
		}
	}
	return st
}
