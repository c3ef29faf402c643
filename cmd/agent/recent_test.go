package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

// The newest lines are kept, whole, within bounds.
func TestRecentLog(t *testing.T) {
	var all bytes.Buffer
	l := &recentLog{next: &all}
	for i := range 20_000 {
		fmt.Fprintf(l, "line %d %s\n", i, strings.Repeat("x", i%97))
		if i%1000 != 0 && i > 10 {
			continue
		}
		got := l.lines()
		if !bytes.HasSuffix(all.Bytes(), got) || len(got) > recentBytes || len(got) < min(all.Len(), recentBytes-200) || !bytes.HasPrefix(got, []byte("line ")) {
			t.Fatalf("after %d lines, of %d bytes: %d bytes, beginning with %.20q", i+1, all.Len(), len(got), got)
		}
	}
	l.next = failing{}
	if _, err := io.WriteString(l, "lost\n"); err == nil || !bytes.HasSuffix(l.lines(), []byte("lost\n")) {
		t.Errorf("what stderr does not take: %v", err)
	}
	io.WriteString(l, strings.Repeat("y", 2*recentBytes)+"\nend\n")
	if got := string(l.lines()); got != "end\n" {
		t.Errorf("after a line that is too long: %.40q", got)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("full") }
