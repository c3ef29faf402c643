package forwarder

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"gatehouse.internal/lbcore"
)

// A socket passes from one Listener to the next under load, and nobody is refused
// or lost; when the last one stops its address is free.
func TestListenerOf(t *testing.T) {
	up := newCluster(t, backend(t, anyPort, echo))
	first := start(t, Config{Name: "0", Upstream: up})
	addr := first.Addr()
	stop := make(chan struct{})
	var load sync.WaitGroup
	for range 2 {
		load.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				c, err := net.Dial("tcp", addr.Dial())
				if err != nil {
					t.Errorf("refused: %v", err)
					return
				}
				c.SetDeadline(time.Now().Add(20 * time.Second))
				var b [5]byte
				if _, err = c.Write([]byte("hello")); err == nil {
					_, err = io.ReadFull(c, b[:])
				}
				if err != nil {
					t.Errorf("lost: %v", err)
				}
				_ = c.Close()
			}
		})
	}
	last := first.Listener
	for i := range 10 {
		r := start(t, Config{Name: string(rune('a' + i)), Addr: addr, Upstream: up, Of: last})
		before := r.Stats().Accepted
		last.Stop()
		eventually(t, "the next one accepts", func() bool { return r.Stats().Accepted > before })
		last = r.Listener
	}
	close(stop)
	load.Wait()
	last.Stop()
	if c, err := net.Dial("tcp", addr.Dial()); err == nil {
		_ = c.Close()
		t.Error("the address is open after all have stopped")
	}

	// Where there is nothing to share a socket is opened.
	for _, of := range []*Listener{last, nil} {
		l, err := New(Config{Name: "own", Addr: lbcore.IPAddr(addr.AddrPort()), Upstream: up, Gate: up.gate, Of: of})
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Bind(t.Context()); err != nil {
			t.Errorf("of %v: %v", of, err)
		}
		l.Drain(context.Background())
	}
}
