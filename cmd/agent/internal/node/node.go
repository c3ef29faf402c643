package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse.internal/cmd/agent/internal/accesslog"
	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/discovery"
	"gatehouse.internal/discovery/consul"
	"gatehouse.internal/forwarder"
	"gatehouse.internal/healthsvc"
	"gatehouse.internal/internal/contain"
	"gatehouse.internal/internal/lastgood"
	"gatehouse.internal/internal/logfile"
	"gatehouse.internal/lbcore"
)

// Config configures a Node. Hosts, Gate and Health are required; whoever makes
// the Node runs the health service.
type Config struct {
	Hosts  *lbcore.Hosts
	Gate   *lbcore.Gate
	Health *healthsvc.Service
	// EDS returns the source of an EDS resource; nil where there is no xDS
	// server.
	EDS func(name string, dups *discovery.Duplicates) discovery.Source
	// Consul returns the source of a discovery "consul"; nil where Consul is
	// not used. log is for what does not fail the source.
	Consul func(d config.Discovery, log *slog.Logger, dups *discovery.Duplicates) (discovery.Source, error)
	// Mesh is what the node is in Consul's service mesh; nil where Consul is not used.
	Mesh *consul.Mesh
	// DNS returns the source of a discovery "dns", likewise; nil where no nameserver
	// is asked. Nameservers returns their state for dumps, and may be nil.
	DNS         func(d config.Discovery, log *slog.Logger, dups *discovery.Duplicates) (discovery.Source, error)
	Nameservers func() []NameserverStatus
	// State keeps what sources and operators have said for the next run; nil keeps
	// nothing. Scope returns, for a kind of discovery, what its endpoints depend on
	// beside the settings of the block, as the address of Consul; it is asked when a
	// cluster begins, and required with State.
	State *lastgood.Store
	Scope func(kind string) string
	// StaleWaits has Waiting name clusters whose endpoints are those of an earlier run.
	StaleWaits bool
	// Locality is where the node is, for clusters that prefer what is near.
	Locality lbcore.Locality
	// Loops serve the listeners' connections; nil where goroutines do. They
	// must run as long as Run does.
	Loops *forwarder.Loops
	// Socket, if set, returns the open socket that a listener of this name is to have
	// at this address, nil if it is to open one, or why it can't have one. A listener
	// that is given one accepts when the clusters that it leads to are warm, or Ready
	// is closed, whichever is first; at once if Ready is nil.
	Socket func(listener string, addr lbcore.Addr) (net.Listener, error)
	Ready  <-chan struct{}
	// Hold, if set, keeps all listeners from accepting before it is closed.
	Hold <-chan struct{}
	// Change, if set, runs f, in which an optional listener that could not be opened is
	// tried again, or returns false where none may be opened now, as while another process
	// gets the sockets: then it is tried later. Run's goroutine calls it, and it must not
	// block.
	Change func(f func()) bool
	// DrainTimeout is how long the connections of a listener that has left the
	// configuration may go on; 0 cuts them.
	DrainTimeout time.Duration
	// DrainSpread is how long before the end of a drain connections begin to be
	// closed; see forwarder.Config.
	DrainSpread time.Duration
	// Open counts the connections of all listeners, of which there are MaxOpen
	// at most; see forwarder.Config.
	Open    *forwarder.Count
	MaxOpen int
	// Extra counts the descriptors that they have beyond two each; see
	// forwarder.Config.
	Extra *forwarder.Count
	// OnDone is told of each connection that has ended; see forwarder.Config.
	OnDone func(*forwarder.Record)
	// Files are what access logs are written to. Whoever makes them closes them,
	// after Run has ended. Nil is for a node without access logs.
	Files *logfile.Files
	// Panics contains those of connections, builds and file sources. Nil contains only
	// builds'.
	Panics *contain.Panics
	// OnChange, if set, is called by Run's goroutine when the state of clusters
	// or listeners has changed, or a cluster has become warm. It must not block.
	OnChange func()
	Logger   *slog.Logger // nil means none
}

// Node runs clusters and listeners.
type Node struct {
	cfg      Config
	log      *slog.Logger
	requests chan request
	words    chan enablement
	wake     chan struct{} // a cluster is warm, or a listener has drained
	draining atomic.Bool
	// drainTimeout is in nanoseconds; see SetDrainTimeout.
	drainTimeout atomic.Int64
	tls          tlsClients // of health checks
	table        atomic.Pointer[table]
	circles      forwarder.Circles
	at           atomic.Pointer[map[netip.AddrPort]*forwarder.Listener] // by address
	talk         talk
}

type request struct {
	spec Spec
	done chan error
}

// table is what runs. Run stores a new one after each change.
type table struct {
	clusters    map[string]*cluster // those that serve
	warming     map[string]*cluster // those that are to replace one of them
	aggregates  map[string]*aggregate
	unsupported map[string]string // reasons, by cluster
	listeners   []*listener       // draining ones last
	absent      []ListenerStatus  // that are not open, and why
}

// New returns a Node that runs nothing yet.
func New(cfg Config) *Node {
	n := &Node{cfg: cfg, log: cfg.Logger, requests: make(chan request), words: make(chan enablement), wake: make(chan struct{}, 1)}
	if n.log == nil {
		n.log = slog.New(slog.DiscardHandler)
	}
	if n.cfg.Files == nil {
		n.cfg.Files = new(logfile.Files)
	}
	if n.cfg.Change == nil {
		n.cfg.Change = func(f func()) bool { f(); return true }
	}
	n.table.Store(new(table))
	n.SetDrainTimeout(cfg.DrainTimeout)
	return n
}

// listenerAt returns the listener that is for connections to an address: the one
// with that address, or else one of its port on all addresses, or nil. It may be
// called from anywhere. Source: Envoy's ConnectionHandler.
func (n *Node) listenerAt(to netip.AddrPort) *forwarder.Listener {
	p := n.at.Load()
	if p == nil {
		return nil
	}
	if l := (*p)[to]; l != nil {
		return l
	}
	if to.Addr().Is4() {
		if l := (*p)[netip.AddrPortFrom(netip.IPv4Unspecified(), to.Port())]; l != nil {
			return l
		}
	}
	return (*p)[netip.AddrPortFrom(netip.IPv6Unspecified(), to.Port())]
}

// Apply makes spec what runs: what is new is started, what has changed is
// replaced, what is gone is drained, and what is the same is not touched. It
// returns when that is in force, but for clusters that are being warmed, and for
// endpoints that a cluster lists, which it takes up in the background. On an
// error, a *BindError among them, nothing has changed. It may be called from
// anywhere while Run runs, and waits for it otherwise. Spec.Optional listeners
// that can't be opened are no error: they are tried again, see Spec.
func (n *Node) Apply(ctx context.Context, spec Spec) error {
	r := request{spec, make(chan error, 1)}
	select {
	case n.requests <- r:
		return <-r.done
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Drain stops accepting connections on every listener, waits until the open
// ones have ended or ctx ends, and cuts the rest, whose number it returns.
// Apply is refused from then on.
func (n *Node) Drain(ctx context.Context) (cut int) {
	n.draining.Store(true)
	var wg sync.WaitGroup
	var total atomic.Int64
	for _, l := range n.table.Load().listeners {
		wg.Go(func() { total.Add(int64(l.fwd.Drain(ctx))) })
	}
	wg.Wait()
	return int(total.Load())
}

// Waiting says, a line each, what keeps clusters that are required, and listeners of
// Consul's service mesh, from taking connections for the first time. It may be called
// from anywhere.
func (n *Node) Waiting() (lines []string) {
	t := n.table.Load()
	for _, name := range slices.Sorted(maps.Keys(t.clusters)) {
		c := t.clusters[name]
		why := ""
		if c.cfg.Required && !c.warm.Load() {
			why = c.waiting()
		}
		if why == "" && c.cfg.Required && n.cfg.StaleWaits {
			why = c.restored()
		}
		if why != "" {
			lines = append(lines, fmt.Sprintf("cluster %q: %s", name, why))
		}
	}
	for _, l := range t.listeners {
		if why := l.shown.Load().tls.waiting(); why != "" && !l.draining.Load() {
			lines = append(lines, fmt.Sprintf("listener %q: %s", l.fwd.Name(), why))
		}
	}
	return lines
}

// Stale reports whether Waiting names clusters because of StaleWaits. It may be called
// from anywhere.
func (n *Node) Stale() bool {
	if !n.cfg.StaleWaits {
		return false
	}
	for _, c := range n.table.Load().clusters {
		if c.cfg.Required && c.restored() != "" {
			return true
		}
	}
	return false
}

// Restored says, a line each, which clusters have endpoints of an earlier run, whose
// source has not answered since. It may be called from anywhere.
func (n *Node) Restored() (lines []string) {
	t := n.table.Load()
	for _, name := range slices.Sorted(maps.Keys(t.clusters)) {
		if what := t.clusters[name].restored(); what != "" {
			lines = append(lines, fmt.Sprintf("cluster %q: %s", name, what))
		}
	}
	return lines
}

// Warming returns the names of the clusters that can't take connections yet, or not
// with their newest settings, sorted. It may be called from anywhere.
func (n *Node) Warming() (names []string) {
	t := n.table.Load()
	for name, c := range t.clusters {
		if !c.warm.Load() || t.warming[name] != nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Status describes everything. It may be called from anywhere.
func (n *Node) Status() Status { return n.status(true) }

// Summary is Status without Endpoints, for who asks often: thousands of endpoints
// take milliseconds. It may be called from anywhere.
func (n *Node) Summary() Status { return n.status(false) }

func (n *Node) status(endpoints bool) Status {
	t := n.table.Load()
	var st Status
	for name, c := range t.clusters {
		cs := c.status(endpoints)
		if next := t.warming[name]; next != nil {
			cs.Waiting = "changed settings are not in force yet: " + next.waiting()
		}
		st.Clusters = append(st.Clusters, cs)
	}
	for _, a := range t.aggregates {
		st.Clusters = append(st.Clusters, a.status())
	}
	for name, reason := range t.unsupported {
		st.Clusters = append(st.Clusters, ClusterStatus{
			Name: name, Origin: string(config.OriginXDS), Unsupported: reason,
			Source: SourceStatus{State: discovery.State{}.Phase().String()},
		})
	}
	slices.SortFunc(st.Clusters, func(a, b ClusterStatus) int { return strings.Compare(a.Name, b.Name) })
	for _, l := range t.listeners {
		st.Listeners = append(st.Listeners, l.status())
	}
	st.Listeners = append(st.Listeners, t.absent...)
	slices.SortStableFunc(st.Listeners, func(a, b ListenerStatus) int { return strings.Compare(a.Name, b.Name) })
	if n.cfg.Nameservers != nil {
		st.Nameservers = n.cfg.Nameservers()
	}
	return st
}

// used is called by a cluster's first connection.
func (n *Node) used(name string) {
	t := n.table.Load()
	for _, c := range []*cluster{t.clusters[name], t.warming[name]} {
		if c != nil {
			poke(c.wake)
		}
	}
}

// Connections returns open connections of the listeners of a name, or of all for
// "", at most most; see forwarder.Listener.Connections.
func (n *Node) Connections(ctx context.Context, listener string, most int) (all []forwarder.Connection, err error) {
	for _, l := range n.table.Load().listeners {
		if len(all) >= most || listener != "" && l.fwd.Name() != listener {
			continue
		}
		some, lerr := l.fwd.Connections(ctx, most-len(all))
		all, err = append(all, some...), errors.Join(err, lerr)
	}
	return all, err
}

// Run runs what Apply asks for until ctx ends, and returns ctx.Err() when
// nothing of it runs any more: connections are cut then.
func (n *Node) Run(ctx context.Context) error {
	r := &runner{n: n, clusters: make(map[string]*entry), listeners: make(map[string]*listener), tls: make(map[string]*downstreamTLS), closed: make(map[string]*closed)}
	r.retry = time.NewTimer(0)
	defer r.retry.Stop()
	for {
		select {
		case req := <-n.requests:
			req.done <- r.apply(ctx, req.spec)
		case e := <-n.words:
			e.done <- r.tell(e)
		case <-n.wake:
			r.settle()
		case <-r.retry.C:
			r.openAgain(ctx)
		case <-ctx.Done():
			r.wg.Wait()
			return ctx.Err()
		}
	}
}

// runner is the state of Run's goroutine.
type runner struct {
	n         *Node
	wg        sync.WaitGroup
	clusters  map[string]*entry
	combined  []config.Cluster  // those that consist of others
	reasons   map[string]string // of unsupported clusters
	listeners map[string]*listener
	tls       map[string]*downstreamTLS // by listener
	leaving   []*listener
	over      []*cluster                 // that end once no listener asks them
	removed   []*cluster                 // those of them that no other replaces
	closed    map[string]*closed         // optional listeners that can't be opened
	refused   []ListenerStatus           // of the spec
	retry     *time.Timer                // of closed
	logs      map[string]*accesslog.Logs // that are to replace those of listeners; see put
}

// entry is a cluster's place in the table.
type entry struct {
	serving *cluster
	next    *cluster // replaces serving once it is warm, or nil
}

// unchanged tells of a cluster of the control plane that can't have its new settings.
func (r *runner) unchanged(cfg config.Cluster, err error) {
	r.n.log.Warn("a cluster of the control plane can't be changed, what ran runs on", "cluster", cfg.Name, "err", err)
}

func (r *runner) apply(ctx context.Context, spec Spec) error {
	if r.n.draining.Load() {
		return errors.New("the agent is draining")
	}
	if err := spec.validate(); err != nil {
		return err
	}
	// First everything that can fail, with no effect yet.
	fresh := make(map[string]*cluster)
	started := false
	defer func() {
		if !started {
			for _, c := range fresh {
				c.letGo()
			}
		}
	}()
	var changes []func()
	var combined []config.Cluster
	for _, cfg := range spec.Clusters {
		if len(cfg.Aggregate) > 0 {
			combined = append(combined, cfg)
			continue
		}
		var before *cluster
		if e := r.clusters[cfg.Name]; e != nil {
			if c := e.alike(cfg); c != nil {
				more, err := c.relist(cfg)
				if err != nil {
					if cfg.Origin != config.OriginXDS {
						return err
					}
					r.unchanged(cfg, err)
					continue
				}
				changes = append(changes, more...)
				if c == e.serving { // changed back, if there is a next
					changes = append(changes, e.dropNext)
				}
				continue
			}
			before = e.serving
		}
		c, err := r.n.newCluster(cfg, before, func() { poke(r.n.wake) })
		switch {
		case err == nil:
			fresh[cfg.Name] = c
		case cfg.Origin != config.OriginXDS:
			return err
		case before == nil: // one that can't be run is no reason to run none
			spec.Unsupported = append(slices.Clip(spec.Unsupported), Unsupported{Name: cfg.Name, Reason: err.Error(), Origin: cfg.Origin})
		default:
			r.unchanged(cfg, err)
		}
	}
	if err := r.openLogs(spec.Listeners); err != nil {
		return err
	}
	opened, secured, err := r.openAll(ctx, spec.Listeners, spec.Optional)
	if err == nil {
		if err = r.setAll(spec.Listeners, secured); err != nil {
			dropAll(ctx, opened)
		}
	}
	if err != nil {
		for _, l := range r.logs {
			l.Close()
		}
		return err
	}

	started = true
	for _, change := range changes {
		change()
	}
	r.combined = combined
	keep := make(map[string]bool)
	for _, cfg := range spec.Clusters {
		keep[cfg.Name] = len(cfg.Aggregate) == 0
		if c := fresh[cfg.Name]; c != nil {
			r.start(ctx, c)
		}
	}
	for name, e := range r.clusters {
		if !keep[name] {
			r.over = append(r.over, e.serving)
			r.removed = append(r.removed, e.serving)
			e.dropNext()
			delete(r.clusters, name)
			r.n.log.Info("cluster removed", "cluster", name)
		}
	}
	r.reasons = make(map[string]string)
	for _, u := range spec.Unsupported {
		r.reasons[u.Name] = u.Reason
	}
	r.refused = nil
	for _, u := range spec.UnsupportedListeners {
		r.refused = append(r.refused, ListenerStatus{Name: u.Name, Origin: string(u.Origin), Unsupported: u.Reason})
	}
	r.adopt(ctx, spec.Listeners, spec.Optional, opened, secured)
	return nil
}

func (e *entry) dropNext() {
	if e.next != nil {
		e.next.cancel()
		e.next.free()
		e.next = nil
	}
}

// start runs c, in the place of an older one as soon as c is warm, or at once if
// that one never was.
func (r *runner) start(ctx context.Context, c *cluster) {
	e := r.clusters[c.cfg.Name]
	asked, free := context.WithCancel(ctx)
	ctx, c.cancel = context.WithCancel(ctx)
	c.free = free
	for _, change := range c.transport.rotate(c.transport.want) { // of what it has taken over
		change()
	}
	r.wg.Go(func() { c.run(ctx, asked) })
	if e == nil {
		r.clusters[c.cfg.Name] = &entry{serving: c}
		c.log.Info("cluster added", "origin", c.cfg.Origin)
		return
	}
	e.dropNext()
	e.next = c
	c.log.Info("cluster changed", "origin", c.cfg.Origin)
}

// settle lets warm replacements take over, forgets listeners that have
// drained, points listeners to their clusters and publishes the table.
func (r *runner) settle() {
	var turned []*cluster
	t := &table{clusters: make(map[string]*cluster), warming: make(map[string]*cluster), unsupported: r.reasons}
	for name, e := range r.clusters {
		if e.next != nil && (e.next.warm.Load() || !e.serving.warm.Load()) {
			r.over = append(r.over, e.serving)
			e.serving, e.next = e.next, nil
			turned = append(turned, e.serving)
		}
		t.clusters[name] = e.serving
		if e.next != nil {
			t.warming[name] = e.next
		}
	}
	t.aggregates = r.aggregates(t.clusters)
	r.leaving = slices.DeleteFunc(r.leaving, func(l *listener) bool { return l.ended.Load() })
	asked := make(map[*cluster]bool) // by what listeners had accepted before they left, or their chains
	aim := func(l *listener) {
		for _, w := range l.ways() {
			if w.aim(t); w.left {
				for _, to := range w.routes.Load().targets {
					asked[to.cluster] = true
					if to.several != nil {
						for _, c := range to.several.members {
							asked[c] = true
						}
					}
				}
			}
		}
	}
	at := make(map[netip.AddrPort]*forwarder.Listener)
	for _, name := range slices.Sorted(maps.Keys(r.listeners)) {
		l := r.listeners[name]
		l.former = slices.DeleteFunc(l.former, func(c *chain) bool { return c.ended.Load() })
		aim(l)
		l.release(r.tls[name])
		t.listeners = append(t.listeners, l)
		if a := l.fwd.Addr().AddrPort(); a.IsValid() {
			at[a] = l.fwd
		}
	}
	for _, l := range r.leaving {
		aim(l)
	}
	t.listeners = append(t.listeners, r.leaving...)
	r.over = slices.DeleteFunc(r.over, func(c *cluster) bool {
		c.cancel()
		if !asked[c] {
			c.free()
		}
		return !asked[c]
	})
	t.absent = slices.Clone(r.refused)
	for _, c := range r.closed {
		t.absent = append(t.absent, c.status())
	}
	r.n.table.Store(t)
	r.n.at.Store(&at)
	for _, c := range r.removed {
		c.removed(t.listeners)
	}
	r.removed = nil
	for _, c := range turned {
		poke(c.wake) // it has a say from now on
	}
	if r.n.cfg.OnChange != nil {
		r.n.cfg.OnChange()
	}
}
