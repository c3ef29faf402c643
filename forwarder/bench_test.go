package forwarder

import (
	"io"
	"net"
	"testing"

	"gatehouse.internal/lbcore"
)

// paths runs a benchmark without and with the agent in between.
func paths(b *testing.B, serve func(net.Conn), f func(b *testing.B, a lbcore.Addr)) {
	ep := backend(b, anyPort, serve)
	b.Run("direct", func(b *testing.B) { f(b, ep) })
	b.Run("forwarded", func(b *testing.B) {
		c := newCluster(b, ep)
		r := start(b, Config{Upstream: quiet{c}, Gate: c.gate}, func(l *Listener) { l.cfg.OnDone = nil })
		f(b, r.Addr())
	})
}

// BenchmarkConnections opens, sends one byte, receives one and closes.
func BenchmarkConnections(b *testing.B) {
	paths(b, echo, func(b *testing.B, a lbcore.Addr) {
		b.ReportAllocs()
		buf := make([]byte, 1)
		for b.Loop() {
			c, err := net.Dial("tcp", a.Dial())
			if err != nil {
				b.Fatal(err)
			}
			if _, err := c.Write(buf); err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(c, buf); err != nil {
				b.Fatal(err)
			}
			reset(c) // leaves no port in TIME_WAIT
		}
	})
}

// BenchmarkRoundTrips sends 64 bytes there and back on one connection.
func BenchmarkRoundTrips(b *testing.B) {
	paths(b, echo, func(b *testing.B, a lbcore.Addr) {
		b.ReportAllocs()
		c := client(b, a)
		buf := make([]byte, 64)
		for b.Loop() {
			if _, err := c.Write(buf); err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(c, buf); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkBulk sends 1 MiB an operation one way.
func BenchmarkBulk(b *testing.B) {
	paths(b, hold, func(b *testing.B, a lbcore.Addr) {
		c := client(b, a)
		buf := make([]byte, 1<<20)
		b.SetBytes(int64(len(buf)))
		for b.Loop() {
			if _, err := c.Write(buf); err != nil {
				b.Fatal(err)
			}
		}
	})
}
