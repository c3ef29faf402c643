//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// load is the clients of one listener: asks at a fixed rate, whatever becomes of
// those before, and streams that are opened again when they were cut.
type load struct {
	network, addr string
	patience      time.Duration      // of an ask
	enough        context.CancelFunc // no further ask begins
	asks          sync.WaitGroup
	cancel        context.CancelFunc
	wg            sync.WaitGroup // of streams

	slots  chan struct{}  // bounds asks in flight
	chunks []atomic.Int64 // that have come back, by stream

	mu      sync.Mutex
	count   asks
	streams streams
	bad     []time.Time // when asks began that failed
	good    []answered
	first   map[string]string
	own     error // of the load itself
}

// answered is an ask that was.
type answered struct{ began, ended time.Time }

// asking bounds asks in flight.
const asking = 4000

func startLoad(ctx context.Context, network, addr string, rate, n int, patience time.Duration) *load {
	ctx, cancel := context.WithCancel(ctx)
	more, enough := context.WithCancel(ctx)
	l := &load{network: network, addr: addr, patience: patience, enough: enough, cancel: cancel, streams: streams{Open: n}, slots: make(chan struct{}, asking),
		chunks: make([]atomic.Int64, n), first: make(map[string]string)}
	l.asks.Go(func() {
		tick := time.NewTicker(time.Second / time.Duration(rate))
		defer tick.Stop()
		for n := uint64(0); ; n++ {
			select {
			case <-more.Done():
				return
			case <-tick.C:
			}
			select {
			case l.slots <- struct{}{}:
			default:
				l.fail(fmt.Errorf("more than %d asks are in flight", asking))
				return
			}
			l.asks.Go(func() { l.ask(ctx, n); <-l.slots })
		}
	})
	for i := range n {
		l.wg.Go(func() { l.stream(ctx, uint64(i)) })
	}
	return l
}

// stop waits for the asks that have begun: each ends within its patience.
func (l *load) stop() {
	l.enough()
	l.asks.Wait()
	l.cancel()
	l.wg.Wait()
}

// served reports when an ask that began after t was answered first.
func (l *load) served(t time.Time) (first time.Time, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.good {
		if a.began.After(t) && (!ok || a.ended.Before(first)) {
			first, ok = a.ended, true
		}
	}
	return first, ok
}

func (l *load) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.own == nil {
		l.own = err
	}
}

// moving returns what reports whether bytes have come back on each stream since now.
func (l *load) moving() func() bool {
	before := make([]int64, len(l.chunks))
	for i := range before {
		before[i] = l.chunks[i].Load()
	}
	return func() bool {
		for i := range before {
			if l.chunks[i].Load() == before[i] {
				return false
			}
		}
		return true
	}
}

// ask makes one connection.
func (l *load) ask(ctx context.Context, n uint64) {
	began := time.Now()
	err := l.question(ctx, n)
	ended := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		l.count.OK++
		l.count.SlowestMS = max(l.count.SlowestMS, ended.Sub(began).Milliseconds())
		l.good = append(l.good, answered{began, ended})
		return
	}
	if ctx.Err() != nil {
		return
	}
	kind := kindOf(err)
	switch kind {
	case "refused":
		l.count.Refused++
	case "reset":
		l.count.Reset++
	case "timed out":
		l.count.TimedOut++
	case "ended":
		l.count.Ended++
	case "wrong":
		l.count.Wrong++
	default:
		if l.own == nil {
			l.own = err
		}
		return
	}
	l.bad = append(l.bad, began)
	if l.first[kind] == "" {
		l.first[kind] = err.Error()
	}
}

func (l *load) question(ctx context.Context, n uint64) error {
	ctx, cancel := context.WithTimeout(ctx, l.patience)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, l.network, l.addr)
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })()
	return question(c, n)
}

// errEnded says that a connection has ended as if all were well.
var errEnded = errors.New("a clean end")

// errWrong says that an answer is not what was asked for.
type errWrong string

func (e errWrong) Error() string { return string(e) }

// question asks a backend something on an open connection.
func question(c net.Conn, n uint64) error {
	if _, err := fmt.Fprintf(c, "ask %d\n", n); err != nil {
		return err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%w after %q", errEnded, line)
	}
	if err != nil {
		return err
	}
	if !strings.HasSuffix(line, fmt.Sprintf(" %d\n", n)) {
		return errWrong(fmt.Sprintf("asked %d, answered %q", n, line))
	}
	return nil
}

// kindOf names what has become of a connection.
func kindOf(err error) string {
	var wrong errWrong
	var timeout net.Error
	switch {
	case errors.As(err, &wrong):
		return "wrong"
	case errors.Is(err, errEnded), err == io.EOF:
		return "ended"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "reset"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "timed out"
	}
	return err.Error()
}

// The size of what a stream sends at a time, and how often it does.
const (
	chunk     = 1 << 10
	chunkEach = 50 * time.Millisecond
)

// stream keeps one stream open.
func (l *load) stream(ctx context.Context, i uint64) {
	for ctx.Err() == nil {
		began, err := l.echo(ctx, i)
		if ctx.Err() != nil {
			return
		}
		switch kind := kindOf(err); {
		case kind == "wrong":
			l.mu.Lock()
			l.streams.Wrong++
			l.first["stream wrong"] = err.Error()
			l.mu.Unlock()
		case began && kind == "ended":
			l.mu.Lock()
			l.streams.Ended++
			l.mu.Unlock()
		case began:
			l.mu.Lock()
			l.streams.Cut++
			l.mu.Unlock()
		}
		select { // one that can't be opened is tried again, and is no stream that was cut
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// echo sends and compares until the connection ends. began says whether it ever had
// an answer.
func (l *load) echo(ctx context.Context, i uint64) (began bool, err error) {
	dial, cancel := context.WithTimeout(ctx, l.patience)
	c, err := new(net.Dialer).DialContext(dial, l.network, l.addr)
	cancel()
	if err != nil {
		return false, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })()
	if _, err := io.WriteString(c, "echo\n"); err != nil {
		return false, err
	}
	r := bufio.NewReader(c)
	if _, err := r.ReadString('\n'); err != nil {
		return false, cleanEnd(err, "before its first byte")
	}
	tick := time.NewTicker(chunkEach)
	defer tick.Stop()
	sent, got := make([]byte, chunk), make([]byte, chunk)
	for random := rand.New(rand.NewPCG(i, 1)); ; {
		for k := 0; k < chunk; k += 8 {
			binary.LittleEndian.PutUint64(sent[k:], random.Uint64())
		}
		if _, err := c.Write(sent); err != nil {
			return true, err
		}
		if _, err := io.ReadFull(r, got); err != nil {
			return true, cleanEnd(err, "in its midst")
		}
		if !slices.Equal(sent, got) {
			return true, errWrong("other bytes than were sent")
		}
		l.chunks[i].Add(1)
		select {
		case <-ctx.Done():
			return true, ctx.Err()
		case <-tick.C:
		}
	}
}

// cleanEnd makes the end of a stream that is not due an error of its own.
func cleanEnd(err error, where string) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w %s", errEnded, where)
	}
	return err
}
