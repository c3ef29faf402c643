package admin

import (
	"strconv"
	"time"

	"gatehouse.internal/cmd/agent/internal/node"
	"gatehouse.internal/discovery"
	"gatehouse.internal/healthsvc"
	"gatehouse.internal/healthsvc/outlier"
	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/lbcore"
	"gatehouse.internal/xds"
)

// The shapes of the JSON answers. Fields outside of "gatehouse" are those of
// envoy.admin.v3.Clusters and Listeners as Envoy prints them: 64-bit numbers
// are strings. They are a contract with scripts: fields are added, never
// renamed.

type clustersJSON struct {
	ClusterStatuses []clusterJSON    `json:"cluster_statuses"`
	Gatehouse       *nodeDetailsJSON `json:"gatehouse,omitempty"`
}

// nodeDetailsJSON is what belongs to no cluster.
type nodeDetailsJSON struct {
	Nameservers []nameserverJSON `json:"nameservers"`
}

type nameserverJSON struct {
	Group          string  `json:"group"`
	Address        string  `json:"address"`
	Weight         float64 `json:"weight"`
	Share          float64 `json:"share"`
	LatencySeconds float64 `json:"latency_seconds"`
	Queries        uint64  `json:"queries"`
	Won            uint64  `json:"won"`
	Failures       uint64  `json:"failures"`
	Late           uint64  `json:"late"`
	Strays         uint64  `json:"strays"`
	TCP            uint64  `json:"tcp"`
}

type clusterJSON struct {
	Name              string             `json:"name"`
	ObservabilityName string             `json:"observability_name"`
	AddedViaAPI       bool               `json:"added_via_api"`
	Threshold         *percentJSON       `json:"success_rate_ejection_threshold,omitempty"`
	LocalThreshold    *percentJSON       `json:"local_origin_success_rate_ejection_threshold,omitempty"`
	CircuitBreakers   *breakersJSON      `json:"circuit_breakers,omitempty"`
	EDSServiceName    string             `json:"eds_service_name,omitempty"`
	HostStatuses      []hostJSON         `json:"host_statuses"`
	Gatehouse         clusterDetailsJSON `json:"gatehouse"`
}

// breakersJSON has the limits that there are, as Envoy shows them.
type breakersJSON struct {
	Thresholds []thresholdJSON `json:"thresholds"`
}

type thresholdJSON struct {
	MaxConnections     *int `json:"max_connections,omitempty"`
	MaxPendingRequests *int `json:"max_pending_requests,omitempty"`
}

// breakerJSON is a circuit breaker: how much is counted towards it, and where
// there is a limit what that is and how much is left.
type breakerJSON struct {
	Now       int64  `json:"now"`
	Limit     *int   `json:"limit,omitempty"`
	Remaining *int64 `json:"remaining,omitempty"`
	Open      bool   `json:"open"` // nothing more is allowed
	Overflow  uint64 `json:"overflow"`
}

type clusterDetailsJSON struct {
	Origin      string         `json:"origin"`
	Unsupported string         `json:"unsupported,omitempty"`
	Aggregate   []string       `json:"aggregate,omitempty"` // the clusters that it consists of
	Loads       []childJSON    `json:"aggregate_loads,omitempty"`
	Waiting     string         `json:"waiting,omitempty"`
	Generation  uint64         `json:"generation"`
	CDS         *resourceJSON  `json:"cds,omitempty"`
	EDS         *resourceJSON  `json:"eds,omitempty"`
	Source      sourceJSON     `json:"source"`
	Selectors   []selectorJSON `json:"selectors"`
	Ready       int            `json:"ready"`
	CxActive    int64          `json:"cx_active"`
	CxTotal     uint64         `json:"cx_total"`
	CxFailed    uint64         `json:"cx_connect_fail"`
	Connect     *latencyJSON   `json:"connect_time,omitempty"`
	FirstByte   *latencyJSON   `json:"first_byte_time,omitempty"`
	Duplicates  uint64         `json:"duplicates"`
	TLS         *tlsJSON       `json:"tls,omitempty"`
	Connections breakerJSON    `json:"connections"`
	Pending     breakerJSON    `json:"pending"`
	PerEndpoint *int           `json:"max_connections_per_endpoint,omitempty"`
	Ending      int            `json:"ending"` // endpoints that lose their connections
	Drops       []dropJSON     `json:"drop_overloads,omitempty"`
	Outliers    *outliersJSON  `json:"outlier_detection,omitempty"`
}

// dropJSON is a category of connections that discovery wants dropped.
type dropJSON struct {
	Category   string `json:"category"`
	PerMillion uint32 `json:"per_million"`
	Dropped    uint64 `json:"dropped"`
}

// childJSON is the load of a priority of a cluster of an aggregate one.
type childJSON struct {
	Cluster string `json:"cluster"`
	loadJSON
}

// outliersJSON has the words of Envoy's counters.
type outliersJSON struct {
	Active   int               `json:"ejections_active"`
	Overflow uint64            `json:"ejections_overflow"`
	Detected map[string]uint64 `json:"ejections_detected"` // by rule
	Enforced map[string]uint64 `json:"ejections_enforced"`
}

type percentJSON struct {
	Value float64 `json:"value"`
}

// tlsJSON is what is in force of certificates, and why newer ones are not.
type tlsJSON struct {
	Generation   uint64            `json:"generation"`
	LoadedAt     *time.Time        `json:"loaded_at,omitempty"`
	NotAfter     *time.Time        `json:"not_after,omitempty"`
	Certificates []certificateJSON `json:"certificates"`
	ReloadError  string            `json:"reload_error,omitempty"`
	ReloadErrors uint64            `json:"reload_errors"`
}

type certificateJSON struct {
	Subject  string    `json:"subject"`
	SANs     []string  `json:"subject_alt_names"`
	NotAfter time.Time `json:"not_after"`
}

// resourceJSON is what is known of a resource of the control plane.
type resourceJSON struct {
	Name    string     `json:"name"`
	State   string     `json:"state"`
	Version string     `json:"version,omitempty"`
	Updated *time.Time `json:"updated,omitempty"`
	Error   string     `json:"error,omitempty"` // why the newest version is not in force
	// LastNACK is the last refusal, also if a good version has come since.
	LastNACK *nackJSON `json:"last_nack,omitempty"`
}

type nackJSON struct {
	Version string     `json:"version"`
	Reason  string     `json:"reason"`
	At      *time.Time `json:"at"`
}

func resource(r *xds.ResourceStatus) *resourceJSON {
	if r == nil {
		return nil
	}
	rj := &resourceJSON{Name: r.Name, State: r.State, Version: r.Version, Updated: instant(r.Updated), Error: r.Error}
	if n := r.Nack; n.Reason != "" {
		rj.LastNACK = &nackJSON{n.Version, n.Reason, instant(n.At)}
	}
	return rj
}

type sourceJSON struct {
	State     string     `json:"state"`
	Since     *time.Time `json:"since,omitempty"`
	Confirmed *time.Time `json:"confirmed,omitempty"`
	Error     string     `json:"error,omitempty"`
	Held      *heldJSON  `json:"held,omitempty"`
	Updates   uint64     `json:"updates"`
	// Restored is there while the endpoints are those of before a restart.
	Restored *restoredJSON `json:"restored,omitempty"`
	// Blocks are the discovery blocks, in the order of the configuration.
	Blocks []blockJSON `json:"blocks,omitempty"`
}

type blockJSON struct {
	Kind      string     `json:"kind"`
	State     string     `json:"state"`
	Since     *time.Time `json:"since,omitempty"`
	Endpoints int        `json:"endpoints"`
	Error     string     `json:"error,omitempty"`
	Updates   uint64     `json:"updates"`

	Restored *restoredJSON `json:"restored,omitempty"`
}

// storeJSON is how state_dir is; Error and Since while it can't be written.
type storeJSON struct {
	Dir      string     `json:"dir"`
	Files    int        `json:"files"`
	Bytes    int64      `json:"bytes"`
	Written  uint64     `json:"written"`
	Failures uint64     `json:"failures"`
	Damaged  uint64     `json:"damaged"`
	Pruned   uint64     `json:"pruned"`
	Error    string     `json:"error,omitempty"`
	Since    *time.Time `json:"since,omitempty"`
}

type restoredJSON struct {
	Confirmed  *time.Time `json:"confirmed"`
	AgeSeconds float64    `json:"age_seconds"`
}

func restored(r *node.Restored) *restoredJSON {
	if r == nil {
		return nil
	}
	return &restoredJSON{instant(r.Confirmed), r.Age.Seconds()}
}

type heldJSON struct {
	Listed int        `json:"listed"`
	Known  int        `json:"known"`
	Until  *time.Time `json:"until,omitempty"`
	Reason string     `json:"reason,omitempty"`
}

type selectorJSON struct {
	Name         string     `json:"name"`
	Policy       string     `json:"policy"`
	Generation   uint64     `json:"generation"`
	Rebuilds     uint64     `json:"rebuilds"`
	Coalesced    uint64     `json:"coalesced"`
	Failed       uint64     `json:"failed"`
	Reused       uint64     `json:"reused"`
	QueueSeconds float64    `json:"queue_seconds"`
	BuildSeconds float64    `json:"build_seconds"`
	StorageBytes int        `json:"storage_bytes"`
	Loads        []loadJSON `json:"loads"`
	Error        string     `json:"error,omitempty"`
}

// loadJSON is how much of a selector's load goes to a priority, and a distance.
type loadJSON struct {
	Priority  uint8  `json:"priority"`
	Distance  uint8  `json:"distance"`
	Endpoints int    `json:"endpoints"`
	Healthy   uint32 `json:"healthy_percent"`
	Degraded  uint32 `json:"degraded_percent"`
	Panic     bool   `json:"panic"`
}

type hostJSON struct {
	Address      addressJSON     `json:"address"`
	Stats        []statJSON      `json:"stats"`
	HealthStatus healthJSON      `json:"health_status"`
	SuccessRate  *percentJSON    `json:"success_rate,omitempty"`
	LocalRate    *percentJSON    `json:"local_origin_success_rate,omitempty"`
	Weight       uint32          `json:"weight"`
	Hostname     string          `json:"hostname,omitempty"`
	Priority     uint8           `json:"priority"`
	Locality     localityJSON    `json:"locality"`
	Gatehouse    hostDetailsJSON `json:"gatehouse"`
}

type addressJSON struct {
	SocketAddress *socketJSON `json:"socket_address,omitempty"`
	Pipe          *pipeJSON   `json:"pipe,omitempty"`
}

type socketJSON struct {
	Address   string `json:"address"`
	PortValue uint16 `json:"port_value"`
}

type pipeJSON struct {
	Path string `json:"path"`
}

type statJSON struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	Type  string `json:"type"`
}

type healthJSON struct {
	EDSHealthStatus         string `json:"eds_health_status"`
	FailedActiveHealthCheck bool   `json:"failed_active_health_check,omitempty"`
	FailedActiveDegraded    bool   `json:"failed_active_degraded_check,omitempty"`
	PendingActiveHC         bool   `json:"pending_active_hc,omitempty"`
	FailedOutlierCheck      bool   `json:"failed_outlier_check,omitempty"`
	PendingDynamicRemoval   bool   `json:"pending_dynamic_removal,omitempty"`
}

type localityJSON struct {
	Region  string `json:"region,omitempty"`
	Zone    string `json:"zone,omitempty"`
	SubZone string `json:"sub_zone,omitempty"`
}

type hostDetailsJSON struct {
	Ready    bool        `json:"ready"`
	State    node.State  `json:"state"`
	Since    *time.Time  `json:"since,omitempty"`
	Why      string      `json:"why,omitempty"`
	Enabled  bool        `json:"enabled"`
	Health   string      `json:"health"`
	Checks   []checkJSON `json:"checks,omitempty"`
	HostOpen int64       `json:"host_cx_open"`
	Sent     uint64      `json:"bytes_sent"`
	Received uint64      `json:"bytes_received"`
	Adaptive float64     `json:"adaptive_weight,omitempty"`
	Degraded bool        `json:"degraded,omitempty"`
	Slow     *float64    `json:"slow_start_share,omitempty"` // while it is below 1
	Locality uint32      `json:"locality_weight,omitempty"`

	Ejection *ejectionJSON `json:"ejection,omitempty"` // the last one
}

type ejectionJSON struct {
	Since *time.Time `json:"since"`
	Until *time.Time `json:"until"`
	Rule  string     `json:"rule"`
	Times uint32     `json:"times"`
}

type checkJSON struct {
	Kind        string     `json:"kind"`
	Probe       string     `json:"probe"`
	State       string     `json:"state"`
	Since       *time.Time `json:"since,omitempty"`
	LastProbe   *time.Time `json:"last_probe,omitempty"`
	NextProbe   *time.Time `json:"next_probe,omitempty"` // missing while one is in flight
	LastFailure *time.Time `json:"last_failure,omitempty"`
	LastError   string     `json:"last_error,omitempty"`
	LastLocal   string     `json:"last_local_error,omitempty"` // why the newest gave no result
	Restored    bool       `json:"restored,omitempty"`         // state is that of before the restart
	Streak      uint64     `json:"streak"`
	Sharers     int        `json:"sharers"`
}

func clusters(st known) clustersJSON {
	out := clustersJSON{ClusterStatuses: make([]clusterJSON, 0, len(st.Clusters))}
	for _, c := range st.Clusters {
		cj := clusterJSON{
			Name: c.Name, ObservabilityName: c.Name, AddedViaAPI: c.Origin != "file",
			CircuitBreakers: breakers(c),
			HostStatuses:    make([]hostJSON, 0, len(c.Endpoints)),
			Gatehouse: clusterDetailsJSON{
				Origin: c.Origin, Unsupported: c.Unsupported, Aggregate: c.Aggregate, Waiting: c.Waiting, Generation: c.Generation,
				Source: sourceJSON{
					State: c.Source.State, Since: instant(c.Source.Since), Confirmed: instant(c.Source.Confirmed),
					Error: c.Source.Err, Held: held(c.Source.Held), Restored: restored(c.Source.Restored), Updates: c.Source.Updates,
				},
				Selectors: make([]selectorJSON, 0, len(c.Selectors)),
				CxActive:  c.Totals.Active, CxTotal: c.Totals.Opened, CxFailed: c.Totals.Failed, Duplicates: c.Duplicates,
				Connect: latencyOf(c.Connect), FirstByte: latencyOf(c.FirstByte),
				TLS:         tlsStatus(c.TLS),
				Connections: breaker(c.Open), Pending: breaker(c.Pending), PerEndpoint: limit(c.MaxPerEndpoint), Ending: c.Ending,
			},
		}
		cj.Gatehouse.CDS, cj.Gatehouse.EDS = resource(st.cds(c)), resource(st.eds(c))
		if eds := cj.Gatehouse.EDS; eds != nil {
			cj.EDSServiceName = eds.Name
		}
		for _, d := range c.Drops {
			cj.Gatehouse.Drops = append(cj.Gatehouse.Drops, dropJSON(d))
		}
		for _, l := range c.AggregateLoads {
			cj.Gatehouse.Loads = append(cj.Gatehouse.Loads, childJSON{l.Cluster, loadJSON(l.TierLoad)})
		}
		for _, b := range c.Source.Blocks {
			cj.Gatehouse.Source.Blocks = append(cj.Gatehouse.Source.Blocks, blockJSON{
				Kind: b.Kind, State: b.State, Since: instant(b.Since), Endpoints: b.Endpoints, Error: b.Err, Restored: restored(b.Restored), Updates: b.Updates,
			})
		}
		if o := c.Outliers; o != nil {
			oj := &outliersJSON{Active: o.Active, Overflow: o.Overflow, Detected: make(map[string]uint64), Enforced: make(map[string]uint64)}
			for r := range outlier.Rules {
				if o.Detected[r] > 0 {
					oj.Detected[r.String()], oj.Enforced[r.String()] = o.Detected[r], o.Enforced[r]
				}
			}
			cj.Gatehouse.Outliers = oj
			cj.Threshold, cj.LocalThreshold = byOrigin(o.Threshold, c.SplitOrigin)
		}
		for _, s := range c.Selectors {
			sj := selectorJSON{
				Name: s.Name, Policy: s.Policy, Generation: s.Generation,
				Rebuilds: s.Rebuilds, Coalesced: s.Coalesced, Failed: s.Failed, Reused: s.Reused,
				QueueSeconds: s.Queue.Seconds(), BuildSeconds: s.Build.Seconds(), StorageBytes: s.Bytes,
				Loads: make([]loadJSON, 0, len(s.Loads)),
			}
			for _, l := range s.Loads {
				sj.Loads = append(sj.Loads, loadJSON(l))
			}
			if s.Err != nil {
				sj.Error = s.Err.Error()
			}
			cj.Gatehouse.Selectors = append(cj.Gatehouse.Selectors, sj)
		}
		for _, e := range c.Endpoints {
			if e.Ready {
				cj.Gatehouse.Ready++
			}
			hj := host(e)
			hj.SuccessRate, hj.LocalRate = byOrigin(e.SuccessRate, c.SplitOrigin)
			cj.HostStatuses = append(cj.HostStatuses, hj)
		}
		out.ClusterStatuses = append(out.ClusterStatuses, cj)
	}
	if len(st.Nameservers) > 0 {
		out.Gatehouse = new(nodeDetailsJSON)
	}
	for _, n := range st.Nameservers {
		out.Gatehouse.Nameservers = append(out.Gatehouse.Nameservers, nameserverJSON{
			n.Group, n.Address.String(), n.Weight, n.Share, n.Latency.Seconds(), n.Queries, n.Won, n.Failures, n.Late, n.Strays, n.TCP,
		})
	}
	return out
}

// byOrigin returns a percentage in its place: in that of all errors, or in that of
// local origin errors. One that is not known has none.
func byOrigin(percent float64, split bool) (all, local *percentJSON) {
	switch p := (&percentJSON{percent}); {
	case percent < 0:
		return nil, nil
	case split:
		return nil, p
	default:
		return p, nil
	}
}

func tlsStatus(st *tlsconf.Status) *tlsJSON {
	if st == nil {
		return nil
	}
	tj := &tlsJSON{
		Generation: st.Generation, LoadedAt: instant(st.LoadedAt), NotAfter: instant(st.NotAfter),
		Certificates: make([]certificateJSON, 0, len(st.Certificates)), ReloadErrors: st.Failures,
	}
	for _, c := range st.Certificates {
		tj.Certificates = append(tj.Certificates, certificateJSON{c.Subject, append([]string{}, c.Names...), c.NotAfter.UTC()})
	}
	if st.Err != nil {
		tj.ReloadError = st.Err.Error()
	}
	return tj
}

// limit leaves out what is none. Below 0 nothing is allowed.
func limit(n int) *int {
	if n == 0 {
		return nil
	}
	return new(max(n, 0))
}

func breakers(c node.ClusterStatus) *breakersJSON {
	t := thresholdJSON{limit(c.Open.Limit), limit(c.Pending.Limit)}
	if t == (thresholdJSON{}) {
		return nil
	}
	return &breakersJSON{[]thresholdJSON{t}}
}

func breaker(b node.Breaker) breakerJSON {
	bj := breakerJSON{Now: b.Now, Limit: limit(b.Limit), Overflow: b.Refused}
	if left, ok := b.Remaining(); ok {
		bj.Remaining, bj.Open = &left, left == 0
	}
	return bj
}

func held(h *discovery.HeldError) *heldJSON {
	if h == nil {
		return nil
	}
	hj := &heldJSON{Listed: h.Listed, Known: h.Known, Until: instant(h.Until)}
	if h.Reason != nil {
		hj.Reason = h.Reason.Error()
	}
	return hj
}

func host(e node.EndpointStatus) hostJSON {
	h := hostJSON{
		Address: address(e.Addr),
		Stats: []statJSON{
			{"cx_active", strconv.FormatInt(e.Totals.Active, 10), "GAUGE"},
			{"cx_connect_fail", strconv.FormatUint(e.Totals.Failed, 10), "COUNTER"},
			{"cx_total", strconv.FormatUint(e.Totals.Opened, 10), "COUNTER"},
		},
		HealthStatus: healthJSON{
			EDSHealthStatus:         edsStatus(e.Status),
			FailedActiveHealthCheck: e.Health == lbcore.HealthUnhealthy,
			FailedActiveDegraded:    e.Health == lbcore.HealthDegraded,
			PendingActiveHC:         e.Health == lbcore.HealthUnknown,
			FailedOutlierCheck:      e.Ejected,
			PendingDynamicRemoval:   e.Withdrawn || e.Absent,
		},
		Weight: e.Weight, Hostname: e.Hostname, Priority: e.Priority,
		Locality: localityJSON{e.Locality.Region, e.Locality.Zone, e.Locality.SubZone},
		Gatehouse: hostDetailsJSON{
			Ready: e.Ready, State: e.State, Since: instant(e.Since), Why: e.Why, Enabled: !e.Disabled, Health: e.Health.String(),
			HostOpen: e.HostOpen, Sent: e.Totals.Sent, Received: e.Totals.Received,
			Adaptive: e.AdaptiveWeight, Degraded: e.Degraded, Locality: e.LocalityWeight,
		},
	}
	if e.SlowStart < 1 {
		h.Gatehouse.Slow = &e.SlowStart
	}
	if j := e.Ejection; j != nil {
		h.Gatehouse.Ejection = &ejectionJSON{Since: instant(j.Since), Until: instant(j.Until), Rule: j.Rule, Times: j.Times}
	}
	for _, c := range e.Checks {
		h.Gatehouse.Checks = append(h.Gatehouse.Checks, check(c))
	}
	return h
}

func check(c healthsvc.Status) checkJSON {
	return checkJSON{
		Kind: c.Kind, Probe: c.Probe, State: c.State.String(), Since: instant(c.Since), LastProbe: instant(c.LastProbe),
		NextProbe: instant(c.NextProbe), LastFailure: instant(c.LastFailure),
		LastError: c.LastError, LastLocal: c.LastLocal, Restored: c.Restored, Streak: c.Streak, Sharers: c.Sharers,
	}
}

// edsStatus writes unknown as Envoy does, for which it is healthy.
func edsStatus(s lbcore.Status) string {
	if s == lbcore.StatusUnknown {
		s = lbcore.StatusHealthy
	}
	return s.String()
}

func address(a lbcore.Addr) addressJSON {
	if a.Path() != "" {
		return addressJSON{Pipe: &pipeJSON{a.Path()}}
	}
	return addressJSON{SocketAddress: &socketJSON{a.AddrPort().Addr().String(), a.AddrPort().Port()}}
}

// instant leaves out the zero time.
func instant(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return new(t.UTC())
}
