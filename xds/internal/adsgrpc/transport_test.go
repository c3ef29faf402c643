package adsgrpc

import (
	"context"
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"gatehouse.internal/internal/tlsconf/tlstest"
	"gatehouse.internal/xds/internal/core"
)

// Tokens and metadata are sent with each stream, as the files are then.
func TestMetadata(t *testing.T) {
	dir := t.TempDir()
	token, consul := filepath.Join(dir, "token"), filepath.Join(dir, "consul")
	tlstest.Replace(t, token, []byte("first\n"))
	tlstest.Replace(t, consul, []byte("  s3cr3t "))
	ca := tlstest.NewCA(t, "ca")
	server := newRawServer(t, serverTLS(t, ca, tls.NoClientCert))
	tr := newTransport(t, Server{
		URI: server.addr, TLS: &TLS{CAFile: ca.Write(t, dir)}, TokenFile: token,
		Metadata: map[string]string{"x-tenant": "blue"}, MetadataFiles: map[string]string{"x-consul-token": consul},
	})
	for _, want := range []string{"Bearer first", "Bearer second"} {
		s, err := open(t, tr)
		if err != nil {
			t.Fatal(err)
		}
		at := server.next(t)
		for key, want := range map[string]string{"authorization": want, "x-tenant": "blue", "x-consul-token": "s3cr3t"} {
			if got := at.md.Get(key); len(got) != 1 || got[0] != want {
				t.Errorf("%s is %q, want %q", key, got, want)
			}
		}
		at.end <- nil
		if _, err := s.Recv(); err == nil {
			t.Error("the stream goes on")
		}
		tlstest.Replace(t, token, []byte("second"))
	}
	// What can't be read ends the attempt, and says nothing of what is in it.
	tlstest.Replace(t, token, []byte("two\nlines-of-s3cr3t"))
	if words, how := refused(t, tr); how != core.Lost || !strings.HasPrefix(words, "token_file: "+token) || strings.Contains(words, "s3cr3t") {
		t.Errorf("%q, %v", words, how)
	}
	tlstest.Replace(t, token, []byte(strings.Repeat("x", 1<<16+1)))
	if words, _ := refused(t, tr); !strings.HasSuffix(words, "larger than 65536 bytes") {
		t.Error(words)
	}
	if err := os.Remove(consul); err != nil {
		t.Fatal(err)
	}
	if words, _ := refused(t, tr); !strings.Contains(words, "no such file") {
		t.Error(words)
	}
}

func TestServerCheck(t *testing.T) {
	for want, s := range map[string]Server{
		"":                      {URI: "a:1"},
		"server_uri: missing":   {},
		`protocol: "x"`:         {URI: "a:1", Protocol: "x"},
		"tls: a certificate":    {URI: "a:1", TLS: &TLS{CertFile: "x"}},
		"token_file: the token": {URI: "a:1", TokenFile: "x"},
		`initial_metadata: "x" is in initial_metadata_files too`: {
			URI: "a:1", Metadata: map[string]string{"x": "1"}, MetadataFiles: map[string]string{"x": "1"},
		},
		`initial_metadata: "X-Up" is no key`:              {URI: "a:1", Metadata: map[string]string{"X-Up": "1"}},
		`initial_metadata: "grpc-x" is no key`:            {URI: "a:1", Metadata: map[string]string{"grpc-x": "1"}},
		`initial_metadata: the value of "x"`:              {URI: "a:1", Metadata: map[string]string{"x": "s3cr3t\n"}},
		`initial_metadata_files: "x-bin" is no key`:       {URI: "a:1", MetadataFiles: map[string]string{"x-bin": "1"}},
		`initial_metadata_files: "content-type" is no ke`: {URI: "a:1", MetadataFiles: map[string]string{"content-type": "1"}},
	} {
		err := s.Check()
		if want == "" && err != nil || want != "" && (err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "s3cr3t")) {
			t.Errorf("%+v: %v, want %s", s, err, want)
		}
	}
	if err := (Server{URI: "unix:///run/xds.sock", TokenFile: "x"}).Check(); err != nil {
		t.Errorf("a token over a unix socket: %v", err)
	}
}

func serverTLS(t *testing.T, ca *tlstest.CA, auth tls.ClientAuthType) grpc.ServerOption {
	cert := ca.Issue(t, tlstest.Leaf{Names: []string{"127.0.0.1", "control.internal"}}).TLS(t)
	return grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: auth, ClientCAs: ca.Pool()}))
}

// The server is verified, the client shows its certificate, and both change with
// their files.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	ca, wrong := tlstest.NewCA(t, "right"), tlstest.NewCA(t, "wrong")
	caFile := wrong.Write(t, dir)
	certFile, keyFile := wrong.Issue(t, tlstest.Leaf{}).Write(t, dir, "client")
	server := newRawServer(t, serverTLS(t, ca, tls.RequireAndVerifyClientCert))
	tr := newTransport(t, Server{URI: server.addr, TLS: &TLS{CAFile: caFile, CertFile: certFile, KeyFile: keyFile}})
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	wg.Go(func() { tr.Run(ctx) })
	defer wg.Wait()
	defer cancel()
	if words, how := refused(t, tr); how != core.Lost || !strings.Contains(words, "authority") {
		t.Errorf("a server of an unknown authority: %q, %v", words, how)
	}
	until := func(what string, ok func(words string) bool) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); ; {
			words, _ := refused(t, tr)
			if ok(words) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: %s", what, words)
			}
		}
	}
	ca.Write(t, dir)
	until("a client of an unknown authority", func(words string) bool { return strings.Contains(words, "remote error: tls") })
	ca.Issue(t, tlstest.Leaf{}).Write(t, dir, "client")
	go func() { // whoever gets through is sent away with other words
		for {
			select {
			case s := <-server.streams:
				s.end <- status.Error(codes.Unavailable, "seen")
			case <-ctx.Done():
				return
			}
		}
	}()
	until("the right files", func(words string) bool { return words == "seen (Unavailable)" })

	if _, err := New(Server{URI: server.addr, TLS: &TLS{CAFile: dir + "/none"}}, Options{}); err == nil || !strings.HasPrefix(err.Error(), "tls: ") {
		t.Errorf("a missing file: %v", err)
	}
	tr = newTransport(t, Server{URI: server.addr, TLS: &TLS{CAFile: caFile, ServerName: "other.internal"}})
	if words, _ := refused(t, tr); !strings.Contains(words, "other.internal") {
		t.Errorf("a server of another name: %q", words)
	}
}

// Refusals are told from trouble by gRPC's codes, and shown with their words.
func TestEndings(t *testing.T) {
	server := newRawServer(t)
	for code, want := range map[codes.Code]core.Ending{
		codes.Unauthenticated: core.Refused, codes.PermissionDenied: core.Refused, codes.InvalidArgument: core.Refused,
		codes.Unimplemented: core.Refused, codes.Unavailable: core.Lost, codes.Internal: core.Lost,
		codes.ResourceExhausted: core.Lost, codes.Unknown: core.Lost, codes.DeadlineExceeded: core.Lost,
	} {
		tr := newTransport(t, Server{URI: server.addr, Protocol: Delta})
		s, err := open(t, tr)
		if err != nil {
			t.Fatal(err)
		}
		server.next(t).end <- status.Error(code, "these words")
		_, err = s.Recv()
		if words, how := tr.End(err, false); how != want || !strings.HasPrefix(words, "these words ("+code.String()+")") {
			t.Errorf("%v: %q, %v", code, words, how)
		}
	}
}

// A server that has one variant only is found to have it, whichever that is, and
// however it says so; one that has neither is left alone for long.
func TestAuto(t *testing.T) {
	server := newRawServer(t)
	tr := newTransport(t, Server{URI: server.addr})
	step := func(refuse error, method string, want core.Ending) {
		t.Helper()
		s, err := open(t, tr)
		if err != nil {
			t.Fatal(err)
		}
		at := server.next(t)
		if !strings.HasSuffix(at.method, method) {
			t.Errorf("method %s, want %s", at.method, method)
		}
		at.end <- refuse
		_, err = s.Recv()
		if words, how := tr.End(err, false); how != want {
			t.Errorf("%s: %q, %v; want %v", method, words, how, want)
		}
		s.Close()
	}
	none := status.Error(codes.Unimplemented, "unknown method")
	step(none, "DeltaAggregatedResources", core.Again)
	step(none, "StreamAggregatedResources", core.Refused)
	step(status.Error(codes.Unknown, "not implemented"), "DeltaAggregatedResources", core.Again)
	step(status.Error(codes.Unavailable, "restart"), "StreamAggregatedResources", core.Lost)
	step(nil, "StreamAggregatedResources", core.Lost)
}

// hang has the other end of a connection of HTTP/2 read on, and say nothing.
func hang(wg *sync.WaitGroup, server net.Conn) {
	wg.Go(func() {
		// Settings, an acknowledgement of the client's, and nothing more.
		server.Write([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0})
		server.Write([]byte{0, 0, 0, 4, 1, 0, 0, 0, 0})
	})
	wg.Go(func() {
		defer server.Close()
		for b := make([]byte, 4096); ; {
			if _, err := server.Read(b); err != nil {
				return
			}
		}
	})
}

// bug 21: the same over real sockets, with the shortest keepalive that gRPC has.
func TestHungServerOverTCP(t *testing.T) {
	if testing.Short() {
		t.Skip("left out by -short: it waits 10 s for gRPC's shortest keepalive")
	}
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer l.Close()
	wg.Go(func() {
		if conn, err := l.Accept(); err == nil {
			hang(&wg, conn)
		}
	})
	tr := newTransport(t, Server{URI: l.Addr().String()}, func(o *Options) { o.PingEvery, o.PingTimeout = 10*time.Second, time.Second })
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	s, err := tr.Open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Send(core.Request{Variant: core.Delta, Type: "t", Node: true}); err != nil {
		t.Fatal(err)
	}
	_, err = s.Recv()
	if words, how := tr.End(err, false); how != core.Lost || !strings.Contains(words, "keepalive") {
		t.Errorf("%q, %v", words, how)
	}
}

// bug 21: a server that hangs is noticed, also if its kernel answers.
func TestHungServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var wg sync.WaitGroup
		defer wg.Wait()
		tr := newTransport(t, Server{URI: "passthrough:///hung"}, func(o *Options) {
			o.Dial = func(context.Context, string, string) (net.Conn, error) {
				client, server := net.Pipe()
				hang(&wg, server)
				return client, nil
			}
		})
		start := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s, err := tr.Open(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if err := s.Send(core.Request{Variant: core.Delta, Type: "t", Node: true}); err != nil {
			t.Fatal(err)
		}
		_, err = s.Recv()
		if words, how := tr.End(err, false); how != core.Lost || !strings.Contains(words, "keepalive") {
			t.Errorf("%q, %v", words, how)
		}
		if d := time.Since(start); d > pingEvery+pingTimeout+time.Minute {
			t.Errorf("noticed after %v", d)
		}
	})
}

// Look waits for Run to have looked at the files, and for no longer than it may.
func TestLook(t *testing.T) {
	dir := t.TempDir()
	ca := tlstest.NewCA(t, "ca")
	plain := newTransport(t, Server{URI: "127.0.0.1:1"})
	if err := plain.Look(t.Context()); err != nil {
		t.Errorf("without TLS: %v", err)
	}
	secure, err := New(Server{URI: "127.0.0.1:1", TLS: &TLS{CAFile: ca.Write(t, dir)}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := secure.Look(ended); err == nil {
		t.Error("nobody has looked, and that is no error")
	}
	ctx, end := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { secure.Run(ctx) })
	before := secure.tls.Status().Generation
	tlstest.NewCA(t, "another").Write(t, dir)
	if err := secure.Look(t.Context()); err != nil || secure.tls.Status().Generation == before {
		t.Errorf("%v, generation %d", err, secure.tls.Status().Generation)
	}
	end()
	wg.Wait()
}
