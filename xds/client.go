package xds

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"gatehouse.internal/internal/contain"
	"gatehouse.internal/internal/lastgood"
	"gatehouse.internal/lbcore"
	"gatehouse.internal/xds/internal/adsgrpc"
	"gatehouse.internal/xds/internal/core"
)

// The type URLs of the resources that a Client asks for.
const (
	ClusterType    = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	AssignmentType = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	ListenerType   = "type.googleapis.com/envoy.config.listener.v3.Listener"
	SecretType     = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
)

// The defaults of Config.
const (
	DefaultBackoffBase         = time.Second
	DefaultBackoffMax          = 120 * time.Second
	DefaultInitialFetchTimeout = 15 * time.Second
	DefaultMaxMessage          = 64 << 20
)

const (
	userAgent     = "gatehouse"
	backoffFactor = 1.6             // Source: gRPC's connection-backoff.md
	backoffJitter = 0.2             // of the delay, either way
	maxNackDelay  = 5 * time.Second // a server waits for the answer before it sends what is new
)

// ErrNotFound is what the error of a Fail wraps if the server deleted the
// resource or did not send it in time.
var ErrNotFound = errors.New("no such resource")

// Server says how one management server is reached; only its URI is required.
type Server = adsgrpc.Server

// TLS says how a Server is verified, and what it is shown.
type TLS = adsgrpc.TLS

// Protocol is the variant of the protocol that a Server is asked for.
type Protocol = adsgrpc.Protocol

// The protocols: the incremental variant, that of the state of the world, or the
// former and, where a server does not have it, the latter.
const (
	ProtocolAuto  = adsgrpc.Auto
	ProtocolDelta = adsgrpc.Delta
	ProtocolSotW  = adsgrpc.StateOfTheWorld
)

// Config says which servers to ask and who is asking. One server and Node.ID are
// required.
type Config struct {
	// Servers are the management servers, the preferred first. A later one is
	// asked when those before it end a stream without an answer, or can't be
	// reached, and something is wanted of which nothing is known; as soon as an
	// earlier one answers again, it is left. Source: gRFC A71.
	Servers []Server
	Node    Node
	// UserAgentName and Version are what servers are told to talk to; empty
	// means "gatehouse" and "dev". If the name is another one, and Version three
	// numbers with dots between them, it is sent as a build version, as Envoy
	// does, which Consul looks at.
	UserAgentName, Version string

	// BackoffBase is the delay before the first new attempt after a stream that
	// ended without a response; it grows by 1.6 up to BackoffMax, each of the
	// later ones ±20 %. A response starts it anew. After a stream that had one
	// the delay is BackoffBase ±20 %, so that a server that ends every stream
	// makes no busy loop and the clients of a restarted one don't come all at
	// once. 0 means DefaultBackoffBase and DefaultBackoffMax.
	BackoffBase, BackoffMax time.Duration
	// InitialFetchTimeout is how long after the request a resource may take to
	// come until it counts as non-existent, and how long one is kept that nobody
	// watches any more. 0 means DefaultInitialFetchTimeout.
	// Source: ConfigSource.initial_fetch_timeout, gRFC A57.
	InitialFetchTimeout time.Duration
	// MaxMessage bounds a response, in bytes; a larger one ends the stream. 0
	// means DefaultMaxMessage, about a million endpoints.
	MaxMessage int

	// Loads, if set, returns what has happened since it was called last in those
	// clusters that are wanted, of all that have LoadReports; it is what the server
	// is told by LRS. It is called by one goroutine of Run's.
	Loads func(wanted func(cluster string) bool) []ClusterLoad

	// State keeps the resources in force for the next run, which begins with them
	// while no server has answered; nil keeps nothing. What holds secrets, or has a
	// TTL, is not kept.
	State *lastgood.Store
	// Dial makes the connections to all servers, as net.Dialer's DialContext does.
	// Nil means a net.Dialer with TCP keepalive.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Panics contains those of reading a resource, which is refused. May be nil.
	Panics *contain.Panics
	// Logger gets changes of state at level info, refused resources at warn.
	// Nil means slog.Default.
	Logger *slog.Logger
}

// Node is who asks. ID is required; what else is zero is not sent. Source: envoy.config.core.v3.Node.
type Node struct {
	ID, Cluster string
	Locality    lbcore.Locality
	// Metadata holds what JSON can say.
	Metadata map[string]any
}

// Client is a client of management servers. Make one with NewClient. Its methods may be called
// from anywhere, but Run only once.
type Client struct {
	cfg      Config
	log      *slog.Logger
	rand     func() float64 // in [0, 1)
	counters counters

	transports []transport // of the servers
	reporter   *reporter   // nil without Config.Loads

	wake chan struct{}          // one slot: there are commands
	done chan struct{}          // closed when Run has returned
	last atomic.Pointer[Status] // at Run's end

	mu       sync.Mutex // guards what follows; held for a few assignments only
	commands []func(*loop)
	running  bool
	ended    bool
}

// NewClient returns a Client. It starts nothing: what is asked of it before Run
// waits for Run. It reads the files that TLS names. It refuses a Config without a
// server or Node.ID, metadata that JSON can't say, and negative values; the error
// names what is wrong.
func NewClient(cfg Config) (*Client, error) {
	node, err := cfg.validate()
	if err != nil {
		return nil, err
	}
	opts := adsgrpc.Options{
		Node: node, UserAgent: cfg.UserAgentName + "/" + cfg.Version, MaxMessage: cfg.MaxMessage,
		Dial: cfg.Dial, Logger: cfg.Logger,
	}
	var transports []transport
	var loads []*adsgrpc.Transport
	for i, s := range cfg.Servers {
		t, err := adsgrpc.New(s, opts)
		if err != nil {
			return nil, fmt.Errorf("xds: servers[%d].%w", i, err)
		}
		transports, loads = append(transports, adsTransport{t}), append(loads, t)
	}
	c := newClient(cfg, transports...)
	if cfg.Loads != nil {
		c.reporter = c.newReporter(node, loads)
	}
	return c, nil
}

func newClient(cfg Config, transports ...transport) *Client {
	return &Client{
		cfg: cfg, log: cfg.Logger.With("source", "xds"), transports: transports, rand: rand.Float64,
		wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
}

// validate fills in the defaults and returns the node message.
func (cfg *Config) validate() (*corev3.Node, error) {
	switch {
	case len(cfg.Servers) == 0:
		return nil, errors.New("xds: servers: missing: want one management server")
	case cfg.Node.ID == "":
		return nil, errors.New("xds: node id: missing")
	case cfg.BackoffBase < 0 || cfg.BackoffMax < 0 || cfg.InitialFetchTimeout < 0 || cfg.MaxMessage < 0:
		return nil, errors.New("xds: negative duration or size")
	}
	def := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	def(&cfg.BackoffBase, DefaultBackoffBase)
	def(&cfg.BackoffMax, DefaultBackoffMax)
	def(&cfg.InitialFetchTimeout, DefaultInitialFetchTimeout)
	if cfg.MaxMessage == 0 {
		cfg.MaxMessage = DefaultMaxMessage
	}
	if cfg.Version == "" {
		cfg.Version = "dev"
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	cfg.UserAgentName = cmp.Or(cfg.UserAgentName, userAgent)
	metadata, err := structpb.NewStruct(cfg.Node.Metadata)
	if err != nil {
		return nil, fmt.Errorf("xds: node metadata: %w", err)
	}
	n := &corev3.Node{
		Id: cfg.Node.ID, Cluster: cfg.Node.Cluster, Metadata: metadata,
		UserAgentName:        cfg.UserAgentName,
		UserAgentVersionType: &corev3.Node_UserAgentVersion{UserAgentVersion: cfg.Version},
		ClientFeatures:       clientFeatures,
	}
	if v := buildVersion(cfg.Version); v != nil && cfg.UserAgentName != userAgent {
		n.UserAgentVersionType = &corev3.Node_UserAgentBuildVersion{UserAgentBuildVersion: v}
	}
	if l := cfg.Node.Locality; l != (lbcore.Locality{}) {
		n.Locality = &corev3.Locality{Region: l.Region, Zone: l.Zone, SubZone: l.SubZone}
	}
	return n, nil
}

// clientFeatures are what servers may send, under all names that they know.
var clientFeatures = []string{
	"xds.config.resource-in-sotw", "xds.config.supports-resource-in-sotw", "xds.config.supports-resource-ttl",
	"envoy.config.resource-in-sotw", "envoy.config.supports-resource-ttl",
}

// buildVersion reads three numbers with dots between them; else it returns nil.
func buildVersion(text string) *corev3.BuildVersion {
	parts := strings.Split(text, ".")
	var n [3]uint32
	if len(parts) != len(n) {
		return nil
	}
	for i, p := range parts {
		v, err := strconv.ParseUint(p, 10, 32)
		if err != nil {
			return nil
		}
		n[i] = uint32(v)
	}
	return &corev3.BuildVersion{Version: &typev3.SemanticVersion{MajorNumber: n[0], MinorNumber: n[1], Patch: n[2]}}
}

// Run keeps a stream to the server open until ctx ends, and then returns its
// error. When it returns, everything it started has ended. Watches go on: they
// keep what they know.
func (c *Client) Run(ctx context.Context) error {
	c.mu.Lock()
	again := c.running || c.ended
	c.running = true
	c.mu.Unlock()
	if again {
		return errors.New("xds: Run was called before")
	}
	ctx, cancel := context.WithCancel(ctx)
	l := newLoop(c)
	err := l.run(ctx)
	cancel()
	l.running.Wait()
	l.keeping.release()
	c.mu.Lock()
	c.running, c.ended, c.commands = false, true, nil
	c.mu.Unlock()
	for i := range l.servers {
		l.setConnected(i, false, time.Now())
	}
	s := l.status()
	c.last.Store(&s)
	close(c.done)
	return err
}

// Look has the TLS files of all servers looked at now, and returns when what they hold
// is for the connections from then on, as far as it can be used. It waits for Run; the
// error is ctx's.
func (c *Client) Look(ctx context.Context) error {
	var errs []error
	for _, t := range c.transports {
		if ads, ok := t.(adsTransport); ok {
			errs = append(errs, ads.Look(ctx))
		}
	}
	return errors.Join(errs...)
}

// post has f run on the loop's goroutine. It never waits.
func (c *Client) post(f func(*loop)) {
	c.mu.Lock()
	if !c.ended {
		c.commands = append(c.commands, f)
	}
	c.mu.Unlock()
	signal(c.wake)
}

func (c *Client) take() []func(*loop) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.commands
	c.commands = nil
	return f
}

// signal fills a one-slot channel; a value that is there already will do.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// duration returns how long the timer takes.
func (c *Client) duration(t core.StartTimer) time.Duration {
	switch t.Timer.Kind {
	case core.TimerTTL:
		return time.Duration(t.TTL)
	case core.TimerReconnect:
		switch t.Attempt {
		case 0:
			return c.jitter(c.cfg.BackoffBase)
		case 1:
			return c.cfg.BackoffBase
		}
		return c.jitter(backoff(c.cfg.BackoffBase, c.cfg.BackoffMax, t.Attempt))
	case core.TimerNack:
		return backoff(c.cfg.BackoffBase, min(maxNackDelay, c.cfg.BackoffMax), t.Attempt)
	}
	return c.cfg.InitialFetchTimeout
}

func (c *Client) jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (1 - backoffJitter + 2*backoffJitter*c.rand()))
}

// backoff returns the delay before the given attempt, counted from 1.
func backoff(base, most time.Duration, attempt int) time.Duration {
	d := float64(base) * math.Pow(backoffFactor, float64(attempt-1))
	return time.Duration(min(d, float64(most)))
}
