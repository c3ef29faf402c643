package consul

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/hashicorp/consul/api"

	"gatehouse.internal/lbcore"
)

const (
	// defaultNearest is what Query.Nearest means if zero.
	defaultNearest = 3
	// maxText bounds, in bytes, a text of Consul's in a refusal. Names in the
	// catalog have no limit of their own.
	maxText = 128
	// maxSocketPath is the longest path, in bytes, that a unix socket's
	// address holds on Linux.
	maxSocketPath = 107
)

// decoded is what one answer comes to.
type decoded struct {
	// endpoints may hold one address twice, which lbcore.NewSet drops. They
	// are in the answer's order if it means something (Query.Near), and in the
	// order of identity if not.
	endpoints []lbcore.Endpoint
	// refused are the instances left out that somebody should know of. What
	// the query doesn't ask for, by tags or node metadata, isn't among them.
	refused []refusal
}

// refusal says why an instance is left out. Both texts are short and free of
// control characters, whatever the catalog holds.
type refusal struct {
	instance string // "node/service id"
	reason   string
}

// identity tells instances apart: a service id is unique on its node only.
type identity struct{ peer, namespace, partition, node, service string }

func (a identity) compare(b identity) int {
	return cmp.Or(strings.Compare(a.peer, b.peer), strings.Compare(a.namespace, b.namespace),
		strings.Compare(a.partition, b.partition), strings.Compare(a.node, b.node), strings.Compare(a.service, b.service))
}

// instance is an entry of an answer, of which every part may be missing.
type instance struct {
	identity
	entry *api.ServiceEntry
}

func newInstance(e *api.ServiceEntry) instance {
	in := instance{entry: e}
	if e == nil {
		return in
	}
	if n := e.Node; n != nil {
		in.node, in.peer = n.Node, n.PeerName
	}
	if s := e.Service; s != nil {
		in.service, in.namespace, in.partition = s.ID, s.Namespace, s.Partition
		in.peer = cmp.Or(s.PeerName, in.peer)
	}
	return in
}

// whole reports whether the entry has a node and a service.
func (in *instance) whole() bool {
	return in.entry != nil && in.entry.Node != nil && in.entry.Service != nil
}

// decode makes endpoints of the entries of one answer about q. It writes to
// none of them. An entry that can't be used is left out alone and costs no
// other its place. Instances that fail their checks stay, with a status that
// takes no traffic, so that a flapping check changes no membership.
func (q *Query) decode(entries []*api.ServiceEntry) decoded {
	instances := make([]instance, len(entries))
	for i, e := range entries {
		instances[i] = newInstance(e)
	}
	if q.Near == "" {
		// Consul shuffles the answer of a prepared query each time. Which of
		// two instances with one address stays must not depend on that.
		slices.SortStableFunc(instances, func(a, b instance) int { return a.compare(b.identity) })
	}
	var d decoded
	seen := make(map[identity]bool, len(instances))
	near := make(map[lbcore.Addr]bool)
	for _, in := range instances {
		refuse := func(err error) {
			text := quote(in.node + "/" + in.service)
			d.refused = append(d.refused, refusal{instance: text[1 : len(text)-1], reason: err.Error()})
		}
		if !in.whole() {
			refuse(errors.New("an entry without a node or a service"))
			continue
		}
		if seen[in.identity] {
			continue
		}
		seen[in.identity] = true
		if !q.matches(in.entry) {
			continue
		}
		ep, err := q.endpoint(&in)
		if err != nil {
			refuse(err)
			continue
		}
		if q.Near != "" && !near[ep.Addr] {
			if len(near) < cmp.Or(q.Nearest, defaultNearest) {
				near[ep.Addr] = true
			} else {
				ep.Priority = 1
			}
		}
		d.endpoints = append(d.endpoints, ep)
	}
	return d
}

// matches reports whether e has all the tags and node metadata that q wants.
func (q *Query) matches(e *api.ServiceEntry) bool {
	for _, tag := range q.Tags {
		if !slices.Contains(e.Service.Tags, tag) {
			return false
		}
	}
	for k, want := range q.NodeMeta {
		if v, ok := e.Node.Meta[k]; !ok || v != want {
			return false
		}
	}
	return true
}

// endpoint makes the endpoint of an instance that is whole. The error is the
// reason of a refusal.
func (q *Query) endpoint(in *instance) (lbcore.Endpoint, error) {
	n, s := in.entry.Node, in.entry.Service
	if err := q.accepts(s); err != nil {
		return lbcore.Endpoint{}, err
	}
	if in.peer != "" && q.Peer == "" && q.SamenessGroup == "" {
		return lbcore.Endpoint{}, fmt.Errorf("imported from peer %s: reached by mesh gateways only, unless peer or sameness_group asks for it", quote(in.peer))
	}
	addr, err := q.address(n, s)
	if err != nil {
		return lbcore.Endpoint{}, err
	}
	health := worst(in.entry.Checks)
	weight, err := weigh(s.Weights, health)
	if err != nil {
		return lbcore.Endpoint{}, err
	}
	return lbcore.Endpoint{Addr: addr, Weight: weight, Locality: locality(n, s), Status: health.status()}, nil
}

// accepts says why an instance of that kind is left out, or returns nil.
func (q *Query) accepts(s *api.AgentService) error {
	typical := s.Kind == api.ServiceKindTypical || s.Kind == "typical"
	switch {
	case slices.Contains(q.Kinds, string(s.Kind)) || typical && !q.Connect:
		return nil
	case !q.Connect || !typical && s.Kind != api.ServiceKindConnectProxy:
		return refusedKind(s.Kind)
	case typical && (s.Connect == nil || !s.Connect.Native):
		return errors.New("it is neither a sidecar proxy nor native to the mesh")
	case !typical && s.Proxy == nil || s.Proxy != nil && s.Proxy.DestinationServiceName != "" && !strings.EqualFold(s.Proxy.DestinationServiceName, q.Service):
		// Its certificate is another service's, so that no handshake would succeed.
		return errors.New("a sidecar proxy of another service")
	}
	return nil
}

// refusedKind says what an instance that is no ordinary service is.
func refusedKind(k api.ServiceKind) error {
	var what string
	switch k {
	case api.ServiceKindConnectProxy:
		what = "it demands mTLS with Connect leaf certificates"
	case api.ServiceKindMeshGateway:
		what = "it routes mTLS between datacenters by SNI"
	case api.ServiceKindTerminatingGateway:
		what = "it takes mTLS with Connect leaf certificates, for services outside the mesh"
	case api.ServiceKindIngressGateway, api.ServiceKindAPIGateway:
		what = "its listeners are those of its config entry, whatever its port in the catalog says"
	default:
		return fmt.Errorf("kind %s: unknown, and not an ordinary service", quote(string(k)))
	}
	return fmt.Errorf("kind %q: %s; kinds = [%[1]q] accepts it", k, what)
}

// address returns where the instance of s on n listens, as q chooses.
// Source: the order of Consul's own BestAddress, for any tag.
func (q *Query) address(n *api.Node, s *api.AgentService) (lbcore.Addr, error) {
	if s.SocketPath != "" && q.Address == "" && q.PortName == "" {
		if !q.SocketPaths {
			return lbcore.Addr{}, fmt.Errorf("socket path %s: want socket_paths = true to accept it", quote(s.SocketPath))
		}
		if !strings.HasPrefix(s.SocketPath, "/") || len(s.SocketPath) > maxSocketPath || strings.ContainsFunc(s.SocketPath, unicode.IsControl) {
			return lbcore.Addr{}, fmt.Errorf("socket path %s: want an absolute path of at most %d bytes without control characters", quote(s.SocketPath), maxSocketPath)
		}
		return lbcore.UnixAddr(s.SocketPath), nil
	}
	host, taggedPort := s.Address, 0
	if q.Address != "" {
		if tagged := s.TaggedAddresses[q.Address]; tagged.Address != "" {
			host, taggedPort = tagged.Address, tagged.Port
		} else if q.Address == AddressVirtual {
			// Who asks for the virtual address wants what stands behind it;
			// the instance's own address would get around that.
			return lbcore.Addr{}, fmt.Errorf("no tagged address %q", AddressVirtual)
		}
		host = cmp.Or(host, n.TaggedAddresses[q.Address])
	}
	host = cmp.Or(host, n.Address)
	if host == "" {
		return lbcore.Addr{}, errors.New("neither the service nor its node has an address")
	}
	ip, err := netip.ParseAddr(host)
	switch {
	case err != nil:
		return lbcore.Addr{}, fmt.Errorf(`address %s: want an IP address; host names are for discovery "dns"`, quote(host))
	case ip.Zone() != "":
		return lbcore.Addr{}, fmt.Errorf("address %s: an IPv6 zone has no meaning on another host", quote(host))
	case ip.Unmap().IsUnspecified():
		return lbcore.Addr{}, fmt.Errorf("address %s: want the address of one host", quote(host))
	}
	port, err := q.port(s, taggedPort)
	if err != nil {
		return lbcore.Addr{}, err
	}
	return lbcore.IPAddr(netip.AddrPortFrom(ip, port)), nil
}

// port returns the port that q chooses among those of s. tagged is the port of
// the chosen tagged address, or zero; it stands for the default port as seen
// from there.
func (q *Query) port(s *api.AgentService, tagged int) (uint16, error) {
	names := func() string {
		var all []string
		for _, p := range s.Ports {
			if all = append(all, p.Name); len(all) == maxText {
				break
			}
		}
		return quote(strings.Join(all, ", "))
	}
	usual := s.Port
	if usual == 0 {
		if i := slices.IndexFunc(s.Ports, func(p api.ServicePort) bool { return p.Default }); i >= 0 {
			usual = s.Ports[i].Port
		}
	}
	port := usual
	if q.PortName != "" {
		i := slices.IndexFunc(s.Ports, func(p api.ServicePort) bool { return p.Name == q.PortName })
		switch {
		case len(s.Ports) == 0:
			return 0, fmt.Errorf("port_name %s: it has no named ports", quote(q.PortName))
		case i < 0:
			return 0, fmt.Errorf("port_name %s: want one of %s", quote(q.PortName), names())
		}
		port = s.Ports[i].Port
	}
	if tagged != 0 && tagged != usual {
		if port != usual {
			return 0, fmt.Errorf("port_name %s: its tagged address %s maps the default port only", quote(q.PortName), quote(q.Address))
		}
		port = tagged
	}
	switch {
	case port == 0 && len(s.Ports) > 0 && q.PortName == "":
		return 0, fmt.Errorf("no default port: want port_name to be one of %s", names())
	case port < 1 || port > math.MaxUint16:
		return 0, fmt.Errorf("port %d: want 1 to %d", port, math.MaxUint16)
	}
	return uint16(port), nil
}

// health is what the checks of an instance say, in the order of what counts
// more. Source: HealthChecks.AggregatedStatus, but for a status that Consul
// doesn't have, which counts as critical in whatever order the checks come.
type health uint8

const (
	passing health = iota
	warning
	critical
	maintenance
)

// worst returns what counts of all checks, of the node and of the service.
// Without checks an instance is passing.
func worst(checks api.HealthChecks) health {
	h := passing
	for _, c := range checks {
		switch {
		case c == nil:
			h = max(h, critical)
		case c.Status == api.HealthPassing:
		case c.Status == api.HealthWarning:
			h = max(h, warning)
		case c.Status == api.HealthCritical && (c.CheckID == api.NodeMaint || strings.HasPrefix(c.CheckID, api.ServiceMaintPrefix)):
			h = maintenance
		default:
			h = max(h, critical)
		}
	}
	return h
}

func (h health) status() lbcore.Status {
	switch h {
	case passing, warning:
		return lbcore.StatusHealthy
	case maintenance:
		return lbcore.StatusDraining
	}
	return lbcore.StatusUnhealthy
}

// weigh returns the weight for h. What takes no traffic keeps the weight of
// passing, so that a failing check alone doesn't rebuild selectors. Both
// weights are checked whichever counts, so that it is not health that decides
// about membership.
func weigh(w api.AgentWeights, h health) (uint32, error) {
	if w == (api.AgentWeights{}) {
		return 1, nil
	}
	for _, x := range []int{w.Passing, w.Warning} {
		if x < 0 || int64(x) > math.MaxUint32 {
			return 0, fmt.Errorf("weight %d: want 0 to %d", x, uint32(math.MaxUint32))
		}
	}
	if h == warning {
		return uint32(w.Warning), nil
	}
	return uint32(w.Passing), nil
}

// locality returns what Consul says of the place of an instance; a datacenter
// is a region to Consul's failover too.
func locality(n *api.Node, s *api.AgentService) lbcore.Locality {
	for _, l := range []*api.Locality{s.Locality, n.Locality} {
		if l != nil && *l != (api.Locality{}) {
			return lbcore.Locality{Region: l.Region, Zone: l.Zone}
		}
	}
	return lbcore.Locality{Region: n.Datacenter}
}

// quote returns s in quotes, escaped, and cut so that the whole is at most
// maxText bytes and some.
func quote(s string) string {
	q := strconv.Quote(s[:min(len(s), maxText)])
	if len(s) <= maxText && len(q) <= maxText+len(`""`) {
		return q
	}
	return strings.ToValidUTF8(q[:min(len(q)-1, maxText)], "") + `..."`
}
