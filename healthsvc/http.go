package healthsvc

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"gatehouse.internal/lbcore"
)

// The limits of an answer to an HTTP probe, in bytes.
const (
	// MaxHeader bounds its header, interim (1xx) answers included.
	MaxHeader = 64 << 10
	// MaxBody is how much of its body is read. What goes beyond is not an
	// error, but a body that ends earlier than it said is.
	MaxBody = 64 << 10
)

// StatusRange is a half-open range of http statuses: Start is in it and End is
// not. Source: Int64Range.
type StatusRange struct{ Start, End int }

// String returns the range as people write it, "200" or "200-299".
func (r StatusRange) String() string {
	if r.End == r.Start+1 {
		return strconv.Itoa(r.Start)
	}
	return fmt.Sprintf("%d-%d", r.Start, r.End-1)
}

// HTTP makes one HTTP/1.1 request on a connection of its own and judges the
// status. It follows no redirect and uses no proxy. An expected status passes
// once the body has ended (or MaxBody of it was read), and is ErrDegraded if the
// answer has the header X-Envoy-Degraded. Any other status is an ImmediateError,
// unless it is retriable. Source: HealthCheck.HttpHealthCheck.
type HTTP struct {
	Transport
	// Method defaults to GET. CONNECT is refused.
	Method string
	// Path begins with a slash and may have a query. It is required.
	Path string
	// Host is sent as the Host header. The caller takes it from the endpoint's
	// host name, the check's host or the cluster's name, in this order. Empty
	// means the probed address, or "localhost" for a unix socket.
	Host string
	// Headers are sent besides. Host and those that frame a message are not
	// allowed. Source: request_headers_to_add.
	Headers http.Header
	// Expected holds the statuses that pass. Empty means 200.
	Expected []StatusRange
	// Retriable holds the statuses that fail by the threshold. Expected wins.
	Retriable []StatusRange
}

// Validate reports the first field that can't be sent or makes no sense.
func (p HTTP) Validate() error {
	if strings.EqualFold(p.Method, http.MethodConnect) {
		return errors.New("method CONNECT: a health check can't use it")
	}
	if p.Method != "" && !isToken(p.Method) {
		return fmt.Errorf("method %q: not a method name", p.Method)
	}
	if !strings.HasPrefix(p.Path, "/") {
		return fmt.Errorf("path %q: must begin with a slash", p.Path)
	}
	if strings.ContainsFunc(p.Path, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '#' }) {
		return fmt.Errorf("path %q: must have no space, control character or #", p.Path)
	}
	if err := validHost("host", p.Host); err != nil {
		return err
	}
	for name, values := range p.Headers {
		switch textproto.CanonicalMIMEHeaderKey(name) {
		case "Host":
			return fmt.Errorf("header %q: set host instead", name)
		case "Connection", "Content-Length", "Expect", "Trailer", "Transfer-Encoding", "Upgrade":
			return fmt.Errorf("header %q: the health check sets what frames its request", name)
		}
		if !isToken(name) {
			return fmt.Errorf("header %q: not a header name", name)
		}
		for _, v := range values {
			if strings.ContainsFunc(v, func(r rune) bool { return isControl(r) && r != '\t' }) {
				return fmt.Errorf("header %q: its value has a control character", name)
			}
		}
	}
	if err := validRanges("expected_statuses", p.Expected); err != nil {
		return err
	}
	if err := validRanges("retriable_statuses", p.Retriable); err != nil {
		return err
	}
	if err := p.Transport.validate(); err != nil {
		return err
	}
	_, err := p.request(lbcore.Addr{})
	return err
}

func validHost(field, host string) error {
	if strings.Contains(host, "*") {
		return fmt.Errorf("%s %q: a wildcard names no host; give the name to send", field, host)
	}
	if strings.ContainsFunc(host, func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune(`/\?#@"`, r) }) {
		return fmt.Errorf("%s %q: want a host name or address, with or without a port", field, host)
	}
	return nil
}

func validRanges(field string, ranges []StatusRange) error {
	for _, r := range ranges {
		if r.Start < 100 || r.Start >= r.End || r.End > 600 {
			return fmt.Errorf("%s: from %d up to, not including, %d: want 100 <= start < end <= 600", field, r.Start, r.End)
		}
	}
	return nil
}

// isToken follows RFC 9110, 5.6.2.
func isToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
	})
}

// Kind returns "http".
func (p HTTP) Kind() string { return "http" }

// Spec returns the canonical text for Key.Spec: ways to write the same request
// and the same statuses give the same text.
func (p HTTP) Spec() string {
	var b strings.Builder
	fmt.Fprintf(&b, "http %s %q host=%q", cmp.Or(p.Method, http.MethodGet), p.Path, p.Host)
	headers := make(map[string][]string)
	for _, name := range slices.Sorted(maps.Keys(p.Headers)) {
		k := textproto.CanonicalMIMEHeaderKey(name)
		headers[k] = append(headers[k], p.Headers[name]...)
	}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		fmt.Fprintf(&b, " %s=%q", name, headers[name])
	}
	fmt.Fprintf(&b, " expected=%v retriable=%v", merge(p.expected()), merge(p.Retriable))
	return b.String() + p.Transport.spec()
}

// String says what is asked, without what may be secret: headers and queries.
func (p HTTP) String() string {
	path, _, _ := strings.Cut(p.Path, "?")
	return p.Transport.with(fmt.Sprintf("%s %s host %q", cmp.Or(p.Method, http.MethodGet), path, p.Host))
}

func (p HTTP) expected() []StatusRange {
	if len(p.Expected) == 0 {
		return []StatusRange{{200, 201}}
	}
	return p.Expected
}

// merge returns the same statuses in the fewest ranges, in order.
func merge(ranges []StatusRange) []StatusRange {
	in := slices.SortedFunc(slices.Values(ranges), func(a, b StatusRange) int { return cmp.Compare(a.Start, b.Start) })
	out := in[:0]
	for _, r := range in {
		if n := len(out); n > 0 && r.Start <= out[n-1].End {
			out[n-1].End = max(out[n-1].End, r.End)
			continue
		}
		out = append(out, r)
	}
	return out
}

func contains(ranges []StatusRange, status int) bool {
	return slices.ContainsFunc(ranges, func(r StatusRange) bool { return r.Start <= status && status < r.End })
}

// request returns what is sent. The host goes out as it stands: package http
// empties those that it takes for no host names, as "outbound|80||web" is.
func (p HTTP) request(addr lbcore.Addr) ([]byte, error) {
	target, err := url.ParseRequestURI(p.Path)
	if err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	host := p.Host
	if host == "" && addr.Path() == "" {
		host = addr.String()
	} else if host == "" {
		host = "localhost"
	}
	if strings.ContainsFunc(host, isControl) {
		return nil, fmt.Errorf("host %q: has a control character", host)
	}
	header := make(http.Header)
	for name, values := range p.Headers {
		for _, v := range values {
			header.Add(name, v)
		}
	}
	if header.Get("User-Agent") == "" {
		header.Set("User-Agent", "gatehouse-health-check")
	}
	header.Set("Connection", "close")
	switch p.Method {
	case http.MethodPost, http.MethodPut, http.MethodPatch:
		header.Set("Content-Length", "0") // RFC 9110, 8.6: these are expected to have a body
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\n", cmp.Or(p.Method, http.MethodGet), target.RequestURI(), host)
	err = header.Write(&b)
	b.WriteString("\r\n")
	return b.Bytes(), err
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// Probe does what HTTP says.
func (p HTTP) Probe(ctx context.Context, addr lbcore.Addr) error {
	req, err := p.request(addr)
	if err != nil {
		return err
	}
	c, release, err := p.open(ctx, addr, "http/1.1")
	if err != nil {
		return err
	}
	defer release()
	if _, err := c.Write(req); err != nil {
		return reason(ctx, "send", err)
	}

	limit := &io.LimitedReader{R: c, N: MaxHeader}
	br := bufio.NewReader(limit)
	var resp *http.Response
	for resp == nil || resp.StatusCode < 200 && resp.StatusCode != http.StatusSwitchingProtocols {
		if resp, err = http.ReadResponse(br, &http.Request{Method: cmp.Or(p.Method, http.MethodGet)}); err != nil {
			if limit.N <= 0 {
				return fmt.Errorf("response: header of more than %d bytes", MaxHeader)
			}
			return reason(ctx, "response", err)
		}
	}
	if !contains(p.expected(), resp.StatusCode) {
		err := fmt.Errorf("status %d: want %s", resp.StatusCode, list(merge(p.expected())))
		if contains(p.Retriable, resp.StatusCode) {
			return err
		}
		return &ImmediateError{err}
	}
	// The body is not closed: Close would read all that is left of it.
	limit.N = math.MaxInt64
	if _, err := io.CopyN(io.Discard, resp.Body, MaxBody); err != nil && err != io.EOF {
		return reason(ctx, fmt.Sprintf("status %d, body", resp.StatusCode), err)
	}
	if _, degraded := resp.Header["X-Envoy-Degraded"]; degraded {
		return ErrDegraded
	}
	return nil
}

func list(ranges []StatusRange) string {
	var names []string
	for _, r := range ranges {
		names = append(names, r.String())
	}
	return strings.Join(names, ", ")
}
