package lastgood

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// The defaults of Config.
const (
	DefaultMaxFile  = 64 << 20
	DefaultMaxTotal = 1 << 30
	DefaultDelay    = time.Second
	DefaultTick     = 30 * time.Second
)

const (
	suffix     = ".state"
	tmpPrefix  = ".tmp-"
	lockName   = "lock"
	damagedTag = ".damaged-"
	maxDamaged = 8 // files that were set aside
)

// confirmedKey is the item that says until when the others were right.
var confirmedKey = Key{Kind: "confirmed"}

// Config says where a Store is, and what it may take. Only Dir is required.
type Config struct {
	// Dir is an absolute path. It is made with mode 0700 if it is not there. See
	// Check for what it must not be; nor may it belong to another user than the
	// process's own and root.
	Dir string
	// MaxFile and MaxTotal bound one file and all of them together, in bytes. What
	// would be more is not written, which is counted as a failure. 0 means
	// DefaultMaxFile and DefaultMaxTotal.
	MaxFile, MaxTotal int64
	// Delay is how long after a first Put the files are written: what is put
	// meanwhile is written once. Where writing takes long it is 20 times that, up to
	// a minute. 0 means DefaultDelay.
	Delay time.Duration
	// Tick is how often it is written down until when items are right, and those
	// of PutOften are looked at. 0 means DefaultTick.
	Tick time.Duration
	// Logger gets files that were set aside, and failures. Nil means none.
	Logger *slog.Logger

	files files // a test's, or nil
}

// Key names an item. Kind is a short word of small letters, which begins the name
// of the file; Name is any text. Both are in the file: nothing secret.
type Key struct{ Kind, Name string }

// LockedError says that another process uses the directory.
type LockedError struct {
	Dir string
	// PID is the process id of the other, or empty if it is not known.
	PID string
}

// Error names the directory and the other process.
func (e *LockedError) Error() string {
	who := "another process"
	if e.PID != "" {
		who = "process " + e.PID
	}
	return fmt.Sprintf("%s is in use by %s: each agent needs a directory of its own", e.Dir, who)
}

var errLocked = errors.New("locked")

// Stats says what a Store has done and how it is. It is for dumps.
type Stats struct {
	Dir string
	// Files and Bytes are what is on disk.
	Files int
	Bytes int64
	// Written counts files that were written, Failures attempts that failed,
	// Damaged files that were set aside, Pruned those that nobody claimed.
	Written, Failures, Damaged, Pruned uint64
	// Err is why the last attempt to write failed, since Since; empty if none did.
	Err   string
	Since time.Time
}

// Store is a directory of items. Make one with Open.
type Store struct {
	cfg  Config
	dir  directory
	log  *slog.Logger
	wake chan struct{} // one slot: something is dirty

	orders chan order // Suspend and Resume

	written, failures, damaged, pruned atomic.Uint64

	mu        sync.Mutex // held for a few assignments only
	entries   map[Key]*entry
	sizes     map[string]int64     // of the files on disk
	total     int64                // of sizes
	confirmed map[string]time.Time // of the last run, by file
	asides    map[string]string    // what files that are passed over will be called
	prune     bool                 // asked for
	err       string
	since     time.Time

	lockFile *os.File // Open's, then Run's, then Close's
	writer   writer   // Run's
}

// entry is an item that somebody has claimed.
type entry struct {
	key    Key
	file   string
	claims int
	often  bool
	dirty  bool
	encode func() ([]byte, error) // nil: to be removed, if dirty
	fresh  bool
	until  time.Time // when it ceased to be fresh; zero: it never was
	sum    [32]byte  // of what the file has; the zero value: not known, or no file
}

// Open opens the directory and locks it. It returns a *LockedError if another
// process has it, and another error if it can't be used: see Config.Dir. That it can't be
// written to is no error: see the package comment.
func Open(cfg Config) (*Store, error) {
	if err := Check(cfg.Dir); err != nil {
		return nil, err
	}
	if info, err := os.Stat(cfg.Dir); err == nil {
		if err := owned(info); err != nil {
			return nil, fmt.Errorf("%s can't be believed: %w: have it belong to the agent's user, or remove it", cfg.Dir, err)
		}
	}
	cfg.MaxFile, cfg.MaxTotal = cmp.Or(cfg.MaxFile, DefaultMaxFile), cmp.Or(cfg.MaxTotal, DefaultMaxTotal)
	cfg.Delay, cfg.Tick = cmp.Or(cfg.Delay, DefaultDelay), cmp.Or(cfg.Tick, DefaultTick)
	s := &Store{
		cfg: cfg, dir: directory(cfg.Dir), log: cfg.Logger, wake: make(chan struct{}, 1), orders: make(chan order),
		entries: make(map[Key]*entry), sizes: make(map[string]int64), asides: make(map[string]string),
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.cfg.files == nil {
		s.cfg.files = s.dir
	}
	s.writer.s, s.writer.refused = s, make(map[string]bool)
	s.writer.confirmed = entry{key: confirmedKey, file: confirmedKey.fileName()}
	if err := s.lock(); err != nil {
		if _, ok := errors.AsType[*LockedError](err); ok {
			return nil, err
		}
		s.fail(err)
	}
	s.list()
	s.confirmed = s.loadConfirmed()
	return s, nil
}

// lock makes and locks the directory, unless that was done.
func (s *Store) lock() error {
	if s.lockFile != nil {
		return nil
	}
	if err := os.MkdirAll(s.cfg.Dir, 0o700); err != nil {
		return err
	}
	if info, err := os.Stat(s.cfg.Dir); err == nil && info.Mode().Perm()&0o055 != 0 {
		s.log.Warn("state_dir can be read by others, its files can't; mode 0700 is enough for it", "dir", s.cfg.Dir, "mode", info.Mode().Perm().String())
	}
	f, held, err := lock(filepath.Join(s.cfg.Dir, lockName))
	if errors.Is(err, errLocked) {
		return &LockedError{Dir: s.cfg.Dir, PID: held}
	}
	if err == nil {
		s.lockFile = f
	}
	return err
}

// Close gives the directory to others. It is called after Run has returned, and
// nothing is written from then on.
func (s *Store) Close() {
	if s != nil && s.lockFile != nil {
		s.lockFile.Close()
		s.lockFile = nil
	}
}

// list learns what is there, and removes what a crash has left half written.
func (s *Store) list() {
	entries, err := os.ReadDir(s.cfg.Dir)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			s.fail(err)
		}
		return
	}
	for _, e := range entries {
		switch name := e.Name(); {
		case strings.HasPrefix(name, tmpPrefix):
			if s.lockFile != nil {
				s.cfg.files.remove(name)
			}
		case strings.HasSuffix(name, suffix):
			if info, err := e.Info(); err == nil {
				s.sizes[name] = info.Size()
				s.total += info.Size()
			}
		}
	}
}

// Item returns the item of that key, and claims it until its Release. Several may
// claim one.
func (s *Store) Item(k Key) *Item {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[k]
	if e == nil {
		e = &entry{key: k, file: k.fileName()}
		s.entries[k] = e
	}
	e.claims++
	return &Item{s: s, e: e}
}

// Prune has Run remove the files that nobody has claimed, unless its context ends
// first. It must do so before claims are released because everything ends.
func (s *Store) Prune() {
	if s == nil {
		return
	}
	s.mu.Lock()
	s.prune = true
	s.mu.Unlock()
	s.poke()
}

// Stats returns the present numbers; the zero Stats of a nil Store.
func (s *Store) Stats() Stats {
	if s == nil {
		return Stats{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return Stats{
		Dir: s.cfg.Dir, Files: len(s.sizes), Bytes: s.total,
		Written: s.written.Load(), Failures: s.failures.Load(), Damaged: s.damaged.Load(), Pruned: s.pruned.Load(),
		Err: s.err, Since: s.since,
	}
}

func (s *Store) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// fail notes that the directory can't be written to.
func (s *Store) fail(err error) {
	s.failures.Add(1)
	s.mu.Lock()
	if s.err == "" {
		s.since = time.Now()
	}
	s.err = err.Error()
	s.mu.Unlock()
	s.writer.tell(err)
}

// setAside passes over a file that is damaged, and has Run rename it: a process that
// reads the directory and may not write it yet leaves it to the one that may.
func (s *Store) setAside(name string, why error) {
	s.damaged.Add(1)
	aside := name + damagedTag + time.Now().UTC().Format("20060102T150405.000000000")
	s.log.Error("a file of state_dir can't be used and is set aside, the agent goes on without it",
		"file", s.dir.path(name), "err", why, "aside", aside)
	s.forget(name)
	s.mu.Lock()
	s.asides[name] = aside
	s.mu.Unlock()
	s.poke()
}

// forget notes that a file is not there any more.
func (s *Store) forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total -= s.sizes[name]
	delete(s.sizes, name)
}
