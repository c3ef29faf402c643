package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// backends are servers at 127.81.0.1 and so on, all at one port, with what their checks
// ask at another.
type backends struct {
	n            int
	port, health int
	sick         []atomic.Bool
	wrong        func(format string, args ...any)
	served       atomic.Uint64
}

func (b *backends) ip(i int) string   { return fmt.Sprintf("127.81.0.%d", i+1) }
func (b *backends) addr(i int) string { return fmt.Sprintf("%s:%d", b.ip(i), b.port) }

// maxBody is the longest body of either side, in bytes.
const maxBody = 4 << 20

// exchangeWithin bounds one exchange.
const exchangeWithin = 30 * time.Second

// startBackends starts n backends, which end with the test.
func startBackends(t testing.TB, n int, wrong func(string, ...any)) *backends {
	b := &backends{n: n, sick: make([]atomic.Bool, n), wrong: wrong}
	b.port, b.health = everywhere(t, b, b.serve), everywhere(t, b, b.answerHealth)
	return b
}

// everywhere listens at one port of all backends.
func everywhere(t testing.TB, b *backends, serve func(i int, ln net.Listener)) int {
	for range 100 {
		port := 10000 + rand.IntN(20000)
		var all []net.Listener
		for i := range b.n {
			ln, err := net.Listen("tcp", fmt.Sprintf("%s:%d", b.ip(i), port))
			if err != nil {
				break
			}
			all = append(all, ln)
		}
		if len(all) < b.n {
			for _, ln := range all {
				ln.Close()
			}
			continue
		}
		var wg sync.WaitGroup
		for i, ln := range all {
			wg.Go(func() { serve(i, ln) })
		}
		t.Cleanup(func() {
			for _, ln := range all {
				ln.Close()
			}
			wg.Wait()
		})
		return port
	}
	t.Fatal("no port is free on all of 127.81.0.0/16")
	return 0
}

func (b *backends) answerHealth(i int, ln net.Listener) {
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if b.sick[i].Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})}
	srv.Serve(ln) // until it is closed
	srv.Close()
}

func (b *backends) serve(i int, ln net.Listener) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		wg.Go(func() {
			defer c.Close()
			c.SetDeadline(time.Now().Add(exchangeWithin))
			body, err := readBody(c)
			switch {
			case errors.Is(err, errWrong):
				b.wrong("backend %d got other bytes than were sent: %v", i, err)
			case err != nil: // the client tells
				return
			}
			b.served.Add(1)
			sum := sha256.Sum256(body)
			if _, err := c.Write(append([]byte{byte(i)}, sum[:]...)); err == nil {
				writeBody(c, rand.Uint64(), len(body), nil)
			}
		})
	}
}

var errWrong = errors.New("wrong bytes")

// writeBody writes a body of size bytes, with its length before and its sum behind it. If
// pause is set it is called in the middle.
func writeBody(c net.Conn, seed uint64, size int, pause func()) error {
	body := make([]byte, size)
	var key [32]byte
	binary.BigEndian.PutUint64(key[:], seed)
	rand.NewChaCha8(key).Read(body)
	sum := sha256.Sum256(body)
	out := binary.BigEndian.AppendUint64(nil, uint64(size))
	out = append(append(out, body...), sum[:]...)
	if pause != nil {
		if _, err := c.Write(out[:len(out)/2]); err != nil {
			return err
		}
		pause()
		out = out[len(out)/2:]
	}
	_, err := c.Write(out)
	if err == nil {
		err = c.(*net.TCPConn).CloseWrite()
	}
	return err
}

// readBody reads what writeBody has written, up to the end of the stream. What is there
// and not right is errWrong.
func readBody(r io.Reader) ([]byte, error) {
	var head [8]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, fmt.Errorf("no length: %w", err)
	}
	size := binary.BigEndian.Uint64(head[:])
	if size > maxBody {
		return nil, fmt.Errorf("%w: a length of %d", errWrong, size)
	}
	all := make([]byte, size+sha256.Size)
	if n, err := io.ReadFull(r, all); err != nil {
		return nil, fmt.Errorf("%d of %d bytes: %w", n, len(all), err)
	}
	body := all[:size]
	if sum := sha256.Sum256(body); !bytes.Equal(sum[:], all[size:]) {
		return nil, fmt.Errorf("%w: %d bytes have another sum", errWrong, size)
	}
	if n, err := io.Copy(io.Discard, r); n > 0 {
		return nil, fmt.Errorf("%w: %d more behind the end", errWrong, n)
	} else if err != nil {
		return nil, fmt.Errorf("at the end: %w", err)
	}
	return body, nil
}

// exchange sends a body to whom addr leads to, and checks what comes back. It returns
// which backend that was, -1 if none has said so. If pause is set it is called in the
// middle of the body.
func exchange(addr string, size int, pause func()) (backend int, err error) {
	c, err := net.DialTimeout("tcp", addr, exchangeWithin)
	if err != nil {
		return -1, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(exchangeWithin))
	seed := rand.Uint64()
	body := make([]byte, size)
	var key [32]byte
	binary.BigEndian.PutUint64(key[:], seed)
	rand.NewChaCha8(key).Read(body)
	if err := writeBody(c, seed, size, pause); err != nil {
		return -1, err
	}
	head := make([]byte, 1+sha256.Size)
	if _, err := io.ReadFull(c, head); err != nil {
		return -1, fmt.Errorf("no answer: %w", err)
	}
	backend = int(head[0])
	if sum := sha256.Sum256(body); !bytes.Equal(head[1:], sum[:]) {
		return backend, fmt.Errorf("%w: the backend got others", errWrong)
	}
	_, err = readBody(c)
	return backend, err
}
