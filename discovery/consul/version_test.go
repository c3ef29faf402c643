package consul

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"testing"

	"gatehouse.internal/internal/tlsconf/tlstest"
)

// A Consul that speaks an older version than TLS 1.2, or has another name, is not asked.
func TestTLSOfServer(t *testing.T) {
	ca := tlstest.NewCA(t, "consul")
	caFile := ca.Write(t, t.TempDir())
	for name, tt := range map[string]struct {
		version uint16
		named   string
		want    bool
	}{
		"TLS 1.1": {tls.VersionTLS11, "127.0.0.1", false}, "TLS 1.2": {tls.VersionTLS12, "127.0.0.1", true}, "TLS 1.3": {tls.VersionTLS13, "127.0.0.1", true},
		"another name": {tls.VersionTLS13, "elsewhere.internal", false},
	} {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Write([]byte("[]")) }))
		s.TLS = &tls.Config{
			MinVersion: tls.VersionTLS10, MaxVersion: tt.version,
			Certificates: []tls.Certificate{ca.Issue(t, tlstest.Leaf{Names: []string{tt.named}}).TLS(t)},
		}
		s.StartTLS()
		c, err := New(Config{Address: s.URL, CAFile: caFile})
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := c.tlsConfig(s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		conn, err := tls.Dial("tcp", s.Listener.Addr().String(), cfg)
		if err == nil {
			conn.Close()
		}
		if (err == nil) != tt.want {
			t.Errorf("%s: %v", name, err)
		}
		s.Close()
	}
}
