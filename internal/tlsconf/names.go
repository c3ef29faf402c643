package tlsconf

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"strconv"
	"strings"
)

const (
	maxName  = 256 // bytes of a name that are shown
	maxNames = 5   // names that are shown
)

// Peer returns who the peer is, for a record of the connection: its SPIFFE ID, or
// the first name of its certificate, or else the certificate's common name. It is
// empty if the peer has shown no certificate. At most 256 bytes and an ellipsis;
// what can't be printed is escaped.
func Peer(cs *tls.ConnectionState) string {
	if cs == nil || len(cs.PeerCertificates) == 0 {
		return ""
	}
	cert := cs.PeerCertificates[0]
	if ns := Names(cert); len(ns) > 0 {
		return ns[0]
	}
	return clean(cert.Subject.CommonName)
}

// Names returns the subject alternative names of a certificate, URIs first, then
// DNS names, IP and mail addresses, written as Peer does. A spiffe URI beside
// another URI is left out, as it identifies nobody.
func Names(cert *x509.Certificate) []string {
	var out []string
	for _, n := range names(cert) {
		out = append(out, clean(n.text))
	}
	return out
}

// clean makes what a peer has written fit for a log.
func clean(s string) string {
	ellipsis := ""
	if len(s) > maxName {
		s, ellipsis = strings.ToValidUTF8(s[:maxName], ""), "…"
	}
	if q := strconv.Quote(s); q != `"`+s+`"` {
		s = q
	}
	return s + ellipsis
}

// namesText says what a certificate names, in words.
func namesText(cert *x509.Certificate) string {
	if ns := Names(cert); len(ns) > 0 {
		return "names " + few(ns)
	}
	return fmt.Sprintf("has no names (its subject is %s)", clean(cert.Subject.String()))
}

// few joins the first of a list.
func few(list []string) string {
	if len(list) > maxNames {
		return strings.Join(list[:maxNames], ", ") + fmt.Sprintf(" and %d more", len(list)-maxNames)
	}
	return strings.Join(list, ", ")
}
