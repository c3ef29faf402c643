package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse.internal/cmd/agent/internal/admin"
	"gatehouse.internal/cmd/agent/internal/admin/page"
	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/cmd/agent/internal/configdump"
	"gatehouse.internal/cmd/agent/internal/node"
	"gatehouse.internal/cmd/agent/internal/telemetry"
	"gatehouse.internal/discovery"
	"gatehouse.internal/discovery/consul"
	"gatehouse.internal/discovery/dns"
	"gatehouse.internal/forwarder"
	"gatehouse.internal/healthsvc"
	"gatehouse.internal/internal/contain"
	"gatehouse.internal/internal/lastgood"
	"gatehouse.internal/internal/logfile"
	"gatehouse.internal/internal/takeover"
	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/lbcore"
	"gatehouse.internal/xds"
)

// configError is a mistake in a configuration that shows only when it is used.
type configError struct{ error }

// agent is everything that runs.
type agent struct {
	cfg     atomic.Pointer[config.Config] // in force
	log     *slog.Logger
	started time.Time
	// read reads the configuration anew, level is what log obeys, and recent has
	// its newest lines; they are set before run, or nil.
	read   func() (*config.Config, error)
	level  *slog.LevelVar
	recent *page.Log

	gate      *lbcore.Gate
	open      forwarder.Count  // connections of all listeners
	maxOpen   int              // of open; 0 is no limit
	extra     forwarder.Count  // descriptors of connections beyond two each
	loops     *forwarder.Loops // nil where the system has none
	health    *healthsvc.Service
	xds       place[xds.Client]          // none without a control plane
	xdsConfig atomic.Pointer[xds.Config] // of xds, nil without one
	consul    place[consul.Client]       // none where nothing is asked of Consul
	mesh      *consul.Mesh
	dns       atomic.Pointer[dns.Client] // nil where no nameserver is asked
	store     *lastgood.Store            // nil without state_dir
	verdicts  verdicts
	node      *node.Node
	telemetry *telemetry.Telemetry
	panics    *contain.Panics
	onDone    func(*forwarder.Record) // set before run, or nil
	manager   *manager                // likewise
	given     given                   // likewise
	// supervised says that run -supervised has started it; likewise.
	supervised bool
	files      logfile.Files // the access logs

	bound    chan struct{} // closed when adminAddr and the listeners are bound
	adminAt  atomic.Pointer[lbcore.Addr]
	adminTLS *tlsconf.Server // nil: it speaks no TLS
	ready    atomic.Bool     // stays set
	live     chan struct{}   // closed when it is
	draining atomic.Bool
	asked    [2]atomic.Bool // for a drain by drainListeners, and a graceful one
	drains   chan bool      // those, once each
	adminLn  net.Listener   // run's
	wanted   wanted
	reloading
	succession
	storing
}

// newAgent returns an agent that run will start.
func newAgent(cfg *config.Config, log *slog.Logger) (_ *agent, err error) {
	store, err := openState(cfg, log)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			store.Close()
		}
	}()
	a := &agent{
		store: store, log: log, started: time.Now(), bound: make(chan struct{}), live: make(chan struct{}), drains: make(chan bool, 2),
		wanted: wanted{
			files: node.Spec{Clusters: cfg.Clusters, Listeners: cfg.Listeners},
			wake:  make(chan struct{}, 1), reloads: make(chan rereading), notes: notes{log: log}, staleWaits: !cfg.StaleIsReady,
		},
		reloading:  reloading{requests: make(chan chan admin.Reload), hangup: make(chan struct{}, 1)},
		succession: newSuccession(), storing: newStoring(),
	}
	a.cfg.Store(cfg)
	a.since = a.started
	a.telemetry, err = telemetry.New(telemetry.Config{
		Prefix: cfg.Telemetry.MetricsPrefix, Retention: cfg.Telemetry.PrometheusRetentionTime,
		StatsdAddress: cfg.Telemetry.StatsdAddress, StatsiteAddress: cfg.Telemetry.StatsiteAddress,
		DogstatsdAddress: cfg.Telemetry.DogstatsdAddr, DogstatsdTags: cfg.Telemetry.DogstatsdTags,
		PrefixFilter: cfg.Telemetry.PrefixFilter, BlockByDefault: !cfg.Telemetry.FilterDefault,
		EnableHostname: !cfg.Telemetry.DisableHostname, Logger: log,
	})
	if err != nil {
		return nil, configError{err}
	}
	a.gate = lbcore.NewGate(lbcore.GateConfig{
		StuckAfter: cfg.Gate.StuckAfter, MaxStuck: cfg.Gate.MaxStuck, MaxStorage: cfg.Gate.MaxStorage,
		OnStuck: func(s lbcore.Stuck) {
			log.Warn("a reader holds a replaced selector, rebuilds go on without its storage",
				"selector", s.Slot, "bytes", s.Bytes, "readers", s.Readers)
		},
	})
	a.loops = forwarder.NewLoops(forwarder.LoopsConfig{Count: cfg.Relay.EventLoops})
	if a.maxOpen = cfg.Limits.MaxConnections; a.maxOpen == 0 {
		a.maxOpen = forwarder.ConnectionsFor(forwarder.MaxDescriptors())
	}
	a.panics = &contain.Panics{Log: log}
	a.health = healthsvc.NewService(healthsvc.Config{
		Panics:  a.panics,
		Workers: cfg.Health.Workers, MaxWorkers: forwarder.ProbesFor(forwarder.MaxDescriptors(), a.maxOpen), Log: log,
	})
	a.verdicts.svc, a.verdicts.item = a.health, store.Item(lastgood.Key{Kind: "verdicts"})
	a.verdicts.restore(log)
	nc := node.Config{
		State: store, Scope: func(kind string) string { return scopes(a.cfg.Load())[kind] }, StaleWaits: !cfg.StaleIsReady,
		Panics: a.panics, Loops: a.loops, Open: &a.open, MaxOpen: a.maxOpen, Extra: &a.extra,
		Hosts: new(lbcore.Hosts), Gate: a.gate, Health: a.health, DrainTimeout: cfg.DrainTimeout, DrainSpread: cfg.DrainSpread, Logger: log,
		Locality: lbcore.Locality(cfg.Node.Locality),
		OnDone: func(r *forwarder.Record) {
			if a.onDone != nil {
				a.onDone(r)
			}
		},
	}
	a.files.Lost = func(s logfile.Stats) {
		log.Warn("lines of an access log were lost", "path", s.Name, "lines", s.Lost, "err", s.Err)
	}
	nc.Files = &a.files
	nc.Socket = func(listener string, addr lbcore.Addr) (net.Listener, error) {
		ln, err := a.given.take(listener, addr)
		if ln == nil && err == nil {
			ln, err = a.inherited.take(takeover.KindListener, listener, addr)
		}
		if ln == nil && err == nil {
			a.makeWay(addr)
		}
		return ln, err
	}
	nc.Ready, nc.Hold, nc.Change = a.live, a.charge, a.tryChange
	nc.OnChange = func() {
		a.state() // tells when the agent becomes ready
		a.listenersChanged()
	}
	c, err := a.clients(nil, cfg)
	if err != nil {
		return nil, configError{err}
	}
	a.xds.put(c.xds)
	a.xdsConfig.Store(c.xdsConfig)
	a.consul.put(c.consul)
	a.mesh = consul.NewMesh(a.consul.each, log)
	a.dns.Store(c.dns)
	nc.EDS = func(name string, dups *discovery.Duplicates) discovery.Source {
		return &placed[xds.Client]{place: &a.xds, of: func(c *xds.Client) (discovery.Source, error) { return c.EDS(name, dups), nil }}
	}
	nc.Consul = func(d config.Discovery, log *slog.Logger, dups *discovery.Duplicates) (discovery.Source, error) {
		q := consulQuery(d)
		return &placed[consul.Client]{place: &a.consul, of: func(c *consul.Client) (discovery.Source, error) { return c.Service(q, log, dups) }}, q.Validate()
	}
	nc.Mesh = a.mesh
	nc.DNS = func(d config.Discovery, log *slog.Logger, dups *discovery.Duplicates) (discovery.Source, error) {
		q, err := dnsQuery(d)
		if err != nil {
			return nil, err
		}
		return a.dns.Load().Source(q, log, dups) // whoever has such a block has a client
	}
	nc.Nameservers = func() []node.NameserverStatus { return nameserverStatus(a.dns.Load()) }
	if t := cfg.Admin.TLS; t.Enabled() {
		sc := t.Server()
		sc.Logger = log.With("of", "admin")
		if a.adminTLS, err = tlsconf.NewServer(sc); err != nil {
			return nil, configError{fmt.Errorf("admin: %w", err)}
		}
	}
	a.node = node.New(nc)
	return a, nil
}

// adminSocket is whose the unix socket of the admin interface is: who may write to it
// may do what the operator may.
func adminSocket(u config.Unix) forwarder.Socket {
	return forwarder.Socket{Mode: cmp.Or(fs.FileMode(u.Mode), 0o600), User: u.User, Group: u.Group}
}

// run runs the agent until it has drained after drain was closed, until a part
// has failed, or until ctx ends; then it ends at once. Nothing of it runs when
// it returns. A listener that can't be opened is a *node.BindError.
func (a *agent) run(ctx context.Context, drain <-chan struct{}) error {
	defer a.store.Close()
	defer a.inherited.drop()
	adminCfg := a.cfg.Load().Admin
	addr := adminCfg.Address
	ln, err := a.listenAdmin(ctx, addr, adminSocket(adminCfg.Unix))
	if err != nil {
		return &node.BindError{Listener: "admin", Err: fmt.Errorf("admin: listen on %s: %w", addr, err)}
	}
	if parsed, err := lbcore.ParseAddr(ln.Addr().String()); err == nil {
		addr = parsed
	}
	a.adminLn = ln
	a.adminAt.Store(&addr)
	a.log.Info("admin interface", "address", addr)
	a.logLimits()

	defer func() { // after the last connection
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), endLogWithin)
		defer cancel()
		if err := a.files.Close(bounded); err != nil {
			a.log.Warn("access logs were not written to the end", "err", err)
		}
	}()
	ctx, end := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer end(nil)
	gone, leave := context.WithCancelCause(ctx) // when another process has taken over
	defer leave(nil)
	untilGone := func(run func(context.Context) error) func(context.Context) error {
		return after(a.charge, func(context.Context) error {
			if err := run(gone); gone.Err() == nil || ctx.Err() != nil {
				return err
			}
			return nil
		})
	}
	part := func(name string, run func(context.Context) error) {
		wg.Go(func() {
			if err := run(ctx); err != nil && ctx.Err() == nil {
				if a.manager.listens() && !a.draining.Load() { // which has the sockets for the next process
					a.keepFiles()
				}
				end(fmt.Errorf("%s: %w", name, err))
			}
		})
	}
	if a.store != nil {
		a.verdicts.keep(ctx)
		part("state", after(a.charge, a.store.Run))
		part("pruning of the state", after(a.charge, a.prune))
	}
	defer ln.Close() // where it was not served
	part("admin", untilGone(func(ctx context.Context) error {
		return admin.Serve(ctx, ln, a.handler(), admin.ServeConfig{TLS: a.adminTLS, Log: a.log})
	}))
	if a.adminTLS != nil {
		part("certificates of the admin interface", a.adminTLS.Run)
	}
	if a.loops != nil {
		part("event loops", a.loops.Run)
	}
	part("health", a.health.Run)
	part("node", a.node.Run)
	if a.manager != nil {
		part("service manager", after(a.main, a.manager.run))
	}
	part("kept sockets", after(a.main, a.keepSockets))
	part("telemetry", func(ctx context.Context) error { return a.telemetry.Run(ctx, a.collect) })
	part("xds", func(ctx context.Context) error {
		return a.xds.each(ctx, func(ctx context.Context, c *xds.Client) error { return c.Run(ctx) })
	})
	part("consul", func(ctx context.Context) error {
		return a.consul.each(ctx, func(ctx context.Context, c *consul.Client) error { return c.Run(ctx) })
	})
	if a.taker == nil {
		close(a.charge)
		close(a.main)
	}
	if err := a.node.Apply(ctx, a.wanted.files); err != nil {
		if a.taker != nil {
			a.refuse(ctx, err)
		}
		return err
	}
	next := a.takeoverSocket(ctx) // before anybody is told that the agent is ready
	if next != nil {
		defer next.Close()
	}
	close(a.bound)
	a.state()
	if a.taker != nil {
		part("takeover", func(ctx context.Context) error { return a.takeOver(ctx, leave) })
	}
	part("takeovers", after(a.main, func(ctx context.Context) error { return a.takeovers(ctx, next, leave) }))
	part("initial timeout", after(a.charge, a.awaitInitialTimeout))
	part("wanted state", func(ctx context.Context) error { return a.wanted.run(ctx, a.apply, func() { a.state() }) })
	part("clusters", func(ctx context.Context) error {
		return a.xds.each(ctx, func(ctx context.Context, c *xds.Client) error {
			if !a.cfg.Load().XDS.Clusters {
				<-ctx.Done()
				return ctx.Err()
			}
			return c.WatchClusters(ctx, a.wanted.saidClusters)
		})
	})
	part("listeners of the control plane", func(ctx context.Context) error {
		return a.xds.each(ctx, func(ctx context.Context, c *xds.Client) error {
			if !a.cfg.Load().XDS.Listeners {
				<-ctx.Done()
				return ctx.Err()
			}
			return c.WatchListeners(ctx, a.wanted.saidControlListeners)
		})
	})
	part("listeners of the catalog", func(ctx context.Context) error {
		first := true
		return a.consul.each(ctx, func(ctx context.Context, c *consul.Client) error {
			cfg := a.cfg.Load()
			if !cfg.Consul.Listeners {
				<-ctx.Done()
				return ctx.Err()
			}
			listeners := catalog{item: a.store.Item(lastgood.Key{Kind: "listeners", Name: scopes(cfg)[config.DiscoveryConsul]}), said: a.wanted.saidListeners}
			if first { // later ones follow what is in force
				c.ResumeListeners(listeners.restore())
				first = false
			}
			return c.WatchListeners(ctx, listeners.say)
		})
	})
	part("registration", untilGone(func(ctx context.Context) error { // taken back at the end, after the drain
		return a.consul.each(ctx, func(ctx context.Context, c *consul.Client) error {
			r := a.cfg.Load().Consul.Register
			if !r.Enabled {
				<-ctx.Done()
				return ctx.Err()
			}
			return c.Register(ctx, consulRegistration(r, a.cfg.Load().Admin, addr))
		})
	}))
	part("reloads", a.reloads)

	part("drains on demand", func(ctx context.Context) error {
		var wg sync.WaitGroup
		defer wg.Wait()
		for {
			select {
			case graceful := <-a.drains:
				wg.Go(func() { a.drain(ctx, graceful) })
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})

	select {
	case <-drain:
		a.leaveTo()
		a.manager.stop()
		a.drain(ctx, true)
	case <-gone.Done():
		if ctx.Err() == nil {
			a.log.Info("draining", "by", "takeover", "deadline", a.cfg.Load().DrainTimeout, "closing_from", a.closingFrom())
			a.drain(ctx, true)
		}
	case <-ctx.Done():
	}
	if a.store != nil {
		a.verdicts.export(ctx) // before clusters give up their checks
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause // a part failed
	}
	if gone.Err() != nil {
		return a.unwanted
	}
	return nil
}

// drain has no connection accepted any more and waits until the open ones have
// ended, or if bounded for at most drain_timeout.
func (a *agent) drain(ctx context.Context, bounded bool) {
	a.beginDrain()
	if bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, a.cfg.Load().DrainTimeout)
		defer cancel()
	}
	if !a.taking() {
		a.inherited.adopt(a.log)
	}
	a.releaseSockets(ctx)
	if cut := a.node.Drain(ctx); cut > 0 {
		a.log.Warn("connections were cut", "connections", cut)
	}
}

// closingFrom returns after how long of a drain the connections that are left begin to be
// closed, each at a deadline of its own.
func (a *agent) closingFrom() time.Duration {
	cfg := a.cfg.Load()
	return cfg.DrainTimeout - forwarder.DrainSpread(cfg.DrainSpread, cfg.DrainTimeout)
}

// beginDrain says that a drain begins.
func (a *agent) beginDrain() {
	a.draining.Store(true)
	a.leaveOnce.Do(func() { close(a.leaving) })
}

// drainListeners has the listeners drain while the agent runs on. It may be
// called from anywhere, and does not wait.
func (a *agent) drainListeners(graceful bool) {
	a.beginDrain() // for whoever asks right after the answer
	i := 0
	if graceful {
		i = 1
	}
	if !a.asked[i].Swap(true) {
		a.log.Info("draining", "by", "/drain_listeners", "graceful", graceful)
		a.drains <- graceful // has room for one of each
	}
}

// logLimits tells how many connections there may be, and if that is more than
// the descriptors allow.
func (a *agent) logLimits() {
	descriptors := forwarder.MaxDescriptors()
	a.log.Info("limits", "max_connections", a.maxOpen, "descriptors", descriptors)
	if fit := forwarder.ConnectionsFor(descriptors); fit > 0 && a.maxOpen > fit {
		a.log.Warn("max_connections of limits is more than the descriptors allow, raise RLIMIT_NOFILE (LimitNOFILE of systemd)",
			"max_connections", a.maxOpen, "enough_for", fit)
	}
	if fit := forwarder.ProbesFor(descriptors, a.maxOpen); fit > 0 && a.cfg.Load().Health.Workers > fit {
		a.log.Warn("workers of health are more than the descriptors allow, raise RLIMIT_NOFILE (LimitNOFILE of systemd)",
			"workers", a.cfg.Load().Health.Workers, "enough_for", fit)
	}
}

// apply makes spec what the node runs; while the agent drains nothing changes
// any more, which is no error.
func (a *agent) apply(ctx context.Context, spec node.Spec) error {
	err := a.changeListeners(ctx, func() error { return a.node.Apply(ctx, spec) })
	if a.draining.Load() {
		return nil
	}
	return err
}

// awaitInitialTimeout has the agent be ready when it has waited long enough.
func (a *agent) awaitInitialTimeout(ctx context.Context) error {
	limit := a.cfg.Load().InitialTimeout
	if limit == 0 {
		return nil
	}
	timer := time.NewTimer(limit - time.Since(a.since))
	defer timer.Stop()
	select {
	case <-timer.C:
		a.state()
	case <-ctx.Done():
	}
	return nil
}

// state returns the agent's state and what it waits for. Once it has been
// ready it stays so until it drains. It may be called from anywhere.
func (a *agent) state() (admin.State, []string) {
	if a.draining.Load() {
		return admin.Draining, nil
	}
	if a.ready.Load() {
		return admin.Live, nil
	}
	select {
	case <-a.bound:
	default:
		return admin.Initializing, []string{"listeners are not open yet"}
	}
	cfg := a.cfg.Load()
	waiting := append(a.wanted.waiting(muted(cfg)), a.node.Waiting()...)
	limit := cfg.InitialTimeout
	if a.taking() { // the one before serves until all is there
		limit = 0
	}
	stale := a.wanted.stale(muted(cfg)) || a.node.Stale() // which no time makes fresh
	if len(waiting) > 0 && (limit == 0 || time.Since(a.since) < limit || stale) {
		return admin.Initializing, waiting
	}
	if !a.ready.Swap(true) {
		if len(waiting) > 0 {
			a.log.Warn("not all has answered within initial_timeout, ready without", "waiting", waiting)
		}
		a.log.Info("ready", "after", time.Since(a.started).Round(time.Millisecond))
		close(a.live)
	}
	return admin.Live, nil
}

func (a *agent) handler() http.Handler {
	cfg := a.cfg.Load()
	var token func() (string, error)
	if file := cfg.Admin.TokenFile; file != "" {
		token = func() (string, error) { return config.AdminToken(file) }
	}
	return admin.Handler(admin.Config{
		Token: token, Logger: a.log, Panics: a.panics,
		Status: a.node.Status, Summary: a.node.Summary, Cluster: a.node.Cluster, Log: a.recent, HealthChecks: a.health.Keys, State: a.state, Restored: a.restoredLines, Metrics: a.telemetry,
		Store: a.store.Stats, XDS: a.xdsStatus,
		Drain: a.drainListeners, Connections: a.node.Connections, ConfigDump: configdump.New(a.configDump),
		Reload: a.reload, SetEnabled: a.node.SetEnabled, Explain: a.node.Explain, Model: a.node.Model, Level: a.level, Hosts: []string{hostname()},
		Version: versionText(), Node: cfg.Node.ID, Started: a.started,
	})
}

// xdsStatus returns what is known of the control plane, nothing without one.
func (a *agent) xdsStatus() xds.Status {
	if c := a.xds.load(); c != nil {
		return c.Status()
	}
	return xds.Status{}
}

// configDump returns what dumps tell of the configuration in force, once run has
// bound the admin interface.
func (a *agent) configDump() configdump.Config {
	running := a.cfg.Load()
	cfg := configdump.Config{
		Node: xds.Node{
			ID: running.Node.ID, Cluster: running.Node.Cluster, Locality: lbcore.Locality(running.Node.Locality), Metadata: running.Node.Metadata,
		},
		UserAgentName: "gatehouse", Version: versionText(),
		Clusters: running.XDS.Clusters, Listeners: running.XDS.Listeners, Static: running.Clusters, Started: a.started, Warming: a.node.Warming, Status: a.xdsStatus,
	}
	if at := a.adminAt.Load(); at != nil {
		cfg.Admin = *at
	}
	if x := a.xdsConfig.Load(); x != nil {
		cfg.Node, cfg.Servers = x.Node, x.Servers
		cfg.UserAgentName, cfg.Version = cmp.Or(x.UserAgentName, cfg.UserAgentName), cmp.Or(x.Version, cfg.Version)
	}
	return cfg
}

// adminAddr returns where the admin interface listens, once run has bound it.
func (a *agent) adminAddr() string {
	if p := a.adminAt.Load(); p != nil {
		return strings.TrimPrefix(p.String(), "unix://")
	}
	return ""
}
