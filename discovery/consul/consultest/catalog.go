package consultest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/hashicorp/consul/api"
)

// Instance is an instance of a service.
type Instance struct {
	// Name is the service's name. ID is the instance's, once a node; empty
	// means Name.
	Name, ID string
	// Address and Port are the service's own; an empty Address means the
	// node's.
	Address string
	Port    int
	// SocketPath, in place of both, is the path of a unix socket.
	SocketPath      string
	TaggedAddresses map[string]api.ServiceAddress
	Tags            []string
	Meta            map[string]string
	// Weights, if zero, are Consul's default of 1 and 1.
	Weights api.AgentWeights
	// Status is that of the instance's one check: api.HealthPassing (which
	// empty means too), HealthWarning or HealthCritical.
	Status string

	// Node is the node's name in the catalog, NodeAddress its address (empty
	// means 127.0.0.1) and NodeMeta its meta data. Only for RegisterMany and
	// Replace; Node must not be an agent's. Empty means "synthetic".
	Node, NodeAddress string
	NodeMeta          map[string]string
}

func (i Instance) complete() Instance {
	i.ID = cmp.Or(i.ID, i.Name)
	i.Weights = cmp.Or(i.Weights, api.AgentWeights{Passing: 1, Warning: 1})
	i.Status = cmp.Or(i.Status, api.HealthPassing)
	i.Node = cmp.Or(i.Node, "synthetic")
	i.NodeAddress = cmp.Or(i.NodeAddress, "127.0.0.1")
	return i
}

// shownAs reports whether the catalog's entry is the instance's.
func (i Instance) shownAs(s *api.AgentService) bool {
	for name, addr := range i.TaggedAddresses { // the agent adds some
		if s.TaggedAddresses[name] != addr {
			return false
		}
	}
	return s.Service == i.Name && s.Address == i.Address && s.Port == i.Port && s.SocketPath == i.SocketPath &&
		slices.Equal(s.Tags, i.Tags) && maps.Equal(s.Meta, i.Meta) && s.Weights == i.Weights
}

// Many returns n instances of a service, 100 on each node, with addresses from
// 127.1.0.1 on and port 80.
func Many(name string, n int) []Instance {
	is := make([]Instance, n)
	for k := range is {
		is[k] = Instance{
			Name: name, ID: fmt.Sprintf("%s-%d", name, k), Node: fmt.Sprintf("%s-node-%d", name, k/100),
			Address: fmt.Sprintf("127.1.%d.%d", k/250, k%250+1), Port: 80,
		}
	}
	return is
}

// Register registers an instance with the agent, or changes one, with a check
// that only SetStatus changes, and waits until the catalog shows it.
func (s *Server) Register(i Instance) {
	s.t.Helper()
	i = i.complete()
	reg := &api.AgentServiceRegistration{
		Name: i.Name, ID: i.ID, Address: i.Address, Port: i.Port, SocketPath: i.SocketPath,
		TaggedAddresses: i.TaggedAddresses, Tags: i.Tags, Meta: i.Meta, Weights: &i.Weights,
		Check: &api.AgentServiceCheck{CheckID: checkID(i.ID), TTL: "24h", Status: i.Status},
	}
	err := s.API(ManagementToken).Agent().ServiceRegisterOpts(reg, api.ServiceRegisterOpts{}.WithContext(s.t.Context()))
	s.must("register "+i.ID, err)
	s.await("the catalog shows "+i.ID, func(c *api.Client, q *api.QueryOptions) error {
		node, _, err := c.Catalog().Node(s.Node(), q)
		if err != nil {
			return err
		}
		if node == nil || node.Services[i.ID] == nil || !i.shownAs(node.Services[i.ID]) {
			return errors.New("it isn't or is another")
		}
		return nil
	})
	// Only what was set this way is remembered over a restart.
	s.SetStatus(i.ID, i.Status)
}

// SetStatus sets the status of an instance that Register has registered, one
// of api.HealthPassing, HealthWarning and HealthCritical, and waits until the
// catalog shows it.
func (s *Server) SetStatus(id, status string) {
	s.t.Helper()
	s.must("set the status of "+id, s.API(ManagementToken).Agent().UpdateTTLOpts(checkID(id), "set by a test", status, s.query()))
	s.awaitCheck(checkID(id), status)
}

// Deregister takes an instance back from the agent and waits until it is gone
// from the catalog.
func (s *Server) Deregister(id string) {
	s.t.Helper()
	s.must("deregister "+id, s.API(ManagementToken).Agent().ServiceDeregisterOpts(id, s.query()))
	s.await(id+" is gone from the catalog", func(c *api.Client, q *api.QueryOptions) error {
		node, _, err := c.Catalog().Node(s.Node(), q)
		if err != nil {
			return err
		}
		if node != nil && node.Services[id] != nil {
			return errors.New("it is there")
		}
		return nil
	})
}

// ServiceMaintenance puts an instance into maintenance or out of it, and waits
// until the catalog shows it.
func (s *Server) ServiceMaintenance(id string, on bool) {
	s.t.Helper()
	agent, status := s.API(ManagementToken).Agent(), ""
	err := error(nil)
	if on {
		status = api.HealthCritical
		err = agent.EnableServiceMaintenanceOpts(id, "set by a test", s.query())
	} else {
		err = agent.DisableServiceMaintenanceOpts(id, s.query())
	}
	s.must("change the maintenance of "+id, err)
	s.awaitCheck(api.ServiceMaintPrefix+id, status)
}

// NodeMaintenance puts the agent's node into maintenance or out of it, and
// waits until the catalog shows it.
func (s *Server) NodeMaintenance(on bool) {
	s.t.Helper()
	agent, status := s.API(ManagementToken).Agent(), ""
	err := error(nil)
	if on {
		status = api.HealthCritical
		err = agent.EnableNodeMaintenance("set by a test")
	} else {
		err = agent.DisableNodeMaintenance()
	}
	s.must("change the node's maintenance", err)
	s.awaitCheck(api.NodeMaint, status)
}

func checkID(id string) string { return "service:" + id }

// awaitCheck waits until the catalog shows a check of the agent's node with a
// status; empty means no such check.
func (s *Server) awaitCheck(id, want string) {
	s.t.Helper()
	s.await(fmt.Sprintf("check %s is %q", id, want), func(c *api.Client, q *api.QueryOptions) error {
		checks, _, err := c.Health().Node(s.Node(), q)
		if err != nil {
			return err
		}
		status := ""
		for _, check := range checks {
			if check.CheckID == id {
				status = check.Status
			}
		}
		if status != want {
			return fmt.Errorf("it is %q", status)
		}
		return nil
	})
}

// RegisterMany writes instances into the catalog, new or changed, and returns
// when they are there. Up to 42 become visible at
// once, more in steps of that many.
func (s *Server) RegisterMany(is ...Instance) {
	s.t.Helper()
	var writes []api.TxnOps
	for _, i := range is {
		writes = append(writes, i.complete().set())
	}
	s.commit(writes)
}

// Replace makes instances all that the catalog has of a service: it takes out
// the others, then writes these as RegisterMany does. With no instance the
// service is gone. The service must have no instance of an agent's.
func (s *Server) Replace(name string, is ...Instance) {
	s.t.Helper()
	old, _, err := s.API(ManagementToken).Catalog().Service(name, "", s.query())
	s.must("list "+name, err)
	var writes []api.TxnOps
	for _, o := range old {
		stays := func(i Instance) bool { i = i.complete(); return i.Node == o.Node && i.ID == o.ServiceID }
		if !slices.ContainsFunc(is, stays) {
			writes = append(writes, api.TxnOps{{Service: &api.ServiceTxnOp{Verb: api.ServiceDelete, Node: o.Node, Service: api.AgentService{ID: o.ServiceID, Service: name}}}})
		}
	}
	for _, i := range is {
		writes = append(writes, i.complete().set())
	}
	s.commit(writes)
}

// set returns the three operations that write an instance.
func (i Instance) set() api.TxnOps {
	return api.TxnOps{
		{Node: &api.NodeTxnOp{Verb: api.NodeSet, Node: api.Node{Node: i.Node, Address: i.NodeAddress, Meta: i.NodeMeta}}},
		{Service: &api.ServiceTxnOp{Verb: api.ServiceSet, Node: i.Node, Service: api.AgentService{
			ID: i.ID, Service: i.Name, Address: i.Address, Port: i.Port, SocketPath: i.SocketPath,
			TaggedAddresses: i.TaggedAddresses, Tags: i.Tags, Meta: i.Meta, Weights: i.Weights,
		}}},
		{Check: &api.CheckTxnOp{Verb: api.CheckSet, Check: api.HealthCheck{
			Node: i.Node, CheckID: checkID(i.ID), Name: "set by a test", Status: i.Status, ServiceID: i.ID,
		}}},
	}
}

// commit runs writes in transactions as large as Consul takes them. It never
// cuts a write in two.
func (s *Server) commit(writes []api.TxnOps) {
	s.t.Helper()
	const most = 128
	var ops api.TxnOps
	for k, w := range writes {
		ops = append(ops, w...)
		if k+1 < len(writes) && len(ops)+len(writes[k+1]) <= most {
			continue
		}
		ok, resp, _, err := s.API(ManagementToken).Txn().Txn(ops, s.query())
		s.must("write to the catalog", err)
		if !ok {
			s.t.Fatalf("%s refuses a transaction: %s", s.Node(), resp.Errors[0].What)
		}
		ops = nil
	}
}
