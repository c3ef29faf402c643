package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// peer is a measurement of somebody else's selector.
type peer struct {
	job     job
	subject string
	beside  string // the case that it stands beside
	key     string // of the variant of that case, on one core
	built   bool   // its build is measured too
	err     error  // why it can't be measured
}

// peerKinds are the peers with the policy that each stands beside.
var peerKinds = []struct {
	pkg, kind, subject string
	beside             string
	mixed, text        bool
	most               int  // endpoints that it can be built of in reasonable time
	prepared           bool // what is timed as its build is more than that
}{
	{"plain", "grpc round_robin", "grpc-go round_robin", "round_robin", false, false, 0, false},
	{"plain", "grpc weighted_round_robin", "grpc-go weighted_round_robin", "round_robin", true, false, 0, true},
	{"plain", "grpc least_request", "grpc-go least_request, with done", "least_weight", false, false, 0, false},
	{"gozero", "go-zero p2c", "go-zero p2c_ewma, with done", "adaptive", false, false, 0, false},
	{"plain", "grpc ring_hash random", "grpc-go ring_hash, random hash", "ring_hash", false, false, 0, true},
	{"plain", "grpc ring_hash header", "grpc-go ring_hash, hash of a header", "ring_hash", false, true, 0, true},
	{"plain", "consistent", "buraksezer/consistent, key from text", "ring_hash", false, true, 1000, false},
	{"", "maglev", "dgryski/go-maglev", "maglev", false, false, 0, false},
}

var (
	errNotServed = errors.New("the module proxy does not serve it")
	errQuadratic = errors.New("its build takes minutes, as it sorts for each endpoint")
)

// peerJobs returns what is to be measured of peers, and builds their programs.
func peerJobs(ctx context.Context, r *runner, each int) (ps []peer) {
	if !r.peers {
		return nil
	}
	built := make(map[string]string)
	errs := make(map[string]error)
	for _, pkg := range []string{"plain", "gozero"} {
		if built[pkg], errs[pkg] = buildPeers(ctx, r, pkg); errs[pkg] != nil {
			r.failed++
			fmt.Fprintln(r.log, "bench:", errs[pkg])
		}
	}
	for _, n := range r.ns {
		for _, k := range peerKinds {
			c := lbCase{policy{name: k.beside}, n, k.mixed}
			p := peer{subject: k.subject, beside: c.name(), key: variant{text: k.text, cores: 1}.key(), built: !k.prepared, err: errs[k.pkg]}
			switch {
			case k.pkg == "":
				p.err = errNotServed
			case k.most > 0 && n > k.most:
				p.err = errQuadratic
			}
			p.job = job{exe: built[k.pkg], spec: spec{Kind: k.kind, N: n, EachMS: each}}
			ps = append(ps, p)
		}
	}
	return ps
}

// rows returns the figures of a peer; outs are ours, by cases.
func (p *peer) rows(o *outcome, outs []outcome, cases []lbCase) (rows []row) {
	var own *outcome
	for i, c := range cases {
		if c.name() == p.beside {
			own = &outs[i]
		}
	}
	name := "pick, " + p.beside
	for _, cores := range []int{1, 2} {
		if cores > runtime.NumCPU() || cores == 2 && len(o.samples) == 0 {
			continue
		}
		r, ok := o.row(name, fmt.Sprintf("%s, %d core%s", p.subject, cores, "s"[:cores-1]), "ns", fmt.Sprintf("ns %d", cores))
		if ok && cores == 1 {
			if ns := own.of(p.key); len(ns) > 0 {
				r = r.ratio(ours, median(ns))
			}
		}
		rows = append(rows, r)
	}
	if len(o.samples) > 0 {
		allocs, _ := o.row("allocations a pick, "+p.beside, p.subject, "", "allocs")
		rows = append(rows, allocs)
		if p.built {
			build, _ := o.row("build, "+p.beside, p.subject, "ms", "build_ms")
			rows = append(rows, build)
		}
	}
	return rows
}

// buildPeers returns the program of a package of the peers' module. It is kept
// in the cache until the module changes.
func buildPeers(ctx context.Context, r *runner, pkg string) (exe string, err error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "gatehouse.internal").Output()
	if err != nil {
		return "", fmt.Errorf("peers: finding the module: %w", err)
	}
	dir := filepath.Join(string(bytes.TrimSpace(out)), "test", "bench", "peers")
	sum, err := hashDir(dir)
	if err != nil {
		return "", fmt.Errorf("peers: %w", err)
	}
	cache := os.Getenv("GATEHOUSE_CACHE")
	if cache == "" {
		if cache, err = os.UserCacheDir(); err != nil {
			return "", fmt.Errorf("peers: %w", err)
		}
		cache = filepath.Join(cache, "gatehouse")
	}
	exe = filepath.Join(cache, "bench-"+sum, pkg)
	if _, err := os.Stat(exe); err == nil {
		return exe, nil
	}
	fmt.Fprintf(r.log, "bench: building %s, which may take minutes the first time\n", exe)
	// Under another name first: who is interrupted leaves no half of it.
	tmp := fmt.Sprintf("%s.%d", exe, os.Getpid())
	cmd := exec.CommandContext(ctx, "go", "build", "-o", tmp, "./"+pkg)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("peers: go build %s: %w: %s", pkg, err, lastLine(string(out)))
	}
	if err := os.Rename(tmp, exe); err != nil {
		return "", fmt.Errorf("peers: %w", err)
	}
	return exe, nil
}

// hashDir returns a short hash of all files in dir.
func hashDir(dir string) (string, error) {
	h := sha256.New()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		fmt.Fprintf(h, "%s %d\n%s", d.Name(), len(b), b)
		return err
	})
	return fmt.Sprintf("%x", h.Sum(nil)[:6]), err
}
