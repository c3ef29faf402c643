package xds

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"gatehouse.internal/lbcore"
	"gatehouse.internal/xds/internal/core"
	"gatehouse.internal/xds/internal/guard"
)

// maxNotes bounds how many remarks are kept of one resource.
const maxNotes = 10

// assignment is a decoded ClusterLoadAssignment.
type assignment struct {
	set     lbcore.Set
	hosts   []Host           // in place of the endpoints of set, where these are names
	dropped []lbcore.Dropped // a second entry of an address
	// staleAfter is how long the endpoints stay without being sent again; 0 is for
	// ever. Source: endpoint_stale_after.
	staleAfter time.Duration
	leftOut    int      // endpoints that this program can't dial
	notes      []string // of these, and of fields that are not applied; bounded
}

// note remembers a remark. The first few stand for all.
func (a *assignment) note(path, format string, args ...any) {
	if len(a.notes) < maxNotes {
		a.notes = append(a.notes, core.Clip(path+": "+fmt.Sprintf(format, args...)))
	}
}

// decodeAssignment reads an EDS resource. It is a core.Type's Decode.
func decodeAssignment(body []byte) (string, any, error) {
	var m endpointv3.ClusterLoadAssignment
	err := guard.Unmarshal(body, &m)
	name := m.GetClusterName()
	switch {
	case err != nil:
		return guard.String(body, 1), nil, fmt.Errorf("not a ClusterLoadAssignment: %w", err)
	case name == "":
		return "", nil, fmt.Errorf("cluster_name: missing")
	}
	a, err := readAssignment(&m, "", false)
	if err != nil {
		return name, nil, err
	}
	return name, a, nil
}

// readAssignment returns the endpoints of m, or with named its hosts. An error
// names the field, with prefix before it. Source: Envoy's rules where they differ from gRPC's, so
// gaps between priorities and empty localities are fine.
func readAssignment(m *endpointv3.ClusterLoadAssignment, prefix string, named bool) (*assignment, error) {
	var (
		a    assignment
		eps  []lbcore.Endpoint
		sums = make(map[uint32]uint64) // of locality weights, by priority
		// Of a locality that is listed more than once in a priority the last
		// weight counts, as in Envoy.
		weights = make(map[place]uint32)
	)
	for i, l := range m.GetEndpoints() {
		path := fmt.Sprintf("%sendpoints[%d]", prefix, i)
		if p := l.GetPriority(); p > lbcore.MaxPriority {
			return nil, fmt.Errorf("%s.priority: %d: want 0 to %d", path, p, lbcore.MaxPriority)
		}
		sums[l.GetPriority()] += uint64(l.GetLoadBalancingWeight().GetValue())
		if s := sums[l.GetPriority()]; s > math.MaxUint32 {
			return nil, fmt.Errorf("%s.load_balancing_weight: the localities of priority %d add up to %d: want at most %d",
				path, l.GetPriority(), s, uint32(math.MaxUint32))
		}
		sortFields(l, localityEndpointsFields, func(name string) { a.note(path, "%s is not applied", name) }, nil)
		locality := lbcore.Locality{
			Region:  l.GetLocality().GetRegion(),
			Zone:    l.GetLocality().GetZone(),
			SubZone: l.GetLocality().GetSubZone(),
		}
		if w := l.GetLoadBalancingWeight(); w != nil {
			weights[place{uint8(l.GetPriority()), locality}] = w.GetValue()
		}
		labels := transportLabels(l.GetMetadata(), lbcore.Labels{})
		sum := uint64(0)
		for j, lb := range l.GetLbEndpoints() {
			weight := uint32(1)
			if w := lb.GetLoadBalancingWeight(); w != nil {
				weight = w.GetValue()
			}
			if weight == 0 {
				return nil, fmt.Errorf("%s.lb_endpoints[%d].load_balancing_weight: 0: want at least 1", path, j)
			}
			if sum += uint64(weight); sum > math.MaxUint32 {
				return nil, fmt.Errorf("%s.lb_endpoints: the weights add up to %d: want at most %d", path, sum, uint32(math.MaxUint32))
			}
			var h Host
			var leftOut string
			var err error
			if e := &h.Endpoint; named {
				h, leftOut, err = readHost(lb)
			} else {
				*e, leftOut, err = readEndpoint(lb)
			}
			if err != nil {
				return nil, fmt.Errorf("%s.lb_endpoints[%d].%w", path, j, err)
			}
			if leftOut != "" {
				a.leftOut++
				a.note(fmt.Sprintf("%s.lb_endpoints[%d]", path, j), "%s: left out", leftOut)
				continue
			}
			e := &h.Endpoint
			if err := a.additional(lb.GetEndpoint(), e, fmt.Sprintf("%s.lb_endpoints[%d]", path, j), named); err != nil {
				return nil, err
			}
			e.Weight, e.Priority, e.Locality = weight, uint8(l.GetPriority()), locality
			e.TransportMatch = transportLabels(lb.GetMetadata(), labels)
			if named {
				a.hosts = append(a.hosts, h)
			} else {
				eps = append(eps, *e)
			}
		}
	}
	for i := range eps {
		eps[i].LocalityWeight = weights[place{eps[i].Priority, eps[i].Locality}]
	}
	for i := range a.hosts {
		e := &a.hosts[i].Endpoint
		e.LocalityWeight = weights[place{e.Priority, e.Locality}]
	}
	sortFields(m, assignmentFields, func(name string) { a.note(prefix+name, "is not applied") }, nil)
	policy, err := a.policy(m.GetPolicy(), prefix+"policy")
	if err != nil {
		return nil, err
	}
	a.set, a.dropped, err = lbcore.NewSet(eps)
	if err != nil {
		return nil, fmt.Errorf("%sendpoints: %w", prefix, err)
	}
	a.set = a.set.WithPolicy(policy)
	return &a, nil
}

// additional reads the other addresses of e. What can't be dialled, or is there
// already, is left out with a note; a host that is named has those that DNS gives.
func (a *assignment) additional(ep *endpointv3.Endpoint, e *lbcore.Endpoint, path string, named bool) error {
	var list []lbcore.Addr
	for i, x := range ep.GetAdditionalAddresses() {
		addr, leftOut, err := readAddress(x.GetAddress(), false)
		at := fmt.Sprintf("additional_addresses[%d]", i)
		switch {
		case err != nil:
			return fmt.Errorf("%s.endpoint.%s.address%w", path, at, err)
		case named:
			leftOut = "of a host name"
		case e.Addr.Path() != "":
			leftOut = "of a unix socket"
		case leftOut != "":
		case addr.Path() != "":
			leftOut = "a unix socket"
		case addr == e.Addr || slices.Contains(list, addr):
			leftOut = "there already"
		case len(list) == lbcore.MaxAdditional:
			leftOut = fmt.Sprintf("more than %d", lbcore.MaxAdditional)
		}
		if leftOut != "" {
			a.note(path, "%s: %s: left out", at, leftOut)
			continue
		}
		list = append(list, addr)
	}
	e.Additional = lbcore.AddrsOf(list...)
	return nil
}

// place is what a weight of a locality counts for.
type place struct {
	priority uint8
	locality lbcore.Locality
}

// policy reads how the priorities share the load. It is the zero value only if
// p is not there, so that others may have a say then.
func (a *assignment) policy(p *endpointv3.ClusterLoadAssignment_Policy, path string) (policy lbcore.SetPolicy, err error) {
	if p == nil {
		return policy, nil
	}
	if d := p.GetEndpointStaleAfter(); d != nil {
		if a.staleAfter, err = positive(d); err != nil {
			return policy, fmt.Errorf("%s.endpoint_stale_after: %w", path, err)
		}
	}
	policy = lbcore.SetPolicy{Overprovisioning: lbcore.DefaultOverprovisioning, WeightedHealth: p.GetWeightedPriorityHealth()}
	if f := p.GetOverprovisioningFactor(); f != nil {
		if policy.Overprovisioning = f.GetValue(); policy.Overprovisioning == 0 {
			return policy, fmt.Errorf("%s.overprovisioning_factor: 0: want at least 1", path)
		}
	}
	policy.Drops, err = readDrops(p.GetDropOverloads(), path+".drop_overloads")
	return policy, err
}

// maxDrops bounds the categories: each costs a random number for each connection.
const maxDrops = 16

// readDrops reads drop_overloads. Envoy wants one category at most, gRPC takes
// several.
func readDrops(list []*endpointv3.ClusterLoadAssignment_Policy_DropOverload, path string) (lbcore.Drops, error) {
	if len(list) > maxDrops {
		return lbcore.Drops{}, fmt.Errorf("%s: %d categories: want at most %d", path, len(list), maxDrops)
	}
	var drops []lbcore.Drop
	for i, d := range list {
		if d.GetCategory() == "" {
			return lbcore.Drops{}, fmt.Errorf("%s[%d].category: missing", path, i)
		}
		n, ok := perMillion(d.GetDropPercentage())
		if !ok {
			return lbcore.Drops{}, fmt.Errorf("%s[%d].drop_percentage.denominator: %d is not known", path, i, d.GetDropPercentage().GetDenominator())
		}
		drops = append(drops, lbcore.Drop{Category: d.GetCategory(), PerMillion: n})
	}
	return lbcore.DropsOf(drops...), nil
}

// perMillion returns what p is of a million, and whether its denominator is known; more
// than all is all: gRFC A27.
func perMillion(p *typev3.FractionalPercent) (uint32, bool) {
	var unit uint64
	switch p.GetDenominator() {
	case typev3.FractionalPercent_HUNDRED:
		unit = 10000
	case typev3.FractionalPercent_TEN_THOUSAND:
		unit = 100
	case typev3.FractionalPercent_MILLION:
		unit = 1
	default:
		return 0, false
	}
	return uint32(min(unit*uint64(p.GetNumerator()), 1_000_000)), true
}

// Perishes implements core.Perishable: the time of endpoint_stale_after begins
// anew whenever the resource is sent.
func (a *assignment) Perishes() bool { return a.staleAfter > 0 }

// readEndpoint returns one endpoint, but for weight, priority and locality. If
// it is valid but can't be dialled by this program, leftOut says why. An error
// begins with the field's path.
func readEndpoint(lb *endpointv3.LbEndpoint) (e lbcore.Endpoint, leftOut string, err error) {
	if name := lb.GetEndpointName(); name != "" {
		return e, fmt.Sprintf("endpoint_name %q refers to another part", name), nil
	}
	ep := lb.GetEndpoint()
	if ep == nil {
		return e, "", fmt.Errorf("endpoint: missing")
	}
	if e.Addr, leftOut, err = readAddress(ep.GetAddress(), false); err != nil || leftOut != "" {
		if err != nil {
			err = fmt.Errorf("endpoint.address%w", err)
		}
		return e, leftOut, err
	}
	addr := e.Addr
	e = readAttributes(lb)
	e.Addr = addr
	if e.Check, leftOut, err = readCheck(ep.GetHealthCheckConfig(), e.Addr); err != nil {
		err = fmt.Errorf("endpoint.health_check_config.%w", err)
	}
	return e, leftOut, err
}

// readAttributes returns what concerns neither the address nor the check.
func readAttributes(lb *endpointv3.LbEndpoint) lbcore.Endpoint {
	return lbcore.Endpoint{
		Hostname: lb.GetEndpoint().GetHostname(),
		Status:   readStatus(lb.GetHealthStatus()),
		HashKey:  lb.GetMetadata().GetFilterMetadata()["envoy.lb"].GetFields()["hash_key"].GetStringValue(),
	}
}

// readStatus maps what this program doesn't know to a status that takes no
// traffic.
func readStatus(s corev3.HealthStatus) lbcore.Status {
	switch s {
	case corev3.HealthStatus_UNKNOWN:
		return lbcore.StatusUnknown
	case corev3.HealthStatus_HEALTHY:
		return lbcore.StatusHealthy
	case corev3.HealthStatus_DRAINING:
		return lbcore.StatusDraining
	case corev3.HealthStatus_TIMEOUT:
		return lbcore.StatusTimeout
	case corev3.HealthStatus_DEGRADED:
		return lbcore.StatusDegraded
	}
	return lbcore.StatusUnhealthy
}

// readCheck returns how the endpoint at addr is probed.
// Source: Endpoint.HealthCheckConfig.
func readCheck(c *endpointv3.Endpoint_HealthCheckConfig, addr lbcore.Addr) (check lbcore.Check, leftOut string, err error) {
	check.Hostname, check.Disabled = c.GetHostname(), c.GetDisableActiveHealthCheck()
	port := c.GetPortValue()
	if port > math.MaxUint16 {
		return check, "", fmt.Errorf("port_value: %d: want 0 to %d", port, math.MaxUint16)
	}
	at := addr
	if c.GetAddress() != nil {
		if at, leftOut, err = readAddress(c.GetAddress(), true); err != nil || leftOut != "" {
			if err != nil {
				err = fmt.Errorf("address%w", err)
			}
			return check, leftOut, err
		}
	}
	if ip := at.AddrPort(); ip.IsValid() {
		switch {
		case port != 0:
			at = lbcore.IPAddr(netip.AddrPortFrom(ip.Addr(), uint16(port)))
		case ip.Port() == 0 && addr.AddrPort().IsValid():
			at = lbcore.IPAddr(netip.AddrPortFrom(ip.Addr(), addr.AddrPort().Port()))
		case ip.Port() == 0:
			return check, "", fmt.Errorf("port_value: 0: the endpoint has no port to take in its place")
		}
	}
	if at != addr {
		check.Addr = at
	}
	return check, "", nil
}

// readAddress returns the address that a names. Port 0 is an error unless
// anyPort is set. An error begins with ": " or with the rest of the path.
func readAddress(a *corev3.Address, anyPort bool) (addr lbcore.Addr, leftOut string, err error) {
	switch a := a.GetAddress().(type) {
	case *corev3.Address_SocketAddress:
		s := a.SocketAddress
		ip, err := netip.ParseAddr(s.GetAddress())
		_, named := s.GetPortSpecifier().(*corev3.SocketAddress_NamedPort)
		switch {
		case err != nil && isHostName(s.GetAddress()):
			return addr, fmt.Sprintf("host name %q, which only DNS clusters look up", s.GetAddress()), nil
		case err != nil || ip.Zone() != "":
			return addr, "", fmt.Errorf(".socket_address.address: %q: want an IP address", s.GetAddress())
		case s.GetProtocol() != corev3.SocketAddress_TCP:
			return addr, "protocol " + s.GetProtocol().String(), nil
		case s.GetNetworkNamespaceFilepath() != "":
			return addr, "network_namespace_filepath", nil
		case named:
			return addr, fmt.Sprintf("named_port %q", s.GetNamedPort()), nil
		case s.GetPortValue() > math.MaxUint16 || s.GetPortValue() == 0 && !anyPort:
			return addr, "", fmt.Errorf(".socket_address.port_value: %d: want 1 to %d", s.GetPortValue(), math.MaxUint16)
		}
		return lbcore.IPAddr(netip.AddrPortFrom(ip, uint16(s.GetPortValue()))), "", nil
	case *corev3.Address_Pipe:
		path := a.Pipe.GetPath()
		switch {
		case strings.HasPrefix(path, "@"):
			return addr, fmt.Sprintf("abstract socket %q", path), nil
		case !strings.HasPrefix(path, "/"):
			return addr, "", fmt.Errorf(".pipe.path: %q: want an absolute path", path)
		}
		return lbcore.UnixAddr(path), "", nil
	case *corev3.Address_EnvoyInternalAddress:
		return addr, "envoy_internal_address", nil
	}
	return addr, "", fmt.Errorf(": missing")
}
