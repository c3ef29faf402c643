package xds

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"gatehouse.internal/discovery"
	"gatehouse.internal/discovery/discoverytest"
	"gatehouse.internal/lbcore"
)

func TestBackoff(t *testing.T) {
	for _, tt := range []struct {
		rand float64
		want []string
	}{
		// The first retry comes after exactly 1 s; later ones vary by 20 %.
		{0.5, []string{"0s", "1s", "2.6s", "5.16s", "9.256s", "15.81s", "26.295s", "43.073s", "1m9.916s", "1m52.866s", "3m1.585s", "4m51.536s", "6m51.536s", "8m51.536s"}},
		{0, []string{"0s", "1s", "2.28s", "4.328s"}},
		{1, []string{"0s", "1s", "2.92s", "5.992s"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake(t, func(f *fakeServer) {
				f.refuse = syscall.ECONNREFUSED
				f.client.rand = func() float64 { return tt.rand }
			})
			for len(f.dialled(false)) < len(tt.want) {
				pass(time.Second)
			}
			if d := cmp.Diff(tt.want, times(f.dialled(false)[:len(tt.want)])); d != "" {
				t.Errorf("dials with rand %v (-want +got):\n%s", tt.rand, d)
			}
			if n := strings.Count(f.log.String(), "\n"); n != 1 {
				t.Errorf("%d log lines for one cause:\n%s", n, &f.log)
			}
		})
	}
}

// A server that answers each stream once and ends it makes no busy loop, and
// is no failure.
func TestBackoffFloor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		rec, _ := f.watch("web")
		seen := 0
		for n := range 100 {
			f.next()
			f.respond(AssignmentType, n, web(1))
			f.stream().fail <- io.EOF
			synctest.Wait()
			if !f.stream().closed {
				t.Fatal("the stream was not closed")
			}
			pass(time.Second)
		}
		if d := f.dialled(false)[100]; d != 100*time.Second {
			t.Errorf("100 dials took %v, want 1 s each", d)
		}
		reports(t, rec, &seen, "[10.0.0.1:80]")
		if c := f.client.Counters(); c.Streams != 101 || c.Failures != 0 || !c.Connected {
			t.Errorf("counters %+v", c)
		}
		if want := "level=INFO msg=\"xds server answers\" source=xds server=control:18000\n"; f.log.String() != want {
			t.Errorf("log:\n%swant\n%s", &f.log, want)
		}
	})
}

// A response starts the back-off anew.
func TestBackoffReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, func(f *fakeServer) {
			f.refuse = syscall.ECONNREFUSED
			f.client.rand = func() float64 { return 0 }
		})
		f.watch("web")
		pass(10 * time.Second)
		f.refuseWith(nil)
		pass(10 * time.Second)
		f.next()
		f.respond(AssignmentType, 1, web(1))
		f.dialled(true)
		f.refuseWith(syscall.ECONNREFUSED)
		f.stream().fail <- io.EOF
		pass(4 * time.Second)
		if d := cmp.Diff([]string{"800ms", "1.8s", "3.08s"}, times(f.dialled(false))); d != "" {
			t.Errorf("dials (-want +got):\n%s", d)
		}
	})
}

// bug 05: a resource is called non-existent 15 s after it was asked for, not
// while the server is away or doesn't read.
func TestDoesNotExistTimer(t *testing.T) {
	const missing = `fail: eds "web": no such resource: xds server control:18000 has not sent it within 15s`
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, func(f *fakeServer) { f.refuse = syscall.ECONNREFUSED })
		rec, _ := f.watch("web")
		seen := 0
		pass(16 * time.Second) // the next dial comes at 26.295 s
		reports(t, rec, &seen, `fail: eds "web": xds server control:18000: connection refused`)

		f.refuseWith(nil)
		sent := f.start.Add(26295 * time.Millisecond)
		pass(time.Until(sent))
		reports(t, rec, &seen)
		pass(time.Millisecond)
		f.next()
		pass(14 * time.Second)
		reports(t, rec, &seen)
		pass(time.Second)
		reports(t, rec, &seen, missing)
		if err := rec.Reports()[seen-1].Err; !errors.Is(err, ErrNotFound) {
			t.Errorf("%v is no ErrNotFound", err)
		}
		// It may come at any later time.
		pass(time.Hour)
		f.respond(AssignmentType, 1, web(1))
		reports(t, rec, &seen, "[10.0.0.1:80]")
	})
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		synctest.Wait()
		f.stream().requests = nil // sends block
		rec, _ := f.watch("web")
		seen := 0
		pass(time.Hour)
		reports(t, rec, &seen)
		f.stream().fail <- io.EOF
		pass(time.Second)
		reports(t, rec, &seen, `fail: eds "web": xds server control:18000: the server ended the stream`)
		f.next()
		pass(15*time.Second - 1)
		reports(t, rec, &seen)
		pass(1)
		reports(t, rec, &seen, missing)
	})
}

// bug 07: a server that doesn't read must not keep the client from reading.
func TestBlockedSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		synctest.Wait()
		f.stream().requests = nil
		rec, _ := f.watch("web")
		seen := 0
		f.respond(AssignmentType, 1, web(1))
		f.respond(AssignmentType, 2, web(2))
		f.respond(AssignmentType, 3, web(2))
		reports(t, rec, &seen, "[10.0.0.1:80]", "[10.0.0.2:80]")
	})
}

// A send that fails ends the stream, with its words.
func TestFailedSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		synctest.Wait()
		f.stream().broken = errors.New("can't be marshalled")
		rec, _ := f.watch("web")
		seen := 0
		reports(t, rec, &seen, `fail: eds "web": xds server control:18000: can't be marshalled`)
		pass(time.Second)
		f.next()
	})
}

// bug 09: a server that resends what was refused is answered after a growing
// delay; something new is answered at once.
func TestNackThrottling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		rec, _ := f.watch("web")
		seen := 0
		f.next()
		f.respond(AssignmentType, 1, web(1))
		f.next()
		var nacks []time.Duration
		start := time.Now()
		for time.Since(start) < time.Minute {
			f.respond(AssignmentType, 2, badWeb())
			select {
			case r := <-f.stream().requests:
				if r.Version != "v1" || r.Nonce != "n2" || r.Error != `ClusterLoadAssignment "web": `+badWeight {
					t.Fatalf("answer %+v", r)
				}
				nacks = append(nacks, time.Since(start))
			case <-time.After(time.Minute):
				t.Fatal("no answer")
			}
		}
		if len(nacks) != 16 {
			t.Errorf("%d answers within a minute", len(nacks))
		}
		if d := cmp.Diff([]string{"0s", "1s", "2.6s", "5.16s", "9.256s", "14.256s", "19.256s"}, times(nacks[:7])); d != "" {
			t.Errorf("answers (-want +got):\n%s", d)
		}
		reports(t, rec, &seen, "[10.0.0.1:80]", `fail: eds "web": rejected: `+badWeight)
		if n := strings.Count(f.log.String(), "level=WARN"); n != 1 {
			t.Errorf("%d warnings of one cause:\n%s", n, &f.log)
		}
		f.respond(AssignmentType, 3, web(3))
		f.next()
		reports(t, rec, &seen, "[10.0.0.3:80]")
	})
}

// All watches of a name share one subscription; a late one is told at once.
func TestSharedSubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		first, stopFirst := f.watch("web")
		var seen, seenSecond, seenThird int
		if r := f.next(); !r.Node || !cmp.Equal(r.Names, []string{"web"}) {
			t.Errorf("request %+v", r)
		}
		second, stopSecond := f.watch("web")
		f.quiet()
		f.respond(AssignmentType, 1, web(1))
		f.next()
		reports(t, first, &seen, "[10.0.0.1:80]")
		reports(t, second, &seenSecond, "[10.0.0.1:80]")
		third, stopThird := f.watch("web")
		reports(t, third, &seenThird, "[10.0.0.1:80]")
		stopFirst()
		stopSecond()
		f.quiet()
		f.respond(AssignmentType, 2, web(2))
		f.next()
		reports(t, first, &seen)
		reports(t, third, &seenThird, "[10.0.0.2:80]")
		stopThird()
		if r := f.next(); len(r.Names) != 0 || r.Version != "v2" || r.Nonce != "n2" {
			t.Errorf("request %+v", r)
		}
		// bug 03: wanted again, what is kept serves until the server has answered.
		fourth, _ := f.watch("web")
		seenFourth := 0
		reports(t, fourth, &seenFourth, "[10.0.0.2:80]")
		f.next()
	})
}

// Failures say what is wrong and leave the set in force; their end is a Replace
// also if nothing changed meanwhile.
func TestWatchReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		rec, _ := f.watch("web")
		seen := 0
		f.respond(AssignmentType, 1, web(1))
		reports(t, rec, &seen, "[10.0.0.1:80]")

		// Refused, refused for the same reason, and repaired to the old state.
		f.respond(AssignmentType, 2, badWeb())
		f.respond(AssignmentType, 3, badWeb())
		reports(t, rec, &seen, `fail: eds "web": rejected: `+badWeight)
		f.respond(AssignmentType, 4, web(1))
		reports(t, rec, &seen, "[10.0.0.1:80]")

		// The server goes away, for longer than an attempt takes.
		f.refuseWith(syscall.ECONNREFUSED)
		f.stream().fail <- io.EOF
		synctest.Wait()
		reports(t, rec, &seen)
		pass(10 * time.Second)
		reports(t, rec, &seen, `fail: eds "web": xds server control:18000: connection refused`)
		late, _ := f.watch("web")
		seenLate := 0
		reports(t, late, &seenLate, "[10.0.0.1:80]", `fail: eds "web": xds server control:18000: connection refused`)
		f.refuseWith(nil)
		pass(10 * time.Second)
		reports(t, rec, &seen)
		f.respond(AssignmentType, 4, web(1))
		reports(t, rec, &seen, "[10.0.0.1:80]")
		reports(t, late, &seenLate, "[10.0.0.1:80]")
	})
}

// A sink that takes its time misses what was replaced meanwhile, and holds up
// nobody.
func TestSlowSink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		slow := &slowSink{entered: make(chan struct{}, 100), leave: make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { f.client.EDS("web", nil).Watch(ctx, slow) })
		rec, _ := f.watch("web")
		seen := 0
		f.respond(AssignmentType, 1, web(1))
		<-slow.entered
		f.respond(AssignmentType, 2, web(2))
		f.respond(AssignmentType, 3, web(3))
		reports(t, rec, &seen, "[10.0.0.1:80]", "[10.0.0.2:80]", "[10.0.0.3:80]")
		close(slow.leave)
		synctest.Wait()
		cancel()
		wg.Wait()
		seen = 0
		reports(t, &slow.Recorder, &seen, "[10.0.0.1:80]", "[10.0.0.3:80]")
	})
}

type slowSink struct {
	discoverytest.Recorder
	entered, leave chan struct{}
}

func (s *slowSink) Replace(set lbcore.Set) {
	s.Recorder.Replace(set)
	s.entered <- struct{}{}
	<-s.leave
}

// Endpoints that are left out, and duplicates, are counted and named once.
func TestLeftOutIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		var warned strings.Builder
		dups := &discovery.Duplicates{Logger: slog.New(slog.NewTextHandler(&warned, nil))}
		rec := new(discoverytest.Recorder)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { f.client.EDS("web", dups).Watch(ctx, rec) })
		f.next()
		m := func(n uint32) proto.Message {
			return cla("web", locality(0, lb(socket("10.0.0.1", 80)), lb(socket("10.0.0.1", 80)), lb(internalAddress()), lb(socket("10.0.0.2", n))))
		}
		f.respond(AssignmentType, 1, m(80))
		f.respond(AssignmentType, 2, m(81))
		cancel()
		wg.Wait()
		seen := 0
		reports(t, rec, &seen, "[10.0.0.1:80 10.0.0.2:80]", "[10.0.0.1:80 10.0.0.2:81]")
		if c := f.client.Counters(); c.LeftOut != 2 || c.Duplicates != 2 || c.Assignments.Changed != 2 {
			t.Errorf("counters %+v", c)
		}
		if dups.Total() != 2 || !strings.Contains(warned.String(), "10.0.0.1:80") {
			t.Errorf("%d duplicates, warnings:\n%s", dups.Total(), &warned)
		}
		if n := strings.Count(f.log.String(), "eds resource is not applied as a whole"); n != 1 {
			t.Errorf("%d warnings:\n%s", n, &f.log)
		}
	})
}

// What is asked before Run waits for it; after it, everything is still there
// and nothing hangs.
func TestBeforeAndAfterRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rec *discoverytest.Recorder
		var stop func()
		f := newFake(t, func(f *fakeServer) {
			rec, stop = f.watch("web")
			synctest.Wait()
			if s := f.client.Status(); s.Server != "control:18000" || s.Connected || len(s.Types) != 0 {
				t.Errorf("status before Run: %+v", s)
			}
		})
		seen := 0
		f.respond(AssignmentType, 1, web(1))
		f.stop()
		reports(t, rec, &seen, "[10.0.0.1:80]")
		stop()
		late, stopLate := f.watch("web")
		stopLate()
		if n := len(late.Reports()); n != 0 {
			t.Errorf("%d reports after Run", n)
		}
		s := f.client.Status()
		if f.client.Counters().Connected || s.Connected || len(s.Types) != 4 || len(s.Types[1].Resources) != 1 || s.Types[1].Resources[0].State != "acked" {
			t.Errorf("status after Run: %+v", s)
		}
		if err := f.client.Run(t.Context()); err == nil {
			t.Error("Run ran a second time")
		}
	})
}

func TestBadNames(t *testing.T) {
	c, err := NewClient(Config{Servers: []Server{{URI: "control:18000"}}, Node: Node{ID: "n"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", "*", "a\xff", strings.Repeat("x", 4097)} {
		if err := c.EDS(name, nil).Watch(t.Context(), new(discoverytest.Recorder)); err == nil {
			t.Errorf("Watch of %q returned no error", name)
		}
	}
}

func TestStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.watch("web")
		f.watch("api")
		f.next()
		f.respond(AssignmentType, 1, web(1))
		got := f.client.Status()
		now := time.Now()
		pass(time.Minute)
		f.respond(AssignmentType, 2, badWeb())
		f.stream().fail <- io.EOF
		synctest.Wait()
		want := Status{
			Server: "control:18000", Protocol: ProtocolSotW, Connected: true, Since: now,
			Types: []TypeStatus{{URL: ClusterType}, {
				URL: AssignmentType, Version: "v1", Nonce: "n1", LastAckAt: now,
				Resources: []ResourceStatus{{Name: "api", State: "requested"}, {Name: "web", State: "acked", Version: "v1", Updated: now, Body: string(marshal(t, web(1)))}},
			}, {URL: ListenerType}, {URL: SecretType}},
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("status (-want +got):\n%s", d)
		}
		nack := `ClusterLoadAssignment "web": ` + badWeight
		want.Protocol, want.Connected, want.Since = "", false, time.Now()
		want.LastError, want.LastErrorAt = "the server ended the stream", time.Now()
		e := &want.Types[1]
		e.Nonce, e.LastNack, e.LastNackAt = "", nack, time.Now()
		e.Resources[0].State = "does_not_exist"
		r := &e.Resources[1]
		r.State, r.Error, r.Refused, r.Nack = "nacked", badWeight, string(marshal(t, badWeb())), Nack{"v2", badWeight, time.Now()}
		if d := cmp.Diff(want, f.client.Status()); d != "" {
			t.Errorf("status (-want +got):\n%s", d)
		}
		// The same again is a newer attempt, and a good version leaves the last refusal.
		pass(time.Minute)
		f.next()
		f.respond(AssignmentType, 3, badWeb())
		if got := f.client.Status().Types[1].Resources[1]; got.Nack != (Nack{"v3", badWeight, time.Now()}) {
			t.Errorf("the same again: %+v", got)
		}
		r.Nack = Nack{"v3", badWeight, time.Now()}
		pass(time.Minute)
		f.respond(AssignmentType, 4, web(2))
		r.State, r.Error, r.Refused, r.Version, r.Updated, r.Body = "acked", "", "", "v4", time.Now(), string(marshal(t, web(2)))
		if d := cmp.Diff(*r, f.client.Status().Types[1].Resources[1]); d != "" {
			t.Errorf("mended (-want +got):\n%s", d)
		}
		if c, want := f.client.Counters().Assignments, (TypeCounters{2, 2, 2, 1}); c != want {
			t.Errorf("counters %+v, want %+v", c, want)
		}
	})
}
