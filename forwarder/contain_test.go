package forwarder

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/url"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gatehouse.internal/internal/contain"
	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/lbcore"
)

// A panic about one connection costs that one and no other: it is reset, counted and
// told, nothing of it is left in the counters nor of its sockets, and no replaced selector
// waits for a reader that never leaves.
func TestContainedPanic(t *testing.T) { onEach(t, testContainedPanic) }

func testContainedPanic(t *testing.T) {
	for name, c := range map[string]struct {
		arm    func(cfg *Config, up *cluster, bad *atomic.Bool)
		change func(l *Listener, bad *atomic.Bool)
		served bool // the client gets its answer all the same
		dead   bool // the endpoint refuses
		tls    bool // it is spoken to by TLS
	}{
		"selection": {arm: func(cfg *Config, up *cluster, bad *atomic.Bool) { cfg.Upstream = panicky{up, bad} }},
		"plain or TLS": {arm: func(_ *Config, up *cluster, bad *atomic.Bool) {
			up.dial.TLS = func(*lbcore.Member) (*tls.Config, error) { return nil, errors.New("not asked") }
			up.dial.Plain = func(*lbcore.Member) bool { boom(bad); return true }
		}},
		"observing": {arm: func(_ *Config, up *cluster, bad *atomic.Bool) {
			up.dial.Observe = func(*lbcore.Member, time.Duration) { boom(bad) }
		}},
		"first byte": {arm: func(_ *Config, up *cluster, bad *atomic.Bool) {
			up.dial.FirstByte = true
			up.dial.Observe = func(*lbcore.Member, time.Duration) { boom(bad) }
		}},
		"failed dial": {arm: func(_ *Config, up *cluster, bad *atomic.Bool) {
			up.dial.Failed = func(*lbcore.Member) { boom(bad) }
		}, dead: true},
		"handshake": {arm: func(_ *Config, up *cluster, bad *atomic.Bool) {
			plain := up.dial.TLS
			up.dial.TLS = func(m *lbcore.Member) (*tls.Config, error) {
				conf, err := plain(m)
				conf = conf.Clone()
				conf.VerifyConnection = func(tls.ConnectionState) error {
					boom(bad)
					return nil
				}
				return conf, err
			}
		}, tls: true},
		"record": {change: func(l *Listener, bad *atomic.Bool) {
			done := l.cfg.OnDone
			l.cfg.OnDone = func(r *Record) {
				boom(bad)
				done(r)
			}
		}, served: true},
	} {
		t.Run(name, func(t *testing.T) {
			var log logBuffer
			var bad atomic.Bool
			panics := &contain.Panics{Log: log.logger()}
			var open atomic.Int64 // at the endpoint
			serve, p := echo, newPKI(t)
			if c.tls {
				serve = secured(p.server(t).Config(), func(c *tls.Conn) { echo(c) })
			}
			good := backend(t, anyPort, func(c net.Conn) {
				open.Add(1)
				serve(c)
				open.Add(-1)
			})
			addrs := []lbcore.Addr{good}
			if c.dead {
				addrs = []lbcore.Addr{refused(t), good}
			}
			up := newCluster(t, addrs...)
			if c.tls {
				up.dial.TLS = p.upstream(t, tlsconf.ClientConfig{ServerName: "web.internal"})
			}
			cfg := Config{Name: "l", Upstream: up, Panics: panics}
			var changes []func(*Listener)
			if c.arm != nil {
				c.arm(&cfg, up, &bad)
			} else {
				changes = append(changes, func(l *Listener) { c.change(l, &bad) })
			}
			r := start(t, cfg, changes...)
			other := client(t, r.Addr())
			exchange(t, other, "before")

			bad.Store(true)
			const n = 3
			for range n {
				got := make([]byte, 5)
				conn, err := net.Dial("tcp", r.Addr().Dial())
				if err == nil {
					conn.SetDeadline(time.Now().Add(20 * time.Second))
					if _, err = io.WriteString(conn, "hello"); err == nil {
						_, err = io.ReadFull(conn, got)
					}
					_ = conn.Close()
				}
				if (err == nil) != c.served || err != nil && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
					t.Errorf("got %q, %v", got, err)
				}
			}
			eventually(t, "all of them are counted", func() bool { return panics.Count(contain.Connection) == n })
			bad.Store(false)
			exchange(t, other, "another connection goes on")
			after := client(t, r.Addr())
			exchange(t, after, "and so does the next one")
			_, _ = other.Close(), after.Close()
			defer debug.SetGCPercent(debug.SetGCPercent(-1)) // it would close a socket that was forgotten
			eventually(t, "nothing is left of it", func() bool {
				active := int64(0)
				for i := range addrs {
					active += up.member(i).Active()
				}
				return r.Stats().Active == 0 && active == 0 && open.Load() == 0
			})
			if lines := strings.Count(log.String(), "a panic was contained"); lines != 1 || !strings.Contains(log.String(), "contain_test.go") {
				t.Errorf("%d lines:\n%s", lines, log.String())
			}
			if s := up.gate.Stats(); s.StuckSelectors != 0 {
				t.Errorf("%+v", s)
			}
			pin := up.gate.Pin()
			pin.Unpin()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			if cut := r.Drain(ctx); cut != 0 || ctx.Err() != nil {
				t.Errorf("the drain has cut %d: %v", cut, ctx.Err())
			}
		})
	}
}

// A panic about a connection that is refused costs nobody else anything either.
func TestContainedPanicOfRefused(t *testing.T) {
	onEach(t, func(t *testing.T) {
		panics := new(contain.Panics)
		r := start(t, Config{Upstream: newCluster(t, backend(t, anyPort, echo)), Panics: panics, Settings: Settings{MaxConnections: 1}},
			func(l *Listener) { l.cfg.OnDone = func(*Record) { panic("boom") } })
		c := client(t, r.Addr())
		exchange(t, c, "before")
		wantRefused(t, r.Addr())
		eventually(t, "it is counted", func() bool { return panics.Count(contain.Connection) == 1 })
		exchange(t, c, "the other goes on")
		if s := r.Stats(); s.Active != 1 || s.Flags[FlagOM] != 1 || s.Accepted != 2 {
			t.Errorf("%+v", s)
		}
	})
}

// A panic while a session's lock is held, about what a client has shown in its handshake,
// leaves the session to be ended, and the listener to be looked at and drained.
func TestContainedPanicWithLock(t *testing.T) {
	onEach(t, func(t *testing.T) {
		p := newPKI(t)
		var bad atomic.Bool
		panics := new(contain.Panics)
		up := newCluster(t, backend(t, anyPort, echo))
		r := start(t, Config{Upstream: up, Settings: Settings{Mesh: spoiling{&meshStub{server: p.server(t, p.mutual)}, &bad}}, Panics: panics})
		known := p.clientConfig()
		known.Certificates = []tls.Certificate{p.client.TLS(t)}
		bad.Store(true)
		c := p.dial(t, r.Addr(), known)
		if _, err := io.ReadAll(c); err == nil {
			t.Error("it has ended in order")
		}
		_ = c.Close()
		eventually(t, "it is counted", func() bool { return panics.Count(contain.Connection) == 1 })
		bad.Store(false)
		exchange(t, p.dial(t, r.Addr(), known), "the next one")
		r.Review()
		eventually(t, "nothing is left of it", func() bool { return r.Stats().Handshakes == 0 && r.Stats().Active == 1 })
	})
}

// spoiling is a mesh that spoils the certificates that clients have shown, while bad.
type spoiling struct {
	*meshStub
	bad *atomic.Bool
}

func (s spoiling) Config() (*tls.Config, error) {
	conf, err := s.meshStub.Config()
	if err != nil {
		return nil, err
	}
	conf = conf.Clone()
	conf.GetConfigForClient, conf.SessionTicketsDisabled = nil, true
	conf.VerifyConnection = func(cs tls.ConnectionState) error {
		if s.bad.Load() {
			spoilt := *cs.PeerCertificates[0] // package tls may have it for others too
			spoilt.URIs = []*url.URL{nil}
			cs.PeerCertificates[0] = &spoilt
		}
		return nil
	}
	return conf, nil
}

// boom panics while bad.
func boom(bad *atomic.Bool) {
	if bad.Load() {
		panic("boom")
	}
}

// panicky is a cluster whose selection panics while bad.
type panicky struct {
	*cluster
	bad *atomic.Bool
}

func (p panicky) Pick(r *lbcore.Reader, k lbcore.Key) (lbcore.Picks, *Dial, error) {
	boom(p.bad)
	return p.cluster.Pick(r, k)
}
