package tlsconf

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"time"

	"gatehouse.internal/internal/filewatch"
)

// maxFile is the largest file that is read, in bytes. The authorities of a whole
// system take about 250 KB.
const maxFile = 2 << 20

// KeyPair is the paths of a certificate, followed by its intermediates, and of its
// key, as PEM. Cert and Key, where they are not empty, are what a file would hold,
// and the path only names it in errors.
type KeyPair struct {
	CertFile, KeyFile string
	Cert, Key         string
}

// files are the paths of what a context is made of, which may be empty, or what
// stands for their contents.
type files struct {
	CA     string
	CAData string
	Pairs  []KeyPair
}

// pair returns a list of one pair, or of none.
func pair(cert, key string) []KeyPair {
	if cert == "" && key == "" {
		return nil
	}
	return []KeyPair{{CertFile: cert, KeyFile: key}}
}

// part is one file, or what stands for it.
type part struct{ path, data string }

// parts are all there are, in the order of contents.
func (f files) parts() (ps []part) {
	if f.CA != "" || f.CAData != "" {
		ps = append(ps, part{f.CA, f.CAData})
	}
	for _, p := range f.Pairs {
		ps = append(ps, part{p.CertFile, p.Cert}, part{p.KeyFile, p.Key})
	}
	return ps
}

// paths are those of the files that are read.
func (f files) paths() (ps []string) {
	for _, p := range f.parts() {
		if p.data == "" {
			ps = append(ps, p.path)
		}
	}
	return ps
}

// contents are what the files hold, in the order of parts.
type contents [][]byte

// digest tells contents from others.
func (c contents) digest() [sha256.Size]byte {
	h := sha256.New()
	for _, b := range c {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(b))))
		h.Write(b)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// read reads the files.
func (f files) read() (c contents, err error) {
	for _, p := range f.Pairs {
		if p.CertFile == "" && p.Cert == "" || p.KeyFile == "" && p.Key == "" {
			return nil, fmt.Errorf("a certificate file and a key file go together: there is only %q", p.CertFile+p.KeyFile)
		}
	}
	for _, p := range f.parts() {
		data := []byte(p.data)
		if len(data) == 0 {
			if data, err = filewatch.Read(p.path, maxFile); err != nil {
				return nil, err
			}
		}
		c = append(c, data)
	}
	return c, nil
}

// material is what files come to.
type material struct {
	roots    *x509.CertPool    // nil without a CA file
	certs    []tls.Certificate // of each pair
	notAfter time.Time         // zero without both
}

// parse makes material that is good at that time, or with the zero Time at any. Its
// errors name the file and never quote what is in a key file.
func (f files) parse(c contents, now time.Time) (m material, err error) {
	if f.CA != "" || f.CAData != "" {
		if err := m.authorities(f.CA, c[0], now); err != nil {
			return material{}, err
		}
		c = c[1:]
	}
	for i, p := range f.Pairs {
		if err := m.identity(p, c[2*i], c[2*i+1], now); err != nil {
			return material{}, err
		}
	}
	return m, nil
}

// authorities reads a CA file. One authority in force is enough, as bundles keep
// old ones for long.
func (m *material) authorities(path string, data []byte, now time.Time) error {
	m.roots = x509.NewCertPool()
	var last *x509.Certificate
	others := ""
	for n := 1; ; n++ {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			others = fmt.Sprintf(", but a %.40q", block.Type)
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return fmt.Errorf("%s: PEM block %d: %w", path, n, err)
		}
		m.roots.AddCert(cert)
		if last == nil || cert.NotAfter.After(last.NotAfter) {
			last = cert
		}
	}
	switch {
	case last == nil:
		return fmt.Errorf("%s: no PEM certificate in it%s", path, others)
	case now.After(last.NotAfter):
		return fmt.Errorf("%s: no authority in it is valid any more, the last one expired at %s", path, stamp(last.NotAfter))
	}
	m.notAfter = last.NotAfter
	return nil
}

// identity reads a certificate and its key.
func (m *material) identity(f KeyPair, certPEM, keyPEM []byte, now time.Time) error {
	for _, p := range []struct {
		path, kind string
		data       []byte
	}{{f.CertFile, "CERTIFICATE", certPEM}, {f.KeyFile, "PRIVATE KEY", keyPEM}} {
		if !hasPEM(p.data, p.kind) {
			return fmt.Errorf("%s: no PEM block %q in it", p.path, p.kind)
		}
	}
	cert, err := tls.X509KeyPair(certPEM, keyPEM)
	switch {
	case err != nil && strings.Contains(err.Error(), "does not match"):
		return fmt.Errorf("certificate %s and key %s do not belong together: %w", f.CertFile, f.KeyFile, err)
	case err != nil:
		return fmt.Errorf("certificate %s with key %s: %w", f.CertFile, f.KeyFile, err)
	case cert.Leaf == nil:
		return errors.New("certificate " + f.CertFile + " can't be parsed") // not since Go 1.23
	case now.After(cert.Leaf.NotAfter):
		return fmt.Errorf("certificate %s expired at %s", f.CertFile, stamp(cert.Leaf.NotAfter))
	case !now.IsZero() && now.Before(cert.Leaf.NotBefore):
		return fmt.Errorf("certificate %s is not valid before %s; check the clock", f.CertFile, stamp(cert.Leaf.NotBefore))
	}
	m.certs = append(m.certs, cert)
	if m.notAfter.IsZero() || cert.Leaf.NotAfter.Before(m.notAfter) {
		m.notAfter = cert.Leaf.NotAfter
	}
	return nil
}

// hasPEM reports whether data has a block whose type ends in kind, as there are
// "RSA PRIVATE KEY" and "EC PRIVATE KEY".
func hasPEM(data []byte, kind string) bool {
	for len(bytes.TrimSpace(data)) > 0 {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			return false
		}
		if strings.HasSuffix(block.Type, kind) {
			return true
		}
	}
	return false
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
