package main

import (
	"bytes"
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

	"gatehouse.internal/lbcore"
)

const (
	// defaultAdmin is where an agent's admin interface is unless it is told
	// otherwise.
	defaultAdmin = "127.0.0.1:9901"
	// envAdmin is the variable that tells it, to the agent and to who asks it.
	envAdmin = "GATEHOUSE_ADMIN_ADDRESS"
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
}

// newClient returns a client of the agent at addr, which is what -http-addr says;
// if that is empty, at what the environment says, or else at the default address.
// It does not connect.
func newClient(addr string, env func(string) string) (*client, error) {
	c := &client{said: "by -http-addr"}
	if addr == "" {
		addr, c.said = env(envAdmin), "by "+envAdmin
	}
	if addr == "" {
		addr, c.said = defaultAdmin, "by default"
	}
	var err error
	text := strings.TrimSuffix(strings.TrimPrefix(addr, "http://"), "/")
	if port, ok := strings.CutPrefix(text, "localhost:"); ok {
		text = "127.0.0.1:" + port
	}
	if c.at, err = lbcore.ParseAddr(text); err != nil {
		return nil, fmt.Errorf("the admin address %q, given %s: want IP:port or unix:///path: %w", addr, c.said, err)
	}
	network, to := "tcp", c.at.String()
	if path := c.at.Path(); path != "" {
		network, to = "unix", path
	}
	c.http.Timeout = askWithin
	c.http.Transport = &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, to)
		},
	}
	return c, nil
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
	target := "http://" + host + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, target, nil)
	if err != nil {
		return answer{}, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err // where it is stands in front of it
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
	// check looks at the flags, and may be nil. An error is a mistake of the caller's.
	check func() error
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

func (c *askCommand) set(w io.Writer) (fs *flag.FlagSet, addr *string) {
	fs = newFlagSet(c.name, w, c.Help)
	addr = fs.String("http-addr", "", "where the agent's admin interface is, as `IP:port` or unix:///path; by default "+envAdmin+", or else "+defaultAdmin)
	if c.flags != nil {
		c.flags(fs)
	}
	return fs, addr
}

func (c *askCommand) flagSet() *flag.FlagSet {
	fs, _ := c.set(io.Discard)
	return fs
}

// Run implements cli.Command.
func (c *askCommand) Run(args []string) int {
	fs, addr := c.set(c.stderr)
	if ok, code := parseFlags(fs, args, len(c.args)); !ok {
		return code
	}
	if n := fs.NArg(); n < len(c.args)-c.optional {
		fmt.Fprintf(c.stderr, "%s needs %s\n", c.name, strings.Join(c.args[n:len(c.args)-c.optional], " and "))
		fs.Usage()
		return exitConfig
	}
	if c.check != nil {
		if err := c.check(); err != nil {
			fmt.Fprintln(c.stderr, err)
			fs.Usage()
			return exitConfig
		}
	}
	client, err := newClient(*addr, os.Getenv)
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
