package xds

import (
	"fmt"
	"math"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/common/v3"
	leastrequestv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/least_request/v3"
	maglevv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/maglev/v3"
	randomv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/random/v3"
	ringhashv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/ring_hash/v3"
	roundrobinv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/round_robin/v3"
	wrrlocalityv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/wrr_locality/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"gatehouse.internal/lbcore/maglev"
	"gatehouse.internal/xds/internal/guard"
)

// The bounds of Policy's fields.
const (
	maxRingSize = 8 << 20
	maxChoices  = 10
	maxBias     = 1000
)

// The fields of the policies' configurations, old and typed.
var policyFields = map[string]use{
	"minimum_ring_size": applied, "maximum_ring_size": applied, "hash_function": applied,
	"table_size": applied, "choice_count": applied, "active_request_bias": applied,
	"enable_full_scan": refused, "selection_method": refused,
	"slow_start_config": applied, "locality_lb_config": applied, "locality_weighted_lb_config": applied,
	"use_hostname_for_hashing": applied, "hash_balance_factor": applied, "consistent_hashing_lb_config": applied,
}

// maxNesting bounds how deep policies may lie in policies. Source: gRFC A52.
const maxNesting = 16

// policy reads lb_policy, or load_balancing_policy, which goes before it.
func (r *clusterReader) policy(m *clusterv3.Cluster) error {
	r.unusedConfig(m)
	if len(r.c.Aggregate) > 0 { // Envoy wants CLUSTER_PROVIDED, others say nothing
		return nil
	}
	if m.GetLoadBalancingPolicy() != nil {
		r.unusedCommon(m)
		return r.typedPolicy(m.GetLoadBalancingPolicy(), "load_balancing_policy.", 1)
	}
	if err := r.oldPolicy(m); err != nil {
		return err
	}
	return r.policyOfCommon(m)
}

// configOf has the field that configures a policy.
var configOf = map[clusterv3.Cluster_LbPolicy]protoreflect.Name{
	clusterv3.Cluster_ROUND_ROBIN: "round_robin_lb_config", clusterv3.Cluster_LEAST_REQUEST: "least_request_lb_config",
	clusterv3.Cluster_RING_HASH: "ring_hash_lb_config", clusterv3.Cluster_MAGLEV: "maglev_lb_config",
}

// unusedConfig lists the configuration of a policy that the cluster doesn't
// have, its slow start included.
func (r *clusterReader) unusedConfig(m *clusterv3.Cluster) {
	p := m.ProtoReflect()
	set := p.WhichOneof(p.Descriptor().Oneofs().ByName("lb_config"))
	if set == nil || clusterFields[string(set.Name())] != applied { // else listed already
		return
	}
	if m.GetLoadBalancingPolicy() != nil || configOf[m.GetLbPolicy()] != set.Name() {
		r.c.Ignored = append(r.c.Ignored, string(set.Name()))
	}
}

// oldPolicy reads lb_policy.
func (r *clusterReader) oldPolicy(m *clusterv3.Cluster) error {
	switch p := m.GetLbPolicy(); p {
	case clusterv3.Cluster_ROUND_ROBIN:
		r.c.Policy = Policy{Name: RoundRobin}
		return r.slowStart(m.GetRoundRobinLbConfig().GetSlowStartConfig(), "round_robin_lb_config.")
	case clusterv3.Cluster_RANDOM:
		r.c.Policy = Policy{Name: Random}
	case clusterv3.Cluster_LEAST_REQUEST:
		if err := r.slowStart(m.GetLeastRequestLbConfig().GetSlowStartConfig(), "least_request_lb_config."); err != nil {
			return err
		}
		return r.leastRequest(m.GetLeastRequestLbConfig(), "least_request_lb_config.")
	case clusterv3.Cluster_RING_HASH:
		c := m.GetRingHashLbConfig()
		f := ringhashv3.RingHash_HashFunction(c.GetHashFunction() + 1) // the typed one begins with a default
		return r.ringHash(c, c.GetMinimumRingSize(), c.GetMaximumRingSize(), f, "ring_hash_lb_config.")
	case clusterv3.Cluster_MAGLEV:
		return r.maglev(m.GetMaglevLbConfig(), "maglev_lb_config.")
	case clusterv3.Cluster_LOAD_BALANCING_POLICY_CONFIG:
		return fmt.Errorf("lb_policy: LOAD_BALANCING_POLICY_CONFIG without load_balancing_policy")
	default:
		r.refuse("lb_policy %s", p)
	}
	return nil
}

// typedPolicy takes the first policy of m that this program knows. The path of
// m ends in a dot; depth is 1 for the policy of the cluster.
// Source: gRFC A52.
func (r *clusterReader) typedPolicy(m *clusterv3.LoadBalancingPolicy, in string, depth int) error {
	list := m.GetPolicies()
	switch {
	case len(list) == 0:
		return fmt.Errorf("%spolicies: empty", in)
	case depth > maxNesting:
		return fmt.Errorf("load_balancing_policy: policies lie more than %d deep in policies", maxNesting)
	}
	var names []string
	for i, p := range list {
		path := fmt.Sprintf("%spolicies[%d].typed_extension_config.", in, i)
		config := p.GetTypedExtensionConfig().GetTypedConfig()
		switch url := config.GetTypeUrl(); url[strings.LastIndexByte(url, '/')+1:] {
		case "envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin":
			var c roundrobinv3.RoundRobin
			return r.typedConfig(config, &c, path, func() error {
				r.c.Policy = Policy{Name: RoundRobin}
				r.locality(c.GetLocalityLbConfig(), path)
				r.fields(&c, path, policyFields)
				return r.slowStart(c.GetSlowStartConfig(), path)
			})
		case "envoy.extensions.load_balancing_policies.random.v3.Random":
			var c randomv3.Random
			return r.typedConfig(config, &c, path, func() error {
				r.c.Policy = Policy{Name: Random}
				r.locality(c.GetLocalityLbConfig(), path)
				r.fields(&c, path, policyFields)
				return nil
			})
		case "envoy.extensions.load_balancing_policies.least_request.v3.LeastRequest":
			var c leastrequestv3.LeastRequest
			return r.typedConfig(config, &c, path, func() error {
				r.locality(c.GetLocalityLbConfig(), path)
				if err := r.slowStart(c.GetSlowStartConfig(), path); err != nil {
					return err
				}
				return r.leastRequest(&c, path)
			})
		case "envoy.extensions.load_balancing_policies.ring_hash.v3.RingHash":
			var c ringhashv3.RingHash
			return r.typedConfig(config, &c, path, func() error {
				if err := r.ringHash(&c, c.GetMinimumRingSize(), c.GetMaximumRingSize(), c.GetHashFunction(), path); err != nil {
					return err
				}
				return r.hashPolicy(&c, path)
			})
		case "envoy.extensions.load_balancing_policies.maglev.v3.Maglev":
			var c maglevv3.Maglev
			return r.typedConfig(config, &c, path, func() error {
				if err := r.maglev(&c, path); err != nil {
					return err
				}
				return r.hashPolicy(&c, path)
			})
		case "envoy.extensions.load_balancing_policies.wrr_locality.v3.WrrLocality":
			var c wrrlocalityv3.WrrLocality
			return r.typedConfig(config, &c, path, func() error {
				if err := r.typedPolicy(c.GetEndpointPickingPolicy(), path+"endpoint_picking_policy.", depth+1); err != nil {
					return err
				}
				r.c.LocalityWeighted = true // whatever the policy in it says
				return nil
			})
		default:
			if len(names) < maxNotes {
				names = append(names, fmt.Sprintf("%q", p.GetTypedExtensionConfig().GetName()))
			}
		}
	}
	r.refuse("%s: none of %s is known", strings.TrimSuffix(in, "."), strings.Join(names, ", "))
	return nil
}

func (r *clusterReader) typedConfig(config *anypb.Any, m proto.Message, path string, read func() error) error {
	if err := guard.Unmarshal(config.GetValue(), m); err != nil {
		return fmt.Errorf("%styped_config: %w", path, err)
	}
	return read()
}

// hashPolicy reads what ring hash and Maglev share.
func (r *clusterReader) hashPolicy(c interface {
	GetConsistentHashingLbConfig() *commonv3.ConsistentHashingLbConfig
	GetLocalityWeightedLbConfig() *commonv3.LocalityLbConfig_LocalityWeightedLbConfig
}, path string) error {
	r.c.LocalityWeighted = c.GetLocalityWeightedLbConfig() != nil
	if old, ok := c.(hashingConfig); ok { // ring hash's, for want of the others
		if err := r.hashing(old, path); err != nil {
			return err
		}
	}
	if h := c.GetConsistentHashingLbConfig(); h != nil {
		path += "consistent_hashing_lb_config."
		r.fields(h, path, hashingFields)
		return r.hashing(h, path)
	}
	return nil
}

// maglevConfig is what the old and the typed configuration share.
type maglevConfig interface {
	proto.Message
	GetTableSize() *wrapperspb.UInt64Value
}

func (r *clusterReader) maglev(c maglevConfig, path string) error {
	p := Policy{Name: Maglev, TableSize: maglev.DefaultTableSize}
	if n := c.GetTableSize(); n != nil {
		p.TableSize = n.GetValue()
	}
	if p.TableSize == 0 { // to Validate the default
		return fmt.Errorf("%stable_size (0) is not prime", path)
	}
	if err := (maglev.Config{TableSize: p.TableSize}).Validate(); err != nil {
		return fmt.Errorf("%s%w", path, err)
	}
	r.fields(c, path, policyFields)
	r.c.Policy = p
	return nil
}

// leastRequestConfig is what the old and the typed configuration share.
type leastRequestConfig interface {
	proto.Message
	GetChoiceCount() *wrapperspb.UInt32Value
	GetActiveRequestBias() *corev3.RuntimeDouble
}

func (r *clusterReader) leastRequest(c leastRequestConfig, path string) error {
	p := Policy{Name: LeastWeight, ChoiceCount: 2, ActiveRequestBias: 1}
	if n := c.GetChoiceCount(); n != nil {
		if n.GetValue() < 2 {
			return fmt.Errorf("%schoice_count: %d: want at least 2", path, n.GetValue())
		}
		p.ChoiceCount = min(n.GetValue(), maxChoices)
	}
	if b := c.GetActiveRequestBias(); b != nil {
		switch bias := b.GetDefaultValue(); {
		case bias < 0 || math.IsNaN(bias):
			r.c.Ignored = append(r.c.Ignored, fmt.Sprintf("%sactive_request_bias %v: 1 is used", path, bias))
		case bias > maxBias:
			r.refuse("%sactive_request_bias %v", path, bias)
		default:
			p.ActiveRequestBias = bias
		}
	}
	r.fields(c, path, policyFields)
	r.c.Policy = p
	return nil
}

func (r *clusterReader) ringHash(c proto.Message, least, most *wrapperspb.UInt64Value, f ringhashv3.RingHash_HashFunction, path string) error {
	p := Policy{Name: RingHash, MinimumRingSize: 1024, MaximumRingSize: maxRingSize}
	if least != nil {
		p.MinimumRingSize = least.GetValue()
	}
	if most != nil {
		p.MaximumRingSize = most.GetValue()
	}
	switch {
	case p.MinimumRingSize > maxRingSize:
		return fmt.Errorf("%sminimum_ring_size: %d: want at most %d", path, p.MinimumRingSize, maxRingSize)
	case p.MaximumRingSize > maxRingSize:
		return fmt.Errorf("%smaximum_ring_size: %d: want at most %d", path, p.MaximumRingSize, maxRingSize)
	case p.MinimumRingSize > p.MaximumRingSize:
		return fmt.Errorf("%sminimum_ring_size (%d) > maximum_ring_size (%d)", path, p.MinimumRingSize, p.MaximumRingSize)
	}
	switch f {
	case ringhashv3.RingHash_DEFAULT_HASH, ringhashv3.RingHash_XX_HASH:
		p.HashFunction = "xx_hash"
	case ringhashv3.RingHash_MURMUR_HASH_2:
		p.HashFunction = "murmur_hash_2"
	default:
		r.refuse("%shash_function %s", path, f)
	}
	r.fields(c, path, policyFields)
	r.c.Policy = p
	return nil
}
