package tlsconf_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"gatehouse.internal/internal/tlsconf"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// outcome is what both sides saw of one connection.
type outcome struct {
	client, server       tls.ConnectionState
	clientErr, serverErr error
}

// connect makes one connection on loopback, over which the server sends a byte:
// the client's error is that of its handshake, or of reading the byte.
func connect(t testing.TB, client, server *tls.Config) (o outcome) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer ln.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		raw, err := ln.Accept()
		if err != nil {
			o.serverErr = err
			return
		}
		defer raw.Close()
		_ = raw.SetDeadline(time.Now().Add(20 * time.Second))
		conn := tls.Server(raw, server)
		o.serverErr = conn.Handshake()
		o.server = conn.ConnectionState()
		if o.serverErr == nil {
			_, o.serverErr = conn.Write([]byte("x"))
		}
		if o.serverErr == nil {
			_, _ = io.Copy(io.Discard, conn) // until the client has gone
		} else {
			// Let the alert arrive: closing with unread data would be a reset.
			_ = raw.(*net.TCPConn).CloseWrite()
			_, _ = io.Copy(io.Discard, raw)
		}
	})
	raw, err := net.Dial("tcp", ln.Addr().String())
	must(t, err)
	_ = raw.SetDeadline(time.Now().Add(20 * time.Second))
	conn := tls.Client(raw, client)
	if o.clientErr = conn.Handshake(); o.clientErr == nil {
		_, o.clientErr = io.ReadFull(conn, make([]byte, 1))
	}
	o.client = conn.ConnectionState()
	raw.Close()
	wg.Wait()
	return o
}

func newClient(t testing.TB, c tlsconf.ClientConfig) *tlsconf.Client {
	t.Helper()
	client, err := tlsconf.NewClient(c)
	must(t, err)
	return client
}

func newServer(t testing.TB, c tlsconf.ServerConfig) *tlsconf.Server {
	t.Helper()
	server, err := tlsconf.NewServer(c)
	must(t, err)
	return server
}

// run runs something until the test ends.
func run(t testing.TB, f func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := f(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
}

// wait waits until something is so.
func wait(t testing.TB, what string, so func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for !so() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited in vain: %s", what)
		}
	}
}
