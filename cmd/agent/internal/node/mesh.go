package node

import (
	"crypto/tls"
	"errors"
	"fmt"
	"strings"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/discovery/consul"
	"gatehouse.internal/lbcore"
)

// upstreamMesh is who dials a cluster's endpoints in Consul's service mesh.
type upstreamMesh struct {
	*consul.Identity
	client *consul.MeshClient
}

var errNoConsul = errors.New("connect without a client of Consul")

// upstreamConnect returns who dials the endpoints of a cluster, nil if it is not of a
// mesh.
func (n *Node) upstreamConnect(cfg *config.Cluster) (*upstreamMesh, error) {
	if !cfg.Connect.Enabled {
		return nil, nil
	}
	if n.cfg.Mesh == nil {
		return nil, fmt.Errorf("cluster %q: %w", cfg.Name, errNoConsul)
	}
	var queries []consul.Query
	for _, d := range cfg.Discovery {
		queries = append(queries, consul.Query{Service: d.Service, Datacenter: d.Datacenter, Namespace: d.Namespace, Partition: d.Partition})
	}
	id := n.cfg.Mesh.Identity(cfg.Connect.Service)
	return &upstreamMesh{id, id.Client(queries...)}, nil
}

// config is the forwarder.Dial's TLS.
func (m *upstreamMesh) config(*lbcore.Member) (*tls.Config, error) { return m.client.Config() }

// changed returns a channel that is closed when there may be another certificate;
// nil where there is no mesh.
func (m *upstreamMesh) changed() <-chan struct{} {
	if m == nil {
		return nil
	}
	return m.Changed()
}

// waiting returns what keeps a cluster from being warm, in one line, or nothing: it
// has had no certificate yet.
func (m *upstreamMesh) waiting() string {
	if m == nil {
		return ""
	}
	return uncertified(m.Identity)
}

// uncertified says in one line why an identity has had no certificate yet, or nothing if
// it has.
func uncertified(id *consul.Identity) string {
	err := id.Waiting()
	if err == nil {
		return ""
	}
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}
