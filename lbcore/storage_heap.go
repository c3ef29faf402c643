//go:build !unix || race

package lbcore

// mapWords returns memory that is all 0. It is of Go's heap: there are no
// mappings here, or the race detector is to watch it.
func mapWords(n int) ([]uint64, func()) { return make([]uint64, n), nil }
