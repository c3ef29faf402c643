package logfile

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// DefaultQueue is how many bytes wait to be written at most.
	DefaultQueue = 1 << 20
	// keepQueue is how much of a queue's memory is kept for the next lines.
	keepQueue = 64 << 10
	// checkEvery is how often a file is looked at: it may have been moved.
	checkEvery = time.Second
	// tellEvery is how often losses are told at most.
	tellEvery = 5 * time.Second
	// fileMode is that of new files: logs name clients.
	fileMode = 0o640
)

// ErrFull is what Write returns for a line that is lost.
var ErrFull = errors.New("the line is lost: too much waits to be written")

// Config configures a Writer. Exactly one of Out and Path is set.
type Config struct {
	Name string    // for Stats
	Out  io.Writer // is written to and never closed
	Path string    // of a file
	// Queue is how many bytes wait to be written at most; more are lost. 0 means
	// DefaultQueue.
	Queue int
	// Lost, if set, is told by Run's goroutine, and by Tell, that lines were lost
	// since it was told last, at most once in 5 s. It must not block.
	Lost func(Stats)
}

// Stats are the totals of a Writer since it was made, in lines.
type Stats struct {
	Name string
	// Written lines were taken by the system, Lost ones were not: the queue was
	// full, or writing failed.
	Written, Lost uint64
	// Err is why the last attempt to open or write failed, nil if it did not.
	Err error
}

// Writer writes lines in the order in which it gets them.
type Writer struct {
	cfg  Config
	wake chan struct{}

	mu    sync.Mutex // held for copies only
	queue []byte     // whole lines
	over  bool       // Run has ended

	written, lost, told atomic.Uint64
	tellAt              atomic.Pointer[time.Time] // of the last time; the wall clock may be set back
	reopen, rest        atomic.Bool
	failure             atomic.Pointer[error]

	// Run's goroutine's, and before it the maker's:
	file  *os.File // of Path; nil while it is not open
	next  time.Time
	torn  bool // the last line was not written to its end
	spare []byte
}

// NewWriter returns a Writer that writes once Run runs.
func NewWriter(cfg Config) *Writer {
	if cfg.Queue <= 0 {
		cfg.Queue = DefaultQueue
	}
	return &Writer{cfg: cfg, wake: make(chan struct{}, 1)}
}

// Write has p, which is one or more whole lines, written soon. It does not wait:
// if there is no room p is lost, which is counted, and the error is ErrFull. p is
// not kept. It may be called from anywhere.
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	fits := !w.over && len(w.queue)+len(p) <= w.cfg.Queue
	if fits {
		w.queue = append(w.queue, p...)
	}
	w.mu.Unlock()
	if !fits {
		w.lost.Add(uint64(bytes.Count(p, newline)))
		return 0, ErrFull
	}
	w.poke()
	return len(p), nil
}

var newline = []byte("\n")

func (w *Writer) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Reopen has the file opened anew, as after it was moved. It may be called from
// anywhere, and does not wait.
func (w *Writer) Reopen() {
	w.reopen.Store(true)
	w.poke()
}

// Stats returns the present totals. It may be called from anywhere.
func (w *Writer) Stats() Stats {
	s := Stats{Name: w.cfg.Name, Written: w.written.Load(), Lost: w.lost.Load()}
	if err := w.failure.Load(); err != nil {
		s.Err = *err
	}
	return s
}

// Tell tells Config.Lost of losses, if it is time to. It is for those whose line
// Write has refused: while a write hangs, Run tells nothing. It may be called from
// anywhere but from what Lost logs through.
func (w *Writer) Tell() { w.tell() }

// tell reports whether there is something left to tell.
func (w *Writer) tell() bool {
	lost := w.lost.Load()
	if lost == w.told.Load() || w.cfg.Lost == nil {
		return false
	}
	last := w.tellAt.Load()
	if last != nil && time.Since(*last) < tellEvery || !w.tellAt.CompareAndSwap(last, new(time.Now())) {
		return true
	}
	w.told.Store(lost)
	w.cfg.Lost(w.Stats())
	return false
}

// Run writes until ctx ends, then what is left, and closes the file. It is called
// once.
func (w *Writer) Run(ctx context.Context) {
	later := time.NewTimer(0)
	later.Stop()
	defer later.Stop()
	for {
		select {
		case <-w.wake:
		case <-later.C:
		case <-ctx.Done():
			w.mu.Lock()
			w.over = true
			w.mu.Unlock()
			w.flush()
			w.tell()
			w.closeFile()
			return
		}
		if w.reopen.Swap(false) && w.file != nil {
			w.openFile()
		}
		w.flush()
		if w.rest.Swap(false) {
			w.closeFile()
		}
		if w.tell() {
			later.Reset(tellEvery)
		}
	}
}

// flush writes what is in the queue.
func (w *Writer) flush() {
	w.mu.Lock()
	batch := w.queue
	w.queue = w.spare[:0]
	w.mu.Unlock()
	if w.spare = nil; len(batch) == 0 {
		if cap(batch) <= keepQueue {
			w.spare = batch
		}
		return
	}
	n, err := w.write(batch)
	w.written.Add(uint64(bytes.Count(batch[:n], newline)))
	w.lost.Add(uint64(bytes.Count(batch[n:], newline)))
	if err != nil {
		w.failure.Store(&err)
	} else {
		w.failure.Store(nil)
	}
	if cap(batch) <= keepQueue {
		w.spare = batch[:0]
	}
}

// write writes whole lines, and returns how many of their bytes were taken.
func (w *Writer) write(batch []byte) (int, error) {
	out := w.cfg.Out
	if w.cfg.Path != "" {
		if err := w.look(); err != nil {
			return 0, err
		}
		out = w.file
	}
	if w.torn {
		if _, err := out.Write(newline); err != nil {
			return 0, err
		}
		w.torn = false
	}
	n, err := out.Write(batch)
	if n = min(max(n, 0), len(batch)); n < len(batch) && err == nil {
		err = io.ErrShortWrite
	}
	w.torn = n > 0 && batch[n-1] != '\n'
	return n, err
}

// look opens the file if it is not open, or is not at its path any more. While
// that fails the open one is written to, wherever it is.
func (w *Writer) look() error {
	now := time.Now()
	if now.Before(w.next) {
		if w.file == nil {
			return w.Stats().Err // no attempt before its time
		}
		return nil
	}
	if w.file != nil {
		have, err1 := w.file.Stat()
		there, err2 := os.Stat(w.cfg.Path)
		if err1 == nil && err2 == nil && os.SameFile(have, there) {
			w.next = now.Add(checkEvery)
			return nil
		}
	}
	if err := w.openFile(); err != nil && w.file == nil {
		return err
	}
	return nil
}

// openFile opens the file and closes the one that was open, which stays if
// there is no other to be had.
func (w *Writer) openFile() error {
	w.next = time.Now().Add(checkEvery)
	// A named pipe without a reader is an error with O_NONBLOCK, not a wait.
	f, err := os.OpenFile(w.cfg.Path, os.O_WRONLY|os.O_CREATE|os.O_APPEND|syscall.O_NONBLOCK, fileMode)
	if err != nil {
		w.failure.Store(&err)
		return err
	}
	w.closeFile()
	w.file, w.torn = f, false
	return nil
}

func (w *Writer) closeFile() {
	if w.file == nil {
		return
	}
	if err := w.file.Close(); err != nil {
		w.failure.Store(&err) // as of a network's file system that has no room
	}
	w.file = nil
	w.next = time.Time{} // the next line opens it
}
