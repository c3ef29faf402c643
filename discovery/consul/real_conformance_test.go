package consul_test

import (
	"fmt"
	"testing"

	"github.com/hashicorp/consul/api"
	"go.uber.org/goleak"

	"gatehouse.internal/discovery"
	"gatehouse.internal/discovery/consul"
	"gatehouse.internal/discovery/consul/consultest"
	"gatehouse.internal/discovery/discoverytest"
	"gatehouse.internal/lbcore"
)

// The conformance suite. Its worlds are services of one server, which is killed
// to break them.
func TestRealConformance(t *testing.T) {
	s := consultest.Start(t, consultest.Options{})
	worlds := 0
	discoverytest.Run(t, discoverytest.Harness{
		New: func(t *testing.T) (discovery.Source, discoverytest.World) {
			if !s.Running() { // the last world was left broken
				s.Restart()
			}
			worlds++
			w := &world{s: s, name: fmt.Sprintf("world-%d", worlds)}
			w.set(discoverytest.First())
			src, err := of(t, s).Service(consul.Query{Service: w.name}, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			return src, discoverytest.World{Set: w.set, Break: s.Kill, Heal: w.heal}
		},
		Ignore: []goleak.Option{
			consultest.Ignore(),
			// Connections that are kept for the next request.
			goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
			goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"),
		},
	})
}

// world is a service and what it should list.
type world struct {
	s    *consultest.Server
	name string
	last []consultest.Instance
}

func (w *world) set(eps []lbcore.Endpoint) {
	w.last = nil
	for i, e := range eps {
		addr := e.Addr.AddrPort()
		w.last = append(w.last, consultest.Instance{
			Name: w.name, ID: fmt.Sprintf("%s-%03d", w.name, i), Node: w.name,
			Address: addr.Addr().String(), Port: int(addr.Port()), Weights: api.AgentWeights{Passing: int(e.Weight), Warning: 1},
		})
	}
	if w.s.Running() {
		w.s.Replace(w.name, w.last...)
	}
}

func (w *world) heal() {
	w.s.Restart()
	w.s.Replace(w.name, w.last...)
}
