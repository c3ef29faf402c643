package tlsconf_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/internal/tlsconf/tlstest"
)

// What would be in files can be given in their place, for some and for all.
func TestInline(t *testing.T) {
	s := newSite(t)
	s.mutual(t)
	p := s.ca.Issue(t, tlstest.Leaf{CommonName: "inline", Names: []string{"web.internal"}})
	kp := tlsconf.KeyPair{CertFile: "the certificate", KeyFile: "the key", Cert: string(p.CertPEM), Key: string(p.KeyPEM)}
	all := tlsconf.ServerConfig{More: []tlsconf.KeyPair{kp}, ClientCA: string(s.ca.PEM), RequireClientCert: true}
	mixed := all
	mixed.ClientCA, mixed.ClientCAFile = "", s.client.CAFile
	for name, c := range map[string]tlsconf.ServerConfig{"all": all, "mixed": mixed} {
		if err := c.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		server := newServer(t, c)
		client, err := tlsconf.NewClient(s.client)
		must(t, err)
		o := connect(t, client.Config("web.internal"), server.Config())
		if o.clientErr != nil || o.serverErr != nil || o.client.PeerCertificates[0].Subject.CommonName != "inline" {
			t.Errorf("%s: %v, %v", name, o.clientErr, o.serverErr)
		}
		o = connect(t, &tls.Config{ServerName: "web.internal", RootCAs: s.ca.Pool()}, server.Config())
		check(t, name+", without a certificate", tlsconf.Explain(o.serverErr), "no certificate")
		run(t, server.Run)
	}
}

func TestValidate(t *testing.T) {
	ca := tlstest.NewCA(t, "ca")
	now := time.Now()
	p, other := ca.Issue(t, tlstest.Leaf{}), ca.Issue(t, tlstest.Leaf{})
	old := ca.Issue(t, tlstest.Leaf{NotBefore: now.Add(-2 * time.Hour), NotAfter: now.Add(-time.Hour)})
	early := ca.Issue(t, tlstest.Leaf{NotBefore: now.Add(time.Hour), NotAfter: now.Add(2 * time.Hour)})
	of := func(cert, key tlstest.Pair) tlsconf.ServerConfig {
		return tlsconf.ServerConfig{More: []tlsconf.KeyPair{{CertFile: "the certificate", KeyFile: "the key", Cert: string(cert.CertPEM), Key: string(key.KeyPEM)}}}
	}
	badCA := of(p, p)
	badCA.ClientCAFile, badCA.ClientCA = "the authorities", "nonsense"
	missing := filepath.Join(t.TempDir(), "missing")
	for name, tt := range map[string]struct {
		c                   tlsconf.ServerConfig
		validate, newServer string // part of the error; "" is none
	}{
		"good":           {of(p, p), "", ""},
		"expired":        {of(old, old), "", "certificate the certificate expired at"},
		"not yet":        {of(early, early), "", "is not valid before"},
		"another's key":  {of(p, other), "certificate the certificate and key the key do not belong together", "do not belong together"},
		"nonsense":       {tlsconf.ServerConfig{More: []tlsconf.KeyPair{{CertFile: "the certificate", Cert: "x", Key: "y"}}}, `the certificate: no PEM block "CERTIFICATE"`, "no PEM block"},
		"authorities":    {badCA, "the authorities: no PEM certificate in it", "no PEM certificate"},
		"missing files":  {tlsconf.ServerConfig{CertFile: missing, KeyFile: missing}, "", "no such file"},
		"no certificate": {tlsconf.ServerConfig{}, "it needs a certificate file and a key file", "it needs a certificate"},
	} {
		err := tt.c.Validate()
		_, serverErr := tlsconf.NewServer(tt.c)
		for _, x := range []struct {
			what string
			err  error
			want string
		}{{"Validate", err, tt.validate}, {"NewServer", serverErr, tt.newServer}} {
			if x.want == "" {
				must(t, x.err)
			} else {
				check(t, name+", "+x.what, x.err, x.want)
			}
		}
	}
}

// What is given by what it is expires too, which is told.
func TestInlineExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := tlstest.NewCA(t, "ca")
		p := ca.Issue(t, tlstest.Leaf{NotAfter: time.Now().Add(2 * time.Hour)})
		var log bytes.Buffer
		server := newServer(t, tlsconf.ServerConfig{
			More:   []tlsconf.KeyPair{{CertFile: "the certificate", KeyFile: "the key", Cert: string(p.CertPEM), Key: string(p.KeyPEM)}},
			Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = server.Run(ctx) })
		time.Sleep(3 * time.Hour)
		cancel()
		wg.Wait()
		for _, text := range []string{`msg="tls files expire soon, and no newer ones are there" source="the certificate the key"`, `msg="tls files have expired`} {
			if strings.Count(log.String(), text) != 1 {
				t.Errorf("%s is not in the log once:\n%s", text, &log)
			}
		}
	})
}

// A server that is to refuse clients once its certificate has expired does, and also
// those that would resume a session of before.
func TestRefuseExpired(t *testing.T) {
	for _, refuse := range []bool{false, true} {
		s := newSite(t)
		var later atomic.Int64
		s.server.RefuseExpired = refuse
		s.server.Now = func() time.Time { return time.Now().Add(time.Duration(later.Load())) }
		server, client := newServer(t, s.server), newClient(t, s.client)
		if o := connect(t, client.Config("web.internal"), server.Config()); o.clientErr != nil || server.Expired() != nil {
			t.Fatalf("%v, %v", o.clientErr, server.Expired())
		}
		later.Store(int64(48 * time.Hour))
		o := connect(t, client.Config("web.internal"), server.Config())
		want := ""
		if refuse {
			want = "expired at"
		}
		check(t, "server", o.serverErr, want)
		if err := server.Expired(); (err != nil) != refuse || (o.clientErr != nil) != refuse {
			t.Errorf("refuse %v: %v, the client gets %v", refuse, err, o.clientErr)
		}
	}
}
