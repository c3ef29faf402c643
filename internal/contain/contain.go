// Package contain turns panics into errors where that is safe: where whatever was being
// done shares no state with anything else, so that giving it up leaves nothing half
// written. Everywhere else a panic ends the process.
//
// # Usage
//
//	panics := &contain.Panics{Log: log}
//
//	func probe() (err error) {
//		defer panics.Recover(contain.Probe, &err)
//		…
//	}
//
// A nil *Panics contains nothing: tests see the panic.
//
// # Concurrency
//
// All methods may be called from anywhere.
//
// # Limitations
//
// What the runtime calls fatal (a map that is written by two, no memory, a stack that is
// too large) can't be contained. Locks that the panic passes stay locked: where one may
// be held nothing is to be contained.
package contain

import (
	"bytes"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Place says what was given up.
type Place uint8

// The places.
const (
	Connection Place = iota // one client's connection
	Probe                   // one probe of a health check
	Build                   // one build of a selector
	Decoder                 // one message of a discovery mechanism
	Request                 // one request to the admin interface

	NumPlaces = iota // how many there are: 0 to NumPlaces-1
)

var places = [NumPlaces]string{Connection: "connection", Probe: "probe", Build: "build", Decoder: "decoder", Request: "request"}

// String returns the word for metrics and logs.
func (p Place) String() string {
	if p < NumPlaces {
		return places[p]
	}
	return fmt.Sprintf("Place(%d)", uint8(p))
}

// A cause, which is the line of code that has panicked, is logged with its stack once,
// and again every tellEvery at most, and there are maxCauses of them: the others are one.
const (
	tellEvery = time.Minute
	maxCauses = 64
	maxStack  = 16 << 10 // bytes
)

// Panics counts what was contained, and tells it. The zero value is ready, and tells
// nobody.
type Panics struct {
	Log *slog.Logger // nil means none; set before the first use

	counts [NumPlaces]atomic.Uint64
	mu     sync.Mutex
	causes map[string]*cause
}

// cause is when a panic at one place was told, and how often it was not since.
type cause struct {
	told time.Time
	held int
}

// Error is a panic that was contained.
type Error struct {
	Place Place
	Value any // of the panic
}

// Error says what it is, without the stack.
func (e *Error) Error() string { return fmt.Sprintf("a bug in the agent: panic: %.200v", e.Value) }

// Recover is to be deferred: it contains a panic and makes it *err. A panic that is none changes
// nothing.
func (p *Panics) Recover(at Place, err *error) {
	if p == nil {
		return
	}
	if x := recover(); x != nil {
		*err = p.Caught(at, x, debug.Stack())
	}
}

// Caught counts and logs a panic that somebody has recovered, and returns it as an
// *Error. Stack is debug.Stack of then.
func (p *Panics) Caught(at Place, value any, stack []byte) error {
	err := &Error{at, value}
	if p == nil {
		return err
	}
	p.counts[at].Add(1)
	where := location(stack)
	key, now := at.String()+" "+where, time.Now()
	p.mu.Lock()
	if p.causes == nil {
		p.causes = make(map[string]*cause)
	}
	c := p.causes[key]
	if c == nil && len(p.causes) >= maxCauses {
		key = "others"
		c = p.causes[key]
	}
	if c == nil {
		c = new(cause)
		p.causes[key] = c
	}
	tell := c.told.IsZero() || now.Sub(c.told) >= tellEvery
	held := c.held
	if tell {
		c.told, c.held = now, 0
	} else {
		c.held++
	}
	p.mu.Unlock()
	if tell && p.Log != nil {
		p.Log.Error("a panic was contained: this is a bug, please report it with its stack", "in", at.String(), "at", where,
			"panic", fmt.Sprintf("%.200v", value), "not_logged", held, "stack", string(stack[:min(len(stack), maxStack)]))
	}
	return err
}

// Count returns how many were contained at a place. A nil Panics has none.
func (p *Panics) Count(at Place) uint64 {
	if p == nil {
		return 0
	}
	return p.counts[at].Load()
}

// location returns the file and line that has panicked, or "" if the stack does not
// say.
func location(stack []byte) string {
	_, rest, ok := bytes.Cut(stack, []byte("\npanic("))
	if !ok {
		return ""
	}
	lines := strings.Split(string(rest), "\n")
	for i := 2; i+1 < len(lines); i += 2 { // behind the place of panic itself
		if !strings.HasPrefix(lines[i], "runtime.") {
			at, _, _ := strings.Cut(strings.TrimSpace(lines[i+1]), " ")
			return at
		}
	}
	return ""
}
