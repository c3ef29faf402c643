//go:build poison

package lbcore_test

import (
	"testing"
	"testing/synctest"

	"gatehouse.internal/lbcore"
)

// In this build all of a spare region is poison.
func TestPoison(t *testing.T) {
	for _, words := range []int{100, largeWords} {
		synctest.Test(t, func(t *testing.T) {
			c := start(t, stamped{order{}, words, nil, nil})
			c.settle(set(1))
			c.settle(set(2))
			c.gate.Stats() // which notes that nobody reads the first any more
			n := 0
			for _, w := range c.gate.Spares() {
				if n++; w != lbcore.PoisonWord {
					t.Fatalf("word %d is %x", n-1, w)
				}
			}
			if n < words {
				t.Errorf("%d words are spare", n)
			}
		})
	}
}
