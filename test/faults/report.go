//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// report is what the program prints.
type report struct {
	Machine machine   `json:"machine"`
	Quick   bool      `json:"quick"`
	Faults  []outcome `json:"faults"`
}

type machine struct {
	Cores int    `json:"cores"`
	Go    string `json:"go"`
	// Load is the load average of the last minute, at the end: more than a few says
	// that others were at work.
	Load string `json:"load"`
}

func thisMachine() machine { return machine{Cores: runtime.NumCPU(), Go: runtime.Version()} }

// loadAverage is empty where it is not known.
func loadAverage() string {
	b, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(b), " ")
	return first
}

// print prints the report and returns the exit code: 1 if a fault has cost more than
// it may.
func (r *report) print(o options, stdout, stderr io.Writer) int {
	var err error
	switch {
	case o.json:
		enc := json.NewEncoder(stdout)
		enc.SetEscapeHTML(false)
		err = enc.Encode(r)
	default:
		r.text(stdout)
	}
	bad := r.failed()
	if err == nil && o.write != "" {
		err = r.write(o.write)
	}
	if err != nil {
		fmt.Fprintln(stderr, "faults:", err)
		return 1
	}
	if len(bad) > 0 {
		fmt.Fprintf(stderr, "faults: %d of %d are not as expected: %s\n", len(bad), len(r.Faults), strings.Join(bad, ", "))
		return 1
	}
	return 0
}

func (r *report) failed() (names []string) {
	for _, f := range r.Faults {
		if !f.OK {
			names = append(names, f.Fault)
		}
	}
	return names
}

// line is an outcome in one line, and why it is not OK.
func (o *outcome) line() string {
	text := fmt.Sprintf("ok, %d asks, %d s", o.Asks.OK, o.TookMS/1000)
	if !o.OK {
		text = "FAILED: " + strings.Join(o.Failures, "; ")
	}
	return text
}

var columns = []string{"fault", "ok", "refused", "reset", "timed out", "ended", "wrong", "slowest", "streams cut", "streams ended", "seen", "over", "goroutines", "fds", "MB", "settled", "as expected"}

// cells are the values of columns.
func (o *outcome) cells() []string {
	verdict := "yes"
	if !o.OK {
		verdict = "NO"
	}
	if o.Base == (usage{}) { // it was not made
		return append(append([]string{o.Fault}, slices.Repeat([]string{"-"}, len(columns)-2)...), verdict)
	}
	pair := func(a, b int) string { return fmt.Sprintf("%d → %d", a, b) }
	a, s := o.Asks, o.Streams
	return []string{o.Fault, fmt.Sprint(a.OK), fmt.Sprint(a.Refused), fmt.Sprint(a.Reset), fmt.Sprint(a.TimedOut), fmt.Sprint(a.Ended), fmt.Sprint(a.Wrong),
		fmt.Sprintf("%d ms", a.SlowestMS), fmt.Sprintf("%d of %d", s.Cut, s.Open), fmt.Sprint(s.Ended), o.seen(), after(o.RecoverMS),
		pair(o.Base.Goroutines, o.After.Goroutines), pair(o.Base.Descriptors, o.After.Descriptors), pair(o.Base.Resident>>20, o.After.Resident>>20),
		after(o.SettledMS), verdict}
}

// seen writes when the fault was seen, or that it was not.
func (o *outcome) seen() string {
	switch {
	case o.DetectMS == nil && o.UnseenMS != nil:
		return "not in " + after(o.UnseenMS)
	case o.DetectMS == nil && o.SeenAs != "":
		return "nothing to see"
	}
	return after(o.DetectMS)
}

// after writes a time that may not have been measured.
func after(ms *int64) string {
	if ms == nil {
		return "-"
	}
	if *ms < 50 {
		return "< 0.1 s"
	}
	return fmt.Sprintf("%.1f s", float64(*ms)/1000)
}

// text prints the report for people.
func (r *report) text(out io.Writer) {
	var lines bytes.Buffer
	w := tabwriter.NewWriter(&lines, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, strings.ToUpper(strings.Join(columns, "\t")))
	for i := range r.Faults {
		fmt.Fprintln(w, strings.Join(r.Faults[i].cells(), "\t"))
	}
	w.Flush() // into memory
	fmt.Fprintf(out, "%d cores, %s, load average %s\n\n%s\n", r.Machine.Cores, r.Machine.Go, r.Machine.Load, &lines)
	for _, f := range r.Faults {
		fmt.Fprintf(out, "%s: seen, %s: %s\n", f.Fault, f.seen(), f.SeenAs)
		for _, n := range f.Notes {
			fmt.Fprintf(out, "%s: %s\n", f.Fault, n)
		}
		for _, n := range f.Failures {
			fmt.Fprintf(out, "%s: NOT AS EXPECTED: %s\n", f.Fault, n)
		}
	}
	fmt.Fprintf(out, "\n%d of %d faults are as expected\n", len(r.Faults)-len(r.failed()), len(r.Faults))
}

// The marks in the page between which the table is.
const (
	tableBegin = "<!-- begin: go run ./test/faults -write docs/faults.md -->\n"
	tableEnd   = "<!-- end -->\n"
)

// markdown is the report for the page.
func (r *report) markdown() string {
	var b strings.Builder
	length := "whole"
	if r.Quick {
		length = "quick"
	}
	fmt.Fprintf(&b, "\nA %s run of %s, on %d cores, with %s, at a load average of %s.\n\n", length, time.Now().UTC().Format(time.DateOnly), r.Machine.Cores, r.Machine.Go, r.Machine.Load)
	row := func(cells []string) { fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | ")) }
	row(columns)
	row(strings.Split(strings.Repeat("---,", len(columns)-1)+"---", ","))
	for i := range r.Faults {
		row(r.Faults[i].cells())
	}
	b.WriteString("\n| fault | what is done | expected | seen by | also found in this run |\n| --- | --- | --- | --- | --- |\n")
	for _, f := range r.Faults {
		notes := append(append([]string(nil), f.Notes...), f.Failures...)
		row([]string{f.Fault, f.What, f.Expect, f.SeenAs, strings.ReplaceAll(strings.Join(notes, "; "), "|", "\\|")})
	}
	b.WriteString("\n")
	return b.String()
}

// write puts the table into the page.
func (r *report) write(file string) error {
	page, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	head, rest, ok1 := strings.Cut(string(page), tableBegin)
	_, tail, ok2 := strings.Cut(rest, tableEnd)
	if !ok1 || !ok2 {
		return fmt.Errorf("%s: want the lines %q and %q", file, tableBegin, tableEnd)
	}
	return os.WriteFile(file, []byte(head+tableBegin+r.markdown()+tableEnd+tail), 0o644)
}

// printList is for -list.
func printList(out io.Writer, fs []fault) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "FAULT\tWHAT IS DONE\tEXPECTED\tNEEDS")
	for _, f := range fs {
		var needs []string
		if f.root {
			needs = append(needs, "root")
		}
		for _, p := range f.programs {
			needs = append(needs, p.name)
		}
		if needs == nil {
			needs = append(needs, "-")
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", f.name, f.what, f.want, strings.Join(needs, ", "))
	}
	w.Flush()
}
