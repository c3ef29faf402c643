package accesslog

import (
	"sync"

	"gatehouse.internal/forwarder"
	"gatehouse.internal/internal/logfile"
)

// Config is where the lines go, and how they look.
type Config struct {
	Path   string // logfile.Stdout, logfile.Stderr, or of a file
	Format string // see Parse
}

// Logs are the access logs of one listener.
type Logs struct {
	files *logfile.Files
	all   []open
}

type open struct {
	path   string
	format *Format
	w      *logfile.Writer
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
				l.all = append(l.all, open{cfg.Path, f, w})
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
		l.files.Release(o.path)
	}
}

// buffers are for lines that are being formatted.
var buffers = sync.Pool{New: func() any { return new(make([]byte, 0, 1024)) }}

// Write writes a line to each log. It does not wait: see package logfile.
func (l *Logs) Write(r *forwarder.Record) {
	if len(l.all) == 0 {
		return
	}
	b := buffers.Get().(*[]byte)
	for i := range l.all {
		o := &l.all[i]
		*b = append(o.format.Append((*b)[:0], r), '\n')
		if _, err := o.w.Write(*b); err != nil && o.path != logfile.Stderr {
			o.w.Tell() // which goes to stderr
		}
	}
	buffers.Put(b)
}
