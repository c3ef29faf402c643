package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	answerWithin = 15 * time.Second // of each connection
	late         = time.Second
	maxUnderWay  = 16000 // connections at once
	clientHosts  = 16    // addresses 127.0.1.x that clients have: TIME_WAIT keeps a port for a minute
)

// backend answers each line with the same one.
type backend struct {
	ln net.Listener
	wg sync.WaitGroup
}

func startBackend() (*backend, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	b := &backend{ln: ln}
	b.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				continue
			}
			b.wg.Go(func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(time.Minute)) // of a loopback's socket it can't fail
				_, _ = io.Copy(c, c)                           // the client says if it did not get it
			})
		}
	})
	return b, nil
}

func (b *backend) stop() {
	_ = b.ln.Close()
	b.wg.Wait()
}

// load makes connections at a rate and counts what becomes of them.
type load struct {
	tcp, unix string // unix may be empty
	rate      int

	underWay, begun atomic.Int64
	notBegun        atomic.Int64
	wg              sync.WaitGroup

	mu    sync.Mutex
	r     result
	times []time.Duration
}

// run makes connections until ctx ends, and returns when all have ended.
func (l *load) run(ctx context.Context) {
	const step = 5 * time.Millisecond
	tick := time.NewTicker(step)
	defer tick.Stop()
	defer l.wg.Wait()
	start := time.Now()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		for due := int64(time.Since(start).Seconds() * float64(l.rate)); l.begun.Load() < due; l.begun.Add(1) {
			if l.underWay.Load() >= maxUnderWay {
				l.notBegun.Add(1)
				continue
			}
			l.underWay.Add(1)
			n := l.begun.Load()
			l.wg.Go(func() {
				defer l.underWay.Add(-1)
				begin := time.Now()
				l.note(l.exchange(n), time.Since(begin))
			})
		}
	}
}

// dial connects as the n-th client.
func (l *load) dial(n int64) (net.Conn, error) {
	d := net.Dialer{Timeout: answerWithin}
	if l.unix != "" && n%8 == 0 {
		return d.Dial("unix", l.unix)
	}
	d.LocalAddr = &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(1+n%clientHosts))}
	d.ControlContext = func(_ context.Context, _, _ string, c syscall.RawConn) error { return lateBind(c) }
	return d.Dial("tcp", l.tcp)
}

// exchange makes one connection.
func (l *load) exchange(n int64) error {
	c, err := l.dial(n)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(answerWithin)); err != nil {
		return err
	}
	return line(c, bufio.NewReader(c), n)
}

// line sends a line and reads it back.
func line(c net.Conn, r *bufio.Reader, n int64) error {
	text := fmt.Sprintf("connection %d\n", n)
	if _, err := io.WriteString(c, text); err != nil {
		return err
	}
	got, err := r.ReadString('\n')
	if err == nil && got != text {
		err = fmt.Errorf("got %q, want %q", got, text)
	}
	return err
}

// note counts what became of one.
func (l *load) note(err error, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.r.Connections++
	l.times = append(l.times, took)
	if took > late {
		l.r.Late++
	}
	switch {
	case err == nil:
		l.r.OK++
		return
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.EAGAIN):
		l.r.Refused++
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, io.EOF):
		l.r.Reset++
	case errors.Is(err, os.ErrDeadlineExceeded):
		l.r.TimedOut++
	default:
		l.r.Other++
	}
	if l.r.FirstError == "" {
		l.r.FirstError = err.Error()
	}
}

// hold opens n connections and exchanges lines on them for as long as that. It returns
// when they are open; what becomes of them is counted later.
func (l *load) hold(n int, lasts time.Duration) {
	var open sync.WaitGroup
	for i := range n {
		open.Add(1)
		l.wg.Go(func() {
			err := l.held(int64(i), lasts, sync.OnceFunc(open.Done))
			l.mu.Lock()
			defer l.mu.Unlock()
			l.r.Held++
			if err != nil {
				l.r.HeldBroken++
				if l.r.FirstError == "" {
					l.r.FirstError = "held: " + err.Error()
				}
			}
		})
	}
	open.Wait()
}

func (l *load) held(n int64, lasts time.Duration, opened func()) error {
	defer opened()
	c, err := l.dial(n)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(lasts + answerWithin)); err != nil {
		return err
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	r := bufio.NewReader(c)
	for begin := time.Now(); time.Since(begin) < lasts; <-tick.C {
		if err := line(c, r, n); err != nil {
			return err
		}
		opened()
	}
	return nil
}

// result returns what was counted, once run has returned.
func (l *load) result() *result {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.r
	r.NotBegun = int(l.notBegun.Load())
	slices.Sort(l.times)
	at := func(part float64) float64 {
		if len(l.times) == 0 {
			return 0
		}
		return float64(l.times[int(part*float64(len(l.times)-1))].Microseconds()) / 1000
	}
	r.P50, r.P99, r.Max = at(0.5), at(0.99), at(1)
	return &r
}
