package main

import (
	"bytes"
	"encoding/json"
	"testing"

	"gatehouse.internal/cmd/agent/internal/node"
	"gatehouse.internal/lbcore"
)

// Of a cluster that consists of others each endpoint is shown with the one it is of.
func TestSimulationOfAggregate(t *testing.T) {
	addr := func(s string) lbcore.Addr {
		a, err := lbcore.ParseAddr(s)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	s := node.Simulation{
		Cluster: "all", Selector: "default", Keys: 1000,
		Shares: []node.Share{
			{Cluster: "first", Addr: addr("10.0.0.1:80"), Before: 700, After: 933, Ready: true}, {Cluster: "first", Addr: addr("10.0.0.2:80"), After: 0},
			{Cluster: "second", Addr: addr("10.0.0.1:80"), Before: 300, After: 67, Ready: true},
		},
	}
	var out bytes.Buffer
	if err := printSimulation(&out, simulated(s)); err != nil {
		t.Fatal(err)
	}
	golden(t, "simulate-aggregate.txt", out.String())
	text, err := json.MarshalIndent(simulated(s), "", " ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "simulate-aggregate.json", string(text)+"\n")
}
