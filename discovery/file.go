package discovery

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"gatehouse.internal/lbcore"
)

// File is the Source of an endpoints file in the format of ParseFile. Only
// Path is required.
//
// The directory of the file is watched, and the one that a symbolic link leads
// to, so that it doesn't matter how the file is replaced: by renaming another
// over it, by switching a link above it (Kubernetes' ConfigMaps), or by writing
// into it. What happens to other files there costs one read at most each
// Settle. Content that can't be used is a Fail that says where it is wrong, and
// so is a file that is missing; the last good set stays. Both are tried again
// within 5 s, and at once when something changes.
//
// Where the system can't watch (no more inotify instances, some network file
// systems), the file is polled every Interval; the first case is logged.
type File struct {
	// Path of the file: JSON if it ends in ".json", HCL if not.
	Path string
	// MaxBytes is the largest file that is read. Zero means 4 MiB, which holds
	// about 80,000 endpoints with attributes. Parsing that takes a second or
	// two, and about a hundred times as much memory.
	MaxBytes int64
	// Interval is the time between two looks at the file when nothing seems to
	// happen. Zero means 30 s.
	Interval time.Duration
	// Settle is the time from a first sign of change to the look at the file,
	// so that a burst of changes is one look. Zero means 20 ms.
	Settle time.Duration
	// Duplicates is told of addresses that are in the file twice. May be nil.
	Duplicates *Duplicates
	// Logger gets a warning if the file can't be watched. Nil means no log.
	Logger *slog.Logger

	newWatcher func() (*fsnotify.Watcher, error) // a test's, or nil
}

// Watch implements Source.
func (f File) Watch(ctx context.Context, sink Sink) error {
	switch {
	case f.Path == "":
		return errors.New("endpoints file: no path")
	case f.MaxBytes < 0 || f.Interval < 0 || f.Settle < 0:
		return fmt.Errorf("endpoints file %s: neither size nor times may be negative", f.Path)
	}
	if f.MaxBytes == 0 {
		f.MaxBytes = 4 << 20
	}
	if f.Interval == 0 {
		f.Interval = 30 * time.Second
	}
	if f.Settle == 0 {
		f.Settle = 20 * time.Millisecond
	}
	if f.Logger == nil {
		f.Logger = slog.New(slog.DiscardHandler)
	}
	if f.newWatcher == nil {
		f.newWatcher = fsnotify.NewWatcher
	}

	r := fileReader{File: f, seed: maphash.MakeSeed()}
	changed := make(chan struct{}, 1)
	if w, err := f.newWatcher(); err != nil {
		f.Logger.Warn("endpoints file is polled, as it can't be watched", "source", f.Path, "interval", f.Interval, "err", err)
	} else {
		r.watcher = w
		var wg sync.WaitGroup
		wg.Go(func() { settle(w.Events, w.Errors, f.Settle, changed) })
		defer wg.Wait()
		defer w.Close()
	}
	return Poll{
		Lookup:     r.lookup,
		MinTTL:     f.Interval,
		MaxTTL:     f.Interval,
		MinBackoff: min(100*time.Millisecond, f.Interval),
		MaxBackoff: min(4*time.Second, f.Interval), // jitter makes up to 5 s of it
		Wake:       changed,
	}.Watch(ctx, sink)
}

// settle fills changed d after the first of a burst of events, and ends when
// the watcher closes its channels. An error of the watcher means that events
// were lost, so it counts as one.
func settle(events <-chan fsnotify.Event, errs <-chan error, d time.Duration, changed chan<- struct{}) {
	timer := time.NewTimer(d)
	timer.Stop()
	running := false
	for {
		ok := true
		select {
		case _, ok = <-events:
		case _, ok = <-errs:
		case <-timer.C:
			running = false
			wake(changed)
			continue
		}
		if !ok {
			timer.Stop()
			return
		}
		if !running {
			running = true
			timer.Reset(d)
		}
	}
}

// fileReader is the state of one Watch.
type fileReader struct {
	File
	watcher *fsnotify.Watcher // nil: polled only
	watched []string          // directories
	warned  string

	// What the content of that size and hash came to.
	seed maphash.Seed
	size int
	hash uint64
	set  lbcore.Set
	err  error
	once bool
}

func (r *fileReader) lookup(context.Context) (lbcore.Set, time.Duration, error) {
	// Watch first: a change after the look must not go unseen.
	if r.watcher != nil {
		r.watch()
	}
	data, err := readFile(r.Path, r.MaxBytes)
	if err != nil {
		return lbcore.Set{}, 0, fmt.Errorf("endpoints file: %w", err)
	}
	if hash := maphash.Bytes(r.seed, data); !r.once || r.size != len(data) || r.hash != hash {
		r.once, r.size, r.hash = true, len(data), hash
		var dropped []lbcore.Dropped
		if r.set, dropped, r.err = ParseFile(r.Path, data); r.err == nil {
			r.Duplicates.Note(dropped)
		}
	}
	return r.set, r.Interval, r.err
}

// watch keeps the right directories watched. Adding one again is cheap, and
// needed if it was replaced.
func (r *fileReader) watch() {
	dirs := []string{filepath.Dir(r.Path)}
	if real, err := filepath.EvalSymlinks(r.Path); err == nil && filepath.Dir(real) != dirs[0] {
		dirs = append(dirs, filepath.Dir(real))
	}
	for _, d := range r.watched {
		if !slices.Contains(dirs, d) {
			_ = r.watcher.Remove(d) // fails only if it is gone already
		}
	}
	r.watched = dirs
	for _, d := range dirs {
		err := r.watcher.Add(d)
		if err == nil || errors.Is(err, fs.ErrNotExist) || r.warned == err.Error() {
			continue // a missing directory is what reading reports
		}
		r.warned = err.Error()
		r.Logger.Warn("directory of an endpoints file is polled, as it can't be watched", "source", r.Path, "directory", d, "interval", r.Interval, "err", err)
	}
}

// readFile reads a regular file of up to limit bytes. Anything else, such as a
// pipe, could block for ever.
func readFile(path string, limit int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("%s is larger than %d bytes", path, limit)
	}
	return data, err
}
