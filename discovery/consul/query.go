package consul

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
)

// Consistency is how fresh an answer has to be.
// Source: Consul's consistency modes.
type Consistency string

// The consistency modes. Stale, the zero value's meaning, lets any server
// answer; an answer of a server that is behind is never believed about what is
// gone. Default asks the leader, Consistent has the leader ask a quorum too.
const (
	Stale      Consistency = "stale"
	Default    Consistency = "default"
	Consistent Consistency = "consistent"
)

// The values of Query.Address.
const (
	AddressLAN     = "lan"
	AddressLANv4   = "lan_ipv4"
	AddressLANv6   = "lan_ipv6"
	AddressWAN     = "wan"
	AddressWANv4   = "wan_ipv4"
	AddressWANv6   = "wan_ipv6"
	AddressVirtual = "virtual"
)

// Query says which instances of the catalog are a cluster's endpoints. Exactly
// one of Service and PreparedQuery is required. It is a plain value; whoever
// makes it must not write to its slices and maps afterwards.
type Query struct {
	// Service is the name of a service. Names with a slash can't be asked for.
	Service string
	// PreparedQuery is the name or id of a prepared query. Consul can't block
	// on one, so it is asked every PollInterval.
	PreparedQuery string
	// PollInterval is the time between two executions of a prepared query.
	// Zero means 10 s.
	PollInterval time.Duration

	// Tags and NodeMeta are what an instance and its node must have, all of
	// them; none means that any will do. They are matched here, not by Consul:
	// filters on the server have given old answers (hashicorp/consul#12640).
	Tags     []string
	NodeMeta map[string]string

	// Datacenter, Namespace, Partition and Peer say where to look; empty means
	// what the Config says. SamenessGroup fails over among its members.
	// Without Peer and SamenessGroup, instances imported from a peer are left
	// out with a warning, since only mesh gateways reach them.
	Datacenter, Namespace, Partition, Peer, SamenessGroup string

	// Address chooses among tagged addresses: one of the Address constants.
	// Where a service has no such address, the next one of Consul's order
	// counts: the service's own, the node's tagged one, the node's own. Only
	// AddressVirtual has no such fallback. Empty means the service's own
	// address, or the node's. A tagged address of a service brings its own
	// port.
	Address string
	// PortName chooses the port of a multi-port service; empty means the
	// default one.
	PortName string
	// SocketPaths accepts the unix sockets of instances that have one, before
	// their addresses, if both Address and PortName are empty. Such a socket is
	// there on the instance's own node only, which is not checked; and whoever
	// may register a service chooses among all sockets of this host.
	SocketPaths bool
	// Connect asks for what speaks for Service in Consul's service mesh: its
	// sidecar proxies, and instances that are native. They are reached by the mTLS of
	// [Identity.Client] only. It goes with Service alone, not with Peer and
	// SamenessGroup; the source keeps its own query also above Config.MaxWatches.
	Connect bool
	// Kinds are the service kinds that are accepted besides ordinary services:
	// "connect-proxy", "mesh-gateway", "terminating-gateway",
	// "ingress-gateway", "api-gateway". Others are left out with a warning,
	// since they don't speak the service's own protocol.
	Kinds []string

	// Near sorts instances by the round trip from this node; "_agent" is the
	// agent that answers. The first Nearest of them (zero means 3) have
	// priority 0, all others priority 1. Consul doesn't stream such answers.
	Near    string
	Nearest int

	// Consistency is Stale if empty.
	Consistency Consistency
	// Cached lets the agent answer from its cache, which it refreshes in the
	// background, and which survives the loss of all servers. It can't be had
	// together with Consistent.
	Cached bool
}

// kinds are the service kinds that Query.Kinds may name.
var kinds = []string{"connect-proxy", "mesh-gateway", "terminating-gateway", "ingress-gateway", "api-gateway"}

// addresses are the values of Query.Address.
var addresses = []string{AddressLAN, AddressLANv4, AddressLANv6, AddressWAN, AddressWANv4, AddressWANv6, AddressVirtual}

// Validate reports everything that keeps q from being asked, joined; each
// error begins with the name of the field as a configuration has it and a
// colon.
func (q Query) Validate() error {
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: "+format, append([]any{field}, args...)...))
	}
	switch {
	case q.Service == "" && q.PreparedQuery == "":
		bad("service", "missing: want the name of a service, or a prepared_query")
	case q.Service != "" && q.PreparedQuery != "":
		bad("prepared_query", "%q: want either this or service", q.PreparedQuery)
	}
	for _, x := range []struct{ field, name string }{
		{"service", q.Service}, {"prepared_query", q.PreparedQuery}, {"datacenter", q.Datacenter}, {"namespace", q.Namespace},
		{"partition", q.Partition}, {"peer", q.Peer}, {"sameness_group", q.SamenessGroup}, {"port_name", q.PortName}, {"near", q.Near},
	} {
		if want := badName(x.name); want != "" {
			bad(x.field, "%q: want %s", x.name, want)
		}
	}
	if q.Connect {
		for _, x := range []struct{ field, value string }{{"prepared_query", q.PreparedQuery}, {"peer", q.Peer}, {"sameness_group", q.SamenessGroup}} {
			if x.value != "" {
				bad(x.field, "%q: can't be had with connect, which knows the certificates of a service of this mesh only", x.value)
			}
		}
		if q.PortName != "" {
			bad("port_name", "%q: can't be had with connect, as a sidecar has one port", q.PortName)
		}
	}
	if slices.Contains(q.Tags, "") {
		bad("tags", "want no empty tag")
	}
	if _, ok := q.NodeMeta[""]; ok {
		bad("node_meta", "want no empty key")
	}
	oneOf := func(field, value string, of []string) {
		if !slices.Contains(of, value) {
			bad(field, "%q: want one of %s", value, strings.Join(of, ", "))
		}
	}
	if q.Address != "" {
		oneOf("address", q.Address, addresses)
	}
	for _, k := range q.Kinds {
		oneOf("kinds", k, kinds)
	}
	if q.Consistency != "" {
		oneOf("consistency", string(q.Consistency), []string{string(Stale), string(Default), string(Consistent)})
	}
	if q.Cached && q.Consistency == Consistent {
		bad("cached", "true: want it false with consistency %q", Consistent)
	}
	if q.Nearest < 0 {
		bad("nearest", "%d: want at least 1", q.Nearest)
	}
	if q.Nearest > 0 && q.Near == "" {
		bad("nearest", "%d: want near with it", q.Nearest)
	}
	if q.PollInterval < 0 {
		bad("poll_interval", "%v: want a positive time", q.PollInterval)
	}
	if q.PollInterval > 0 && q.PreparedQuery == "" {
		bad("poll_interval", "%v: want prepared_query with it; a service is watched, not polled", q.PollInterval)
	}
	return errors.Join(errs...)
}

// badName says what a name that is a part of a request should be, if it is not.
func badName(name string) (want string) {
	switch {
	case strings.Contains(name, "/"):
		return "a name without a slash"
	case strings.ContainsFunc(name, unicode.IsControl):
		return "a name without control characters"
	case name == "." || name == "..":
		return "a name"
	}
	return ""
}

// name returns what q asks for, for messages.
func (q Query) name() string {
	if q.PreparedQuery != "" {
		return fmt.Sprintf("prepared query %q", q.PreparedQuery)
	}
	return fmt.Sprintf("service %q", q.Service)
}
