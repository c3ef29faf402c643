package admin

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"gatehouse.internal/cmd/agent/internal/node"
	"gatehouse.internal/lbcore"
	"gatehouse.internal/xds"
)

// writeClusters writes lines of name::host::field::value, as Envoy does.
func writeClusters(w io.Writer, st known) {
	defer writeNameservers(w, st.Status)
	for _, c := range st.Clusters {
		line := func(field string, v any) { writeLine(w, "%s::%s::%v", c.Name, field, v) }
		line("observability_name", c.Name)
		line("added_via_api", c.Origin != "file")
		writeResource(line, "gatehouse_cds", st.cds(c))
		if eds := st.eds(c); eds != nil {
			line("eds_service_name", eds.Name)
			writeResource(line, "gatehouse_eds", eds)
		}
		if n := limit(c.Open.Limit); n != nil {
			line("default_priority::max_connections", *n)
		}
		if n := limit(c.Pending.Limit); n != nil {
			line("default_priority::max_pending_requests", *n)
		}
		line("gatehouse_origin", c.Origin)
		if c.Unsupported != "" {
			line("gatehouse_unsupported", c.Unsupported)
		}
		for _, child := range c.Aggregate {
			line("gatehouse_aggregate", child)
		}
		for _, l := range c.AggregateLoads {
			line("gatehouse_load", fmt.Sprintf("%s::priority=%d distance=%d endpoints=%d healthy=%d%% degraded=%d%% panic=%t",
				l.Cluster, l.Priority, l.Distance, l.Endpoints, l.Healthy, l.Degraded, l.Panic))
		}
		if c.Waiting != "" {
			line("gatehouse_waiting", c.Waiting)
		}
		line("gatehouse_generation", c.Generation)
		line("gatehouse_source", c.Source.State)
		if c.Source.Err != "" {
			line("gatehouse_source_error", c.Source.Err)
		}
		if len(c.Source.Blocks) > 1 {
			for i, b := range c.Source.Blocks {
				line("gatehouse_discovery", strings.TrimRight(fmt.Sprintf("%d::%s::%s endpoints=%d %s", i, b.Kind, b.State, b.Endpoints, b.Err), " "))
			}
		}
		if r := c.Source.Restored; r != nil {
			line("gatehouse_source_restored", fmt.Sprintf("confirmed=%s age=%s", r.Confirmed.UTC().Format(time.RFC3339), r.Age.Round(time.Second)))
		}
		if h := c.Source.Held; h != nil {
			line("gatehouse_source_held", fmt.Sprintf("listed=%d known=%d until=%s", h.Listed, h.Known, h.Until.UTC().Format(time.RFC3339)))
		}
		if st := c.TLS; st != nil {
			line("gatehouse_tls", fmt.Sprintf("generation=%d not_after=%s reload_errors=%d", st.Generation, st.NotAfter.UTC().Format(time.RFC3339), st.Failures))
			if st.Err != nil {
				line("gatehouse_tls_reload_error", st.Err)
			}
		}
		if c.Unsupported == "" {
			line("gatehouse_connections", breakerText(c.Open))
			line("gatehouse_pending", breakerText(c.Pending))
		}
		if c.Connect.Count() > 0 {
			line("gatehouse_connect_time", latencyText(c.Connect))
		}
		if c.FirstByte.Count() > 0 {
			line("gatehouse_first_byte_time", latencyText(c.FirstByte))
		}
		for _, d := range c.Drops {
			line("gatehouse_drop_overload", fmt.Sprintf("%s::per_million=%d dropped=%d", d.Category, d.PerMillion, d.Dropped))
		}
		if c.Ending > 0 {
			line("gatehouse_ending", c.Ending)
		}
		if o := c.Outliers; o != nil {
			all, local := rates(o.Average, c.SplitOrigin)
			line("outlier::success_rate_average", all)
			line("outlier::local_origin_success_rate_average", local)
			all, local = rates(o.Threshold, c.SplitOrigin)
			line("outlier::success_rate_ejection_threshold", all)
			line("outlier::local_origin_success_rate_ejection_threshold", local)
			line("gatehouse_ejections_active", o.Active)
			line("gatehouse_ejections_overflow", o.Overflow)
		}
		for _, s := range c.Selectors {
			line("gatehouse_selector", fmt.Sprintf("%s::%s::generation=%d rebuilds=%d coalesced=%d failed=%d reused=%d storage=%d queue=%s build=%s",
				s.Name, s.Policy, s.Generation, s.Rebuilds, s.Coalesced, s.Failed, s.Reused, s.Bytes, s.Queue, s.Build))
			for _, l := range s.Loads {
				line("gatehouse_load", fmt.Sprintf("%s::priority=%d distance=%d endpoints=%d healthy=%d%% degraded=%d%% panic=%t",
					s.Name, l.Priority, l.Distance, l.Endpoints, l.Healthy, l.Degraded, l.Panic))
			}
		}
		for _, e := range c.Endpoints {
			line := func(field string, v any) { writeLine(w, "%s::%s::%s::%v", c.Name, e.Addr, field, v) }
			line("cx_active", e.Totals.Active)
			line("cx_connect_fail", e.Totals.Failed)
			line("cx_total", e.Totals.Opened)
			line("hostname", e.Hostname)
			line("health_flags", healthFlags(e))
			line("weight", e.Weight)
			line("region", e.Locality.Region)
			line("zone", e.Locality.Zone)
			line("sub_zone", e.Locality.SubZone)
			line("priority", e.Priority)
			all, local := rates(e.SuccessRate, c.SplitOrigin)
			line("success_rate", all)
			line("local_origin_success_rate", local)
			line("gatehouse_ready", e.Ready)
			line("gatehouse_state", e.State)
			if !e.Since.IsZero() {
				line("gatehouse_since", e.Since.UTC().Format(time.RFC3339))
			}
			if e.Why != "" {
				line("gatehouse_why", e.Why)
			}
			for _, k := range e.Checks {
				line("gatehouse_check", fmt.Sprintf("%s::%s since=%s streak=%d last_probe=%s next_probe=%s last_error=%q",
					k.Kind, k.State, clock(instant(k.Since)), k.Streak, clock(instant(k.LastProbe)), clock(instant(k.NextProbe)), k.LastError))
			}
			if j := e.Ejection; j != nil {
				line("gatehouse_ejection", fmt.Sprintf("rule=%s since=%s until=%s times=%d",
					j.Rule, j.Since.UTC().Format(time.RFC3339), j.Until.UTC().Format(time.RFC3339), j.Times))
			}
			if e.Degraded {
				line("gatehouse_degraded", true)
			}
			if e.SlowStart < 1 {
				line("gatehouse_slow_start_share", fmt.Sprintf("%.3f", e.SlowStart))
			}
			if e.LocalityWeight > 0 {
				line("gatehouse_locality_weight", e.LocalityWeight)
			}
			if e.AdaptiveWeight > 0 {
				line("gatehouse_adaptive_weight", fmt.Sprintf("%.1f", e.AdaptiveWeight))
			}
		}
	}
}

// writeResource writes what is known of a resource of the control plane, and why it
// was refused last.
func writeResource(line func(string, any), field string, r *xds.ResourceStatus) {
	if r == nil {
		return
	}
	line(field, fmt.Sprintf("%s version=%s updated=%s", r.State, cmp.Or(r.Version, "-"), clock(instant(r.Updated))))
	if r.Error != "" {
		line(field+"_error", r.Error)
	}
	if n := r.Nack; n.Reason != "" {
		line(field+"_nack", fmt.Sprintf("version=%s at=%s reason=%s", n.Version, clock(instant(n.At)), n.Reason))
	}
}

// writeNameservers writes a line for each nameserver.
func writeNameservers(w io.Writer, st node.Status) {
	for _, n := range st.Nameservers {
		writeLine(w, "gatehouse_nameserver::%s::%s::weight=%.1f share=%.3f latency=%s queries=%d won=%d failures=%d late=%d strays=%d tcp=%d",
			n.Group, n.Address, n.Weight, n.Share, n.Latency, n.Queries, n.Won, n.Failures, n.Late, n.Strays, n.TCP)
	}
}

// rates returns a percentage in its place, as byOrigin does, and -1 in the other.
func rates(percent float64, split bool) (all, local float64) {
	if split {
		return -1, percent
	}
	return percent, -1
}

// breakerText is a circuit breaker in a line.
func breakerText(b node.Breaker) string {
	s := fmt.Sprintf("now=%d overflow=%d", b.Now, b.Refused)
	if left, ok := b.Remaining(); ok {
		s += fmt.Sprintf(" limit=%d remaining=%d open=%t", max(b.Limit, 0), left, left == 0)
	}
	return s
}

// healthFlags returns Envoy's words in Envoy's order: "healthy", or flags with
// a slash each.
func healthFlags(e node.EndpointStatus) string {
	var b strings.Builder
	for _, f := range []struct {
		on   bool
		word string
	}{
		{e.Health == lbcore.HealthUnhealthy, "/failed_active_hc"},
		{e.Ejected, "/failed_outlier_check"},
		{e.Status == lbcore.StatusUnhealthy || e.Status == lbcore.StatusTimeout, "/failed_eds_health"},
		{e.Health == lbcore.HealthDegraded, "/degraded_active_hc"},
		{e.Status == lbcore.StatusDegraded, "/degraded_eds_health"},
		{e.Withdrawn || e.Absent, "/pending_dynamic_removal"},
		{e.Health == lbcore.HealthUnknown, "/pending_active_hc"},
		{e.Status == lbcore.StatusDraining, "/eds_status_draining"},
		{e.Disabled, "/gatehouse_disabled"},
	} {
		if f.on {
			b.WriteString(f.word)
		}
	}
	if b.Len() == 0 {
		return "healthy"
	}
	return b.String()
}

// writeListeners writes lines of name::address, as Envoy does, or why there is
// no such listener.
func writeListeners(w io.Writer, st node.Status) {
	for _, l := range st.Listeners {
		if l.Unsupported != "" {
			writeLine(w, "%s::gatehouse_unsupported::%s", l.Name, l.Unsupported)
			continue
		}
		writeLine(w, "%s::%s", l.Name, l.Address)
		for _, c := range l.Chains {
			if c.Unsupported != "" {
				writeLine(w, "%s::gatehouse_filter_chain::%s::unsupported::%s", l.Name, c.Name, c.Unsupported)
			}
		}
	}
}

// writeLine writes one line, whatever errors and the names of a control plane
// hold.
func writeLine(w io.Writer, format string, args ...any) {
	io.WriteString(w, strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; ")+"\n")
}
