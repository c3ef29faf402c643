package config

import (
	"fmt"
	"io/fs"
	"net/netip"
	"strings"
	"time"

	"gatehouse.internal/lbcore"
)

// TCPKeepalive says how peers are found that are gone without a word.
// Source: envoy.config.core.v3.TcpKeepalive.
//
// The zero value, as clusters and listeners have that no file defines, is the default.
type TCPKeepalive struct {
	// KeepaliveTime is how long a connection is silent before it is probed; 0
	// never probes. Default 2m, up to 9h.
	KeepaliveTime time.Duration `hcl:"keepalive_time" default:"2m" range:"0s..9h"`
	// KeepaliveInterval lies between probes. Default 15s, from 1s to 9h.
	KeepaliveInterval time.Duration `hcl:"keepalive_interval" default:"15s" range:"1s..9h"`
	// KeepaliveProbes without an answer end the connection where there is no
	// UserTimeout; with one Linux does not count them, and it is a mistake to set
	// both. Default 0, which is the system's number, 9 on Linux; up to 127.
	KeepaliveProbes int `hcl:"keepalive_probes" range:"0..127"`
	// UserTimeout is how long probes, or data, may stay without an answer, also
	// from a peer that reads nothing (Linux's TCP_USER_TIMEOUT). 0 is as long as
	// the system likes. Default 5m, up to 24h.
	UserTimeout time.Duration `hcl:"user_timeout" default:"5m" range:"0s..24h"`
}

// The values of HappyEyeballs.FirstAddressFamilyVersion.
const (
	FamilyDefault = "default"
	FamilyV4      = "v4"
	FamilyV6      = "v6"
)

// HappyEyeballs is in which order the addresses of an endpoint that has several
// are tried, 300 ms apart: those of both families in turn.
// Source: UpstreamConnectionOptions.HappyEyeballsConfig.
type HappyEyeballs struct {
	// FirstAddressFamilyVersion is the family that begins: v4, v6, or by default
	// that of the endpoint's first address.
	FirstAddressFamilyVersion string `hcl:"first_address_family_version" default:"default" enum:"default|v4|v6"`
	// FirstAddressFamilyCount addresses of it come before each one of the other.
	// Default 1, from 1 to 16; 0, in clusters of the control plane, is 1 too.
	FirstAddressFamilyCount int `hcl:"first_address_family_count" default:"1" range:"1..16"`
}

// Unix describes the file of a listener's unix socket. On Linux nobody but root
// can connect before the file is as described.
type Unix struct {
	// Mode is the file's permissions, in octal digits: who may write may connect.
	// Default: what the umask leaves.
	Mode FileMode `hcl:"mode"`
	// User and Group own the file, by name or number. Default: the agent's.
	User  string `hcl:"user"`
	Group string `hcl:"group"`
}

// FileMode is permissions of a file, written as "0660". 0 means that none are
// given.
type FileMode fs.FileMode

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
	d.checkUnix(p, l.Unix, l.Address)
}

// checkUnix finds what the block unix in p can't mean for the socket at a.
func (d *decoder) checkUnix(p path, u Unix, a lbcore.Addr) {
	at := p.sub("unix")
	if u != (Unix{}) && a.AddrPort().IsValid() && d.good(at) && d.good(p, "address") {
		d.mistake(at, d.where(at, "mode", "user", "group"), fmt.Sprintf("unix says whose the file of a socket is, and %s has none", a),
			"leave it out, or listen on unix:///path")
		return
	}
	if d.opts.SocketOwner == nil {
		return
	}
	for name, err := range map[string]error{"user": d.opts.SocketOwner(u.User, ""), "group": d.opts.SocketOwner("", u.Group)} {
		if err != nil && d.good(at, name) {
			d.mistake(at.sub(name), d.where(at, name), name+": "+strings.TrimPrefix(err.Error(), name+": "), "make it, name another, or leave it out")
		}
	}
}

func (d *decoder) checkKeepalive(p path, k TCPKeepalive) {
	if at := p.sub("tcp_keepalive"); k.KeepaliveProbes != 0 && k.UserTimeout != 0 && d.good(at, "keepalive_probes", "user_timeout") {
		d.mistake(at, d.where(at, "keepalive_probes"), "keepalive_probes has no effect with a user_timeout", `leave it out, or set user_timeout to "0s"`)
	}
}
