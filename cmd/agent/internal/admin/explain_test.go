package admin

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"gatehouse.internal/cmd/agent/internal/node"
	"gatehouse.internal/lbcore"
)

func TestExplain(t *testing.T) {
	var asked []string
	h := Handler(Config{Metrics: http.NotFoundHandler(), Explain: func(cluster, selector string, k lbcore.Key) (node.Explanation, error) {
		asked = append(asked, fmt.Sprintf("%s/%s/%x/%t", cluster, selector, k.Hash, k.Set))
		switch cluster {
		case "none":
			return node.Explanation{}, fmt.Errorf("no: %w", node.ErrUnknown)
		case "sick":
			return node.Explanation{}, errors.New("no")
		case "nothing":
			return node.Explanation{Cluster: cluster, Aggregate: &node.AggregateExplanation{Clusters: []string{"away"}}}, nil
		case "all":
			return aggregateExplained(k), nil
		}
		x := node.Explanation{Cluster: cluster, Selector: "odd\x1b[2J", Policy: "ring_hash", Newest: 3, Others: 2, Weightless: 1}
		x.Generation, x.Key, x.Keyed, x.Want = 2, k, true, "degraded"
		x.Loads = []lbcore.TierLoad{{Endpoints: 9, Healthy: 30, Degraded: 70, Panic: true}}
		for v := lbcore.VerdictTaken; v <= lbcore.VerdictOverloaded; v++ {
			s := lbcore.Step{Verdict: v, Weight: 7, Walk: v < lbcore.VerdictSlowStart}
			if v.Candidate() {
				s.Order, s.Site = int(v)+1, lbcore.Site{Place: 5, Of: 9, Hash: 1 << 40}
			}
			x.Steps = append(x.Steps, s)
			x.Endpoints = append(x.Endpoints, node.ExplainedEndpoint{Addr: addr("192.0.2.1:80"), State: node.StateFailed, Why: "its tcp check fails:\nrefused", SlowStart: 0.25, Active: 3})
		}
		return x, nil
	}})
	w := ask(h, "GET", "/explain?cluster=web&selector=s&key=2001:DB8::1")
	if w.Code != 200 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	golden(t, "explain.txt", w.Body.String())
	golden(t, "explain.json", ask(h, "GET", "/explain?cluster=web&format=json").Body.String())
	golden(t, "explain-aggregate.txt", ask(h, "GET", "/explain?cluster=all&key=k").Body.String())
	golden(t, "explain-aggregate.json", ask(h, "GET", "/explain?cluster=all&format=json").Body.String())
	if w := ask(h, "GET", "/explain?cluster=nothing"); w.Code != 200 || !strings.Contains(w.Body.String(), "there are no endpoints: connections are reset") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	for path, want := range map[string]int{
		"/explain":                        400,
		"/explain?cluster=web&format=xml": 400,
		"/explain?cluster=none":           404,
		"/explain?cluster=sick":           503,
	} {
		if w := ask(h, "GET", path); w.Code != want {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	if w := ask(h, "POST", "/explain?cluster=web"); w.Code != 405 {
		t.Errorf("POST: %d", w.Code)
	}
	all := strings.Join(asked, "\n")
	for _, text := range []string{"2001:db8::1"} { // an address is hashed in its shortest form
		if want := fmt.Sprintf("web/s/%x/true", lbcore.StringKey(text).Hash); !strings.Contains(all, want) {
			t.Errorf("%q was not asked:\n%s", want, all)
		}
	}
	if !strings.Contains(all, "web//0/false") {
		t.Errorf("without a key:\n%s", all)
	}
}

// aggregateExplained is of a cluster the first of whose clusters has nobody.
func aggregateExplained(k lbcore.Key) node.Explanation {
	part := func(name string, v lbcore.Verdict, st node.State, why string) node.Explanation {
		x := node.Explanation{Cluster: name, Selector: "default", Policy: "ring_hash", Newest: 2}
		x.Generation, x.Key, x.Keyed, x.Want = 2, k, true, "healthy"
		x.Steps = []lbcore.Step{{Verdict: v, Weight: 1, Walk: true, Site: lbcore.Site{Place: 5, Of: 9, Hash: 1 << 40}}}
		if v.Candidate() {
			x.Steps[0].Order = 1
		}
		x.Endpoints = []node.ExplainedEndpoint{{Addr: addr("192.0.2.1:80"), State: st, Why: why, SlowStart: 1}}
		return x
	}
	x := node.Explanation{Cluster: "all", Aggregate: &node.AggregateExplanation{
		Clusters: []string{"first", "away", "second"},
		Loads: []node.AggregateLoad{
			{Cluster: "first", TierLoad: lbcore.TierLoad{Endpoints: 1, Healthy: 70, Panic: true}}, {Cluster: "second", TierLoad: lbcore.TierLoad{Endpoints: 1, Healthy: 30}},
		},
		Asked: []node.Explanation{part("first", lbcore.VerdictNotReady, node.StateFailed, "its tcp check fails"), part("second", lbcore.VerdictTaken, node.StateReady, "")},
	}}
	x.Key, x.Keyed = k, true
	return x
}
