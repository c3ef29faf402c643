package filewatch

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

// DefaultSettle is Config.Settle where that is 0.
const DefaultSettle = 20 * time.Millisecond

// Open makes what watches directories.
type Open func() (*fsnotify.Watcher, error)

// Config says what is watched. Paths are required.
type Config struct {
	// What the files are, for the log: "tls files".
	What string
	// Paths of the files, which need not exist.
	Paths []string
	// Settle is the time from a first sign of change until Changed tells of it, so
	// that a burst of changes is one look. 0 means DefaultSettle.
	Settle time.Duration
	// Interval is the time between two looks of the caller when nothing seems to
	// happen, for the log.
	Interval time.Duration
	// Logger gets a warning if something can't be watched. Nil means no log.
	Logger *slog.Logger
	// Open is a test's; nil means fsnotify.NewWatcher.
	Open Open
}

// Watcher watches files. New makes it.
type Watcher struct {
	cfg     Config
	log     *slog.Logger
	watcher *fsnotify.Watcher // nil: nothing can be watched
	changed chan struct{}

	// Of Follow only.
	watched []string // directories
	warned  string
}

// New returns a Watcher that watches nothing before Follow, and tells of nothing
// before Run. It is to be closed. One that can't watch is logged, and never tells
// of a change.
func New(cfg Config) *Watcher {
	w := &Watcher{cfg: cfg, changed: make(chan struct{}, 1)}
	if cfg.Settle == 0 {
		w.cfg.Settle = DefaultSettle
	}
	if cfg.Open == nil {
		w.cfg.Open = fsnotify.NewWatcher
	}
	w.log = slog.New(slog.DiscardHandler)
	if cfg.Logger != nil {
		w.log = cfg.Logger.With("what", cfg.What, "source", strings.Join(cfg.Paths, " "))
	}
	var err error
	if w.watcher, err = w.cfg.Open(); err != nil {
		w.watcher = nil
		w.log.Warn("files are polled, as they can't be watched", "interval", cfg.Interval, "err", err)
	}
	return w
}

// Changed is filled when the files may have changed. It has one slot: what is
// filled during a look is followed by another one.
func (w *Watcher) Changed() <-chan struct{} { return w.changed }

// Close ends Run.
func (w *Watcher) Close() {
	if w.watcher != nil {
		_ = w.watcher.Close() // there is nothing to be done about it
	}
}

// Run passes on what happens until Close.
func (w *Watcher) Run() {
	if w.watcher != nil {
		settle(w.watcher.Events, w.watcher.Errors, w.cfg.Settle, w.changed)
	}
}

// settle fills changed d after the first of a burst of events, and ends when the
// watcher closes its channels. An error of the watcher means that events were
// lost, so it counts as one.
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
			select {
			case changed <- struct{}{}:
			default:
			}
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

// Follow keeps the right directories watched, wherever links lead by now. It is
// called before each look at the files. Adding a directory again is cheap, and
// needed if it was replaced.
func (w *Watcher) Follow() {
	if w.watcher == nil {
		return
	}
	var want []string
	for _, p := range w.cfg.Paths {
		want = append(want, directories(p)...)
	}
	slices.Sort(want)
	want = slices.Compact(want)
	for _, d := range w.watched {
		if !slices.Contains(want, d) {
			_ = w.watcher.Remove(d) // fails only if it is gone already
		}
	}
	w.watched = want
	for _, d := range want {
		err := w.watcher.Add(d)
		if err == nil || errors.Is(err, fs.ErrNotExist) || w.warned == err.Error() {
			continue // a missing directory is what reading reports
		}
		w.warned = err.Error()
		w.log.Warn("directory of files is polled, as it can't be watched", "directory", d, "interval", w.cfg.Interval, "err", err)
	}
}

// directories returns those in which a change can change what path leads to:
// its own, and the one of each symbolic link on the way.
func directories(path string) (dirs []string) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil // there is no working directory
	}
	for range 40 { // as many links as Linux follows
		link, rest := firstLink(path)
		if link == "" {
			break
		}
		dirs = append(dirs, filepath.Dir(link))
		target, err := os.Readlink(link)
		if err != nil {
			return dirs // replaced just now, which is an event
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(link), target)
		}
		path = filepath.Join(target, rest)
	}
	return append(dirs, filepath.Dir(path))
}

// firstLink returns the shortest prefix of path that is a symbolic link, and
// what follows it.
func firstLink(path string) (link, rest string) {
	for i := 1; i <= len(path); i++ {
		if i < len(path) && !os.IsPathSeparator(path[i]) {
			continue
		}
		if info, err := os.Lstat(path[:i]); err == nil && info.Mode()&fs.ModeSymlink != 0 {
			return path[:i], path[i:]
		}
	}
	return "", ""
}
