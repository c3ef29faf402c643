package consultest

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"go.uber.org/goleak"
)

// ManagementToken is the token of all rights on a server with Options.ACL. It
// is also what the server's own agent uses. Without ACLs it does no harm.
const ManagementToken = "c0175e57-0000-4000-8000-000000000001"

// patience is how long a server may take for what must happen; it is no
// measure of speed.
const patience = 60 * time.Second

// Options say how a server differs from a plain one. The zero value is a
// server in data center dc1 that listens for HTTP, without ACLs and TLS.
type Options struct {
	// Node is the node's name; empty means "consul-" and a number that no other
	// server of this package has at the time.
	Node string
	// Datacenter is the data center's name; empty means dc1.
	Datacenter string
	// ACL turns ACLs on, denying by default, with ManagementToken.
	ACL bool
	// TLS turns HTTP off and HTTPS on, with the server's certificate of these,
	// for clients that have a certificate of their authority.
	TLS *Certs
	// UnixSocket has HTTP served on a unix socket instead of a port, also when
	// TLS is set.
	UnixSocket bool
	// MaxConnsPerClient is limits.http_max_conns_per_client; zero means Consul's
	// default of 200. What API returns opens a connection for each request.
	MaxConnsPerClient int
	// GRPC turns gRPC and the service mesh on, as Envoys ask it.
	GRPC bool
	// Join makes it an agent in client mode that joins these servers instead of
	// a server of its own. They must have the same Datacenter and ACL.
	Join []*Server
	// Config is more configuration, in HCL or JSON, that wins over what the
	// fields above say. It must leave ports, bind addresses, node name and data
	// folder alone, and the log level at INFO or below.
	Config string
}

// Server is a Consul agent in a process of its own, in server mode unless it
// was made with Options.Join.
type Server struct {
	t      testing.TB
	o      Options
	dir    string // for configuration and data
	socket string // path, if HTTP is on one
	node   string
	nodeID string
	expect int              // servers of the cluster
	join   func() []*Server // whom to join; may contain the server itself

	ports ports
	wipes int // how often the data was thrown away
	http  *http.Client
	*process
}

// process is one run of a server.
type process struct {
	cmd     *exec.Cmd
	started chan error
	done    chan struct{} // closed when it has ended
}

var (
	errTaken = errors.New("a port is taken")
	errEnded = errors.New("consul ended by itself")
)

// Start starts a server and waits until it has a leader and shows its own node
// as alive. It is killed when the test ends, and its log is shown if the test
// has failed by then.
func Start(t testing.TB, o Options) *Server {
	t.Helper()
	s := newServer(t, o, 1, func() []*Server { return o.Join })
	s.start(reservePorts)
	s.AwaitReady()
	return s
}

// newServer prepares a server that start starts.
func newServer(t testing.TB, o Options, expect int, join func() []*Server) *Server {
	t.Helper()
	if testing.Short() {
		t.Skip("left out by -short: it needs a Consul server")
	}
	if _, err := binary(); err != nil {
		t.Fatal(err)
	}
	s := &Server{t: t, o: o, dir: t.TempDir(), expect: expect, join: join}
	var id [16]byte
	rand.Read(id[:])
	s.nodeID = fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
	if o.UnixSocket {
		// Not in the test's folder, whose path may be too long for a socket.
		dir, err := os.MkdirTemp("", "consul-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		s.socket = filepath.Join(dir, "http.sock")
	}
	t.Cleanup(func() {
		s.Kill()
		s.ports.release()
		if t.Failed() {
			t.Logf("the log of %s:\n%s", s.Node(), tail([]byte(s.Log())))
		}
	})
	return s
}

// start launches the server for the first time, on ports that it finds out to
// be free.
func (s *Server) start(reserve func() (ports, error)) {
	s.t.Helper()
	for attempt := 1; ; attempt++ {
		var err error
		if s.ports, err = reserve(); err != nil {
			s.t.Fatal(err)
		}
		s.node = cmp.Or(s.o.Node, fmt.Sprintf("consul-%d", s.ports.base))
		s.http = s.client()
		if err = s.launch(); err == nil {
			return
		}
		if !errors.Is(err, errTaken) || attempt == 5 {
			s.t.Fatalf("start of Consul: %v", err)
		}
		s.t.Logf("attempt %d to start Consul on ports from %d: %v", attempt, s.ports.base, err)
		s.ports.release()
	}
}

// Launch starts a server that was stopped, on its old ports and with its old
// data, and returns when it listens, with or without a leader.
func (s *Server) Launch() {
	s.t.Helper()
	if err := s.launch(); err != nil {
		s.t.Fatalf("start of %s: %v", s.Node(), err)
	}
}

func (s *Server) launch() error {
	args, err := s.configure()
	if err != nil {
		return err
	}
	log, err := os.OpenFile(s.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	before, err := log.Stat()
	if err != nil {
		return err
	}
	path, err := binary()
	if err != nil {
		return err
	}
	p := &process{cmd: exec.Command(path, args...), started: make(chan error, 1), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = dieWithParent()
	p.cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "CONSUL_") })
	go p.run()
	if err := <-p.started; err != nil {
		return err
	}
	s.process = p

	said := func(what string) bool { return strings.Contains(s.Log()[before.Size():], what) }
	err = s.poll(func(context.Context) error {
		if !said("Consul agent running!") {
			return errors.New("it is not running yet")
		}
		return nil
	})
	if errors.Is(err, errEnded) && said("address already in use") {
		return errTaken
	}
	return err
}

// run is the process's goroutine. It keeps its thread, since dieWithParent
// binds the process to it.
func (p *process) run() {
	defer close(p.done)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	p.started <- err
	if err == nil {
		p.cmd.Wait()
	}
}

// Ignore names the goroutine of a running server, for tests that count
// goroutines while servers stop and start.
func Ignore() goleak.Option {
	return goleak.IgnoreAnyFunction("gatehouse.internal/discovery/consul/consultest.(*process).run")
}

// configure writes the configuration and returns the command line.
func (s *Server) configure() ([]string, error) {
	p := s.ports
	conf := map[string]any{
		"node_name": s.node, "node_id": s.nodeID,
		"data_dir":  s.dataDir(),
		"bind_addr": "127.0.0.1", "client_addr": "127.0.0.1",
		"disable_update_check": true, "disable_anonymous_signature": true,
		"performance":    map[string]any{"raft_multiplier": 1},
		"retry_interval": "1s",
		"gossip_lan":     map[string]any{"gossip_interval": "100ms"},
	}
	ports := map[string]int{
		"dns": -1, "grpc": -1, "grpc_tls": -1, "serf_wan": -1, "https": -1,
		"http": p.http(), "serf_lan": p.serf(), "server": p.server(),
	}
	if s.o.GRPC {
		ports["grpc"], conf["connect"] = p.grpc(), map[string]any{"enabled": true}
	}
	conf["ports"] = ports
	if s.o.Datacenter != "" {
		conf["datacenter"] = s.o.Datacenter
	}
	if len(s.o.Join) == 0 {
		conf["server"], conf["bootstrap_expect"] = true, s.expect
	}
	var join []string
	for _, other := range s.join() {
		if other != s {
			join = append(join, loopback(other.ports.serf()))
		}
	}
	conf["retry_join"] = join
	if s.o.ACL {
		conf["acl"] = map[string]any{
			"enabled": true, "default_policy": "deny",
			"tokens": map[string]any{"initial_management": ManagementToken, "agent": ManagementToken},
		}
	}
	if c := s.o.TLS; c != nil {
		if s.socket == "" {
			ports["http"] = -1
		}
		ports["https"] = p.https()
		conf["tls"] = map[string]any{"https": map[string]any{
			"ca_file": c.CAFile, "cert_file": c.ServerCert, "key_file": c.ServerKey, "verify_incoming": true,
		}}
	}
	if s.socket != "" {
		conf["addresses"] = map[string]any{"http": "unix://" + s.socket}
	}
	if s.o.MaxConnsPerClient != 0 {
		conf["limits"] = map[string]any{"http_max_conns_per_client": s.o.MaxConnsPerClient}
	}

	text, err := json.Marshal(conf)
	if err != nil {
		return nil, err
	}
	// The second wins. Consul reads JSON in a file of HCL too.
	own, more := filepath.Join(s.dir, "own.json"), filepath.Join(s.dir, "more.hcl")
	return []string{"agent", "-config-file", own, "-config-file", more},
		errors.Join(os.WriteFile(own, text, 0o600), os.WriteFile(more, []byte(s.o.Config), 0o600))
}

func (s *Server) dataDir() string { return filepath.Join(s.dir, fmt.Sprintf("data-%d", s.wipes)) }
func (s *Server) logFile() string { return filepath.Join(s.dir, "log") }

// AwaitReady waits until the server knows a leader and the catalog shows its
// own node as alive.
func (s *Server) AwaitReady() {
	s.t.Helper()
	s.await("it is ready", func(c *api.Client, q *api.QueryOptions) error {
		if leader, err := c.Status().LeaderWithQueryOptions(q); err != nil || leader == "" {
			return fmt.Errorf("leader %q: %w", leader, err)
		}
		checks, _, err := c.Health().Node(s.Node(), q)
		if err != nil {
			return err
		}
		for _, check := range checks {
			if check.CheckID == "serfHealth" && check.Status == api.HealthPassing {
				return nil
			}
		}
		return fmt.Errorf("the node %s is not alive in the catalog", s.Node())
	})
}

// await polls the server by consistent reads until ok returns nil, and fails
// the test when it does not in time.
func (s *Server) await(what string, ok func(c *api.Client, q *api.QueryOptions) error) {
	s.t.Helper()
	c := s.API(ManagementToken)
	err := s.poll(func(ctx context.Context) error {
		return ok(c, (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx))
	})
	if err != nil {
		s.t.Fatalf("%s: it is not so that %s: %v", s.Node(), what, err)
	}
}

// poll calls ok until it returns nil, the server's process ends or patience
// does.
func (s *Server) poll(ok func(context.Context) error) error {
	return poll(s.t.Context(), s.done, ok)
}

func poll(ctx context.Context, done <-chan struct{}, ok func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return errEnded
		default:
		}
		err := ok(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-done:
		case <-ctx.Done():
			return fmt.Errorf("%w, and last: %w", context.Cause(ctx), err)
		}
	}
}

// Running reports whether the server's process runs.
func (s *Server) Running() bool {
	if s.process == nil {
		return false
	}
	select {
	case <-s.done:
		return false
	default:
		return true
	}
}

// Kill ends the process by SIGKILL, as a crash does, and waits for its end. It
// does nothing if it does not run.
func (s *Server) Kill() {
	if s.process != nil {
		s.cmd.Process.Kill()
		<-s.done
	}
}

// Shutdown ends the process in order (SIGINT) and waits for its end. An agent
// in client mode leaves its cluster by it, a server doesn't.
func (s *Server) Shutdown() {
	s.t.Helper()
	if !s.Running() {
		return
	}
	if err := s.cmd.Process.Signal(os.Interrupt); err != nil {
		s.t.Fatalf("%s: %v", s.Node(), err)
	}
	limit := time.NewTimer(patience)
	defer limit.Stop()
	select {
	case <-s.done:
	case <-limit.C:
		s.t.Fatalf("%s does not end by SIGINT", s.Node())
	}
}

// Restart starts the server again with its data, after a Kill if it still runs,
// and waits until it is ready. Of a cluster that has lost its majority, use
// Launch on each server and then AwaitReady.
func (s *Server) Restart() {
	s.t.Helper()
	s.Kill()
	s.Launch()
	s.AwaitReady()
}

// WipeAndRestart is Restart without the data: catalog, ACLs, and the services
// registered with this agent are gone, and the index begins anew. Only for a
// server that stands alone and agents in client mode; a wiped server of a
// cluster gets its catalog back from the others.
func (s *Server) WipeAndRestart() {
	s.t.Helper()
	s.Kill()
	s.wipes++
	s.Launch()
	s.AwaitReady()
}

// Snapshot returns the servers' state.
func (s *Server) Snapshot() []byte {
	s.t.Helper()
	r, _, err := s.API(ManagementToken).Snapshot().Save(s.query())
	s.must("save a snapshot", err)
	defer r.Close()
	snap, err := io.ReadAll(r)
	s.must("save a snapshot", err)
	return snap
}

// Restore puts the servers' state back to what it was at a Snapshot and waits
// until the server is ready. The agent still knows what Register and Deregister
// have done since, and brings its own node up to date within a minute.
func (s *Server) Restore(snapshot []byte) {
	s.t.Helper()
	s.must("restore a snapshot", s.API(ManagementToken).Snapshot().Restore(s.write(), bytes.NewReader(snapshot)))
	s.AwaitReady()
}

// Node returns the node's name.
func (s *Server) Node() string { return s.node }

// Addr returns where HTTP is served, in the form of CONSUL_HTTP_ADDR: host and
// port, or unix:// and a path; empty if only HTTPS is served.
func (s *Server) Addr() string {
	switch {
	case s.socket != "":
		return "unix://" + s.socket
	case s.o.TLS != nil:
		return ""
	}
	return loopback(s.ports.http())
}

// GRPCAddr returns where the server listens for gRPC; it needs Options.GRPC.
func (s *Server) GRPCAddr() string { return loopback(s.ports.grpc()) }

// HTTPSAddr returns host and port where HTTPS is served; empty if it isn't.
func (s *Server) HTTPSAddr() string {
	if s.o.TLS == nil {
		return ""
	}
	return loopback(s.ports.https())
}

// Log returns what the server has said since Start, over all restarts.
func (s *Server) Log() string {
	log, err := os.ReadFile(s.logFile())
	if err != nil {
		return ""
	}
	return string(log)
}

// API returns a client that sends the given token, or none if it is empty. It
// uses HTTPS with the client's certificate if that is all there is, pays no
// regard to the environment's CONSUL_ variables, and keeps no connection open
// between requests. It goes on to work over restarts.
func (s *Server) API(token string) *api.Client {
	s.t.Helper()
	if token == "" {
		// What Consul takes a request without a token for. An empty one would
		// have the client look into the environment.
		token = "anonymous"
	}
	conf := &api.Config{Address: "localhost", Scheme: "http", Token: token, HttpClient: s.http}
	if s.socket == "" {
		conf.Address = s.Addr()
		if s.o.TLS != nil {
			conf.Address, conf.Scheme = s.HTTPSAddr(), "https"
		}
	}
	c, err := api.NewClient(conf)
	s.must("make a client", err)
	return c
}

// client returns the HTTP client of all API clients.
func (s *Server) client() *http.Client {
	s.t.Helper()
	tr := &http.Transport{DisableKeepAlives: true}
	if s.socket != "" {
		tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", s.socket)
		}
	} else if c := s.o.TLS; c != nil {
		conf, err := api.SetupTLSConfig(&api.TLSConfig{CAFile: c.CAFile, CertFile: c.ClientCert, KeyFile: c.ClientKey})
		s.must("read the certificates", err)
		tr.TLSClientConfig = conf
	}
	return &http.Client{Transport: withoutEnv{tr}}
}

// withoutEnv takes out of requests what the API's client puts in from the
// environment and can't be told not to. The servers, which are of the community
// edition, have neither namespaces nor partitions.
type withoutEnv struct{ http.RoundTripper }

func (w withoutEnv) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	q := r.URL.Query()
	q.Del("ns")
	q.Del("partition")
	r.URL.RawQuery = q.Encode()
	return w.RoundTripper.RoundTrip(r)
}

func (s *Server) must(what string, err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("%s: can't %s: %v", s.Node(), what, err)
	}
}

func (s *Server) query() *api.QueryOptions { return new(api.QueryOptions).WithContext(s.t.Context()) }
func (s *Server) write() *api.WriteOptions { return new(api.WriteOptions).WithContext(s.t.Context()) }
