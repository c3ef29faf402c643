package tlsconf

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
)

// Explain says in an operator's words why a TLS handshake failed. Err is that of
// a Handshake, or of a client's first read: an alert of a server in TLS 1.3 comes
// there. The error returned wraps err. Nil stays nil, and what is not known, as it
// is.
func Explain(err error) error {
	if words := explain(err); words != "" {
		return &explained{words, err}
	}
	return err
}

// explained is an error in other words.
type explained struct {
	words string
	err   error
}

func (e *explained) Error() string { return e.words }
func (e *explained) Unwrap() error { return e.err }

func explain(err error) string {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*explained](err); ok {
		return e.words
	}
	if e, ok := errors.AsType[x509.HostnameError](err); ok {
		return fmt.Sprintf("the server's certificate is not valid for %s: it %s", clean(e.Host), namesText(e.Certificate))
	}
	if e, ok := errors.AsType[*SANError](err); ok {
		return e.Error()
	}
	if e, ok := errors.AsType[*PinError](err); ok {
		return e.Error()
	}
	if e, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return "the peer's certificate is signed by an authority that is not among the trusted ones" + issuedBy(e.Cert)
	}
	if e, ok := errors.AsType[x509.CertificateInvalidError](err); ok {
		return invalid(e)
	}
	if e, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return "the peer does not speak TLS: " + e.Msg
	}
	if e, ok := errors.AsType[*net.OpError](err); ok && e.Op == "remote error" {
		return alert(e.Err.Error())
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return "the peer closed the connection during the TLS handshake"
	}
	for _, l := range local {
		if strings.HasPrefix(err.Error(), l.text) {
			return l.words + " (" + err.Error() + ")"
		}
	}
	return ""
}

func issuedBy(cert *x509.Certificate) string {
	if cert == nil {
		return ""
	}
	return fmt.Sprintf(": it %s and its issuer is %s", namesText(cert), clean(cert.Issuer.String()))
}

func invalid(e x509.CertificateInvalidError) string {
	if e.Cert == nil {
		return ""
	}
	switch who := fmt.Sprintf("the peer's certificate, which %s,", namesText(e.Cert)); {
	case e.Reason == x509.Expired && strings.Contains(e.Detail, "before"):
		return fmt.Sprintf("%s is not valid before %s; check the clocks", who, stamp(e.Cert.NotBefore))
	case e.Reason == x509.Expired:
		return fmt.Sprintf("%s expired at %s", who, stamp(e.Cert.NotAfter))
	case e.Reason == x509.IncompatibleUsage:
		return who + " is not made for this side of a connection: its extended key usage lacks server or client authentication"
	default:
		return fmt.Sprintf("%s is not valid: %s", who, e.Error())
	}
}

// alert explains an alert that the peer sent, by crypto/tls' text for it, which
// has no type that could be asked.
func alert(text string) string {
	for _, a := range alerts {
		if text == "tls: "+a.text {
			return fmt.Sprintf("the peer refused: %s (alert %q)", a.words, a.text)
		}
	}
	return fmt.Sprintf("the peer refused (alert %q)", strings.TrimPrefix(text, "tls: "))
}

type wording struct{ text, words string }

// Alerts of RFC 8446, section 6.2.
var alerts = []wording{
	{"handshake failure", "it shares no TLS parameters with us, or wants a client certificate that was not shown"},
	{"protocol version not supported", "it supports none of our TLS versions"},
	{"insufficient security level", "it wants stronger ciphers"},
	{"no application protocol", "it speaks none of the ALPN protocols that were offered"},
	{"unrecognized name", "it does not know the server name (SNI)"},
	{"certificate required", "it wants a client certificate, and none was shown"},
	{"unknown certificate authority", "it does not trust the authority that signed our certificate"},
	{"bad certificate", "it does not accept our certificate: look at its log for the reason, such as names that it does not accept"},
	{"expired certificate", "it says that our certificate has expired"},
	{"revoked certificate", "our certificate is revoked"},
	{"unsupported certificate", "it can't use our certificate's kind of key or purpose"},
	{"unknown certificate", "it does not accept our certificate, for a reason that it doesn't tell"},
	{"access denied", "our certificate is good, but not allowed there"},
	{"internal error", "an error inside of it; look at its log"},
}

// What crypto/tls says itself.
var local = []wording{
	{"tls: server selected unsupported protocol version", "the server chose a TLS version that is not allowed here"},
	{"tls: client offered only unsupported versions", "the client supports none of the TLS versions that are allowed here"},
	{"tls: no cipher suite supported by both client and server", "client and server share no cipher suite"},
	{"tls: client requested unsupported application protocols", "the client speaks none of the ALPN protocols that are offered here"},
	{"tls: client didn't provide a certificate", "the client has shown no certificate, and one is required"},
	{"tls: either ServerName or InsecureSkipVerify", "there is no server name to verify the server's certificate by: set one, or names to match"},
}
