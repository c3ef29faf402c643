package healthsvc

import "gatehouse.internal/lbcore"

// Thresholds say how many equal results in a row change a verdict. 0 counts as
// 1. Whatever they are, the first result of an endpoint that is unknown is its verdict, and
// an [ImmediateError] makes any endpoint unhealthy.
// Source: HealthCheck.healthy_threshold and unhealthy_threshold.
type Thresholds struct {
	Healthy, Unhealthy uint32
	// InitialHealthy is for those who use an endpoint that is unknown yet: its
	// first failures need the threshold, as if it were healthy.
	InitialHealthy bool
}

func (t Thresholds) normal() Thresholds {
	t.Healthy, t.Unhealthy = max(t.Healthy, 1), max(t.Unhealthy, 1)
	return t
}

// automaton turns results into a verdict. With its Thresholds set, its zero
// value is ready for use and unknown.
type automaton struct {
	Thresholds
	state   lbcore.Health
	against uint32 // results in a row that speak against state
}

// observe takes n equal results in a row (n is 1 but where a newcomer is told
// the past) and reports whether the verdict changed. atOnce marks failures
// that need no repetition.
//
// Envoy starts endpoints as failed, so that one pass but no failure changes
// them; here they start as unknown, which says that no probe has ended yet.
func (a *automaton) observe(pass, atOnce bool, n uint32) bool {
	to, need := lbcore.HealthUnhealthy, a.Unhealthy
	if pass {
		to, need = lbcore.HealthHealthy, a.Healthy
	}
	if atOnce || a.state == lbcore.HealthUnknown && (pass || !a.InitialHealthy) {
		need = 1
	}
	if a.state == to {
		a.against = 0
		return false
	}
	if n < need && a.against < need-n { // against+n < need, without overflow
		a.against += n
		return false
	}
	a.state, a.against = to, 0
	return true
}
