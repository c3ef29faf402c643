package lbcore_test

import (
	"bytes"
	"runtime"
	"testing"
)

// A large build has a thread of its own, and so gives a CPU away when it yields,
// also where Go's scheduler has nobody who wants it.
func TestLargeBuildsHaveTheirThread(t *testing.T) {
	for words, large := range map[int]bool{largeWords - 1: false, largeWords: true} {
		l := &lab{words: words}
		var head []byte
		l.build = func(int64, func() error) error {
			head = make([]byte, 256)
			head, _, _ = bytes.Cut(head[:runtime.Stack(head, false)], []byte("\n"))
			return nil
		}
		start(t, l).settle(set(1))
		if got := bytes.Contains(head, []byte("locked to thread")); got != large {
			t.Errorf("a build of %d words runs as %q", words, head)
		}
	}
}
