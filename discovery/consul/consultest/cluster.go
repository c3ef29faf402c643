package consultest

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/hashicorp/consul/api"
)

// Cluster is some servers that share one catalog.
type Cluster struct {
	// Servers are the members, running or not, in the order of their start.
	Servers []*Server

	t testing.TB
}

// StartCluster starts n servers that differ in nothing but their names, and
// waits until all are ready. Options.Node, if set, gets a number added to it,
// from 0; Options.Join must be empty.
func StartCluster(t testing.TB, n int, o Options) *Cluster {
	t.Helper()
	c := &Cluster{t: t}
	for i := range n {
		one := o
		if o.Node != "" {
			one.Node = fmt.Sprintf("%s-%d", o.Node, i)
		}
		s := newServer(t, one, n, func() []*Server { return c.Servers })
		s.start(reservePorts)
		c.Servers = append(c.Servers, s)
	}
	for _, s := range c.Servers {
		s.AwaitReady()
	}
	return c
}

// Leader waits until the running servers agree on a leader that runs, and
// returns it.
func (c *Cluster) Leader() *Server {
	c.t.Helper()
	var leader *Server
	err := poll(c.t.Context(), nil, func(ctx context.Context) error {
		leader = nil
		for _, s := range c.Servers {
			if !s.Running() {
				continue
			}
			addr, err := s.API(ManagementToken).Status().LeaderWithQueryOptions(new(api.QueryOptions).WithContext(ctx))
			if err != nil {
				return err
			}
			i := slices.IndexFunc(c.Servers, func(s *Server) bool { return s.Running() && loopback(s.ports.server()) == addr })
			if i < 0 || leader != nil && leader != c.Servers[i] {
				return fmt.Errorf("%s says that the leader is %q", s.Node(), addr)
			}
			leader = c.Servers[i]
		}
		if leader == nil {
			return fmt.Errorf("no server runs")
		}
		return nil
	})
	if err != nil {
		c.t.Fatalf("the cluster has no leader: %v", err)
	}
	return leader
}

// Follower returns a running server that is not the leader.
func (c *Cluster) Follower() *Server {
	c.t.Helper()
	leader := c.Leader()
	i := slices.IndexFunc(c.Servers, func(s *Server) bool { return s.Running() && s != leader })
	if i < 0 {
		c.t.Fatal("no server of the cluster runs but the leader")
	}
	return c.Servers[i]
}
