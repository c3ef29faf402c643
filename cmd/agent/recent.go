package main

import (
	"bytes"
	"io"
	"sync"
)

// recentBytes is how much of the log is kept for a bug report.
const recentBytes = 256 << 10

// recentLog is a Writer that passes lines on and keeps the newest. It may be used from
// anywhere.
type recentLog struct {
	next io.Writer

	mu   sync.Mutex
	ring []byte // grows to recentBytes, then goes round
	at   int    // where the next byte goes, once it has grown
}

// Write implements io.Writer; p is whole lines. What next does not take is kept
// anyway.
func (l *recentLog) Write(p []byte) (int, error) {
	l.keep(p)
	return l.next.Write(p)
}

func (l *recentLog) keep(p []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p = p[max(len(p)-recentBytes, 0):]
	if room := min(recentBytes-len(l.ring), len(p)); room > 0 {
		l.ring = append(l.ring, p[:room]...)
		p = p[room:]
	}
	for len(p) > 0 {
		n := copy(l.ring[l.at:], p)
		l.at, p = (l.at+n)%recentBytes, p[n:]
	}
}

// lines returns the newest lines, the oldest of them first.
func (l *recentLog) lines() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.ring) < recentBytes {
		return bytes.Clone(l.ring)
	}
	all := append(bytes.Clone(l.ring[l.at:]), l.ring[:l.at]...)
	_, all, _ = bytes.Cut(all, []byte("\n")) // the first may be a part only
	return all
}
