package discovery

import (
	"bytes"
	"context"
	"errors"
	"hash/maphash"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
)

func TestSettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const d = 20 * time.Millisecond
		start := time.Now()
		events, errs := make(chan fsnotify.Event), make(chan error)
		changed := make(chan struct{}, 1)
		done := make(chan struct{})
		go func() {
			defer close(done)
			settle(events, errs, d, changed)
		}()
		expect := func(what string, at time.Duration) {
			t.Helper()
			<-changed
			if got := time.Since(start); got != at {
				t.Errorf("%s: told at %v, want %v", what, got, at)
			}
		}
		for range 50 { // a burst
			events <- fsnotify.Event{}
			<-time.After(100 * time.Microsecond)
		}
		expect("burst", d)
		<-time.After(time.Second - d)
		errs <- fsnotify.ErrEventOverflow
		expect("overflow", time.Second+d)

		// Events without end can't put it off.
		stop := make(chan struct{})
		go func() {
			for {
				select {
				case events <- fsnotify.Event{}:
					<-time.After(time.Millisecond)
				case <-stop:
					close(stop)
					return
				}
			}
		}()
		expect("endless", time.Second+2*d)
		stop <- struct{}{}
		<-stop

		events <- fsnotify.Event{} // one that is still settling at the end
		close(events)
		<-done
	})
}

// Without a watcher the file is polled, and the log says so.
func TestFileWithoutWatcher(t *testing.T) {
	path := filepath.Join(t.TempDir(), "eps.hcl")
	if err := os.WriteFile(path, []byte("endpoints = []"), 0o644); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	f := File{
		Path:       path,
		Interval:   10 * time.Millisecond,
		Logger:     slog.New(slog.NewTextHandler(&log, nil)),
		newWatcher: func() (*fsnotify.Watcher, error) { return nil, errors.New("too many open files") },
	}
	ctx, cancel := context.WithCancel(t.Context())
	l := NewLatest()
	done := make(chan error)
	go func() { done <- f.Watch(ctx, l) }()
	<-l.Changed()
	if err := os.WriteFile(path, []byte(`endpoints = ["10.0.0.1:80"]`), 0o644); err != nil {
		t.Fatal(err)
	}
	for l.State().Set.Len() != 1 {
		<-l.Changed()
	}
	cancel()
	if err := <-done; err != context.Canceled {
		t.Errorf("Watch returned %v", err)
	}
	if s := log.String(); strings.Count(s, "\n") != 1 || !strings.Contains(s, "too many open files") {
		t.Errorf("want one warning that names the cause, got %s", s)
	}
}

// A directory that can't be watched is warned of once.
func TestFileDirectoryNotWatchable(t *testing.T) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil { // every Add fails from now on
		t.Fatal(err)
	}
	var log bytes.Buffer
	r := fileReader{watcher: w, File: File{Path: filepath.Join(t.TempDir(), "eps.hcl"), Logger: slog.New(slog.NewTextHandler(&log, nil))}}
	r.watch()
	r.watch()
	if s := log.String(); strings.Count(s, "\n") != 1 || !strings.Contains(s, "can't be watched") {
		t.Errorf("want one warning, got %s", s)
	}
}

// Content that is the same is not parsed again.
func TestFileSameContent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "eps.hcl")
	if err := os.WriteFile(path, []byte(`endpoints = ["10.0.0.1:80", "10.0.0.1:80"]`), 0o644); err != nil {
		t.Fatal(err)
	}
	dup := new(Duplicates)
	r := fileReader{seed: maphash.MakeSeed(), File: File{Path: path, MaxBytes: 1 << 20, Duplicates: dup}}
	for range 3 {
		if set, _, err := r.lookup(t.Context()); err != nil || set.Len() != 1 {
			t.Fatalf("got %d endpoints, error %v", set.Len(), err)
		}
	}
	if dup.Total() != 1 {
		t.Errorf("parsed %d times, want once", dup.Total())
	}
}
