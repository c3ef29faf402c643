package forward

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"
)

// The relays.
const (
	Gatehouse     = "gatehouse"
	HAProxy       = "haproxy"
	HAProxySplice = "haproxy, splice" // forced, by pipes of 1 MiB
	Nginx         = "nginx"
	TCPProxy      = "inetaf/tcpproxy"
	Direct        = "direct" // no relay
)

// The cases, each with a fresh relay.
const (
	Plain   = "plain"    // connections, round trips and bulk
	Idle    = "idle"     // connections that rest, without checks
	TLS     = "tls"      // handshakes, round trips and bulk, TLS ended by the relay
	IdleTLS = "idle tls" // as Idle, TLS ended by the relay
	Ring    = "ring"     // round trips while a large ring is rebuilt; Gatehouse only
	Busy    = "busy"     // as Ring, while all servers are checked each second and some change; Gatehouse only
	Churn   = "churn"    // what many connections leave behind; Gatehouse only
	// Health is what it costs to probe Servers each Interval in Clusters that all
	// have the same ones; HAProxy has one.
	Health = "health"
)

// Spec is what Take measures. It travels as JSON.
type Spec struct {
	Relay   string        `json:"relay"`
	Case    string        `json:"case"`
	Exe     string        `json:"exe,omitempty"` // the relay's program; "" looks for it in PATH
	Backend []string      `json:"backend"`       // the command that runs Backend
	Burner  []string      `json:"burner"`        // the command that runs Burn, of Ring
	Each    time.Duration `json:"each"`          // how long a figure is measured
	Servers int           `json:"servers"`       // 1 to 60,000, on 127.1.0.0/16 and more
	Count   int           `json:"count"`         // connections of Idle, IdleTLS and Churn
	Points  int           `json:"points"`        // of the ring of Ring and Busy
	Pairs   int           `json:"pairs"`         // times with and without rebuilds of Ring and Busy
	Procs   int           `json:"procs"`         // GOMAXPROCS of Gatehouse; 0 leaves it to it
	// Clusters of Health.
	Clusters int           `json:"clusters,omitempty"`
	Interval time.Duration `json:"interval,omitempty"` // of the checks of Health; 0 is none
}

// Key names a figure of Plain and TLS.
type Key string

// In each group of figures there are these. CPU is of the relay, all of its
// peers' too.
const (
	Rate Key = " rate"   // a second; of bulk GB (1e9 bytes)
	P50  Key = " p50"    // microseconds
	P99  Key = " p99"    // microseconds
	CPU  Key = " cpu"    // microseconds an operation; of bulk seconds a GB
	All  Key = " allcpu" // the same of relay, load generator and backend
)

// The groups.
const (
	Connect = "connect" // open, echo a byte, close; 32 at a time
	Trips1  = "trips 1" // echo 64 bytes on one connection
	Trips64 = "trips 64"
	Fixed   = "fixed" // 10,000 a second over 64 connections, from the intended time
	Bulk1   = "bulk 1"
	Bulk8   = "bulk 8"
)

// Figures of the other cases, and of what was looked up in /proc.
const (
	Looped     = "looped"     // % of the sockets of 64 connections on event loops of the relay's own
	Pipes      = "pipes"      // that were there during bulk on one connection and not before
	Spliced    = "spliced"    // % of the bytes of bulk, as HAProxySplice says
	Base       = "base"       // bytes resident before connections
	Memory     = "memory"     // bytes resident a connection
	FDs        = "fds"        // descriptors a connection
	Rest       = "rest"       // % of a core
	Builds     = "builds"     // of the large ring, a second
	Before     = "before"     // p99 in microseconds without rebuilds; RingKey for each pair
	During     = "during"     // and with
	Beside     = "beside"     // without, beside Burn with the CPU that they took; BesideKey for each pair
	Goroutines = "goroutines" // more than before
	Left       = "left"       // descriptors more than before
	Heap       = "heap"       // MiB more than before, after a collection
	Over       = "over"       // bytes resident more than without servers
	Checks     = "checks"     // bytes resident more than without checks
	Probes     = "probes"     // a second, as Gatehouse says
)

// RingKey names the ratio of a pair of Ring.
func RingKey(pair int) string { return fmt.Sprintf("ratio %d", pair) }

// BesideKey names the same for Beside.
func BesideKey(pair int) string { return fmt.Sprintf("beside ratio %d", pair) }

// encrypted says if the relay ends TLS.
func (s *Spec) encrypted() bool { return s.Case == TLS || s.Case == IdleTLS }

// idles says if connections rest.
func (s *Spec) idles() bool { return s.Case == Idle || s.Case == IdleTLS }

// rings says if there is the large ring.
func (s *Spec) rings() bool { return s.Case == Ring || s.Case == Busy }

// Installed says what to install if a relay of Debian's is not here. Gatehouse
// and TCPProxy are built, and always here.
func Installed(relay string) error {
	_, err := program(relay)
	return err
}

// nginxStream is where Debian keeps nginx's module for TCP.
const nginxStream = "/usr/lib/nginx/modules/ngx_stream_module.so"

// program returns the path of one that Debian has, else "".
func program(relay string) (string, error) {
	name, packages := "haproxy", "haproxy"
	switch relay {
	case HAProxy, HAProxySplice:
	case Nginx:
		name, packages = "nginx", "nginx libnginx-mod-stream"
		if _, err := os.Stat(nginxStream); err != nil {
			return "", missing("nginx's stream module", packages)
		}
	default:
		return "", nil
	}
	for _, p := range []string{name, "/usr/sbin/" + name} {
		if path, err := exec.LookPath(p); err == nil {
			return path, nil
		}
	}
	return "", missing(name, packages)
}

func missing(program, packages string) error {
	return fmt.Errorf("%s is not installed: apt-get install %s", program, packages)
}

var errRelay = errors.New("not a relay of this case")
