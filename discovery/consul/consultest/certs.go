package consultest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Certs are files in PEM: a certificate authority of a test's own, and what it
// has signed. The server's certificate is for 127.0.0.1, localhost and
// server.dc1.consul; the client's is for clients only.
type Certs struct {
	CAFile                string
	ServerCert, ServerKey string
	ClientCert, ClientKey string
	authority             *x509.Certificate
	authorityKey          *ecdsa.PrivateKey
}

// NewCerts makes a certificate authority and both certificates, valid for a
// day, in a folder that ends with the test. Two calls give two authorities that
// don't know each other.
func NewCerts(t testing.TB) *Certs {
	t.Helper()
	dir := t.TempDir()
	c := &Certs{}
	c.CAFile, _ = c.sign(t, dir, "ca", &x509.Certificate{
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	})
	c.ServerCert, c.ServerKey = c.sign(t, dir, "server", &x509.Certificate{
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames:    []string{"localhost", "server.dc1.consul"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	})
	c.ClientCert, c.ClientKey = c.sign(t, dir, "client", &x509.Certificate{
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return c
}

// sign completes a certificate, signs it by the authority, or by itself if
// there is none yet, and writes it and its key.
func (c *Certs) sign(t testing.TB, dir, name string, cert *x509.Certificate) (certFile, keyFile string) {
	t.Helper()
	fail := func(err error) {
		if err != nil {
			t.Fatalf("certificate %s: %v", name, err)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	fail(err)
	cert.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	fail(err)
	cert.Subject = pkix.Name{CommonName: "consultest " + name}
	cert.NotBefore = time.Now().Add(-time.Hour)
	cert.NotAfter = time.Now().Add(24 * time.Hour)
	if c.authority == nil {
		c.authority, c.authorityKey = cert, key
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, c.authority, &key.PublicKey, c.authorityKey)
	fail(err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	fail(err)
	certFile, keyFile = filepath.Join(dir, name+".pem"), filepath.Join(dir, name+"-key.pem")
	fail(os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	fail(os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), 0o600))
	return certFile, keyFile
}
