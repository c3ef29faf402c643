package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"text/tabwriter"
	"time"
)

// settings are what the flags say.
type settings struct {
	rate, restarts, held int
	every, drain         time.Duration
	agent                string
}

// result is what came of one mode. It is printed by -json.
type result struct {
	Mode        string  `json:"mode"`
	Rate        int     `json:"rate"`
	Restarts    int     `json:"restarts"`
	Connections int     `json:"connections"`
	OK          int     `json:"ok"`
	Refused     int     `json:"refused"`
	Reset       int     `json:"reset"`
	TimedOut    int     `json:"timed_out"`
	Other       int     `json:"other"`
	Late        int     `json:"late"`
	NotBegun    int     `json:"not_begun"` // too many were under way
	P50         float64 `json:"p50_ms"`
	P99         float64 `json:"p99_ms"`
	Max         float64 `json:"max_ms"`
	Held        int     `json:"held"`
	HeldBroken  int     `json:"held_broken"`
	FirstError  string  `json:"first_error,omitempty"`
}

// good reports whether no client has lost anything.
func (r *result) good() bool {
	return r.OK > 0 && r.OK == r.Connections && r.Held > 0 && r.HeldBroken == 0 && r.NotBegun == 0
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("restarts", flag.ContinueOnError)
	fs.SetOutput(stderr)
	var s settings
	fs.IntVar(&s.rate, "rate", 2000, "connections a `second`, 1 to 20000")
	fs.IntVar(&s.restarts, "restarts", 10, "how `often` the agent is replaced, 1 to 1000")
	fs.IntVar(&s.held, "held", 20, "connections that are held over each restart, 1 to 1000")
	fs.DurationVar(&s.every, "every", 3*time.Second, "how long after a restart the next one begins")
	fs.DurationVar(&s.drain, "drain", 5*time.Second, "drain_timeout of the agent, at least 2s")
	fs.StringVar(&s.agent, "agent", "", "the agent's program `file`; it is built where none is named")
	mode := fs.String("mode", "both", "takeover, activation or both")
	asJSON := fs.Bool("json", false, "print JSON")
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	modes := map[string][]string{"takeover": {"takeover"}, "activation": {"activation"}, "both": {"takeover", "activation"}}[*mode]
	if modes == nil || fs.NArg() > 0 || s.rate < 1 || s.rate > 20000 || s.restarts < 1 || s.restarts > 1000 || s.held < 1 || s.held > 1000 || s.drain < 2*time.Second {
		fmt.Fprintln(stderr, "restarts: wrong usage")
		fs.Usage()
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	dir, err := os.MkdirTemp("", "gatehouse-restarts-")
	if err != nil {
		fmt.Fprintln(stderr, "restarts:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	if s.agent == "" {
		s.agent = filepath.Join(dir, "gatehouse")
		if out, err := exec.CommandContext(ctx, "go", "build", "-o", s.agent, "gatehouse.internal/cmd/agent").CombinedOutput(); err != nil {
			fmt.Fprintf(stderr, "restarts: go build: %v\n%s", err, out)
			return 1
		}
	}
	code := 0
	var all []*result
	for _, mode := range modes {
		r, err := measure(ctx, s, mode, filepath.Join(dir, mode))
		if err != nil {
			fmt.Fprintf(stderr, "restarts: %s: %v\n", mode, err)
			return 1
		}
		if !r.good() {
			code = 1
		}
		all = append(all, r)
		if *asJSON {
			_ = json.NewEncoder(stdout).Encode(r)
		}
	}
	if !*asJSON {
		table(stdout, all)
	}
	return code
}

func table(w io.Writer, all []*result) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "MODE\tRESTARTS\tRATE\tCONNECTIONS\tREFUSED\tRESET\tTIMED OUT\tOTHER\tLATE\tP50\tP99\tMAX\tHELD\tBROKEN")
	for _, r := range all {
		fmt.Fprintf(t, "%s\t%d\t%d/s\t%d\t%d\t%d\t%d\t%d\t%d\t%.1f ms\t%.1f ms\t%.0f ms\t%d\t%d\n", r.Mode, r.Restarts, r.Rate, r.Connections,
			r.Refused, r.Reset, r.TimedOut, r.Other+r.NotBegun, r.Late, r.P50, r.P99, r.Max, r.Held, r.HeldBroken)
	}
	_ = t.Flush()
	for _, r := range all {
		if r.FirstError != "" {
			fmt.Fprintf(w, "%s: the first error: %s\n", r.Mode, r.FirstError)
		}
	}
}
