package config

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Connect is in whose name the endpoints of a cluster are dialled in Consul's service
// mesh: TLS is by certificates that Consul's agent gives, which stay in memory, and names
// services by their SPIFFE ids. All of Discovery then ask for the mesh
// (Discovery.Connect). It takes the place of a tls block. The ACL token needs
// service:write for Service. A handshake is a part of the connect, which ConnectTimeout
// of the cluster bounds.
type Connect struct {
	// Enabled says that there is such a block.
	Enabled bool
	// Service is the name of the service in the catalog.
	Service string `hcl:"service" required:"true"`
}

// DownstreamConnect is who takes the connections of a listener in Consul's service mesh:
// TLS with clients of the mesh ends there, by certificates that Consul's agent gives,
// which stay in memory, and those get in that the intentions of Service let connect. It
// takes the place of a tls block. The ACL token needs service:write for Service.
type DownstreamConnect struct {
	// Enabled says that there is such a block.
	Enabled bool
	// Service is the name of the service in the catalog.
	Service string `hcl:"service" required:"true"`
	// HandshakeTimeout is how long a client's handshake may take; that its intentions
	// are asked for comes after it. Default 15s, from 1ms to 1h.
	// Source: FilterChain.transport_socket_connect_timeout.
	HandshakeTimeout time.Duration `hcl:"handshake_timeout" default:"15s" range:"1ms..1h"`
	// MaxHandshakes is how many handshakes may be in progress at once; connections
	// over it are reset. Default 1024, from 1 to 1048576.
	MaxHandshakes int `hcl:"max_handshakes" default:"1024" range:"1..1048576"`
}

// finishConnect notes which connect blocks there are.
func (d *decoder) finishConnect() {
	for i := range d.cfg.Clusters {
		c := &d.cfg.Clusters[i]
		_, c.Connect.Enabled = d.at[path("cluster").sub(c.Name, "connect")]
	}
	for i := range d.cfg.Listeners {
		l := &d.cfg.Listeners[i]
		_, l.Connect.Enabled = d.at[path("listener").sub(l.Name, "connect")]
	}
}

// checkConnect finds the mistakes in a cluster of the mesh: nothing may ever reach its
// endpoints, or others in their place, in plain text.
func (d *decoder) checkConnect(c *Cluster) {
	p := path("cluster").sub(c.Name)
	at := p.sub("connect")
	mesh := 0
	for i, x := range c.Discovery {
		in := p.sub("discovery", strconv.Itoa(i))
		switch {
		case !d.good(in, "connect"):
			return
		case x.Connect && !c.Connect.Enabled && !d.incomplete:
			d.mistake(in, d.where(in, "connect"), "connect = true without a connect block in the cluster",
				`say in whose name the sidecars are dialled: connect { service = "..." }`)
			return
		case x.Connect:
			mesh++
		case c.Connect.Enabled:
			d.mistake(in, d.where(in), fmt.Sprintf("discovery %q without connect in a cluster with a connect block", x.Kind),
				`all endpoints of such a cluster are sidecars: discovery "consul" with connect = true`)
			return
		}
	}
	if !c.Connect.Enabled {
		return
	}
	d.checkConnectService(at, c.Connect.Service)
	if c.TLS.Enabled {
		d.mistake(p.sub("tls"), d.where(p.sub("tls")), "tls beside connect, which is a kind of it", "leave one of them out")
	}
	for i, h := range c.HealthChecks {
		in := p.sub("health_check", strconv.Itoa(i))
		if d.good(in) && (h.Kind != CheckTCP || len(h.Send) > 0 || len(h.Receive) > 0 || h.TLS.Enabled) {
			d.mistake(in, d.where(in), fmt.Sprintf("health_check %q can't be asked of a sidecar, which wants mTLS", h.Kind),
				`health_check "tcp" without send, receive and tls sees if it takes connections`)
		}
	}
}

// checkListenerConnect finds the mistakes in the connect block of a listener.
func (d *decoder) checkListenerConnect(l *Listener) {
	p := path("listener").sub(l.Name)
	if !l.Connect.Enabled {
		return
	}
	d.checkConnectService(p.sub("connect"), l.Connect.Service)
	if l.TLS.Enabled {
		d.mistake(p.sub("tls"), d.where(p.sub("tls")), "tls beside connect, which is a kind of it", "leave one of them out")
	}
}

func (d *decoder) checkConnectService(at path, service string) {
	if d.good(at, "service") && (service == "" || strings.Contains(service, "/")) {
		d.mistake(at.sub("service"), d.where(at, "service"), fmt.Sprintf("service: %q is no name of a service", service), "as it is in the catalog, without a slash")
	}
}
