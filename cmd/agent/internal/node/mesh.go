package node

import (
	"crypto/tls"
	"errors"
	"fmt"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/discovery/consul"
	"gatehouse.internal/forwarder"
	"gatehouse.internal/lbcore"
)

// upstreamMesh is who dials a cluster's endpoints in Consul's service mesh.
type upstreamMesh struct {
	*consul.Identity
	client *consul.MeshClient
}

var errNoConsul = errors.New("connect without a client of Consul")

// upstreamConnect returns who dials the endpoints of a cluster, and the
// forwarder.Dial's TLS; nil and nil if the cluster is not of a mesh.
func (n *Node) upstreamConnect(cfg *config.Cluster) (*upstreamMesh, func(*lbcore.Member) (*tls.Config, error), error) {
	if !cfg.Connect.Enabled {
		return nil, nil, nil
	}
	if n.cfg.Mesh == nil {
		return nil, nil, fmt.Errorf("cluster %q: %w", cfg.Name, errNoConsul)
	}
	var queries []consul.Query
	for _, d := range cfg.Discovery {
		queries = append(queries, consul.Query{Service: d.Service, Datacenter: d.Datacenter, Namespace: d.Namespace, Partition: d.Partition})
	}
	id := n.cfg.Mesh.Identity(cfg.Connect.Service)
	m := &upstreamMesh{id, id.Client(queries...)}
	return m, func(*lbcore.Member) (*tls.Config, error) { return m.client.Config() }, nil
}

// refuse returns why there can be no connections, or nil. It may be called from
// anywhere.
func (m *upstreamMesh) refuse() error {
	if m == nil {
		return nil
	}
	if err := m.Usable(); err != nil {
		return &forwarder.Refusal{Flag: forwarder.FlagUF, Reason: err.Error()}
	}
	return nil
}

// changed returns a channel that is closed when refuse may say something else; nil
// where there is no mesh.
func (m *upstreamMesh) changed() <-chan struct{} {
	if m == nil {
		return nil
	}
	return m.Changed()
}

// waiting returns what keeps a cluster from being warm, in one line, or nothing: it
// has had no certificate yet.
func (m *upstreamMesh) waiting() string {
	if m == nil || m.Status().Generation > 0 {
		return ""
	}
	return m.Usable().Error()
}
