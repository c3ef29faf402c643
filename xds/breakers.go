package xds

import (
	"fmt"
	"math"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// CircuitBreakers bound the connections of a Cluster. 0 is no limit, and below 0
// none is allowed, which a threshold of 0 says. They are the thresholds of the
// priority DEFAULT, which all connections have here.
// Source: envoy.config.cluster.v3.CircuitBreakers.
type CircuitBreakers struct {
	// MaxConnections is 1024 unless the cluster says otherwise, as in Envoy.
	MaxConnections int
	// MaxPendingRequests is how many of them may wait for their endpoint to be
	// connected, 1024 unless the cluster says otherwise.
	MaxPendingRequests int
	// MaxConnectionsPerEndpoint is 0 unless the cluster says otherwise.
	// Source: per_host_thresholds.
	MaxConnectionsPerEndpoint int
}

// defaultBreakers are in force without a word too.
var defaultBreakers = CircuitBreakers{MaxConnections: 1024, MaxPendingRequests: 1024}

// What becomes of the fields of thresholds, and of those for each endpoint.
var (
	thresholdFields = map[string]use{
		"priority": applied, "max_connections": applied, "max_pending_requests": applied,
		"max_requests": harmless, "max_retries": harmless, "retry_budget": harmless, "track_remaining": harmless,
		"max_connection_pools": harmless,
	}
	hostThresholdFields = union(thresholdFields, allOf(ignored, "max_pending_requests"))
)

// breakers reads the circuit breakers.
func (r *clusterReader) breakers(m *clusterv3.Cluster) error {
	b := &r.c.CircuitBreakers
	const all, each = "circuit_breakers.thresholds", "circuit_breakers.per_host_thresholds"
	t, err := r.threshold(m.GetCircuitBreakers().GetThresholds(), all, thresholdFields)
	if err != nil {
		return err
	}
	limit(&b.MaxConnections, t.GetMaxConnections())
	limit(&b.MaxPendingRequests, t.GetMaxPendingRequests())
	if t, err = r.threshold(m.GetCircuitBreakers().GetPerHostThresholds(), each, hostThresholdFields); err != nil {
		return err
	}
	limit(&b.MaxConnectionsPerEndpoint, t.GetMaxConnections())
	return nil
}

// limit sets what is said, as CircuitBreakers has it.
func limit(to *int, n *wrapperspb.UInt32Value) {
	switch v := n.GetValue(); {
	case n == nil:
	case v == 0:
		*to = -1
	default:
		*to = int(min(v, math.MaxInt32))
	}
}

// threshold returns the first of the priority DEFAULT, nil if there is none. The
// others are listed as not applied.
func (r *clusterReader) threshold(list []*clusterv3.CircuitBreakers_Thresholds, path string, table map[string]use) (found *clusterv3.CircuitBreakers_Thresholds, err error) {
	for i, t := range list {
		name := fmt.Sprintf("%s[%d]", path, i)
		switch p := t.GetPriority(); {
		case p != corev3.RoutingPriority_DEFAULT && p != corev3.RoutingPriority_HIGH:
			return nil, fmt.Errorf("%s.priority: %d is not known", name, p)
		case p == corev3.RoutingPriority_HIGH || found != nil:
			r.c.Ignored = append(r.c.Ignored, name)
		default:
			found = t
			r.fields(t, name+".", table)
		}
	}
	return found, nil
}
