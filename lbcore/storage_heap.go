//go:build !unix || race

package lbcore

// largeWords returns memory that is all 0. It is of Go's heap: there are no
// mappings here, or the race detector is to watch it.
func largeWords(n int) ([]uint64, func()) { return make([]uint64, n), nil }
