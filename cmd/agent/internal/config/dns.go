package config

import (
	"slices"
	"time"
)

// DNS is which nameservers are asked by discovery "dns", and how. The block may
// be absent.
type DNS struct {
	// Nameservers are IP addresses, or IP:port, asked in place of those of
	// ResolvConf; at most 16.
	Nameservers []string `hcl:"nameservers"`
	// ResolvConf is the path of a resolv.conf(5), which is read again when it has
	// changed. Default /etc/resolv.conf.
	ResolvConf string `hcl:"resolv_conf" default:"/etc/resolv.conf"`
	// Search and NDots qualify names without a dot at their end. Default: what
	// ResolvConf says. NDots is up to 15, and 0 is the default.
	Search []string `hcl:"search"`
	NDots  int      `hcl:"ndots" range:"0..15"`
	// Stagger is after what time without an answer the next nameserver is asked
	// too. Default 150ms, from 1ms to 30s.
	Stagger time.Duration `hcl:"stagger" default:"150ms" range:"1ms..30s"`
	// Timeout is how long the answer of a nameserver is waited for. Default: what
	// ResolvConf says, or 2s. Up to 30s.
	Timeout time.Duration `hcl:"timeout" range:"0s..30s"`
	// Attempts is how often all nameservers are asked. Default: what ResolvConf
	// says, or 2. Up to 5.
	Attempts int `hcl:"attempts" range:"0..5"`
	// TCP asks by TCP only.
	TCP bool `hcl:"tcp"`
}

// UsesDNS reports whether nameservers are asked.
func (c *Config) UsesDNS() bool { return c.discovers(DiscoveryDNS) }

// discovers reports whether a cluster has a discovery of that kind.
func (c *Config) discovers(kind string) bool {
	return slices.ContainsFunc(c.Clusters, func(c Cluster) bool {
		return slices.ContainsFunc(c.Discovery, func(d Discovery) bool { return d.Kind == kind })
	})
}
