package node

import (
	"io/fs"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/forwarder"
)

// keepalive returns what k asks for. In k 0 turns things off, and forwarder's
// zero values are defaults.
func keepalive(k config.TCPKeepalive) forwarder.Keepalive {
	if k == (config.TCPKeepalive{}) {
		return forwarder.Keepalive{}
	}
	fk := forwarder.Keepalive{Time: k.KeepaliveTime, Interval: k.KeepaliveInterval, Probes: k.KeepaliveProbes, UserTimeout: k.UserTimeout}
	if fk.Time == 0 {
		fk.Time = -1
	}
	if fk.UserTimeout == 0 {
		fk.UserTimeout = -1
	}
	return fk
}

// setSockets puts into d how cfg wants the sockets to endpoints set up.
func setSockets(d *forwarder.Dial, cfg *config.Cluster) {
	for _, a := range cfg.SourceAddress {
		if a.Is4() {
			d.Source4 = a
		} else {
			d.Source6 = a
		}
	}
	d.Mark, d.Keepalive = cfg.SocketMark, keepalive(cfg.TCPKeepalive)
	switch cfg.HappyEyeballs.FirstAddressFamilyVersion {
	case config.FamilyV4:
		d.FirstFamily = 4
	case config.FamilyV6:
		d.FirstFamily = 6
	}
	d.FirstFamilyCount = cfg.HappyEyeballs.FirstAddressFamilyCount
}

// socket is how cfg wants its own socket set up.
func socket(cfg config.Listener) forwarder.Socket {
	return forwarder.Socket{Backlog: cfg.TCPBacklogSize, Mode: fs.FileMode(cfg.Unix.Mode), User: cfg.Unix.User, Group: cfg.Unix.Group}
}
