package accesslog

import (
	"math/rand/v2"
	"slices"
	"strings"
	"sync"

	"gatehouse.internal/forwarder"
	"gatehouse.internal/internal/logfile"
)

// Config is where the lines go, how they look, and which connections get one.
type Config struct {
	Path   string // logfile.Stdout, logfile.Stderr, or of a file
	Format string // see Parse
	// Sample is the share of connections that get a line, by chance, 0 to 1; with
	// SampleFailures off each that ended with a flag gets one. Zero for both is only
	// these.
	Sample         float64
	SampleFailures bool
	// DurationOp, if not empty, wants a Duration that is =, !=, >= or <= to
	// DurationMillis.
	// Source: DurationFilter.
	DurationOp     string
	DurationMillis uint32
	// Flagged wants connections that ended with one of Flags, short names with commas
	// between, or with any for "".
	// Source: ResponseFlagFilter.
	Flagged bool
	Flags   string
}

// Logs are the access logs of one listener.
type Logs struct {
	files *logfile.Files
	all   []open
}

type open struct {
	cfg    Config
	flags  [forwarder.NumFlags]bool // those of cfg
	format *Format
	w      *logfile.Writer
}

// wants reports whether a connection gets a line.
func (o *open) wants(r *forwarder.Record) bool {
	if o.cfg.Flagged && !o.flags[r.Flag] {
		return false
	}
	millis, limit := r.Duration.Milliseconds(), int64(o.cfg.DurationMillis)
	switch o.cfg.DurationOp {
	case "=":
		if millis != limit {
			return false
		}
	case "!=":
		if millis == limit {
			return false
		}
	case ">=":
		if millis < limit {
			return false
		}
	case "<=":
		if millis > limit {
			return false
		}
	}
	if !o.cfg.SampleFailures && r.Flag != forwarder.FlagNone {
		return true
	}
	return o.cfg.Sample >= 1 || o.cfg.Sample > 0 && rand.Float64() < o.cfg.Sample
}

// flagsOf returns the flags that names, with commas between, are of; all but FlagNone
// for "". Those that a connection can't have here are passed over.
func flagsOf(names string) (on [forwarder.NumFlags]bool) {
	all := strings.Split(names, ",")
	for f := range forwarder.Flag(forwarder.NumFlags) {
		on[f] = f != forwarder.FlagNone && (names == "" || slices.Contains(all, f.String()))
	}
	return on
}

// Open opens the logs of a listener. An error says which file can't be opened;
// then none is.
func Open(files *logfile.Files, cfgs ...Config) (*Logs, error) {
	l := &Logs{files: files}
	for _, cfg := range cfgs {
		f, _, err := Parse(cfg.Format)
		if err == nil {
			var w *logfile.Writer
			if w, err = files.Use(cfg.Path); err == nil {
				l.all = append(l.all, open{cfg, flagsOf(cfg.Flags), f, w})
			}
		}
		if err != nil {
			l.Close()
			return nil, err
		}
	}
	return l, nil
}

// Close says that the listener has ended. A Write that comes later all the same
// is not lost.
func (l *Logs) Close() {
	for _, o := range l.all {
		l.files.Release(o.cfg.Path)
	}
}

// buffers are for lines that are being formatted.
var buffers = sync.Pool{New: func() any { return new(make([]byte, 0, 1024)) }}

// Write writes a line to each log that wants one. It does not wait: see package logfile.
func (l *Logs) Write(r *forwarder.Record) {
	if len(l.all) == 0 {
		return
	}
	b := buffers.Get().(*[]byte)
	for i := range l.all {
		o := &l.all[i]
		if !o.wants(r) {
			continue
		}
		*b = append(o.format.Append((*b)[:0], r), '\n')
		if _, err := o.w.Write(*b); err != nil && o.cfg.Path != logfile.Stderr {
			o.w.Tell() // which goes to stderr
		}
	}
	buffers.Put(b)
}
