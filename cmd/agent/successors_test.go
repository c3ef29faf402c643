package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

// heard calls f with the message of each line that is logged.
type heard struct {
	slog.Handler
	f func(msg string)
}

func (h heard) Handle(ctx context.Context, r slog.Record) error {
	h.f(r.Message)
	return h.Handler.Handle(ctx, r)
}

// Who is told that the agent is ready can have it taken over from.
func TestReadyToBeTakenOver(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "takeover.sock")
	found := make(chan error, 1)
	r := startRunningWith(t, fmt.Sprintf("takeover { socket = %q }\n", socket), func(r *running) {
		r.agent.log = slog.New(heard{r.agent.log.Handler(), func(msg string) {
			if msg == "ready" {
				_, err := os.Lstat(socket)
				found <- err
			}
		}})
	})
	r.await("it is ready", func() bool { return r.has("/ready", "LIVE") })
	if err := <-found; err != nil {
		t.Errorf("when it says that it is ready: %v", err)
	}
}

// What nobody waits for is not done while listeners change, or another process takes over.
func TestTryChange(t *testing.T) {
	a := &agent{succession: newSuccession()}
	try := func() (done bool) {
		if ok := a.tryChange(func() { done = true }); ok != done {
			t.Errorf("it says %t, and has done so: %t", ok, done)
		}
		return done
	}
	for range 2 {
		if !try() {
			t.Error("nothing is done although nobody changes anything")
		}
	}
	if err := a.changeListeners(t.Context(), func() error {
		if try() {
			t.Error("something is done while listeners change")
		}
		return nil
	}); err != nil || !try() {
		t.Errorf("afterwards nothing is done: %v", err)
	}
}
