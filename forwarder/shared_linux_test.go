package forwarder

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"gatehouse.internal/lbcore"
)

// A listening socket that is open elsewhere too, as one that a service manager
// keeps, is left alone by a listener that has ended: who connects then waits for
// the next one, and wakes no loop.
func TestSharedSocket(t *testing.T) { onEach(t, testSharedSocket) }

func testSharedSocket(t *testing.T) {
	kept, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(anyPort.AddrPort()))
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	up := newCluster(t, backend(t, anyPort, echo))
	shared := func(context.Context, lbcore.Addr) (net.Listener, error) {
		f, err := kept.File()
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return net.FileListener(f)
	}
	loops := loopsFor(t)
	at := lbcore.IPAddr(kept.Addr().(*net.TCPAddr).AddrPort())
	first := start(t, Config{Upstream: up, Addr: at, Listen: shared, Loops: loops})
	c := client(t, at)
	exchange(t, c, "served")
	_ = c.Close()
	first.Drain(t.Context())
	<-first.ran

	waiting := client(t, at)
	for _, l := range loopsIn(loops) {
		if n := watched(t, l); n != 1 {
			t.Errorf("a loop watches %d descriptors, want none but what wakes it", n)
		}
	}
	second := start(t, Config{Upstream: up, Addr: at, Listen: shared, Loops: loops})
	exchange(t, waiting, "served later")
	if n := second.Stats().Accepted; n != 1 {
		t.Errorf("the next listener has accepted %d, want 1", n)
	}
}

func loopsIn(ls *Loops) []*loop {
	if ls == nil {
		return nil
	}
	return ls.loops
}

// watched returns how many descriptors are in a loop's set.
func watched(t *testing.T, l *loop) int {
	t.Helper()
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", l.ep))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(info), "tfd:")
}

// Turn is answered by loops that go round, and not while one of them hangs.
func TestTurn(t *testing.T) {
	ls := runLoops(t, false)
	if err := ls.Turn(t.Context()); err != nil {
		t.Fatal(err)
	}
	hung, goOn := make(chan struct{}), make(chan struct{})
	ls.loops[1].post(func() { close(hung); <-goOn })
	<-hung
	ctx, cancel := context.WithCancel(t.Context())
	answer := make(chan error, 1)
	go func() { answer <- ls.Turn(ctx) }()
	ls.do0(func() {}) // the other loop goes round meanwhile
	select {
	case err := <-answer:
		t.Errorf("a loop hangs, and Turn returned %v", err)
	default:
	}
	cancel()
	if err := <-answer; !errors.Is(err, context.Canceled) {
		t.Errorf("Turn returned %v", err)
	}
	close(goOn)
	if err := ls.Turn(t.Context()); err != nil {
		t.Errorf("all loops go round again, and Turn returned %v", err)
	}
}

// do0 has the first loop call f and waits for it.
func (ls *Loops) do0(f func()) {
	done := make(chan struct{})
	ls.loops[0].post(func() { f(); close(done) })
	<-done
}
