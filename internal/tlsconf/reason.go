package tlsconf

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
)

// Reason is a kind of reason why there is no TLS connection, for counting.
type Reason uint8

// The reasons.
const (
	ReasonOther       Reason = iota
	ReasonName               // the peer's certificate names none of those that are accepted
	ReasonExpired            // it has expired, or is not valid yet
	ReasonAuthority          // no trusted authority has signed it
	ReasonCertificate        // it is not good for something else, or pinned
	ReasonMissing            // the peer has shown none
	ReasonRefused            // the peer has refused, as it does not accept our certificate
	ReasonNotTLS             // the peer speaks something else, or closes the connection
	ReasonTimeout            // it was not done in time
	ReasonUnusable           // there is no certificate, or something else, to begin with here

	NumReasons = iota
)

var reasonNames = [NumReasons]string{
	"other", "name", "expired", "unknown_authority", "bad_certificate", "no_certificate", "refused_by_peer", "not_tls", "timeout", "unusable",
}

// String returns the reason's label.
func (r Reason) String() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return reasonNames[ReasonOther]
}

// ReasonOf returns the reason that lies behind the error of a handshake, or of the first
// read after it.
func ReasonOf(err error) Reason {
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return ReasonName
	}
	if _, ok := errors.AsType[*SANError](err); ok {
		return ReasonName
	}
	if _, ok := errors.AsType[*PinError](err); ok {
		return ReasonCertificate
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return ReasonAuthority
	}
	if e, ok := errors.AsType[x509.CertificateInvalidError](err); ok {
		if e.Reason == x509.Expired {
			return ReasonExpired
		}
		return ReasonCertificate
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return ReasonNotTLS
	}
	if e, ok := errors.AsType[*net.OpError](err); ok && e.Op == "remote error" {
		return ReasonRefused
	}
	switch {
	case err == nil:
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return ReasonNotTLS
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return ReasonTimeout
	case strings.Contains(err.Error(), "tls: client didn't provide a certificate"):
		return ReasonMissing
	}
	return ReasonOther
}

// Failures counts reasons. The zero value is ready, and a nil *Failures counts nothing.
// Its methods may be called from anywhere, and take no lock.
type Failures [NumReasons]atomic.Uint64

// Add counts one.
func (f *Failures) Add(r Reason) {
	if f != nil {
		f[min(int(r), NumReasons-1)].Add(1)
	}
}

// Load returns the counts.
func (f *Failures) Load() (all [NumReasons]uint64) {
	if f != nil {
		for i := range f {
			all[i] = f[i].Load()
		}
	}
	return all
}
