package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"gatehouse.internal/internal/filewatch"
	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/lbcore"
)

const (
	// defaultAdmin is where an agent's admin interface is unless it is told
	// otherwise.
	defaultAdmin = "127.0.0.1:9901"
	// askWithin bounds a question that the agent answers at once.
	askWithin = 10 * time.Second
	// maxAnswer bounds an answer, in bytes.
	maxAnswer = 256 << 20
)

// client asks a running agent through its admin interface.
type client struct {
	at   lbcore.Addr
	said string // by whom at was said: "by -http-addr"
	http http.Client
	// scheme is http or https, and token is sent unless it is empty.
	scheme, token string
}

// The variables that say how the admin interface is asked; the agent reads the first
// two as its own admin.address and admin.token_file.
const (
	envAdmin      = "GATEHOUSE_ADMIN_ADDRESS"
	envTokenFile  = "GATEHOUSE_ADMIN_TOKEN_FILE"
	envToken      = "GATEHOUSE_ADMIN_TOKEN"
	envCAFile     = "GATEHOUSE_ADMIN_CA_FILE"
	envClientCert = "GATEHOUSE_ADMIN_CLIENT_CERT"
	envClientKey  = "GATEHOUSE_ADMIN_CLIENT_KEY"
	envServerName = "GATEHOUSE_ADMIN_TLS_SERVER_NAME"
)

// access is how an agent is asked: what flags say, else the environment.
type access struct {
	addr, tokenFile, caFile, certFile, keyFile, serverName string
}

// flags adds the flags of a.
func (a *access) flags(fs *flag.FlagSet) {
	for _, f := range []struct {
		to               *string
		name, env, usage string
	}{
		{&a.addr, "http-addr", envAdmin, "where the agent's admin interface is, as `IP:port`, https://IP:port or unix:///path"},
		{&a.tokenFile, "token-file", envTokenFile, "a `file` with the token of the admin interface; " + envToken + " has the token itself"},
		{&a.caFile, "ca-file", envCAFile, "speak TLS, and verify the admin interface by the authorities in this `file`; with https:// alone by the system's"},
		{&a.certFile, "client-cert", envClientCert, "speak TLS, and show the certificate in this `file`"},
		{&a.keyFile, "client-key", envClientKey, "the `file` of its key"},
		{&a.serverName, "tls-server-name", envServerName, "the `name` that the admin interface's certificate must have; by default its IP, or localhost for a unix socket"},
	} {
		usage := f.usage + "; by default " + f.env
		if f.to == &a.addr {
			usage += ", or else " + defaultAdmin
		}
		fs.StringVar(f.to, f.name, "", usage)
	}
}

// newClient returns a client of the agent that a and the environment lead to. It does
// not connect.
func newClient(a access, env func(string) string) (*client, error) {
	c := &client{said: "by -http-addr"}
	addr := a.addr
	if addr == "" {
		addr, c.said = env(envAdmin), "by "+envAdmin
	}
	if addr == "" {
		addr, c.said = defaultAdmin, "by default"
	}
	var err error
	text, secure := strings.CutPrefix(strings.TrimSuffix(addr, "/"), "https://")
	text = strings.TrimPrefix(text, "http://")
	if port, ok := strings.CutPrefix(text, "localhost:"); ok {
		text = "127.0.0.1:" + port
	}
	if c.at, err = lbcore.ParseAddr(text); err != nil {
		return nil, fmt.Errorf("the admin address %q, given %s: want IP:port, https://IP:port or unix:///path: %w", addr, c.said, err)
	}
	network, to := "tcp", c.at.String()
	if path := c.at.Path(); path != "" {
		network, to = "unix", path
	}
	if file := cmp.Or(a.tokenFile, env(envTokenFile)); a.tokenFile == "" && env(envToken) != "" {
		c.token = env(envToken)
	} else if file != "" {
		if c.token, err = filewatch.Secret(file); err != nil {
			return nil, fmt.Errorf("the token of the admin interface: %w", err)
		}
	}
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, to)
		},
	}
	c.http.Timeout, c.http.Transport = askWithin, transport
	// Who follows a redirect could carry the token elsewhere; an agent sends none.
	c.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	ca, cert, key := cmp.Or(a.caFile, env(envCAFile)), cmp.Or(a.certFile, env(envClientCert)), cmp.Or(a.keyFile, env(envClientKey))
	if c.scheme = "http"; !secure && ca == "" && cert == "" {
		return c, nil
	}
	c.scheme = "https"
	name := cmp.Or(a.serverName, env(envServerName), c.host())
	t, err := tlsconf.NewClient(tlsconf.ClientConfig{CAFile: ca, CertFile: cert, KeyFile: key})
	if err != nil {
		return nil, fmt.Errorf("the TLS of the admin interface: %w", err)
	}
	transport.TLSClientConfig = t.Config(name)
	return c, nil
}

// host is what requests are for.
func (c *client) host() string {
	if c.at.Path() != "" {
		return "localhost"
	}
	return c.at.AddrPort().Addr().String()
}

// noAgentError says that nobody answers where the agent should be.
type noAgentError struct {
	c   *client
	err error
}

// Error says where was looked, and how an agent is started.
func (e *noAgentError) Error() string {
	return fmt.Sprintf(`no agent answers at %s (given %s): %v
start one by "gatehouse run -config-file FILE", or say where its admin interface is by -http-addr or %s`,
		e.c.at, e.c.said, e.err, envAdmin)
}

func (e *noAgentError) Unwrap() error { return e.err }

// answer is what the agent says.
type answer struct {
	status int
	body   []byte
}

// do makes a request, and returns the answer whatever its status.
func (c *client) do(ctx context.Context, method, path string, query url.Values) (answer, error) {
	host := "localhost" // of a unix socket
	if c.at.Path() == "" {
		host = c.at.String()
	}
	target := c.scheme + "://" + host + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, target, nil)
	if err != nil {
		return answer{}, err
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err // where it is stands in front of it
		}
		if c.scheme == "https" {
			err = tlsconf.Explain(err)
		}
		return answer{}, &noAgentError{c, err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return answer{}, fmt.Errorf("the answer of the agent at %s was cut short: %w", c.at, err)
	}
	return answer{resp.StatusCode, body}, nil
}

// get asks for a page that answers 200.
func (c *client) get(ctx context.Context, path string, query url.Values) ([]byte, error) {
	return c.good(ctx, http.MethodGet, path, query)
}

// post has the agent do something that it answers with 200.
func (c *client) post(ctx context.Context, path string, query url.Values) ([]byte, error) {
	return c.good(ctx, http.MethodPost, path, query)
}

func (c *client) good(ctx context.Context, method, path string, query url.Values) ([]byte, error) {
	a, err := c.do(ctx, method, path, query)
	if err == nil && a.status != http.StatusOK {
		err = c.refusal(a)
	}
	return a.body, err
}

// refusal says what the agent did not do.
func (c *client) refusal(a answer) error {
	if a.status == http.StatusUnauthorized {
		return fmt.Errorf("the agent at %s wants the token of its admin interface, and this one has none or a wrong one: say where it is by -token-file, %s or %s", c.at, envTokenFile, envToken)
	}
	return fmt.Errorf("the agent at %s says %d: %s", c.at, a.status, bytes.TrimSpace(a.body))
}

// getJSON reads the page path in its JSON form into v.
func (c *client) getJSON(ctx context.Context, path string, query url.Values, v any) error {
	if query == nil {
		query = make(url.Values)
	}
	query.Set("format", "json")
	body, err := c.get(ctx, path, query)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("the agent at %s: %s is not what this version knows: %w", c.at, path, err)
	}
	return nil
}

// askCommand is a command that asks a running agent.
type askCommand struct {
	name, synopsis string
	// usage is the help without the options.
	usage string
	// args are the names of the arguments that it takes after the flags, of which
	// the last optional ones may be left out.
	args     []string
	optional int
	// flags adds the command's own, and may be nil.
	flags func(*flag.FlagSet)
	// check looks at the flags and the arguments, and may be nil. An error is a mistake of
	// the caller's.
	check func(args []string) error
	// run asks, and returns the exit code; an error is printed.
	run func(ctx context.Context, c *client, args []string) (int, error)

	stderr io.Writer
}

// Synopsis implements cli.Command.
func (c *askCommand) Synopsis() string { return c.synopsis }

// Help implements cli.Command.
func (c *askCommand) Help() string {
	fs, _ := c.set(io.Discard)
	return helpText(c.usage, fs)
}

func (c *askCommand) set(w io.Writer) (fs *flag.FlagSet, how *access) {
	fs = newFlagSet(c.name, w, c.Help)
	how = new(access)
	how.flags(fs)
	if c.flags != nil {
		c.flags(fs)
	}
	return fs, how
}

func (c *askCommand) flagSet() *flag.FlagSet {
	fs, _ := c.set(io.Discard)
	return fs
}

// Run implements cli.Command.
func (c *askCommand) Run(args []string) int {
	fs, how := c.set(c.stderr)
	if ok, code := parseFlags(fs, args, len(c.args)); !ok {
		return code
	}
	if n := fs.NArg(); n < len(c.args)-c.optional {
		fmt.Fprintf(c.stderr, "%s needs %s\n", c.name, strings.Join(c.args[n:len(c.args)-c.optional], " and "))
		fs.Usage()
		return exitConfig
	}
	if c.check != nil {
		if err := c.check(fs.Args()); err != nil {
			fmt.Fprintln(c.stderr, err)
			fs.Usage()
			return exitConfig
		}
	}
	client, err := newClient(*how, os.Getenv)
	if err != nil {
		fmt.Fprintln(c.stderr, err)
		return exitConfig
	}
	code, err := c.run(context.Background(), client, fs.Args())
	if err != nil {
		fmt.Fprintln(c.stderr, strings.TrimSpace(err.Error()))
		code = max(code, exitRuntime)
	}
	return code
}
