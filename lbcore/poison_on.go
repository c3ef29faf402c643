//go:build poison

package lbcore

// poison says that storage which no reader should hold is overwritten with
// words that are no good index or hash of anything: whoever reads them fails.
const (
	poison     = true
	poisonWord = 0xdead_dead_dead_dead
)
