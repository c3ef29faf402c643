package admin

import (
	"io"
	"time"

	"gatehouse.internal/healthsvc"
	"gatehouse.internal/lbcore"
)

// The JSON of /healthchecks, which Envoy has not.

type healthChecksJSON struct {
	Targets      int       `json:"targets"`
	References   int       `json:"references"`
	HealthChecks []keyJSON `json:"health_checks"`
}

type keyJSON struct {
	Address addressJSON `json:"address"`
	Kind    string      `json:"kind"`
	Probe   string      `json:"probe"`
	// Owner is the cluster that does not share it.
	Owner string `json:"owner,omitempty"`
	// Result is how the newest probe ended: passed, failed or unknown.
	Result      string     `json:"result"`
	Streak      uint64     `json:"streak"`
	Interval    float64    `json:"interval_seconds"`
	LastProbe   *time.Time `json:"last_probe,omitempty"`
	NextProbe   *time.Time `json:"next_probe,omitempty"`
	LastFailure *time.Time `json:"last_failure,omitempty"`
	LastError   string     `json:"last_error,omitempty"`
	LastLocal   string     `json:"last_local_error,omitempty"` // why the newest gave no result
	Views       []viewJSON `json:"views"`
}

type viewJSON struct {
	Cluster            string     `json:"cluster"`
	State              string     `json:"state"`
	Why                string     `json:"why,omitempty"`
	Since              *time.Time `json:"since,omitempty"`
	Interval           float64    `json:"interval_seconds"`
	HealthyThreshold   uint32     `json:"healthy_threshold"`
	UnhealthyThreshold uint32     `json:"unhealthy_threshold"`
}

func healthChecks(keys []healthsvc.KeyStatus) healthChecksJSON {
	out := healthChecksJSON{Targets: len(keys), HealthChecks: make([]keyJSON, 0, len(keys))}
	for _, k := range keys {
		st := &k.Status
		kj := keyJSON{
			Address: address(k.Addr), Kind: st.Kind, Probe: st.Probe, Owner: k.Owner,
			Result: outcome(st), Streak: st.Streak, Interval: st.Interval.Seconds(),
			LastProbe: instant(st.LastProbe), NextProbe: instant(st.NextProbe),
			LastFailure: instant(st.LastFailure), LastError: st.LastError, LastLocal: st.LastLocal,
			Views: make([]viewJSON, 0, len(k.Views)),
		}
		for _, v := range k.Views {
			kj.Views = append(kj.Views, viewJSON{
				Cluster: v.View, State: v.State.String(), Why: why(v), Since: instant(v.Since), Interval: v.Cadence.Interval.Seconds(),
				HealthyThreshold: v.Thresholds.Healthy, UnhealthyThreshold: v.Thresholds.Unhealthy,
			})
		}
		out.References += len(k.Views)
		out.HealthChecks = append(out.HealthChecks, kj)
	}
	return out
}

func outcome(st *healthsvc.Status) string {
	switch {
	case st.LastProbe.IsZero():
		return "unknown"
	case st.Passing:
		return "passed"
	}
	return "failed"
}

// why says what makes a verdict other than healthy.
func why(v healthsvc.ViewStatus) string {
	switch v.State {
	case lbcore.HealthHealthy:
		return ""
	case lbcore.HealthDegraded:
		return "it says that it is degraded"
	}
	return v.LastError
}

// writeHealthChecks writes lines of address::kind::probe::field::value, and one
// for each view.
func writeHealthChecks(w io.Writer, keys []healthsvc.KeyStatus) {
	all := healthChecks(keys)
	writeLine(w, "targets::%d", all.Targets)
	writeLine(w, "references::%d", all.References)
	for i, k := range all.HealthChecks {
		line := func(format string, args ...any) {
			writeLine(w, "%s::%s::%s::"+format, append([]any{keys[i].Addr, k.Kind, k.Probe}, args...)...)
		}
		if k.Owner != "" {
			line("owner::%s", k.Owner)
		}
		line("result::%s", k.Result)
		line("streak::%d", k.Streak)
		line("interval::%s", keys[i].Status.Interval)
		line("last_probe::%s", clock(k.LastProbe))
		line("next_probe::%s", clock(k.NextProbe))
		if k.LastError != "" {
			line("last_error::%s", k.LastError)
			line("last_failure::%s", clock(k.LastFailure))
		}
		if k.LastLocal != "" {
			line("last_local_error::%s", k.LastLocal)
		}
		for _, v := range k.Views {
			line("view::%s::%s since %s, interval %gs, thresholds %d/%d", v.Cluster, v.State, clock(v.Since), v.Interval, v.HealthyThreshold, v.UnhealthyThreshold)
		}
	}
}

// clock writes a moment, or - for none.
func clock(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.Format("2006-01-02T15:04:05.000Z07:00")
}
