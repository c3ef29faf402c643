package lastgood

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// The times between attempts to write, after failures.
const (
	minBackoff = time.Second
	maxBackoff = time.Minute
)

// share bounds what writing takes of the time: what takes long is done less often.
const share = 20

// tellEvery is how often failures are logged at most.
const tellEvery = time.Minute

// writer is what Run's goroutine does, and what it tells.
type writer struct {
	s         *Store
	backoff   time.Duration   // 0: the last attempt succeeded
	took      time.Duration   // by the last pass
	confirmed entry           // says until when the others were right
	refused   map[string]bool // files that can't be kept
	changed   bool            // by this pass

	mu      sync.Mutex
	told    time.Time
	failing bool // that it does was told
}

// Run writes what is put, until ctx ends; then it writes what is left, and returns
// ctx.Err(). A nil Store has nothing to do.
func (s *Store) Run(ctx context.Context) error {
	if s == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	tick := time.NewTicker(s.cfg.Tick)
	defer tick.Stop()
	due := time.NewTimer(0) // runs from the first Put on, or after a failure
	due.Stop()
	defer due.Stop()
	waiting, late, suspended := false, false, false
	for {
		select {
		case o := <-s.orders:
			if suspended = o.suspend; suspended {
				s.writer.pass(ctx, true)
				s.Close()
			} else {
				due.Reset(0)
				waiting, late = true, true
			}
			close(o.done)
			continue
		case <-s.wake:
			if !waiting {
				due.Reset(max(s.cfg.Delay, s.writer.backoff, min(share*s.writer.took, maxBackoff)))
				waiting = true
			}
			continue
		case <-due.C:
			if waiting = false; suspended {
				continue
			}
			s.writer.pass(ctx, late)
			late = false
		case <-tick.C:
			if suspended {
				continue
			}
			if waiting {
				late = true // with the next pass, which is soon
				continue
			}
			s.writer.pass(ctx, true)
		case <-ctx.Done():
			if !suspended {
				s.writer.pass(ctx, true)
			}
			return ctx.Err()
		}
		if s.writer.backoff > 0 && !waiting {
			due.Reset(s.writer.backoff)
			waiting = true
		}
	}
}

// order has Run suspend or go on.
type order struct {
	suspend bool
	done    chan struct{} // closed when it does
}

// Suspend writes what is left and gives the directory to another process, which may
// Open it then: nothing is written before Resume, nor when Run ends. It waits for Run,
// which must be running, or returns ctx's error. A nil Store has nothing to give.
func (s *Store) Suspend(ctx context.Context) error { return s.order(ctx, true) }

// Resume is the end of Suspend: what was put meanwhile is written, as soon as no other
// process has the directory.
func (s *Store) Resume(ctx context.Context) error { return s.order(ctx, false) }

func (s *Store) order(ctx context.Context, suspend bool) error {
	if s == nil {
		return nil
	}
	o := order{suspend, make(chan struct{})}
	select {
	case s.orders <- o:
	case <-ctx.Done():
		return ctx.Err()
	}
	<-o.done
	return nil
}

// pass writes what is dirty, and with all also what may have changed.
func (w *writer) pass(ctx context.Context, all bool) {
	s := w.s
	type job struct {
		*entry
		encode func() ([]byte, error)
	}
	var jobs []job
	s.mu.Lock()
	for _, e := range s.entries {
		if e.dirty || all && e.often {
			jobs = append(jobs, job{e, e.encode})
			e.dirty = false
		}
	}
	prune := s.prune
	s.prune = false
	s.mu.Unlock()
	slices.SortFunc(jobs, func(a, b job) int { return strings.Compare(a.file, b.file) })

	begin := time.Now()
	defer func() { w.took = time.Since(begin) }()
	w.changed = false
	locked := s.lock()
	if locked == nil {
		w.setAside()
	}
	err := locked
	for _, j := range jobs {
		failed := locked
		if failed == nil {
			failed = w.write(j.entry, j.encode)
		}
		if failed != nil { // smaller ones may fit
			err = failed
			s.mu.Lock()
			j.dirty = true
			s.mu.Unlock()
		}
	}
	if err == nil && prune {
		err = w.prune(ctx)
	}
	if err == nil && all {
		err = w.confirm()
	}
	if w.changed {
		err = errors.Join(err, s.cfg.files.sync())
	}
	if err != nil {
		w.backoff = min(max(2*w.backoff, minBackoff), maxBackoff)
		s.fail(err)
		return
	}
	w.recovered()
}

// setAside renames the files that are damaged, and removes the oldest of those that were
// before, and those that are larger than a file may be. One that can't be renamed is passed over all the same, and may be replaced.
func (w *writer) setAside() {
	s := w.s
	s.mu.Lock()
	asides := maps.Clone(s.asides)
	s.mu.Unlock()
	if len(asides) == 0 {
		return
	}
	w.changed = true
	for name, aside := range asides {
		if err := s.cfg.files.rename(name, aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.log.Error("a file of state_dir that can't be used stays where it is", "file", s.dir.path(name), "err", err)
		}
		s.mu.Lock()
		delete(s.asides, name)
		s.mu.Unlock()
	}
	var old []string
	entries, _ := os.ReadDir(s.cfg.Dir)
	for _, e := range entries {
		if !strings.Contains(e.Name(), damagedTag) {
			continue
		}
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() && info.Size() > s.cfg.MaxFile {
			if err := s.cfg.files.remove(e.Name()); err != nil {
				s.log.Error("a file of state_dir that is too large to be kept can't be removed", "file", s.dir.path(e.Name()), "bytes", info.Size(), "err", err)
			} else {
				s.log.Error("a file of state_dir that was set aside is removed, it is too large to be kept", "file", s.dir.path(e.Name()), "bytes", info.Size(), "limit", s.cfg.MaxFile)
			}
			continue
		}
		old = append(old, e.Name())
	}
	age := func(name string) string { return name[strings.LastIndex(name, damagedTag):] }
	slices.SortFunc(old, func(a, b string) int { return strings.Compare(age(a), age(b)) })
	for _, name := range old[:max(len(old)-maxDamaged, 0)] {
		s.cfg.files.remove(name)
	}
}

// sizeError says that an item is too large.
type sizeError struct {
	k           Key
	size, limit int64
	what        string
}

func (e *sizeError) Error() string {
	return fmt.Sprintf("%s %q is not kept: %d bytes are more than the %d of %s", e.k.Kind, e.k.Name, e.size, e.limit, e.what)
}

// write brings the file of e up to date. What can't be kept leaves none: an older
// one would pass for the last.
func (w *writer) write(e *entry, encode func() ([]byte, error)) error {
	if encode == nil {
		return w.remove(e)
	}
	payload, err := encode()
	if err == nil {
		err = w.save(e, payload)
		if _, ok := errors.AsType[*sizeError](err); !ok {
			return err
		}
	} else {
		err = fmt.Errorf("%s %q is not kept: %w", e.key.Kind, e.key.Name, err)
	}
	w.refused[e.file] = true
	w.s.fail(err)
	return w.remove(e)
}

// save writes the file of e, unless it has this payload.
func (w *writer) save(e *entry, payload []byte) error {
	s, k, name := w.s, e.key, e.file
	sum, now := sha256.Sum256(payload), time.Now()
	s.mu.Lock()
	same, confirmed := sum == e.sum, e.confirmed(now)
	s.mu.Unlock()
	if same {
		return nil
	}
	if confirmed.IsZero() { // nobody says
		confirmed = now
	}
	data, err := encode(k, confirmed, payload)
	if err != nil {
		return err
	}
	size := int64(len(data))
	s.mu.Lock()
	total := s.total - s.sizes[name] + size
	s.mu.Unlock()
	switch {
	case size > s.cfg.MaxFile:
		return &sizeError{k, size, s.cfg.MaxFile, "one file"}
	case total > s.cfg.MaxTotal:
		return &sizeError{k, total, s.cfg.MaxTotal, "all files"}
	}
	w.changed = true
	if err := replace(s.cfg.files, name, data); err != nil {
		return err
	}
	delete(w.refused, name)
	s.written.Add(1)
	s.mu.Lock()
	e.sum = sum
	s.total += size - s.sizes[name]
	s.sizes[name] = size
	s.mu.Unlock()
	return nil
}

func (w *writer) remove(e *entry) error {
	w.s.mu.Lock()
	e.sum = [32]byte{}
	w.s.mu.Unlock()
	return w.removeFile(e.file)
}

func (w *writer) removeFile(name string) error {
	w.changed = true
	if err := w.s.cfg.files.remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	w.s.forget(name)
	return nil
}

// prune removes the files that nobody has claimed. At the end everybody gives up
// what was claimed: nothing is removed then.
func (w *writer) prune(ctx context.Context) error {
	s := w.s
	claimed := map[string]bool{w.confirmed.file: true}
	var left []*entry
	var gone []string
	s.mu.Lock()
	for _, e := range s.entries {
		if claimed[e.file] = e.claims > 0; e.claims <= 0 {
			left = append(left, e)
		}
	}
	ended := ctx.Err() != nil // after the claims were looked at
	for _, e := range left {
		if !ended {
			delete(s.entries, e.key)
			delete(w.refused, e.file)
		}
	}
	for name := range s.sizes {
		if !claimed[name] {
			gone = append(gone, name)
		}
	}
	s.mu.Unlock()
	if ended {
		return nil
	}
	for _, name := range gone {
		if err := w.removeFile(name); err != nil {
			return err
		}
		s.pruned.Add(1)
	}
	if len(gone) > 0 {
		s.log.Info("files of state_dir that nothing in the configuration uses any more were removed", "files", len(gone))
	}
	return nil
}

// confirm writes until when the items are right.
func (w *writer) confirm() error {
	s := w.s
	at := make(map[string]time.Time)
	s.mu.Lock()
	now := time.Now()
	for _, e := range s.entries {
		if t := e.confirmed(now); !t.IsZero() {
			at[e.file] = t.UTC().Truncate(time.Second)
		}
	}
	s.mu.Unlock()
	if len(at) == 0 {
		return nil
	}
	b, err := json.Marshal(at) // sorted by name
	if err != nil {
		return err
	}
	return w.write(&w.confirmed, func() ([]byte, error) { return b, nil })
}

// tell logs a failure, unless one was a short while ago.
func (w *writer) tell(err error) {
	now := time.Now()
	w.mu.Lock()
	quiet := w.failing && now.Sub(w.told) < tellEvery
	if !quiet {
		w.told, w.failing = now, true
	}
	w.mu.Unlock()
	if !quiet {
		w.s.log.Error("state_dir can't be written, a restart will know less; it is tried again", "dir", w.s.cfg.Dir, "err", err)
	}
}

// recovered notes that writing succeeds.
func (w *writer) recovered() {
	s := w.s
	w.backoff = 0
	if len(w.refused) > 0 {
		return
	}
	s.mu.Lock()
	was := s.err != ""
	s.err, s.since = "", time.Time{}
	s.mu.Unlock()
	w.mu.Lock()
	w.failing = false
	w.mu.Unlock()
	if was {
		s.log.Info("state_dir is written again", "dir", s.cfg.Dir)
	}
}
