package tlsconf

import (
	"cmp"
	"context"
	"crypto/sha256"
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
	// means those of the system, as they are when the Client is made. CA, where it is
	// not empty, is what the file would hold.
	CAFile string
	CA     string
	// CertFile and KeyFile are the client's own certificate, followed by its
	// intermediates, and its key, as PEM. Both or none. Cert and Key, where they are
	// not empty, are what the files would hold.
	CertFile, KeyFile string
	Cert, Key         string
	// ServerName is sent as SNI and verified when Config is given no other.
	ServerName string
	// ALPN are the protocols to offer, the preferred first. May be empty.
	ALPN []string
	// SANs, if any, replace the verification of the server's name: one of them
	// must match one of the certificate's. The chain is verified as ever.
	SANs []Matcher
	// AnyName has the chain verified and no name, unless there are SANs: every server
	// that an authority has given a certificate to is as good as another.
	AnyName bool
	// Unverified has neither verified: it takes any certificate, but for Pins. It is
	// an error beside authorities and SANs.
	Unverified bool
	// Pins, if any, are what a server's certificate must be one of, besides all else.
	Pins []Pin
	// CipherSuites are those of TLS 1.2 that may be used; nil means all that package
	// tls finds good.
	CipherSuites []uint16
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

// Pin is a SHA-256 digest of a whole certificate, or with Key of its public key
// (SubjectPublicKeyInfo). Source: verify_certificate_hash, verify_certificate_spki.
type Pin struct {
	Key    bool
	Digest [sha256.Size]byte
}

// pinned returns nil if one of the pins is that of cert.
func pinned(pins []Pin, cert *x509.Certificate) error {
	whole, key := sha256.Sum256(cert.Raw), sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	for _, p := range pins {
		if p == (Pin{Digest: whole}) || p == (Pin{Key: true, Digest: key}) {
			return nil
		}
	}
	return &PinError{cert}
}

// PinError says that a certificate is none of those that are pinned.
type PinError struct{ Certificate *x509.Certificate }

func (e *PinError) Error() string {
	return "the server's certificate is none of those that are pinned: it " + namesText(e.Certificate)
}

// Client makes configurations for connections to servers. NewClient makes it.
type Client struct {
	r    *rotation
	name string
}

// files returns what c is made of.
func (c *ClientConfig) files() files {
	f := files{CA: c.CAFile, CAData: c.CA, Pairs: pair(c.CertFile, c.KeyFile)}
	if len(f.Pairs) > 0 {
		f.Pairs[0].Cert, f.Pairs[0].Key = c.Cert, c.Key
	}
	return f
}

// Validate is ServerConfig's.
func (c ClientConfig) Validate() error {
	r, err := newClient(c)
	if err != nil {
		return err
	}
	return Check(c.CAFile, c.CA, r.files.Pairs...)
}

// NewClient reads the files. It returns an error if they can't be used: that
// includes a certificate that has expired, or is not valid yet.
func NewClient(c ClientConfig) (*Client, error) {
	r, err := newClient(c)
	if err != nil {
		return nil, err
	}
	if err := r.first(); err != nil {
		return nil, err
	}
	return &Client{r, c.ServerName}, nil
}

// newClient returns a rotation that has read nothing.
func newClient(c ClientConfig) (*rotation, error) {
	base, err := common(c.ALPN, c.MinVersion, c.MaxVersion, c.CipherSuites, c.Now)
	if err != nil {
		return nil, fmt.Errorf("tls client: %w", err)
	}
	if c.Unverified && (c.CAFile != "" || c.CA != "" || len(c.SANs) > 0) {
		return nil, errors.New("tls client: there are authorities, or names to match, and nothing is to be verified")
	}
	sans, err := compile(c.SANs)
	if err != nil {
		return nil, fmt.Errorf("tls client: %w", err)
	}
	base.ServerName = c.ServerName
	// Otherwise package tls verifies chain and name, and again when a session is
	// resumed, before it calls VerifyConnection.
	own := len(sans) > 0 || c.AnyName || c.Unverified
	base.InsecureSkipVerify = own
	return &rotation{
		what:  "tls client",
		files: c.files(),
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
			if !own && len(c.Pins) == 0 {
				return cfg
			}
			cfg.VerifyConnection = func(cs tls.ConnectionState) error {
				if len(cs.PeerCertificates) == 0 {
					return errors.New("tls: the server has shown no certificate")
				}
				if own && !c.Unverified {
					if err := verifyChain(cs.PeerCertificates, m.roots, base.Time()); err != nil {
						return err
					}
				}
				if len(sans) > 0 {
					if err := sans.verify(cs.PeerCertificates[0]); err != nil {
						return err
					}
				}
				if len(c.Pins) > 0 {
					return pinned(c.Pins, cs.PeerCertificates[0])
				}
				return nil
			}
			return cfg
		},
	}, nil
}

// verifyChain is what crypto/tls does for a server's certificate, but for its
// name.
func verifyChain(certs []*x509.Certificate, roots *x509.CertPool, now time.Time) error {
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
func common(alpn []string, minVersion, maxVersion uint16, ciphers []uint16, now func() time.Time) (*tls.Config, error) {
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
	return &tls.Config{NextProtos: slices.Clone(alpn), MinVersion: minVersion, MaxVersion: maxVersion, CipherSuites: slices.Clone(ciphers), Time: now}, nil
}

// Look is Server's.
func (c *Client) Look(ctx context.Context) error { return c.r.look(ctx) }
