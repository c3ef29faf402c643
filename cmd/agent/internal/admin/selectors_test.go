package admin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"testing"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/cmd/agent/internal/node"
	"gatehouse.internal/lbcore"
)

// Whoever reads /selectors has the model that the node gave.
func TestSelectorsIsTheModel(t *testing.T) {
	m := node.Model{
		Cluster:   "web",
		Selectors: []config.Selector{{Name: "s", Policy: "ring_hash", MinimumRingSize: 1, MaximumRingSize: 2, HashFunction: "ketama", HashBalanceFactor: 120}, {Name: "t", Policy: "least_weight", ChoiceCount: 3}},
		Spread:    lbcore.Spread{PanicThreshold: 5, LocalityWeighted: true, PreferLocal: true, Local: lbcore.Locality{Region: "eu"}, IgnoreNew: true},
		Policy:    lbcore.SetPolicy{Overprovisioning: 120, WeightedHealth: true},
		Endpoints: []lbcore.Endpoint{
			{Addr: addr("192.0.2.1:80"), Weight: 3, Priority: 2, Locality: lbcore.Locality{Zone: "z"}, LocalityWeight: 4, HashKey: "k"},
			{Addr: addr("unix:///run/x.sock"), Status: lbcore.StatusUnhealthy}, {Addr: addr("192.0.2.3:80"), Status: lbcore.StatusDegraded},
		},
		AdaptiveWeights: map[lbcore.Addr]float64{addr("192.0.2.1:80"): 1.5},
	}
	all := node.Model{
		Cluster: "all", Spread: lbcore.Spread{PanicThreshold: 40}, AdaptiveWeights: map[lbcore.Addr]float64{},
		Aggregate: []node.Model{m, {Cluster: "empty", Selectors: m.Selectors[1:], AdaptiveWeights: map[lbcore.Addr]float64{}}},
	}
	none := node.Model{Cluster: "nothing", AdaptiveWeights: map[lbcore.Addr]float64{}, Aggregate: []node.Model{}}
	h := Handler(Config{Metrics: http.NotFoundHandler(), Model: func(cluster string) (node.Model, error) {
		switch cluster {
		case "web":
			return m, nil
		case "all":
			return all, nil
		case "nothing":
			return none, nil
		}
		return node.Model{}, fmt.Errorf("no: %w", node.ErrUnknown)
	}})
	w := ask(h, "GET", "/selectors?cluster=web")
	golden(t, "selectors.json", w.Body.String())
	var s Selectors
	for _, want := range []node.Model{none, all, m} {
		s = Selectors{}
		if err := json.Unmarshal(ask(h, "GET", "/selectors?cluster="+want.Cluster).Body.Bytes(), &s); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Model(); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, %v, want %+v", got, err, want)
		}
	}
	bare := Selectors{Cluster: "all", IsAggregate: true, Aggregate: []Selectors{{Cluster: "part"}}}
	if m, err := bare.Model(); err == nil {
		t.Errorf("a part without a selector: %+v", m)
	}
	for path, want := range map[string]int{"/selectors": 400, "/selectors?cluster=none": 404} {
		if w := ask(h, "GET", path); w.Code != want {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	s.Endpoints[0].Address = "nowhere"
	if _, err := s.Model(); err == nil {
		t.Error("no address is an endpoint")
	}
}
