// Package filterchain finds the filter chain of a listener that a connection
// belongs to, by Envoy's rules.
//
// # Usage
//
//	m, err := filterchain.New([]filterchain.Rule{
//		{Name: "web", Match: filterchain.Match{ServerNames: []string{"*.example.com"}}},
//		{Name: "rest"},
//	})
//	i := m.Find(&conn) // 0, 1, or -1 if none matches
//
// # The order
//
// Nine things are looked at one after the other: the destination port, the
// destination address, the server name, the transport protocol, the application
// protocols, the address that is directly connected, the kind of the source, the
// source address, the source port. At each the most specific of what the chains
// that are left say is taken, and the chains that say something else are out: for
// www.example.com that is www.example.com before *.example.com, *.com, and chains
// without server names. There is no way back: if what was taken leads to no chain,
// a less specific one that would have is not tried, and the connection has none.
//
// Source: envoy.config.listener.v3.FilterChainMatch.
//
// # Concurrency
//
// A Matcher is never written after New and may be used from anywhere. Find takes no
// lock and allocates nothing.
//
// # Limitations
//
// A chain is entered once for each combination of what it lists, as in Envoy: New
// refuses more than MaxCombinations of them. Where a chain is for connections from
// elsewhere only, one from the same host is not of it, also if no chain is for the
// same host: Envoy's documentation says so, its code does not.
package filterchain
