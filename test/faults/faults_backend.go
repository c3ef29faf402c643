//go:build linux

package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// backed starts three backends and an agent that lists them.
func (w *world) backed() (a, b, c *child) {
	a, b, c = w.three()
	w.start(web(static(a, b, c), checked))
	w.until("all endpoints are ready", func() bool { return w.agent.serves(a, b, c) })
	return a, b, c
}

func ipOf(c *child) string { host, _, _ := net.SplitHostPort(c.addr); return host }

// lost waits until b is out.
func (w *world) lost(a, c *child) {
	w.seen("the endpoint is out", func() bool { return w.agent.serves(a, c) })
}

// returns waits until b is in again.
func (w *world) returns(a, b, c *child, how func()) {
	w.over(how, "the endpoint is in again", func() bool { return w.agent.serves(a, b, c) })
}

func backendKilled(w *world) {
	a, b, c := w.backed()
	w.begin(b.kill)
	w.lost(a, c)
	w.hold(w.pick(3*time.Second, time.Second))
	w.returns(a, b, c, b.start)
}

func backendHung(w *world) {
	a, b, c := w.backed()
	w.begin(func() { b.signal(syscall.SIGSTOP) })
	w.lost(a, c)
	w.hold(w.pick(3*time.Second, time.Second))
	w.returns(a, b, c, func() { b.signal(syscall.SIGCONT) })
}

func backendNoSYN(w *world) {
	a, b, c := w.backed()
	w.begin(func() { w.filter("ip daddr " + ipOf(b) + " tcp flags & (syn|ack) == syn drop") })
	w.lost(a, c)
	w.hold(w.pick(3*time.Second, time.Second))
	w.returns(a, b, c, func() { w.filter() })
}

func backendBlackHole(w *world) {
	a, b, c := w.backed()
	w.begin(func() { w.filter("ip daddr "+ipOf(b)+" drop", "ip saddr "+ipOf(b)+" drop") })
	w.lost(a, c)
	w.hold(w.pick(5*time.Second, 4*time.Second)) // longer than user_timeout
	w.returns(a, b, c, func() { w.filter() })
}

func backendReset(w *world) {
	a, b, c := w.backed()
	w.begin(func() { w.filter("ip daddr " + ipOf(b) + " meta l4proto tcp reject with tcp reset") })
	w.lost(a, c)
	w.hold(w.pick(3*time.Second, time.Second))
	w.returns(a, b, c, func() { w.filter() })
}

// idlers are connections that have asked once and wait.
type idlers struct {
	conns []net.Conn
	names []string
}

func (w *world) idle(addr string, n int) *idlers {
	i := new(idlers)
	w.Cleanup(func() {
		for _, c := range i.conns {
			c.Close()
		}
	})
	for range n {
		c, err := net.DialTimeout("tcp", addr, patience)
		w.check(err)
		i.conns = append(i.conns, c)
		c.SetDeadline(time.Now().Add(patience))
		_, err = io.WriteString(c, "ask 1\n")
		w.check(err)
		line, err := bufio.NewReader(c).ReadString('\n')
		w.check(err)
		i.names = append(i.names, strings.Fields(line)[0])
	}
	return i
}

// ended waits until those to a backend have ended, and says how many of them by a
// reset, and how many of all others have ended by then.
func (i *idlers) ended(name string) (of, reset, others int) {
	end := func(c net.Conn, within time.Duration) string {
		c.SetReadDeadline(time.Now().Add(within))
		if _, err := c.Read(make([]byte, 1)); err != nil {
			return kindOf(err)
		}
		return "more bytes"
	}
	for k, c := range i.conns {
		if i.names[k] == name {
			of++
			if end(c, patience) == "reset" {
				reset++
			}
		}
	}
	for k, c := range i.conns {
		if i.names[k] != name && end(c, 10*time.Millisecond) != "timed out" {
			others++
		}
	}
	return of, reset, others
}

// backendHalfOpen has the backend's host forget its connections without a word: it
// dies while no packet gets through, and is back before anybody has noticed.
func backendHalfOpen(w *world) {
	a, b, c := w.backend("a", "127.0.0.11"), w.forgetful("b", "127.0.0.12"), w.backend("c", "127.0.0.13")
	w.start(web(static(a, b, c), checked))
	w.until("all endpoints are ready", func() bool { return w.agent.serves(a, b, c) })
	const n = 12
	idle := w.idle(w.agent.listener("web"), n)
	w.begin(func() {
		w.filter("ip daddr "+ipOf(b)+" drop", "ip saddr "+ipOf(b)+" drop")
		b.kill()
		b.start()
		w.filter()
	})
	of, reset, others := idle.ended("b")
	w.out.SeenAs, w.out.DetectMS = "all idle connections to it were reset", new(time.Since(w.began).Milliseconds())
	w.expect(of > 0 && reset == of && others == 0, "of %d idle connections to it %d were reset, and %d to others ended", of, reset, others)
	w.note("%d of %d idle connections to it were reset by keepalive", reset, of)
	w.returns(a, b, c, func() {})
	for _, c := range idle.conns {
		c.Close()
	}
}

// slowReader has clients that read slowly what a backend sends as fast as it can.
func slowReader(w *world) {
	w.backed()
	const clients, size = 20, 8 << 20
	addr := w.agent.listener("web")
	var wg sync.WaitGroup
	var right, early atomic.Int64
	hurry := make(chan struct{})
	w.begin(func() {
		for range clients {
			wg.Go(func() {
				c, err := net.DialTimeout("tcp", addr, patience)
				if err != nil {
					return
				}
				defer c.Close()
				c.SetDeadline(time.Now().Add(patience))
				fmt.Fprintf(c, "flood %d\n", size)
				n, ok := new(pattern).matches(&slow{c, hurry})
				select {
				case <-hurry:
				default:
					early.Add(1)
				}
				if n == size && ok {
					right.Add(1)
				}
			})
		}
	})
	w.hold(w.pick(8*time.Second, 2*time.Second))
	w.nothing("slow clients are no fault of the agent's, and hold no memory of it")
	w.expect(early.Load() == 0, "%d clients had all before they read it", early.Load())
	const most = 64 << 20
	w.expect(!w.spec.Timed || w.peak <= w.out.Base.Resident+most, "memory grew from %d to %d MB", w.out.Base.Resident>>20, w.peak>>20)
	w.note("%d clients that read 10 kB a second of %d MB each: memory grew by %d MB at most", clients, size>>20, max(0, w.peak-w.out.Base.Resident)>>20)
	w.over(func() { close(hurry); wg.Wait() }, "all is read", func() bool { return true })
	w.expect(right.Load() == clients, "%d of %d clients got the right bytes", right.Load(), clients)
}

// slow reads 1 kB each 100 ms until it is to hurry.
type slow struct {
	io.Reader
	hurry chan struct{}
}

func (s *slow) Read(b []byte) (int, error) {
	select {
	case <-s.hurry:
		return s.Reader.Read(b)
	case <-time.After(100 * time.Millisecond):
		return s.Reader.Read(b[:min(len(b), 1<<10)])
	}
}

// slowWriter has clients that send a byte now and then, and a backend that both
// reads and answers slowly.
func slowWriter(w *world) {
	a, b, c := w.three()
	p := w.shaped(c.addr)
	w.start(web(static(a, b), checked) + fmt.Sprintf(`
cluster "slow" {
  discovery "static" { endpoints = [%q] }
}
listener "slow" {
  address = "127.0.0.1:0"
  cluster = "slow"
}
`, p.Listen))
	w.until("both endpoints are ready", func() bool { return w.agent.serves(a, b) })
	const clients, sinks, size = 200, 10, 1 << 20
	var wg sync.WaitGroup
	var right atomic.Int64
	hurry := make(chan struct{})
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	dial := func(name string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", w.agent.listener(name))
	}
	w.begin(func() {
		w.toxic(p, "bandwidth", "upstream", `{"rate": 10}`)
		w.toxic(p, "slicer", "downstream", `{"average_size": 1, "delay": 50000}`)
		for i := range clients {
			wg.Go(func() {
				conn, err := dial("web")
				if err != nil {
					return
				}
				defer conn.Close()
				conn.SetDeadline(time.Now().Add(patience))
				text := fmt.Sprintf("ask %d\n", i)
				for k := range text {
					io.WriteString(conn, text[k:k+1])
					select {
					case <-hurry:
					case <-time.After(w.pick(time.Second, 200*time.Millisecond)):
					}
				}
				if line, err := bufio.NewReader(conn).ReadString('\n'); err == nil && strings.HasSuffix(line, fmt.Sprintf(" %d\n", i)) {
					right.Add(1)
				}
			})
		}
		for range sinks {
			wg.Go(func() {
				conn, err := dial("slow")
				if err != nil {
					return
				}
				defer conn.Close()
				conn.SetDeadline(time.Now().Add(patience))
				fmt.Fprintf(conn, "sink %d\n", size)
				io.Copy(conn, io.LimitReader(new(pattern), size))
				if line, err := bufio.NewReader(conn).ReadString('\n'); err == nil && line == "true\n" {
					right.Add(1)
				}
			})
		}
	})
	w.hold(w.pick(6*time.Second, time.Second))
	w.nothing("slow peers are no fault of the agent's, and no limit on them is set")
	w.expect(!w.spec.Timed || w.peak <= w.out.Base.Resident+64<<20, "memory grew from %d to %d MB", w.out.Base.Resident>>20, w.peak>>20)
	w.over(func() { close(hurry); p.Toxics.ResetToxics(w.ctx); wg.Wait() }, "all is sent", func() bool { return true })
	w.expect(right.Load() == clients+sinks, "%d of %d clients were answered right", right.Load(), clients+sinks)
	w.note("%d clients that send a byte a second, and %d of 1 MB to a backend that reads 10 kB a second: memory grew by %d MB at most", clients, sinks, max(0, w.peak-w.out.Base.Resident)>>20)
}
