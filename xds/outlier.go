package xds

import (
	"fmt"
	"maps"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"gatehouse.internal/healthsvc/outlier"
)

// What becomes of the fields of OutlierDetection: those of outlierFields always,
// and of the others those that are in force with or without
// split_external_local_origin_errors. Degraded hosts are what a header of HTTP
// calls so, and monitors are extensions.
var (
	outlierFields = map[string]use{
		"interval": applied, "base_ejection_time": applied, "max_ejection_percent": applied, "max_ejection_time": applied,
		"max_ejection_time_jitter": applied, "successful_active_health_check_uneject_host": applied, "always_eject_one_host": applied,
		"split_external_local_origin_errors": applied,
		"success_rate_minimum_hosts":         applied, "success_rate_request_volume": applied, "success_rate_stdev_factor": applied,
		"failure_percentage_threshold": applied, "failure_percentage_minimum_hosts": applied, "failure_percentage_request_volume": applied,

		"detect_degraded_hosts": harmless,

		"monitors": ignored,
	}
	unsplitFields = map[string]use{
		"consecutive_5xx": applied, "enforcing_consecutive_5xx": applied, "consecutive_gateway_failure": applied,
		"enforcing_consecutive_gateway_failure": applied, "enforcing_success_rate": applied, "enforcing_failure_percentage": applied,
	}
	splitFields = map[string]use{
		"consecutive_local_origin_failure": applied, "enforcing_consecutive_local_origin_failure": applied,
		"enforcing_local_origin_success_rate": applied, "enforcing_failure_percentage_local_origin": applied,
	}
)

// outlierDetection reads outlier_detection. Its rules are those of the proto,
// and Envoy's that max_ejection_time is not below base_ejection_time.
func (r *clusterReader) outlierDetection(m *clusterv3.Cluster) error {
	o := m.GetOutlierDetection()
	if o == nil {
		return nil
	}
	const path = "outlier_detection."
	c := outlier.Default()
	for _, f := range []struct {
		name  string
		from  *durationpb.Duration
		to    *time.Duration
		least time.Duration
	}{
		{"interval", o.GetInterval(), &c.Interval, 1},
		{"base_ejection_time", o.GetBaseEjectionTime(), &c.BaseEjectionTime, 1},
		{"max_ejection_time", o.GetMaxEjectionTime(), &c.MaxEjectionTime, 1},
		{"max_ejection_time_jitter", o.GetMaxEjectionTimeJitter(), &c.MaxEjectionTimeJitter, 0},
	} {
		if f.from == nil {
			continue
		}
		if err := f.from.CheckValid(); err != nil {
			return fmt.Errorf(path+"%s: %w", f.name, err)
		}
		switch d := f.from.AsDuration(); {
		case d < 0:
			return fmt.Errorf(path+"%s: %s: want at least 0s", f.name, d)
		case d < f.least:
			return fmt.Errorf(path+"%s: %s: want more than 0s", f.name, d)
		default:
			*f.to = d
		}
	}
	c.Interval = max(c.Interval, time.Millisecond)
	if o.GetMaxEjectionTime() != nil && c.MaxEjectionTime < c.BaseEjectionTime {
		return fmt.Errorf(path+"max_ejection_time: %s: want at least base_ejection_time, %s", c.MaxEjectionTime, c.BaseEjectionTime)
	}
	for _, f := range []struct {
		name    string
		from    *wrapperspb.UInt32Value
		to      *uint32
		percent bool
	}{
		{"max_ejection_percent", o.GetMaxEjectionPercent(), &c.MaxEjectionPercent, true},
		{"consecutive_5xx", o.GetConsecutive_5Xx(), &c.Consecutive5xx, false},
		{"enforcing_consecutive_5xx", o.GetEnforcingConsecutive_5Xx(), &c.EnforcingConsecutive5xx, true},
		{"consecutive_gateway_failure", o.GetConsecutiveGatewayFailure(), &c.ConsecutiveGatewayFailure, false},
		{"enforcing_consecutive_gateway_failure", o.GetEnforcingConsecutiveGatewayFailure(), &c.EnforcingConsecutiveGatewayFailure, true},
		{"consecutive_local_origin_failure", o.GetConsecutiveLocalOriginFailure(), &c.ConsecutiveLocalOriginFailure, false},
		{"enforcing_consecutive_local_origin_failure", o.GetEnforcingConsecutiveLocalOriginFailure(), &c.EnforcingConsecutiveLocalOriginFailure, true},
		{"success_rate_minimum_hosts", o.GetSuccessRateMinimumHosts(), &c.SuccessRateMinimumHosts, false},
		{"success_rate_request_volume", o.GetSuccessRateRequestVolume(), &c.SuccessRateRequestVolume, false},
		{"success_rate_stdev_factor", o.GetSuccessRateStdevFactor(), &c.SuccessRateStdevFactor, false},
		{"enforcing_success_rate", o.GetEnforcingSuccessRate(), &c.EnforcingSuccessRate, true},
		{"enforcing_local_origin_success_rate", o.GetEnforcingLocalOriginSuccessRate(), &c.EnforcingLocalOriginSuccessRate, true},
		{"failure_percentage_threshold", o.GetFailurePercentageThreshold(), &c.FailurePercentageThreshold, true},
		{"failure_percentage_minimum_hosts", o.GetFailurePercentageMinimumHosts(), &c.FailurePercentageMinimumHosts, false},
		{"failure_percentage_request_volume", o.GetFailurePercentageRequestVolume(), &c.FailurePercentageRequestVolume, false},
		{"enforcing_failure_percentage", o.GetEnforcingFailurePercentage(), &c.EnforcingFailurePercentage, true},
		{"enforcing_failure_percentage_local_origin", o.GetEnforcingFailurePercentageLocalOrigin(), &c.EnforcingFailurePercentageLocalOrigin, true},
	} {
		if f.from == nil {
			continue
		}
		if n := f.from.GetValue(); f.percent && n > 100 {
			return fmt.Errorf(path+"%s: %d: want 0 to 100", f.name, n)
		}
		*f.to = f.from.GetValue()
	}
	c.AlwaysEjectOneHost = o.GetAlwaysEjectOneHost().GetValue()
	if u := o.GetSuccessfulActiveHealthCheckUnejectHost(); u != nil {
		c.SuccessfulActiveHealthCheckUnejectHost = u.GetValue()
	}
	c.SplitExternalLocalOriginErrors = o.GetSplitExternalLocalOriginErrors()
	fields := maps.Clone(outlierFields)
	if c.SplitExternalLocalOriginErrors {
		maps.Copy(fields, splitFields)
	} else {
		maps.Copy(fields, unsplitFields)
	}
	r.fields(o, path, fields)
	r.c.Outlier = c
	return nil
}
