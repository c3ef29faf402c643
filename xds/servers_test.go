package xds

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"gatehouse.internal/xds/internal/core"
)

// Fallback_OnStartup, bug 08: the second server is asked when the first can't be
// reached and something is wanted, gets no version of the first, and is left as
// soon as the first answers.
func TestFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t, 2, refuses)
		first, second := f[0], f[1]
		rec, _ := first.watch("web")
		first.asked()
		seen := 0
		if r := second.next(); !r.Node || r.Version != "" || !cmp.Equal(r.Names, []string{"web"}) {
			t.Errorf("request %+v", r)
		}
		if s := first.client.Status(); s.Server != "second:18000" || !s.Connected {
			t.Errorf("status %+v", s)
		}
		second.respond(AssignmentType, 1, web(2))
		second.next()
		reports(t, rec, &seen, "[10.0.0.2:80]")

		// The first is back, and lost again before it answers.
		first.refuseWith(nil)
		pass(2 * time.Second)
		if r := first.next(); !r.Node || r.Version != "" {
			t.Errorf("request %+v", r)
		}
		first.stream().fail <- io.EOF
		second.respond(AssignmentType, 2, web(3))
		second.next()
		reports(t, rec, &seen, "[10.0.0.3:80]")

		// It answers.
		pass(10 * time.Second)
		first.next()
		first.respond(AssignmentType, 9, web(1))
		reports(t, rec, &seen, "[10.0.0.1:80]")
		if r := first.next(); r.Version != "v9" {
			t.Errorf("request %+v", r)
		}
		if !second.stream().closed {
			t.Error("the second server is not left")
		}
		if s := first.client.Status(); s.Server != "control:18000" || !s.Connected || s.Protocol != ProtocolSotW {
			t.Errorf("status %+v", s)
		}

		// A stream that ended after an answer is no reason to ask the second, nor is
		// a server that is away while everything is known.
		second.dialled(true)
		first.refuseWith(syscall.ECONNREFUSED)
		first.stream().fail <- io.EOF
		pass(10 * time.Second)
		reports(t, rec, &seen, `fail: eds "web": xds server control:18000: connection refused`)
		if d := second.dialled(false); len(d) != 0 {
			t.Errorf("the second server is asked at %v", d)
		}
		late, _ := first.watch("api") // of which nothing is known
		seenLate := 0
		second.next()
		second.respond(AssignmentType, 1, web(2), cla("api", locality(0, lb(socket("10.0.0.9", 80)))))
		reports(t, late, &seenLate, `fail: eds "api": xds server control:18000: connection refused`, "[10.0.0.9:80]")
		// That what is known holds again may be told on the way.
		if r := rec.Reports(); r[len(r)-1].String() != "[10.0.0.2:80]" {
			t.Errorf("reports %v", r[seen:])
		}
		if n := strings.Count(first.log.String(), "\n"); n > 8 {
			t.Errorf("%d lines:\n%s", n, &first.log)
		}
	})
}

// Trouble is told only once all servers fail; what is known is served on.
func TestAllServersFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t, 3, refuses)
		f[1].refuseWith(syscall.ECONNRESET)
		rec, _ := f[0].watch("web")
		f[0].asked()
		seen := 0
		reports(t, rec, &seen)
		f[2].next()
		f[2].refuseWith(syscall.EHOSTUNREACH)
		f[2].respond(AssignmentType, 1, web(1))
		f[2].stream().fail <- io.EOF
		pass(3 * time.Second)
		reports(t, rec, &seen, "[10.0.0.1:80]", `fail: eds "web": xds server third:18000: no route to host`)
		pass(time.Hour)
		reports(t, rec, &seen)
	})
}

// A server that refuses for good is asked again after the longest delay, and its
// words are logged once. bug 15: its codes go no further than into words.
func TestPermanentRefusal(t *testing.T) {
	for _, words := range []error{
		status.Error(codes.Unauthenticated, "no token"), status.Error(codes.PermissionDenied, "not for you"),
		status.Error(codes.Unimplemented, "unknown service"), status.Error(codes.InvalidArgument, "no such proxy"),
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake(t, func(f *fakeServer) { f.refuse = words })
			rec, _ := f.watch("web")
			pass(10 * time.Minute)
			if d := cmp.Diff([]string{"0s", "2m0s", "4m0s", "6m0s", "8m0s", "10m0s"}, times(f.dialled(false))); d != "" {
				t.Errorf("%v: dials (-want +got):\n%s", words, d)
			}
			said := status.Convert(words).Message()
			if n := strings.Count(f.log.String(), "the next attempt comes late"); n != 1 || !strings.Contains(f.log.String(), said) {
				t.Errorf("%v: %d lines:\n%s", words, n, &f.log)
			}
			r := rec.Reports()
			if len(r) != 1 || !strings.Contains(r[0].Err.Error(), said) {
				t.Fatalf("%v: reports %v", words, r)
			}
			if s, ok := status.FromError(r[0].Err); ok {
				t.Errorf("%v: the error has the code %v", words, s.Code())
			}
			if n := f.client.Counters().Failures; n != 6 {
				t.Errorf("%v: %d failures", words, n)
			}
		})
	}
}

// What a server sends that can't be taken ends the stream, also one with an
// answer, and it is left alone for long: it would send the same.
func TestUnfitServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		rec, _ := f.watch("web")
		f.next()
		f.respond(AssignmentType, 1, web(1))
		f.stream().fail <- status.Error(codes.ResourceExhausted, "received message larger than max")
		pass(119 * time.Second)
		if d := f.dialled(false); len(d) != 1 {
			t.Errorf("dials at %v", d)
		}
		pass(2 * time.Second)
		f.next()
		seen := 0
		reports(t, rec, &seen, "[10.0.0.1:80]")
	})
}

// A server that ends every stream at once, with other words each time, neither
// makes a busy loop nor fills the log, and what is known is served on.
func TestStreamsThatEndAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		rec, _ := f.watch("web")
		seen := 0
		f.respond(AssignmentType, 1, web(1))
		for n := range 60 {
			f.stream().fail <- status.Error(codes.Unavailable, fmt.Sprint("word ", n%7))
			pass(3 * time.Minute)
		}
		if n := len(f.dialled(false)); n != 61 {
			t.Errorf("%d dials for 60 ends", n)
		}
		if got := rec.Reports()[0].String(); got != "[10.0.0.1:80]" {
			t.Errorf("first report %s", got)
		}
		for _, r := range rec.Reports()[1:] {
			if r.Err == nil || errors.Is(r.Err, ErrNotFound) {
				t.Errorf("report %v", r)
			}
		}
		if n := strings.Count(f.log.String(), "\n"); n > 3 {
			t.Errorf("%d lines:\n%s", n, &f.log)
		}
		seen = len(rec.Reports())
		f.respond(AssignmentType, 1, web(1))
		reports(t, rec, &seen, "[10.0.0.1:80]")
	})
}

// A flood of responses, each refused for another reason, fills neither the log
// nor the memory, and the last good state is served on.
func TestFlood(t *testing.T) {
	for _, variant := range []core.Variant{core.StateOfTheWorld, core.Delta} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake(t, func(f *fakeServer) { f.variant = variant })
			rec, _ := f.watch("web")
			seen := 0
			f.next()
			f.respond(AssignmentType, 0, web(1))
			f.next()
			f.stream().requests = nil // it does not read
			for n := range 5000 {
				f.stream().responses <- core.Response{Type: AssignmentType, Version: fmt.Sprint(n), Nonce: fmt.Sprint(n),
					Resources: []core.Resource{{Type: AssignmentType, Name: "web", Version: fmt.Sprint(n), Body: marshal(t, proto.Message(cla("web", locality(0, lb(socket(fmt.Sprint("x ", n), 80))))))}}}
			}
			synctest.Wait()
			if got := rec.Reports()[0].String(); got != "[10.0.0.1:80]" {
				t.Errorf("first report %s", got)
			}
			for _, r := range rec.Reports()[1:] {
				if r.Err == nil {
					t.Errorf("report %v", r)
				}
			}
			if n := strings.Count(f.log.String(), "\n"); n > causeBurst+2 {
				t.Errorf("%d lines", n)
			}
			seen = len(rec.Reports())
			f.answer(core.Response{Type: AssignmentType, Version: "9", Nonce: "9",
				Resources: []core.Resource{{Type: AssignmentType, Body: marshal(t, web(2))}}})
			reports(t, rec, &seen, "[10.0.0.2:80]")
		})
	}
}

// A resource with a TTL that is not renewed is told to be gone; the last set
// stays in force.
func TestTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		rec, _ := f.watch("web")
		seen := 0
		f.next()
		r := core.Response{Type: AssignmentType, Version: "1", Nonce: "1", Resources: []core.Resource{
			{Type: AssignmentType, Name: "web", TTL: int64(10 * time.Second), Body: marshal(t, web(1))},
		}}
		f.answer(r)
		beat := r
		beat.Resources = []core.Resource{{Name: "web", Bare: true, TTL: int64(10 * time.Second)}}
		for range 5 {
			pass(9 * time.Second)
			f.answer(beat)
		}
		reports(t, rec, &seen, "[10.0.0.1:80]")
		pass(10 * time.Second)
		reports(t, rec, &seen, `fail: eds "web": no such resource: xds server control:18000 has not renewed it in time`)
		f.answer(r)
		reports(t, rec, &seen, "[10.0.0.1:80]")
	})
}

// Why a server can't give a resource is told; the last set stays in force.
func TestResourceErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		rec, _ := f.watch("web")
		seen := 0
		f.next()
		f.answer(core.Response{Type: AssignmentType, Version: "1", Nonce: "1", Errors: []core.ResourceError{{Name: "web", Code: 7, Reason: "not yours (PermissionDenied)"}}})
		reports(t, rec, &seen, `fail: eds "web": xds server control:18000 can't give it: not yours (PermissionDenied)`)
		pass(time.Hour)
		reports(t, rec, &seen)
		f.respond(AssignmentType, 2, web(1))
		reports(t, rec, &seen, "[10.0.0.1:80]")
	})
}

// New names are the same whatever the order of their parameters.
func TestFederationContextParameterOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		const typ = "xdstp://one/envoy.config.endpoint.v3.ClusterLoadAssignment/web"
		rec, _ := f.watch(typ + "?b=2&a=1")
		other, _ := f.watch(typ + "?a=1&b=2")
		if r := f.next(); !cmp.Equal(r.Names, []string{typ + "?a=1&b=2"}) {
			t.Errorf("request %+v", r)
		}
		f.quiet()
		f.respond(AssignmentType, 1, cla(typ+"?b=2&a=1", locality(0, lb(socket("10.0.0.1", 80)))))
		seen := 0
		reports(t, rec, &seen, "[10.0.0.1:80]")
		seen = 0
		reports(t, other, &seen, "[10.0.0.1:80]")
	})
}

// Of the incremental variant: what vanished while there was no stream is gone
// (bug 12), nothing that is known is asked for anew, and a changed cluster keeps
// its endpoints (bug 11).
func TestDelta(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, func(f *fakeServer) { f.variant = core.Delta })
		u, _ := f.watchClusters()
		seen := 0
		f.next()
		resource := func(typ, name, version string, m proto.Message) core.Resource {
			return core.Resource{Type: typ, Name: name, Version: version, Body: marshal(t, m)}
		}
		f.answer(core.Response{Type: ClusterType, Nonce: "1", Resources: []core.Resource{
			resource(ClusterType, "a", "1", edsCluster("a")), resource(ClusterType, "b", "1", edsCluster("b")),
		}})
		u.check(t, &seen, "known=true a b")
		if r := f.next(); r.Nonce != "1" || r.Error != "" {
			t.Errorf("request %+v", r)
		}
		if r := f.next(); !cmp.Equal(r.Subscribe, []string{"a", "b"}) {
			t.Errorf("request %+v", r)
		}
		f.answer(core.Response{Type: AssignmentType, Nonce: "2", Resources: []core.Resource{
			resource(AssignmentType, "a", "1", cla("a", locality(0, lb(socket("10.0.0.1", 80))))),
		}})
		f.next()
		f.answer(core.Response{Type: ClusterType, Nonce: "3", Resources: []core.Resource{resource(ClusterType, "a", "2", edsCluster("a", anyTimeout))}})
		f.next()
		f.quiet()
		u.check(t, &seen, "known=true a b")
		rec, _ := f.watch("a")
		reported := 0
		reports(t, rec, &reported, "[10.0.0.1:80]")

		f.stream().fail <- io.EOF
		pass(time.Second)
		if r := f.next(); len(r.Subscribe) != 0 || !cmp.Equal(r.Initial, []core.Held{{Name: "a", Version: "2"}, {Name: "b", Version: "1"}}) {
			t.Errorf("request %+v", r)
		}
		if r := f.next(); !cmp.Equal(r.Subscribe, []string{"a", "b"}) || !cmp.Equal(r.Initial, []core.Held{{Name: "a", Version: "1"}}) {
			t.Errorf("request %+v", r)
		}
		f.answer(core.Response{Type: ClusterType, Nonce: "1", Removed: []string{"b"}})
		u.check(t, &seen, "known=true a")
		f.next()
		if r := f.next(); !cmp.Equal(r.Unsubscribe, []string{"b"}) {
			t.Errorf("request %+v", r)
		}
		reports(t, rec, &reported)
	})
}

// bug 14: a reconnect with a full push is taken in resource by resource, only
// what changed is told, and every set stays in force meanwhile.
func TestFullPushAfterReconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		const n = 500
		push := func(version, changed int) {
			var all []proto.Message
			for i := range n {
				port := uint32(80)
				if i == changed {
					port = 81
				}
				all = append(all, cla(fmt.Sprint("c", i), locality(0, lb(socket("10.0.0.1", port)))))
			}
			f.respond(AssignmentType, version, all...)
		}
		first, _ := f.watch("c0")
		other, _ := f.watch("c7")
		for i := range n {
			if i != 0 && i != 7 {
				f.watch(fmt.Sprint("c", i))
			}
		}
		push(1, -1)
		var seen, seenOther int
		reports(t, first, &seen, "[10.0.0.1:80]")
		reports(t, other, &seenOther, "[10.0.0.1:80]")
		before := f.client.Counters().Assignments.Changed
		f.stream().fail <- io.EOF
		pass(time.Second)
		push(1, 7)
		reports(t, first, &seen)
		reports(t, other, &seenOther, "[10.0.0.1:81]")
		if n := f.client.Counters().Assignments.Changed - before; n != 1 {
			t.Errorf("%d assignments changed", n)
		}
	})
}

// The server is told to talk to somebody else, as Envoy says it.
func TestUserAgent(t *testing.T) {
	cfg := Config{Servers: []Server{{URI: "a:1"}}, Node: Node{ID: "n"}, UserAgentName: "envoy", Version: "1.30.2"}
	n, err := cfg.validate()
	if err != nil {
		t.Fatal(err)
	}
	if v := n.GetUserAgentBuildVersion().GetVersion(); n.UserAgentName != "envoy" || v.GetMajorNumber() != 1 || v.GetMinorNumber() != 30 || v.GetPatch() != 2 {
		t.Errorf("node %v", n)
	}
	for _, version := range []string{"1.30", "1.30.x", "dev", ""} {
		cfg := Config{Servers: []Server{{URI: "a:1"}}, Node: Node{ID: "n"}, UserAgentName: "envoy", Version: version}
		if n, err := cfg.validate(); err != nil || n.GetUserAgentBuildVersion() != nil || n.GetUserAgentVersion() == "" {
			t.Errorf("version %q: %v, %v", version, n, err)
		}
	}
}

// Many timers cost little each, and fire in their order.
func TestTimers(t *testing.T) {
	ts, now := newTimers(), time.Now()
	name := func(i int) core.Timer { return core.Timer{Kind: core.TimerAbsent, Name: fmt.Sprint(i)} }
	for i := range 1000 {
		ts.start(name(i), now.Add(time.Duration(i*7919%1000)*time.Millisecond))
	}
	for i := 0; i < 1000; i += 2 {
		ts.stop(name(i))
		ts.stop(name(i))
	}
	ts.start(name(1), now.Add(-time.Second)) // anew
	if at := ts.next(); !at.Equal(now.Add(-time.Second)) {
		t.Errorf("next at %v", at.Sub(now))
	}
	if got, ok := ts.due(now); !ok || got != name(1) {
		t.Errorf("due: %v, %v", got, ok)
	}
	n := 0
	for last := now; ; n++ {
		at := ts.next()
		if _, ok := ts.due(now.Add(time.Second)); !ok {
			break
		}
		if at.Before(last) {
			t.Errorf("%v after %v", at.Sub(now), last.Sub(now))
		}
		last = at
	}
	if n != 499 || !ts.next().IsZero() {
		t.Errorf("%d timers fired", n)
	}
}
