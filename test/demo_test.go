package test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// An interrupt ends the demo in good order, with its ending told.
func TestDemoInterrupted(t *testing.T) {
	needsServer(t)
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), path, "demo")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	last := ""
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if last = lines.Text(); strings.HasPrefix(last, "agent: ready") {
			cmd.Process.Signal(syscall.SIGINT)
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v; the last line was %q", err, last)
	}
	if !strings.Contains(last, " connections, 0 failed") {
		t.Errorf("the last line is not the summary: %q", last)
	}
}

// The demo does the whole main job in one process; what it prints must show
// that nothing was lost but what the stopped backend had.
func TestDemo(t *testing.T) {
	needsServer(t)
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), path, "demo", "-duration", "6s", "-json")
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, &stderr, out)
	}
	var r struct {
		Connections, Failed, Cut int
		FailedAfterDetection     int   `json:"failed_after_detection"`
		DetectionMS              int64 `json:"detection_ms"`
		Endpoints                []struct {
			Address     string
			Connections int
			Healthy     bool
		}
		Selectors []struct {
			Cluster, Name, Policy           string
			Generation, Rebuilds, Coalesced uint64
		}
		Probes struct{ Targets, Views int }
	}
	dec := json.NewDecoder(bytes.NewReader(out))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&r); err != nil {
		t.Fatalf("not one JSON object of the documented shape: %v\n%s", err, out)
	}
	if r.Connections < 200 || r.Failed != 0 || r.FailedAfterDetection != 0 || r.DetectionMS <= 0 {
		t.Errorf("connections %d, failed %d, failed after detection %d, detection %d ms",
			r.Connections, r.Failed, r.FailedAfterDetection, r.DetectionMS)
	}
	// Three at first, one of which stopped and one was removed, and one added.
	healthy := 0
	for i, e := range r.Endpoints {
		if e.Healthy {
			healthy++
		}
		if e.Connections == 0 {
			t.Errorf("endpoint %d (%s) never took a connection", i, e.Address)
		}
	}
	if len(r.Endpoints) != 4 || healthy != 2 {
		t.Errorf("%d endpoints, %d healthy: want 4 and 2", len(r.Endpoints), healthy)
	}
	policies := make(map[string]bool)
	for _, s := range r.Selectors {
		policies[s.Policy] = true
		// The first membership, one added, one removed.
		if s.Generation != 3 || s.Rebuilds+s.Coalesced != 3 {
			t.Errorf("%s/%s: generation %d, %d rebuilds, %d coalesced: want 3 in all", s.Cluster, s.Name, s.Generation, s.Rebuilds, s.Coalesced)
		}
	}
	if len(r.Selectors) != 3 || !policies["ring_hash"] || !policies["least_weight"] {
		t.Errorf("selectors: %+v", r.Selectors)
	}
	// Three endpoints are listed in each of two clusters.
	if r.Probes.Targets != 3 || r.Probes.Views != 2 {
		t.Errorf("probes: %+v, want 3 targets and 2 views", r.Probes)
	}
}
