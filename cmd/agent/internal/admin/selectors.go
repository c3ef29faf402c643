package admin

import (
	"errors"
	"fmt"
	"net/http"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/cmd/agent/internal/node"
	"gatehouse.internal/lbcore"
)

// Selectors is what /selectors answers: all that the selectors of a cluster choose by.
// It is node.Model in JSON.
type Selectors struct {
	Cluster   string             `json:"cluster"`
	Selectors []SelectorSettings `json:"selectors"`
	Spread    SpreadSettings     `json:"spread"`
	Endpoints []SelectorEndpoint `json:"endpoints"`
	// Aggregate are the clusters that it consists of, which have the rest.
	Aggregate []Selectors `json:"aggregate,omitempty"`
	// IsAggregate is for one of which none is there.
	IsAggregate bool `json:"is_aggregate,omitempty"`
}

// SelectorSettings are the settings of a selector: config.Selector.
type SelectorSettings struct {
	Name              string  `json:"name"`
	Policy            string  `json:"policy"`
	MinimumRingSize   uint64  `json:"minimum_ring_size,omitempty"`
	MaximumRingSize   uint64  `json:"maximum_ring_size,omitempty"`
	HashFunction      string  `json:"hash_function,omitempty"`
	TableSize         uint64  `json:"table_size,omitempty"`
	HashBalanceFactor uint32  `json:"hash_balance_factor,omitempty"`
	ChoiceCount       int     `json:"choice_count,omitempty"`
	ActiveRequestBias float64 `json:"active_request_bias"`
	Rank              string  `json:"rank,omitempty"`
	LatencyOf         string  `json:"latency_of,omitempty"`
}

// SpreadSettings are how load is spread over priorities and localities: lbcore.Spread
// and lbcore.SetPolicy.
type SpreadSettings struct {
	PanicThreshold   uint32          `json:"panic_threshold"`
	LocalityWeighted bool            `json:"locality_weighted"`
	PreferLocal      bool            `json:"prefer_local"`
	Local            lbcore.Locality `json:"local"`
	IgnoreNew        bool            `json:"ignore_new"`
	Overprovisioning uint32          `json:"overprovisioning_factor,omitempty"`
	WeightedHealth   bool            `json:"weighted_priority_health,omitempty"`
}

// SelectorEndpoint is an endpoint as selectors see it.
type SelectorEndpoint struct {
	Address        string          `json:"address"`
	Weight         uint32          `json:"weight"`
	Priority       uint8           `json:"priority"`
	Locality       lbcore.Locality `json:"locality"`
	LocalityWeight uint32          `json:"locality_weight,omitempty"`
	HashKey        string          `json:"hash_key,omitempty"`
	Ready          bool            `json:"ready"`
	Degraded       bool            `json:"degraded,omitempty"`
	Adaptive       float64         `json:"adaptive_weight,omitempty"`
}

func selectors(m node.Model) Selectors {
	s := m.Spread
	out := Selectors{
		Cluster: m.Cluster, Selectors: []SelectorSettings{}, Endpoints: make([]SelectorEndpoint, 0, len(m.Endpoints)),
		Spread: SpreadSettings{
			s.PanicThreshold, s.LocalityWeighted, s.PreferLocal, s.Local, s.IgnoreNew, m.Policy.Overprovisioning, m.Policy.WeightedHealth,
		},
	}
	out.IsAggregate = m.Aggregate != nil
	for _, part := range m.Aggregate {
		out.Aggregate = append(out.Aggregate, selectors(part))
	}
	for _, s := range m.Selectors {
		out.Selectors = append(out.Selectors, SelectorSettings(s))
	}
	for _, e := range m.Endpoints {
		out.Endpoints = append(out.Endpoints, SelectorEndpoint{
			Address: e.Addr.String(), Weight: e.Weight, Priority: e.Priority, Locality: e.Locality, LocalityWeight: e.LocalityWeight,
			HashKey: e.HashKey, Ready: e.Status.Routable(), Degraded: e.Status == lbcore.StatusDegraded, Adaptive: m.AdaptiveWeights[e.Addr],
		})
	}
	return out
}

// Model returns what s is of. An error says which address is none.
func (s Selectors) Model() (node.Model, error) {
	p := s.Spread
	m := node.Model{
		Cluster: s.Cluster, AdaptiveWeights: make(map[lbcore.Addr]float64),
		Spread: lbcore.Spread{
			PanicThreshold: p.PanicThreshold, LocalityWeighted: p.LocalityWeighted, PreferLocal: p.PreferLocal, Local: p.Local, IgnoreNew: p.IgnoreNew,
		},
		Policy: lbcore.SetPolicy{Overprovisioning: p.Overprovisioning, WeightedHealth: p.WeightedHealth},
	}
	if s.IsAggregate {
		m.Aggregate = make([]node.Model, len(s.Aggregate))
	}
	for i, part := range s.Aggregate {
		var err error
		if m.Aggregate[i], err = part.Model(); err != nil {
			return m, err
		}
		if len(m.Aggregate[i].Selectors) == 0 {
			return m, fmt.Errorf("cluster %q, a part of %q, has no selector", part.Cluster, s.Cluster)
		}
	}
	for _, x := range s.Selectors {
		m.Selectors = append(m.Selectors, config.Selector(x))
	}
	for _, x := range s.Endpoints {
		a, err := lbcore.ParseAddr(x.Address)
		if err != nil {
			return m, fmt.Errorf("endpoint %q: %w", x.Address, err)
		}
		e := lbcore.Endpoint{Addr: a, Weight: x.Weight, Priority: x.Priority, Locality: x.Locality, LocalityWeight: x.LocalityWeight, HashKey: x.HashKey}
		switch {
		case !x.Ready:
			e.Status = lbcore.StatusUnhealthy
		case x.Degraded:
			e.Status = lbcore.StatusDegraded
		}
		if x.Adaptive > 0 {
			m.AdaptiveWeights[a] = x.Adaptive
		}
		m.Endpoints = append(m.Endpoints, e)
	}
	return m, nil
}

// showSelectors answers with what the selectors of a cluster choose by.
func showSelectors(cfg Config) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		name := r.URL.Query().Get("cluster")
		if name == "" {
			http.Error(w, "want ?cluster=NAME", http.StatusBadRequest)
			return
		}
		switch m, err := cfg.Model(name); {
		case errors.Is(err, node.ErrUnknown):
			http.Error(w, err.Error(), http.StatusNotFound)
		case err != nil:
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		default:
			writeJSON(w, selectors(m))
		}
	}
}
