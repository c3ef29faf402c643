package lbcore

import (
	"iter"
	"unique"
)

// A Drop is a part of the connections that discovery wants dropped before an
// endpoint is picked. Source: ClusterLoadAssignment.Policy.DropOverload.
type Drop struct {
	Category string // what it is counted under
	// PerMillion is how many of a million that come to it are dropped, 1000000 at
	// most.
	PerMillion uint32
}

// Drops is a list of categories, each of which drops a part of what those before it
// have left. It is comparable; the zero value is empty. Lists are shared by all
// that are equal.
type Drops struct {
	first unique.Handle[drop]
}

type drop struct {
	Drop
	rest Drops
}

// DropsOf returns the list of drops.
func DropsOf(drops ...Drop) (list Drops) {
	for i := len(drops) - 1; i >= 0; i-- {
		list = Drops{unique.Make(drop{drops[i], list})}
	}
	return list
}

// Equal reports whether d and e are the same list.
func (d Drops) Equal(e Drops) bool { return d == e }

// All yields the categories in order.
func (d Drops) All() iter.Seq[Drop] {
	return func(yield func(Drop) bool) {
		for d != (Drops{}) {
			x := d.first.Value()
			if !yield(x.Drop) {
				return
			}
			d = x.rest
		}
	}
}
