package tlsconf_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/internal/tlsconf/tlstest"
)

// logBuffer is a log that can be read while it is written.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *logBuffer) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// serial returns the serial number of a server's certificate in force.
func serial(t testing.TB, s *tlsconf.Server) string {
	t.Helper()
	return s.Config().Certificates[0].Leaf.SerialNumber.String()
}

func TestRotateByRename(t *testing.T) {
	s := newSite(t)
	var log logBuffer
	s.server.Logger = log.logger()
	server := newServer(t, s.server)
	before := server.Config()
	run(t, server.Run)

	pair := s.ca.Issue(t, tlstest.Leaf{Names: []string{"web.internal"}})
	pair.Write(t, s.dir, "server")
	wait(t, "the rotation", func() bool { return server.Status().Generation == 2 })
	if got := serial(t, server); got != pair.Cert.SerialNumber.String() {
		t.Errorf("serial %s, want %s", got, pair.Cert.SerialNumber)
	}
	st := server.Status()
	if st.Err != nil || !st.NotAfter.Equal(pair.Cert.NotAfter) || time.Since(st.LoadedAt) > time.Minute {
		t.Errorf("status %+v", st)
	}
	if before == server.Config() || before.Certificates[0].Leaf.Equal(pair.Cert) {
		t.Error("the first configuration was written to")
	}
	if o := connect(t, newClient(t, s.client).Config("web.internal"), server.Config()); o.clientErr != nil || !o.client.PeerCertificates[0].Equal(pair.Cert) {
		t.Errorf("a client sees %v, error %v", o.client.PeerCertificates, o.clientErr)
	}
	if got := log.String(); !strings.Contains(got, "tls files rotated") || strings.Contains(got, "WARN") || strings.Contains(got, "PRIVATE") {
		t.Errorf("log:\n%s", got)
	}
}

// Links are switched as kubelet does it (..data), and above the directory as
// deploy tools do it (current).
func TestRotateByLink(t *testing.T) {
	ca := tlstest.NewCA(t, "one")
	link := func(t *testing.T, target, name string) {
		t.Helper()
		must(t, os.Symlink(target, name+".new"))
		must(t, os.Rename(name+".new", name))
	}
	release := func(t *testing.T, dir string) {
		t.Helper()
		must(t, os.MkdirAll(dir, 0o755))
		ca.Issue(t, tlstest.Leaf{}).Write(t, dir, "tls")
	}
	rotates := func(t *testing.T, certFile, keyFile string, change ...func()) {
		t.Helper()
		server := newServer(t, tlsconf.ServerConfig{CertFile: certFile, KeyFile: keyFile})
		run(t, server.Run)
		for i, f := range change {
			f()
			wait(t, "a rotation", func() bool { return server.Status().Generation == uint64(i+2) })
		}
	}
	t.Run("kubernetes", func(t *testing.T) {
		dir := t.TempDir()
		release(t, dir+"/..1")
		link(t, "..1", dir+"/..data")
		link(t, "..data/tls.pem", dir+"/tls.pem")
		link(t, "..data/tls-key.pem", dir+"/tls-key.pem")
		rotates(t, dir+"/tls.pem", dir+"/tls-key.pem",
			func() { release(t, dir+"/..2"); link(t, "..2", dir+"/..data"); must(t, os.RemoveAll(dir+"/..1")) },
			func() { release(t, dir+"/..3"); link(t, "..3", dir+"/..data"); must(t, os.RemoveAll(dir+"/..2")) })
	})
	t.Run("release", func(t *testing.T) {
		dir := t.TempDir()
		release(t, dir+"/releases/1/tls")
		link(t, dir+"/releases/1", dir+"/current")
		rotates(t, dir+"/current/tls/tls.pem", dir+"/current/tls/tls-key.pem",
			func() { release(t, dir+"/releases/2/tls"); link(t, "releases/2", dir+"/current") },
			func() { release(t, dir+"/releases/2/tls") })
	})
}

// anyALPN is a bit of no TLS version.
const anyALPN = 1 << 15

// A client of an authority that was taken out can't come back by its ticket, nor
// can a client resume with a server that it would not accept any more.
func TestNoResumptionAcrossRotation(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13, tls.VersionTLS12 | anyALPN, tls.VersionTLS13 | anyALPN} {
		s := newSite(t)
		s.mutual(t)
		if version&anyALPN != 0 {
			version &^= anyALPN
			s.client.ALPN, s.server.ALPN, s.server.AnyALPN = []string{"istio"}, []string{"h2"}, true
		}
		caFile := filepath.Join(s.dir, "clients-ca.pem")
		tlstest.Replace(t, caFile, s.ca.PEM)
		s.server.ClientCAFile, s.client.MaxVersion = caFile, version
		client, server := newClient(t, s.client), newServer(t, s.server)
		run(t, client.Run)
		run(t, server.Run)
		dial := func() outcome { return connect(t, client.Config("web.internal"), server.Config()) }
		must(t, dial().clientErr)
		if o := dial(); o.clientErr != nil || !o.client.DidResume {
			t.Fatalf("resumed %v, error %v", o.client.DidResume, o.clientErr)
		}

		// The server's own certificate: one full handshake, then as before.
		s.ca.Issue(t, tlstest.Leaf{Names: []string{"web.internal"}}).Write(t, s.dir, "server")
		wait(t, "the certificate", func() bool { return server.Status().Generation == 2 })
		if o := dial(); o.clientErr != nil || o.client.DidResume {
			t.Errorf("after the server's rotation: resumed %v, error %v", o.client.DidResume, o.clientErr)
		}
		if o := dial(); o.clientErr != nil || !o.client.DidResume {
			t.Errorf("with the new certificate: resumed %v, error %v", o.client.DidResume, o.clientErr)
		}

		// The clients' authority.
		tlstest.Replace(t, caFile, tlstest.NewCA(t, "two").PEM)
		wait(t, "the authority", func() bool { return server.Status().Generation == 3 })
		if o := dial(); o.clientErr == nil || o.server.DidResume {
			t.Errorf("after the rotation of the clients' authority: resumed %v, error %v", o.server.DidResume, o.clientErr)
		}

		// The servers' authority, seen by the client.
		tlstest.Replace(t, caFile, s.ca.PEM)
		wait(t, "the old authority", func() bool { return server.Status().Generation == 4 })
		must(t, dial().clientErr)
		tlstest.Replace(t, s.client.CAFile, tlstest.NewCA(t, "three").PEM)
		wait(t, "the client's rotation", func() bool { return client.Status().Generation == 2 })
		if o := dial(); o.client.DidResume {
			t.Error("the client resumed with a server that it doesn't trust any more")
		} else {
			check(t, "client", o.clientErr, "not among the trusted ones")
		}
	}
}

// What can't be used is said once, and leaves the last good files in force; and
// the key never shows.
func TestBadRotation(t *testing.T) {
	s := newSite(t)
	var log logBuffer
	s.server.Logger = log.logger()
	server := newServer(t, s.server)
	first := server.Config()
	run(t, server.Run)
	bad := func(what string) {
		t.Helper()
		wait(t, what, func() bool { err := server.Status().Err; return err != nil && strings.Contains(err.Error(), what) })
		if server.Config() != first || server.Status().Generation != 1 {
			t.Errorf("%s: not the first configuration any more", what)
		}
		if n := strings.Count(log.String(), what); n != 1 {
			t.Errorf("%s: logged %d times:\n%s", what, n, log.String())
		}
	}
	expired := s.ca.Issue(t, tlstest.Leaf{NotBefore: time.Now().AddDate(0, 0, -2), NotAfter: time.Now().AddDate(0, 0, -1)})
	expired.Write(t, s.dir, "server")
	bad("expired at")
	tlstest.Replace(t, s.server.CertFile, []byte("nonsense"))
	bad("no PEM block")
	must(t, os.Remove(s.server.KeyFile))
	bad("no such file")
	if got := log.String(); strings.Contains(got, "PRIVATE") || !strings.Contains(got, s.server.CertFile) {
		t.Errorf("log:\n%s", got)
	}

	if st := server.Status(); st.Failures != 3 || len(st.Certificates) != 1 || st.Certificates[0].Subject != "CN=leaf" {
		t.Errorf("status %+v", st)
	}

	good := s.ca.Issue(t, tlstest.Leaf{CommonName: "good", Names: []string{"web.internal", "spiffe://example.org/web", "bad\nname"}})
	good.Write(t, s.dir, "server")
	wait(t, "good files", func() bool { st := server.Status(); return st.Generation == 2 && st.Err == nil })
	if st := server.Status(); st.Failures != 3 || st.Certificates[0].Subject != "CN=good" || !st.Certificates[0].NotAfter.Equal(good.Cert.NotAfter) || !slices.Equal(st.Certificates[0].Names, []string{"spiffe://example.org/web", "web.internal", `"bad\nname"`}) {
		t.Errorf("status %+v", st)
	}
}

// Bad files for which the good ones are put back are no rotation.
func TestPutBack(t *testing.T) {
	s := newSite(t)
	client := newClient(t, s.client)
	first := client.Config("")
	run(t, client.Run)
	tlstest.Replace(t, s.client.CAFile, nil)
	wait(t, "the error", func() bool { return client.Status().Err != nil })
	tlstest.Replace(t, s.client.CAFile, s.ca.PEM)
	wait(t, "its end", func() bool { return client.Status().Err == nil })
	if client.Status().Generation != 1 || client.Config("") != first {
		t.Error("it became another generation")
	}
}

// NotAfter is the end of what ends first.
func TestNotAfter(t *testing.T) {
	s := newSite(t)
	if got := newClient(t, s.client).Status().NotAfter; !got.Equal(s.ca.Cert.NotAfter) {
		t.Errorf("authority only: %v", got)
	}
	s.mutual(t)
	if got := newClient(t, s.client).Status(); !got.NotAfter.Before(s.ca.Cert.NotAfter) || got.Generation != 1 {
		t.Errorf("with a certificate: %+v", got)
	}
	if got := newClient(t, tlsconf.ClientConfig{}).Status().NotAfter; !got.IsZero() {
		t.Errorf("neither: %v", got)
	}
}

// Rotation and use at once: each configuration has a certificate and a key that
// fit, whatever moment the files were read at.
func TestRotateUnderLoad(t *testing.T) {
	s := newSite(t)
	s.mutual(t)
	client, server := newClient(t, s.client), newServer(t, s.server)
	run(t, client.Run)
	run(t, server.Run)
	done := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		defer close(done)
		for range 10 {
			g, h := server.Status().Generation, client.Status().Generation
			s.ca.Issue(t, tlstest.Leaf{Names: []string{"web.internal"}}).Write(t, s.dir, "server")
			s.ca.Issue(t, tlstest.Leaf{Usage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}).Write(t, s.dir, "client")
			wait(t, "rotations", func() bool { return server.Status().Generation > g && client.Status().Generation > h })
		}
	})
	for {
		select {
		case <-done:
			return
		default:
			if o := connect(t, client.ConfigFor("web.internal", "a"), server.Config()); o.clientErr != nil {
				t.Fatal(tlsconf.Explain(o.clientErr))
			}
		}
	}
}

// Look puts new files in force before it returns, also where nobody can watch them,
// and does not wait for ever.
func TestLook(t *testing.T) {
	s := newSite(t)
	server := newServer(t, s.server)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := server.Look(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("without a Run: %v", err)
	}
	run(t, server.Run)
	for i := range 5 {
		pair := s.ca.Issue(t, tlstest.Leaf{Names: []string{"web.internal"}})
		pair.Write(t, s.dir, "server")
		if err := server.Look(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := serial(t, server); got != pair.Cert.SerialNumber.String() {
			t.Errorf("look %d: serial %s, want %s", i, got, pair.Cert.SerialNumber)
		}
	}
	before := server.Status()
	if err := os.WriteFile(filepath.Join(s.dir, "server.pem"), []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := server.Look(t.Context()); err != nil || server.Status().Generation != before.Generation {
		t.Errorf("torn files: %v, %+v", err, server.Status())
	}
	client, err := tlsconf.NewClient(tlsconf.ClientConfig{ServerName: "web.internal"})
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Look(t.Context()); err != nil {
		t.Errorf("without files: %v", err)
	}
}

// A key file that others can read is told of when it is taken up, and used all the same:
// to refuse it would not take back what was read.
func TestExposed(t *testing.T) {
	s := newSite(t)
	var log logBuffer
	s.server.Logger = log.logger()
	key := filepath.Join(s.dir, "server-key.pem")
	server := newServer(t, s.server)
	if st := server.Status(); len(st.Exposed) != 0 {
		t.Errorf("a private key is exposed: %q", st.Exposed)
	}
	run(t, server.Run)
	for i := range 2 { // the same cause twice
		s.ca.Issue(t, tlstest.Leaf{Names: []string{"web.internal"}}).Write(t, s.dir, "exposed")
		for _, name := range []string{"exposed.pem", "exposed-key.pem"} {
			to := filepath.Join(s.dir, strings.Replace(name, "exposed", "server", 1))
			if err := os.Chmod(filepath.Join(s.dir, name), 0o604); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(filepath.Join(s.dir, name), to); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(filepath.Join(s.dir, "server.pem"))
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(want)
		wait(t, "the rotation", func() bool { return bytes.Equal(server.Config().Certificates[0].Certificate[0], block.Bytes) })
		if st := server.Status(); !slices.Equal(st.Exposed, []string{key}) {
			t.Errorf("%d: exposed is %q", i, st.Exposed)
		}
	}
	if n := strings.Count(log.String(), "other users can read or write key files"); n != 1 {
		t.Errorf("told %d times: %s", n, &log)
	}
}
