package config

import (
	"fmt"
	"time"
)

// OutlierDetection has endpoints take no new connections for a while that do
// worse than they should. A connect that is refused, times out or fails in its TLS handshake
// is a failure; what a connection comes to after that has no say, nor has a dial
// that the client or a lack of local resources ended. It is off without the
// block, which may be empty. With max_ejection_percent at its default of 10,
// fewer than ten endpoints lose none.
// Source: envoy.config.cluster.v3.OutlierDetection.
//
// It converts to Config of package healthsvc/outlier.
type OutlierDetection struct {
	// Enabled is whether the block is there.
	Enabled bool
	// Interval is how often endpoints are compared and may come back. Default
	// 10s, from 1ms to 24h.
	Interval time.Duration `hcl:"interval" default:"10s" range:"1ms..24h"`
	// BaseEjectionTime is how long an endpoint stays out for each time that it
	// was ejected; an interval without makes it one time less. Default 30s, from
	// 1ms to 24h.
	BaseEjectionTime time.Duration `hcl:"base_ejection_time" default:"30s" range:"1ms..24h"`
	// MaxEjectionTime bounds that, at least base_ejection_time, up to 24h.
	// Default 0, which means the larger of 300s and base_ejection_time.
	MaxEjectionTime time.Duration `hcl:"max_ejection_time" range:"1ms..24h"`
	// MaxEjectionTimeJitter is the most that is added by chance. Default 0, up
	// to 24h.
	MaxEjectionTimeJitter time.Duration `hcl:"max_ejection_time_jitter" default:"0s" range:"0s..24h"`
	// MaxEjectionPercent of the endpoints may be out at once, the one in question
	// included. Default 10.
	MaxEjectionPercent uint32 `hcl:"max_ejection_percent" default:"10" range:"0..100"`
	// AlwaysEjectOneHost lets one be out whatever max_ejection_percent says.
	AlwaysEjectOneHost bool `hcl:"always_eject_one_host"`
	// SuccessfulActiveHealthCheckUnejectHost has a passing health check bring an
	// endpoint back, within a second. Default true.
	SuccessfulActiveHealthCheckUnejectHost bool `hcl:"successful_active_health_check_uneject_host" default:"true"`

	// Consecutive5xx is the number of failures in a row that make an endpoint an
	// outlier, ConsecutiveGatewayFailure is another; 0 is never. Both count every
	// failed connect. Default 5 and 5. EnforcingConsecutive5xx and
	// EnforcingConsecutiveGatewayFailure are how often, in percent, it is ejected
	// then; what isn't only counts. Default 100 and 0.
	Consecutive5xx                     uint32 `hcl:"consecutive_5xx" default:"5" range:"0..4294967295"`
	EnforcingConsecutive5xx            uint32 `hcl:"enforcing_consecutive_5xx" default:"100" range:"0..100"`
	ConsecutiveGatewayFailure          uint32 `hcl:"consecutive_gateway_failure" default:"5" range:"0..4294967295"`
	EnforcingConsecutiveGatewayFailure uint32 `hcl:"enforcing_consecutive_gateway_failure" default:"0" range:"0..100"`

	// SplitExternalLocalOriginErrors puts the four rules for local origin errors
	// in the place of consecutive_5xx, consecutive_gateway_failure and the
	// enforcing of success_rate and failure_percentage. What is not in force can't
	// be set. ConsecutiveLocalOriginFailure and EnforcingConsecutiveLocalOriginFailure
	// are the first of the four rules, as consecutive_5xx is without.
	SplitExternalLocalOriginErrors         bool   `hcl:"split_external_local_origin_errors"`
	ConsecutiveLocalOriginFailure          uint32 `hcl:"consecutive_local_origin_failure" default:"5" range:"0..4294967295"`
	EnforcingConsecutiveLocalOriginFailure uint32 `hcl:"enforcing_consecutive_local_origin_failure" default:"100" range:"0..100"`

	// An endpoint is an outlier if the percentage of connects in the last interval
	// that succeeded is below the mean of all less SuccessRateStdevFactor / 1000
	// standard deviations. Those with SuccessRateRequestVolume connects are
	// compared, if there are SuccessRateMinimumHosts of them. Default 5, 100 and
	// 1900. EnforcingSuccessRate is how often, in percent, it is ejected then, and
	// EnforcingLocalOriginSuccessRate the same with split_external_local_origin_errors.
	SuccessRateMinimumHosts         uint32 `hcl:"success_rate_minimum_hosts" default:"5" range:"0..4294967295"`
	SuccessRateRequestVolume        uint32 `hcl:"success_rate_request_volume" default:"100" range:"0..4294967295"`
	SuccessRateStdevFactor          uint32 `hcl:"success_rate_stdev_factor" default:"1900" range:"0..4294967295"`
	EnforcingSuccessRate            uint32 `hcl:"enforcing_success_rate" default:"100" range:"0..100"`
	EnforcingLocalOriginSuccessRate uint32 `hcl:"enforcing_local_origin_success_rate" default:"100" range:"0..100"`

	// And so is one of whose connects at least FailurePercentageThreshold percent
	// failed, where FailurePercentageMinimumHosts have had FailurePercentageRequestVolume
	// connects. Default 85, 5 and 50. EnforcingFailurePercentage is how often, in
	// percent, it is ejected then, and EnforcingFailurePercentageLocalOrigin the same
	// with split_external_local_origin_errors. Default 0: it only counts.
	FailurePercentageThreshold            uint32 `hcl:"failure_percentage_threshold" default:"85" range:"0..100"`
	FailurePercentageMinimumHosts         uint32 `hcl:"failure_percentage_minimum_hosts" default:"5" range:"0..4294967295"`
	FailurePercentageRequestVolume        uint32 `hcl:"failure_percentage_request_volume" default:"50" range:"0..4294967295"`
	EnforcingFailurePercentage            uint32 `hcl:"enforcing_failure_percentage" default:"0" range:"0..100"`
	EnforcingFailurePercentageLocalOrigin uint32 `hcl:"enforcing_failure_percentage_local_origin" default:"0" range:"0..100"`
}

// finishOutlier notes which clusters have the block.
func (d *decoder) finishOutlier() {
	for i := range d.cfg.Clusters {
		c := &d.cfg.Clusters[i]
		_, c.OutlierDetection.Enabled = d.at[path("cluster").sub(c.Name, "outlier_detection")]
	}
}

// checkOutlier finds what of outlier_detection contradicts itself or has no
// effect.
func (d *decoder) checkOutlier(c *Cluster) {
	o := &c.OutlierDetection
	p := path("cluster").sub(c.Name, "outlier_detection")
	if o.MaxEjectionTime > 0 && o.MaxEjectionTime < o.BaseEjectionTime && d.good(p, "max_ejection_time", "base_ejection_time") {
		d.mistake(p, d.where(p, "max_ejection_time"), fmt.Sprintf("max_ejection_time (%s) < base_ejection_time (%s)", o.MaxEjectionTime, o.BaseEjectionTime),
			"make it at least that, or leave it out")
	}
	idle := []string{
		"consecutive_local_origin_failure", "enforcing_consecutive_local_origin_failure",
		"enforcing_local_origin_success_rate", "enforcing_failure_percentage_local_origin",
	}
	because, hint := "without split_external_local_origin_errors", "set that to true, or leave this out: every failed connect counts for consecutive_5xx"
	if o.SplitExternalLocalOriginErrors {
		idle = []string{
			"consecutive_5xx", "enforcing_consecutive_5xx", "consecutive_gateway_failure", "enforcing_consecutive_gateway_failure",
			"enforcing_success_rate", "enforcing_failure_percentage",
		}
		because, hint = "with split_external_local_origin_errors", "use the argument for local origin errors: a failed connect is nothing else"
	}
	if !d.good(p, "split_external_local_origin_errors") {
		return
	}
	for _, name := range idle {
		if d.isSet(p, name) {
			d.mistake(p, d.where(p, name), name+" has no effect "+because, hint)
		}
	}
}
