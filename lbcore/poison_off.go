//go:build !poison

package lbcore

// poison: see the test build of that name.
const (
	poison     = false
	poisonWord = 0
)
