package forward

import (
	"slices"
	"time"
)

// Values are figures by their names: a group and a Key, or a name alone.
type Values = map[string]float64

// costs are what has been spent so far, on CPU.
type costs struct{ relay, all time.Duration }

// figures are those of n operations.
func figures(group string, took time.Duration, n int, latency []int64, before, after costs) Values {
	vs := Values{
		group + string(Rate): float64(n) / took.Seconds(),
		group + string(CPU):  float64((after.relay - before.relay).Nanoseconds()) / 1e3 / float64(n),
		group + string(All):  float64((after.all - before.all).Nanoseconds()) / 1e3 / float64(n),
	}
	if len(latency) > 0 {
		slices.Sort(latency)
		vs[group+string(P50)] = float64(latency[(len(latency)-1)/2]) / 1e3
		vs[group+string(P99)] = float64(latency[(len(latency)*99+99)/100-1]) / 1e3
	}
	return vs
}

// bulkFigures are in GB.
func bulkFigures(group string, took time.Duration, total uint64, before, after costs) Values {
	gb := float64(total) / 1e9
	return Values{
		group + string(Rate): gb / took.Seconds(),
		group + string(CPU):  (after.relay - before.relay).Seconds() / gb,
		group + string(All):  (after.all - before.all).Seconds() / gb,
	}
}

// middle returns the median of figures, of which there must be one.
func middle(s []float64) float64 {
	s = slices.Sorted(slices.Values(s))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}
