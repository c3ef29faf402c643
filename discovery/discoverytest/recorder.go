package discoverytest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse.internal/lbcore"
)

// Report is one call of a Sink: Fail if Err is not nil, else Replace.
type Report struct {
	Set lbcore.Set
	Err error
}

// String returns the report as "fail: …" or the addresses in brackets.
func (r Report) String() string {
	if r.Err != nil {
		return "fail: " + r.Err.Error()
	}
	return fmt.Sprint(Addrs(r.Set))
}

// Addrs returns the addresses of set in order.
func Addrs(set lbcore.Set) []lbcore.Addr {
	addrs := make([]lbcore.Addr, 0, set.Len())
	for _, e := range set.All() {
		addrs = append(addrs, e.Addr)
	}
	return addrs
}

// Recorder is a discovery.Sink that keeps every report. Its zero value is ready
// for use.
type Recorder struct {
	// Within is how long the Wait methods wait at most. Zero means 20 s.
	Within time.Duration

	mu      sync.Mutex
	reports []Report
	grown   chan struct{} // closed by the next report; nil if nobody waits
}

// Replace records set.
func (r *Recorder) Replace(set lbcore.Set) { r.add(Report{Set: set}) }

// Fail records err.
func (r *Recorder) Fail(err error) {
	if err == nil {
		err = errors.New("Fail(nil)")
	}
	r.add(Report{Err: err})
}

func (r *Recorder) add(rep Report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reports = append(r.reports, rep)
	if r.grown != nil {
		close(r.grown)
		r.grown = nil
	}
}

// Reports returns all reports so far, the oldest first.
func (r *Recorder) Reports() []Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.reports)
}

// Wait waits until a report with a position of at least from satisfies ok,
// and returns its position. It ends the test if none does in time.
func (r *Recorder) Wait(t testing.TB, what string, from int, ok func(Report) bool) int {
	t.Helper()
	within := r.Within
	if within == 0 {
		within = 20 * time.Second
	}
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	for {
		r.mu.Lock()
		reports := r.reports
		if r.grown == nil {
			r.grown = make(chan struct{})
		}
		grown := r.grown
		r.mu.Unlock()
		for ; from < len(reports); from++ {
			if ok(reports[from]) {
				return from
			}
		}
		select {
		case <-grown:
		case <-deadline.C:
			t.Fatalf("no report of %s within %v; reports:\n%s", what, within, r)
		}
	}
}

// WaitSet waits for a set of exactly these addresses, from position from on.
func (r *Recorder) WaitSet(t testing.TB, from int, addrs ...lbcore.Addr) int {
	t.Helper()
	addrs = slices.Clone(addrs)
	slices.SortFunc(addrs, lbcore.Addr.Compare)
	return r.Wait(t, fmt.Sprint(addrs), from, func(rep Report) bool {
		return rep.Err == nil && slices.Equal(Addrs(rep.Set), addrs)
	})
}

// WaitFail waits for a failure that mentions text, from position from on.
func (r *Recorder) WaitFail(t testing.TB, from int, text string) int {
	t.Helper()
	return r.Wait(t, fmt.Sprintf("a failure with %q", text), from, func(rep Report) bool {
		return rep.Err != nil && strings.Contains(rep.Err.Error(), text)
	})
}

// String returns the reports, one a line.
func (r *Recorder) String() string {
	var b strings.Builder
	for i, rep := range r.Reports() {
		fmt.Fprintf(&b, "%3d %s\n", i, rep)
	}
	return b.String()
}
