package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse.internal/cmd/agent/internal/admin"
	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/cmd/agent/internal/node"
	"gatehouse.internal/cmd/agent/internal/telemetry"
	"gatehouse.internal/discovery"
	"gatehouse.internal/forwarder"
	"gatehouse.internal/healthsvc"
	"gatehouse.internal/lbcore"
	"gatehouse.internal/xds"
)

// configError is a mistake in a configuration that shows only when it is used.
type configError struct{ error }

// agent is everything that runs.
type agent struct {
	cfg     *config.Config
	log     *slog.Logger
	started time.Time

	gate      *lbcore.Gate
	health    *healthsvc.Service
	xds       *xds.Client // nil without a control plane
	node      *node.Node
	telemetry *telemetry.Telemetry
	onDone    func(*forwarder.Record) // set before run, or nil

	bound     chan struct{} // closed when adminAddr and the listeners are bound
	adminAt   atomic.Pointer[lbcore.Addr]
	cds       atomic.Pointer[xds.ClustersUpdate] // the newest that is in force, nil before the first
	ready     atomic.Bool                        // stays set
	draining  atomic.Bool
	shadowed  []string // names that the control plane gave in vain; the wanted state's goroutine
	fileState node.Spec
}

// newAgent returns an agent that run will start.
func newAgent(cfg *config.Config, log *slog.Logger) (*agent, error) {
	a := &agent{
		cfg: cfg, log: log, started: time.Now(), bound: make(chan struct{}),
		fileState: node.Spec{Clusters: cfg.Clusters, Listeners: cfg.Listeners},
	}
	var err error
	a.telemetry, err = telemetry.New(telemetry.Config{
		Prefix: cfg.Telemetry.MetricsPrefix, Retention: cfg.Telemetry.PrometheusRetentionTime,
		StatsdAddress: cfg.Telemetry.StatsdAddress, EnableHostname: !cfg.Telemetry.DisableHostname, Logger: log,
	})
	if err != nil {
		return nil, configError{err}
	}
	a.gate = lbcore.NewGate(lbcore.GateConfig{
		StuckAfter: cfg.Gate.StuckAfter, MaxStuck: cfg.Gate.MaxStuck,
		OnStuck: func(s lbcore.Stuck) {
			log.Warn("a reader holds a replaced selector, rebuilds go on without its storage",
				"selector", s.Slot, "bytes", s.Bytes, "readers", s.Readers)
		},
	})
	a.health = healthsvc.NewService(healthsvc.Config{Workers: cfg.Health.Workers, Log: log})
	nc := node.Config{
		Hosts: new(lbcore.Hosts), Gate: a.gate, Health: a.health, DrainTimeout: cfg.DrainTimeout, Logger: log,
		OnDone: func(r *forwarder.Record) {
			if a.onDone != nil {
				a.onDone(r)
			}
		},
	}
	nc.OnChange = func() { a.state() } // tells when the agent becomes ready
	if xc, err := bootstrap(cfg); err != nil {
		return nil, configError{err}
	} else if xc != nil {
		xc.Logger = log
		if a.xds, err = xds.NewClient(*xc); err != nil {
			return nil, configError{err}
		}
		nc.EDS = func(name string, dups *discovery.Duplicates) discovery.Source { return a.xds.EDS(name, dups) }
	}
	a.node = node.New(nc)
	return a, nil
}

// bootstrap returns how the control plane is reached, or nil without one.
func bootstrap(cfg *config.Config) (*xds.Config, error) {
	if !cfg.XDS.Enabled() {
		return nil, nil
	}
	xc := xds.Config{ServerURI: cfg.XDS.ServerURI, Node: xds.Node{
		ID: cfg.Node.ID, Cluster: cfg.Node.Cluster, Locality: lbcore.Locality(cfg.Node.Locality), Metadata: cfg.Node.Metadata,
	}}
	if cfg.XDS.Bootstrap != "" { // its node goes before the node block
		var err error
		if xc, err = xds.LoadBootstrap(cfg.XDS.Bootstrap); err != nil {
			return nil, err
		}
		xc.Node.ID = cmp.Or(xc.Node.ID, cfg.Node.ID)
	}
	xc.Version = versionText()
	return &xc, nil
}

// run runs the agent until it has drained after drain was closed, until a part
// has failed, or until ctx ends; then it ends at once. Nothing of it runs when
// it returns. A listener that can't be opened is a *node.BindError.
func (a *agent) run(ctx context.Context, drain <-chan struct{}) error {
	ln, err := forwarder.PlainListen(ctx, a.cfg.Admin.Address)
	if err != nil {
		return &node.BindError{Listener: "admin", Err: fmt.Errorf("admin: listen on %s: %w", a.cfg.Admin.Address, err)}
	}
	addr := a.cfg.Admin.Address
	if parsed, err := lbcore.ParseAddr(ln.Addr().String()); err == nil {
		addr = parsed
	}
	a.adminAt.Store(&addr)
	a.log.Info("admin interface", "address", addr)

	ctx, end := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer end(nil)
	part := func(name string, run func(context.Context) error) {
		wg.Go(func() {
			if err := run(ctx); err != nil && ctx.Err() == nil {
				end(fmt.Errorf("%s: %w", name, err))
			}
		})
	}
	part("admin", func(ctx context.Context) error { return admin.Serve(ctx, ln, a.handler()) })
	part("health", a.health.Run)
	part("node", a.node.Run)
	part("telemetry", func(ctx context.Context) error { return a.telemetry.Run(ctx, a.collect) })
	if a.xds != nil {
		part("xds", a.xds.Run)
	}
	if err := a.node.Apply(ctx, a.fileState); err != nil {
		return err
	}
	close(a.bound)
	a.state()
	if a.xds != nil && a.cfg.XDS.Clusters {
		part("clusters", func(ctx context.Context) error {
			return a.xds.WatchClusters(ctx, func(u xds.ClustersUpdate) { a.takeClusters(ctx, u) })
		})
	}

	select {
	case <-drain:
		a.draining.Store(true)
		bounded, cancel := context.WithTimeout(ctx, a.cfg.DrainTimeout)
		defer cancel()
		if cut := a.node.Drain(bounded); cut > 0 {
			a.log.Warn("connections were cut", "connections", cut)
		}
	case <-ctx.Done():
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause // a part failed
	}
	return nil
}

// takeClusters makes what the control plane says part of the wanted state.
func (a *agent) takeClusters(ctx context.Context, u xds.ClustersUpdate) {
	before := a.cds.Load()
	if !u.Known || before != nil && before.Known && slices.Equal(before.Clusters, u.Clusters) && slices.Equal(before.Rejected, u.Rejected) {
		a.cds.Store(&u)
		return
	}
	clusters, unsupported := node.FromXDS(u.Clusters)
	for _, r := range u.Rejected { // of those with a version before, that one runs
		if !slices.ContainsFunc(u.Clusters, func(c *xds.Cluster) bool { return c.Name == r.Name }) && r.Name != "" {
			unsupported = append(unsupported, node.Unsupported{Name: r.Name, Reason: "rejected: " + r.Reason})
		}
	}
	spec, shadowed := a.fileState.With(clusters, unsupported)
	if !slices.Equal(shadowed, a.shadowed) {
		a.shadowed = shadowed
		if len(shadowed) > 0 {
			a.log.Warn("clusters of the control plane are not used, a file has clusters of these names", "clusters", shadowed)
		}
	}
	for _, c := range u.Clusters {
		if len(c.Ignored) > 0 && (before == nil || !slices.Contains(before.Clusters, c)) {
			a.log.Info("cluster has settings that are not applied", "cluster", c.Name, "settings", c.Ignored)
		}
	}
	for _, un := range spec.Unsupported {
		if before == nil || !slices.ContainsFunc(before.Clusters, func(c *xds.Cluster) bool { return c.Name == un.Name && c.Unsupported == un.Reason }) {
			a.log.Warn("cluster is not supported and refuses connections", "cluster", un.Name, "reason", un.Reason)
		}
	}
	if err := a.node.Apply(ctx, spec); err != nil {
		if ctx.Err() == nil && !a.draining.Load() {
			a.log.Error("clusters of the control plane are not applied", "err", err)
		}
		return
	}
	a.cds.Store(&u) // not before: the agent is not ready until the clusters are there
	a.state()
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
	var waiting []string
	if a.xds != nil && a.cfg.XDS.Clusters {
		switch u := a.cds.Load(); {
		case u != nil && u.Known:
		case u != nil && u.Err != nil:
			waiting = append(waiting, fmt.Sprintf("clusters of the control plane: %v", u.Err))
		default:
			waiting = append(waiting, "clusters of the control plane: no answer yet")
		}
	}
	waiting = append(waiting, a.node.Waiting()...)
	if len(waiting) > 0 {
		return admin.Initializing, waiting
	}
	if !a.ready.Swap(true) {
		a.log.Info("ready", "after", time.Since(a.started).Round(time.Millisecond))
	}
	return admin.Live, nil
}

func (a *agent) handler() http.Handler {
	return admin.Handler(admin.Config{
		Status: a.node.Status, State: a.state, Metrics: a.telemetry,
		Version: versionText(), Node: a.cfg.Node.ID, Started: a.started,
	})
}

// adminAddr returns where the admin interface listens, once run has bound it.
func (a *agent) adminAddr() string {
	if p := a.adminAt.Load(); p != nil {
		return strings.TrimPrefix(p.String(), "unix://")
	}
	return ""
}
