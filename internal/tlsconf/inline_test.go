package tlsconf_test

import (
	"crypto/tls"
	"path/filepath"
	"testing"
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
