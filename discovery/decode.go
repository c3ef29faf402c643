package discovery

import (
	"fmt"
	"math"
	"math/big"
	"net/netip"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"

	"gatehouse.internal/internal/hcltext"
	"gatehouse.internal/lbcore"
)

// DecodeEndpoints reads a list of endpoints, in HCL or in HCL's JSON syntax.
// An element is an address as lbcore.ParseAddr reads it, or an object:
//
//	{
//	  address       = "10.0.0.2:80"   # required
//	  weight        = 2               # 0 to 2^32-1, default 1; 0: listed, no new connections
//	  priority      = 0               # 0 (first) to 128, default 0
//	  locality      = { region = "eu", zone = "eu-1a", sub_zone = "" }
//	  locality_weight = 1             # 0 to 2^32-1: of the locality, for locality_weighted
//	  hash_key      = "x"             # default: the address
//	  hostname      = "h"
//	  additional_addresses = ["[2001:db8::2]:80"]   # of the same endpoint: tried together with address
//	  health_status = "healthy"       # or unknown, unhealthy, draining, timeout, degraded
//	  enabled       = true            # default: what the operator last said
//	  health_check  = {               # probe elsewhere than at address
//	    address  = "10.0.0.2"         # an IP, or a full address
//	    port     = 8081               # default: the endpoint's; not with a full address
//	    hostname = "h"
//	    disabled = false              # true: counts as healthy, unprobed
//	  }
//	}
//
// One endpoint may say the locality_weight for all of its locality and priority.
// It is 1 if none does; if several do they must agree.
//
// Values must be plain: no variables, functions or templates. All mistakes are
// returned at once, each with its range; Summary says what is wrong and Detail,
// if not empty, what to do. There are endpoints only if there are no
// diagnostics; an address may still occur twice in them.
func DecodeEndpoints(expr hcl.Expression) ([]lbcore.Endpoint, hcl.Diagnostics) {
	elems, diags := hcl.ExprList(expr)
	if diags.HasErrors() {
		var d decoder
		d.fail(expr.Range(), "endpoints must be a list", `as in ["10.0.0.1:80", { address = "10.0.0.2:80", weight = 2 }]`)
		return nil, d.diags
	}
	var d decoder
	eps := make([]lbcore.Endpoint, 0, len(elems))
	for _, e := range elems {
		eps = append(eps, d.endpoint(e))
	}
	for i := range eps {
		eps[i].LocalityWeight = 1
		if w, ok := d.weights[placeOf(&eps[i])]; ok {
			eps[i].LocalityWeight = w
		}
	}
	if len(d.diags) == 0 {
		d.sums(expr, eps)
	}
	if len(d.diags) > 0 {
		return nil, d.diags
	}
	return eps, nil
}

// decoder collects the mistakes. Its methods return zero values for what they
// can't read and go on.
type decoder struct {
	diags   hcl.Diagnostics
	weights map[place]uint32 // of localities, as said
}

func (d *decoder) fail(at hcl.Range, summary, hint string) {
	d.diags = append(d.diags, &hcl.Diagnostic{Severity: hcl.DiagError, Summary: summary, Detail: hint, Subject: &at})
}

var (
	endpointKeys    = []string{"address", "weight", "priority", "locality", "locality_weight", "hash_key", "hostname", "additional_addresses", "health_status", "enabled", "health_check"}
	localityKeys    = []string{"region", "zone", "sub_zone"}
	healthCheckKeys = []string{"address", "port", "hostname", "disabled"}
)

func (d *decoder) endpoint(expr hcl.Expression) lbcore.Endpoint {
	ep := lbcore.Endpoint{Weight: 1}
	if _, diags := hcl.ExprMap(expr); diags.HasErrors() {
		ep.Addr = d.addr("an endpoint", expr)
		return ep
	}
	var check, weight, more hcl.Expression
	seen := d.object("an endpoint", expr, endpointKeys, func(key string, v hcl.Expression) {
		switch key {
		case "address":
			ep.Addr = d.addr(key, v)
		case "weight":
			ep.Weight = uint32(d.number(key, v, 0, math.MaxUint32))
		case "priority":
			ep.Priority = uint8(d.number(key, v, 0, lbcore.MaxPriority))
		case "locality":
			d.object(key, v, localityKeys, func(key string, v hcl.Expression) {
				s, _ := d.str(key, v)
				switch key {
				case "region":
					ep.Locality.Region = s
				case "zone":
					ep.Locality.Zone = s
				case "sub_zone":
					ep.Locality.SubZone = s
				}
			})
		case "locality_weight":
			weight = v // is of the priority and locality, which may come later
		case "hash_key":
			ep.HashKey, _ = d.str(key, v)
		case "hostname":
			ep.Hostname, _ = d.str(key, v)
		case "additional_addresses":
			more = v // are judged by the address, which may come later
		case "health_status":
			ep.Status = d.status(v)
		case "enabled":
			ep.Enabled = lbcore.OverrideDisable
			if on, _ := d.boolean(key, v); on {
				ep.Enabled = lbcore.OverrideEnable
			}
		case "health_check":
			check = v // needs the address, which may come later
		}
	})
	if !seen["address"] {
		d.fail(expr.StartRange(), "an endpoint needs an address", `as in address = "10.0.0.1:80"`)
	}
	if weight != nil {
		d.localityWeight(placeOf(&ep), weight)
	}
	if more != nil {
		ep.Additional = d.additional(more, ep.Addr)
	}
	if check != nil {
		ep.Check = d.check(check, ep.Addr)
	}
	return ep
}

// additional reads the other addresses of the endpoint at addr.
func (d *decoder) additional(expr hcl.Expression, addr lbcore.Addr) (list lbcore.Addrs) {
	const key = "additional_addresses"
	elems, diags := hcl.ExprList(expr)
	switch {
	case diags.HasErrors():
		d.fail(expr.Range(), key+" must be a list", `as in ["[2001:db8::1]:80"]`)
		return list
	case len(elems) > lbcore.MaxAdditional:
		d.fail(expr.Range(), fmt.Sprintf("%d addresses in %s", len(elems), key), fmt.Sprintf("want at most %d", lbcore.MaxAdditional))
		return list
	case addr.Path() != "":
		d.fail(expr.Range(), "a unix socket has no "+key, "leave them out")
		return list
	}
	var addrs []lbcore.Addr
	for _, e := range elems {
		switch a := d.addr(key, e); {
		case !a.IsValid(): // a mistake
		case a.Path() != "":
			d.fail(e.Range(), key+" can't be unix sockets", "want IP:port or [IPv6]:port")
		case a == addr || slices.Contains(addrs, a):
			d.fail(e.Range(), fmt.Sprintf("%s has %s, which the endpoint has already", key, a), "leave it out")
		default:
			addrs = append(addrs, a)
		}
	}
	return lbcore.AddrsOf(addrs...)
}

// place is what a weight of a locality counts for.
type place struct {
	priority uint8
	locality lbcore.Locality
}

func placeOf(ep *lbcore.Endpoint) place { return place{ep.Priority, ep.Locality} }

// localityWeight reads the weight of a place, of which there must be one.
func (d *decoder) localityWeight(at place, expr hcl.Expression) {
	before := len(d.diags)
	w := uint32(d.number("locality_weight", expr, 0, math.MaxUint32))
	if len(d.diags) > before {
		return
	}
	if d.weights == nil {
		d.weights = make(map[place]uint32)
	}
	if other, ok := d.weights[at]; ok && other != w {
		d.fail(expr.Range(), fmt.Sprintf("locality_weight is %d, and %d elsewhere in the same locality and priority", w, other), "make it the same, or say it once")
		return
	}
	d.weights[at] = w
}

// sums checks that the weights of the localities of a priority can be added.
func (d *decoder) sums(list hcl.Expression, eps []lbcore.Endpoint) {
	var sums [lbcore.MaxPriority + 1]uint64
	seen := make(map[place]bool)
	for i := range eps {
		at := placeOf(&eps[i])
		if seen[at] {
			continue
		}
		seen[at] = true
		sums[at.priority] += uint64(eps[i].LocalityWeight)
	}
	for priority, sum := range sums {
		if sum > math.MaxUint32 {
			d.fail(list.StartRange(), fmt.Sprintf("the localities of priority %d have weights of %d in all", priority, sum), fmt.Sprintf("want at most %d", uint32(math.MaxUint32)))
		}
	}
}

// check reads where and how the endpoint at target is probed. An IP without a
// port gets target's, a port without an IP goes to target's.
func (d *decoder) check(expr hcl.Expression, target lbcore.Addr) (c lbcore.Check) {
	var address, port hcl.Expression
	d.object("health_check", expr, healthCheckKeys, func(key string, v hcl.Expression) {
		switch key {
		case "address":
			address = v
		case "port":
			port = v
		case "hostname":
			c.Hostname, _ = d.str(key, v)
		case "disabled":
			c.Disabled, _ = d.boolean(key, v)
		}
	})
	if address == nil && port == nil {
		return c
	}
	probeIP, probePort := target.AddrPort().Addr(), target.AddrPort().Port()
	if port != nil {
		probePort = uint16(d.number("port", port, 1, math.MaxUint16))
	}
	if address != nil {
		s, ok := d.str("address", address)
		if !ok {
			return c
		}
		full, err := lbcore.ParseAddr(s)
		if err == nil {
			c.Addr = full
			if port != nil {
				d.fail(port.Range(), fmt.Sprintf("the address %q has a port already", s), "leave one of the two out")
			}
			return c
		}
		if probeIP, err = netip.ParseAddr(s); err != nil || probeIP.Zone() != "" {
			d.fail(address.Range(), fmt.Sprintf("address %q: want an IP, IP:port, [IPv6]:port or unix:///path", s), "")
			return c
		}
	}
	switch {
	case probeIP.IsValid() && probePort != 0:
		c.Addr = lbcore.IPAddr(netip.AddrPortFrom(probeIP, probePort))
	case target.Path() != "":
		d.fail(expr.StartRange(), "a unix socket has no IP and port to probe", "give health_check both address and port")
	}
	return c
}

// object reads the keys of expr, each once, and returns which it saw.
func (d *decoder) object(what string, expr hcl.Expression, keys []string, read func(key string, v hcl.Expression)) map[string]bool {
	pairs, diags := hcl.ExprMap(expr)
	if diags.HasErrors() {
		d.fail(expr.Range(), what+" must be an object", "with keys among "+strings.Join(keys, ", "))
		return nil
	}
	seen := make(map[string]bool, len(pairs))
	for _, p := range pairs {
		key, ok := d.str("a key", p.Key)
		switch {
		case !ok:
		case !slices.Contains(keys, key):
			d.fail(p.Key.Range(), fmt.Sprintf("unknown key %q in %s", key, what), hcltext.Suggest(key, keys))
		case seen[key]:
			d.fail(p.Key.Range(), fmt.Sprintf("%s is given twice in %s", key, what), "leave one of the two out")
		default:
			seen[key] = true
			read(key, p.Value)
		}
	}
	return seen
}

func (d *decoder) addr(what string, v hcl.Expression) lbcore.Addr {
	s, ok := d.str(what, v)
	if !ok {
		return lbcore.Addr{}
	}
	a, err := lbcore.ParseAddr(s)
	if err != nil {
		d.fail(v.Range(), err.Error(), "")
	}
	return a
}

func (d *decoder) status(v hcl.Expression) lbcore.Status {
	s, ok := d.str("health_status", v)
	if !ok {
		return lbcore.StatusUnknown
	}
	st, err := lbcore.ParseStatus(s)
	if err != nil {
		d.fail(v.Range(), err.Error(), "")
	}
	return st
}

func (d *decoder) str(what string, v hcl.Expression) (string, bool) {
	val, diags := v.Value(nil)
	if !d.want("string", what, v, diags, val.Type().FriendlyName(), val.IsNull()) {
		return "", false
	}
	return val.AsString(), true
}

func (d *decoder) boolean(what string, v hcl.Expression) (b, ok bool) {
	val, diags := v.Value(nil)
	if !d.want("bool", what, v, diags, val.Type().FriendlyName(), val.IsNull()) {
		return false, false
	}
	return val.True(), true
}

// number reads a whole number from lo to hi. It doesn't print a wrong one: to
// write out an exponent like 1e999999999 takes forever.
func (d *decoder) number(what string, v hcl.Expression, lo, hi uint64) uint64 {
	val, diags := v.Value(nil)
	if !d.want("number", what, v, diags, val.Type().FriendlyName(), val.IsNull()) {
		return 0
	}
	f := val.AsBigFloat()
	n, accuracy := f.Uint64() // which calls 1 for 1.5 exact
	if !f.IsInt() || accuracy != big.Exact || n < lo || n > hi {
		d.fail(v.Range(), fmt.Sprintf("%s is out of range", what), fmt.Sprintf("want a whole number from %d to %d", lo, hi))
		return 0
	}
	return n
}

// want reports whether a value came out of its expression and has the wanted
// type. Nothing is converted: "2" is no number, and 2 no host name.
func (d *decoder) want(wanted, what string, v hcl.Expression, diags hcl.Diagnostics, got string, null bool) bool {
	switch {
	case diags.HasErrors():
		at := v.Range()
		if diags[0].Subject != nil {
			at = *diags[0].Subject
		}
		d.fail(at, what+" must be a plain value", "variables, functions and templates have no meaning here; a string needs quotes")
	case null:
		d.fail(v.Range(), what+" is null", "leave it out, or give it a value")
	case got != wanted:
		d.fail(v.Range(), fmt.Sprintf("%s must be a %s, not a %s", what, wanted, got), "")
	default:
		return true
	}
	return false
}
