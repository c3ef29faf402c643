package main

import (
	"log/slog"
	"testing"
	"time"
)

// The demo goes on round after round, and loses nothing in any of them.
func TestDemoRounds(t *testing.T) {
	if testing.Short() {
		t.Skip("left out by -short: it needs a server")
	}
	d := &demo{opts: demoOptions{act: 300 * time.Millisecond, rounds: 4}, say: t.Logf}
	r, err := d.run(t.Context(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if r.Failed != 0 || r.FailedAfterDetection != 0 || r.Connections < 200 {
		t.Errorf("%+v", r)
	}
	// Three at first and one more each round; the last round's stopped one and
	// those that were removed are not healthy.
	healthy, served := 0, 0
	for _, e := range r.Endpoints {
		served += e.Connections
		if e.Healthy {
			healthy++
		}
	}
	if len(r.Endpoints) != 7 || healthy != 2 {
		t.Errorf("%d endpoints, %d healthy: want 7 and 2", len(r.Endpoints), healthy)
	}
	if served > r.Connections || served < r.Connections-r.Cut {
		t.Errorf("backends served %d of %d connections, %d cut", served, r.Connections, r.Cut)
	}
}
