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
