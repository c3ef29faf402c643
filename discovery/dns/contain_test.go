package dns

import (
	"testing"

	"gatehouse.internal/internal/contain"
)

// An answer that can't be judged without a panic is of no use.
func TestJudgePanics(t *testing.T) {
	panics := new(contain.Panics)
	c := &Client{bugs: panics}
	if a, again := c.judge(nil, question{}); a.err == nil || again || panics.Count(contain.Decoder) != 1 {
		t.Errorf("%+v, %v, %d", a, again, panics.Count(contain.Decoder))
	}
}
