package node

import (
	"errors"
	"reflect"
	"sync"
	"testing"
	"time"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/adaptive"
	"gatehouse.internal/lbcore/leastweight"
	"gatehouse.internal/lbcore/maglev"
	"gatehouse.internal/lbcore/random"
	"gatehouse.internal/lbcore/ringhash"
	"gatehouse.internal/lbcore/roundrobin"
)

func TestSlot(t *testing.T) {
	for _, tt := range []struct {
		s    config.Selector
		want lbcore.Builder
	}{
		{config.Selector{Policy: "round_robin"}, roundrobin.Config{}},
		{config.Selector{Policy: "random"}, random.Config{}},
		{config.Selector{Policy: "ring_hash", MinimumRingSize: 1, MaximumRingSize: 2, HashFunction: "xx_hash"},
			ringhash.Config{MinimumSize: 1, MaximumSize: 2}},
		{config.Selector{Policy: "ring_hash", MaximumRingSize: 2, HashFunction: "murmur_hash_2"},
			ringhash.Config{MaximumSize: 2, Function: ringhash.MurmurHash2}},
		{config.Selector{Policy: "ring_hash", MaximumRingSize: 2, HashFunction: "ketama"},
			ringhash.Config{MaximumSize: 2, Function: ringhash.Ketama}},
		{config.Selector{Policy: "maglev", TableSize: 7}, maglev.Config{TableSize: 7}},
		{config.Selector{Policy: "least_weight", ChoiceCount: 3, ActiveRequestBias: 0.5}, leastweight.Config{Choices: 3, Bias: new(0.5)}},
		{config.Selector{Policy: "adaptive", Rank: "inverse", LatencyOf: "connect"}, adaptive.Config{Rank: adaptive.Inverse{}}},
	} {
		tt.s.Name = "s"
		got, err := slot(tt.s)
		if want := (lbcore.SlotConfig{Name: "s", Policy: tt.s.Policy, Builder: tt.want}); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	}
	if _, err := slot(config.Selector{Name: "s", Policy: "lottery"}); err == nil {
		t.Error("an unknown policy is a slot")
	}
}

// adaptiveOf returns a cluster with two selectors, of which the second learns.
func adaptiveOf(name, latencyOf string, eps ...lbcore.Endpoint) config.Cluster {
	c := clusterOf(name, static(eps...))
	c.Selectors = append(c.Selectors, config.Selector{Name: "fast", Policy: config.PolicyAdaptive, Rank: config.RankInverse, LatencyOf: latencyOf})
	return c
}

// connections makes n connections, 16 at once, and counts where they led.
func (r *rig) connections(listener string, n int) map[string]int {
	r.t.Helper()
	var mu sync.Mutex
	var wg sync.WaitGroup
	var errs []error
	led := make(map[string]int)
	for range 16 {
		wg.Go(func() {
			for range n / 16 {
				c, err := r.dial(listener)
				if c.Conn != nil {
					c.Close()
				}
				mu.Lock()
				led[c.from]++
				errs = append(errs, err)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		r.t.Fatal(err)
	}
	return led
}

func (r *rig) adaptiveWeights(cluster string) map[lbcore.Addr]float64 {
	weights := make(map[lbcore.Addr]float64)
	for _, e := range r.cluster(cluster).Endpoints {
		weights[e.Addr] = e.AdaptiveWeight
	}
	return weights
}

// Whoever answers slowly gets fewer connections.
func TestAdaptiveFirstByte(t *testing.T) {
	r := start(t)
	one, two, slow := listen(t, "one"), listen(t, "two"), listenSlow(t, "slow", 100*time.Millisecond)
	l := listenerOf("l", "web")
	l.Selector = "fast"
	r.apply(Spec{
		Clusters:  []config.Cluster{adaptiveOf("web", config.LatencyFirstByte, one.Endpoint, two.Endpoint, slow.Endpoint)},
		Listeners: []config.Listener{l},
	})
	within(t, "the cluster is warm", func() bool { return len(r.Waiting()) == 0 })
	r.connections("l", 640) // to learn by
	if led := r.connections("l", 640); led["slow"] >= min(led["one"], led["two"]) {
		t.Errorf("connections led to %v", led)
	}
	if w := r.adaptiveWeights("web"); w[slow.Addr] < 1 || w[slow.Addr] >= min(w[one.Addr], w[two.Addr]) {
		t.Errorf("weights are %v", w)
	}
}

// Connecting teaches by whichever selector it was done, and failing too.
func TestAdaptiveConnect(t *testing.T) {
	r := start(t)
	one, down := listen(t, "one"), deaf(t)
	r.apply(Spec{
		Clusters: []config.Cluster{
			adaptiveOf("web", config.LatencyConnect, one.Endpoint, down), clusterOf("plain", static(one.Endpoint)),
		},
		Listeners: []config.Listener{listenerOf("l", "web"), listenerOf("p", "plain")},
	})
	within(t, "the clusters are warm", func() bool { return len(r.Waiting()) == 0 })
	begin := r.adaptiveWeights("web")
	if begin[one.Addr] != 1<<23 || begin[down.Addr] != 1<<23 {
		t.Errorf("weights begin with %v", begin)
	}
	for range 8 { // round_robin: each of the two is first in half of them
		r.mustDial("l", "one").Close()
	}
	if w := r.adaptiveWeights("web"); w[down.Addr] != 1<<19 || w[one.Addr] == 1<<23 {
		t.Errorf("after 8 connections, 4 of them by way of a failure, weights are %v", w)
	}
	r.mustDial("p", "one").Close()
	if w := r.adaptiveWeights("plain"); w[one.Addr] != 0 {
		t.Errorf("without an adaptive selector weights are %v", w)
	}
}
