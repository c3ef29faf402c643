package consul

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/consul/api"

	"gatehouse.internal/discovery"
	"gatehouse.internal/internal/contain"
	"gatehouse.internal/internal/filewatch"
)

// maxLookups is how many requests that don't block at the server run at once.
// It staggers the first load, and with MaxWatches and the shared queries it
// bounds the connections: see Config.MaxWatches.
const maxLookups = 8

// lookupTimeout bounds a request that doesn't block at the server.
const lookupTimeout = 10 * time.Second

// Config says how Consul's HTTP API is reached. The zero Config asks the agent
// at 127.0.0.1:8500 without a token. Of the process's environment only
// CONSUL_NAMESPACE and CONSUL_PARTITION are read, by package api, where
// Namespace and Partition are empty.
type Config struct {
	// Address is "host:port", "http://host:port", "https://host:port", each
	// with a path prefix or without, or "unix:///path". Empty means
	// 127.0.0.1:8500. Source: CONSUL_HTTP_ADDR.
	Address string
	// SSL means https for an Address without a scheme. Source: CONSUL_HTTP_SSL.
	SSL bool
	// CAFile and CAPath are the authorities that may vouch for the server, a
	// PEM file and a directory of them; the system's without both. CertFile and
	// KeyFile are this client's certificate. All are read again for each new
	// connection, so that they may rotate. TLSServerName is the name to expect
	// in place of Address's host. Source: CONSUL_CACERT, CONSUL_CAPATH,
	// CONSUL_CLIENT_CERT, CONSUL_CLIENT_KEY, CONSUL_TLS_SERVER_NAME.
	CAFile, CAPath, CertFile, KeyFile, TLSServerName string
	// InsecureSkipVerify accepts any certificate.
	// Source: CONSUL_HTTP_SSL_VERIFY=false.
	InsecureSkipVerify bool
	// Token is the ACL token of all requests. TokenFile holds it in a file,
	// goes before Token, and is read again for every request; while it is
	// missing or empty requests fail: none is made without a token then.
	// Source: CONSUL_HTTP_TOKEN, CONSUL_HTTP_TOKEN_FILE.
	Token, TokenFile string
	// HTTPAuth is "user" or "user:password" of basic authentication, as a proxy
	// in front of Consul may want it. Source: CONSUL_HTTP_AUTH.
	HTTPAuth string
	// Datacenter, Namespace and Partition are where to look unless a Query says
	// otherwise; empty means the agent's own. Source: CONSUL_NAMESPACE,
	// CONSUL_PARTITION.
	Datacenter, Namespace, Partition string
	// WaitTime is how long a blocking query waits for a change. Zero means 1
	// minute, the most is 10, the least 1 s. Consul's own default of 5 minutes
	// is how long a restored snapshot could go unnoticed at worst.
	WaitTime time.Duration
	// MaxWatches is how many services have a blocking query each; above it all
	// share four on the catalog's state, and what has changed is fetched. There
	// are at most this many connections, 8 for lookups, 4 for each distinct
	// datacenter, namespace, partition and peer, and 3 for listeners and
	// registration; in a service mesh 2 for each Identity, 8 for questions about
	// intentions, and those of queries with Connect also above MaxWatches. An agent
	// allows 200 from one address (http_max_conns_per_client). Zero means 48.
	MaxWatches int
	// MaxStale is how far the server behind an answer may be behind the leader
	// to be believed about what is gone. Zero means 10 s.
	MaxStale time.Duration
	// EmptyHold is how long the loss of all instances, or of more than half of
	// them, is held back while the leader can't confirm it. Zero means 30 s.
	EmptyHold time.Duration
	// Panics contains those of reading an answer, which counts as none. May be nil.
	Panics *contain.Panics
	// Logger gets what is not the failure of one source. Nil means none.
	Logger *slog.Logger
	// Transport carries the requests, for tests. Nil means a transport made
	// from the fields above.
	Transport http.RoundTripper
}

func (c Config) withDefaults() Config {
	orDefault := func(d *time.Duration, def time.Duration) {
		if *d == 0 {
			*d = def
		}
	}
	orDefault(&c.WaitTime, time.Minute)
	orDefault(&c.MaxStale, 10*time.Second)
	orDefault(&c.EmptyHold, 30*time.Second)
	if c.Address == "" {
		c.Address = "127.0.0.1:8500"
	}
	if c.MaxWatches == 0 {
		c.MaxWatches = 48
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Validate reports everything that can't work, joined; each error begins with
// the name of the field as a configuration has it and a colon. Files are not
// looked at: they may come later.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: "+format, append([]any{field}, args...)...))
	}
	if _, err := parseAddress(c.Address, c.SSL); err != nil {
		bad("address", "%w", err)
	}
	for _, x := range []struct{ field, name string }{
		{"datacenter", c.Datacenter}, {"namespace", c.Namespace}, {"partition", c.Partition},
	} {
		if want := badName(x.name); want != "" {
			bad(x.field, "%q: want %s", x.name, want)
		}
	}
	if c.WaitTime < time.Second || c.WaitTime > 10*time.Minute {
		bad("wait_time", "%v: want 1s to 10m", c.WaitTime)
	}
	if c.MaxWatches < 1 {
		bad("max_watches", "%d: want at least 1", c.MaxWatches)
	}
	if c.MaxStale < 0 {
		bad("max_stale", "%v: want a positive time", c.MaxStale)
	}
	if c.EmptyHold < 0 {
		bad("empty_hold", "%v: want a positive time", c.EmptyHold)
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		missing := "cert_file"
		if c.KeyFile == "" {
			missing = "key_file"
		}
		bad(missing, "missing: a client certificate needs cert_file and key_file")
	}
	if strings.ContainsFunc(c.Token, notPrintable) {
		bad("token", "has blanks or control characters in it")
	}
	return errors.Join(errs...)
}

// notPrintable is what no token has in it.
func notPrintable(r rune) bool { return r <= ' ' || r >= 0x7f }

// Client asks one Consul agent for everybody. Make one with New. Its methods
// may be called from anywhere.
type Client struct {
	cfg     Config                 // but for what access says
	access  atomic.Pointer[Config] // see SetAccess
	log     *slog.Logger
	api     *api.Client
	idle    func()        // closes connections that are not in use
	lookups chan struct{} // a slot for each lookup that may run at once
	// For what package api can't ask, and a slot for each question about intentions.
	http        *http.Client
	base        string
	authorizing chan struct{}
	counters

	shared atomic.Bool
	wake   chan struct{} // Run looks at watches again

	mu        sync.Mutex // held for a few assignments only
	watches   map[*watch]struct{}
	listings  map[*blocking]struct{} // of WatchListeners
	followers map[followed]*follower

	resumed []Listener // see ResumeListeners
}

// counters are what Stats shows.
type counters struct {
	requests, failures, throttled, resets, refused atomic.Uint64
	connections, held                              atomic.Int64
}

// Stats is what a Client has done and has at the moment.
type Stats struct {
	// Requests that were made; Failures of them got no usable answer, Throttled
	// of these the answer 429.
	Requests, Failures, Throttled uint64
	// IndexResets counts answers whose index was lower than the one before: a
	// restored snapshot, a replaced server.
	IndexResets uint64
	// Refused counts the instances that were left out of answers although they
	// were asked for, each answer anew.
	Refused uint64
	// Watches are the sources that run now; SharedQueries says that they share
	// queries on the catalog's state.
	Watches       int
	SharedQueries bool
	// Connections are open now.
	Connections int
	// Held are the sources that hold back the loss of their instances now.
	Held int
}

// New returns a Client. It fails only on a Config that Validate refuses, and
// does not connect.
func New(cfg Config) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	addr, err := parseAddress(cfg.Address, cfg.SSL)
	if err != nil {
		return nil, err
	}
	c := &Client{
		cfg: cfg, log: cfg.Logger,
		lookups: make(chan struct{}, maxLookups),
		base:    addr.url(), authorizing: make(chan struct{}, maxAuthorizations),
		wake:      make(chan struct{}, 1),
		watches:   make(map[*watch]struct{}),
		listings:  make(map[*blocking]struct{}),
		followers: make(map[followed]*follower),
	}
	c.access.Store(&cfg)
	rt := cfg.Transport
	if rt == nil {
		rt = c.newTransport(addr)
	}
	ac := &api.Config{
		Address: addr.url(), Token: noToken,
		Datacenter: cfg.Datacenter, Namespace: cfg.Namespace, Partition: cfg.Partition,
		HttpClient: &http.Client{
			Transport: &guardedTransport{rt, c},
			// A redirect would carry the token to wherever it leads.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
	c.http, c.idle = ac.HttpClient, ac.HttpClient.CloseIdleConnections
	c.api, err = api.NewClient(ac)
	return c, err
}

// SameButAccess reports whether c and d differ at most in how Consul is persuaded,
// and knows itself: Token, TokenFile, HTTPAuth, and all about TLS but SSL.
func (c Config) SameButAccess(d Config) bool {
	c.Token, c.TokenFile, c.HTTPAuth = d.Token, d.TokenFile, d.HTTPAuth
	c.CAFile, c.CAPath, c.CertFile, c.KeyFile = d.CAFile, d.CAPath, d.CertFile, d.KeyFile
	c.TLSServerName, c.InsecureSkipVerify = d.TLSServerName, d.InsecureSkipVerify
	return c == d
}

// SetAccess has requests from now on use that of cfg in which it may differ from
// the Client's Config, see [Config.SameButAccess]; the rest of it does not count.
// Queries that wait for a change begin anew, and sources that have failed try again,
// as soon as their pace allows. What is known stays. The error is Validate's: then
// nothing has changed.
func (c *Client) SetAccess(cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	c.access.Store(&cfg)
	c.idle() // those were let in by what was in force before
	c.mu.Lock()
	defer c.mu.Unlock()
	for w := range c.watches {
		w.restart()
		w.anew.Store(true)
		poke(w.look)
	}
	for l := range c.listings {
		l.restart()
	}
	for _, f := range c.followers {
		f.restart()
	}
	return nil
}

// Stats returns the present figures.
func (c *Client) Stats() Stats {
	c.mu.Lock()
	n := len(c.watches)
	c.mu.Unlock()
	return Stats{
		Requests: c.requests.Load(), Failures: c.failures.Load(), Throttled: c.throttled.Load(),
		IndexResets: c.resets.Load(), Refused: c.refused.Load(),
		Watches: n, SharedQueries: c.shared.Load(),
		Connections: int(c.connections.Load()), Held: int(c.held.Load()),
	}
}

// Service returns the source of the instances that q asks for; dups may be nil,
// a nil log means none. The error is Validate's. The source runs in one Watch
// at a time, and while Run does.
func (c *Client) Service(q Query, log *slog.Logger, dups *discovery.Duplicates) (discovery.Source, error) {
	if err := q.Validate(); err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &source{c: c, q: q, log: log, dups: dups}, nil
}

// token returns the token for the next request.
func (c *Client) token() (string, error) {
	cfg := c.access.Load()
	if cfg.TokenFile == "" {
		return cfg.Token, nil
	}
	token, err := filewatch.Secret(cfg.TokenFile)
	if err == nil && strings.ContainsFunc(token, notPrintable) {
		err = fmt.Errorf("%s does not hold a token", cfg.TokenFile)
	}
	if err != nil {
		return "", fmt.Errorf("token file: %w; no request is made without a token", err)
	}
	return token, nil
}

// lookup makes one request that doesn't block at the server, as soon as there
// is a slot for it.
func (c *Client) lookup(ctx context.Context, opts api.QueryOptions, ask func(*api.QueryOptions) (*api.QueryMeta, error)) (*api.QueryMeta, error) {
	select {
	case c.lookups <- struct{}{}:
		defer func() { <-c.lookups }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	opts.WaitIndex, opts.WaitTime = 0, 0
	return c.ask(ctx, lookupTimeout, opts, ask)
}

// ask makes one request with the present token, or the one that opts has.
func (c *Client) ask(ctx context.Context, timeout time.Duration, opts api.QueryOptions, ask func(*api.QueryOptions) (*api.QueryMeta, error)) (*api.QueryMeta, error) {
	if opts.Token == "" {
		token, err := c.token()
		if err != nil {
			c.failures.Add(1)
			return nil, c.fail(err)
		}
		opts.Token = token
	}
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	meta, err := c.contained(ask, opts.WithContext(bounded))
	if err == nil {
		return meta, nil
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	c.failures.Add(1)
	if bounded.Err() != nil {
		err = fmt.Errorf("no answer within %v", timeout)
	}
	return nil, c.fail(c.explain(err, opts.Token))
}

// contained is ask, whose panics are errors.
func (c *Client) contained(ask func(*api.QueryOptions) (*api.QueryMeta, error), opts *api.QueryOptions) (meta *api.QueryMeta, err error) {
	defer c.cfg.Panics.Recover(contain.Decoder, &err)
	return ask(opts)
}

// anonymous is the token that stands for none.
const anonymous = "anonymous"

// unmask corrects what an empty answer to a request without a token says of
// ACLs. Consul says that they have shortened an answer only if a token was
// brought, be it the one of nobody. That is not what is brought in the first
// place, since an agent may have a token of its own for those without.
// Source: maskResultsFilteredByACLs.
func unmask(meta *api.QueryMeta, opts *api.QueryOptions, ask func(*api.QueryOptions) (*api.QueryMeta, error)) error {
	if opts.Token != "" || meta.ResultsFilteredByACLs {
		return nil
	}
	o := *opts
	o.Token, o.WaitIndex = anonymous, 0
	m, err := ask(&o)
	if se, ok := errors.AsType[api.StatusError](err); ok && se.Code == http.StatusForbidden {
		return nil // a Consul that does not know that token
	}
	if err == nil {
		meta.ResultsFilteredByACLs = m.ResultsFilteredByACLs
	}
	return err
}

// fail says who failed.
func (c *Client) fail(err error) error { return fmt.Errorf("consul at %s: %w", c.cfg.Address, err) }
