package config

import (
	"crypto/tls"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/internal/tlsconf/tlstest"
)

func TestTLSSettings(t *testing.T) {
	full := fullConfig()
	up := full.Clusters[0].TLS.Client()
	want := tlsconf.ClientConfig{
		CAFile: "/etc/tls/ca.pem", CertFile: "/etc/tls/client.pem", KeyFile: "/etc/tls/client-key.pem", ServerName: "web.internal",
		ALPN: []string{"h2", "http/1.1"}, MaxSessions: -1, MinVersion: tls.VersionTLS13, MaxVersion: tls.VersionTLS13,
		SANs: []tlsconf.Matcher{
			{Type: tlsconf.DNS, Suffix: ".web.internal", IgnoreCase: true}, {Type: tlsconf.IP, Exact: "10.0.0.1"},
			{Type: tlsconf.URI, Prefix: "spiffe://example.org/"}, {Type: tlsconf.Email, Regex: ".+@example.org"}, {Type: tlsconf.AnySAN, Contains: "web"},
			{Type: tlsconf.URI, Exact: "spiffe://example.org/web"},
		},
	}
	if !reflect.DeepEqual(up, want) {
		t.Errorf("%s", diff(want, up))
	}
	down := full.Listeners[0].TLS.Server()
	wantDown := tlsconf.ServerConfig{
		CertFile: "/etc/tls/server.pem", KeyFile: "/etc/tls/server-key.pem", ClientCAFile: "/etc/tls/clients.pem", RequireClientCert: true,
		More: []tlsconf.KeyPair{{CertFile: "/etc/tls/api.pem", KeyFile: "/etc/tls/api-key.pem"}},
		ALPN: []string{"h2"}, NoResumption: true, MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12,
		SANs: []tlsconf.Matcher{{Type: tlsconf.DNS, Exact: "client.internal"}, {Type: tlsconf.URI, Prefix: "spiffe://example.org/"}},
	}
	if !reflect.DeepEqual(down, wantDown) {
		t.Errorf("%s", diff(wantDown, down))
	}
}

// An empty block is one, in both syntaxes.
func TestTLSEmpty(t *testing.T) {
	for name, text := range map[string]string{
		"a.hcl":  "cluster \"a\" {\n  discovery \"file\" { path = \"x\" }\n  tls {}\n}\n",
		"a.json": `{"cluster": {"a": {"discovery": {"file": {"path": "x"}}, "tls": {}}}}`,
	} {
		cfg := mustLoad(t, Options{Paths: []string{files(t, name, text)}, Hostname: "h", TLSFiles: true})
		if tls := cfg.Clusters[0].TLS; !tls.Enabled || tls.Client().MaxSessions != 256 {
			t.Errorf("%s: tls is %+v", name, tls)
		}
	}
}

// The files are looked at where that is asked for, and each mistake in them is
// one of the argument that names the file.
func TestTLSFiles(t *testing.T) {
	dir := t.TempDir()
	ca := tlstest.NewCA(t, "test")
	caFile := ca.Write(t, dir)
	cert, key := ca.Issue(t, tlstest.Leaf{}).Write(t, dir, "good")
	_, otherKey := ca.Issue(t, tlstest.Leaf{}).Write(t, dir, "other")
	expired, expiredKey := ca.Issue(t, tlstest.Leaf{NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour)}).Write(t, dir, "expired")
	missing, empty := filepath.Join(dir, "missing"), filepath.Join(dir, "empty")
	tlstest.Replace(t, empty, nil)
	for _, tc := range []struct{ ca, cert, key, want string }{
		{caFile, cert, key, ""},
		{missing, cert, key, "a.hcl:4:15: stat missing: no such file or directory"},
		{empty, cert, key, "a.hcl:4:15: empty: no PEM certificate in it"},
		{caFile, missing, key, "a.hcl:5:15: stat missing: no such file or directory"},
		{caFile, cert, missing, "a.hcl:6:15: stat missing: no such file or directory"},
		{caFile, cert, dir, "a.hcl:6:15: DIR is not a regular file"},
		{caFile, cert, otherKey, "a.hcl:5:15: certificate good.pem and key other-key.pem do not belong together: tls: private key does not match public key"},
		{caFile, expired, expiredKey, "a.hcl:5:15: certificate expired.pem expired at "},
	} {
		for _, text := range []string{
			"cluster \"a\" {\n  discovery \"file\" { path = \"x\" }\n  tls {\n    ca_file = %q\n    cert_file=%q\n    key_file= %q\n  }\n}\n",
			"cluster \"a\" {\n  health_check \"tcp\" {\n   tls {\n    ca_file = %q\n    cert_file=%q\n    key_file= %q\n  }\n }\n  discovery \"file\" { path = \"x\" }\n}\n",
			"xds {\n  server \"a:1\" {\n  tls {\n    ca_file = %q\n    cert_file=%q\n    key_file= %q\n  }\n }\n}\n",
			"listener \"l\" {\n  address = \"127.0.0.1:0\"\n  tls {\n    ca_file = %q\n    cert_file=%q\n    key_file= %q\n  }\n  cluster = \"a\"\n}\ncluster \"a\" {\n  discovery \"file\" { path = \"x\" }\n}\n",
		} {
			conf := files(t, "a.hcl", fmt.Sprintf(text, tc.ca, tc.cert, tc.key))
			opts := Options{Paths: []string{conf}, Hostname: "h", TLSFiles: true}
			if tc.want == "" {
				mustLoad(t, opts)
				continue
			}
			got := strings.ReplaceAll(mistakes(t, opts, conf), dir+"/", "")
			got = strings.ReplaceAll(got, dir, "DIR")
			if !strings.HasPrefix(got, tc.want) || strings.Contains(got, "\n") {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
			opts.TLSFiles = false
			mustLoad(t, opts)
		}
	}
	conf := files(t, "a.hcl", fmt.Sprintf("listener \"l\" {\n  address = \"127.0.0.1:0\"\n  tls {\n    cert_file=%q\n    key_file= %q\n    tls_certificates \"b\" {\n      cert_file=%q\n      key_file=%q\n    }\n  }\n  cluster = \"a\"\n}\ncluster \"a\" {\n  discovery \"file\" { path = \"x\" }\n}\n", cert, key, expired, expiredKey))
	got := strings.ReplaceAll(mistakes(t, Options{Paths: []string{conf}, Hostname: "h", TLSFiles: true}, conf), dir+"/", "")
	if want := "a.hcl:7:17: certificate expired.pem expired at "; !strings.HasPrefix(got, want) || strings.Contains(got, "\n") {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
