package xds

import (
	"fmt"
	"math"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/common/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"gatehouse.internal/lbcore"
)

// The defaults, in percent.
const (
	defaultPanic     = 50
	defaultMinWeight = 10
)

// The fields of CommonLbConfig. Zone-aware routing shares load by how large the
// zones of this node's own cluster are, which is not known here; to prefer local
// endpoints by another rule in its place would not be what was asked for.
var commonFields = map[string]use{
	"healthy_panic_threshold": applied, "locality_weighted_lb_config": applied,
	"ignore_new_hosts_until_first_hc": applied, "consistent_hashing_lb_config": applied,
	"update_merge_window": harmless, "override_host_status": harmless,
	"zone_aware_lb_config": ignored, "close_connections_on_host_set_change": ignored,
}

// What a policy's own configuration says of localities and of hashing.
var (
	localityFields = map[string]use{"locality_weighted_lb_config": applied}
	hashingFields  = map[string]use{"use_hostname_for_hashing": applied, "hash_balance_factor": applied}
)

// common reads common_lb_config, but for what concerns the policy.
func (r *clusterReader) common(m *clusterv3.Cluster) error {
	const path = "common_lb_config."
	c := m.GetCommonLbConfig()
	if p := c.GetHealthyPanicThreshold(); p != nil {
		threshold, err := percent(p)
		if err != nil {
			return fmt.Errorf(path+"healthy_panic_threshold: %w", err)
		}
		r.c.PanicThreshold = uint32(threshold) // the integer part, as in Envoy
	}
	r.c.IgnoreNew = c.GetIgnoreNewHostsUntilFirstHc()
	r.fields(c, path, commonFields)
	return nil
}

// policyOfCommon reads the part of common_lb_config that belongs to the policy
// which lb_policy names; load_balancing_policy has such a part of its own.
func (r *clusterReader) policyOfCommon(m *clusterv3.Cluster) error {
	c := m.GetCommonLbConfig()
	r.c.LocalityWeighted = c.GetLocalityWeightedLbConfig() != nil
	const path = "common_lb_config.consistent_hashing_lb_config"
	switch {
	case c.GetConsistentHashingLbConfig() == nil:
		return nil
	case r.hashes():
		r.fields(c.GetConsistentHashingLbConfig(), path+".", hashingFields)
	default:
		r.c.Ignored = append(r.c.Ignored, path)
	}
	return r.hashing(c.GetConsistentHashingLbConfig(), path+".")
}

// unusedCommon lists that part of common_lb_config where it has no effect.
func (r *clusterReader) unusedCommon(m *clusterv3.Cluster) {
	if m.GetCommonLbConfig().GetLocalityWeightedLbConfig() != nil {
		r.c.Ignored = append(r.c.Ignored, "common_lb_config.locality_weighted_lb_config")
	}
	if m.GetCommonLbConfig().GetConsistentHashingLbConfig() != nil {
		r.c.Ignored = append(r.c.Ignored, "common_lb_config.consistent_hashing_lb_config")
	}
}

// locality reads what a typed policy says of localities.
func (r *clusterReader) locality(c *commonv3.LocalityLbConfig, path string) {
	r.c.LocalityWeighted = c.GetLocalityWeightedLbConfig() != nil
	r.fields(c, path+"locality_lb_config.", localityFields)
}

func (r *clusterReader) hashes() bool {
	return r.c.Policy.Name == RingHash || r.c.Policy.Name == Maglev
}

// hashingConfig is what the configurations of hashing share.
type hashingConfig interface {
	GetUseHostnameForHashing() bool
	GetHashBalanceFactor() *wrapperspb.UInt32Value
}

// hashing reads how the hash policies place endpoints and bound their load.
// Other policies have no use for it.
func (r *clusterReader) hashing(c hashingConfig, path string) error {
	factor := c.GetHashBalanceFactor().GetValue()
	if factor > 0 && factor < 100 {
		return fmt.Errorf("%shash_balance_factor: %d: want 0 or at least 100", path, factor)
	}
	if r.hashes() {
		r.c.Policy.HashHostname, r.c.Policy.HashBalanceFactor = c.GetUseHostnameForHashing(), factor
	}
	return nil
}

// slowStartConfig is what the old and the typed configuration share.
type slowStartConfig interface {
	GetSlowStartWindow() *durationpb.Duration
	GetAggression() *corev3.RuntimeDouble
	GetMinWeightPercent() *typev3.Percent
}

// slowStart reads how the weights of new endpoints grow.
func (r *clusterReader) slowStart(c slowStartConfig, path string) error {
	path += "slow_start_config."
	s := lbcore.SlowStart{Aggression: 1, MinWeight: defaultMinWeight / 100.0}
	if w := c.GetSlowStartWindow(); w != nil {
		if err := w.CheckValid(); err != nil {
			return fmt.Errorf("%sslow_start_window: %w", path, err)
		}
		if s.Window = w.AsDuration(); s.Window < 0 {
			return fmt.Errorf("%sslow_start_window: %s: want at least 0s", path, s.Window)
		}
	}
	if p := c.GetMinWeightPercent(); p != nil {
		least, err := percent(p)
		if err != nil {
			return fmt.Errorf("%smin_weight_percent: %w", path, err)
		}
		s.MinWeight = least / 100
	}
	if a := c.GetAggression(); a != nil {
		if v := a.GetDefaultValue(); v > 0 && !math.IsInf(v, 1) {
			s.Aggression = v
		} else {
			r.c.Ignored = append(r.c.Ignored, fmt.Sprintf("%saggression %v: 1 is used", path, v))
		}
	}
	if s.Window > 0 {
		r.c.SlowStart = s
	}
	return nil
}

func percent(p *typev3.Percent) (float64, error) {
	if v := p.GetValue(); !(v >= 0 && v <= 100) { // NaN is neither
		return 0, fmt.Errorf("%v: want 0 to 100", v)
	}
	return p.GetValue(), nil
}
