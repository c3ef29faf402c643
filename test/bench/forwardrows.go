package main

import (
	"errors"
	"fmt"

	"gatehouse.internal/test/bench/forward"
)

var errLeftOut = errors.New("left out of a run without peers")

// aim is a goal of a figure. The zero value is none.
type aim struct {
	to    string // the relay that the ratio is to; "" for a goal of the value
	op    op
	limit float64
}

type op byte

const (
	most op = iota + 1
	least
)

func (a aim) set(r row) row {
	switch a.op {
	case least:
		return r.atLeast(a.limit)
	case most:
		return r.atMost(a.limit)
	}
	return r
}

// relayFigure is a row of each relay of a case.
type relayFigure struct {
	kind, key  string
	name, unit string
	scale      float64 // of the value, 0 is 1
	aims       []aim   // of Gatehouse, each of which has a row
}

// mostOf and leastOf are goals of a ratio to HAProxy.
func mostOf(x float64) []aim  { return []aim{{forward.HAProxy, most, x}} }
func leastOf(x float64) []aim { return []aim{{forward.HAProxy, least, x}} }

func key(group string, k forward.Key) string { return group + string(k) }

// relayFigures are the rows, in the order of the table.
var relayFigures = func() (fs []relayFigure) {
	add := func(kind, key, name, unit string, aims []aim) {
		fs = append(fs, relayFigure{kind: kind, key: key, name: name, unit: unit, aims: aims})
	}
	const plain, tls = forward.Plain, forward.TLS
	operations := func(kind, group, name string, rateAims, p99Aims, cpuAims []aim) {
		if group != forward.Fixed {
			add(kind, key(group, forward.Rate), name, "1/s", rateAims)
		}
		add(kind, key(group, forward.P50), name+", p50", "us", nil)
		add(kind, key(group, forward.P99), name+", p99", "us", p99Aims)
		add(kind, key(group, forward.CPU), name+", CPU each", "us", cpuAims)
		add(kind, key(group, forward.All), name+", CPU each with load and backend", "us", nil)
	}
	bulk := func(kind, group, name string, rateAims, cpuAims []aim) {
		add(kind, key(group, forward.Rate), name, "GB/s", rateAims)
		add(kind, key(group, forward.CPU), name+", CPU", "s/GB", cpuAims)
		add(kind, key(group, forward.All), name+", CPU with load and backend", "s/GB", nil)
	}
	operations(plain, forward.Connect, "connections, 32 at a time",
		append(leastOf(1), aim{forward.TCPProxy, least, 1.4}), nil, mostOf(1))
	operations(plain, forward.Trips1, "round trips, 1 connection", nil, nil, nil)
	operations(plain, forward.Trips64, "round trips, 64 connections", leastOf(1), mostOf(1.1), mostOf(1))
	operations(plain, forward.Fixed, "round trips, open loop of 10000/s", nil, mostOf(1.1), nil)
	fast := append(leastOf(1.6), aim{forward.HAProxySplice, least, 1})
	cheap := append(mostOf(0.35), aim{forward.HAProxySplice, most, 1.05})
	bulk(plain, forward.Bulk1, "bulk, 1 connection", fast, cheap)
	bulk(plain, forward.Bulk8, "bulk, 8 connections", fast, cheap)
	operations(tls, forward.Connect, "TLS handshakes, 32 at a time", leastOf(0.8), nil, nil)
	operations(tls, forward.Trips1, "TLS round trips, 1 connection", nil, nil, nil)
	operations(tls, forward.Trips64, "TLS round trips, 64 connections", nil, nil, nil)
	operations(tls, forward.Fixed, "TLS round trips, open loop of 10000/s", nil, nil, nil)
	bulk(tls, forward.Bulk1, "TLS bulk, 1 connection", leastOf(0.8), nil)
	bulk(tls, forward.Bulk8, "TLS bulk, 8 connections", leastOf(0.8), nil)
	add(forward.Idle, forward.Memory, "memory an idle connection", "B", mostOf(0.3))
	add(forward.Idle, forward.FDs, "descriptors an idle connection", "", []aim{{"", most, 2}})
	add(forward.Idle, forward.Rest, "CPU of idle connections, checks off", "% of a core", []aim{{"", most, 0.2}})
	add(forward.Idle, forward.Base, "memory without connections", "MB", nil)
	fs[len(fs)-1].scale = 1e-6
	add(forward.IdleTLS, forward.Memory, "memory an idle TLS connection", "B", nil)
	add(forward.IdleTLS, forward.FDs, "descriptors an idle TLS connection", "", nil)
	add(forward.IdleTLS, forward.Rest, "CPU of idle TLS connections, checks off", "% of a core", nil)
	return fs
}()

// relayRows returns all rows of forward. What has no figure at all has one row for
// its case, first.
func relayRows(outs relayOutcomes) (rows []row) {
	for _, c := range relayJobs {
		for _, relay := range c.relays {
			if o := outs[relayKey{c.kind, relay, c.procs}]; o != nil && len(o.samples) == 0 {
				r, _ := o.row("all figures, "+c.kind, relay, "", "")
				rows = append(rows, r)
			}
		}
	}
	for _, f := range relayFigures {
		rows = append(rows, f.rows(outs)...)
	}
	return append(rows, ownRows(outs)...)
}

// rows returns the figure of each relay of its case, and of Gatehouse a row more
// for each goal that is not about HAProxy.
func (f relayFigure) rows(outs relayOutcomes) (rows []row) {
	for _, c := range relayJobs {
		if c.kind != f.kind {
			continue
		}
		for _, relay := range c.relays {
			o := outs[relayKey{f.kind, relay, c.procs}]
			if o == nil || len(o.samples) == 0 || relay == forward.Direct && f.relayed() {
				continue
			}
			aims := []aim{{to: forward.HAProxy}}
			if relay == forward.Gatehouse && len(f.aims) > 0 {
				aims = f.aims
			}
			for _, a := range aims {
				r, ok := o.row(f.name, relay, f.unit, f.key)
				if !ok { // a case gives all of its figures or none
					rows = append(rows, r)
					break
				}
				if f.scale != 0 {
					r.Value = new(short(*r.Value * f.scale))
				}
				if a.to != "" && a.to != relay {
					r = r.ratios(a.to, pairs(o, outs[relayKey{f.kind, a.to, c.procs}], f.key))
				}
				if a.to == "" || r.Ratio != nil { // a goal for a ratio is none for the value
					r = a.set(r)
				}
				rows = append(rows, r)
			}
		}
	}
	return rows
}

// relayed says that there is no such figure without a relay.
func (f relayFigure) relayed() bool {
	for _, group := range []string{forward.Connect, forward.Trips1, forward.Trips64, forward.Fixed, forward.Bulk1, forward.Bulk8} {
		if f.key == key(group, forward.CPU) {
			return true
		}
	}
	return false
}

// pairs returns the ratio of two figures in each round.
func pairs(o, by *outcome, key string) (ratios []float64) {
	if by == nil {
		return nil
	}
	a, b := o.of(key), by.of(key)
	for i := range min(len(a), len(b)) {
		if b[i] != 0 {
			ratios = append(ratios, a[i]/b[i])
		}
	}
	return ratios
}

// pairs returns the ratios of all pairs of all rounds.
func (o *outcome) pairs(key func(pair int) string) (ratios []float64) {
	for i := 0; len(o.of(key(i))) > 0; i++ {
		ratios = append(ratios, o.of(key(i))...)
	}
	return ratios
}

// ownRows are those that only Gatehouse has, and what /proc says.
func ownRows(outs relayOutcomes) (rows []row) {
	const own = forward.Gatehouse
	procs := 0
	add := func(kind, relay, key, name, unit string, a aim) {
		if o := outs[relayKey{kind, relay, procs}]; o != nil && len(o.samples) > 0 {
			r, ok := o.row(name, relay, unit, key)
			if ok {
				r = a.set(r)
			}
			rows = append(rows, r)
		}
	}
	for _, c := range relayJobs {
		if c.kind != forward.Ring && c.kind != forward.Busy {
			continue
		}
		also := ""
		if procs = c.procs; c.kind == forward.Busy {
			also = fmt.Sprintf(", with probes and changes, GOMAXPROCS=%d", procs)
		}
		if o := outs[relayKey{c.kind, own, procs}]; o != nil && len(o.samples) > 0 {
			r, ok := o.row("p99 at 10000/s while a large ring is rebuilt"+also, own, "us", forward.During)
			if ok {
				if r = r.ratios("without", o.pairs(forward.RingKey)); c.kind == forward.Ring {
					r = r.atMost(2)
				}
			}
			rows = append(rows, r)
		}
		if o := outs[relayKey{c.kind, own, procs}]; o != nil && len(o.of(forward.Beside)) > 0 {
			r, _ := o.row("p99 at 10000/s beside another process that takes as much CPU as the rebuilds", own, "us", forward.Beside)
			rows = append(rows, r.ratios("without", o.pairs(forward.BesideKey)))
		}
		add(c.kind, own, forward.Before, "p99 at 10000/s without rebuilds"+also, "us", aim{})
		add(c.kind, own, forward.Builds, "rebuilds of the large ring meanwhile"+also, "1/s", aim{})
	}
	procs = 0
	add(forward.Churn, own, forward.Goroutines, "goroutines more, after many connections", "", aim{"", most, 0})
	add(forward.Churn, own, forward.Left, "descriptors more, after many connections", "", aim{"", most, 0})
	add(forward.Churn, own, forward.Heap, "heap more, after many connections", "MiB", aim{"", most, 1})
	add(forward.Plain, own, forward.Looped, "sockets on own event loops, 64 connections", "%", aim{"", least, 100})
	add(forward.Idle, own, forward.Looped, "sockets on own event loops, idle connections", "%", aim{"", least, 100})
	add(forward.Plain, own, forward.Pipes, "pipe ends for splicing, bulk on 1 connection", "", aim{"", least, 2})
	add(forward.Plain, forward.HAProxySplice, forward.Spliced, "bytes spliced, as it says", "%", aim{"", least, 90})
	return rows
}
