// Package loglimit bounds how many lines of one kind are logged, so that one cause that
// concerns thousands of things does not fill the log. A Limit is for a place that logs
// often; a Handler is the bound for all places, by their messages.
//
// # Usage
//
//	var limit loglimit.Limit
//	if held, ok := limit.Allow(); ok {
//		log.Warn("discovery can't tell", "cluster", name, "not_logged", held)
//	}
//	log = slog.New(loglimit.Handler(slog.NewTextHandler(os.Stderr, nil)))
//
// # Concurrency
//
// A Limit may be used by any number of goroutines. It takes a lock for a few
// assignments, and is not for what happens with each connection.
//
// # Limitations
//
// What is not logged is counted and gone: the next line says how many there were. A
// Handler goes by the message alone, so that lines about one thing may be left out for
// those about another; what is so at present is in the dumps.
package loglimit

import (
	"sync"
	"time"
)

// Burst lines may come at once, and then one each Every.
const (
	Burst = 20
	Every = time.Second
)

// Limit is the limit for lines of one kind. The zero value is ready.
type Limit struct {
	mu      sync.Mutex
	used    float64   // of Burst
	counted time.Time // of used
	held    uint64
}

// Allow reports whether a line may be logged now, and how many were not since the last
// one.
func (l *Limit) Allow() (held uint64, ok bool) { return l.allow(Burst) }

func (l *Limit) allow(burst float64) (held uint64, ok bool) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used = max(l.used-float64(now.Sub(l.counted))/float64(Every), 0)
	l.counted = now
	if l.used > burst-1 {
		l.held++
		return 0, false
	}
	l.used++
	held, l.held = l.held, 0
	return held, true
}
