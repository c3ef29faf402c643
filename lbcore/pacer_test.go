package lbcore

import (
	"errors"
	"testing"
)

func TestPacer(t *testing.T) {
	calls, stop := 0, error(nil)
	p := &Pacer{Yield: func() error { calls++; return stop }}
	for range 3 * PacerSteps {
		if err := p.Did(1); err != nil {
			t.Fatal(err)
		}
	}
	if calls != 3 {
		t.Errorf("%d calls in three times so many steps", calls)
	}
	// A word is cleared in a sixteenth of a step.
	words, small := make([]uint64, 40*PacerSteps+7), make([]uint32, 40*PacerSteps+7)
	for i := range words {
		words[i], small[i] = 1, 1
	}
	calls = 0
	if p.Clear(words) != nil || p.Clear32(small) != nil || calls < 4 || calls > 5 {
		t.Errorf("%d calls", calls)
	}
	for i := range words {
		if words[i] != 0 || small[i] != 0 {
			t.Fatalf("word %d is not clear", i)
		}
	}
	words[len(words)-1], stop = 1, errors.New("stop")
	if err := p.Clear(words); err != stop || words[len(words)-1] != 1 {
		t.Errorf("clearing goes on: %v", err)
	}
	if err := new(Pacer).Did(PacerSteps); err != nil {
		t.Errorf("without a yield: %v", err)
	}
}
