package tlsconf

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"

	"gatehouse.internal/internal/tlsconf/tlstest"
)

// Where nothing can be watched, the files are polled: each 30 s while all is
// well, and four times a second for two seconds before what is wrong counts.
func TestPolled(t *testing.T) {
	dir := t.TempDir()
	ca, other := tlstest.NewCA(t, "one"), tlstest.NewCA(t, "two")
	path := ca.Write(t, dir)
	synctest.Test(t, func(t *testing.T) {
		// The bubble's clock begins in 2000, when no certificate is valid.
		start := time.Now()
		client, err := NewClient(ClientConfig{CAFile: path, Now: func() time.Time { return ca.Cert.NotAfter.Add(-time.Hour) }})
		if err != nil {
			t.Fatal(err)
		}
		client.r.open = func() (*fsnotify.Watcher, error) { return nil, errors.New("no more inotify instances") }
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- client.Run(ctx) }()
		at := func(d time.Duration) Status {
			<-time.After(time.Until(start.Add(d)))
			synctest.Wait()
			return client.Status()
		}

		at(time.Second)
		tlstest.Replace(t, path, other.PEM)
		if st := at(30*time.Second - 1); st.Generation != 1 {
			t.Errorf("before 30 s: %+v", st)
		}
		if st := at(30 * time.Second); st.Generation != 2 {
			t.Errorf("at 30 s: %+v", st)
		}
		// At 60 s bad, and good again within the grace: no error.
		tlstest.Replace(t, path, nil)
		if st := at(61 * time.Second); st.Err != nil || st.Generation != 2 {
			t.Errorf("within the grace: %+v", st)
		}
		tlstest.Replace(t, path, ca.PEM)
		if st := at(61*time.Second + retryEvery); st.Err != nil || st.Generation != 3 {
			t.Errorf("good within the grace: %+v", st)
		}
		// Bad for longer, found at 91.25 s.
		tlstest.Replace(t, path, nil)
		found := 91*time.Second + retryEvery
		if st := at(found + grace - 1); st.Err != nil {
			t.Errorf("within the grace: %+v", st)
		}
		if st := at(found + grace); st.Err == nil || st.Generation != 3 {
			t.Errorf("after the grace: %+v", st)
		}
		tlstest.Replace(t, path, other.PEM)
		if st := at(found + grace + retryLater); st.Err != nil || st.Generation != 4 {
			t.Errorf("good at last: %+v", st)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
	})
}

// lockedBuffer is a log that can be read while it is written.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// What is about to expire is warned of once, and once more when it has; files that
// came in time end that.
func TestExpiry(t *testing.T) {
	dir := t.TempDir()
	ca := tlstest.NewCA(t, "one")
	now := time.Now()
	issue := func(notAfter time.Time) {
		ca.Issue(t, tlstest.Leaf{NotBefore: now.AddDate(0, -1, 0), NotAfter: notAfter}).Write(t, dir, "server")
	}
	issue(now.Add(100 * time.Hour))
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var log lockedBuffer
		server, err := NewServer(ServerConfig{
			CertFile: filepath.Join(dir, "server.pem"), KeyFile: filepath.Join(dir, "server-key.pem"),
			Now: func() time.Time { return now.Add(time.Since(start)) }, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		server.r.open = func() (*fsnotify.Watcher, error) { return nil, errors.New("no more inotify instances") }
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- server.Run(ctx) }()
		at := func(d time.Duration, soon, late int) {
			t.Helper()
			<-time.After(time.Until(start.Add(d)))
			synctest.Wait()
			if a, b := strings.Count(log.String(), "expire soon"), strings.Count(log.String(), "have expired"); a != soon || b != late {
				t.Errorf("after %v: warned %d and %d times, want %d and %d", d, a, b, soon, late)
			}
		}
		at(75*time.Hour, 0, 0)
		at(77*time.Hour, 1, 0)
		at(78*time.Hour, 1, 0)
		issue(now.Add(106 * time.Hour))
		at(98*time.Hour, 1, 0) // a quarter of 28 hours are left at 99
		at(100*time.Hour, 2, 0)
		at(105*time.Hour, 2, 0)
		at(107*time.Hour, 2, 1)
		at(110*time.Hour, 2, 1)
		cancel()
		<-ended
	})
}

// Without files there is nothing to do until the end.
func TestRunWithoutFiles(t *testing.T) {
	client, err := NewClient(ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := client.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Run returned %v", err)
	}
}
