package forwarder

import "fmt"

// Flag says how a connection ended, in the words of Envoy's access log
// (%RESPONSE_FLAGS%). Every accepted connection ends with exactly one; the
// package comment says what each of them means here.
type Flag uint8

// The flags. FlagNone is an orderly end: both sides said that they had no more
// to send.
const (
	FlagNone Flag = iota
	FlagUH        // no healthy upstream
	FlagUF        // upstream connection failure
	FlagUO        // upstream overflow
	FlagNC        // no cluster found
	FlagNR        // no route found
	FlagUC        // upstream connection termination
	FlagDC        // downstream connection termination
	FlagSI        // stream idle timeout
	FlagLR        // local reset
	FlagOM        // overload manager terminated
	FlagDT        // duration timeout
	FlagDO        // drop overload
	FlagUAEX      // unauthorized external service

	NumFlags = iota // how many there are: 0 to NumFlags-1
)

var flagNames = [NumFlags]struct{ short, long string }{
	FlagNone: {"-", "None"},
	FlagUH:   {"UH", "NoHealthyUpstream"},
	FlagUF:   {"UF", "UpstreamConnectionFailure"},
	FlagUO:   {"UO", "UpstreamOverflow"},
	FlagNC:   {"NC", "NoClusterFound"},
	FlagNR:   {"NR", "NoRouteFound"},
	FlagUC:   {"UC", "UpstreamConnectionTermination"},
	FlagDC:   {"DC", "DownstreamConnectionTermination"},
	FlagSI:   {"SI", "StreamIdleTimeout"},
	FlagLR:   {"LR", "LocalReset"},
	FlagOM:   {"OM", "OverloadManagerTerminated"},
	FlagDT:   {"DT", "DurationTimeout"},
	FlagDO:   {"DO", "DropOverload"},
	FlagUAEX: {"UAEX", "UnauthorizedExternalService"},
}

// String returns the short name, as %RESPONSE_FLAGS% prints it: "UH", or "-"
// for FlagNone.
func (f Flag) String() string {
	if f < NumFlags {
		return flagNames[f].short
	}
	return fmt.Sprintf("Flag(%d)", uint8(f))
}

// MarshalText returns String, so that logs and JSON show it.
func (f Flag) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// Long returns the long name, as %RESPONSE_FLAGS_LONG% prints it:
// "NoHealthyUpstream", or "None" for FlagNone.
func (f Flag) Long() string {
	if f < NumFlags {
		return flagNames[f].long
	}
	return f.String()
}

// Refusal is the error with which an Upstream says that there is nothing to
// pick, and under which Flag that counts. Make each once and return it many
// times: then a refusal allocates nothing. It must not be written after that.
type Refusal struct {
	Flag   Flag
	Reason string // which cluster, and why: `cluster "web" is not known`
}

// Error returns the reason.
func (r *Refusal) Error() string { return r.Reason }
