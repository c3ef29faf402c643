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

// files are the paths of what a context is made of. Each may be empty.
type files struct{ CA, Cert, Key string }

func (f files) paths() (ps []string) {
	for _, p := range []string{f.CA, f.Cert, f.Key} {
		if p != "" {
			ps = append(ps, p)
		}
	}
	return ps
}

// contents are what the files hold.
type contents struct{ ca, cert, key []byte }

// digest tells contents from others.
func (c contents) digest() [sha256.Size]byte {
	h := sha256.New()
	for _, b := range [][]byte{c.ca, c.cert, c.key} {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(b))))
		h.Write(b)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// read reads the files.
func (f files) read() (c contents, err error) {
	if (f.Cert == "") != (f.Key == "") {
		return c, fmt.Errorf("a certificate file and a key file go together: there is only %q", f.Cert+f.Key)
	}
	for _, p := range []struct {
		path string
		data *[]byte
	}{{f.CA, &c.ca}, {f.Cert, &c.cert}, {f.Key, &c.key}} {
		if p.path == "" {
			continue
		}
		if *p.data, err = filewatch.Read(p.path, maxFile); err != nil {
			return c, err
		}
	}
	return c, nil
}

// material is what files come to.
type material struct {
	roots    *x509.CertPool   // nil without a CA file
	cert     *tls.Certificate // nil without a certificate file
	notAfter time.Time        // zero without both
}

// parse makes material that is good at that time. Its errors name the file and
// never quote what is in a key file.
func (f files) parse(c contents, now time.Time) (m material, err error) {
	if f.CA != "" {
		if err := m.authorities(f.CA, c.ca, now); err != nil {
			return material{}, err
		}
	}
	if f.Cert != "" {
		if err := m.identity(f, c, now); err != nil {
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

// identity reads certificate and key.
func (m *material) identity(f files, c contents, now time.Time) error {
	for _, p := range []struct {
		path, kind string
		data       []byte
	}{{f.Cert, "CERTIFICATE", c.cert}, {f.Key, "PRIVATE KEY", c.key}} {
		if !hasPEM(p.data, p.kind) {
			return fmt.Errorf("%s: no PEM block %q in it", p.path, p.kind)
		}
	}
	cert, err := tls.X509KeyPair(c.cert, c.key)
	switch {
	case err != nil && strings.Contains(err.Error(), "does not match"):
		return fmt.Errorf("certificate %s and key %s do not belong together: %w", f.Cert, f.Key, err)
	case err != nil:
		return fmt.Errorf("certificate %s with key %s: %w", f.Cert, f.Key, err)
	case cert.Leaf == nil:
		return errors.New("certificate " + f.Cert + " can't be parsed") // not since Go 1.23
	case now.After(cert.Leaf.NotAfter):
		return fmt.Errorf("certificate %s expired at %s", f.Cert, stamp(cert.Leaf.NotAfter))
	case now.Before(cert.Leaf.NotBefore):
		return fmt.Errorf("certificate %s is not valid before %s; check the clock", f.Cert, stamp(cert.Leaf.NotBefore))
	}
	m.cert = &cert
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
