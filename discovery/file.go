package discovery

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"sync"
	"time"

	"gatehouse.internal/internal/contain"
	"gatehouse.internal/internal/filewatch"
	"gatehouse.internal/lbcore"
)

// File is the Source of an endpoints file in the format of ParseFile. Only
// Path is required.
//
// The directory of the file is watched, and that of every symbolic link on the way
// to it, so that it doesn't matter how the file is replaced: by renaming another
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
	// Panics contains those of reading a file: it counts as one with a mistake. May be
	// nil.
	Panics *contain.Panics
	// Duplicates is told of addresses that are in the file twice. May be nil.
	Duplicates *Duplicates
	// Logger gets a warning if the file can't be watched. Nil means no log.
	Logger *slog.Logger

	open filewatch.Open // a test's, or nil
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

	w := filewatch.New(filewatch.Config{
		What: "endpoints file", Paths: []string{f.Path}, Settle: f.Settle, Interval: f.Interval, Logger: f.Logger, Open: f.open,
	})
	var wg sync.WaitGroup
	wg.Go(w.Run)
	defer wg.Wait()
	defer w.Close()
	r := fileReader{File: f, watcher: w, seed: maphash.MakeSeed()}
	return Poll{
		Lookup:     r.lookup,
		MinTTL:     f.Interval,
		MaxTTL:     f.Interval,
		MinBackoff: min(100*time.Millisecond, f.Interval),
		MaxBackoff: min(4*time.Second, f.Interval), // jitter makes up to 5 s of it
		Wake:       w.Changed(),
	}.Watch(ctx, sink)
}

// fileReader is the state of one Watch.
type fileReader struct {
	File
	watcher *filewatch.Watcher

	// What the content of that size and hash came to.
	seed maphash.Seed
	size int
	hash uint64
	set  lbcore.Set
	err  error
	once bool
}

// parse is ParseFile, whose panics are mistakes in the file.
func (r *fileReader) parse(data []byte) (set lbcore.Set, dropped []lbcore.Dropped, err error) {
	defer r.Panics.Recover(contain.Decoder, &err)
	return ParseFile(r.Path, data)
}

func (r *fileReader) lookup(context.Context) (lbcore.Set, time.Duration, error) {
	// Watch first: a change after the look must not go unseen.
	r.watcher.Follow()
	data, err := filewatch.Read(r.Path, r.MaxBytes)
	if err != nil {
		return lbcore.Set{}, 0, fmt.Errorf("endpoints file: %w", err)
	}
	if hash := maphash.Bytes(r.seed, data); !r.once || r.size != len(data) || r.hash != hash {
		r.once, r.size, r.hash = true, len(data), hash
		var dropped []lbcore.Dropped
		if r.set, dropped, r.err = r.parse(data); r.err == nil {
			r.Duplicates.Note(dropped)
		}
	}
	return r.set, r.Interval, r.err
}
