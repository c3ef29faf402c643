package healthsvc

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"gatehouse.internal/lbcore"
)

// BenchmarkAcquireRelease is what one endpoint costs a caller: one more Ref to
// a key that has others, or the only Ref to a new key.
func BenchmarkAcquireRelease(b *testing.B) {
	c, th := every(10*time.Second), Thresholds{Healthy: 2, Unhealthy: 3}
	for name, n := range map[string]int{"shared": 1, "new": 0} {
		b.Run(name, func(b *testing.B) {
			s := NewService(Config{})
			p := newScript(nil)
			for range n * 200 {
				s.Acquire(key(1), p, &Ask{Cadence: c, Thresholds: th})
			}
			b.ReportAllocs()
			for b.Loop() {
				s.Acquire(key(1), p, &Ask{Cadence: c, Thresholds: th}).Release()
			}
		})
	}
}

// counting is a probe that passes at once and tells that it ran.
type counting chan struct{}

func (counting) Kind() string   { return "counting" }
func (counting) String() string { return "" }

func (c counting) Probe(context.Context, lbcore.Addr) error {
	c <- struct{}{}
	return nil
}

// BenchmarkSchedule is the cost of one probe apart from the probe itself, with
// 10,000 targets that are always due.
func BenchmarkSchedule(b *testing.B) {
	s := NewService(Config{})
	p := make(counting, 1024)
	for i := range 10_000 {
		s.Acquire(key(i), p, &Ask{Cadence: every(MinInterval), Thresholds: Thresholds{Healthy: 2, Unhealthy: 3}})
	}
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	for range 20_000 { // the burst of new targets is paced
		<-p
	}
	b.ReportAllocs()
	for b.Loop() {
		<-p
	}
	cancel()
	for {
		select {
		case <-p:
		case <-done:
			return
		}
	}
}

// BenchmarkProbe is one probe over loopback, the backend's part included.
func BenchmarkProbe(b *testing.B) {
	connect := serve(b, "tcp", func(_ context.Context, c net.Conn) { io.Copy(io.Discard, c) })
	http := serve(b, "tcp", answer(ok+"Content-Length: 2\r\n\r\nok"))
	for _, c := range []struct {
		p Probe
		a lbcore.Addr
	}{{TCP{}, connect.addr}, {HTTP{Path: "/", Host: "web"}, http.addr}} {
		b.Run(c.p.Kind(), func(b *testing.B) {
			ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
			defer cancel()
			b.ReportAllocs()
			for b.Loop() {
				if err := c.p.Probe(ctx, c.a); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
