package config

import (
	"fmt"
	"net/netip"
)

// checkSockets finds what stands in the way of a cluster's connections.
func (d *decoder) checkSockets(c *Cluster) {
	p := path("cluster").sub(c.Name)
	d.checkKeepalive(p, c.TCPKeepalive)
	if d.good(p, "source_address") {
		var seen [2]netip.Addr
		for _, a := range c.SourceAddress {
			family := 0
			if a.Is6() {
				family = 1
			}
			if first := seen[family]; first.IsValid() {
				d.mistake(p, d.where(p, "source_address"), fmt.Sprintf("source_address has both %s and %s", first, a), "one IPv4 and one IPv6 address at most")
				break
			}
			seen[family] = a
		}
	}
	if c.SocketMark != 0 && d.opts.SocketMark != nil && d.good(p, "socket_mark") {
		if err := d.opts.SocketMark(); err != nil {
			d.mistake(p, d.where(p, "socket_mark"), "socket_mark can't be used: "+err.Error(), "give the agent CAP_NET_ADMIN, or leave it out")
		}
	}
}

// checkSocket finds what a listener's socket has no use for.
func (d *decoder) checkSocket(l *Listener) {
	p := path("listener").sub(l.Name)
	d.checkKeepalive(p, l.TCPKeepalive)
	if at := p.sub("unix"); l.Unix != (Unix{}) && l.Address.AddrPort().IsValid() && d.good(at) && d.good(p, "address") {
		d.mistake(at, d.where(at, "mode", "user", "group"), fmt.Sprintf("unix says whose the file of a socket is, and %s has none", l.Address),
			"leave it out, or listen on unix:///path")
	}
}

func (d *decoder) checkKeepalive(p path, k TCPKeepalive) {
	if at := p.sub("tcp_keepalive"); k.KeepaliveProbes != 0 && k.UserTimeout != 0 && d.good(at, "keepalive_probes", "user_timeout") {
		d.mistake(at, d.where(at, "keepalive_probes"), "keepalive_probes has no effect with a user_timeout", `leave it out, or set user_timeout to "0s"`)
	}
}
