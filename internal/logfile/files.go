package logfile

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
)

// The names that stand for the process's own streams.
const (
	Stdout = "stdout"
	Stderr = "stderr"
)

// Files are the files that are written to, each once, however many use it. The
// zero value is ready. Its fields are set before the first Use.
type Files struct {
	// Stdout and Stderr are what these names stand for; nil stands for the
	// process's own. Stderr is for the Writer that the log is written to as well,
	// which Files neither runs nor ends.
	Stdout io.Writer
	Stderr *Writer
	// Lost is told of the losses of each Writer but Stderr; see Config.
	Lost func(Stats)

	wg    sync.WaitGroup
	mu    sync.Mutex // not held while a file is opened or written
	open  map[string]*shared
	ended bool
}

type shared struct {
	*Writer
	users int
	end   context.CancelFunc
}

// Use returns the Writer of a path, or of Stdout or Stderr. An error says that the
// file can't be opened. Each Use is followed by one Release. The Writer may be
// used after that too: who has its last lines to write is not waited for.
func (fs *Files) Use(path string) (*Writer, error) {
	if path == Stderr && fs.Stderr != nil {
		return fs.Stderr, nil
	}
	if w := fs.another(path, nil); w != nil {
		return w, nil
	}
	cfg := Config{Name: path, Lost: fs.Lost}
	switch {
	case path == Stderr:
		cfg.Out = os.Stderr
	case path != Stdout:
		cfg.Path = path
	case fs.Stdout != nil:
		cfg.Out = fs.Stdout
	default:
		cfg.Out = os.Stdout
	}
	w := NewWriter(cfg)
	if cfg.Path != "" {
		if err := w.openFile(); err != nil {
			return nil, fmt.Errorf("can't open the log %q: %w", path, err)
		}
	}
	return fs.another(path, w), nil
}

// another counts one more user of a path. If there is no Writer for it yet, w is
// from now on, or if that is nil too, nothing happens.
func (fs *Files) another(path string, w *Writer) *Writer {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	s := fs.open[path]
	switch {
	case s != nil:
		if w != nil {
			w.closeFile()
		}
	case w == nil:
		return nil
	default:
		ctx, cancel := context.WithCancel(context.Background())
		s = &shared{Writer: w, end: cancel}
		if fs.open == nil {
			fs.open = make(map[string]*shared)
		}
		if fs.open[path] = s; fs.ended {
			cancel()
		}
		fs.wg.Go(func() { w.Run(ctx) })
	}
	s.users++
	return s.Writer
}

// Release says that one user less writes to a path. When it was the last one
// the file is closed, and opened again should another line come.
func (fs *Files) Release(path string) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	s := fs.open[path]
	if s == nil {
		return
	}
	if s.users--; s.users == 0 {
		s.rest.Store(true)
		s.poke()
	}
}

// Reopen has all files opened anew, as after they were moved. It does not wait.
func (fs *Files) Reopen() {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, s := range fs.open {
		s.Reopen()
	}
}

// Stats returns the totals of every Writer but the field Stderr, by name.
func (fs *Files) Stats() []Stats {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	all := make([]Stats, 0, len(fs.open))
	for _, s := range fs.open {
		all = append(all, s.Stats())
	}
	slices.SortFunc(all, func(a, b Stats) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Close writes what is left and closes all files, or gives up when ctx ends,
// whose error it returns then. Nothing can be written any more, and no Use
// may come at the same time.
func (fs *Files) Close(ctx context.Context) error {
	fs.mu.Lock()
	fs.ended = true
	for _, s := range fs.open {
		s.end()
	}
	fs.mu.Unlock()
	done := make(chan struct{})
	go func() {
		fs.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
