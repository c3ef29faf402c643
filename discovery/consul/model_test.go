package consul

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/hashicorp/consul/api"

	"gatehouse.internal/lbcore"
)

// catalog is a model of Consul's catalog, with the index of each query as the
// state store of the real one works it out.
type catalog struct {
	index uint64 // of the last write
	epoch uint64 // of the store, which a restored snapshot replaces

	nodes     map[string]*modelNode
	instances map[instanceKey]*modelInstance

	nodesIndex, servicesIndex, checksIndex uint64
	serviceIndex                           map[string]uint64
	extinctIndex                           uint64            // of the last service that lost its last instance
	statusIndex                            map[string]uint64 // what a wait for checks of one status waits for
}

type instanceKey struct{ node, id string }

type modelNode struct {
	address string
	meta    map[string]string
	checks  map[string]string // status by check id
}

type modelInstance struct {
	service, address string
	port             int
	tags             []string
	meta             map[string]string
	weights          api.AgentWeights
	kind             api.ServiceKind
	checks           map[string]string
}

func newCatalog() *catalog {
	return &catalog{
		index: 10, nodes: map[string]*modelNode{}, instances: map[instanceKey]*modelInstance{},
		serviceIndex: map[string]uint64{}, statusIndex: map[string]uint64{},
	}
}

// clone copies everything that a write changes in place.
func (c *catalog) clone() *catalog {
	d := *c
	d.nodes, d.instances = map[string]*modelNode{}, map[instanceKey]*modelInstance{}
	for k, n := range c.nodes {
		n := *n
		n.checks = maps.Clone(n.checks)
		d.nodes[k] = &n
	}
	for k, in := range c.instances {
		in := *in
		in.checks = maps.Clone(in.checks)
		d.instances[k] = &in
	}
	d.serviceIndex, d.statusIndex = maps.Clone(c.serviceIndex), maps.Clone(c.statusIndex)
	return &d
}

// restore makes c what old was, as a restored snapshot does: all indexes go
// back, and all waits end.
func (c *catalog) restore(old *catalog) {
	epoch := c.epoch + 1
	*c = *old.clone()
	c.epoch = epoch
}

// node registers a node, or changes its address.
func (c *catalog) node(name, address string) {
	c.index++
	n := c.nodes[name]
	if n == nil {
		n = &modelNode{checks: map[string]string{"serfHealth": api.HealthPassing}}
		c.nodes[name] = n
		c.checksIndex = c.index
	}
	n.address = address
	c.nodesIndex = c.index
	c.touchNode(name)
}

// touchNode advances the indexes of what is on a node.
func (c *catalog) touchNode(name string) {
	for k, in := range c.instances {
		if k.node == name {
			c.serviceIndex[in.service] = c.index
		}
	}
}

// register puts an instance on a node, which is there then.
func (c *catalog) register(node, id string, in modelInstance) {
	if c.nodes[node] == nil {
		c.node(node, "198.51.100.1")
	}
	c.index++
	if in.checks == nil {
		in.checks = map[string]string{"service:" + id: api.HealthPassing}
	}
	c.servicesIndex, c.checksIndex = c.index, c.index
	for _, status := range in.checks {
		c.statusIndex[status] = c.index
	}
	if old := c.instances[instanceKey{node, id}]; old != nil && old.service == in.service {
		for _, status := range old.checks {
			c.statusIndex[status] = c.index
		}
	} else {
		c.drop(instanceKey{node, id})
	}
	c.instances[instanceKey{node, id}] = &in
	c.serviceIndex[in.service] = c.index
}

// drop removes an instance without a word about indexes other than of its
// service and checks.
func (c *catalog) drop(k instanceKey) {
	old := c.instances[k]
	if old == nil {
		return
	}
	delete(c.instances, k)
	for _, status := range old.checks {
		c.statusIndex[status] = c.index
	}
	c.serviceIndex[old.service] = c.index
	for _, in := range c.instances {
		if in.service == old.service {
			return
		}
	}
	delete(c.serviceIndex, old.service)
	c.extinctIndex = c.index
}

func (c *catalog) deregister(node, id string) {
	c.index++
	c.servicesIndex, c.checksIndex = c.index, c.index
	c.drop(instanceKey{node, id})
}

// forget removes a node and all that is on it.
func (c *catalog) forget(node string) {
	for _, k := range c.keys("") {
		if k.node == node {
			c.deregister(k.node, k.id)
		}
	}
	c.index++
	for _, status := range c.nodes[node].checks {
		c.statusIndex[status] = c.index
	}
	delete(c.nodes, node)
	c.nodesIndex, c.checksIndex = c.index, c.index
}

// check sets a check of an instance; no status removes it, the same status
// stands for another output.
func (c *catalog) check(node, id, check, status string) {
	in := c.instances[instanceKey{node, id}]
	c.setCheck(in.checks, check, status)
	c.serviceIndex[in.service] = c.index
}

// nodeCheck sets a check of a node, which counts for all that is on it.
func (c *catalog) nodeCheck(node, check, status string) {
	c.setCheck(c.nodes[node].checks, check, status)
	c.touchNode(node)
}

func (c *catalog) setCheck(checks map[string]string, check, status string) {
	c.index++
	c.checksIndex = c.index
	if old, ok := checks[check]; ok {
		c.statusIndex[old] = c.index
	}
	if status == "" {
		delete(checks, check)
		return
	}
	checks[check] = status
	c.statusIndex[status] = c.index
}

// keys are the instances of a service, or of all, in the order of answers.
func (c *catalog) keys(service string) (list []instanceKey) {
	for k, in := range c.instances {
		if service == "" || in.service == service {
			list = append(list, k)
		}
	}
	slices.SortFunc(list, func(a, b instanceKey) int {
		return cmp.Or(cmp.Compare(a.node, b.node), cmp.Compare(a.id, b.id))
	})
	return list
}

// view is the answer to a query: its index, what its wait waits for, and what
// it says.
type view struct {
	index, watched uint64
	value          any
	epoch          uint64
}

// health is /v1/health/service.
func (c *catalog) health(service string) view {
	list := []*api.ServiceEntry{}
	for _, k := range c.keys(service) {
		list = append(list, c.entry(k, c.instances[k]))
	}
	index, ok := c.serviceIndex[service]
	if !ok {
		if index = c.extinctIndex; index == 0 {
			index = max(c.nodesIndex, c.servicesIndex, c.checksIndex)
		}
	}
	return view{index: index, watched: index, value: list}
}

func (c *catalog) entry(k instanceKey, in *modelInstance) *api.ServiceEntry {
	n := c.nodes[k.node]
	e := &api.ServiceEntry{
		Node: &api.Node{Node: k.node, Address: n.address, Datacenter: "dc1", Meta: n.meta},
		Service: &api.AgentService{
			Kind: in.kind, ID: k.id, Service: in.service, Address: in.address, Port: in.port,
			Tags: in.tags, Meta: in.meta, Weights: in.weights,
		},
	}
	for _, id := range slices.Sorted(maps.Keys(n.checks)) {
		e.Checks = append(e.Checks, &api.HealthCheck{Node: k.node, CheckID: id, Status: n.checks[id]})
	}
	for _, id := range slices.Sorted(maps.Keys(in.checks)) {
		e.Checks = append(e.Checks, &api.HealthCheck{
			Node: k.node, CheckID: id, Status: in.checks[id], ServiceID: k.id, ServiceName: in.service,
		})
	}
	return e
}

// state is /v1/health/state. Its index is that of all checks, its wait ends
// with a change of those with this status.
func (c *catalog) state(status string) view {
	list := api.HealthChecks{}
	for _, name := range slices.Sorted(maps.Keys(c.nodes)) {
		for id, s := range c.nodes[name].checks {
			if s == status {
				list = append(list, &api.HealthCheck{Node: name, CheckID: id, Status: s})
			}
		}
	}
	for _, k := range c.keys("") {
		in := c.instances[k]
		for id, s := range in.checks {
			if s == status {
				list = append(list, &api.HealthCheck{Node: k.node, CheckID: id, Status: s, ServiceID: k.id, ServiceName: in.service})
			}
		}
	}
	rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return view{index: c.checksIndex, watched: c.statusIndex[status], value: list}
}

// services is /v1/catalog/services, with those that have metaKey if one is
// given.
func (c *catalog) services(metaKey string) view {
	tags := map[string][]string{}
	for _, k := range c.keys("") {
		in := c.instances[k]
		if _, ok := in.meta[metaKey]; metaKey != "" && !ok {
			continue
		}
		list := tags[in.service]
		if list == nil {
			list = []string{}
		}
		for _, tag := range in.tags {
			if !slices.Contains(list, tag) {
				list = append(list, tag)
			}
		}
		rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		tags[in.service] = list
	}
	return view{index: c.servicesIndex, watched: c.servicesIndex, value: tags}
}

// allNodes is /v1/catalog/nodes.
func (c *catalog) allNodes() view {
	list := []*api.Node{}
	for _, name := range slices.Sorted(maps.Keys(c.nodes)) {
		list = append(list, &api.Node{Node: name, Address: c.nodes[name].address, Datacenter: "dc1", Meta: c.nodes[name].meta})
	}
	return view{index: c.nodesIndex, watched: c.nodesIndex, value: list}
}

// service is /v1/catalog/service.
func (c *catalog) service(name, metaKey string) view {
	list := []*api.CatalogService{}
	for _, k := range c.keys(name) {
		in := c.instances[k]
		if _, ok := in.meta[metaKey]; metaKey != "" && !ok {
			continue
		}
		list = append(list, &api.CatalogService{
			Node: k.node, Address: c.nodes[k.node].address, ServiceID: k.id, ServiceName: name,
			ServiceAddress: in.address, ServicePort: in.port, ServiceTags: in.tags, ServiceMeta: in.meta,
		})
	}
	return view{index: c.serviceIndex[name], watched: c.serviceIndex[name], value: list}
}

// execute is /v1/query/<service>/execute: only what is not critical, shuffled.
func (c *catalog) execute(service string) view {
	resp := api.PreparedQueryExecuteResponse{Service: service, Nodes: []api.ServiceEntry{}}
	for _, e := range c.health(service).value.([]*api.ServiceEntry) {
		if worst(e.Checks) < critical {
			resp.Nodes = append(resp.Nodes, *e)
		}
	}
	rand.Shuffle(len(resp.Nodes), func(i, j int) { resp.Nodes[i], resp.Nodes[j] = resp.Nodes[j], resp.Nodes[i] })
	return view{index: 1, watched: 1, value: resp}
}

// endpoint is what the nth instance that add registers comes to while it
// passes its checks.
func endpoint(n int) lbcore.Endpoint {
	addr, err := lbcore.ParseAddr(fmt.Sprintf("192.0.2.%d:80", n))
	if err != nil {
		panic(err)
	}
	return lbcore.Endpoint{Addr: addr, Weight: 1, Locality: lbcore.Locality{Region: "dc1"}, Status: lbcore.StatusHealthy}
}

// add registers the nth instance of a service, on the node n<n> as <service>-<n>.
func (c *catalog) add(service string, ns ...int) {
	for _, n := range ns {
		node, id := place(service, n)
		c.register(node, id, modelInstance{
			service: service, address: fmt.Sprintf("192.0.2.%d", n), port: 80,
			weights: api.AgentWeights{Passing: 1, Warning: 1},
		})
	}
}

func (c *catalog) remove(service string, ns ...int) {
	for _, n := range ns {
		c.deregister(place(service, n))
	}
}

// status sets the check of the nth instance.
func (c *catalog) status(service string, n int, status string) {
	node, id := place(service, n)
	c.check(node, id, "service:"+id, status)
}

// change registers the nth instance anew, changed.
func (c *catalog) change(service string, n int, edit func(*modelInstance)) {
	node, id := place(service, n)
	in := *c.instances[instanceKey{node, id}]
	edit(&in)
	c.register(node, id, in)
}

func place(service string, n int) (node, id string) {
	return fmt.Sprintf("n%d", n), fmt.Sprintf("%s-%d", service, n)
}
