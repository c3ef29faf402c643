package node

import (
	"context"
	"fmt"
	"maps"
	"net"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"gatehouse.internal/cmd/agent/internal/accesslog"
	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/forwarder"
	"gatehouse.internal/lbcore"
)

// listener is one listener with where its connections go.
type listener struct {
	way                      // of one without chains
	cfg      config.Listener // Run's goroutine, until it is leaving
	fwd      *forwarder.Listener
	shown    atomic.Pointer[shownListener]
	tls      *downstreamTLS // that it was opened with, until it is put in its place
	planned  []planned      // likewise
	chains   []*chain       // Run's goroutine
	former   []*chain       // chains that have left and whose connections drain; Run's goroutine
	logs     atomic.Pointer[accesslog.Logs]
	retry    time.Time          // when it is tried again for what lame says; Run's goroutine
	noLogs   string             // why it goes without its access logs, or empty; Run's goroutine
	ended    atomic.Bool        // drained
	over     chan struct{}      // closed then
	draining atomic.Bool        // draining
	settings forwarder.Settings // in force; Run's goroutine
	// held is closed when it may accept; Run's goroutine. It is nil where nothing is
	// waited for.
	held chan struct{}
}

// set has l obey s. On an error it obeys what it did.
func (l *listener) set(s forwarder.Settings) error {
	if err := l.fwd.Set(s); err != nil {
		return err
	}
	l.settings = s
	return nil
}

// shownListener is what dumps read. It is never written.
type shownListener struct {
	config.Listener
	tls    *downstreamTLS
	chains []shownChain
}

func (l *listener) status() ListenerStatus {
	cfg := l.shown.Load()
	st := ListenerStatus{
		Name: cfg.Name, Origin: string(cfg.Origin), Address: l.fwd.Addr(),
		Cluster: cfg.Cluster, Weighted: cfg.WeightedClusters, Selector: cfg.Selector,
		Stats: l.fwd.Stats(), OnLoops: l.fwd.OnLoops(), Draining: l.draining.Load(), TLS: cfg.tls.status(),
	}
	if c := cfg.Control; c != nil {
		st.NoBind, st.Unsupported = c.NoBind, c.Unsupported
		if c.Unsupported == "" {
			for _, c := range cfg.chains {
				st.Chains = append(st.Chains, c.status())
			}
		}
	}
	return st
}

func settings(cfg config.Listener, tls *downstreamTLS) forwarder.Settings {
	s := forwarder.Settings{
		MaxConnections: cfg.MaxConnections, IdleTimeout: cfg.IdleTimeout, HalfClosedTimeout: cfg.HalfClosedTimeout,
		MaxDuration: cfg.MaxConnectionDuration, MaxDurationJitter: cfg.MaxConnectionDurationJitter,
		OriginalDst: cfg.OriginalDst, Keepalive: keepalive(cfg.TCPKeepalive), Socket: socket(cfg),
	}
	switch cfg.HashOn {
	case config.HashOnSourceIP:
		s.HashOn = forwarder.HashSourceIP
	case config.HashOnSourceIPPort:
		s.HashOn = forwarder.HashSourceIPPort
	case config.HashOnDestination:
		s.HashOn = forwarder.HashDestination
	case config.HashOnSNI:
		s.HashOn, s.HelloTimeout, s.MaxHellos = forwarder.HashSNI, cfg.TLSInspector.Timeout, cfg.TLSInspector.MaxPending
	}
	if tlv, ok := strings.CutPrefix(cfg.HashOn, config.HashOnProxyTLV); ok {
		s.HashOn = forwarder.HashProxyTLV
		s.HashTLV, _ = config.ParseByte(tlv) // it was checked
	}
	if p := cfg.ProxyProtocol; len(p.AcceptFrom) > 0 {
		s.Proxy = &forwarder.ProxyIn{From: p.AcceptFrom, Optional: p.Optional, Timeout: p.Timeout, MaxPending: p.MaxPending}
	}
	switch {
	case tls == nil:
	case tls.mesh != nil:
		s.Mesh, s.HandshakeTimeout, s.MaxHandshakes = tls.mesh, cfg.Connect.HandshakeTimeout, cfg.Connect.MaxHandshakes
	default:
		s.TLS, s.HandshakeTimeout, s.MaxHandshakes = tls.server, cfg.TLS.HandshakeTimeout, cfg.TLS.MaxHandshakes
	}
	return s
}

// control adds to s what the control plane says of a listener.
func (r *runner) control(s *forwarder.Settings, cfg config.Listener, chains *forwarder.Chains) {
	c := cfg.Control
	s.Chains, s.Inspect, s.CutLateHello = chains, c.Inspect, c.CutLateHello
	s.HelloTimeout, s.MaxHellos = cfg.TLSInspector.Timeout, cfg.TLSInspector.MaxPending
	if c.UseOriginalDst {
		s.HandOff = r.n.listenerAt
	}
}

// noBind reports whether a listener has no socket.
func noBind(cfg config.Listener) bool { return cfg.Control != nil && cfg.Control.NoBind }

// has reports whether a listener is open where cfg wants it.
func (r *runner) has(cfg config.Listener) bool {
	have := r.listeners[cfg.Name]
	return have != nil && have.cfg.Address == cfg.Address && noBind(have.cfg) == noBind(cfg)
}

// donor returns the listener that leaves the address that cfg wants, where stay are
// all listeners that are wanted, or nil.
func (r *runner) donor(cfg config.Listener, stay []config.Listener) *forwarder.Listener {
	if cfg.Address.AddrPort().Port() == 0 || noBind(cfg) { // each has a port of its own, or none
		return nil
	}
	for name, l := range r.listeners {
		stays := func(c config.Listener) bool { return c.Name == name && r.has(c) }
		if l.cfg.Address == cfg.Address && !noBind(l.cfg) && !slices.ContainsFunc(stay, stays) {
			return l.fwd
		}
	}
	return nil
}

// open opens the socket of a listener, or shares that of another one, which may be
// nil.
func (r *runner) open(ctx context.Context, cfg config.Listener, of *forwarder.Listener) (*listener, error) {
	l := &listener{over: make(chan struct{})}
	var err error
	if l.tls, err = r.secure(&cfg); err != nil {
		return nil, err
	}
	s := settings(cfg, l.tls)
	if cfg.Control != nil {
		var chains *forwarder.Chains
		if l.planned, chains, err = r.plan(cfg, nil); err != nil {
			return nil, err
		}
		r.control(&s, cfg, chains)
	}
	logs, err := r.logsOf(l, cfg)
	if err != nil {
		unplan(l.planned, nil)
		return nil, fmt.Errorf("listener %q: access_log: %w", cfg.Name, err)
	}
	l.logs.Store(logs)
	l.settings = s
	done := l.done
	if also := r.n.cfg.OnDone; also != nil {
		done = func(rec *forwarder.Record) { l.done(rec); also(rec) }
	}
	l.fwd, err = forwarder.New(forwarder.Config{
		Name: cfg.Name, Addr: cfg.Address, Upstream: &l.way, Gate: r.n.cfg.Gate, Settings: s, NoBind: noBind(cfg),
		Loops: r.n.cfg.Loops, Listen: r.n.listen(l, cfg.Name), Of: of, Logger: r.n.log, OnDone: done, Circles: &r.n.circles,
		Open: r.n.cfg.Open, MaxOpen: r.n.cfg.MaxOpen, Extra: r.n.cfg.Extra, DrainSpread: r.n.cfg.DrainSpread, Panics: r.n.cfg.Panics,
	})
	if err == nil {
		if err = l.fwd.Bind(ctx); err == nil {
			return l, nil
		}
		err = &BindError{cfg.Name, err}
	}
	logs.Close()
	unplan(l.planned, nil)
	return nil, err
}

// listen returns what asks for the socket of a listener, or nil if nobody is asked. One
// that gets a socket is held, since who has connected there waited for an agent: to
// accept before there are endpoints would be to reset them.
func (n *Node) listen(l *listener, name string) forwarder.Listen {
	if n.cfg.Socket == nil {
		return nil
	}
	return func(_ context.Context, addr lbcore.Addr) (net.Listener, error) {
		ln, err := n.cfg.Socket(name, addr)
		if ln != nil && n.cfg.Ready != nil {
			l.held = make(chan struct{})
		}
		return ln, err
	}
}

// release lets a listener that is held accept, once all clusters that it leads to are
// there and warm, and the certificate is that it shows to clients of the mesh.
func (l *listener) release(tls *downstreamTLS) {
	if l.held == nil || tls.waiting() != "" {
		return
	}
	for _, w := range l.ways() {
		for _, to := range w.routes.Load().targets {
			if to.cluster == nil || !to.cluster.warm.Load() {
				return
			}
		}
	}
	close(l.held)
	l.held = nil
}

// done is told of each connection that has ended.
func (l *listener) done(rec *forwarder.Record) { l.logs.Load().Write(rec) }

func accessLogs(cfg config.Listener) (out []accesslog.Config) {
	for _, a := range cfg.AccessLogs {
		out = append(out, accesslog.Config(a))
	}
	return out
}

// openLogs opens the access logs of listeners that are open and get others, for
// put. On an error none is.
func (r *runner) openLogs(want []config.Listener) error {
	r.logs = make(map[string]*accesslog.Logs)
	for _, cfg := range want {
		if !r.has(cfg) || r.listeners[cfg.Name].logsTo(cfg) {
			continue
		}
		logs, err := accesslog.Open(r.n.cfg.Files, accessLogs(cfg)...)
		if err != nil {
			for _, l := range r.logs {
				l.Close()
			}
			return fmt.Errorf("listener %q: access_log: %w", cfg.Name, err)
		}
		r.logs[cfg.Name] = logs
	}
	return nil
}

// openAll opens the sockets of the listeners that are new or have moved, and
// makes the TLS of the others. An address passes from one that leaves it with its
// socket. On an error nothing is open.
func (r *runner) openAll(ctx context.Context, want, optional []config.Listener) (opened map[string]*listener, secured map[string]*downstreamTLS, err error) {
	opened, secured = make(map[string]*listener), make(map[string]*downstreamTLS)
	stay := slices.Concat(want, optional)
	for _, cfg := range want {
		if r.has(cfg) {
			secured[cfg.Name], err = r.secure(&cfg)
		} else if opened[cfg.Name], err = r.open(ctx, cfg, r.donor(cfg, stay)); err != nil {
			delete(opened, cfg.Name)
		}
		if err != nil {
			dropAll(ctx, opened)
			return nil, nil, err
		}
	}
	return opened, secured, nil
}

// dropAll closes listeners that don't accept yet.
func dropAll(ctx context.Context, opened map[string]*listener) {
	for _, l := range opened {
		l.fwd.Drain(ctx) // closes the socket
		l.logs.Load().Close()
	}
}

// setAll has the listeners that stay obey the settings in want. On an error all
// obey those before.
func (r *runner) setAll(want []config.Listener, secured map[string]*downstreamTLS) error {
	var undo []func()
	for _, cfg := range want {
		have := r.listeners[cfg.Name]
		if !r.has(cfg) || r.same(cfg, secured[cfg.Name]) || have.cfg.Control != nil { // put does that
			continue
		}
		before := have.settings
		if err := have.set(settings(cfg, secured[cfg.Name])); err != nil {
			for _, f := range undo {
				f()
			}
			return fmt.Errorf("listener %q: its settings can't be put in force: %w", cfg.Name, err)
		}
		undo = append(undo, func() {
			if err := have.set(before); err != nil {
				r.n.log.Error("settings are not taken back", "listener", have.cfg.Name, "err", err)
			}
		})
	}
	return nil
}

// same reports whether the listener of that name is what cfg says already, with
// what secure returned for it.
func (r *runner) same(cfg config.Listener, tls *downstreamTLS) bool {
	return r.tls[cfg.Name] == tls && reflect.DeepEqual(r.listeners[cfg.Name].cfg, cfg)
}

// adopt makes want, which are open, and optional, as far as they can be opened,
// the listeners that accept connections.
func (r *runner) adopt(ctx context.Context, want, optional []config.Listener, opened map[string]*listener, secured map[string]*downstreamTLS) {
	taken := r.takeOver(ctx, optional, slices.Concat(want, optional))
	for name, l := range r.listeners {
		named := func(cfg config.Listener) bool { return cfg.Name == name }
		moves := func(cfg config.Listener) bool { return named(cfg) && !r.has(cfg) }
		if !slices.ContainsFunc(want, named) && !slices.ContainsFunc(optional, named) || slices.ContainsFunc(optional, moves) {
			delete(r.listeners, name)
			r.retire(ctx, l)
			r.use(ctx, name, nil)
		}
	}
	for _, cfg := range want {
		r.put(ctx, cfg, opened[cfg.Name], secured[cfg.Name])
	}
	before := r.closed
	r.closed = make(map[string]*closed)
	for _, cfg := range optional {
		if r.has(cfg) {
			tls, err := r.secure(&cfg)
			have := r.listeners[cfg.Name]
			if err == nil && !r.same(cfg, tls) && cfg.Control == nil && have.cfg.Control == nil { // else put does it
				err = have.set(settings(cfg, tls))
			}
			if err != nil {
				r.n.log.Error("settings are not applied", "listener", cfg.Name, "err", err)
				// What serves on is shown, and rotates. Where connections go is obeyed all
				// the same: the cluster before may have left.
				tls, cfg.TLS, cfg.Connect = r.tls[cfg.Name], have.cfg.TLS, have.cfg.Connect
			}
			r.put(ctx, cfg, nil, tls)
			continue
		}
		if l := taken[cfg.Name]; l != nil {
			r.put(ctx, cfg, l, nil)
			opened[cfg.Name] = l
			continue
		}
		c := &closed{wait: firstRetry}
		if was := before[cfg.Name]; was != nil && was.cfg.Address == cfg.Address {
			c = was
		}
		c.cfg = cfg
		if l := r.openOptional(ctx, c); l != nil {
			opened[cfg.Name] = l
		}
	}
	r.serve(ctx, opened)
	r.resetRetry()
}

// takeOver opens the optional listeners that have moved, and those that are new at an
// address that another one leaves, with its socket, while these are open: nobody is
// refused meanwhile. What fails, as at an address that overlaps the one that is left,
// is tried again without them.
func (r *runner) takeOver(ctx context.Context, optional, stay []config.Listener) map[string]*listener {
	taken := make(map[string]*listener)
	for _, cfg := range optional {
		if of := r.donor(cfg, stay); (of != nil || r.listeners[cfg.Name] != nil) && !r.has(cfg) {
			if l, err := r.open(ctx, cfg, of); err == nil {
				taken[cfg.Name] = l
			}
		}
	}
	return taken
}

// put makes l, or with tls the listener of that name if l is nil, what cfg says;
// that one obeys the settings already, unless one of the control plane is concerned.
func (r *runner) put(ctx context.Context, cfg config.Listener, l *listener, tls *downstreamTLS) {
	have := r.listeners[cfg.Name]
	if l != nil {
		tls = l.tls
		if have != nil {
			r.retire(ctx, have)
		}
		have = l
		r.listeners[cfg.Name] = l
		r.putChains(ctx, l, l.planned)
		l.planned = nil
	} else if r.same(cfg, tls) && !have.lame() {
		return
	} else if cfg.Control != nil || have.cfg.Control != nil {
		if err := r.change(ctx, have, cfg, tls); err != nil {
			r.n.log.Error("settings are not applied", "listener", cfg.Name, "err", err)
			return
		}
	} else if logs := r.logs[cfg.Name]; logs != nil {
		have.logs.Swap(logs).Close()
		delete(r.logs, cfg.Name)
	}
	r.use(ctx, cfg.Name, tls)
	have.cfg = cfg
	if cfg.Control == nil { // else what was accepted before still goes there
		have.targets, have.selector = cfg.Targets(), cfg.Selector
	}
	have.shown.Store(&shownListener{cfg, tls, shownChains(have.chains)})
}

// change is put for a listener of the control plane that is open where it is
// wanted, or one that becomes or ceases to be such. Connections of chains that are
// the same go on, and so do those accepted by a file's.
func (r *runner) change(ctx context.Context, have *listener, cfg config.Listener, tls *downstreamTLS) error {
	same := have.chains
	if !sameBase(have.cfg, cfg) {
		same = nil // all drain
	}
	s := settings(cfg, tls)
	var all []planned
	if cfg.Control != nil {
		var chains *forwarder.Chains
		var err error
		if all, chains, err = r.plan(cfg, same); err != nil {
			return err
		}
		r.control(&s, cfg, chains)
	} else { // before the first connection that has no chain
		have.targets, have.selector = cfg.Targets(), cfg.Selector
		r.aimNow(&have.way)
	}
	if r.logs[cfg.Name] != nil {
		have.noLogs = ""
	} else if !have.logsTo(cfg) { // those of optional ones
		logs, err := r.logsOf(have, cfg)
		if err != nil {
			unplan(all, same)
			return fmt.Errorf("access_log: %w", err)
		}
		r.logs[cfg.Name] = logs
	}
	if err := have.set(s); err != nil {
		unplan(all, same)
		return err
	}
	if logs := r.logs[cfg.Name]; logs != nil {
		have.logs.Swap(logs).Close()
		delete(r.logs, cfg.Name)
	}
	r.putChains(ctx, have, all)
	return nil
}

// maxTold is how many lines tell of listeners that are opened at once. Lines have a rate,
// which would hold back some of thousands, and nobody would know of which.
const maxTold = 100

// serve has opened listeners accept connections.
func (r *runner) serve(ctx context.Context, opened map[string]*listener) {
	held := make(map[*listener]chan struct{})
	for _, l := range opened {
		held[l] = l.held
	}
	r.settle() // before the first connection asks
	told := 0
	for _, name := range slices.Sorted(maps.Keys(opened)) {
		l := opened[name]
		if r.n.draining.Load() { // since this Apply began: Drain may not have found l
			l.fwd.Drain(ctx)
			continue
		}
		what := "listening"
		if noBind(l.cfg) {
			what = "taking connections that other listeners hand over"
		}
		if told++; told <= maxTold {
			r.n.log.Info(what, "listener", name, "address", l.fwd.Addr())
		}
		r.wg.Go(func() {
			if hold := r.n.cfg.Hold; hold != nil {
				select {
				case <-hold:
				case <-ctx.Done():
				}
			}
			if wait := held[l]; wait != nil {
				select {
				case <-wait:
				case <-r.n.cfg.Ready:
				case <-ctx.Done():
				}
			}
			if ctx.Err() != nil { // who waits in its queue may be another process' to accept, and is not to be reset
				l.fwd.Drain(ctx)
				return
			}
			if err := l.fwd.Run(ctx); err != nil && ctx.Err() == nil {
				r.n.log.Error("listener ended", "listener", name, "err", err)
			}
		})
	}
	if told > maxTold {
		r.n.log.Info("more listeners are open, /listeners has all", "opened", told, "told", maxTold)
	}
}

// retire closes the socket of l and drains it in the background.
func (r *runner) retire(ctx context.Context, l *listener) {
	l.draining.Store(true)
	l.fwd.Stop() // so that the next Apply can open the address
	for _, w := range l.ways() {
		w.left = true
	}
	for _, c := range l.chains {
		c.stop()
	}
	r.leaving = append(r.leaving, l)
	chains := l.chains
	r.wg.Go(func() {
		bounded, cancel := context.WithTimeout(ctx, time.Duration(r.n.drainTimeout.Load()))
		defer cancel()
		cut := l.fwd.Drain(bounded)
		r.n.log.Info("listener drained", "listener", l.shown.Load().Name, "cut", cut)
		l.logs.Load().Close()
		for _, c := range chains {
			c.logs.Load().Close()
		}
		close(l.over)
		l.ended.Store(true)
		poke(r.n.wake)
	})
}
