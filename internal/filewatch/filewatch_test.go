package filewatch_test

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"go.uber.org/goleak"

	"gatehouse.internal/internal/filewatch"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// replace puts data at path in one step.
func replace(t *testing.T, path, data string) {
	t.Helper()
	must(t, os.WriteFile(path+".tmp", []byte(data), 0o600))
	must(t, os.Rename(path+".tmp", path))
}

// watched is a file as somebody sees it who looks when he is told to.
type watched struct {
	t    *testing.T
	w    *filewatch.Watcher
	path string
}

func watch(t *testing.T, path string) *watched {
	w := filewatch.New(filewatch.Config{What: "test files", Paths: []string{path}, Settle: time.Millisecond})
	var wg sync.WaitGroup
	wg.Go(w.Run)
	t.Cleanup(func() { w.Close(); wg.Wait() })
	return &watched{t, w, path}
}

// sees waits until the file has this content, "" for none.
func (w *watched) sees(want string) {
	w.t.Helper()
	limit := time.After(20 * time.Second)
	for {
		w.w.Follow()
		got, _ := filewatch.Read(w.path, 100)
		if string(got) == want {
			return
		}
		select {
		case <-w.w.Changed():
		case <-limit:
			w.t.Fatalf("the file is %q, want %q", got, want)
		}
	}
}

// However a file is replaced, it is told of.
func TestChanges(t *testing.T) {
	link := func(t *testing.T, target, name string) {
		t.Helper()
		must(t, os.Symlink(target, name+".tmp"))
		must(t, os.Rename(name+".tmp", name))
	}
	t.Run("renamed over, written into, removed", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "a")
		w := watch(t, path)
		w.sees("")
		replace(t, path, "one")
		w.sees("one")
		must(t, os.WriteFile(path, []byte("two"), 0o600))
		w.sees("two")
		must(t, os.Remove(path))
		w.sees("")
		replace(t, path, "three")
		w.sees("three")
	})
	t.Run("links above it", func(t *testing.T) {
		dir := t.TempDir()
		for _, v := range []string{"1", "2"} {
			must(t, os.MkdirAll(filepath.Join(dir, "releases", v, "conf"), 0o700))
			replace(t, filepath.Join(dir, "releases", v, "conf", "a"), v)
		}
		link(t, "releases/1", filepath.Join(dir, "current"))
		link(t, "current/conf/a", filepath.Join(dir, "a"))
		w := watch(t, filepath.Join(dir, "a"))
		w.sees("1")
		link(t, "releases/2", filepath.Join(dir, "current"))
		w.sees("2")
		replace(t, filepath.Join(dir, "releases", "2", "conf", "a"), "3")
		w.sees("3")
		must(t, os.RemoveAll(filepath.Join(dir, "releases", "1")))
		replace(t, filepath.Join(dir, "b"), "4")
		link(t, "b", filepath.Join(dir, "a"))
		w.sees("4")
	})
}

// Where nothing can be watched the log says so, and all else goes on.
func TestNoWatcher(t *testing.T) {
	var log bytes.Buffer
	w := filewatch.New(filewatch.Config{
		What: "test files", Paths: []string{"a", "b"}, Interval: time.Minute, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		Open: func() (*fsnotify.Watcher, error) { return nil, errors.New("too many open files") },
	})
	w.Run() // has nothing to wait for
	w.Follow()
	w.Close()
	select {
	case <-w.Changed():
		t.Error("a change was told of")
	default:
	}
	if s := log.String(); strings.Count(s, "\n") != 1 || !strings.Contains(s, `what="test files" source="a b" interval=1m0s err="too many open files"`) {
		t.Errorf("log: %s", s)
	}
}
