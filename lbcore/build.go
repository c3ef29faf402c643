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
	tiers   []tierPlan
}

type tierPlan struct {
	in       Input
	u64, u32 int
}

// newPlan splits snap by priority and asks how much storage each part needs.
// A selector that takes more than most bytes is an error.
func newPlan(b Builder, snap *Snapshot, prev *published, most int) (p *plan, err error) {
	defer recovered(&err)
	p = &plan{builder: b, snap: snap}
	for _, in := range inputs(snap) {
		if prev != nil {
			in.Prev = prev.selector(in.Endpoints[0].Priority)
		}
		t := tierPlan{in: in}
		if t.u64, t.u32, err = b.Shape(in); err != nil {
			return nil, err
		}
		if t.u64 < 0 || t.u32 < 0 || t.u64 > most || t.u32 > most {
			return nil, fmt.Errorf("the selector takes %d words and %d half words: want 0 to %d bytes", t.u64, t.u32, most)
		}
		p.tiers = append(p.tiers, t)
		if n := p.bytes(); n > most {
			return nil, fmt.Errorf("the selector takes %d bytes or more: the gate allows %d", n, most)
		}
	}
	return p, nil
}

// elements returns how many of each kind all parts need.
func (p *plan) elements() (u64, u32 int) {
	for _, t := range p.tiers {
		u64 += t.u64
		u32 += t.u32
	}
	return u64, u32
}

// bytes returns the storage that the selector needs.
func (p *plan) bytes() int { return regionBytes(p.elements()) }

// yieldAfter is how long a build works before it lets others have its thread.
// With less, on cores that are all busy, most of a build's time would be waiting
// for the next turn, while its readers may wait for the gate.
const yieldAfter = time.Millisecond

// build runs the builds of all priorities under the one permit, in r.
func (p *plan) build(ctx context.Context, r *region) (pub *published, err error) {
	defer recovered(&err)
	turn := time.Now()
	yield := func() error {
		if time.Since(turn) >= yieldAfter {
			runtime.Gosched() // let connections through
			turn = time.Now()
		}
		return ctx.Err()
	}
	pub = &published{snap: p.snap, region: r}
	c := r.carve(p.elements())
	for _, t := range p.tiers {
		sel, err := p.builder.Build(t.in, c.next(t.u64, t.u32), yield)
		if err == nil && sel == nil {
			err = errors.New("no selector was built") // else the next pick would crash
		}
		if err != nil {
			return nil, err
		}
		taker, _ := sel.(Taker)
		pub.tiers = append(pub.tiers, tier{t.in.Endpoints[0].Priority, t.in.Members, sel, taker})
	}
	pub.updateLoads()
	return pub, nil
}

// recovered turns a panic of a Builder into an error: a bug in one policy must
// not end the agent, and what is published still serves.
func recovered(err *error) {
	if x := recover(); x != nil {
		*err = fmt.Errorf("panic: %v\n%s", x, debug.Stack())
	}
}

// inputs returns one Input for each priority that has a member of positive
// weight, highest first.
func inputs(snap *Snapshot) (ins []Input) {
	var n, at [MaxPriority + 1]int
	var sum [MaxPriority + 1]uint64
	for _, e := range snap.Set.All() {
		if e.Weight > 0 {
			n[e.Priority]++
			sum[e.Priority] += uint64(e.Weight)
		}
	}
	for prio, count := range n {
		if count == 0 {
			continue
		}
		at[prio] = len(ins)
		ins = append(ins, Input{
			Members:   make([]*Member, 0, count),
			Endpoints: make([]*Endpoint, 0, count),
			Shares:    make([]float64, 0, count),
		})
	}
	for i := range snap.Set.eps {
		e := &snap.Set.eps[i]
		if e.Weight == 0 {
			continue
		}
		in := &ins[at[e.Priority]]
		in.Members = append(in.Members, snap.members[i])
		in.Endpoints = append(in.Endpoints, e)
		in.Shares = append(in.Shares, float64(e.Weight)/float64(sum[e.Priority]))
	}
	return ins
}
