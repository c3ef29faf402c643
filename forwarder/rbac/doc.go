// Package rbac decides by a connection's addresses, server name and client
// certificate whether it is allowed, as Envoy's network RBAC filter does. It is
// arithmetic on values: no sockets, no clock.
//
// # Usage
//
//	f, err := rbac.New(&rbac.Rules{Action: rbac.Allow, Policies: []rbac.Policy{{
//		Name:        "web",
//		Permissions: []rbac.Rule{{Kind: rbac.Any}},
//		Principals:  []rbac.Rule{{Kind: rbac.Authenticated, Match: &rbac.String{Exact: "spiffe://example.org/web"}}},
//	}}}, nil)
//	if v := f.Check(&peer); v.Denied != nil {
//		…
//
// # Rules
//
// A policy matches if one of its permissions and one of its principals do. With
// Allow a connection needs a policy that matches, with Deny one that matches is
// against it, and Log lets everything pass. Rules without policies thus refuse
// everything (Allow) or nothing. Shadow rules are asked too, and only told of.
//
// Who is authenticated is whoever the TLS settings have let in: a principal that
// names nobody takes any client that speaks TLS, one without a certificate
// included where none is required. One that names somebody is compared with each
// URI of the certificate, then with each of its DNS names, then with its subject.
//
// Source: envoy.extensions.filters.network.rbac.v3.RBAC, envoy.config.rbac.v3.RBAC.
//
// # Concurrency
//
// A Filter is never written after New and may be used from anywhere. Check takes no
// lock and allocates nothing.
//
// # Limitations
//
// What belongs to HTTP, metadata and conditions (CEL) are not here: whoever reads
// them must not leave them out of a rule.
package rbac
