package admin

import (
	"fmt"
	"io"
	"strings"

	"gatehouse.internal/cmd/agent/internal/node"
	"gatehouse.internal/lbcore"
)

// writeClusters writes lines of name::host::field::value, as Envoy does.
func writeClusters(w io.Writer, st node.Status) {
	for _, c := range st.Clusters {
		line := func(field string, v any) { fmt.Fprintf(w, "%s::%s::%v\n", c.Name, field, v) }
		line("observability_name", c.Name)
		line("added_via_api", c.Origin != "file")
		line("gatehouse_origin", c.Origin)
		if c.Unsupported != "" {
			line("gatehouse_unsupported", c.Unsupported)
		}
		if c.Waiting != "" {
			line("gatehouse_waiting", c.Waiting)
		}
		line("gatehouse_generation", c.Generation)
		line("gatehouse_source", c.Source.State)
		if c.Source.Err != "" {
			line("gatehouse_source_error", c.Source.Err)
		}
		for _, s := range c.Selectors {
			line("gatehouse_selector", fmt.Sprintf("%s::%s::generation=%d rebuilds=%d coalesced=%d failed=%d storage=%d",
				s.Name, s.Policy, s.Generation, s.Rebuilds, s.Coalesced, s.Failed, s.Bytes))
		}
		for _, e := range c.Endpoints {
			line := func(field string, v any) { fmt.Fprintf(w, "%s::%s::%s::%v\n", c.Name, e.Addr, field, v) }
			line("cx_active", e.Totals.Active)
			line("cx_connect_fail", e.Totals.Failed)
			line("cx_total", e.Totals.Opened)
			line("health_flags", healthFlags(e))
			line("weight", e.Weight)
			line("region", e.Locality.Region)
			line("zone", e.Locality.Zone)
			line("sub_zone", e.Locality.SubZone)
			line("hostname", e.Hostname)
			line("priority", e.Priority)
			line("gatehouse_ready", e.Ready)
		}
	}
}

// healthFlags returns Envoy's words: "healthy", or flags with a slash each.
func healthFlags(e node.EndpointStatus) string {
	var b strings.Builder
	for _, f := range []struct {
		on   bool
		word string
	}{
		{e.Health == lbcore.HealthUnhealthy, "/failed_active_hc"},
		{e.Health == lbcore.HealthUnknown, "/pending_active_hc"},
		{e.Ejected, "/failed_outlier_check"},
		{e.Status != lbcore.StatusUnknown && e.Status != lbcore.StatusHealthy && e.Status != lbcore.StatusDegraded, "/failed_eds_health"},
		{e.Status == lbcore.StatusDegraded, "/degraded_eds_health"},
		{e.Withdrawn, "/pending_dynamic_removal"},
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

// writeListeners writes lines of name::address, as Envoy does.
func writeListeners(w io.Writer, st node.Status) {
	for _, l := range st.Listeners {
		fmt.Fprintf(w, "%s::%s\n", l.Name, l.Address)
	}
}
