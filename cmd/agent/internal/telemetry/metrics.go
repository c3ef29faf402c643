package telemetry

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"gatehouse.internal/forwarder"
	"gatehouse.internal/healthsvc/outlier"
)

// Kind is what a metric's value means.
type Kind uint8

// The kinds. A Counter only grows, a Gauge is the present value, and a Histogram counts
// durations in the buckets of forwarder.LatencyBounds.
const (
	Counter Kind = iota
	Gauge
	Histogram
)

// String returns "counter", "gauge" or "histogram".
func (k Kind) String() string { return [...]string{"counter", "gauge", "histogram"}[k] }

// Metric is a row of the table.
type Metric struct {
	name   string // parts separated by dots
	kind   Kind
	labels []string // in the one order in which values are given
	unit   string
	help   string
}

// The metrics.
var (
	ListenerConnections  = &Metric{"listener.connections", Counter, []string{"listener"}, "connections", "Connections accepted."}
	ListenerActive       = &Metric{"listener.active", Gauge, []string{"listener"}, "connections", "Connections open now."}
	ListenerEnded        = &Metric{"listener.ended", Counter, []string{"listener", "flag"}, "connections", "Connections ended, by Envoy's response flag (- is none: a normal end)."}
	ListenerBytesIn      = &Metric{"listener.received", Counter, []string{"listener"}, "bytes", "Bytes received from clients."}
	ListenerBytesOut     = &Metric{"listener.sent", Counter, []string{"listener"}, "bytes", "Bytes sent to clients."}
	ListenerAcceptErrors = &Metric{"listener.accept_errors", Counter, []string{"listener"}, "errors", "Accepts that failed, as for want of descriptors."}
	ListenerSplices      = &Metric{"listener.splices", Counter, []string{"listener"}, "splices", "Times that bulk data went from socket to socket without a copy."}
	ListenerProxyErrors  = &Metric{"listener.proxy_errors", Counter, []string{"listener", "cause"}, "connections", "Connections reset for want of a good PROXY header (cause is header), or because their peer may not send one (untrusted)."}
	ListenerTLSErrors    = &Metric{"listener.tls_errors", Counter, []string{"listener"}, "handshakes", "TLS handshakes with clients that failed or took longer than handshake_timeout."}
	ListenerTLSFailures  = &Metric{"listener.tls_failures", Counter, []string{"listener", "reason"}, "handshakes", "The same by reason, as cluster_tls_failures; no_certificate is a client without one."}
	ListenerTLSExpiry    = &Metric{"listener.tls_expiry", Gauge, []string{"listener"}, "seconds", "Time until the certificate in force expires, or the last of its authorities, whichever is first; below 0 once it has."}
	ListenerTLSReload    = &Metric{"listener.tls_reload_errors", Counter, []string{"listener"}, "errors", "Times that changed TLS files could not be used; the last good ones stay in force, and the log says why."}
	ListenerTLSMissing   = &Metric{"listener.tls_missing", Gauge, []string{"listener"}, "filter chains", "Filter chains of the control plane that refuse their connections because there is no certificate or authority that could be used for their TLS: a secret that has not come, say, or that has expired. /listeners says which."}
	ListenerClientHellos = &Metric{"listener.client_hellos", Counter, []string{"listener", "result"}, "connections", "Connections of listeners that read their TLS ClientHello, by what was found: a server name (sni_found), none (sni_not_found), or no hello in time (tls_not_found)."}
	ListenerRBAC         = &Metric{"listener.rbac", Counter, []string{"listener", "result"}, "connections", "What the RBAC filters of a listener's filter chains have said, or Consul's intentions where it has connect: allowed, denied, and what shadow rules would have: shadow_allowed, shadow_denied."}
	ListenerHandedOff    = &Metric{"listener.handed_off", Counter, []string{"listener"}, "connections", "Connections that a listener with use_original_dst gave to the one that they were meant for; they are counted there."}
	ListenerOver         = &Metric{"listener.over_limit", Counter, []string{"listener", "limit"}, "connections", "Connections refused over a limit of the listener or of the agent (flag OM), by its setting."}
	ListenerPending      = &Metric{"listener.pending", Gauge, []string{"listener", "limit"}, "connections", "Connections that are counted towards proxy_protocol.max_pending, without their PROXY header, tls_inspector.max_pending, without their ClientHello, or max_handshakes, in their TLS handshake."}
	LoopConnections      = &Metric{"loop.connections", Gauge, []string{"loop"}, "connections", "Connections of each event loop now."}

	ClusterEndpoints   = &Metric{"cluster.endpoints", Gauge, []string{"cluster"}, "endpoints", "Endpoints listed by discovery."}
	ClusterReady       = &Metric{"cluster.ready", Gauge, []string{"cluster"}, "endpoints", "Endpoints that take new connections now."}
	ClusterDegraded    = &Metric{"cluster.degraded", Gauge, []string{"cluster"}, "endpoints", "Endpoints that discovery calls degraded: they take what the others have no capacity for."}
	ClusterSlowStart   = &Metric{"cluster.slow_start", Gauge, []string{"cluster"}, "endpoints", "Endpoints that have a part of their weight only, because they are new."}
	ClusterGeneration  = &Metric{"cluster.generation", Gauge, []string{"cluster"}, "generations", "Generation of the membership."}
	ClusterActive      = &Metric{"cluster.active", Gauge, []string{"cluster"}, "connections", "Connections to endpoints, dials in progress included."}
	ClusterConnections = &Metric{"cluster.connections", Counter, []string{"cluster"}, "connections", "Connections opened to endpoints."}
	ClusterDialFailed  = &Metric{"cluster.dial_failed", Counter, []string{"cluster"}, "dials", "Dials to endpoints that failed; the next candidate is tried after each."}
	ClusterConnect     = &Metric{"cluster.connect_time", Histogram, []string{"cluster"}, "seconds", "Time from the start of the dial that succeeded until the endpoint was connected, TLS included. There is none before the first."}
	ClusterFirstByte   = &Metric{"cluster.first_byte_time", Histogram, []string{"cluster"}, "seconds", "Time from the start of that dial until the endpoint's first byte. Where clients speak first, their time is in it too."}
	ClusterOverflow    = &Metric{"cluster.overflow", Counter, []string{"cluster"}, "connections", "Connections refused because max_connections or max_connections_per_endpoint of circuit_breakers are open (flag UO)."}
	ClusterPending     = &Metric{"cluster.pending", Gauge, []string{"cluster"}, "connections", "Connections whose endpoint is not connected yet: half-open dials."}
	ClusterDropped     = &Metric{"cluster.dropped", Counter, []string{"cluster", "category"}, "connections", "Connections dropped because discovery wants it (drop_overloads of EDS, flag DO)."}
	ClusterPendingOver = &Metric{"cluster.pending_overflow", Counter, []string{"cluster"}, "connections", "Connections refused because max_pending_requests of circuit_breakers are waiting (flag UO)."}
	ClusterRemaining   = &Metric{"cluster.remaining", Gauge, []string{"cluster", "limit"}, "connections", "How many more circuit_breakers allow, by limit: max_connections or max_pending_requests. There is none without such a limit; 0 is an open breaker."}
	ClusterEnding      = &Metric{"cluster.ending", Gauge, []string{"cluster"}, "endpoints", "Endpoints, removed or unhealthy, that lose their connections because of on_removal or on_unhealthy, or have lost them."}
	ClusterTLSExpiry   = &Metric{"cluster.tls_expiry", Gauge, []string{"cluster"}, "seconds", "As listener_tls_expiry, of what is used towards endpoints."}
	ClusterTLSReload   = &Metric{"cluster.tls_reload_errors", Counter, []string{"cluster"}, "errors", "As listener_tls_reload_errors, of what is used towards endpoints."}
	ClusterTLSFailures = &Metric{"cluster.tls_failures", Counter, []string{"cluster", "reason"}, "connections", "Connections to endpoints without TLS as it should be, by reason: name, expired, unknown_authority, bad_certificate, refused_by_peer, not_tls, timeout, unusable (no certificate here), other. The access log has the words."}
	ClusterDuplicates  = &Metric{"cluster.duplicates", Counter, []string{"cluster"}, "endpoints", "Endpoints that discovery gave with an address that was there already."}
	SourceUpdates      = &Metric{"source.updates", Counter, []string{"cluster"}, "updates", "Memberships that discovery reported and that differed from the one before."}
	SourceState        = &Metric{"source.state", Gauge, []string{"cluster", "state"}, "", "1 for the state that discovery is in: unknown, failing, fresh or stale."}

	SourceEmptyHeld    = &Metric{"source.empty_held", Gauge, []string{"cluster"}, "", "1 while discovery lists none or less than half of the endpoints that it listed before, and that is not believed yet."}
	SourceConfirmedAge = &Metric{"source.confirmed_age", Gauge, []string{"cluster"}, "seconds", "Time since discovery last said what the endpoints are, the same again included. A Consul service does so every wait_time at least. EDS, files, static lists and clusters with several discovery blocks are silent while nothing changes: there it grows without harm."}
	SourceRestored     = &Metric{"source.restored", Gauge, []string{"cluster"}, "", "1 while the endpoints in force are those of before a restart, because discovery has not answered since; source.confirmed_age is how old they are."}

	OutlierActive   = &Metric{"outlier_detection.ejections_active", Gauge, []string{"cluster"}, "endpoints", "Endpoints ejected now."}
	OutlierOverflow = &Metric{"outlier_detection.ejections_overflow", Counter, []string{"cluster"}, "endpoints", "Outliers that were not ejected because max_ejection_percent allows no more."}
	OutlierTotal    = &Metric{"outlier_detection.ejections_enforced_total", Counter, []string{"cluster"}, "ejections", "Ejections by all rules."}

	SelectorGeneration = &Metric{"selector.generation", Gauge, []string{"cluster", "selector"}, "generations", "Generation that the selector serves."}
	SelectorRebuilds   = &Metric{"selector.rebuilds", Counter, []string{"cluster", "selector"}, "rebuilds", "Rebuilds published."}
	SelectorCoalesced  = &Metric{"selector.coalesced", Counter, []string{"cluster", "selector"}, "rebuilds", "Rebuilds that a newer membership replaced before they began."}
	SelectorFailed     = &Metric{"selector.failed", Counter, []string{"cluster", "selector"}, "rebuilds", "Rebuilds that failed and are tried again."}
	SelectorReused     = &Metric{"selector.reused", Counter, []string{"cluster", "selector"}, "rebuilds", "Rebuilds in storage that an earlier selector has left."}
	SelectorQueue      = &Metric{"selector.queue_time", Gauge, []string{"cluster", "selector"}, "seconds", "How long the last rebuild waited."}
	SelectorBuild      = &Metric{"selector.build_time", Gauge, []string{"cluster", "selector"}, "seconds", "How long the last rebuild took."}
	SelectorBytes      = &Metric{"selector.storage", Gauge, []string{"cluster", "selector"}, "bytes", "Storage of the selector in service."}
	SelectorPanic      = &Metric{"selector.panic", Gauge, []string{"cluster", "selector"}, "priorities", "Priorities that give connections to all of their endpoints because too few are available; each distance counts where prefer_local is set."}
	SelectorSpill      = &Metric{"selector.spill", Gauge, []string{"cluster", "selector"}, "percent", "Connections that go elsewhere than to the first priority, and where prefer_local is set to what is nearest in it."}
	GateStuck          = &Metric{"gate.stuck", Gauge, nil, "selectors", "Replaced selectors that stuck readers hold."}
	GateStorage        = &Metric{"gate.storage", Gauge, nil, "bytes", "Storage of selectors from 32 KiB on, in service or not. It is outside of Go's heap and its limit."}
	GateSpare          = &Metric{"gate.storage_spare", Gauge, nil, "bytes", "Storage that waits for the next build of a large selector."}
	GateRetired        = &Metric{"gate.storage_retired", Gauge, nil, "bytes", "Storage of large selectors that were replaced and have readers."}
	GateStuckBytes     = &Metric{"gate.storage_stuck", Gauge, nil, "bytes", "Storage that stuck readers hold."}

	HealthTargets = &Metric{"health.targets", Gauge, nil, "targets", "Distinct checks that are probed."}
	HealthRefs    = &Metric{"health.references", Gauge, nil, "references", "What clusters ask of these targets, one for each endpoint and check; above the targets, probes are shared."}
	HealthViews   = &Metric{"health.views", Gauge, nil, "clusters", "Clusters that have endpoints probed, replaced ones that still run once with their replacement."}
	HealthShared  = &Metric{"health.shared_ratio", Gauge, nil, "", "References for each target: how many probes one saves. 0 without targets."}
	HealthProbes  = &Metric{"health.probes", Counter, []string{"kind", "result"}, "probes", "Probes ended: passed, failed, timeout; local is one that this machine had no resources for, or stood still in, and discarded one whose cluster has left meanwhile."}
	HealthFlight  = &Metric{"health.in_flight", Gauge, nil, "probes", "Probes in flight."}
	HealthWaiting = &Metric{"health.waiting", Gauge, nil, "probes", "Probes that are due and wait for a worker, or for their turn after a burst."}
	HealthWorkers = &Metric{"health.workers", Gauge, nil, "probes", "How many probes may be in flight."}
	HealthLate    = &Metric{"health.late", Counter, nil, "probes", "Probes that began more than an interval late."}

	XDSConnected  = &Metric{"xds.connected", Gauge, nil, "", "1 while a stream to the xDS server in use is open."}
	XDSUpdates    = &Metric{"xds.updates", Counter, []string{"type"}, "responses", "Responses accepted."}
	XDSNACKs      = &Metric{"xds.nacks", Counter, []string{"type"}, "responses", "Responses rejected; valid resources in them are applied."}
	XDSLeftOut    = &Metric{"xds.endpoints_left_out", Counter, nil, "endpoints", "Endpoints of EDS resources that can't be dialled by this program and were left out, in all versions."}
	XDSStale      = &Metric{"xds.assignments_stale", Counter, nil, "resources", "EDS resources whose endpoints were taken away because they were not sent again within endpoint_stale_after."}
	XDSReconnects = &Metric{"xds.reconnects", Counter, nil, "streams", "Streams opened after the first."}
	XDSLoads      = &Metric{"xds.load_reports", Counter, nil, "reports", "Load reports (LRS) sent."}
	XDSLoadErrors = &Metric{"xds.load_report_failures", Counter, nil, "streams", "Streams of load reports that have ended, or could not be opened."}

	ConsulRequests    = &Metric{"consul.requests", Counter, nil, "requests", "Requests to Consul."}
	ConsulFailures    = &Metric{"consul.failures", Counter, nil, "requests", "Requests to Consul without a usable answer, or not made for want of a token."}
	ConsulThrottled   = &Metric{"consul.throttled", Counter, nil, "requests", "Requests that Consul answered with 429: too many connections or requests."}
	ConsulIndexResets = &Metric{"consul.index_resets", Counter, nil, "answers", "Answers with an older index than before: a restored snapshot or another server."}
	ConsulRefused     = &Metric{"consul.instances_refused", Counter, nil, "instances", "Instances left out of answers, each answer anew; the log says why."}
	ConsulWatches     = &Metric{"consul.watches", Gauge, nil, "sources", "Sources that ask Consul."}
	ConsulConnections = &Metric{"consul.connections", Gauge, nil, "connections", "Connections to Consul."}
	ConsulShared      = &Metric{"consul.shared_queries", Gauge, nil, "", "1 while there are more sources than max_watches, which then share queries."}
	ConsulIdentities  = &Metric{"consul.identities", Gauge, nil, "services", "Services of Consul's service mesh that the agent speaks for."}
	ConsulAuthorize   = &Metric{"consul.authorizations", Counter, []string{"result"}, "connections", "Connections of listeners with connect, by what Consul's intentions say of their clients: allowed, denied, and failed if Consul did not say, so that they were refused."}

	DNSLookups         = &Metric{"dns.lookups", Counter, nil, "look-ups", "Look-ups of names by discovery dns, aliases and search domains included."}
	DNSFailures        = &Metric{"dns.failures", Counter, nil, "look-ups", "Look-ups that no nameserver answered."}
	DNSWatches         = &Metric{"dns.watches", Gauge, nil, "sources", "Sources that ask nameservers."}
	NameserverShare    = &Metric{"nameserver.share", Gauge, []string{"group", "nameserver"}, "", "Part of the look-ups that begin with the nameserver, 0 to 1. The group is default, or the nameservers that a discovery block names."}
	NameserverWeight   = &Metric{"nameserver.weight", Gauge, []string{"nameserver"}, "", "What is learnt of the nameserver, 1 to 2^24: more is faster."}
	NameserverLatency  = &Metric{"nameserver.latency", Gauge, []string{"nameserver"}, "seconds", "Mean of the last answers that were taken; 0 before the first."}
	NameserverQueries  = &Metric{"nameserver.queries", Counter, []string{"nameserver"}, "queries", "Queries sent."}
	NameserverWon      = &Metric{"nameserver.won", Counter, []string{"nameserver"}, "queries", "Queries whose answer was taken."}
	NameserverFailures = &Metric{"nameserver.failures", Counter, []string{"nameserver"}, "queries", "Queries that failed: SERVFAIL, REFUSED, no answer in time, one that can't be understood or has no records where others have."}
	NameserverLate     = &Metric{"nameserver.late", Counter, []string{"nameserver"}, "queries", "Queries without an answer when another nameserver had given one."}
	NameserverStrays   = &Metric{"nameserver.strays", Counter, []string{"nameserver"}, "packets", "Packets that came to a query's port and were no answer to it: from elsewhere, or to another question."}
	NameserverTCP      = &Metric{"nameserver.tcp", Counter, []string{"nameserver"}, "queries", "Queries by TCP."}

	AgentConnections    = &Metric{"agent.connections", Gauge, nil, "connections", "Open connections on all listeners."}
	AgentMaxConnections = &Metric{"agent.max_connections", Gauge, nil, "connections", "How many of them there may be at once."}

	AccessLogLines = &Metric{"access_log.lines", Counter, []string{"path"}, "lines", "Lines written to an access log. Those that go to stderr are in log.lines."}
	AccessLogLost  = &Metric{"access_log.lost", Counter, []string{"path"}, "lines", "Lines that an access log could not take: the disk was full, or nobody read the pipe."}
	LogLines       = &Metric{"log.lines", Counter, nil, "lines", "Lines written to stderr."}
	LogLost        = &Metric{"log.lost", Counter, nil, "lines", "Lines that stderr did not take."}

	AgentOver = &Metric{"agent.over_limit", Counter, nil, "connections", "Connections refused because agent.max_connections were open, on all listeners, also those that are gone."}

	AgentExtra        = &Metric{"agent.extra_descriptors", Gauge, nil, "descriptors", "Descriptors that connections have beyond two each: pipes, through which bulk passes without a copy, and addresses that are dialled beside another of the same endpoint."}
	AgentExtraRefused = &Metric{"agent.extra_descriptors_refused", Counter, nil, "", "Times that none was left of their share, a quarter of those that are not for connections and 1024 at most: bulk was copied, or the next address of an endpoint waited."}

	StateFiles    = &Metric{"state.files", Gauge, nil, "files", "Files in state_dir."}
	StateBytes    = &Metric{"state.bytes", Gauge, nil, "bytes", "Size of these files."}
	StateWritten  = &Metric{"state.written", Counter, nil, "files", "Files of state_dir written."}
	StateFailures = &Metric{"state.failures", Counter, nil, "attempts", "Attempts to write to state_dir that failed; the log says why."}
	StateFailing  = &Metric{"state.failing", Gauge, nil, "", "1 while state_dir can't be written: a restart would know less."}
	StateDamaged  = &Metric{"state.damaged", Counter, nil, "files", "Files of state_dir that could not be used and were set aside."}

	TelemetrySeries  = &Metric{"telemetry.series", Gauge, nil, "series", "Series of the metrics here, those included that have gone and stay for prometheus_retention_time."}
	TelemetryLeftOut = &Metric{"telemetry.series_left_out", Counter, nil, "", "Times that a series found no place: there are 262144 at most with labels, and those that have gone leave first."}

	AgentReady     = &Metric{"agent.ready", Gauge, nil, "", "1 while /ready answers 200."}
	AgentReloads   = &Metric{"agent.reloads", Counter, []string{"result"}, "reloads", "Reloads of the configuration: what was read is in force (in_force), but for settings that need a restart (in_part), or was refused and what ran runs on (refused)."}
	AgentPanics    = &Metric{"agent.panics", Counter, []string{"in"}, "panics", "Bugs of the agent that cost one connection, probe, build of a selector, message of discovery (decoder) or request to the admin interface and nothing else; the log has the stack."}
	AgentTakeovers = &Metric{"agent.takeovers", Counter, []string{"result"}, "takeovers", "1 if the agent has taken over from another process (taken); and processes that were to take over from this one, which went on (failed)."}
	AgentReloadOK  = &Metric{"agent.reload_ok", Gauge, nil, "", "0 while the last reload was refused: what runs is not what the files say."}
)

// OutlierEnforced and OutlierDetected are of each rule of outlier detection,
// under Envoy's names.
var (
	OutlierEnforced = byRule("enforced", "ejections", "Ejections by the rule %s.")
	OutlierDetected = byRule("detected", "endpoints", "Outliers that the rule %s has found, ejected or not.")
)

func byRule(what, unit, help string) (ms [outlier.Rules]*Metric) {
	for r := range ms {
		name := outlier.Rule(r).String()
		ms[r] = &Metric{"outlier_detection.ejections_" + what + "_" + name, Counter, []string{"cluster"}, unit, fmt.Sprintf(help, name)}
	}
	return ms
}

// table is every metric, in the order of the documentation.
var table = slices.Concat(singles, OutlierEnforced[:], OutlierDetected[:])

var singles = []*Metric{
	ListenerConnections, ListenerActive, ListenerEnded, ListenerBytesIn, ListenerBytesOut, ListenerAcceptErrors, ListenerSplices, ListenerProxyErrors, ListenerTLSErrors, ListenerTLSFailures, ListenerTLSExpiry, ListenerTLSReload, ListenerTLSMissing, ListenerClientHellos, ListenerRBAC, ListenerHandedOff, ListenerOver, ListenerPending, LoopConnections,
	ClusterEndpoints, ClusterReady, ClusterDegraded, ClusterSlowStart, ClusterGeneration, ClusterActive, ClusterConnections, ClusterDialFailed, ClusterConnect, ClusterFirstByte, ClusterOverflow, ClusterDropped, ClusterPending, ClusterPendingOver, ClusterRemaining, ClusterEnding, ClusterTLSExpiry, ClusterTLSReload, ClusterTLSFailures, ClusterDuplicates,
	SourceUpdates, SourceState, SourceEmptyHeld, SourceConfirmedAge, SourceRestored,
	OutlierActive, OutlierOverflow, OutlierTotal,
	SelectorGeneration, SelectorRebuilds, SelectorCoalesced, SelectorFailed, SelectorReused, SelectorQueue, SelectorBuild, SelectorBytes,
	SelectorPanic, SelectorSpill, GateStuck, GateStorage, GateSpare, GateRetired, GateStuckBytes,
	HealthTargets, HealthRefs, HealthViews, HealthShared, HealthProbes, HealthFlight, HealthWaiting, HealthWorkers, HealthLate,
	XDSConnected, XDSUpdates, XDSNACKs, XDSLeftOut, XDSStale, XDSReconnects, XDSLoads, XDSLoadErrors,
	ConsulRequests, ConsulFailures, ConsulThrottled, ConsulIndexResets, ConsulRefused, ConsulWatches, ConsulConnections, ConsulShared, ConsulIdentities, ConsulAuthorize,
	DNSLookups, DNSFailures, DNSWatches, NameserverShare, NameserverWeight, NameserverLatency, NameserverQueries, NameserverWon, NameserverFailures, NameserverLate, NameserverStrays, NameserverTCP,
	AgentConnections, AgentMaxConnections, AgentOver, AgentExtra, AgentExtraRefused,
	AccessLogLines, AccessLogLost, LogLines, LogLost,
	StateFiles, StateBytes, StateWritten, StateFailures, StateFailing, StateDamaged, TelemetrySeries, TelemetryLeftOut, AgentReady, AgentReloads, AgentReloadOK, AgentTakeovers, AgentPanics,
}

// bounds lists the bounds of histograms.
func bounds() string {
	var all []string
	for _, b := range forwarder.LatencyBounds {
		all = append(all, strconv.FormatFloat(b.Seconds(), 'f', -1, 64))
	}
	return strings.Join(all, ", ")
}

// WriteDocs writes docs/metrics.md.
func WriteDocs(w io.Writer) error {
	var b strings.Builder
	b.WriteString(`# Metrics

Names as Prometheus shows them at ` + "`/stats/prometheus`" + ` with the default
` + "`metrics_prefix`" + `. Go and process metrics stand beside them there. Series of a cluster
or listener that is gone stay at their last value for prometheus_retention_time: judge
by names that are configured. One that comes again goes on from there, so no counter
goes backwards.

A histogram has cumulative buckets ` + "`_bucket`" + ` with a label le, in seconds: ` + bounds() + `,
and +Inf; with it ` + "`_sum`" + ` and ` + "`_count`" + `. The p99 of a cluster is
` + "`histogram_quantile(0.99, sum by (cluster, le) (rate(gatehouse_cluster_connect_time_bucket[5m])))`" + `.

statsd, statsite and dogstatsd servers get dots between the parts of a name, every 5
seconds: of counters what has come, of gauges the value, of histograms a counter with
` + "`.count`" + ` behind the name and gauges with ` + "`.p50`, `.p90` and `.p99`" + ` of these 5 seconds.
dogstatsd has labels as tags, the others as last parts of the name. What has a meaning in
a line there (colons, bars, spaces, …) is an underscore.

This page is written from the table in cmd/agent/internal/telemetry; a test keeps it true.

| metric | kind | labels | unit | meaning |
| --- | --- | --- | --- | --- |
`)
	for _, m := range table {
		fmt.Fprintf(&b, "| `gatehouse_%s` | %s | %s | %s | %s |\n",
			strings.ReplaceAll(m.name, ".", "_"), m.kind, strings.Join(m.labels, ", "), m.unit, m.help)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
