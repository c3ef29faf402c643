//go:build linux

package main

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// fault is one thing that goes wrong, and what that may cost.
type fault struct {
	name string
	what string // is done, in a few words
	// root says that the fault is made by mounts, nftables or a network namespace.
	root bool
	// programs are what must be installed.
	programs []program
	clock    bool // the agent's wall clock is ours
	quick    bool // it is one of those that the tests run
	want     want
	run      func(*world)
}

// program is one that a fault needs, and where it comes from.
type program struct{ name, debian string }

var (
	nft     = program{"nft", "nftables"}
	dnsmasq = program{"dnsmasq", "dnsmasq-base"}
)

// want is what a fault may cost at most. No fault may have a client get wrong bytes:
// there is no number for that.
type want struct {
	refused, reset, timedOut int // asks
	cut                      int // streams that are reset
	ended                    int // asks, and as many streams, that end as if all were well
	// detect and recover bound the times of that name; 0 where there is none. They
	// are for a machine with two cores that has little else to do.
	detect, recover time.Duration
	// memory, if not 0, takes the place of moreResident.
	memory int
}

// String says it in words.
func (w want) String() string {
	var parts []string
	for _, p := range []struct {
		n    int
		what string
	}{{w.refused, "refused"}, {w.reset, "reset"}, {w.timedOut, "timed out"}, {w.ended, "ended early"}} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("≤ %d %s", p.n, p.what))
		}
	}
	if parts == nil {
		parts = append(parts, "no ask fails")
	}
	if w.cut > 0 {
		parts = append(parts, fmt.Sprintf("≤ %d streams cut", w.cut))
	} else {
		parts = append(parts, "no stream cut")
	}
	if w.detect > 0 {
		parts = append(parts, fmt.Sprintf("seen ≤ %s", w.detect))
	}
	if w.recover > 0 {
		parts = append(parts, fmt.Sprintf("over ≤ %s", w.recover))
	}
	if w.memory > 0 {
		parts = append(parts, fmt.Sprintf("≤ %d MB and %d %% of memory more", w.memory>>20, morePercent))
	}
	return strings.Join(parts, ", ")
}

// judge returns how the outcome is not what was wanted. Without timed the times say
// nothing.
func (w want) judge(o *outcome, timed bool) (bad []string) {
	over := func(n, most int, what string) {
		if n > most {
			bad = append(bad, fmt.Sprintf("%d %s, want at most %d", n, what, most))
		}
	}
	over(o.Asks.Refused, w.refused, "asks refused")
	over(o.Asks.Reset, w.reset, "asks reset")
	over(o.Asks.TimedOut, w.timedOut, "asks timed out")
	over(o.Asks.Ended, w.ended, "asks ended before their answer")
	over(o.Asks.Wrong, 0, "asks answered wrong")
	over(o.Streams.Cut, w.cut, "streams cut")
	over(o.Streams.Ended, w.ended, "streams ended as if all were well")
	over(o.Streams.Wrong, 0, "streams with wrong bytes")
	if o.Asks.OK == 0 {
		bad = append(bad, "no ask was answered")
	}
	late := func(ms *int64, most time.Duration, what string) {
		switch {
		case most == 0:
		case ms == nil:
			bad = append(bad, what+": it was not measured")
		case timed && time.Duration(*ms)*time.Millisecond > most:
			bad = append(bad, fmt.Sprintf("%s after %d ms, want at most %s", what, *ms, most))
		}
	}
	late(o.DetectMS, w.detect, "seen")
	if o.SeenAs == "" {
		bad = append(bad, "seen: nothing says by what, or why there is nothing to see")
	}
	late(o.RecoverMS, w.recover, "over")
	return bad
}

// outcome is what one fault has come to.
type outcome struct {
	Fault  string `json:"fault"`
	What   string `json:"what"`
	Expect string `json:"expect"`
	OK     bool   `json:"ok"`
	// Failures say why it is not OK.
	Failures []string `json:"failures,omitempty"`
	// Notes are what else was measured or found.
	Notes   []string `json:"notes,omitempty"`
	Asks    asks     `json:"asks"`
	Streams streams  `json:"streams"`
	// DetectMS is from the fault's begin until something tells of it, RecoverMS from its
	// end until the agent is as before and no ask that begins fails any more.
	DetectMS  *int64 `json:"detect_ms,omitempty"`
	RecoverMS *int64 `json:"recover_ms,omitempty"`
	// SeenAs is what has told of the fault. Without DetectMS it says why there is
	// nothing to detect, or, with UnseenMS, what has not told of it in that time.
	SeenAs   string `json:"seen_as"`
	UnseenMS *int64 `json:"unseen_ms,omitempty"`
	// Base and After are what the agent takes before and after; SettledMS is how long
	// after the recovery it takes that.
	Base      usage  `json:"base"`
	After     usage  `json:"after"`
	SettledMS *int64 `json:"settled_ms,omitempty"`
	TookMS    int64  `json:"took_ms"`
}

// asks are connections with one question and answer each.
type asks struct {
	OK        int   `json:"ok"`
	Refused   int   `json:"refused"`
	Reset     int   `json:"reset"`
	TimedOut  int   `json:"timed_out"`
	Ended     int   `json:"ended"` // cleanly, before the answer
	Wrong     int   `json:"wrong"`
	SlowestMS int64 `json:"slowest_ms"` // of those that were OK
}

// streams are connections on which bytes go to and fro all the time.
type streams struct {
	Open  int `json:"open"` // at once
	Cut   int `json:"cut"`
	Ended int `json:"ended"`
	Wrong int `json:"wrong"`
}

// usage is what the agent takes.
type usage struct {
	Goroutines  int `json:"goroutines"`
	Descriptors int `json:"descriptors"` // without pipes, which are kept for other connections
	Resident    int `json:"rss_bytes"`
}

// What the agent may take more of, a minute after a fault, than before it. Go keeps
// some of the memory that was used once.
const (
	moreGoroutines  = 8
	moreDescriptors = 16
	morePercent     = 10
	moreResident    = 8 << 20
)

// settled reports whether u is as good as the base, with memory or without, of which it
// may have more bytes, or moreResident if that is 0.
func (u usage) settled(base usage, more int, memory bool) bool {
	return u.Goroutines <= base.Goroutines+moreGoroutines && u.Descriptors <= base.Descriptors+moreDescriptors &&
		(!memory || u.Resident <= base.Resident+base.Resident*morePercent/100+cmp.Or(more, moreResident))
}

// String is for people.
func (u usage) String() string {
	return fmt.Sprintf("%d goroutines, %d fds, %d MB", u.Goroutines, u.Descriptors, u.Resident>>20)
}
