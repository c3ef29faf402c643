package lbcore

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"sort"
)

// MaxPriority is the lowest priority there is; 0 is the highest.
// Source: LocalityLbEndpoints.priority.
const MaxPriority = 128

// MaxEndpoints bounds a Set, so that a discovery answer can't make an agent
// grow without end.
const MaxEndpoints = 1 << 20

// Status is what discovery says of an endpoint's health. The zero value means
// that it says nothing, which counts as routable.
// Source: envoy.config.core.v3.HealthStatus.
type Status uint8

// The statuses of discovery. Unknown, Healthy and Degraded take new
// connections.
const (
	StatusUnknown Status = iota
	StatusHealthy
	StatusUnhealthy
	StatusDraining
	StatusTimeout
	StatusDegraded
)

var statusNames = [...]string{"UNKNOWN", "HEALTHY", "UNHEALTHY", "DRAINING", "TIMEOUT", "DEGRADED"}

// String returns the name of s as Envoy writes it, "UNKNOWN" and so on.
func (s Status) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return fmt.Sprintf("Status(%d)", uint8(s))
}

// ParseStatus reads a name as String writes it, in upper or lower case.
func ParseStatus(s string) (Status, error) {
	for i, n := range statusNames {
		if len(s) == len(n) && equalFold(s, n) {
			return Status(i), nil
		}
	}
	return 0, fmt.Errorf("health status %q: want one of unknown, healthy, unhealthy, draining, timeout, degraded", s)
}

func equalFold(s, upper string) bool {
	for i := range len(s) {
		c := s[i]
		if 'a' <= c && c <= 'z' {
			c -= 'a' - 'A'
		}
		if c != upper[i] {
			return false
		}
	}
	return true
}

// Routable reports whether s allows new connections. A value that this
// program does not know counts as not routable. It may be called from anywhere.
func (s Status) Routable() bool {
	return s == StatusUnknown || s == StatusHealthy || s == StatusDegraded
}

// Override is what discovery decides about an endpoint's enablement. The zero
// value decides nothing: what the operator last said stays in force.
type Override uint8

// The overrides.
const (
	OverrideNone Override = iota
	OverrideEnable
	OverrideDisable
)

// Locality says where an endpoint is. The zero value is "nowhere said".
// Source: envoy.config.core.v3.Locality.
type Locality struct {
	Region, Zone, SubZone string
}

// Check says how an endpoint's health check differs from the cluster's. The
// zero value changes nothing. Source: Endpoint.HealthCheckConfig.
type Check struct {
	// Addr is probed in place of the endpoint's own address, if valid. It
	// never replaces the address that takes traffic.
	Addr Addr
	// Hostname is sent as the host of an http probe, if not empty.
	Hostname string
	// Disabled exempts the endpoint from active checks: it counts as healthy.
	Disabled bool
}

// Endpoint is one member of a Set. Its identity is Addr; everything else is an
// attribute. Endpoints are comparable values.
type Endpoint struct {
	Addr Addr
	// Weight is the share of new connections relative to the others of the
	// same priority. 0 means listed but without new connections.
	Weight uint32
	// LocalityWeight is the weight of the endpoint's locality among those of the
	// same priority; the endpoints of one locality and priority should have the
	// same. It matters where GroupConfig.Spread weights localities; there, 0
	// means never picked. Source: LocalityLbEndpoints.load_balancing_weight.
	LocalityWeight uint32
	// Priority is 0 (highest) to MaxPriority; gaps are allowed.
	Priority uint8
	Status   Status
	Enabled  Override
	Locality Locality
	// HashKey is what the hash policies place on their ring or table; empty
	// means the text of Addr. Source: metadata envoy.lb hash_key.
	HashKey  string
	Hostname string
	// Additional are the addresses of the same endpoint that are tried together
	// with Addr: IP addresses, at most MaxAdditional. They are not its identity,
	// and not probed. Source: Endpoint.additional_addresses, gRFC A61.
	Additional Addrs
	// TransportMatch is what decides how connections to the endpoint are secured,
	// where its cluster has several ways; behind it stands what its locality says.
	// Source: metadata envoy.transport_socket_match.
	TransportMatch Labels
	Check          Check
}

// Key returns what the hash policies hash: HashKey, or the text of Addr.
func (e *Endpoint) Key() string {
	if e.HashKey != "" {
		return e.HashKey
	}
	return e.Addr.String()
}

// AppendKey appends Key to b. It allocates only to grow b.
func (e *Endpoint) AppendKey(b []byte) []byte {
	if e.HashKey != "" {
		return append(b, e.HashKey...)
	}
	return e.Addr.AppendTo(b)
}

// Dropped is an endpoint that NewSet left out because its address was there
// already.
type Dropped struct {
	// Index is the endpoint's position in NewSet's argument.
	Index    int
	Endpoint Endpoint
}

// Set is the membership of a cluster: endpoints in the order of Addr.Compare,
// each address once. The zero Set is empty. A Set is never written after
// NewSet, so copies of it may be read from anywhere.
type Set struct {
	eps    []Endpoint
	policy SetPolicy
}

// SetPolicy is what discovery says of how the priorities of a Set share the
// load, and how much of it they get. The zero value is the default. Source: ClusterLoadAssignment.Policy.
type SetPolicy struct {
	// Overprovisioning is in percent; 0 means DefaultOverprovisioning.
	// Source: overprovisioning_factor.
	Overprovisioning uint32
	// WeightedHealth counts endpoints by their weights where health is compared.
	// Source: weighted_priority_health.
	WeightedHealth bool
	// Drops are connections that get no endpoint. Who picks applies them: selectors
	// don't. Source: drop_overloads.
	Drops Drops
}

// WithPolicy returns s with p in place of its policy.
func (s Set) WithPolicy(p SetPolicy) Set {
	s.policy = p
	return s
}

// Policy returns what discovery says of the priorities.
func (s Set) Policy() SetPolicy { return s.policy }

// NewSet returns the Set of eps, which it copies. Of several endpoints with
// one address the first is kept and the others are returned as dropped (Envoy
// keeps the first too; gRPC A27 rejects the whole). An endpoint without a
// usable address or with a priority above MaxPriority, or more than
// MaxEndpoints of them, is an error that names the endpoint.
func NewSet(eps []Endpoint) (Set, []Dropped, error) {
	if len(eps) > MaxEndpoints {
		return Set{}, nil, fmt.Errorf("%d endpoints: more than %d in one set", len(eps), MaxEndpoints)
	}
	order := make([]int32, len(eps)) // endpoints are large: they are copied once
	for i := range eps {
		e := &eps[i]
		if err := e.Addr.check(); err != nil {
			return Set{}, nil, fmt.Errorf("endpoint %d (%s): %w", i, e.Addr, err)
		}
		if err := e.Additional.check(e.Addr); err != nil {
			return Set{}, nil, fmt.Errorf("endpoint %d (%s): %w", i, e.Addr, err)
		}
		if e.Priority > MaxPriority {
			return Set{}, nil, fmt.Errorf("endpoint %d (%s): priority %d: want 0 to %d", i, e.Addr, e.Priority, MaxPriority)
		}
		order[i] = int32(i)
	}
	slices.SortStableFunc(order, func(a, b int32) int { return eps[a].Addr.Compare(eps[b].Addr) })
	s := Set{eps: make([]Endpoint, 0, len(eps))}
	var dropped []Dropped
	for _, i := range order {
		if k := len(s.eps); k > 0 && s.eps[k-1].Addr == eps[i].Addr {
			dropped = append(dropped, Dropped{int(i), eps[i]})
			continue
		}
		s.eps = append(s.eps, eps[i])
	}
	return s, dropped, nil
}

// MustSet is NewSet for sets that are known to be good, as in tests. It panics
// on an error and on a duplicate.
func MustSet(eps ...Endpoint) Set {
	s, dropped, err := NewSet(eps)
	if err == nil && len(dropped) > 0 {
		err = errors.New("duplicate address " + dropped[0].Endpoint.Addr.String())
	}
	if err != nil {
		panic("lbcore: " + err.Error())
	}
	return s
}

// Len returns the number of endpoints.
func (s Set) Len() int { return len(s.eps) }

// At returns the endpoint at position i of the order, 0 <= i < Len.
func (s Set) At(i int) Endpoint { return s.eps[i] }

// All yields the endpoints in order with their positions.
func (s Set) All() iter.Seq2[int, Endpoint] { return slices.All(s.eps) }

// Find returns the position of a, or -1.
func (s Set) Find(a Addr) int {
	// Endpoints are large: slices.BinarySearchFunc would copy each that it looks at.
	i, found := sort.Find(len(s.eps), func(i int) int { return a.Compare(s.eps[i].Addr) })
	if !found {
		return -1
	}
	return i
}

// Equal reports whether s and t hold the same endpoints with the same
// attributes, and have the same policy.
func (s Set) Equal(t Set) bool {
	same := len(s.eps) == len(t.eps) && (len(s.eps) == 0 || &s.eps[0] == &t.eps[0]) // no need to look
	return s.policy == t.policy && (same || slices.Equal(s.eps, t.eps))
}

// SameTopology reports whether s and t differ in nothing that a selector is
// built from: addresses, weights, priorities, localities and hash keys.
func (s Set) SameTopology(t Set) bool {
	return slices.EqualFunc(s.eps, t.eps, func(a, b Endpoint) bool {
		return a.Addr == b.Addr && a.Weight == b.Weight && a.Priority == b.Priority &&
			a.Locality == b.Locality && a.LocalityWeight == b.LocalityWeight && a.HashKey == b.HashKey
	})
}
