// Package dns makes the answers of DNS the endpoints of clusters, and asks
// nameservers that it balances by what they deliver.
//
// # Usage
//
//	client, err := dns.New(dns.Config{})   // the nameservers of /etc/resolv.conf
//	...
//	source, err := client.Source(dns.Query{Name: "_web._tcp.example.org.", Type: dns.SRV}, log, dups)
//
// One Client serves all sources of a process; each source is a
// discovery.Source and a discovery.Refresher. Client.Set changes whom it asks, and how,
// while sources run, and has them look anew.
//
// # How it asks
//
// A query begins at a nameserver that is drawn by weight (lbcore/adaptive) and
// goes round: after Stagger the next one is asked too, and at once where one
// fails. The first answer wins. NXDOMAIN and NODATA are answers; SERVFAIL,
// REFUSED, what can't be understood and silence are failures. The winner's latency
// is observed; those that failed, and those that had not answered when another
// had, have their weight halved. So the slow and the dead fade, and are tried
// now and then.
//
// An answer without records where records were known, or nothing is known yet,
// is believed only if a second nameserver says the same or none can be asked. If
// another one has records, those without have failed.
//
// Each query has a socket, a port and an id of its own. What comes from elsewhere
// or answers another question is dropped and counted (RFC 5452), and after some 32
// of these TCP is used. Answers that are truncated are asked for by TCP; EDNS0
// offers 1232 bytes by UDP, and is left out where a nameserver does not know it.
// Consul (names under consul.) is always asked by TCP.
//
// A name without a dot at its end is tried with each search domain until one has
// records. A failure ends the search, and so does a name with addresses of the other
// family: the next one might be another service.
//
// # What is believed
//
// Each question (the name, and for SRV each target's addresses) has a memory of
// its own: a target that fails neither holds up nor wipes the others. Addresses
// of targets are always asked for; the additional section counts only for a target
// whose own look-up fails and of which nothing is known (RFC 2782 allows it as a
// hint, and it is often incomplete).
//
// A record that an answer lacks stays until Misses answers in a row have lacked
// it, because large answers are often cut at random. NXDOMAIN and NODATA are
// believed after Hold's time and two answers at least, a nameserver's failures by
// default never: the last good records stay in force meanwhile
// (discovery.HeldError, or the failure itself). An answer of a set is reported as
// a whole: the new targets of an SRV name are looked up before the old ones go.
//
// # Records
//
// SRV's priorities become priorities 0, 1, 2 in their order. Weights are relative
// inside a priority: a target's is shared by its addresses; 0 beside others is 1/64
// of the weight 1, and all 0 are equal. An address that occurs twice has the better
// priority, and in it the sum of the weights. A single target "." says that there
// is no such service: no records. Records of other types, classes and names are
// ignored; addresses that nobody can dial, link-local ones of IPv6 among them since
// they need a zone, are left out and named in the log.
//
// The addresses of a name are an endpoint each, or with Query.Logical one together:
// the first address of an answer is the endpoint's for as long as answers list it,
// though nameservers take turns in which is the first, so that health and
// connections are kept. The others are its additional addresses.
//
// # Concurrency
//
// A Client's methods may be called from anywhere. Each source owns its memories
// in the goroutine of its Watch; its look-ups run in goroutines of their own, 256 at
// once by the same nameservers and 32 for the targets of one name, so that what nobody
// answers for holds up no other source. Nameservers are published as a whole and their
// weights and counters are atomics.
//
// # Limitations
//
// That nobody listens at a nameserver's port is not noticed before the stagger is
// over: sockets that count packets from elsewhere are not told. Answers are not
// validated by DNSSEC. What is looked up is not cached for others:
// two sources of one name ask twice. resolv.conf's nameserver, search, domain and
// the options ndots, timeout, attempts and use-vc count, others don't. Link-local
// nameservers, which have a zone, are refused.
//
// # Why not net.Resolver
//
// It tells neither TTLs nor the kind of failure, mixes SRV records anew at each
// call, and asks nameservers in a fixed order, each for 5 s.
package dns
