package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/discovery"
	"gatehouse.internal/forwarder"
	"gatehouse.internal/healthsvc"
	"gatehouse.internal/healthsvc/outlier"
	"gatehouse.internal/internal/contain"
	"gatehouse.internal/internal/lastgood"
	"gatehouse.internal/internal/loglimit"
	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/adaptive"
	"gatehouse.internal/lbcore/leastweight"
	"gatehouse.internal/lbcore/maglev"
	"gatehouse.internal/lbcore/random"
	"gatehouse.internal/lbcore/ringhash"
	"gatehouse.internal/lbcore/roundrobin"
)

// sweepEvery is how often a cluster looks whether endpoints that have left are
// still in use.
const sweepEvery = 10 * time.Second

// growEvery is how often the weights of endpoints that start slowly grow.
const growEvery = 100 * time.Millisecond

// cluster runs one cluster. Its owner is the goroutine of run; the fields that
// others may use say so.
type cluster struct {
	heritage
	table *atomic.Pointer[table] // the Node's
	cfg   config.Cluster         // but for the endpoints that it lists
	log   *slog.Logger
	talk  *talk

	sources                     // Run's goroutine changes what is listed
	latest    *discovery.Latest // anybody
	dups      *discovery.Duplicates
	view      *lbcore.View
	group     *lbcore.Group                   // anybody
	chains    atomic.Pointer[[]*lbcore.Chain] // of the aggregate clusters that it is of; Node's goroutine writes
	checks    checks
	dial      *forwarder.Dial    // never written
	transport *transport         // anybody
	mesh      *upstreamMesh      // never written; nil where endpoints are of no mesh
	none      *forwarder.Refusal // never written

	drops   atomic.Pointer[dropping] // what discovery wants dropped; nil for nothing
	present lbcore.Drops             // the same, as discovery has it

	wake  chan struct{} // health changed, or a selector was published
	asked chan enablement
	over  chan struct{} // closed when nobody reads asked any more
	phase discovery.Phase
	why   string           // discovery can't tell, as logged last
	kept  kept             // what the operator has said, on disk
	gone  Totals           // of members that were forgotten
	stale bool             // shown is out of date
	held  *lbcore.Snapshot // not rebuilt yet, see release

	// Where sources can be asked to look anew: a dial has failed, when the owner saw
	// that, and how many had succeeded before.
	dialFailed  atomic.Bool
	failedSince time.Time // zero if none has
	opened      uint64

	endpoints []*tracked // every member's, by address; never written
	moved     bool       // a member was forgotten
	outliers  *outlier.Detector
	panics    map[panicking]bool

	shown  atomic.Pointer[shown]         // what dumps read
	judged atomic.Pointer[outlier.Stats] // too
	warm   atomic.Bool                   // stays set
	onWarm func()                        // must not block
	letGo  func()                        // gives back what newCluster took
	cancel context.CancelFunc            // the Node's: ends it, and
	free   context.CancelFunc            // says that no listener asks it any more
}

// shown is what the owner shows of its state. It is never written.
type shown struct {
	endpoints []*tracked
	manual    map[lbcore.Addr]bool      // for the cluster that replaces this one
	former    map[lbcore.Addr]time.Time // too
	refs      map[lbcore.Addr][]*healthsvc.Ref
	gone      Totals
}

// newCluster returns a cluster that run will start, in the place of before if
// that is not nil; if nobody runs it, letGo is to be called. onWarm is called when
// it has become warm.
func (n *Node) newCluster(cfg config.Cluster, before *cluster, onWarm func()) (*cluster, error) {
	log := n.log.With("cluster", cfg.Name)
	c := &cluster{
		cfg: unlisted(cfg), log: log, latest: discovery.NewLatest(), dups: &discovery.Duplicates{Logger: log},
		dial: &forwarder.Dial{
			Cluster: cfg.Name, Timeout: cfg.ConnectTimeout, Attempts: cfg.MaxConnectAttempts,
			ProxyVersion: byte(cfg.ProxyProtocol.Version), ProxyUniqueID: cfg.ProxyProtocol.UniqueID,
		},
		none: &forwarder.Refusal{Flag: forwarder.FlagUH, Reason: fmt.Sprintf("cluster %q has no endpoint that is ready", cfg.Name)},
		wake: make(chan struct{}, 1), asked: make(chan enablement), over: make(chan struct{}), onWarm: onWarm, heritage: before.bequeath(), table: &n.table, talk: &n.talk,
	}
	for _, t := range cfg.ProxyProtocol.PassThroughTLVs {
		if b, ok := config.ParseByte(t); ok {
			c.dial.ProxyTLVs = append(c.dial.ProxyTLVs, b)
		} else { // it was checked
			c.dial.ProxyAllTLVs = true
		}
	}
	setSockets(c.dial, &cfg)
	if before == nil {
		c.open.OnUse = func() { n.used(cfg.Name) }
	}
	c.dial.Ends, c.dial.Open, c.dial.Pending, c.dial.Latency, c.dial.TLSFailures = c.ends, c.open, c.pending, c.latency, c.failures
	switch {
	case !cfg.LoadReports:
		c.loads = nil
	case c.loads == nil:
		c.loads = newLoads(c.dropped())
	}
	b := cfg.CircuitBreakers
	c.dial.MaxConnections, c.dial.MaxPending, c.dial.MaxPerEndpoint = b.MaxConnections, b.MaxPendingRequests, b.MaxConnectionsPerEndpoint
	var err error
	if c.sources, err = n.sources(cfg, before == nil, c.dups); err != nil {
		return nil, err
	}
	if c.transport, err = fileTransport(&cfg, log); err != nil {
		return nil, err
	}
	if c.mesh, err = n.upstreamConnect(&cfg); err != nil {
		return nil, err
	}
	c.kept.item = n.cfg.State.Item(lastgood.Key{Kind: "enablement", Name: cfg.Name})
	if before == nil {
		c.manual = c.kept.load(log)
	}
	c.checks = checks{
		svc: n.cfg.Health, cluster: cfg.Name, cfg: cfg.HealthChecks, traffic: c.open.Used(),
		via:  healthsvc.Transport{Source4: c.dial.Source4, Source6: c.dial.Source6, Mark: c.dial.Mark},
		wake: func() { poke(c.wake) }, refs: make(map[lbcore.Addr][]*healthsvc.Ref),
	}
	c.outliers = outlier.New(outlier.Config(cfg.OutlierDetection), nil)
	c.view = lbcore.NewView(cfg.Name, n.cfg.Hosts, lbcore.ViewConfig{
		Bind: c.checks.bind, Unbind: c.unbind, Drop: c.forget, InitialHealthy: c.checks.initialHealthy(),
		Stabilize: cfg.OnAbsent == config.AbsentStabilize,
		SlowStart: slowStart(cfg.SlowStart), Manual: c.manual, Streaks: c.streaks(),
	})
	slots := make([]lbcore.SlotConfig, len(cfg.Selectors))
	for i, s := range cfg.Selectors {
		if slots[i], err = slot(s); err != nil {
			return nil, fmt.Errorf("cluster %q: %w", cfg.Name, err)
		}
		if policy, ok := slots[i].Builder.(adaptive.Config); ok {
			// All connections teach, whichever selector they were made by.
			c.dial.Observe = func(m *lbcore.Member, took time.Duration) { policy.Observe(m, uint64(took.Microseconds())) }
			c.dial.Failed = adaptive.Failed
			c.dial.FirstByte = s.LatencyOf == config.LatencyFirstByte
		}
	}
	if c.refreshes() {
		learn := c.dial.Failed
		c.dial.Failed = func(m *lbcore.Member) {
			if learn != nil {
				learn(m)
			}
			if !c.dialFailed.Swap(true) {
				poke(c.wake)
			}
		}
	}
	var told sync.Map // of each slot, the failure that was logged last
	c.group = lbcore.NewGroup(lbcore.GroupConfig{
		View: c.view, Gate: n.cfg.Gate, Slots: slots, Wake: c.wake,
		Spread: spread(&c.cfg, n.cfg.Locality),
		OnError: func(slot string, generation uint64, err error) {
			if p, ok := errors.AsType[*lbcore.PanicError](err); ok {
				err = n.cfg.Panics.Caught(contain.Build, p.Value, p.Stack) // which logs the stack
			}
			// Attempts go on for as long as it takes; one line says what is wrong.
			text := fmt.Sprint(generation, err)
			if last, _ := told.Swap(slot, text); last == text {
				return
			}
			what := "selector was not rebuilt, the last one serves on"
			if c.group.Slot(slot).Stats().Rebuilds == 0 {
				what = "selector was not built, it serves nothing yet"
			}
			log.Error(what, "selector", slot, "generation", generation, "err", err)
		},
	})
	c.kept.said = c.manual
	c.judged.Store(new(c.outliers.Stats()))
	c.chains.Store(new([]*lbcore.Chain))
	c.shown.Store(&shown{manual: c.manual, former: maps.Clone(c.former)})
	if c.checks.tls, err = n.tls.takeChecks(&cfg, n.log); err != nil {
		return nil, err
	}
	taken := c.checks.tls
	if cfg.Transport != nil {
		c.transport = n.tls.controlTransport(cfg.Name, cfg.Transport, log)
		c.checks.transport = c.transport
		taken = append(taken, c.transport.shared()...)
	}
	if c.mesh != nil {
		c.dial.TLS = c.mesh.config
	}
	if c.transport.secures() {
		c.dial.TLS = c.transport.config
		if len(c.transport.matches) > 0 {
			c.dial.Plain = c.transport.isPlain
		}
	}
	c.letGo = func() {
		n.tls.release(taken...)
		c.kept.item.Release()
	}
	return c, nil
}

// slot returns the builder that a selector's settings ask for.
func slot(s config.Selector) (lbcore.SlotConfig, error) {
	sc := lbcore.SlotConfig{Name: s.Name, Policy: s.Policy, BalanceFactor: s.HashBalanceFactor}
	switch s.Policy {
	case config.PolicyRoundRobin:
		sc.Builder = roundrobin.Config{}
	case config.PolicyRandom:
		sc.Builder = random.Config{}
	case config.PolicyRingHash:
		rc := ringhash.Config{MinimumSize: s.MinimumRingSize, MaximumSize: s.MaximumRingSize}
		switch s.HashFunction {
		case config.HashMurmur2:
			rc.Function = ringhash.MurmurHash2
		case config.HashKetama:
			rc.Function = ringhash.Ketama
		}
		sc.Builder = rc
	case config.PolicyMaglev:
		sc.Builder = maglev.Config{TableSize: s.TableSize}
	case config.PolicyLeastWeight:
		sc.Builder = leastweight.Config{Choices: s.ChoiceCount, Bias: &s.ActiveRequestBias}
	case config.PolicyAdaptive:
		sc.Builder = adaptive.Config{Rank: adaptive.Inverse{}}
	default:
		return sc, fmt.Errorf("selector %q: policy %q is not known", s.Name, s.Policy)
	}
	return sc, nil
}

// run owns the cluster until ctx ends, and answers those who pick, with what there
// is then, until asked ends too.
func (c *cluster) run(ctx, asked context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := c.source.Watch(ctx, c.latest); ctx.Err() == nil {
			c.latest.Fail(err) // no retry can help
		}
	})
	wg.Go(func() { c.group.Run(ctx) })
	for _, s := range c.checks.tls {
		if s != nil {
			wg.Go(func() { s.run(ctx) })
		}
	}
	for _, s := range c.transport.shared() {
		if client, err := s.get(); err == nil {
			logTLS(c.log, client.Status())
		} else {
			c.log.Error("endpoints are not dialled for want of tls", "err", err)
		}
		wg.Go(func() { s.run(ctx) })
	}
	if c.mesh != nil {
		wg.Go(func() { c.mesh.Run(ctx) })
	}
	certificate := c.mesh.changed()
	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	grow := time.NewTimer(0) // runs only while a weight grows
	grow.Stop()
	defer grow.Stop()
	judge := time.NewTicker(max(c.cfg.OutlierDetection.Interval, time.Millisecond))
	defer judge.Stop()
	if !c.cfg.OutlierDetection.Enabled {
		judge.Stop()
	}
	recheck := time.NewTimer(0) // runs only while a passing check may end an ejection
	recheck.Stop()
	defer recheck.Stop()
	look := time.NewTimer(0) // runs only after dials have failed
	look.Stop()
	defer look.Stop()
	for ctx.Err() == nil {
		select {
		case <-c.latest.Changed():
			c.update(c.latest.State())
		case <-c.wake:
		case <-certificate:
			certificate = c.mesh.changed()
		case e := <-c.asked:
			e.done <- c.enable(e)
		case <-sweep.C:
		case <-grow.C:
		case <-recheck.C:
		case <-look.C:
		case <-judge.C:
			c.judge()
		case <-ctx.Done():
			continue
		}
		c.checks.review()
		c.take(c.view.Review())
		c.succeed()
		if c.eject() {
			recheck.Reset(recheckEvery)
		}
		c.release()
		if c.lookAnew(time.Now()) {
			look.Reset(retriesTake)
		}
		if c.view.Warm(time.Now()) {
			grow.Reset(growEvery)
		}
		c.group.UpdateLoads()
		for _, chain := range *c.chains.Load() {
			chain.UpdateLoads()
		}
		c.endConnections() // before those without connections are forgotten
		c.view.Sweep(c.group.Served())
		if c.stale {
			c.show()
		}
		c.note()
		c.becomeWarm()
		c.notePanic()
	}
	close(c.over)
	wg.Wait()
	<-asked.Done()
	c.group.Close()
	c.view.Close()
	c.letGo()
	c.show()
}

// update takes in what discovery knows now.
func (c *cluster) update(st discovery.State) {
	if st.Known {
		c.setDrops(st.Set.Policy().Drops)
		c.take(c.view.Update(st.Set))
		c.stale = true
	}
	why := ""
	if st.Err != nil {
		why = st.Err.Error()
	}
	phase := st.Phase()
	if phase == c.phase && why == c.why {
		return
	}
	c.phase, c.why = phase, why
	held, ok := c.talk.discovery.Allow()
	if !ok {
		return
	}
	log := c.log.With("state", phase.String(), "not_logged", held)
	if r := restored(st); r != nil {
		log.Warn("discovery has not answered since the restart, what was known before is in force",
			"endpoints", st.Set.Len(), "age", r.Age.Round(time.Second).String(), "err", st.Err)
	} else if st.Err != nil {
		log.Warn("discovery can't tell", "err", st.Err)
	} else {
		log.Info("discovery knows", "endpoints", st.Set.Len())
	}
}

// talk is the limits of what is told of each cluster, for all together: one control
// plane that is away is news of all of its clusters.
type talk struct{ discovery, endpoints loglimit.Limit }

// take takes in a new membership, if topology has changed.
func (c *cluster) take(snap *lbcore.Snapshot, topology bool) {
	if !topology {
		return
	}
	c.held = snap
	if held, ok := c.talk.endpoints.Allow(); ok {
		c.log.Info("endpoints changed", "endpoints", snap.Given.Len(), "absent", snap.Set.Len()-snap.Given.Len(),
			"generation", snap.Generation, "not_logged", held)
	}
	c.follow()
	c.stale = true
}

// release has the selectors rebuilt from a new membership, as soon as one of
// its endpoints is ready or nothing better is to be expected. Until then the
// old selectors answer, if need be with endpoints that have left: a membership
// that is replaced as a whole must not refuse connections until its first
// probes have ended.
func (c *cluster) release() {
	if c.held == nil {
		return
	}
	unknown := false
	for i := range c.held.Set.Len() {
		m := c.held.Member(i)
		if m.Ready() {
			unknown = false
			break
		}
		unknown = unknown || m.Health() == lbcore.HealthUnknown
	}
	if unknown && c.group.Served() > 0 {
		return
	}
	c.group.Rebuild(c.held)
	c.held = nil
}

// unbind is told of each address whose probes are of no more use.
func (c *cluster) unbind(a lbcore.Addr) {
	c.checks.drop(a)
	c.stale = true
}

// forget is told of each member that the View has forgotten.
func (c *cluster) forget(m *lbcore.Member) {
	c.loads.leave(m)
	c.gone.add(m)
	c.gone.Active = 0 // what is still dialled or open is not followed any more
	c.stale, c.moved = true, true
}

func (c *cluster) show() {
	c.stale = false
	if c.moved {
		c.follow()
	}
	manual := c.view.Manual()
	c.kept.save(manual)
	c.shown.Store(&shown{endpoints: c.endpoints, manual: manual, refs: c.checks.give(), gone: c.gone, former: maps.Clone(c.former)})
}

// becomeWarm notes when the cluster can take connections.
func (c *cluster) becomeWarm() {
	if !c.warm.Load() && c.waiting() == "" {
		c.warm.Store(true)
		c.onWarm()
	}
}

// waiting returns, in one line, what keeps the cluster from being warm:
// discovery has not answered, endpoints have not been probed yet, or a selector
// is not built. It may be called from anywhere.
func (c *cluster) waiting() string {
	st := c.latest.State()
	switch {
	case !st.Known && st.Err != nil:
		return "discovery: " + strings.ReplaceAll(st.Err.Error(), "\n", "; ")
	case !st.Known:
		return "discovery has not answered yet"
	}
	if why := c.mesh.waiting(); why != "" {
		return why
	}
	snap := c.view.Snapshot()
	if !snap.Given.Equal(st.Set) {
		return "a selector is being built"
	}
	unknown, stuck, refs := 0, 0, c.shown.Load().refs
	for i := range snap.Set.Len() {
		switch m := snap.Member(i); {
		case m.Ready() || m.Health() != lbcore.HealthUnknown:
		case isStuck(refs[m.Addr()]):
			stuck++
		default:
			unknown++
		}
	}
	switch {
	case unknown > 0:
		return fmt.Sprintf("%d of %d endpoints have not been probed yet", unknown, snap.Set.Len())
	case stuck > 0 && stuck == snap.Set.Len(): // it can't serve; some are no reason to wait
		return fmt.Sprintf("none of %d endpoints can be probed, for reasons that are local", stuck)
	}
	for _, slot := range c.group.Slots() {
		switch s := slot.Stats(); {
		case s.Generation >= snap.Generation:
		case s.Err != nil:
			return failure(slot, s.Err)
		default:
			return "a selector is being built"
		}
	}
	return ""
}

// isStuck reports whether what keeps an endpoint's health unknown is local, and
// not to be waited for.
func isStuck(refs []*healthsvc.Ref) bool {
	stuck := false
	for _, r := range refs {
		if r.State().Load() == lbcore.HealthUnknown {
			if !r.Stuck() {
				return false
			}
			stuck = true
		}
	}
	return stuck
}

// failure says in one line why a selector was not built.
func failure(s *lbcore.Slot, err error) string {
	reason, _, _ := strings.Cut(err.Error(), "\n") // a panic's stack follows
	return fmt.Sprintf("selector %q: %s", s.Name(), reason)
}

// status describes the cluster, with its endpoints or without. It may be called
// from anywhere.
func (c *cluster) status(endpoints bool) ClusterStatus {
	st := c.latest.State()
	s := ClusterStatus{
		Name: c.cfg.Name, Origin: string(c.cfg.Origin),
		Source:     SourceStatus{State: st.Phase().String(), Since: st.Since, Confirmed: st.Confirmed, Updates: st.Updates},
		Generation: c.view.Snapshot().Generation,
		Duplicates: c.dups.Total(), Drops: c.dropStatus(),
		Open: breaker(c.open, c.dial.MaxConnections), Pending: breaker(c.pending, c.dial.MaxPending),
		MaxPerEndpoint: c.dial.MaxPerEndpoint, Ending: c.ends.Len(),
		Connect: c.latency.Connect.Counts(), FirstByte: c.latency.FirstByte.Counts(),
	}
	if c.cfg.OutlierDetection.Enabled {
		s.Outliers, s.SplitOrigin = c.judged.Load(), c.cfg.OutlierDetection.SplitExternalLocalOriginErrors
	}
	s.Source.Restored = restored(st)
	if st.Err != nil {
		s.Source.Err = st.Err.Error()
		s.Source.Held, _ = errors.AsType[*discovery.HeldError](st.Err)
	}
	for _, b := range c.blocks {
		s.Source.Blocks = append(s.Source.Blocks, b.status())
	}
	s.TLS, s.TLSFailures = c.transport.status(), c.failures.Load()
	if c.mesh != nil {
		s.TLS = new(c.mesh.Status())
	}
	s.Waiting = c.waiting() // of a warm cluster: why the newest membership is not in force yet
	for _, slot := range c.group.Slots() {
		s.Selectors = append(s.Selectors, SelectorStatus{slot.Name(), slot.Policy(), slot.Stats(), slot.Loads()})
	}
	sh, snap := c.shown.Load(), c.view.Snapshot()
	s.Totals = sh.gone
	for _, ep := range sh.endpoints {
		s.Totals.add(ep.Member)
		s.Counts.add(ep.Member)
		if !endpoints {
			continue
		}
		i := snap.Set.Find(ep.Addr())
		e := ep.status(sh.refs[ep.Addr()], i >= 0 && snap.Absent(i))
		s.Endpoints = append(s.Endpoints, e)
	}
	slices.SortFunc(s.Endpoints, func(a, b EndpointStatus) int { return a.Addr.Compare(b.Addr) })
	return s
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
