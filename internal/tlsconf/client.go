package tlsconf

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"
)

// DefaultMaxSessions is ClientConfig.MaxSessions where that is 0.
const DefaultMaxSessions = 256

// ClientConfig says how to make a Client. The zero value verifies servers by the
// system's authorities and shows no certificate.
type ClientConfig struct {
	// CAFile has the authorities that servers are verified by, as PEM. Empty
	// means those of the system, as they are when the Client is made.
	CAFile string
	// CertFile and KeyFile are the client's own certificate, followed by its
	// intermediates, and its key, as PEM. Both or none.
	CertFile, KeyFile string
	// CA, Cert and Key, where they are not empty, are what the files would hold,
	// which are then only named in errors.
	CA, Cert, Key string
	// ServerName is sent as SNI and verified when Config is given no other.
	ServerName string
	// ALPN are the protocols to offer, the preferred first. May be empty.
	ALPN []string
	// SANs, if any, replace the verification of the server's name: one of them
	// must match one of the certificate's. The chain is verified as ever.
	SANs []Matcher
	// MaxSessions is how many sessions are kept for resumption, the least recently
	// used going first: a few KiB each. 0 means DefaultMaxSessions, and below 0 none
	// is.
	MaxSessions int
	// MinVersion and MaxVersion are tls.VersionTLS12 or tls.VersionTLS13. Zero
	// means the lowest and the highest of these.
	MinVersion, MaxVersion uint16
	// Logger gets a line for each rotation and a warning for each new reason why
	// one failed. Nil means no log.
	Logger *slog.Logger
	// Now is the clock that certificates are judged by. Nil means time.Now.
	Now func() time.Time
}

// Client makes configurations for connections to servers. NewClient makes it.
type Client struct {
	r    *rotation
	name string
}

// NewClient reads the files. It returns an error if they can't be used: that
// includes a certificate that has expired, or is not valid yet.
func NewClient(c ClientConfig) (*Client, error) {
	base, err := common(c.ALPN, c.MinVersion, c.MaxVersion, c.Now)
	if err != nil {
		return nil, fmt.Errorf("tls client: %w", err)
	}
	sans, err := compile(c.SANs)
	if err != nil {
		return nil, fmt.Errorf("tls client: %w", err)
	}
	base.ServerName = c.ServerName
	r := &rotation{
		what:  "tls client",
		files: files{CA: c.CAFile, CAData: c.CA, Pairs: pair(KeyPair{c.CertFile, c.KeyFile, c.Cert, c.Key})},
		now:   base.Time,
		log:   c.Logger,
		build: func(m material) *tls.Config {
			cfg := base.Clone()
			cfg.RootCAs = m.roots
			if c.MaxSessions >= 0 {
				cfg.ClientSessionCache = tls.NewLRUClientSessionCache(cmp.Or(c.MaxSessions, DefaultMaxSessions))
			}
			if len(m.certs) > 0 {
				// Always shown, whatever authorities the server lists: so it can say
				// that it doesn't know ours, rather than that none came.
				cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &m.certs[0], nil }
			}
			if len(sans) > 0 {
				// Stands in for the verification of chain and name; VerifyConnection
				// does the former in full, also for resumed sessions.
				cfg.InsecureSkipVerify = true
				cfg.VerifyConnection = func(cs tls.ConnectionState) error {
					if err := verifyChain(cs.PeerCertificates, m.roots, base.Time()); err != nil {
						return err
					}
					return sans.verify(cs.PeerCertificates[0])
				}
			}
			return cfg
		},
	}
	if err := r.first(); err != nil {
		return nil, err
	}
	return &Client{r, c.ServerName}, nil
}

// verifyChain is what crypto/tls does for a server's certificate, but for its
// name.
func verifyChain(certs []*x509.Certificate, roots *x509.CertPool, now time.Time) error {
	if len(certs) == 0 {
		return errors.New("tls: the server has shown no certificate")
	}
	opts := x509.VerifyOptions{
		Roots:         roots,
		Intermediates: x509.NewCertPool(),
		CurrentTime:   now,
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, c := range certs[1:] {
		opts.Intermediates.AddCert(c)
	}
	if _, err := certs[0].Verify(opts); err != nil {
		return &tls.CertificateVerificationError{UnverifiedCertificates: certs, Err: err}
	}
	return nil
}

// Config returns the configuration for one connection, to a server of that name.
// Empty means the ServerName of ClientConfig. If that is empty too, and there are
// no SANs, the handshake fails, as nothing could be verified: pass the text of
// the address then, which is looked for among the certificate's IP addresses and
// not sent as SNI.
//
// Sessions are resumed by server name. It is ConfigFor without an endpoint.
func (c *Client) Config(serverName string) *tls.Config { return c.ConfigFor(serverName, "") }

// ConfigFor is Config for a server name that several endpoints share: sessions
// are resumed only with the endpoint that gave them. Most servers can't read each
// other's tickets, and would drive out each other's sessions. Endpoint is any
// text that names it, such as its address.
func (c *Client) ConfigFor(serverName, endpoint string) *tls.Config {
	cfg := c.r.current.Load().config
	if endpoint == "" && (serverName == "" || serverName == c.name) {
		return cfg
	}
	cfg = cfg.Clone()
	if serverName != "" {
		cfg.ServerName = serverName
	}
	if endpoint != "" && cfg.ClientSessionCache != nil {
		cfg.ClientSessionCache = endpointSessions{endpoint, cfg.ClientSessionCache}
	}
	return cfg
}

// endpointSessions is one endpoint's part of a cache.
type endpointSessions struct {
	endpoint string
	all      tls.ClientSessionCache
}

func (s endpointSessions) key(name string) string { return s.endpoint + "\x00" + name }

func (s endpointSessions) Get(name string) (*tls.ClientSessionState, bool) {
	return s.all.Get(s.key(name))
}

func (s endpointSessions) Put(name string, cs *tls.ClientSessionState) { s.all.Put(s.key(name), cs) }

// Status says what is in force.
func (c *Client) Status() Status { return c.r.current.Load().status }

// Run watches the files and rotates until ctx ends, and returns ctx.Err() then.
func (c *Client) Run(ctx context.Context) error { return c.r.run(ctx) }

// common is what configurations of both sides have.
func common(alpn []string, minVersion, maxVersion uint16, now func() time.Time) (*tls.Config, error) {
	for _, p := range alpn {
		if p == "" || len(p) > 255 {
			return nil, fmt.Errorf("alpn protocol %q must have 1 to 255 bytes", p)
		}
	}
	for _, v := range []uint16{minVersion, maxVersion} {
		if v != 0 && v != tls.VersionTLS12 && v != tls.VersionTLS13 {
			return nil, fmt.Errorf("tls version %s is not supported: use TLS 1.2 or TLS 1.3", tls.VersionName(v))
		}
	}
	if minVersion == 0 {
		minVersion = tls.VersionTLS12
	}
	if maxVersion != 0 && maxVersion < minVersion {
		return nil, fmt.Errorf("the lowest version, %s, is above the highest, %s", tls.VersionName(minVersion), tls.VersionName(maxVersion))
	}
	if now == nil {
		now = time.Now
	}
	return &tls.Config{NextProtos: slices.Clone(alpn), MinVersion: minVersion, MaxVersion: maxVersion, Time: now}, nil
}

// Look is Server's.
func (c *Client) Look(ctx context.Context) error { return c.r.look(ctx) }
