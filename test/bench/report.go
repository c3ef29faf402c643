package main

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"strconv"
	"text/tabwriter"
)

// report is what a benchmark prints.
type report struct {
	Bench   string  `json:"bench"`
	Machine machine `json:"machine"`
	Rows    []row   `json:"rows"`
}

type machine struct {
	Cores int    `json:"cores"`
	Go    string `json:"go"`
}

func thisMachine() machine { return machine{runtime.NumCPU(), runtime.Version()} }

// row is one figure. Its goal, if it has one, is for the ratio where there is
// one, else for the value.
type row struct {
	Row     string   `json:"row"`
	Subject string   `json:"subject"`
	Value   *float64 `json:"value,omitempty"`
	Unit    string   `json:"unit,omitempty"`
	RatioTo string   `json:"ratio_to,omitempty"`
	Ratio   *float64 `json:"ratio,omitempty"`
	// Of a median of ratios, the smallest and the largest one.
	RatioMin *float64 `json:"ratio_min,omitempty"`
	RatioMax *float64 `json:"ratio_max,omitempty"`
	Goal     string   `json:"goal,omitempty"`
	OK       *bool    `json:"ok,omitempty"`
	Error    string   `json:"error,omitempty"`
}

// figure returns a row with the median of samples.
func figure(name, subject, unit string, samples []float64) row {
	return row{Row: name, Subject: subject, Unit: unit, Value: new(short(median(samples)))}
}

// missing returns a row that says why there is no figure.
func missing(name, subject, why string) row { return row{Row: name, Subject: subject, Error: why} }

// ratio sets what the figure is divided by, and the result.
func (r row) ratio(to string, by float64) row {
	if by != 0 {
		r.RatioTo, r.Ratio = to, new(short(*r.Value/by))
	}
	return r
}

// ratios sets what the figure is compared to, and the median of the results
// with their range.
func (r row) ratios(to string, samples []float64) row {
	if len(samples) > 0 {
		r.RatioTo, r.Ratio = to, new(short(median(samples)))
		r.RatioMin, r.RatioMax = new(short(slices.Min(samples))), new(short(slices.Max(samples)))
	}
	return r
}

// atMost and atLeast set the goal.
func (r row) atMost(limit float64) row {
	return r.goal("<= ", limit, func(x float64) bool { return x <= limit })
}

func (r row) atLeast(limit float64) row {
	return r.goal(">= ", limit, func(x float64) bool { return x >= limit })
}

func (r row) goal(op string, limit float64, holds func(float64) bool) row {
	x := r.Value
	if r.Ratio != nil {
		x = r.Ratio
	}
	r.Goal, r.OK = op+number(limit), new(holds(*x))
	return r
}

// short rounds to four significant digits: more would be noise.
func short(x float64) float64 {
	if x == 0 || math.IsInf(x, 0) || math.IsNaN(x) {
		return x
	}
	scale := math.Pow(10, 3-math.Floor(math.Log10(math.Abs(x))))
	if scale < 1 { // whole numbers stay as they are
		return math.Round(x)
	}
	return math.Round(x*scale) / scale
}

func number(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }

// median returns the middle one of samples, or the mean of the two in the
// middle; NaN of none.
func median(samples []float64) float64 {
	s := slices.Sorted(slices.Values(samples))
	n := len(s)
	if n == 0 {
		return math.NaN()
	}
	return (s[(n-1)/2] + s[n/2]) / 2
}

// quantile returns the smallest sample that at least the part q of them do not
// exceed. sorted must not be empty.
func quantile[T any](sorted []T, q float64) T {
	i := int(math.Ceil(q*float64(len(sorted)))) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

// table prints the report for people.
func (rep *report) table(out io.Writer) error {
	fmt.Fprintf(out, "%s: %d cores, %s; medians\n\n", rep.Bench, rep.Machine.Cores, rep.Machine.Go)
	var lines bytes.Buffer
	w := tabwriter.NewWriter(&lines, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ROW\tSUBJECT\tVALUE\tUNIT\tRATIO\tGOAL\t")
	goals, missed, errs := 0, 0, 0
	for _, r := range rep.Rows {
		if r.Error != "" {
			errs++
			fmt.Fprintf(w, "%s\t%s\terror: %s\n", r.Row, r.Subject, r.Error)
			continue
		}
		ratio, verdict := "", ""
		if r.Ratio != nil {
			ratio = number(*r.Ratio) + " x " + r.RatioTo
			if r.RatioMin != nil {
				ratio += fmt.Sprintf(" (%s to %s)", number(*r.RatioMin), number(*r.RatioMax))
			}
		}
		if r.OK != nil {
			goals++
			verdict = "ok"
			if !*r.OK {
				missed++
				verdict = "MISSED"
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Row, r.Subject, number(*r.Value), r.Unit, ratio, r.Goal, verdict)
	}
	w.Flush() // into memory
	for line := range bytes.Lines(lines.Bytes()) {
		fmt.Fprintf(out, "%s\n", bytes.TrimRight(line, " \n"))
	}
	_, err := fmt.Fprintf(out, "\n%d of %d goals missed, %d rows without a figure\n", missed, goals, errs)
	return err
}
