package forward

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// cipher is the suite that all relays use: the one that crypto/tls takes.
const cipher = "TLS_AES_128_GCM_SHA256"

// certificate is a relay's, of ECDSA P-256, and a client that trusts it.
type certificate struct {
	certFile, keyFile, both string
	config                  *tls.Config
}

func newCertificate(dir string) (c certificate, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return c, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "bench"}, DNSNames: []string{"bench"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true, IsCA: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return c, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return c, err
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	secret := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
	c.certFile, c.keyFile, c.both = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), filepath.Join(dir, "both.pem")
	for path, b := range map[string][]byte{c.certFile: cert, c.keyFile: secret, c.both: slices.Concat(cert, secret)} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			return c, err
		}
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(cert)
	// OpenSSL 3.0 does not know the key exchanges that crypto/tls prefers, so none
	// is asked to do them.
	c.config = &tls.Config{RootCAs: roots, ServerName: "bench", MinVersion: tls.VersionTLS13, CurvePreferences: []tls.CurveID{tls.X25519}}
	return c, nil
}

func (c certificate) client(conn net.Conn) *tls.Conn { return tls.Client(conn, c.config) }

// caller opens connections with TLS. It may be used by many goroutines.
type caller struct {
	w      *world
	opened atomic.Int64
}

func (c *caller) open(ctx context.Context) (*tls.Conn, error) {
	from := source(int(c.opened.Add(1)))
	d := net.Dialer{
		LocalAddr: &net.TCPAddr{IP: from.Addr[:]}, KeepAlive: -1,
		Control: func(_, _ string, raw syscall.RawConn) (err error) {
			e := raw.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
			})
			if e != nil {
				return e
			}
			return err
		},
	}
	conn, err := d.DialContext(ctx, "tcp4", fmt.Sprintf("127.0.0.1:%d", c.w.listen))
	if err != nil {
		return nil, err
	}
	return c.w.cert.client(conn), nil
}

// echo sends b on conn and waits until it is back.
func echo(conn net.Conn, b []byte) error {
	if _, err := conn.Write(b); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, b)
	return err
}

// together has n goroutines repeat what begin returns for each, and counts what
// ends in the time. end is called for each at last.
func (c *caller) together(ctx context.Context, group string, n int, d time.Duration, begin func() (op func() error, end func(), err error)) (Values, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var open atomic.Bool // the time is running
	var counted atomic.Bool
	var mu sync.Mutex
	var latency []int64
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			op, end, err := begin()
			if err != nil {
				cancel(fmt.Errorf("%s: %w", group, err))
				return
			}
			defer end()
			var own []int64
			for ctx.Err() == nil {
				began := monotonic()
				if err := op(); err != nil {
					cancel(fmt.Errorf("%s: %w", group, err))
					break
				}
				if open.Load() {
					counted.Store(true)
					own = append(own, monotonic()-began)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			latency = append(latency, own...)
		})
	}
	var before, after costs
	var began, ended int64
	err := pause(ctx, d/4)
	if err == nil {
		before, err = c.w.costs()
	}
	if err == nil {
		began = monotonic()
		open.Store(true)
		err = pause(ctx, d)
		for late := began + int64(d+patience); err == nil && !counted.Load() && monotonic() < late; {
			err = pause(ctx, time.Millisecond)
		}
		open.Store(false)
		ended = monotonic()
	}
	if err == nil {
		after, err = c.w.costs()
	}
	cancel(err)
	wg.Wait()
	if err != nil {
		return nil, err
	}
	if len(latency) == 0 {
		return nil, fmt.Errorf("%s: nothing came back", group)
	}
	return figures(group, time.Duration(ended-began), len(latency), latency, before, after), nil
}

// pause waits, and returns ctx's cause if that ends before.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// handshakes opens connections, n at a time, and has each echo a byte.
func (c *caller) handshakes(ctx context.Context, n int, d time.Duration) (Values, error) {
	return c.together(ctx, Connect, n, d, func() (func() error, func(), error) {
		return func() error {
			conn, err := c.open(ctx)
			if err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return err
			}
			defer conn.Close()
			return echo(conn, []byte{echoes})
		}, func() {}, nil
	})
}

// trips echoes messages on n connections.
func (c *caller) trips(ctx context.Context, group string, n int, d time.Duration) (Values, error) {
	return c.together(ctx, group, n, d, func() (func() error, func(), error) {
		conn, err := c.open(ctx)
		if err != nil {
			return nil, nil, err
		}
		b := slices.Clone(message)
		return func() error { return echo(conn, b) }, func() { conn.Close() }, nil
	})
}

// established opens n connections, 64 at a time, and returns when each has echoed
// a message, with what closes each.
func (c *caller) established(ctx context.Context, n int) (ends []func(), err error) {
	var g errgroup.Group
	g.SetLimit(64)
	conns := make([]*tls.Conn, n)
	for i := range conns {
		g.Go(func() (err error) {
			if conns[i], err = c.open(ctx); err == nil {
				err = echo(conns[i], slices.Clone(message))
			}
			return err
		})
	}
	err = g.Wait()
	for _, conn := range conns {
		if conn != nil {
			ends = append(ends, func() { conn.Close() })
		}
	}
	return ends, err
}

// fixed sends rate messages a second over n connections, however late answers
// come, and measures each from when it should have been sent.
func (c *caller) fixed(ctx context.Context, n, rate int, d time.Duration) (Values, error) {
	type line struct {
		conn *tls.Conn
		at   chan int64 // when messages under way should have been sent, oldest first
	}
	type answer struct{ at, took int64 }
	lines := make([]line, n)
	answers := make([][]answer, n)
	w := newWindow(d, c.w.costs)
	g, ctx := errgroup.WithContext(ctx)
	for i := range lines {
		conn, err := c.open(ctx)
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		if err := echo(conn, slices.Clone(message)); err != nil { // the handshake
			return nil, err
		}
		lines[i] = line{conn, make(chan int64, rate)}
	}
	for i, l := range lines {
		g.Go(func() error {
			b := make([]byte, messageSize)
			for at := range l.at {
				if _, err := io.ReadFull(l.conn, b); err != nil {
					return err
				}
				answers[i] = append(answers[i], answer{at, monotonic() - at})
			}
			return nil
		})
	}
	var vs Values
	g.Go(func() error {
		defer func() {
			for _, l := range lines {
				close(l.at)
			}
		}()
		step := int64(time.Second) / int64(rate)
		next, counted := monotonic(), 0
		for turn := 0; ; {
			now := monotonic()
			counts, done, err := w.at(now, 1)
			if err != nil || ctx.Err() != nil {
				return errors.Join(err, ctx.Err())
			}
			if done {
				vs, err = w.result(Fixed, now, counted, nil)
				return err
			}
			for ; next <= monotonic(); next += step {
				l := lines[turn%n]
				turn++
				if counts {
					counted++
				}
				l.at <- next // never full within the time that an answer may take
				l.conn.SetDeadline(time.Now().Add(5 * time.Second))
				if _, err := l.conn.Write(message); err != nil {
					return err
				}
			}
			unix.Nanosleep(&unix.Timespec{Nsec: max(next-monotonic(), 1)}, nil)
		}
	})
	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("%s: %w", Fixed, err)
	}
	var latency []int64
	for _, a := range slices.Concat(answers...) {
		if a.at >= w.begin {
			latency = append(latency, a.took)
		}
	}
	for k, v := range figures(Fixed, 1, 1, latency, costs{}, costs{}) {
		if k == Fixed+string(P50) || k == Fixed+string(P99) {
			vs[k] = v
		}
	}
	return vs, nil
}

// bulk sends on n connections for a time, and then waits until each has told how
// much came.
func (c *caller) bulk(ctx context.Context, group string, n int, d time.Duration) (Values, error) {
	before, err := c.w.costs()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	errs := make(chan error, n)
	var total atomic.Uint64
	for range n {
		go func() {
			sent, err := c.send(ctx, began.Add(d))
			total.Add(sent)
			errs <- err
		}()
	}
	for range n {
		if e := <-errs; e != nil {
			err = fmt.Errorf("%s: %w", group, e)
		}
	}
	took := time.Since(began)
	if err != nil {
		return nil, err
	}
	after, err := c.w.costs()
	if err != nil {
		return nil, err
	}
	return bulkFigures(group, took, total.Load(), before, after), nil
}

func (c *caller) send(ctx context.Context, until time.Time) (sent uint64, err error) {
	conn, err := c.open(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	conn.SetDeadline(until.Add(20 * time.Second))
	b := make([]byte, 256<<10)
	for i := range b {
		b[i] = counts
	}
	for sent == 0 || time.Now().Before(until) && ctx.Err() == nil { // something at least: it says what is wanted
		n, err := conn.Write(b)
		sent += uint64(n)
		if err != nil {
			return sent, err
		}
	}
	if err := conn.CloseWrite(); err != nil {
		return sent, err
	}
	var answer [8]byte
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return sent, fmt.Errorf("no answer after the end of the stream: %w", err)
	}
	if came := binary.BigEndian.Uint64(answer[:]); came != sent {
		return sent, fmt.Errorf("%d of %d bytes came", came, sent)
	}
	return sent, nil
}
