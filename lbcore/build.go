package lbcore

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
)

// plan is a build that is known to be possible.
type plan struct {
	builder Builder
	snap    *Snapshot
	tiers   []tierPlan
}

type tierPlan struct {
	in       partInput
	u64, u32 int
}

// newPlan splits snap into the parts that get a selector each and asks how much
// storage each needs.
func newPlan(b Builder, spread Spread, snap *Snapshot, prev *published) (p *plan, err error) {
	defer recovered(&err)
	p = &plan{builder: b, snap: snap}
	for _, in := range inputs(snap, spread, isKeyed(b)) {
		if prev != nil {
			in.Prev = prev.selector(in.place)
		}
		t := tierPlan{in: in}
		if t.u64, t.u32, err = b.Shape(in.Input); err != nil {
			return nil, err
		}
		p.tiers = append(p.tiers, t)
	}
	return p, nil
}

func (p *plan) bytes() (n int) {
	for _, t := range p.tiers {
		n += 8*t.u64 + 4*t.u32
	}
	return n
}

// yieldParts is how many selectors are built between two yields.
const yieldParts = 1024

// build runs the builds of all parts under the one permit.
func (p *plan) build(ctx context.Context) (pub *published, err error) {
	defer recovered(&err)
	yield := func() error {
		runtime.Gosched() // let connections through
		return ctx.Err()
	}
	pub = &published{snap: p.snap}
	for i, t := range p.tiers {
		if i%yieldParts == yieldParts-1 { // small ones may not yield themselves
			if err := yield(); err != nil {
				return nil, err
			}
		}
		st := &Storage{U64: make([]uint64, t.u64), U32: make([]uint32, t.u32)}
		sel, err := p.builder.Build(t.in.Input, st, yield)
		if err == nil && sel == nil {
			err = errors.New("no selector was built") // else the next pick would crash
		}
		if err != nil {
			return nil, err
		}
		pub.add(&t.in, sel)
		pub.bytes += st.Bytes()
	}
	return pub, nil
}

// recovered turns a panic of a Builder into an error: a bug in one policy must
// not end the agent, and what is published still serves.
func recovered(err *error) {
	if x := recover(); x != nil {
		*err = fmt.Errorf("panic: %v\n%s", x, debug.Stack())
	}
}
