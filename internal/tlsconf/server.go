package tlsconf

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"
)

// ServerConfig says how to make a Server. CertFile and KeyFile, or More, are
// required.
type ServerConfig struct {
	// CertFile and KeyFile are the server's certificate, followed by its
	// intermediates, and its key, as PEM.
	CertFile, KeyFile string
	// More are further certificates, or all. A client gets the first of all that is valid
	// for the server name (SNI) that it sends and whose key it can use, and if there
	// is none the first.
	More []KeyPair
	// ClientCAFile has the authorities that clients' certificates are verified
	// by, as PEM. Empty means that none is asked for. ClientCA, where it is not
	// empty, is what the file would hold.
	ClientCAFile string
	ClientCA     string
	// RequireClientCert refuses clients that show no certificate. It needs
	// authorities. Without it a client may show one, and then a good one.
	RequireClientCert bool
	// ALPN are the protocols to choose from, the preferred first. A client that
	// offers protocols, and none of these, is refused, or with AnyALPN is served as
	// if it had offered none. Empty takes any client.
	ALPN []string
	// AnyALPN: see ALPN. So does Envoy, and Istio's clients offer what its servers
	// do not list.
	AnyALPN bool
	// SANs, if any, are what a client's certificate must name: one of them must
	// match. They need RequireClientCert, as a client without a certificate would
	// pass them.
	SANs []Matcher
	// NoResumption has every client make a full handshake.
	NoResumption bool
	// MinVersion and MaxVersion are tls.VersionTLS12 or tls.VersionTLS13. Zero
	// means the lowest and the highest of these.
	MinVersion, MaxVersion uint16
	// CipherSuites is ClientConfig's.
	CipherSuites []uint16
	// RefuseExpired refuses every client once the certificate in force has expired, or
	// the last of its authorities has: see Server.Expired. Without it clients are shown
	// the old one, and most refuse it.
	RefuseExpired bool
	// Logger gets a line for each rotation and a warning for each new reason why
	// one failed. Nil means no log.
	Logger *slog.Logger
	// Now is the clock that certificates are judged by. Nil means time.Now.
	Now func() time.Time
}

// Server makes configurations for accepted connections. NewServer makes it.
type Server struct {
	r       *rotation
	refuses bool // RefuseExpired
}

// files returns what c is made of.
func (c *ServerConfig) files() files {
	return files{CA: c.ClientCAFile, CAData: c.ClientCA, Pairs: append(pair(c.CertFile, c.KeyFile), c.More...)}
}

// Validate returns what keeps a Server from being made at any time, and nil if
// there is nothing: it reads no file, and lets pass what has expired. It finds what
// is wrong with the data that stands for files, as with a key that does not belong
// to its certificate.
func (c ServerConfig) Validate() error {
	r, err := newServer(c)
	if err != nil {
		return err
	}
	return Check(c.ClientCAFile, c.ClientCA, r.files.Pairs...)
}

// Check returns what is wrong with authorities, and with pairs, that are given by
// what they are: with ca, which is called caFile in errors, and with those that have
// both Cert and Key. It reads no file, and lets pass what has expired.
func Check(caFile, ca string, pairs ...KeyPair) error {
	f := files{CAData: ca}
	if ca != "" {
		f.CA = caFile
	}
	for _, p := range pairs {
		if p.Cert != "" && p.Key != "" {
			f.Pairs = append(f.Pairs, p)
		}
	}
	data, err := f.read()
	if err == nil {
		_, err = f.parse(data, time.Time{})
	}
	return err
}

// NewServer reads the files. It returns an error if they can't be used: that
// includes a certificate that has expired, or is not valid yet.
func NewServer(c ServerConfig) (*Server, error) {
	r, err := newServer(c)
	if err != nil {
		return nil, err
	}
	if err := r.first(); err != nil {
		return nil, err
	}
	return &Server{r, c.RefuseExpired}, nil
}

// newServer returns a rotation that has read nothing.
func newServer(c ServerConfig) (*rotation, error) {
	base, err := common(c.ALPN, c.MinVersion, c.MaxVersion, c.CipherSuites, c.Now)
	if err != nil {
		return nil, fmt.Errorf("tls server: %w", err)
	}
	verifies := c.ClientCAFile != "" || c.ClientCA != ""
	switch {
	case c.CertFile == "" && len(c.More) == 0:
		return nil, errors.New("tls server: it needs a certificate file and a key file")
	case c.RequireClientCert && !verifies:
		return nil, errors.New("tls server: client certificates are required, so it needs a file of the authorities to verify them by")
	case len(c.SANs) > 0 && !c.RequireClientCert:
		return nil, errors.New("tls server: names are asked of client certificates, so these must be required")
	}
	sans, err := compile(c.SANs)
	if err != nil {
		return nil, fmt.Errorf("tls server: %w", err)
	}
	base.SessionTicketsDisabled = c.NoResumption
	if len(sans) > 0 {
		base.VerifyConnection = func(cs tls.ConnectionState) error {
			if len(cs.PeerCertificates) == 0 {
				return errors.New("tls: the client has shown no certificate")
			}
			return sans.verify(cs.PeerCertificates[0])
		}
	}
	switch {
	case c.RequireClientCert:
		base.ClientAuth = tls.RequireAndVerifyClientCert
	case verifies:
		base.ClientAuth = tls.VerifyClientCertIfGiven
	}
	return &rotation{
		what:  "tls server",
		files: c.files(),
		now:   base.Time,
		log:   c.Logger,
		// Ticket keys live in the tls.Config, so a new one has new keys.
		build: func(m material) *tls.Config {
			cfg := base.Clone()
			cfg.ClientCAs = m.roots
			cfg.Certificates = m.certs
			if !c.RefuseExpired && !c.AnyALPN {
				return cfg
			}
			silent := cfg.Clone() // it has the ticket keys of cfg, whose generation is the same
			silent.NextProtos = nil
			cfg.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
				if c.RefuseExpired { // also sessions that would be resumed
					if err := expired(m.notAfter, base.Time()); err != nil {
						return nil, err
					}
				}
				if c.AnyALPN && !slices.ContainsFunc(hello.SupportedProtos, func(p string) bool { return slices.Contains(c.ALPN, p) }) {
					return silent, nil
				}
				return nil, nil
			}
			return cfg
		},
	}, nil
}

// Config returns the configuration in force, for one connection. It must not be
// cloned, nor returned from a GetConfigForClient: see the package comment.
func (s *Server) Config() *tls.Config { return s.r.current.Load().config }

// Expired returns why every client is refused, as RefuseExpired wants, or nil.
func (s *Server) Expired() error {
	if !s.refuses {
		return nil
	}
	return expired(s.r.current.Load().status.NotAfter, s.r.now())
}

func expired(notAfter, now time.Time) error {
	if notAfter.IsZero() || !now.After(notAfter) {
		return nil
	}
	return fmt.Errorf("the certificate in force, or the last of the authorities, expired at %s, and no newer one is there", stamp(notAfter))
}

// Status says what is in force.
func (s *Server) Status() Status { return s.r.current.Load().status }

// Run watches the files and rotates until ctx ends, and returns ctx.Err() then.
func (s *Server) Run(ctx context.Context) error { return s.r.run(ctx) }

// Look has Run look at the files now, and returns when what they hold is in force,
// if it can be used. It waits for Run; the error is ctx's.
func (s *Server) Look(ctx context.Context) error { return s.r.look(ctx) }
