package admin

import (
	"gatehouse.internal/cmd/agent/internal/node"
	"gatehouse.internal/forwarder"
)

// The shapes of /listeners: see shapes.go.

type listenersJSON struct {
	ListenerStatuses []listenerJSON `json:"listener_statuses"`
}

type listenerJSON struct {
	Name         string              `json:"name"`
	LocalAddress *addressJSON        `json:"local_address,omitempty"`
	Gatehouse    listenerDetailsJSON `json:"gatehouse"`
}

type listenerDetailsJSON struct {
	Origin        string            `json:"origin"`
	Unsupported   string            `json:"unsupported,omitempty"`
	NoBind        bool              `json:"no_bind,omitempty"` // bind_to_port is false
	Chains        []chainJSON       `json:"filter_chains,omitempty"`
	Cluster       string            `json:"cluster"`
	Weighted      []weightJSON      `json:"weighted_clusters,omitempty"` // as TcpProxy.weighted_clusters
	Selector      string            `json:"selector,omitempty"`
	Draining      bool              `json:"draining,omitempty"`
	CxActive      int64             `json:"cx_active"`
	CxTotal       uint64            `json:"cx_total"`
	AcceptErrors  uint64            `json:"accept_errors"`
	Retries       uint64            `json:"retries"`
	BytesReceived uint64            `json:"bytes_received"`
	BytesSent     uint64            `json:"bytes_sent"`
	Ended         map[string]uint64 `json:"ended"` // by response flag
	TLS           *tlsJSON          `json:"tls,omitempty"`
}

type chainJSON struct {
	Name        string       `json:"name"`
	Unsupported string       `json:"unsupported,omitempty"` // it refuses its connections
	Clusters    []weightJSON `json:"clusters,omitempty"`
	TLS         *tlsJSON     `json:"tls,omitempty"`
}

type weightJSON struct {
	Name   string `json:"name"`
	Weight uint32 `json:"weight"`
}

func listeners(st node.Status) listenersJSON {
	out := listenersJSON{ListenerStatuses: make([]listenerJSON, 0, len(st.Listeners))}
	for _, l := range st.Listeners {
		lj := listenerJSON{
			Name: l.Name,
			Gatehouse: listenerDetailsJSON{
				Origin: l.Origin, Unsupported: l.Unsupported, NoBind: l.NoBind, Cluster: l.Cluster, Selector: l.Selector, Draining: l.Draining,
				CxActive: l.Stats.Active, CxTotal: l.Stats.Accepted, AcceptErrors: l.Stats.AcceptErrors,
				Retries: l.Stats.Retries, BytesReceived: l.Stats.BytesIn, BytesSent: l.Stats.BytesOut,
				Ended: make(map[string]uint64), TLS: tlsStatus(l.TLS),
			},
		}
		if l.Address.IsValid() {
			lj.LocalAddress = new(address(l.Address))
		}
		for _, w := range l.Weighted {
			lj.Gatehouse.Weighted = append(lj.Gatehouse.Weighted, weightJSON(w))
		}
		for _, c := range l.Chains {
			cj := chainJSON{Name: c.Name, Unsupported: c.Unsupported, TLS: tlsStatus(c.TLS)}
			for _, w := range c.Clusters {
				cj.Clusters = append(cj.Clusters, weightJSON(w))
			}
			lj.Gatehouse.Chains = append(lj.Gatehouse.Chains, cj)
		}
		for f, n := range l.Stats.Flags {
			if n > 0 {
				lj.Gatehouse.Ended[forwarder.Flag(f).String()] = n
			}
		}
		out.ListenerStatuses = append(out.ListenerStatuses, lj)
	}
	return out
}
