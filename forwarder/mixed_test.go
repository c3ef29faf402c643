package forwarder

import (
	"crypto/tls"
	"errors"
	"net"
	"testing"

	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/lbcore"
)

// Endpoints with TLS and without are tried in turn for one connection. What an endpoint
// with TLS can't have never makes the dial a plain one.
func TestPlainAndTLS(t *testing.T) {
	onEach(t, func(t *testing.T) {
		p := newPKI(t)
		secure := backend(t, anyPort, secured(p.server(t).Config(), func(c *tls.Conn) { echo(c) }))
		plain := backend(t, anyPort, echo)
		untouched := backend(t, anyPort, func(net.Conn) { t.Error("an endpoint without its TLS was connected") })
		deaf := refused(t)
		errNone := errors.New("no certificate")
		config := p.upstream(t, tlsconf.ClientConfig{ServerName: "web.internal"})
		for _, tt := range []struct {
			name             string
			addrs            []lbcore.Addr
			to               lbcore.Addr
			failed, unusable uint64
		}{
			{"plain", []lbcore.Addr{plain}, plain, 0, 0},
			{"TLS", []lbcore.Addr{secure}, secure, 0, 0},
			{"plain fails, TLS", []lbcore.Addr{deaf, secure}, secure, 1, 0},
			{"no certificate, plain", []lbcore.Addr{untouched, plain}, plain, 0, 1},
			{"plain fails, no certificate, TLS", []lbcore.Addr{deaf, untouched, secure}, secure, 1, 1},
			{"no certificate", []lbcore.Addr{untouched}, lbcore.Addr{}, 0, 1},
		} {
			t.Run(tt.name, func(t *testing.T) {
				up := newCluster(t, tt.addrs...)
				up.dial.TLSFailures = new(tlsconf.Failures)
				up.dial.Plain = func(m *lbcore.Member) bool { return m.Addr() == plain || m.Addr() == deaf }
				up.dial.TLS = func(m *lbcore.Member) (*tls.Config, error) {
					if m.Addr() == untouched {
						return nil, errNone
					}
					return config(m)
				}
				r := start(t, Config{Upstream: up})
				if tt.to.IsValid() {
					c := client(t, r.Addr())
					exchange(t, c, "hello")
					closeConn(c)
				} else {
					wantRefused(t, r.Addr())
				}
				rec := r.record(t)
				if rec.Address != tt.to || tt.to.IsValid() && (rec.Flag != FlagNone || rec.BytesOut != 5) || !tt.to.IsValid() && (rec.Flag != FlagUF || rec.Err != errNone) {
					t.Errorf("%+v", rec)
				}
				if s := r.Stats(); s.DialsFailed != tt.failed || s.DialsAbandoned != tt.unusable || up.dial.TLSFailures.Load()[tlsconf.ReasonUnusable] != tt.unusable {
					t.Errorf("%+v, %v", s, up.dial.TLSFailures.Load())
				}
			})
		}
	})
}
