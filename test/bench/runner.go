package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"gatehouse.internal/test/bench/control"
	"gatehouse.internal/test/bench/forward"
)

// childFlag, followed by a spec as JSON, makes this program a child that takes
// one measurement. It is not for people.
const childFlag = "-child"

// spec is what a child is to measure. Peers get the same.
type spec struct {
	Kind    string `json:"kind"`
	Subject string `json:"subject,omitempty"` // a policy, a mode, a peer
	N       int    `json:"n,omitempty"`       // endpoints, rings or clusters
	Points  int    `json:"points,omitempty"`  // of a ring
	Mixed   bool   `json:"mixed,omitempty"`   // weights of 1 to 4
	Full    bool   `json:"full,omitempty"`    // the variants that -quick leaves out
	EachMS  int    `json:"each_ms,omitempty"`
	WatchMS int    `json:"watch_ms,omitempty"`
	Pairs   int    `json:"pairs,omitempty"`
	Large   bool   `json:"large,omitempty"` // the ring is for the large lane
	LimitMS int    `json:"limit_ms,omitempty"`

	Forward forward.Spec `json:"forward,omitzero"`
	Control control.Spec `json:"control,omitzero"`
}

// values are the figures of one measurement, by names of its kind.
type values = map[string]float64

// job is a measurement that is repeated in every round.
type job struct {
	spec  spec
	exe   string        // of a peer; "" is this program
	guess time.Duration // how long it will take, as far as that matters to the budget
	most  int           // rounds, 0 for all
}

// outcome is what the rounds of a job gave.
type outcome struct {
	samples map[string][]float64
	err     error // the first one; samples of other rounds may be there
	took    time.Duration
}

// of returns the samples of a figure.
func (o *outcome) of(name string) []float64 { return o.samples[name] }

// row returns the median of a figure, or the error in its place.
func (o *outcome) row(name, subject, unit, key string) (r row, ok bool) {
	s := o.of(key)
	switch {
	case len(s) > 0:
		return figure(name, subject, unit, s), true
	case o.err != nil:
		return missing(name, subject, o.err.Error()), false
	}
	return missing(name, subject, "not measured"), false
}

// runner runs the measurements of one benchmark.
type runner struct {
	size
	self   string
	log    io.Writer
	failed int // jobs
}

// errTime is why a measurement that there was no time for has no figure.
var errTime = errors.New("no time left for it; without -quick there is")

// rounds runs each job once a round, one after the other, so that what slows
// the machine down for a while hits all alike. The first round is complete but
// for a quick run, where the budget bounds that too.
func (r *runner) rounds(ctx context.Context, jobs []job) []outcome {
	began := time.Now()
	outs := make([]outcome, len(jobs))
	for i := range outs {
		outs[i] = outcome{samples: make(map[string][]float64), took: jobs[i].guess}
	}
	for round := range r.size.rounds {
		for i, j := range jobs {
			o := &outs[i]
			if o.err != nil || ctx.Err() != nil || j.most > 0 && round >= j.most {
				continue
			}
			if spent := time.Since(began); r.budget > 0 && spent+o.took > r.budget && (round > 0 || !r.full) {
				if round == 0 {
					o.err = errTime
				}
				continue
			}
			start := time.Now()
			limit := childLimit
			if r.budget > 0 && !r.full {
				limit = r.budget + overtime - start.Sub(began)
			}
			vs, err := r.once(ctx, j, limit)
			o.took = time.Since(start)
			if errors.Is(err, context.DeadlineExceeded) && r.budget > 0 && !r.full {
				if round == 0 {
					o.err = errTime
				}
				continue
			}
			if err != nil {
				o.err = err
				r.failed++
				what, _ := json.Marshal(j.spec) // as once did
				fmt.Fprintf(r.log, "bench: %s: %v\n", what, err)
				continue
			}
			for k, v := range vs {
				o.samples[k] = append(o.samples[k], v)
			}
		}
	}
	return outs
}

// childLimit is how long a child may take: a hang must not hold up the rest.
const childLimit = 10 * time.Minute

// overtime is how long after the end of the budget a child may still take.
const overtime = 25 * time.Second

// once runs a job in a process of its own, which may take as long as limit.
func (r *runner) once(ctx context.Context, j job, limit time.Duration) (values, error) {
	arg, err := json.Marshal(j.spec)
	if err != nil {
		return nil, err
	}
	exe := j.exe
	if exe == "" {
		exe = r.self
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe, childFlag, string(arg))
	// A child may have children of its own, to be stopped.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("stopped after %v: %w", limit, ctx.Err())
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, lastLine(stderr.String()))
	}
	var vs values
	if err := json.Unmarshal(out, &vs); err != nil {
		return nil, fmt.Errorf("what the child printed: %w", err)
	}
	return vs, nil
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}

// child takes the measurement that arg describes and prints its values.
func child(arg string, stdout, stderr io.Writer) int {
	var s spec
	err := json.Unmarshal([]byte(arg), &s)
	if err == nil {
		var vs values
		if vs, err = take(s, stdout); err == nil && vs != nil {
			for k, v := range vs {
				if math.IsNaN(v) || math.IsInf(v, 0) {
					delete(vs, k) // JSON has no word for it
				}
			}
			err = json.NewEncoder(stdout).Encode(vs)
		}
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

// take returns the values of a measurement; what is none has the output to
// itself.
func take(s spec, stdout io.Writer) (values, error) {
	ctx := context.Background()
	switch s.Kind {
	case "lb":
		return takeLB(ctx, s)
	case "build":
		return takeBuild(ctx, s)
	case "memory":
		return takeMemory(ctx, s)
	case "crowd":
		return takeCrowd(ctx, s)
	case "dns":
		return takeDNS(ctx, s)
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	switch s.Kind {
	case "forward":
		return forward.Take(ctx, s.Forward)
	case "xds":
		return control.Take(ctx, s.Control)
	case "backend":
		return nil, forward.Backend(ctx, stdout)
	case "burn":
		return nil, forward.Burn(ctx, os.Stdin)
	}
	return nil, fmt.Errorf("no measurement %q", s.Kind)
}
