package filewatch

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
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

// A directory that can't be watched is warned of once.
func TestDirectoryNotWatchable(t *testing.T) {
	var log bytes.Buffer
	w := New(Config{
		What: "test files", Paths: []string{filepath.Join(t.TempDir(), "a")}, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		Open: func() (*fsnotify.Watcher, error) {
			w, err := fsnotify.NewWatcher()
			if err != nil {
				return nil, err
			}
			return w, w.Close() // every Add fails from now on
		},
	})
	defer w.Close()
	w.Follow()
	w.Follow()
	if s := log.String(); strings.Count(s, "\n") != 1 || !strings.Contains(s, "can't be watched") {
		t.Errorf("want one warning, got %s", s)
	}
}

func TestDirectories(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"real/sub", "links", "loop"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{
		"links/rel":  "../real",
		"links/abs":  filepath.Join(dir, "links/rel/sub"),
		"links/file": "abs/x.pem",
		"loop/a":     "b",
		"loop/b":     "a",
	} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string][]string{
		"real/x.pem":      {"real"},
		"links/rel/x.pem": {"links", "real"},
		"links/abs/x.pem": {"links", "real/sub"},
		"links/file":      {"links", "real/sub"},
		"missing/x.pem":   {"missing"},
		"loop/a":          {"loop"},
	} {
		got := directories(filepath.Join(dir, path))
		slices.Sort(got)
		got = slices.Compact(got)
		for i := range want {
			want[i] = filepath.Join(dir, want[i])
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}
