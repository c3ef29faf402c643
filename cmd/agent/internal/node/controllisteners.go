package node

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"

	"gatehouse.internal/cmd/agent/internal/accesslog"
	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/xds"
)

// noTimeout stands for a wait without an end.
const noTimeout = 24 * time.Hour

// ListenersFromXDS returns listeners of the control plane as Spec.Optional has
// them, in the order given, one for each address, and those that have no address and
// can't be run. Notes say, a line each, what of a listener is not applied.
func ListenersFromXDS(listeners []*xds.Listener) (run []config.Listener, unsupported []Unsupported, notes []Note) {
	for _, x := range listeners {
		note := func(format string, args ...any) {
			notes = append(notes, Note{x.Name, fmt.Sprintf(format, args...), true})
		}
		for _, field := range x.Ignored {
			notes = append(notes, Note{x.Name, field, false})
		}
		if len(x.Addresses) == 0 {
			unsupported = append(unsupported, Unsupported{x.Name, x.Unsupported, config.OriginXDS})
			continue
		}
		l := config.DefaultListener(x.Name, config.OriginXDS, x.Addresses[0], "")
		c := &config.Control{NoBind: !x.BindToPort || x.Unsupported != "", UseOriginalDst: x.UseOriginalDst, Unsupported: x.Unsupported}
		l.Control = c
		if x.Unsupported == "" {
			c.Inspect, c.CutLateHello = x.Inspect, !x.ContinueOnTimeout
			l.OriginalDst, l.TCPBacklogSize = x.OriginalDst, x.Backlog
			if x.Mode != 0 {
				l.Unix.Mode = config.FileMode(x.Mode)
			}
			l.TLSInspector.Timeout = cmp.Or(x.FiltersTimeout, noTimeout)
			if x.Proxy {
				l.ProxyProtocol.AcceptFrom = []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}
				l.ProxyProtocol.Optional, l.ProxyProtocol.Timeout = x.ProxyOptional, cmp.Or(x.FiltersTimeout, noTimeout)
			}
			if k := x.Keepalive; k != nil {
				l.TCPKeepalive = config.TCPKeepalive{KeepaliveTime: k.Time, KeepaliveInterval: k.Interval, KeepaliveProbes: k.Probes}
			}
			l.AccessLogs = accessLogsOf(x.AccessLogs, note)
			for i := range x.Chains {
				c.Chains = append(c.Chains, chainOf(&x.Chains[i], note))
			}
			if x.Default != nil {
				c.Default = new(chainOf(x.Default, note))
			}
		}
		for i, a := range x.Addresses {
			if l.Address = a; i > 0 {
				l.Name = x.Name + "@" + a.String()
			}
			run = append(run, l)
		}
	}
	return run, unsupported, notes
}

// Note says what of a listener is not applied, and whether that is to be warned of.
type Note struct {
	Listener, Text string
	Warn           bool
}

func chainOf(x *xds.FilterChain, note func(string, ...any)) config.FilterChain {
	c := config.FilterChain{Name: x.Name, Match: x.Match, Unsupported: x.Unsupported}
	if x.Unsupported != "" {
		note("filter chain %q refuses its connections: %s", x.Name, x.Unsupported)
		return c
	}
	p := &x.TCPProxy
	for _, r := range x.RBAC {
		c.RBAC = append(c.RBAC, config.RBAC(r))
	}
	for _, w := range p.Clusters {
		c.Clusters = append(c.Clusters, config.WeightedCluster(w))
	}
	if c.HashOn = config.HashOnNone; p.HashSourceIP {
		c.HashOn = config.HashOnSourceIP
	}
	c.IdleTimeout, c.MaxConnectAttempts = p.IdleTimeout, p.MaxConnectAttempts
	c.MaxConnectionDuration, c.MaxConnectionDurationJitter = p.MaxDuration, p.MaxDurationJitter
	c.TLS, c.NoTLS, c.HandshakeTimeout = x.TLS, x.NoTLS, x.HandshakeTimeout
	c.AccessLogs = accessLogsOf(p.AccessLogs, note)
	return c
}

// accessLogsOf leaves out, with a note, logs whose format can't be used.
func accessLogsOf(logs []xds.AccessLog, note func(string, ...any)) (out []config.AccessLog) {
	for _, x := range logs {
		a := config.AccessLog{Path: x.Path, Format: cmp.Or(x.Format, accesslog.FormatText), Sample: 1, SampleFailures: true}
		if f := x.Filter; f.Sampled {
			a.Sample = float64(f.PerMillion) / 1e6
		} else {
			a.DurationOp, a.DurationMillis, a.Flagged, a.Flags = f.DurationOp, f.DurationMillis, f.Flagged, f.Flags
		}
		_, unknown, err := accesslog.Parse(a.Format)
		if err != nil {
			note("access log %s is left out: %v", x.Path, err)
			continue
		}
		if len(unknown) > 0 {
			note("access log %s: these operators print \"-\": %v", x.Path, unknown)
		}
		out = append(out, a)
	}
	return out
}
