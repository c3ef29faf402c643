package consul

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/hashicorp/consul/api"
)

// maxAnswer bounds an answer, in bytes once unpacked. Ten thousand instances
// take about 15 MiB.
const maxAnswer = 64 << 20

// noToken stands for no token where package api would take one from the
// environment. It has a blank, as no token has.
const noToken = "no token"

// address is where Consul's HTTP API is.
type address struct {
	scheme string // "http" or "https"
	host   string // with port
	prefix string // "" or "/path"
	socket string // of a unix socket; host is not dialled then
}

// url returns a in the form that package api takes.
func (a address) url() string { return a.scheme + "://" + a.host + a.prefix }

// parseAddress reads an address as CONSUL_HTTP_ADDR has it. What stands before
// an @ may be a password, and behind a ? or # a token, which no error shows.
func parseAddress(text string, ssl bool) (address, error) {
	a := address{scheme: "http"}
	if ssl {
		a.scheme = "https"
	}
	if strings.Contains(text, "@") {
		return a, errors.New("has a user or an @ in it: want host:port, and http_auth for the user and password")
	}
	if strings.ContainsAny(text, "?#") {
		return a, errors.New("has a query or a fragment in it: want host:port, http(s)://host:port or unix:///path, and token for a token")
	}
	rest := text
	if scheme, after, ok := strings.Cut(text, "://"); ok {
		rest = after
		switch scheme {
		case "http", "https":
			a.scheme = scheme
		case "unix":
			if !strings.HasPrefix(rest, "/") {
				return a, fmt.Errorf("%q: the path of a unix socket must be absolute, as in unix:///run/consul.sock", text)
			}
			return address{scheme: "http", host: "localhost", socket: rest}, nil
		default:
			return a, fmt.Errorf("%q: want http, https or unix before ://", text)
		}
	}
	u, err := url.Parse(a.scheme + "://" + rest)
	if err != nil || u.Hostname() == "" {
		return a, fmt.Errorf("%q: want host:port, http(s)://host:port or unix:///path", text)
	}
	a.host, a.prefix = u.Host, strings.TrimRight(u.EscapedPath(), "/")
	if u.Port() == "" {
		return a, fmt.Errorf("%q: no port; Consul's own are 8500 for http and 8501 for https", text)
	}
	if n, err := strconv.ParseUint(u.Port(), 10, 16); err != nil || n == 0 {
		return a, fmt.Errorf("%q: port %s: want 1 to 65535", text, u.Port())
	}
	return a, nil
}

// newTransport returns the transport to a real Consul.
func (c *Client) newTransport(a address) *http.Transport {
	// A peer that is gone without a word must not look like one without news.
	dialer := &net.Dialer{
		Timeout:         5 * time.Second,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3},
	}
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		if a.socket != "" {
			network, addr = "unix", a.socket
		}
		conn, err := dialer.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		c.connections.Add(1)
		return &countedConn{Conn: conn, closed: sync.OnceFunc(func() { c.connections.Add(-1) })}, nil
	}
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment, // as all of Consul's tools
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return newPatientConn(conn), nil
		},
		DialTLSContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			cfg, err := c.tlsConfig(addr)
			if err != nil {
				return nil, err
			}
			conn, err := dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			tc := tls.Client(conn, cfg)
			if err := tc.HandshakeContext(ctx); err != nil {
				conn.Close()
				return nil, fmt.Errorf("handshake: %w", err)
			}
			return newPatientConn(tc), nil
		},
		// A blocking query occupies its connection; lookups share the rest. A
		// connection that is wanted may come too late and stay idle.
		MaxIdleConnsPerHost: maxLookups / 2,
		IdleConnTimeout:     90 * time.Second,
	}
}

// tlsConfig reads the files that a handshake with addr needs.
func (c *Client) tlsConfig(addr string) (*tls.Config, error) {
	access := c.access.Load()
	name := access.TLSServerName
	if name == "" {
		name = addr
	}
	cfg, err := api.SetupTLSConfig(&api.TLSConfig{
		Address: name, CAFile: access.CAFile, CAPath: access.CAPath,
		CertFile: access.CertFile, KeyFile: access.KeyFile, InsecureSkipVerify: access.InsecureSkipVerify,
	})
	if err != nil {
		return nil, fmt.Errorf("tls files: %w", err)
	}
	cfg.MinVersion = tls.VersionTLS12
	return cfg, nil
}

// countedConn is a connection that Stats counts.
type countedConn struct {
	net.Conn
	closed func()
}

func (c *countedConn) Close() error {
	c.closed()
	return c.Conn.Close()
}

// patientConn reads nothing before something was written. Consul says 429 to a
// connection that is too many before it is asked, which http.Transport does not
// take for an answer.
type patientConn struct {
	net.Conn
	asked chan struct{} // closed by the first Write or Close
	ask   func()
}

func newPatientConn(conn net.Conn) *patientConn {
	asked := make(chan struct{})
	return &patientConn{Conn: conn, asked: asked, ask: sync.OnceFunc(func() { close(asked) })}
}

func (c *patientConn) Read(p []byte) (int, error) {
	<-c.asked
	return c.Conn.Read(p)
}

func (c *patientConn) Write(p []byte) (int, error) {
	c.ask()
	return c.Conn.Write(p)
}

func (c *patientConn) Close() error {
	err := c.Conn.Close()
	c.ask()
	return err
}

// guardedTransport counts requests and bounds answers.
type guardedTransport struct {
	http.RoundTripper
	c *Client
}

func (t *guardedTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	t.c.requests.Add(1)
	auth := t.c.access.Load().HTTPAuth
	if without := req.Header.Get("X-Consul-Token") == noToken; without || auth != "" {
		req = req.Clone(req.Context())
		if without {
			req.Header.Del("X-Consul-Token")
		}
		if auth != "" {
			user, password, _ := strings.Cut(auth, ":")
			req.SetBasicAuth(user, password)
		}
	}
	resp, err := t.RoundTripper.RoundTrip(req)
	if err == nil {
		resp.Body = &boundedBody{resp.Body, maxAnswer}
	}
	return resp, err
}

// boundedBody fails when more than left bytes are read.
type boundedBody struct {
	io.ReadCloser
	left int64
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, fmt.Errorf("the answer is larger than %d MiB", maxAnswer>>20)
	}
	return n, err
}

// explain says what an error means and what to do. The class is told by the
// status alone: the words differ from version to version.
func (c *Client) explain(err error, token string) error {
	if se, ok := errors.AsType[api.StatusError](err); ok {
		answer := &statusError{se.Code, fmt.Sprintf("%d %q", se.Code, short(c.hide(se.Body, token)))}
		switch {
		case se.Code == http.StatusForbidden && token == "":
			return fmt.Errorf("a request without a token is refused (%w): set token_file or token", answer)
		case se.Code == http.StatusForbidden:
			return fmt.Errorf("the token is refused (%w): it may have expired, or lacks service:read and node:read", answer)
		case se.Code == http.StatusNotFound:
			return fmt.Errorf("no such path there (%w): is it Consul's HTTP API?", answer)
		case se.Code == http.StatusTooManyRequests:
			c.throttled.Add(1)
			return fmt.Errorf("too many requests or connections (%w): raise the agent's http_max_conns_per_client, or lower max_watches", answer)
		case se.Code >= 300 && se.Code < 400:
			return fmt.Errorf("redirects elsewhere (%w), which is not followed: correct the address", answer)
		}
		return answer
	}
	if ue, ok := errors.AsType[*url.Error](err); ok {
		err = ue.Err // the address stands in front of it
	}
	if oe, ok := errors.AsType[*net.OpError](err); ok && oe.Source != nil {
		// The port here is another one each time, which would make each failure
		// look new.
		stable := *oe
		stable.Source = nil
		err = &stable
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the answer was cut short: %w", err)
	}
	if text := short(c.hide(err.Error(), token)); text != err.Error() { // it quotes the answer
		return errors.New(text)
	}
	return err
}

// hide takes what identifies this client out of a text that the server may have
// got from it.
func (c *Client) hide(text, token string) string {
	auth := c.access.Load().HTTPAuth
	_, password, _ := strings.Cut(auth, ":")
	basic := base64.StdEncoding.EncodeToString([]byte(auth))
	for _, secret := range []string{token, basic, password} {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, "<secret>")
		}
	}
	return text
}

// short returns text in one line of some 200 bytes.
func short(text string) string {
	const limit = 200
	text, more := text[:min(len(text), limit)], len(text) > limit
	blank := func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }
	text = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(text, "?"), blank), " ")
	if more {
		text += "..."
	}
	return text
}

// statusError is an answer with another status than 200.
type statusError struct {
	code int
	text string
}

func (e *statusError) Error() string { return e.text }

// status returns the status of the answer that err is about, or 0.
func status(err error) int {
	if se, ok := errors.AsType[*statusError](err); ok {
		return se.code
	}
	return 0
}

// refused reports whether err means that Consul refuses this token.
func refused(err error) bool { return status(err) == http.StatusForbidden }
