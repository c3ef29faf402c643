package lastgood

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

var web = Key{Kind: "set", Name: "web /\x00\n"}

// fixed has an item's payload be text.
func fixed(text string) func() ([]byte, error) {
	return func() ([]byte, error) { return []byte(text), nil }
}

func open(t testing.TB, cfg Config) *Store {
	t.Helper()
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// run runs s until the function that it returns is called.
func run(t testing.TB, s *Store) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	var once sync.Once
	end = func() {
		once.Do(func() {
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Errorf("Run ended with %v", err)
			}
		})
	}
	t.Cleanup(end)
	return end
}

// again opens the directory of a store that has ended.
func again(t testing.TB, s *Store, cfg Config) *Store {
	t.Helper()
	s.Close()
	return open(t, cfg)
}

func loads(t testing.TB, s *Store, k Key) string {
	t.Helper()
	i := s.Item(k)
	defer i.Release()
	r, ok := i.Load()
	if !ok {
		return "-"
	}
	return string(r.Payload)
}

// lines collects what is logged.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *lines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), text)
}

func names(t testing.TB, dir, part string) (found []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.Contains(e.Name(), part) {
			found = append(found, e.Name())
		}
	}
	return found
}

// broken is a directory whose writes fail as long as err says so.
type broken struct {
	directory
	mu      sync.Mutex
	err     error
	written []time.Time
}

func (b *broken) set(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err = err
}

func (b *broken) create(name string) (file, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return nil, b.err
	}
	b.written = append(b.written, time.Now())
	return b.directory.create(name)
}

func (b *broken) times() []time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]time.Time(nil), b.written...)
}

func path(s *Store, k Key) string { return filepath.Join(s.cfg.Dir, k.fileName()) }
