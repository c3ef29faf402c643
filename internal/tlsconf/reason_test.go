package tlsconf_test

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/internal/tlsconf/tlstest"
)

// Each failure of a handshake has its reason, on the side that finds it.
func TestReasonOf(t *testing.T) {
	s := newSite(t)
	stranger, now := tlstest.NewCA(t, "stranger"), time.Now()
	other := tlsconf.ServerConfig{}
	other.CertFile, other.KeyFile = stranger.Issue(t, tlstest.Leaf{Names: []string{"web.internal"}}).Write(t, s.dir, "stranger")
	for name, tt := range map[string]struct {
		server         func(*tlsconf.ServerConfig)
		client         func(*tlsconf.ClientConfig)
		client0, serve tlsconf.Reason // of either side
	}{
		"host name": {nil, func(c *tlsconf.ClientConfig) { c.ServerName = "api.internal" }, tlsconf.ReasonName, tlsconf.ReasonRefused},
		"SAN":       {nil, func(c *tlsconf.ClientConfig) { c.SANs = []tlsconf.Matcher{{Exact: "x"}} }, tlsconf.ReasonName, tlsconf.ReasonRefused},
		"expired":   {nil, func(c *tlsconf.ClientConfig) { c.Now = func() time.Time { return now.AddDate(0, 1, 0) } }, tlsconf.ReasonExpired, tlsconf.ReasonRefused},
		"authority": {func(c *tlsconf.ServerConfig) { c.CertFile, c.KeyFile = other.CertFile, other.KeyFile }, nil, tlsconf.ReasonAuthority, tlsconf.ReasonRefused},
		"pin":       {nil, func(c *tlsconf.ClientConfig) { c.Pins = []tlsconf.Pin{{}} }, tlsconf.ReasonCertificate, tlsconf.ReasonRefused},
		"none":      {func(c *tlsconf.ServerConfig) { c.ClientCAFile, c.RequireClientCert = s.client.CAFile, true }, nil, tlsconf.ReasonRefused, tlsconf.ReasonMissing},
	} {
		sc, cc := s.server, s.client
		cc.ServerName, cc.MaxVersion = "web.internal", tls.VersionTLS12 // a client hears of its certificate in the handshake
		if tt.server != nil {
			tt.server(&sc)
		}
		if tt.client != nil {
			tt.client(&cc)
		}
		o := connect(t, newClient(t, cc).Config(""), newServer(t, sc).Config())
		for _, x := range []struct {
			err  error
			want tlsconf.Reason
		}{{o.clientErr, tt.client0}, {o.serverErr, tt.serve}} {
			if got := tlsconf.ReasonOf(tlsconf.Explain(x.err)); got != x.want {
				t.Errorf("%s: %v is for %s, want %s", name, x.err, got, x.want)
			}
		}
	}
	for err, want := range map[error]tlsconf.Reason{
		nil: tlsconf.ReasonOther, errors.New("x"): tlsconf.ReasonOther, io.EOF: tlsconf.ReasonNotTLS, tls.RecordHeaderError{}: tlsconf.ReasonNotTLS,
		fmt.Errorf("dial: %w", context.DeadlineExceeded): tlsconf.ReasonTimeout, os.ErrDeadlineExceeded: tlsconf.ReasonTimeout,
	} {
		if got := tlsconf.ReasonOf(err); got != want {
			t.Errorf("%v is for %s, want %s", err, got, want)
		}
	}
	seen := make(map[string]bool)
	for r := range tlsconf.Reason(tlsconf.NumReasons) {
		if text := r.String(); text == "" || seen[text] {
			t.Errorf("reason %d is called %q", r, text)
		} else {
			seen[text] = true
		}
	}
	var f tlsconf.Failures
	f.Add(tlsconf.ReasonName)
	f.Add(200)
	(*tlsconf.Failures)(nil).Add(tlsconf.ReasonName)
	if all := f.Load(); all[tlsconf.ReasonName] != 1 || all[tlsconf.NumReasons-1] != 1 || (*tlsconf.Failures)(nil).Load() != [tlsconf.NumReasons]uint64{} {
		t.Errorf("%v", all)
	}
}

// A client verifies as much as it is told to, and no less.
func TestClientVerifies(t *testing.T) {
	s, stranger := newSite(t), tlstest.NewCA(t, "stranger")
	web := s.ca.Issue(t, tlstest.Leaf{Names: []string{"spiffe://example.org/web", "web.internal"}})
	bad := stranger.Issue(t, tlstest.Leaf{Names: []string{"spiffe://example.org/web", "web.internal"}})
	pin := tlsconf.Pin{Digest: sha256.Sum256(web.Cert.Raw)}
	key := tlsconf.Pin{Key: true, Digest: sha256.Sum256(web.Cert.RawSubjectPublicKeyInfo)}
	ca := string(s.ca.PEM)
	ids := []tlsconf.Matcher{{Type: tlsconf.URI, Exact: "spiffe://example.org/web"}}
	for name, tt := range map[string]struct {
		c        tlsconf.ClientConfig
		web, bad bool // whether they pass
	}{
		"the name":         {tlsconf.ClientConfig{CA: ca, ServerName: "web.internal"}, true, false},
		"another name":     {tlsconf.ClientConfig{CA: ca, ServerName: "api.internal"}, false, false},
		"no name":          {tlsconf.ClientConfig{CA: ca}, false, false},
		"an id, no name":   {tlsconf.ClientConfig{CA: ca, SANs: ids}, true, false},
		"any name":         {tlsconf.ClientConfig{CA: ca, ServerName: "api.internal", AnyName: true}, true, false},
		"a pin beside":     {tlsconf.ClientConfig{CA: ca, AnyName: true, Pins: []tlsconf.Pin{{}, pin}}, true, false},
		"another pin":      {tlsconf.ClientConfig{CA: ca, SANs: ids, Pins: []tlsconf.Pin{{}}}, false, false},
		"a pin of a name":  {tlsconf.ClientConfig{CA: ca, ServerName: "web.internal", Pins: []tlsconf.Pin{{Key: true, Digest: pin.Digest}}}, false, false},
		"a pin alone":      {tlsconf.ClientConfig{Unverified: true, Pins: []tlsconf.Pin{key}}, true, false},
		"nothing":          {tlsconf.ClientConfig{Unverified: true}, true, true},
		"the system's own": {tlsconf.ClientConfig{SANs: ids}, false, false},
	} {
		if err := tt.c.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		client := newClient(t, tt.c)
		for _, x := range []struct {
			who  string
			pair tlstest.Pair
			want bool
		}{{"web", web, tt.web}, {"the stranger", bad, tt.bad}} {
			server := &tls.Config{Certificates: []tls.Certificate{x.pair.TLS(t)}}
			for again := range 2 { // a session that is resumed is verified too
				o := connect(t, client.ConfigFor("", x.who), server)
				if (o.clientErr == nil) != x.want {
					t.Errorf("%s, %s, connection %d: %v", name, x.who, again, o.clientErr)
				}
			}
		}
	}
	p := s.ca.Issue(t, tlstest.Leaf{})
	for want, c := range map[string]tlsconf.ClientConfig{
		"there are authorities, or names to match, and nothing is to be verified": {CA: ca, Unverified: true},
		"authorities: no PEM certificate":                                         {CAFile: "authorities", CA: "x"},
		"do not belong together":                                                  {CertFile: "c", Cert: string(p.CertPEM), KeyFile: "k", Key: string(web.KeyPEM)},
	} {
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
