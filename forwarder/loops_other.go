//go:build !linux

package forwarder

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
)

// LoopsConfig configures Loops.
type LoopsConfig struct{ Count int }

// Loops are event loops, of which there are none on this system.
type Loops struct{}

// NewLoops returns nil.
func NewLoops(LoopsConfig) *Loops { return nil }

// Run waits for ctx to end.
func (*Loops) Run(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }

// Turn returns nil.
func (*Loops) Turn(context.Context) error { return nil }

// Len returns 0.
func (*Loops) Len() int { return 0 }

// Connections returns nil.
func (*Loops) Connections() []int { return nil }

type port struct {
	conns             *sync.WaitGroup
	goOn              func(*session)
	bytesIn, bytesOut atomic.Uint64
}

func newPort(*Listener, net.Listener) (*port, error) { return nil, nil }

func (*port) stop() error { return nil }

func (*port) begin(*sync.WaitGroup, func(*session)) {}

func (*Loops) serve(*port, <-chan struct{}) {}

func (*Loops) cut(*Listener) {}

func (*Loops) review(*Listener) {}

type race struct{}

type acceptFD func()
type dialFD func()

func sysAccept() {}
func sysDial()   {}

func (*Loops) describe(context.Context, *Listener, int) ([]Connection, error) { return nil, nil }
