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
	"time"

	"github.com/fsnotify/fsnotify"

	"gatehouse.internal/internal/filewatch"
)

// Without a watcher the file is polled, and the log says so.
func TestFileWithoutWatcher(t *testing.T) {
	path := filepath.Join(t.TempDir(), "eps.hcl")
	if err := os.WriteFile(path, []byte("endpoints = []"), 0o644); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	f := File{
		Path:     path,
		Interval: 10 * time.Millisecond,
		Logger:   slog.New(slog.NewTextHandler(&log, nil)),
		open:     func() (*fsnotify.Watcher, error) { return nil, errors.New("too many open files") },
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

// Content that is the same is not parsed again.
func TestFileSameContent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "eps.hcl")
	if err := os.WriteFile(path, []byte(`endpoints = ["10.0.0.1:80", "10.0.0.1:80"]`), 0o644); err != nil {
		t.Fatal(err)
	}
	dup := new(Duplicates)
	w := filewatch.New(filewatch.Config{Paths: []string{path}})
	defer w.Close()
	r := fileReader{watcher: w, seed: maphash.MakeSeed(), File: File{Path: path, MaxBytes: 1 << 20, Duplicates: dup}}
	for range 3 {
		if set, _, err := r.lookup(t.Context()); err != nil || set.Len() != 1 {
			t.Fatalf("got %d endpoints, error %v", set.Len(), err)
		}
	}
	if dup.Total() != 1 {
		t.Errorf("parsed %d times, want once", dup.Total())
	}
}
