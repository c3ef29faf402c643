//go:build linux

package main

import (
	"flag"
	"testing"
	"time"

	"go.uber.org/goleak"

	"gatehouse.internal/discovery/consul/consultest"
)

var soakFor = flag.Duration("soak", 30*time.Second, "how long TestSoak soaks")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, consultest.Ignore()) }

// Under everything that changes at once, restarts of both kinds among it, nothing goes
// wrong. A state may still be in
// force a while longer than for the command: the machine has other tests to run, and
// everything is watched by the race detector.
func TestSoak(t *testing.T) {
	if testing.Short() {
		t.Skip("left out by -short: it needs the built binary and servers")
	}
	path, err := build(t.TempDir(), "-race")
	if err != nil {
		t.Fatal(err)
	}
	if n := run(t, options{duration: *soakFor, within: 5 * time.Second, binary: path, consul: true, out: t.Logf}); n > 0 {
		t.Errorf("%d violations", n)
	}
}

// The model itself: who was there when.
func TestTimeline(t *testing.T) {
	tl := &timeline{name: "x", lag: 2 * time.Second}
	at := func(d time.Duration) time.Time { return time.Unix(1000, 0).Add(d) }
	tl.states = []state{
		{who: []int{1, 2}, from: at(0), to: at(10 * time.Second)},
		{who: []int{2, 3}, from: at(10 * time.Second), to: at(20 * time.Second)},
		{who: []int{4}, from: at(20 * time.Second)},
	}
	for _, tt := range []struct {
		who      int
		from, to time.Duration
		want     bool
	}{
		{1, 5 * time.Second, 6 * time.Second, true}, {3, 5 * time.Second, 6 * time.Second, false}, {3, 9 * time.Second, 11 * time.Second, true},
		{1, 12 * time.Second, 13 * time.Second, true}, {1, 12*time.Second + 1, 13 * time.Second, false},
		{2, 22 * time.Second, time.Minute, true}, {2, 23 * time.Second, time.Minute, false}, {4, time.Hour, 2 * time.Hour, true}, {4, 0, 19 * time.Second, false},
	} {
		if got := tl.had(tt.who, at(tt.from), at(tt.to)); got != tt.want {
			t.Errorf("%d from %s to %s: %t", tt.who, tt.from, tt.to, got)
		}
	}
	// What is held stays, with what was said before ago and is said meanwhile.
	tl = &timeline{name: "x"}
	tl.publish([]int{0})
	tl.publish([]int{1})
	back := tl.leave(0)
	tl.publish([]int{2})
	if now := time.Now().Add(time.Hour); tl.had(0, now, now) || !tl.had(1, now, now) || !tl.had(2, now, now) {
		t.Error("what is held is not in force, or what was over is")
	}
	longer := tl.leave(time.Minute)
	if now := time.Now().Add(time.Hour); !tl.had(0, now, now) {
		t.Error("what was in force a minute ago is not held")
	}
	longer()
	back()
	tl.publish([]int{3})
	if now := time.Now().Add(time.Hour); tl.had(0, now, now) || tl.had(1, now, now) || tl.had(2, now, now) || !tl.had(3, now, now) {
		t.Error("what was held is in force")
	}
	// What another process begins with is in force once it serves, and not before.
	tl = &timeline{name: "x", lag: 2 * time.Second, states: []state{
		{who: []int{1}, from: at(0), to: at(10 * time.Second)},
		{who: []int{2}, from: at(10 * time.Second), to: at(20 * time.Second)},
		{who: []int{3}, from: at(20 * time.Second), to: at(40 * time.Second)},
		{who: []int{4}, from: at(40 * time.Second)},
	}}
	tl.held(&hold{from: at(15 * time.Second), start: at(25 * time.Second), end: at(30 * time.Second)})
	for _, tt := range []struct {
		who      int
		from, to time.Duration
		want     bool
	}{
		{2, 23 * time.Second, 24 * time.Second, false}, {2, 23 * time.Second, 25 * time.Second, true}, {2, 32 * time.Second, 33 * time.Second, true},
		{2, 32*time.Second + 1, 33 * time.Second, false}, {1, 26 * time.Second, 27 * time.Second, false}, {3, 26 * time.Second, 27 * time.Second, true},
		{4, 26 * time.Second, 27 * time.Second, false}, {4, 31 * time.Second, 41 * time.Second, true}, {4, 31 * time.Second, 39 * time.Second, false},
	} {
		if got := tl.had(tt.who, at(tt.from), at(tt.to)); got != tt.want {
			t.Errorf("with a hold: %d from %s to %s: %t", tt.who, tt.from, tt.to, got)
		}
	}
}
