package outlier

import (
	"cmp"
	"time"
)

// Config has the fields of Envoy's message under their names. Percentages are
// 0 to 100. The zero value is off; Default has Envoy's defaults.
// Source: envoy.config.cluster.v3.OutlierDetection.
type Config struct {
	// Enabled says that there is outlier detection.
	Enabled bool
	// Interval is the time between sweeps, above 0.
	Interval time.Duration
	// BaseEjectionTime is how long an endpoint stays out for each time that it
	// was ejected, above 0; MaxEjectionTime bounds the product, and is at least
	// BaseEjectionTime: 0 means 300s, or that if it is more. At most
	// MaxEjectionTimeJitter is added, by chance.
	BaseEjectionTime, MaxEjectionTime, MaxEjectionTimeJitter time.Duration
	// MaxEjectionPercent of the listed endpoints may be ejected at once, the
	// one in question included. AlwaysEjectOneHost lets the first one be ejected
	// whatever that makes.
	MaxEjectionPercent uint32
	AlwaysEjectOneHost bool
	// SuccessfulActiveHealthCheckUnejectHost ends an ejection when an active
	// check passes.
	SuccessfulActiveHealthCheckUnejectHost bool

	// After so many failures in a row an endpoint is an outlier, 0 is never; with
	// the probability of Enforcing..., in percent, it is ejected then.
	Consecutive5xx                     uint32
	EnforcingConsecutive5xx            uint32
	ConsecutiveGatewayFailure          uint32
	EnforcingConsecutiveGatewayFailure uint32

	// SplitExternalLocalOriginErrors has failures judged by the rules for local
	// origin ones, in place of the others.
	SplitExternalLocalOriginErrors         bool
	ConsecutiveLocalOriginFailure          uint32
	EnforcingConsecutiveLocalOriginFailure uint32

	// An endpoint is an outlier whose success rate of the last interval is below
	// the mean less StdevFactor / 1000 standard deviations. Those with
	// RequestVolume connects are compared, if there are MinimumHosts of them.
	SuccessRateMinimumHosts         uint32
	SuccessRateRequestVolume        uint32
	SuccessRateStdevFactor          uint32
	EnforcingSuccessRate            uint32
	EnforcingLocalOriginSuccessRate uint32

	// And so is one of whose connects at least the Threshold, in percent, failed.
	FailurePercentageThreshold            uint32
	FailurePercentageMinimumHosts         uint32
	FailurePercentageRequestVolume        uint32
	EnforcingFailurePercentage            uint32
	EnforcingFailurePercentageLocalOrigin uint32
}

// Default returns Envoy's defaults, switched on.
func Default() Config {
	return Config{
		Enabled:  true,
		Interval: 10 * time.Second, BaseEjectionTime: 30 * time.Second,
		MaxEjectionPercent: 10, SuccessfulActiveHealthCheckUnejectHost: true,
		Consecutive5xx: 5, EnforcingConsecutive5xx: 100, ConsecutiveGatewayFailure: 5,
		ConsecutiveLocalOriginFailure: 5, EnforcingConsecutiveLocalOriginFailure: 100,
		SuccessRateMinimumHosts: 5, SuccessRateRequestVolume: 100, SuccessRateStdevFactor: 1900,
		EnforcingSuccessRate: 100, EnforcingLocalOriginSuccessRate: 100,
		FailurePercentageThreshold: 85, FailurePercentageMinimumHosts: 5, FailurePercentageRequestVolume: 50,
	}
}

// longest bounds all times, so that sums of them are times.
const longest = 10 * 365 * 24 * time.Hour

// normal returns c with its times within bounds.
func (c Config) normal() Config {
	within := func(d, least time.Duration) time.Duration { return min(max(d, least), longest) }
	c.BaseEjectionTime = within(c.BaseEjectionTime, time.Millisecond)
	c.MaxEjectionTime = within(cmp.Or(c.MaxEjectionTime, 300*time.Second), c.BaseEjectionTime)
	c.MaxEjectionTimeJitter = within(c.MaxEjectionTimeJitter, 0)
	return c
}

// Rule is what makes an endpoint an outlier.
type Rule uint8

// The rules. The first four judge failures that are not split from others, and
// the other four those that are.
const (
	Consecutive5xx Rule = iota
	ConsecutiveGatewayFailure
	SuccessRate
	FailurePercentage
	ConsecutiveLocalOriginFailure
	LocalOriginSuccessRate
	LocalOriginFailurePercentage
	Rules // how many there are
)

// String returns the word in the names of Envoy's counters.
func (r Rule) String() string {
	return [...]string{
		"consecutive_5xx", "consecutive_gateway_failure", "success_rate", "failure_percentage",
		"consecutive_local_origin_failure", "local_origin_success_rate", "local_origin_failure_percentage", "none",
	}[min(r, Rules)]
}

// Consecutive is a rule about failures in a row.
type Consecutive struct {
	Rule Rule
	// After is the number of them, 0 is never.
	After uint32
}

// Consecutive returns the rules about failures in a row that are in force, at
// most two, in the order in which they are to be asked.
func (c *Config) Consecutive() []Consecutive {
	switch {
	case !c.Enabled:
		return nil
	case c.SplitExternalLocalOriginErrors:
		return []Consecutive{{ConsecutiveLocalOriginFailure, c.ConsecutiveLocalOriginFailure}}
	}
	return []Consecutive{{ConsecutiveGatewayFailure, c.ConsecutiveGatewayFailure}, {Consecutive5xx, c.Consecutive5xx}}
}

// enforcing returns by which percentage of its finds r ejects.
func (c *Config) enforcing(r Rule) uint32 {
	return [...]uint32{
		c.EnforcingConsecutive5xx, c.EnforcingConsecutiveGatewayFailure, c.EnforcingSuccessRate, c.EnforcingFailurePercentage,
		c.EnforcingConsecutiveLocalOriginFailure, c.EnforcingLocalOriginSuccessRate, c.EnforcingFailurePercentageLocalOrigin,
	}[r]
}
