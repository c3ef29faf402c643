// Package tlstest makes certificates for tests: an authority that issues those of
// servers and clients, and the PEM files that a program reads.
//
// # Usage
//
//	ca := tlstest.NewCA(t, "test authority")
//	server := ca.Issue(t, tlstest.Leaf{Names: []string{"localhost", "127.0.0.1"}})
//	caFile := ca.Write(t, dir)
//	certFile, keyFile := server.Write(t, dir, "server")
//
// # Concurrency
//
// Everything may be used from several goroutines; what fails, fails the test, so
// that it must be the test's own.
//
// # Limitations
//
// Keys are ECDSA P-256, written unencrypted. There are no intermediates.
package tlstest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// CA is an authority.
type CA struct {
	Cert *x509.Certificate
	PEM  []byte
	key  *ecdsa.PrivateKey
}

// Leaf says what a certificate is to hold. The zero value is good for servers
// and clients, has no names, and is valid from an hour ago to a day from now.
type Leaf struct {
	// Names are subject alternative names; what kind each is shows: a URI has
	// "://", a mail address "@", an IP address is one, the rest is DNS.
	Names []string
	// CommonName of the subject. Empty means "leaf".
	CommonName string
	// NotBefore and NotAfter. Zero means an hour ago, and in a day.
	NotBefore, NotAfter time.Time
	// Usage. Nil means server and client authentication.
	Usage []x509.ExtKeyUsage
}

// Pair is a certificate with its key.
type Pair struct {
	Cert            *x509.Certificate
	CertPEM, KeyPEM []byte
}

// NewCA makes an authority of that name, valid from a year ago to ten years from
// now. Two of one name are still two.
func NewCA(t testing.TB, commonName string) *CA {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber:          serial(t),
		Subject:               pkix.Name{CommonName: commonName},
		NotBefore:             time.Now().AddDate(-1, 0, 0),
		NotAfter:              time.Now().AddDate(10, 0, 0),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	cert, der := sign(t, template, template, key, key)
	return &CA{Cert: cert, PEM: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), key: key}
}

// Issue makes a certificate.
func (ca *CA) Issue(t testing.TB, l Leaf) Pair {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber: serial(t),
		Subject:      pkix.Name{CommonName: l.CommonName},
		NotBefore:    l.NotBefore,
		NotAfter:     l.NotAfter,
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  l.Usage,
	}
	if l.CommonName == "" {
		template.Subject.CommonName = "leaf"
	}
	if l.NotBefore.IsZero() {
		template.NotBefore = time.Now().Add(-time.Hour)
	}
	if l.NotAfter.IsZero() {
		template.NotAfter = time.Now().AddDate(0, 0, 1)
	}
	if l.Usage == nil {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	}
	for _, n := range l.Names {
		switch ip := net.ParseIP(n); {
		case strings.Contains(n, "://"):
			u, err := url.Parse(n)
			must(t, err)
			template.URIs = append(template.URIs, u)
		case strings.Contains(n, "@"):
			template.EmailAddresses = append(template.EmailAddresses, n)
		case ip != nil:
			template.IPAddresses = append(template.IPAddresses, ip)
		default:
			template.DNSNames = append(template.DNSNames, n)
		}
	}
	cert, der := sign(t, template, ca.Cert, key, ca.key)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	return Pair{
		Cert:    cert,
		CertPEM: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		KeyPEM:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}),
	}
}

// Pool has the authority alone.
func (ca *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.Cert)
	return pool
}

// Write writes dir/ca.pem, as Replace does, and returns its path.
func (ca *CA) Write(t testing.TB, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "ca.pem")
	Replace(t, path, ca.PEM)
	return path
}

// TLS returns the pair as crypto/tls wants it.
func (p Pair) TLS(t testing.TB) tls.Certificate {
	t.Helper()
	cert, err := tls.X509KeyPair(p.CertPEM, p.KeyPEM)
	must(t, err)
	return cert
}

// Write writes dir/name.pem and dir/name-key.pem, each as Replace does, and
// returns their paths.
func (p Pair) Write(t testing.TB, dir, name string) (certFile, keyFile string) {
	t.Helper()
	certFile, keyFile = filepath.Join(dir, name+".pem"), filepath.Join(dir, name+"-key.pem")
	Replace(t, certFile, p.CertPEM)
	Replace(t, keyFile, p.KeyPEM)
	return certFile, keyFile
}

// Replace writes a file as a careful program does: another one, renamed over it.
func Replace(t testing.TB, path string, data []byte) {
	t.Helper()
	must(t, os.WriteFile(path+".new", data, 0o600))
	must(t, os.Rename(path+".new", path))
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	return key
}

func serial(t testing.TB) *big.Int {
	t.Helper()
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	must(t, err)
	return n
}

func sign(t testing.TB, template, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) (*x509.Certificate, []byte) {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	must(t, err)
	cert, err := x509.ParseCertificate(der)
	must(t, err)
	return cert, der
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
