package lbcore_test

import (
	"slices"
	"testing"

	"gatehouse.internal/lbcore"
)

func TestDrops(t *testing.T) {
	a, b := lbcore.Drop{Category: "a", PerMillion: 1}, lbcore.Drop{Category: "b", PerMillion: 2}
	if got := slices.Collect(lbcore.DropsOf(a, b).All()); !slices.Equal(got, []lbcore.Drop{a, b}) {
		t.Errorf("got %v", got)
	}
	for range lbcore.DropsOf(a, b).All() { // ends early
		break
	}
	switch none := lbcore.DropsOf(); {
	case none != (lbcore.Drops{}) || len(slices.Collect(none.All())) > 0:
		t.Error("no drops are some")
	case !lbcore.DropsOf(a, b).Equal(lbcore.DropsOf(a, b)) || lbcore.DropsOf(a, b).Equal(lbcore.DropsOf(b, a)) || lbcore.DropsOf(a).Equal(none):
		t.Error("Equal is wrong")
	}
	set := lbcore.MustSet(ep(1))
	if set.Equal(set.WithPolicy(lbcore.SetPolicy{Drops: lbcore.DropsOf(a)})) {
		t.Error("sets that drop and don't are equal")
	}
}
