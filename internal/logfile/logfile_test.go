//go:build unix

package logfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// run runs w until the test ends, or until the returned function is called,
// which waits for it.
func run(t *testing.T, w *Writer) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { w.Run(ctx) })
	end = func() { cancel(); wg.Wait() }
	t.Cleanup(end)
	return end
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.After(20 * time.Second); !ok(); {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("never happened: %s", what)
		}
	}
}

func content(path string) string {
	b, _ := os.ReadFile(path)
	return string(b)
}

// out is an io.Writer whose writes can be made to hang and to fail.
type out struct {
	mu   sync.Mutex
	b    bytes.Buffer
	n    int // writes
	hang chan struct{}
	room int // bytes until it is full, below 0 any number
}

func (o *out) Write(p []byte) (int, error) {
	o.mu.Lock()
	hang := o.hang
	o.mu.Unlock()
	if hang != nil {
		<-hang
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.n++
	if o.room >= 0 && len(p) > o.room {
		p = p[:o.room]
		o.room = 0
		o.b.Write(p)
		return len(p), syscall.ENOSPC
	}
	if o.room >= 0 {
		o.room -= len(p)
	}
	return o.b.Write(p)
}

func (o *out) set(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f()
}

func (o *out) text() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// Lines of many writers come out whole, those of each in order, and all of them
// at the end.
func TestLinesInOrder(t *testing.T) {
	o := &out{room: -1}
	w := NewWriter(Config{Name: "x", Out: o})
	end := run(t, w)
	var wg sync.WaitGroup
	const writers, each = 4, 500
	for i := range writers {
		wg.Go(func() {
			for j := range each {
				if _, err := fmt.Fprintf(w, "%d %d\n", i, j); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	end()
	var next [writers]int
	for line := range strings.Lines(o.text()) {
		var i, j int
		if n, err := fmt.Sscanf(line, "%d %d\n", &i, &j); n != 2 || err != nil || j != next[i] {
			t.Fatalf("line %q after %v", line, next)
		}
		next[i]++
	}
	if s := w.Stats(); next != [writers]int{each, each, each, each} || s.Written != writers*each || s.Lost != 0 || s.Err != nil {
		t.Errorf("lines %v, stats %+v", next, s)
	}
	if _, err := io.WriteString(w, "late\n"); err != ErrFull || w.Stats().Lost != 1 {
		t.Errorf("after the end: %v, %+v", err, w.Stats())
	}
}

// While a write hangs, as to a pipe that nobody reads, lines are lost and
// counted, and nobody waits. They are told of now and then, and when it goes on.
func TestHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &out{room: -1, hang: make(chan struct{})}
		var told []Stats
		w := NewWriter(Config{Name: "x", Out: o, Queue: 100, Lost: func(s Stats) { told = append(told, s) }})
		end := run(t, w)
		line := []byte(strings.Repeat("x", 9) + "\n")
		write := func() bool { _, err := w.Write(line); return err == nil }
		if !write() {
			t.Fatal("lost at once")
		}
		synctest.Wait() // it hangs in the first line
		taken := 0
		for range 100 {
			if write() {
				taken++
			} else {
				w.Tell()
			}
		}
		if taken != 10 || w.Stats().Lost != 90 {
			t.Errorf("%d lines are waiting, %+v", taken, w.Stats())
		}
		if len(told) != 1 || told[0].Lost != 1 {
			t.Errorf("told %+v", told)
		}
		<-time.After(6 * time.Second)
		w.Tell()
		w.Tell()
		if len(told) != 2 || told[1].Lost != 90 {
			t.Errorf("told %+v", told)
		}
		write() // lost, and not told yet
		o.set(func() { close(o.hang); o.hang = nil })
		synctest.Wait()
		if s := w.Stats(); s.Written != 11 || s.Lost != 91 {
			t.Errorf("stats %+v", s)
		}
		<-time.After(6 * time.Second)
		synctest.Wait()
		if len(told) != 3 || told[2].Lost != 91 {
			t.Errorf("told %+v", told)
		}
		end()
	})
}

// A full disk costs the lines that don't fit; what is torn is ended.
func TestFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &out{room: 6}
		var told []Stats
		w := NewWriter(Config{Name: "x", Out: o, Lost: func(s Stats) { told = append(told, s) }})
		end := run(t, w)
		io.WriteString(w, "one\n")
		synctest.Wait()
		io.WriteString(w, "two\nthree\n")
		synctest.Wait()
		if s := w.Stats(); s.Written != 1 || s.Lost != 2 || s.Err != syscall.ENOSPC || len(told) != 1 || told[0] != s {
			t.Errorf("stats %+v, told %+v", s, told)
		}
		io.WriteString(w, "four\n")
		synctest.Wait()
		o.set(func() { o.room = -1 })
		io.WriteString(w, "five\n")
		synctest.Wait()
		if s := w.Stats(); s.Written != 2 || s.Lost != 3 || s.Err != nil || o.text() != "one\ntw\nfive\n" {
			t.Errorf("stats %+v, text %q", s, o.text())
		}
		end()
	})
}

// A logger's stderr that is a pipe which nobody reads makes nobody wait, and its
// losses are told in the log itself.
func TestLoggerOnStuckPipe(t *testing.T) {
	r, p, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var log atomic.Pointer[slog.Logger]
	w := NewWriter(Config{Name: "stderr", Out: p, Lost: func(s Stats) { log.Load().Warn("log lines were lost", "lines", s.Lost) }})
	log.Store(slog.New(slog.NewTextHandler(w, nil)))
	end := run(t, w)
	for range 40_000 { // some 4 MB; a pipe holds 64 KiB
		log.Load().Info("a line", "filler", strings.Repeat("x", 60))
	}
	if w.Stats().Lost == 0 {
		t.Error("nothing was lost")
	}
	read := make(chan string)
	go func() {
		b, _ := io.ReadAll(r)
		read <- string(b)
	}()
	eventually(t, "it is told", func() bool { return w.Stats().Written > 0 && w.told.Load() > 0 })
	log.Load().Error("the last one")
	end()
	p.Close()
	if got := <-read; !strings.Contains(got, "log lines were lost") || !strings.HasSuffix(got, "the last one\"\n") {
		t.Errorf("the end is %q", got[max(0, len(got)-300):])
	}
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "access.log")
	var stdout out
	stdout.room = -1
	stderr := NewWriter(Config{Name: "stderr", Out: &stdout})
	fs := &Files{Stdout: &stdout, Stderr: stderr}
	use := func(path string) *Writer {
		w, err := fs.Use(path)
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	a, b := use(path), use(path)
	if a != b || use(Stderr) != stderr {
		t.Error("not the same Writer")
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o640 {
		t.Errorf("%v, %v", fi, err)
	}
	io.WriteString(a, "one\n")
	io.WriteString(use(Stdout), "to stdout\n")
	eventually(t, "it is written", func() bool { return content(path) == "one\n" && stdout.text() == "to stdout\n" })

	// Moved, as by logrotate: SIGHUP, and without.
	move := func(to string) {
		if err := os.Rename(path, filepath.Join(dir, to)); err != nil {
			t.Fatal(err)
		}
	}
	move("1")
	fs.Reopen()
	eventually(t, "it is there again", func() bool { _, err := os.Stat(path); return err == nil })
	io.WriteString(b, "two\n")
	eventually(t, "it is written", func() bool { return content(path) == "two\n" })
	move("2")
	eventually(t, "it is noticed", func() bool {
		io.WriteString(a, "three\n")
		return strings.HasPrefix(content(path), "three\n")
	})
	if one := content(filepath.Join(dir, "1")); one != "one\n" {
		t.Errorf("the first file has %q", one)
	}

	// Closed when nobody uses it, and open again for who is late.
	fs.Release(path)
	io.WriteString(a, "four\n")
	eventually(t, "it is written", func() bool { return strings.HasSuffix(content(path), "four\n") })
	fs.Release(path)
	fs.Release(Stderr)
	eventually(t, "it is closed", func() bool { return !hasOpen(t, path) })
	io.WriteString(a, "five\n")
	eventually(t, "it is written", func() bool { return strings.HasSuffix(content(path), "four\nfive\n") })
	if err := fs.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if hasOpen(t, path) {
		t.Error("it is open after the end")
	}
	st := fs.Stats()
	if len(st) != 2 || st[0].Name != path || st[0].Lost != 0 || st[1].Name != Stdout || st[1].Written != 1 {
		t.Errorf("stats %+v", st)
	}
}

// hasOpen reports whether the process has a file open.
func hasOpen(t *testing.T, path string) bool {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && to == path {
			return true
		}
	}
	return false
}

// What can't be opened is an error that names it; a file that goes bad later is
// tried again.
func TestCantOpen(t *testing.T) {
	dir := t.TempDir()
	fs := new(Files)
	if w, err := fs.Use(filepath.Join(dir, "none", "x")); w != nil || !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "none/x") {
		t.Errorf("%v, %v", w, err)
	}
	if _, err := fs.Use(dir); !errors.Is(err, syscall.EISDIR) {
		t.Error(err)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := fs.Use(fifo); !errors.Is(err, syscall.ENXIO) { // and no wait for its reader
		t.Error(err)
	}
	sub := filepath.Join(dir, "sub")
	path := filepath.Join(sub, "x")
	if err := os.Mkdir(sub, 0o700); err != nil {
		t.Fatal(err)
	}
	w, err := fs.Use(path)
	if err != nil {
		t.Fatal(err)
	}
	fs.Release(path)
	eventually(t, "it is closed", func() bool { return !hasOpen(t, path) })
	if err := os.RemoveAll(sub); err != nil {
		t.Fatal(err)
	}
	io.WriteString(w, "lost\n")
	eventually(t, "it is lost", func() bool { s := w.Stats(); return s.Lost == 1 && errors.Is(s.Err, os.ErrNotExist) })
	if err := os.Mkdir(sub, 0o700); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is there again", func() bool { io.WriteString(w, "x\n"); return content(path) != "" })
	if err := fs.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if s := w.Stats(); s.Err != nil {
		t.Error(s.Err)
	}
}

// Close gives up on what hangs.
func TestCloseIsBounded(t *testing.T) {
	o := &out{room: -1, hang: make(chan struct{})}
	fs := &Files{Stdout: o}
	w, _ := fs.Use(Stdout)
	io.WriteString(w, "x\n")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := fs.Close(ctx); err != context.Canceled {
		t.Error(err)
	}
	close(o.hang)
	if err := fs.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// Writing allocates nothing once the queue has grown.
func TestWriteAllocatesNothing(t *testing.T) {
	w := NewWriter(Config{Name: "x", Out: io.Discard})
	line := []byte("a line\n")
	for range 10_000 {
		w.Write(line)
	}
	w.flush()
	w.queue = make([]byte, 0, keepQueue)
	if n := testing.AllocsPerRun(1000, func() { w.Write(line) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Losses are told of by a clock that nobody sets.
func TestTellingIgnoresTheWallClock(t *testing.T) {
	w := NewWriter(Config{Name: "x", Out: io.Discard, Queue: 1, Lost: func(Stats) {}})
	w.Write([]byte("too long\n"))
	w.Tell()
	if last := w.tellAt.Load(); last == nil || *last == last.Round(0) {
		t.Errorf("%v has no monotonic reading", last)
	}
}
