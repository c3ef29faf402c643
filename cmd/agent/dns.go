package main

import (
	"errors"
	"fmt"
	"net/netip"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/cmd/agent/internal/node"
	"gatehouse.internal/discovery/dns"
)

// nameservers reads a list of their addresses. The error begins with the name of
// the argument.
func nameservers(list []string) (all []netip.AddrPort, err error) {
	for _, s := range list {
		at, perr := dns.ParseServer(s)
		if perr != nil {
			return nil, fmt.Errorf("nameservers: %w", perr)
		}
		all = append(all, at)
	}
	return all, nil
}

// dnsConfig returns how nameservers are asked.
func dnsConfig(c config.DNS) (dns.Config, error) {
	servers, err := nameservers(c.Nameservers)
	return dns.Config{
		Nameservers: servers, ResolvConf: c.ResolvConf, Search: c.Search, NDots: c.NDots,
		Stagger: c.Stagger, Timeout: c.Timeout, Attempts: c.Attempts, TCP: c.TCP,
	}, err
}

func checkDNS(c config.DNS) error {
	cfg, err := dnsConfig(c)
	return errors.Join(err, cfg.Validate())
}

// dnsQuery returns what a discovery "dns" asks for.
func dnsQuery(d config.Discovery) (dns.Query, error) {
	servers, err := nameservers(d.Nameservers)
	return dns.Query{
		Name: d.HostName, Type: dns.Type(d.RecordType), Port: uint16(d.Port), Targets: dns.Type(d.Targets),
		Prefer: dns.Type(d.PreferFamily), Logical: d.Logical, Jitter: d.Jitter,
		Nameservers: servers, TCP: d.TCP, MinTTL: d.MinTTL, MaxTTL: d.MaxTTL, Refresh: d.Refresh, RefreshLimit: d.RefreshLimit,
		MinBackoff: d.MinBackoff, MaxBackoff: d.MaxBackoff, Misses: d.Misses,
		Hold: dns.Hold{NXDomain: d.HoldNXDomain, NoData: d.HoldNoData, Refused: d.HoldRefused, Timeout: d.HoldTimeout},
	}, err
}

func checkName(d config.Discovery) error {
	q, err := dnsQuery(d)
	return errors.Join(err, q.Validate())
}

// nameserverStatus describes the nameservers, for dumps.
func nameserverStatus(c *dns.Client) (all []node.NameserverStatus) {
	if c == nil {
		return nil
	}
	st := c.Stats()
	if st.Watches == 0 && st.Lookups == 0 { // it is there for what a control plane may want
		return nil
	}
	for _, s := range st.Nameservers {
		all = append(all, node.NameserverStatus{
			Group: s.Group, Address: s.Address, Weight: s.Weight, Share: s.Share, Latency: s.Latency,
			Queries: s.Queries, Won: s.Won, Failures: s.Failures, Late: s.Late, Strays: s.Strays, TCP: s.TCP,
		})
	}
	return all
}
