package lbcore_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"gatehouse.internal/lbcore"
)

// Labels behave as the maps that they are made of.
func TestLabels(t *testing.T) {
	word := rapid.StringMatching("[ab\x00=\"\\\\]{0,2}")
	rapid.Check(t, func(t *rapid.T) {
		gen := rapid.MapOfN(word, word, 0, 3)
		have, want, other := gen.Draw(t, "have"), gen.Draw(t, "want"), gen.Draw(t, "other")
		behind := lbcore.LabelsOf(other, lbcore.Labels{})
		l, w := lbcore.LabelsOf(have, behind), lbcore.LabelsOf(want, lbcore.Labels{})
		all := true
		for name, value := range want {
			v, ok := have[name]
			all = all && ok && v == value
		}
		if l.Has(w) != all {
			t.Errorf("%q has %q: %v", have, want, l.Has(w))
		}
		if l.Behind() != behind || (l == lbcore.Labels{}) != (len(have)+len(other) == 0) {
			t.Errorf("%q with %q behind: %v", have, other, l)
		}
		if again := lbcore.LabelsOf(have, behind); again != l || (w == lbcore.LabelsOf(have, lbcore.Labels{})) != (fmt.Sprint(want) == fmt.Sprint(have)) {
			t.Error("labels are not compared by what they are made of")
		}
	})
	l := lbcore.LabelsOf(map[string]string{"tlsMode": "istio", "a": "1"}, lbcore.LabelsOf(map[string]string{"zone": "b"}, lbcore.Labels{}))
	if got, want := l.String(), `"a"="1" "tlsMode"="istio" ("zone"="b")`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	want := lbcore.LabelsOf(map[string]string{"tlsMode": "istio"}, lbcore.Labels{})
	if n := testing.AllocsPerRun(100, func() {
		if !l.Has(want) || l.Behind().Has(want) {
			t.Error("wrong")
		}
	}); n > 0 {
		t.Errorf("a look at labels allocates %v times", n)
	}
}
