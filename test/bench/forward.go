package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"gatehouse.internal/test/bench/forward"
)

// relaySize is how much forward measures.
type relaySize struct {
	each    time.Duration // what a figure is measured for
	servers int
	idle    int // connections
	churn   int // connections
	points  int // of the ring that is rebuilt
	pairs   int // of times with and without rebuilds, a round
	rests   int // rounds of what takes long
}

// relayJobs are what is measured, in the order of a round. The ones that are
// compared stand next to each other.
var relayJobs = []struct {
	kind   string
	procs  int
	relays []string
}{
	{forward.Plain, 0, []string{forward.Gatehouse, forward.HAProxy, forward.HAProxySplice, forward.Nginx, forward.TCPProxy, forward.Direct}},
	{forward.TLS, 0, []string{forward.Gatehouse, forward.HAProxy, forward.Nginx}},
	{forward.Ring, 0, []string{forward.Gatehouse}},
	{forward.Busy, 2, []string{forward.Gatehouse}},
	{forward.Busy, 3, []string{forward.Gatehouse}},
	{forward.Busy, 4, []string{forward.Gatehouse}},
	{forward.Idle, 0, []string{forward.Gatehouse, forward.HAProxy, forward.Nginx, forward.TCPProxy}},
	{forward.IdleTLS, 0, []string{forward.Gatehouse, forward.HAProxy, forward.Nginx}},
	{forward.Churn, 0, []string{forward.Gatehouse}},
}

// relayKey names what a relay gave in a case.
type relayKey struct {
	kind, relay string
	procs       int // of Busy
}

// relayOutcomes are all that forward has measured.
type relayOutcomes map[relayKey]*outcome

// benchForward measures connections through relays.
func benchForward(ctx context.Context, r *runner) []row {
	backend, _ := json.Marshal(spec{Kind: "backend"}) // can't fail
	burner, _ := json.Marshal(spec{Kind: "burn"})
	outs := make(relayOutcomes)
	exes, errs := relayPrograms(ctx, r)
	defer os.RemoveAll(filepath.Dir(exes[forward.Gatehouse]))
	var jobs []job
	var keys []relayKey
	for _, c := range relayJobs {
		for _, relay := range c.relays {
			k := relayKey{c.kind, relay, c.procs}
			if err := errs[relay]; err != nil {
				outs[k] = &outcome{err: err}
				continue
			}
			s := forward.Spec{Relay: relay, Case: c.kind, Exe: exes[relay], Backend: []string{r.self, childFlag, string(backend)},
				Each: r.relays.each, Servers: r.relays.servers, Points: r.relays.points, Pairs: r.relays.pairs, Procs: c.procs}
			j := job{spec: spec{Kind: "forward"}}
			switch c.kind {
			case forward.Idle, forward.IdleTLS:
				s.Count, j.most = r.relays.idle, r.relays.rests
			case forward.Churn:
				s.Count, j.most = r.relays.churn, 1
			case forward.Ring, forward.Busy:
				s.Burner = []string{r.self, childFlag, string(burner)}
				j.most = r.relays.rests // each has Pairs of its own
			}
			j.spec.Forward = s
			jobs, keys = append(jobs, j), append(keys, k)
		}
	}
	for i, o := range r.rounds(ctx, jobs) {
		outs[keys[i]] = &o
	}
	return relayRows(outs)
}

// relayPrograms builds what is to be built, and says why a relay can't be had.
// The folder of Gatehouse's is the caller's to remove.
func relayPrograms(ctx context.Context, r *runner) (exes map[string]string, errs map[string]error) {
	exes, errs = make(map[string]string), make(map[string]error)
	for _, relay := range relayJobs[0].relays {
		errs[relay] = forward.Installed(relay)
	}
	fail := func(relay string, err error) {
		if errs[relay] = err; err != nil {
			r.failed++
			fmt.Fprintln(r.log, "bench:", err)
		}
	}
	exe, err := buildAgent(ctx)
	exes[forward.Gatehouse] = exe
	fail(forward.Gatehouse, err)
	if !r.peers {
		for _, relay := range []string{forward.HAProxy, forward.HAProxySplice, forward.Nginx, forward.TCPProxy} {
			errs[relay] = errLeftOut
		}
		return exes, errs
	}
	exe, err = buildPeers(ctx, r, "tcpproxy")
	exes[forward.TCPProxy] = exe
	fail(forward.TCPProxy, err)
	return exes, errs
}

// buildAgent returns the agent's program, in a folder of its own.
func buildAgent(ctx context.Context) (exe string, err error) {
	dir, err := os.MkdirTemp("", "gatehouse-bench-")
	if err != nil {
		return "", err
	}
	exe = filepath.Join(dir, "gatehouse")
	out, err := exec.CommandContext(ctx, "go", "build", "-o", exe, "gatehouse.internal/cmd/agent").CombinedOutput()
	if err != nil {
		return exe, fmt.Errorf("building the agent: %w: %s", err, lastLine(string(bytes.TrimSpace(out))))
	}
	return exe, nil
}
