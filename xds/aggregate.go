package xds

import (
	"fmt"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	aggregatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/aggregate/v3"

	"gatehouse.internal/xds/internal/guard"
)

// maxChildren bounds the clusters that an aggregate cluster names.
const maxChildren = 128

// aggregate reads a cluster of the extension envoy.clusters.aggregate.
func (r *clusterReader) aggregate(m *clusterv3.Cluster) error {
	const path = "cluster_type.typed_config"
	var c aggregatev3.ClusterConfig
	if err := guard.Unmarshal(m.GetClusterType().GetTypedConfig().GetValue(), &c); err != nil {
		return fmt.Errorf("%s: not a ClusterConfig: %w", path, err)
	}
	switch n := len(c.GetClusters()); {
	case n == 0:
		return fmt.Errorf("%s.clusters: empty: want at least one cluster", path)
	case n > maxChildren:
		r.refuse("%s.clusters: %d, more than %d", path, n, maxChildren)
		return nil
	}
	for i, name := range c.GetClusters() {
		if name == "" {
			return fmt.Errorf("%s.clusters[%d]: empty", path, i)
		}
	}
	r.c.Aggregate = c.GetClusters()
	return nil
}
