package lbcore

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"time"
)

// plan is a build that is known to be possible.
type plan struct {
	builder Builder
	snap    *Snapshot
	bounded bool
	tiers   []tierPlan

	u64, u32 int // what all need
}

type tierPlan struct {
	in       partInput
	u64, u32 int
}

// newPlan splits snap into the parts that get a selector each and asks how much
// storage each needs. A selector that takes more than most bytes is an error.
func newPlan(cfg SlotConfig, spread Spread, snap *Snapshot, prev *published, most int) (p *plan, err error) {
	defer recovered(&err)
	b := cfg.Builder
	p = &plan{builder: b, snap: snap, bounded: cfg.BalanceFactor > 0}
	for _, in := range inputs(snap, spread, isKeyed(b)) {
		if prev != nil {
			in.Prev = prev.selector(in.place)
		}
		t := tierPlan{in: in}
		if t.u64, t.u32, err = b.Shape(in.Input); err != nil {
			return nil, err
		}
		if t.u64 < 0 || t.u32 < 0 || t.u64 > most || t.u32 > most {
			return nil, tooLarge(t.u64, t.u32, most)
		}
		p.tiers = append(p.tiers, t)
		p.u64, p.u32 = p.u64+t.u64, p.u32+t.u32
		if p.bytes() > most {
			return nil, tooLarge(p.u64, p.u32, most)
		}
	}
	return p, nil
}

func tooLarge(u64, u32, most int) error {
	return fmt.Errorf("storage of %d + %d bytes is more than gate.max_storage (%d): ask for a smaller ring or table, or raise it", 8*u64, 4*u32, most)
}

// bytes returns the storage that the selector needs.
func (p *plan) bytes() int { return regionBytes(p.u64, p.u32) }

// A build works for minSlice before it lets others have its thread, and for up to
// maxSlice where it had to wait for the next turn: on cores that are all busy
// nearly all of its time would be waiting, and that of those behind it in the
// gate.
const (
	minSlice = 100 * time.Microsecond
	maxSlice = 2 * time.Millisecond
)

// yieldParts is how many selectors are built between two yields.
const yieldParts = 1024

// build runs the builds of all parts under the one permit, in r. A large build has
// a thread of its own, so that each time it yields that thread sleeps: where Go has
// more Ps than there are CPUs, nobody else may want its P while others, of this
// process and of the others, want its CPU, which it would keep until the kernel
// takes it. At 10,000 round trips a second through event loops, that made three
// times the p99.
func (p *plan) build(ctx context.Context, r *region, large bool) (pub *published, err error) {
	defer recovered(&err)
	if large {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
	}
	turn, slice := time.Now(), minSlice
	yield := func() error {
		if now := time.Now(); now.Sub(turn) >= slice {
			runtime.Gosched() // let connections through
			turn = time.Now()
			slice = min(max(turn.Sub(now)/4, minSlice), maxSlice)
		}
		return ctx.Err()
	}
	pub = &published{generation: p.snap.Generation, region: r}
	c := r.carve(p.u64, p.u32)
	for i, t := range p.tiers {
		if i%yieldParts == yieldParts-1 { // small ones may not yield themselves
			if err := yield(); err != nil {
				return nil, err
			}
		}
		sel, err := p.builder.Build(t.in.Input, c.next(t.u64, t.u32), yield)
		if err == nil && sel == nil {
			err = errors.New("no selector was built") // else the next pick would crash
		}
		if err != nil {
			return nil, err
		}
		pub.add(&t.in, sel, p.bounded)
	}
	return pub, nil
}

// PanicError is a panic of a Builder. A bug in one policy must not end the agent, and
// what is published still serves.
type PanicError struct {
	Value any
	Stack []byte // as debug.Stack has it
}

// Error has the value and the stack.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v\n%s", e.Value, e.Stack) }

// recovered turns a panic of a Builder into an error.
func recovered(err *error) {
	if x := recover(); x != nil {
		*err = &PanicError{x, debug.Stack()}
	}
}
