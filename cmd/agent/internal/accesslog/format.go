package accesslog

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"gatehouse.internal/forwarder"
	"gatehouse.internal/lbcore"
)

// Text is the format "text". Envoy's own default is made for HTTP and says of a
// TCP connection mostly "-".
const Text = `[%START_TIME%] %RESPONSE_FLAGS% %BYTES_RECEIVED% %BYTES_SENT% %DURATION% %DOWNSTREAM_REMOTE_ADDRESS% %LISTENER_NAME% ` +
	`%UPSTREAM_CLUSTER% %UPSTREAM_HOST% %UPSTREAM_REQUEST_ATTEMPT_COUNT% %UPSTREAM_CONNECTION_POOL_READY_DURATION% "%CONNECTION_TERMINATION_DETAILS%"`

// The names of formats.
const (
	FormatJSON = "json"
	FormatText = "text"
)

const (
	maxFormat = 4096 // bytes of a format
	maxValue  = 1024 // bytes of a value
)

// none is printed for what has no value.
const none = "-"

// value appends something of a record, or nothing if there is none.
type value func(b []byte, r *forwarder.Record) []byte

// Format writes records as lines. It is never written after Parse.
type Format struct {
	parts []part
	json  bool
}

// part is text, and then a value unless that is nil.
type part struct {
	text  string
	value value
	cut   int
}

// operators are the values of Envoy's names, and of our own.
var operators = map[string]value{
	"START_TIME":     startTime,
	"DURATION":       func(b []byte, r *forwarder.Record) []byte { return strconv.AppendInt(b, r.Duration.Milliseconds(), 10) },
	"BYTES_RECEIVED": func(b []byte, r *forwarder.Record) []byte { return strconv.AppendUint(b, r.BytesIn, 10) },
	"BYTES_SENT":     func(b []byte, r *forwarder.Record) []byte { return strconv.AppendUint(b, r.BytesOut, 10) },

	"RESPONSE_FLAGS":      func(b []byte, r *forwarder.Record) []byte { return append(b, r.Flag.String()...) },
	"RESPONSE_FLAGS_LONG": flagLong,

	"CONNECTION_TERMINATION_DETAILS":    details,
	"UPSTREAM_TRANSPORT_FAILURE_REASON": failure,

	"DOWNSTREAM_REMOTE_ADDRESS":              func(b []byte, r *forwarder.Record) []byte { return addrPort(b, r.Client) },
	"DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT": func(b []byte, r *forwarder.Record) []byte { return ip(b, r.Client) },
	"DOWNSTREAM_REMOTE_PORT":                 func(b []byte, r *forwarder.Record) []byte { return port(b, r.Client) },
	"DOWNSTREAM_LOCAL_ADDRESS":               func(b []byte, r *forwarder.Record) []byte { return address(b, local(r)) },
	"DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT":  func(b []byte, r *forwarder.Record) []byte { return host(b, local(r)) },
	"DOWNSTREAM_LOCAL_PORT":                  func(b []byte, r *forwarder.Record) []byte { return port(b, local(r).AddrPort()) },
	"UPSTREAM_HOST":                          func(b []byte, r *forwarder.Record) []byte { return address(b, r.Endpoint) },
	"UPSTREAM_REMOTE_ADDRESS":                func(b []byte, r *forwarder.Record) []byte { return address(b, remote(r)) },
	"UPSTREAM_REMOTE_ADDRESS_WITHOUT_PORT":   func(b []byte, r *forwarder.Record) []byte { return host(b, remote(r)) },
	"UPSTREAM_REMOTE_PORT":                   func(b []byte, r *forwarder.Record) []byte { return port(b, remote(r).AddrPort()) },
	"UPSTREAM_CLUSTER":                       func(b []byte, r *forwarder.Record) []byte { return escape(b, r.Cluster) },
	"UPSTREAM_CLUSTER_RAW":                   func(b []byte, r *forwarder.Record) []byte { return escape(b, r.Cluster) },
	"UPSTREAM_REQUEST_ATTEMPT_COUNT":         func(b []byte, r *forwarder.Record) []byte { return strconv.AppendInt(b, int64(r.Attempts), 10) },

	"UPSTREAM_CONNECTION_POOL_READY_DURATION": connect,

	"DOWNSTREAM_PEER_URI_SAN": func(b []byte, r *forwarder.Record) []byte { return san(b, r.PeerName, true) },
	"DOWNSTREAM_PEER_DNS_SAN": func(b []byte, r *forwarder.Record) []byte { return san(b, r.PeerName, false) },

	"REQUESTED_SERVER_NAME": func(b []byte, r *forwarder.Record) []byte { return escape(b, r.ServerName) },

	"HOSTNAME":            hostname,
	"FILTER_CHAIN_NAME":   func(b []byte, r *forwarder.Record) []byte { return escape(b, r.Chain) },
	"LISTENER_NAME":       func(b []byte, r *forwarder.Record) []byte { return escape(b, r.Listener) },
	"SELECTOR_GENERATION": func(b []byte, r *forwarder.Record) []byte { return strconv.AppendUint(b, r.Generation, 10) },
}

// local returns what the client had connected to, where that is known, as Envoy
// does once a listener filter has restored it; else what the listener is bound to.
func local(r *forwarder.Record) lbcore.Addr {
	if r.Destination.IsValid() {
		return lbcore.IPAddr(r.Destination)
	}
	return r.Local
}

// remote returns the address of the endpoint that was connected to; else the
// endpoint that was dialled last.
func remote(r *forwarder.Record) lbcore.Addr {
	if r.Address.IsValid() {
		return r.Address
	}
	return r.Endpoint
}

// Parse reads a format: FormatJSON, FormatText, or operators. unknown are those
// that print "-" because they are not known here. An error says what is wrong, and
// where.
func Parse(s string) (f *Format, unknown []string, err error) {
	switch {
	case s == FormatJSON:
		return &Format{json: true}, nil, nil
	case s == FormatText:
		s = Text
	case s == "":
		return nil, nil, errors.New("the format is empty")
	case len(s) > maxFormat:
		return nil, nil, fmt.Errorf("the format is longer than %d bytes", maxFormat)
	}
	if s = strings.TrimSuffix(s, "\n"); strings.ContainsAny(s, "\n\r") {
		return nil, nil, errors.New("a line break in the format: each connection is a line, the end of which is added")
	}
	f = new(Format)
	text, operators := "", 0
	for rest := s; rest != ""; {
		plain, after, found := strings.Cut(rest, "%")
		text += plain
		if !found {
			break
		}
		at := len(s) - len(after) - 1
		if strings.HasPrefix(after, "%") {
			text, rest = text+"%", after[1:]
			continue
		}
		operators++
		p, name, n, err := operator(after)
		if err != nil {
			return nil, nil, fmt.Errorf("at byte %d: %w", at, err)
		}
		if p.value == nil && !slices.Contains(unknown, name) {
			unknown = append(unknown, name)
		}
		if p.value == nil {
			text += none
		} else {
			p.text, text = text, ""
			f.parts = append(f.parts, p)
		}
		rest = after[n:]
	}
	if operators == 0 {
		return nil, nil, fmt.Errorf("%q has no operator, all lines would be the same", s)
	}
	f.parts = append(f.parts, part{text: text})
	return f, unknown, nil
}

// operator reads NAME(ARGUMENT):LENGTH% at the beginning of s, and returns how
// many bytes that is.
func operator(s string) (p part, name string, n int, err error) {
	isName := func(r rune) bool { return r == '_' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' }
	end := strings.IndexFunc(s, func(r rune) bool { return !isName(r) })
	if end < 0 {
		end = len(s)
	}
	if end == 0 {
		return p, "", 0, errors.New("no operator after %: write %% for a percent sign")
	}
	name, n = s[:end], end
	argument, hasArgument := "", false
	if strings.HasPrefix(s[n:], "(") {
		stop := strings.IndexByte(s[n:], ')')
		if stop < 0 {
			return p, "", 0, fmt.Errorf("%%%s(: no closing parenthesis", name)
		}
		argument, hasArgument = s[n+1:n+stop], true
		n += stop + 1
	}
	p.cut = maxValue
	if strings.HasPrefix(s[n:], ":") {
		digits := s[n+1:]
		if i := strings.IndexByte(digits, '%'); i >= 0 {
			digits = digits[:i]
		}
		length, err := strconv.ParseUint(digits, 10, 16)
		if err != nil || length == 0 {
			return p, "", 0, fmt.Errorf("%%%s: %q is no length", name, digits)
		}
		p.cut = min(int(length), maxValue)
		n += 1 + len(digits)
	}
	if !strings.HasPrefix(s[n:], "%") {
		return p, "", 0, fmt.Errorf("%%%s: no closing %%", name)
	}
	n++
	p.value = operators[name]
	switch {
	case !hasArgument || p.value == nil: // one of Envoy's that is not known may have one
	case name == "START_TIME":
		if p.value, err = strftime(argument); err != nil {
			return p, "", 0, fmt.Errorf("%%START_TIME: %w", err)
		}
	default:
		return p, "", 0, fmt.Errorf("%%%s takes no argument", name)
	}
	return p, name, n, nil
}

// Append appends the line of r, without its end.
func (f *Format) Append(b []byte, r *forwarder.Record) []byte {
	if f.json {
		return appendJSON(b, r)
	}
	for i := range f.parts {
		p := &f.parts[i]
		b = append(b, p.text...)
		if p.value == nil {
			continue
		}
		at := len(b)
		if b = p.value(b, r); len(b) == at {
			b = append(b, none...)
		}
		b = cut(b, at, p.cut)
	}
	return b
}

// cut cuts what begins at at to n bytes, and not within a character or an escape.
func cut(b []byte, at, n int) []byte {
	if len(b)-at <= n {
		return b
	}
	end := at + n
	for i := at; i < at+n; {
		size := 1
		if b[i] == '\\' && i+1 < len(b) {
			if size = 2; b[i+1] == 'u' {
				size = 6
			}
		} else if b[i] >= utf8.RuneSelf {
			_, size = utf8.DecodeRune(b[i:])
		}
		if i += size; i > at+n {
			end = i - size
		}
	}
	return b[:end]
}

// escape appends s as it stands in JSON's quotes, with all that can't be printed
// escaped, at most maxValue bytes and a bit.
func escape(b []byte, s string) []byte {
	end := len(b) + maxValue
	for i := 0; i < len(s) && len(b) < end; {
		c := s[i]
		if c >= ' ' && c < utf8.RuneSelf-1 {
			if c == '"' || c == '\\' {
				b = append(b, '\\')
			}
			b = append(b, c)
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		i += n
		switch {
		case r == utf8.RuneError && n == 1 || r > 0xffff && !unicode.IsPrint(r):
			b = append(b, `\ufffd`...)
		case unicode.IsPrint(r):
			b = utf8.AppendRune(b, r)
		default:
			b = append(b, '\\', 'u', hex[r>>12&15], hex[r>>8&15], hex[r>>4&15], hex[r&15])
		}
	}
	return b
}

const hex = "0123456789abcdef"

func startTime(b []byte, r *forwarder.Record) []byte {
	return r.Start.UTC().AppendFormat(b, "2006-01-02T15:04:05.000Z")
}

func flagLong(b []byte, r *forwarder.Record) []byte {
	if r.Flag == forwarder.FlagNone {
		return b
	}
	return append(b, r.Flag.Long()...)
}

func details(b []byte, r *forwarder.Record) []byte {
	if r.Err == nil {
		return b
	}
	return escape(b, r.Err.Error())
}

func failure(b []byte, r *forwarder.Record) []byte {
	if r.Flag != forwarder.FlagUF {
		return b
	}
	return details(b, r)
}

func connect(b []byte, r *forwarder.Record) []byte {
	if r.Connect == 0 {
		return b
	}
	return strconv.AppendInt(b, r.Connect.Microseconds(), 10)
}

func addrPort(b []byte, a netip.AddrPort) []byte {
	if !a.IsValid() {
		return b
	}
	return a.AppendTo(b)
}

func ip(b []byte, a netip.AddrPort) []byte {
	if !a.IsValid() {
		return b
	}
	return a.Addr().AppendTo(b)
}

func port(b []byte, a netip.AddrPort) []byte {
	if !a.IsValid() {
		return b
	}
	return strconv.AppendUint(b, uint64(a.Port()), 10)
}

// address appends a path without a scheme, as Envoy does.
func address(b []byte, a lbcore.Addr) []byte {
	if a.Path() != "" {
		return escape(b, a.Path())
	}
	return addrPort(b, a.AddrPort())
}

func host(b []byte, a lbcore.Addr) []byte {
	if a.Path() != "" {
		return escape(b, a.Path())
	}
	return ip(b, a.AddrPort())
}

// san appends a certificate's name if it is of that kind.
func san(b []byte, name string, uri bool) []byte {
	if strings.Contains(name, "://") != uri {
		return b
	}
	return escape(b, name)
}

func hostname(b []byte, _ *forwarder.Record) []byte { return escape(b, thisHost()) }

var thisHost = sync.OnceValue(func() string {
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name
})

// strftime returns the value of START_TIME(s).
func strftime(s string) (value, error) {
	var steps []func([]byte, time.Time) []byte
	layout := func(l string) func([]byte, time.Time) []byte {
		return func(b []byte, t time.Time) []byte { return t.AppendFormat(b, l) }
	}
	for rest := s; rest != ""; {
		plain, after, found := strings.Cut(rest, "%")
		if plain != "" {
			steps = append(steps, func(b []byte, _ time.Time) []byte { return append(b, plain...) })
		}
		if !found {
			break
		}
		digits := 9
		if after != "" && after[0] >= '1' && after[0] <= '9' {
			digits, after = int(after[0]-'0'), after[1:]
			if !strings.HasPrefix(after, "f") {
				return nil, errors.New("a digit is for %f only")
			}
		}
		if after == "" {
			return nil, errors.New("nothing after the last %")
		}
		switch after[0] {
		case '%':
			steps = append(steps, func(b []byte, _ time.Time) []byte { return append(b, '%') })
		case 's':
			steps = append(steps, func(b []byte, t time.Time) []byte { return strconv.AppendInt(b, t.Unix(), 10) })
		case 'f':
			steps = append(steps, func(b []byte, t time.Time) []byte {
				at := len(b)
				b = strconv.AppendInt(b, 1_000_000_000+int64(t.Nanosecond()), 10)
				return append(b[:at], b[at+1:at+1+digits]...)
			})
		case 'Y':
			steps = append(steps, layout("2006"))
		case 'm':
			steps = append(steps, layout("01"))
		case 'd':
			steps = append(steps, layout("02"))
		case 'H':
			steps = append(steps, layout("15"))
		case 'M':
			steps = append(steps, layout("04"))
		case 'S':
			steps = append(steps, layout("05"))
		case 'F':
			steps = append(steps, layout("2006-01-02"))
		case 'T':
			steps = append(steps, layout("15:04:05"))
		default:
			return nil, fmt.Errorf("%%%c is not known: want %%Y %%m %%d %%H %%M %%S %%F %%T %%s %%f or %%1f to %%9f", after[0])
		}
		rest = after[1:]
	}
	return func(b []byte, r *forwarder.Record) []byte {
		t := r.Start.UTC()
		for _, step := range steps {
			b = step(b, t)
		}
		return b
	}, nil
}
