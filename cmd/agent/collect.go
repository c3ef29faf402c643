package main

import (
	"strconv"
	"time"

	"gatehouse.internal/cmd/agent/internal/admin"
	"gatehouse.internal/cmd/agent/internal/node"
	"gatehouse.internal/cmd/agent/internal/telemetry"
	"gatehouse.internal/discovery"
	"gatehouse.internal/forwarder"
	"gatehouse.internal/internal/contain"
	"gatehouse.internal/internal/lastgood"
	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/lbcore"
	"gatehouse.internal/xds"
)

// collect reads the counters of every part into the metrics.
func (a *agent) collect(r *telemetry.Recorder) {
	st := a.node.Summary()
	for _, l := range st.Listeners {
		if l.Draining || l.Unsupported != "" && !l.NoBind {
			continue // its name may be another's, or it is not there
		}
		r.Counter(telemetry.ListenerConnections, l.Stats.Accepted, l.Name)
		r.Gauge(telemetry.ListenerActive, float64(l.Stats.Active), l.Name)
		r.Counter(telemetry.ListenerBytesIn, l.Stats.BytesIn, l.Name)
		r.Counter(telemetry.ListenerBytesOut, l.Stats.BytesOut, l.Name)
		r.Counter(telemetry.ListenerAcceptErrors, l.Stats.AcceptErrors, l.Name)
		r.Counter(telemetry.ListenerSplices, l.Stats.Splices, l.Name)
		r.Counter(telemetry.ListenerProxyErrors, l.Stats.ProxyErrors, l.Name, "header")
		r.Counter(telemetry.ListenerProxyErrors, l.Stats.ProxyUntrusted, l.Name, "untrusted")
		for reason, n := range l.Stats.TLSFailures {
			if n > 0 {
				r.Counter(telemetry.ListenerTLSFailures, n, l.Name, tlsconf.Reason(reason).String())
			}
		}
		failures, notAfter, ok := secured(&l)
		if ok || l.Stats.TLSErrors > 0 {
			r.Counter(telemetry.ListenerTLSErrors, l.Stats.TLSErrors, l.Name)
		}
		if ok {
			r.Counter(telemetry.ListenerTLSReload, failures, l.Name)
			r.Gauge(telemetry.ListenerTLSExpiry, time.Until(notAfter).Seconds(), l.Name)
		}
		if missing, ok := missingTLS(&l); ok {
			r.Gauge(telemetry.ListenerTLSMissing, missing, l.Name)
		}
		for result, n := range map[string]uint64{
			"allowed": l.Stats.RBACAllowed, "denied": l.Stats.RBACDenied,
			"shadow_allowed": l.Stats.RBACShadowAllowed, "shadow_denied": l.Stats.RBACShadowDenied,
		} {
			if n > 0 {
				r.Counter(telemetry.ListenerRBAC, n, l.Name, result)
			}
		}
		if n := l.Stats.HandedOff; n > 0 {
			r.Counter(telemetry.ListenerHandedOff, n, l.Name)
		}
		r.Counter(telemetry.ListenerClientHellos, l.Stats.SNIFound, l.Name, "sni_found")
		r.Counter(telemetry.ListenerClientHellos, l.Stats.SNINotFound, l.Name, "sni_not_found")
		r.Counter(telemetry.ListenerClientHellos, l.Stats.TLSNotFound, l.Name, "tls_not_found")
		for i, n := range l.Stats.Over {
			if n > 0 {
				r.Counter(telemetry.ListenerOver, n, l.Name, forwarder.Limit(i).String())
			}
		}
		r.Gauge(telemetry.ListenerPending, float64(l.Stats.ProxyPending), l.Name, forwarder.LimitPending.String())
		r.Gauge(telemetry.ListenerPending, float64(l.Stats.HelloPending), l.Name, forwarder.LimitHellos.String())
		r.Gauge(telemetry.ListenerPending, float64(l.Stats.Handshakes), l.Name, forwarder.LimitHandshakes.String())
		for f, n := range l.Stats.Flags {
			if n > 0 {
				r.Counter(telemetry.ListenerEnded, n, l.Name, forwarder.Flag(f).String())
			}
		}
	}
	r.Gauge(telemetry.AgentConnections, float64(a.open.Open()))
	r.Gauge(telemetry.AgentMaxConnections, float64(a.maxOpen))
	r.Counter(telemetry.AgentOver, a.open.Refused())
	r.Gauge(telemetry.AgentExtra, float64(a.extra.Open()))
	r.Counter(telemetry.AgentExtraRefused, a.extra.Refused())
	if a.loops != nil {
		for i, n := range a.loops.Connections() {
			r.Gauge(telemetry.LoopConnections, float64(n), strconv.Itoa(i))
		}
	}
	for _, c := range st.Clusters {
		r.Gauge(telemetry.ClusterEndpoints, float64(c.Counts.Listed), c.Name)
		r.Gauge(telemetry.ClusterReady, float64(c.Counts.Ready), c.Name)
		r.Gauge(telemetry.ClusterDegraded, float64(c.Counts.Degraded), c.Name)
		r.Gauge(telemetry.ClusterSlowStart, float64(c.Counts.SlowStart), c.Name)
		r.Gauge(telemetry.ClusterGeneration, float64(c.Generation), c.Name)
		r.Gauge(telemetry.ClusterActive, float64(c.Totals.Active), c.Name)
		r.Counter(telemetry.ClusterConnections, c.Totals.Opened, c.Name)
		r.Counter(telemetry.ClusterDialFailed, c.Totals.Failed, c.Name)
		if c.Connect.Count() > 0 {
			r.Histogram(telemetry.ClusterConnect, c.Connect, c.Name)
		}
		if c.FirstByte.Count() > 0 {
			r.Histogram(telemetry.ClusterFirstByte, c.FirstByte, c.Name)
		}
		r.Counter(telemetry.ClusterOverflow, c.Open.Refused, c.Name)
		for _, d := range c.Drops {
			r.Counter(telemetry.ClusterDropped, d.Dropped, c.Name, d.Category)
		}
		r.Gauge(telemetry.ClusterPending, float64(c.Pending.Now), c.Name)
		r.Counter(telemetry.ClusterPendingOver, c.Pending.Refused, c.Name)
		if n, ok := c.Open.Remaining(); ok {
			r.Gauge(telemetry.ClusterRemaining, float64(n), c.Name, "max_connections")
		}
		if n, ok := c.Pending.Remaining(); ok {
			r.Gauge(telemetry.ClusterRemaining, float64(n), c.Name, "max_pending_requests")
		}
		r.Gauge(telemetry.ClusterEnding, float64(c.Ending), c.Name)
		for reason, n := range c.TLSFailures {
			if n > 0 {
				r.Counter(telemetry.ClusterTLSFailures, n, c.Name, tlsconf.Reason(reason).String())
			}
		}
		if c.TLS != nil {
			r.Counter(telemetry.ClusterTLSReload, c.TLS.Failures, c.Name)
			if at := c.TLS.NotAfter; !at.IsZero() {
				r.Gauge(telemetry.ClusterTLSExpiry, time.Until(at).Seconds(), c.Name)
			}
		}
		r.Counter(telemetry.ClusterDuplicates, c.Duplicates, c.Name)
		r.Counter(telemetry.SourceUpdates, c.Source.Updates, c.Name)
		for _, p := range []discovery.Phase{
			discovery.PhaseUnknown, discovery.PhaseFailing, discovery.PhaseFresh, discovery.PhaseStale,
		} {
			r.Gauge(telemetry.SourceState, oneIf(c.Source.State == p.String()), c.Name, p.String())
		}
		r.Gauge(telemetry.SourceEmptyHeld, oneIf(c.Source.Held != nil), c.Name)
		if at := c.Source.Confirmed; !at.IsZero() {
			r.Gauge(telemetry.SourceConfirmedAge, lastgood.Age(at).Seconds(), c.Name)
		}
		r.Gauge(telemetry.SourceRestored, oneIf(c.Source.Restored != nil), c.Name)
		if o := c.Outliers; o != nil {
			total := uint64(0)
			for rule, n := range o.Enforced {
				total += n
				r.Counter(telemetry.OutlierEnforced[rule], n, c.Name)
				r.Counter(telemetry.OutlierDetected[rule], o.Detected[rule], c.Name)
			}
			r.Gauge(telemetry.OutlierActive, float64(o.Active), c.Name)
			r.Counter(telemetry.OutlierTotal, total, c.Name)
			r.Counter(telemetry.OutlierOverflow, o.Overflow, c.Name)
		}
		for _, s := range c.Selectors {
			r.Gauge(telemetry.SelectorGeneration, float64(s.Generation), c.Name, s.Name)
			r.Counter(telemetry.SelectorRebuilds, s.Rebuilds, c.Name, s.Name)
			r.Counter(telemetry.SelectorCoalesced, s.Coalesced, c.Name, s.Name)
			r.Counter(telemetry.SelectorFailed, s.Failed, c.Name, s.Name)
			r.Counter(telemetry.SelectorReused, s.Reused, c.Name, s.Name)
			r.Gauge(telemetry.SelectorQueue, s.Queue.Seconds(), c.Name, s.Name)
			r.Gauge(telemetry.SelectorBuild, s.Build.Seconds(), c.Name, s.Name)
			r.Gauge(telemetry.SelectorBytes, float64(s.Bytes), c.Name, s.Name)
			panics, spill := 0.0, 0.0
			for i, l := range s.Loads {
				panics += oneIf(l.Panic)
				if i > 0 {
					spill += float64(l.Healthy + l.Degraded)
				}
			}
			r.Gauge(telemetry.SelectorPanic, panics, c.Name, s.Name)
			r.Gauge(telemetry.SelectorSpill, spill, c.Name, s.Name)
		}
	}
	gate := a.gate.Stats()
	r.Gauge(telemetry.GateStuck, float64(gate.StuckSelectors))
	r.Gauge(telemetry.GateStorage, float64(gate.Storage))
	r.Gauge(telemetry.GateSpare, float64(gate.Spare))
	r.Gauge(telemetry.GateRetired, float64(gate.Retired))
	r.Gauge(telemetry.GateStuckBytes, float64(gate.Stuck))

	h := a.health.Stats()
	r.Gauge(telemetry.HealthTargets, float64(h.Targets))
	r.Gauge(telemetry.HealthRefs, float64(h.Refs))
	r.Gauge(telemetry.HealthViews, float64(h.Views))
	r.Gauge(telemetry.HealthShared, float64(h.Refs)/float64(max(h.Targets, 1)))
	r.Gauge(telemetry.HealthFlight, float64(h.InFlight))
	r.Gauge(telemetry.HealthWaiting, float64(h.Waiting))
	r.Gauge(telemetry.HealthWorkers, float64(h.Workers))
	r.Counter(telemetry.HealthLate, h.Late)
	for _, k := range h.Kinds {
		r.Counter(telemetry.HealthProbes, k.Passed, k.Kind, "passed")
		r.Counter(telemetry.HealthProbes, k.Failed, k.Kind, "failed")
		r.Counter(telemetry.HealthProbes, k.TimedOut, k.Kind, "timeout")
		r.Counter(telemetry.HealthProbes, k.Local, k.Kind, "local")
		r.Counter(telemetry.HealthProbes, k.Discarded, k.Kind, "discarded")
	}
	if c := a.xds.load(); c != nil {
		x := c.Counters()
		r.Gauge(telemetry.XDSConnected, oneIf(x.Connected))
		r.Counter(telemetry.XDSLeftOut, x.LeftOut)
		r.Counter(telemetry.XDSStale, x.Stale)
		r.Counter(telemetry.XDSReconnects, x.Streams-min(x.Streams, 1))
		r.Counter(telemetry.XDSLoads, x.LoadReports)
		r.Counter(telemetry.XDSLoadErrors, x.LoadFailures)
		for typ, t := range map[string]xds.TypeCounters{"cluster": x.Clusters, "endpoints": x.Assignments, "listener": x.Listeners, "secret": x.Secrets} {
			r.Counter(telemetry.XDSUpdates, t.Accepted, typ)
			r.Counter(telemetry.XDSNACKs, t.Refused, typ)
		}
	}
	if client := a.consul.load(); client != nil {
		c := client.Stats()
		r.Counter(telemetry.ConsulRequests, c.Requests)
		r.Counter(telemetry.ConsulFailures, c.Failures)
		r.Counter(telemetry.ConsulThrottled, c.Throttled)
		r.Counter(telemetry.ConsulIndexResets, c.IndexResets)
		r.Counter(telemetry.ConsulRefused, c.Refused)
		r.Gauge(telemetry.ConsulWatches, float64(c.Watches))
		r.Gauge(telemetry.ConsulConnections, float64(c.Connections))
		r.Gauge(telemetry.ConsulShared, oneIf(c.SharedQueries))
		mesh := a.mesh.Stats()
		r.Gauge(telemetry.ConsulIdentities, float64(mesh.Identities))
		for result, n := range map[string]uint64{"allowed": mesh.Allowed, "denied": mesh.Denied, "failed": mesh.Failed} {
			r.Counter(telemetry.ConsulAuthorize, n, result)
		}
	}
	if client := a.dns.Load(); client != nil {
		d := client.Stats()
		r.Counter(telemetry.DNSLookups, d.Lookups)
		r.Counter(telemetry.DNSFailures, d.Failures)
		r.Gauge(telemetry.DNSWatches, float64(d.Watches))
		for _, n := range d.Nameservers {
			at := n.Address.String()
			r.Gauge(telemetry.NameserverShare, n.Share, n.Group, at)
			r.Gauge(telemetry.NameserverWeight, n.Weight, at)
			r.Gauge(telemetry.NameserverLatency, n.Latency.Seconds(), at)
			r.Counter(telemetry.NameserverQueries, n.Queries, at)
			r.Counter(telemetry.NameserverWon, n.Won, at)
			r.Counter(telemetry.NameserverFailures, n.Failures, at)
			r.Counter(telemetry.NameserverLate, n.Late, at)
			r.Counter(telemetry.NameserverStrays, n.Strays, at)
			r.Counter(telemetry.NameserverTCP, n.TCP, at)
		}
	}
	for _, f := range a.files.Stats() {
		r.Counter(telemetry.AccessLogLines, f.Written, f.Name)
		r.Counter(telemetry.AccessLogLost, f.Lost, f.Name)
	}
	if w := a.files.Stderr; w != nil {
		r.Counter(telemetry.LogLines, w.Stats().Written)
		r.Counter(telemetry.LogLost, w.Stats().Lost)
	}
	if a.store != nil {
		st := a.store.Stats()
		r.Gauge(telemetry.StateFiles, float64(st.Files))
		r.Gauge(telemetry.StateBytes, float64(st.Bytes))
		r.Counter(telemetry.StateWritten, st.Written)
		r.Counter(telemetry.StateFailures, st.Failures)
		r.Gauge(telemetry.StateFailing, oneIf(st.Err != ""))
		r.Counter(telemetry.StateDamaged, st.Damaged)
	}
	for at := range contain.Place(contain.NumPlaces) {
		r.Counter(telemetry.AgentPanics, a.panics.Count(at), at.String())
	}
	r.Counter(telemetry.AgentTakeovers, a.taken.Load(), "taken")
	r.Counter(telemetry.AgentTakeovers, a.failed.Load(), "failed")
	for i := range a.results {
		r.Counter(telemetry.AgentReloads, a.results[i].Load(), admin.ReloadResult(i).String())
	}
	r.Gauge(telemetry.AgentReloadOK, oneIf(!a.lastRefused.Load()))
	state, _ := a.state()
	r.Gauge(telemetry.AgentReady, oneIf(state == admin.Live))
}

// missingTLS counts the filter chains that have no TLS and are to have it, if any is.
func missingTLS(l *node.ListenerStatus) (n float64, any bool) {
	for _, c := range l.Chains {
		if c.Secured {
			any = true
			n += oneIf(c.Unsupported != "")
		}
	}
	return n, any
}

func oneIf(on bool) float64 {
	if on {
		return 1
	}
	return 0
}

// listenerAddrs returns where the listeners of the configuration are bound.
func (a *agent) listenerAddrs() map[string]lbcore.Addr {
	addrs := make(map[string]lbcore.Addr)
	for _, l := range a.node.Status().Listeners {
		if l.Unsupported == "" {
			addrs[l.Name] = l.Address
		}
	}
	return addrs
}

// secured sums up the TLS of a listener and its filter chains: how often new files
// could not be used, and when the first of what is in force ends. ok says that there
// is any.
func secured(l *node.ListenerStatus) (failures uint64, notAfter time.Time, ok bool) {
	all := []*tlsconf.Status{l.TLS}
	for _, c := range l.Chains {
		all = append(all, c.TLS)
	}
	for _, st := range all {
		if st == nil {
			continue
		}
		failures += st.Failures
		if !st.NotAfter.IsZero() && (!ok || st.NotAfter.Before(notAfter)) { // zero: of a mesh, and not known yet
			ok, notAfter = true, st.NotAfter
		}
	}
	return failures, notAfter, ok
}
