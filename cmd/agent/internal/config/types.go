package config

import (
	"log/slog"
	"time"
)

// Config is a whole configuration. Load is the only maker; its values are
// within the documented ranges and its references lead somewhere.
type Config struct {
	// Node says who this agent is, to control planes and in its own output.
	Node Node `hcl:"node,block"`
	// Admin is where the admin interface listens.
	Admin Admin `hcl:"admin,block"`
	// Log is how the agent logs, to stderr.
	Log Log `hcl:"log,block"`
	// Gate limits the memory that rebuilds of selectors take.
	Gate Gate `hcl:"gate,block"`
	// Relay is how connections are passed on.
	Relay Relay `hcl:"relay,block"`
	// Limits bound what the whole agent takes.
	Limits Limits `hcl:"limits,block"`
	// Health limits the health checks of all clusters.
	Health Health `hcl:"health,block"`
	// Telemetry is where metrics go besides /stats/prometheus.
	Telemetry Telemetry `hcl:"telemetry,block"`
	// XDS is the connection to an xDS control plane. Without the block there
	// is none.
	//
	// See XDS.Enabled.
	XDS XDS `hcl:"xds,block" reload:"true"`
	// Consul is the access to Consul. Without the block it is there all the same:
	// Consul's environment and the defaults are enough.
	//
	// See UsesConsul.
	Consul Consul `hcl:"consul,block" reload:"true"`
	// DNS is how nameservers are asked by discovery "dns", and for names of the
	// control plane's clusters. Without the block the system's are asked.
	//
	// See UsesDNS.
	DNS DNS `hcl:"dns,block" reload:"true"`
	// StateDir is a directory, an absolute path, in which the agent keeps what it
	// has learnt: with that it forwards after a restart before any source has
	// answered. No other agent may use it, no other user write to it, and it belongs
	// to the agent's user or root; it is made with mode 0700. Empty, the default,
	// keeps nothing.
	StateDir string `hcl:"state_dir"`
	// StaleIsReady lets the agent be ready with what it knew before a restart.
	// Default true; if it is false the agent is not ready, though it forwards, for as
	// long as the givers of clusters, or clusters that are required, have only that:
	// InitialTimeout does not end this.
	StaleIsReady bool `hcl:"stale_is_ready" default:"true"`
	// InitialTimeout is how long after the start the agent may be not ready
	// because clusters, or what gives clusters, have not answered for the first
	// time; then it is ready without, but see StaleIsReady. 0 waits for as long as it takes. Default
	// 30s, up to 24h.
	InitialTimeout time.Duration `hcl:"initial_timeout" default:"30s" range:"0s..24h" reload:"true"`
	// DrainTimeout is how long open connections may go on after SIGTERM; those
	// that are left then are closed. 0 closes them at once. Default 30s, up to
	// 24h.
	DrainTimeout time.Duration `hcl:"drain_timeout" default:"30s" range:"0s..24h" reload:"true"`
	// DrainSpread is how long before the end of DrainTimeout the connections that
	// are left begin to be closed, each at a moment of its own, so that clients
	// don't come back all at once. 0 closes them all at its end. Default 10s, up to
	// 24h; the default is at most half of DrainTimeout, and a mistake is to set more.
	// So each connection has a deadline of its own, which lies within DrainSpread
	// before the end.
	// Source: HAProxy's close-spread-time.
	DrainSpread time.Duration `hcl:"drain_spread" default:"10s" range:"0s..24h"`
	// Takeover is how another process may take the place of this one.
	Takeover Takeover `hcl:"takeover,block"`
	// Clusters are the groups of endpoints, in the order of their definition.
	// Names are unique.
	Clusters []Cluster `hcl:"cluster,block"`
	// Listeners are what the agent listens on, in the order of their
	// definition. Names are unique, and no two are on overlapping addresses.
	Listeners []Listener `hcl:"listener,block"`
	// Warnings are what is possible and may not be meant; nil for none.
	Warnings Errors
}

// Node identifies the agent. Source: envoy.config.core.v3.Node.
type Node struct {
	// ID is the name of this node. Default: the host name.
	ID string `hcl:"id"`
	// Cluster is the group of nodes that this one belongs to.
	Cluster string `hcl:"cluster"`
	// Locality is where the node is: control planes are told, and
	// Cluster.PreferLocal goes by it.
	Locality Locality `hcl:"locality,block"`
	// Metadata is sent to control planes as it stands: text, numbers, true and
	// false, lists and objects.
	//
	// They are string, float64, bool, []any and map[string]any.
	Metadata map[string]any `hcl:"metadata"`
}

// Locality is where a node is. Source: envoy.config.core.v3.Locality.
//
// It converts to lbcore.Locality.
type Locality struct {
	// Region, Zone and SubZone are names, from the large to the small. Endpoints
	// with the same ones are near.
	Region  string `hcl:"region"`
	Zone    string `hcl:"zone"`
	SubZone string `hcl:"sub_zone"`
}

// Log is how the agent logs.
type Log struct {
	// Level is the least level that is written: debug, info, warn or error.
	// Default info.
	Level slog.Level `hcl:"level" enum:"debug|info|warn|error" reload:"true"`
	// JSON writes one JSON object a line instead of text.
	JSON bool `hcl:"json"`
}

// Relay is how connections are passed on.
//
// See forwarder.Loops.
type Relay struct {
	// EventLoops is how many event loops pass connections on. Default 0, which
	// is one for each CPU that the process may use; up to 256. It is Linux only:
	// elsewhere two goroutines serve each connection.
	EventLoops int `hcl:"event_loops" default:"0" range:"0..256"`
}

// Limits bound what the whole agent takes.
type Limits struct {
	// MaxConnections is how many connections may be open at once on all
	// listeners together; those over it are reset. 0, the default, is as many as
	// the process may have descriptors for, two each, an eighth of them for health
	// checks and a reserve of 256 or a tenth left out.
	//
	// See forwarder.ConnectionsFor.
	MaxConnections int `hcl:"max_connections" range:"0.."`
}

// Takeover is how a process that is started with run -takeover takes the place of the
// one that runs.
type Takeover struct {
	// Socket is the absolute path of a unix socket, made with mode 0600, at which the
	// next process asks for the listening sockets. Default: takeover.sock in the first
	// directory that RUNTIME_DIRECTORY of the environment names, as systemd's, or else
	// in state_dir; without either there is none.
	Socket string `hcl:"socket"`
	// Timeout is how long the next process may take to become ready; after it this one
	// goes on as before. Default 60s, from 1s to 1h.
	Timeout time.Duration `hcl:"timeout" default:"60s" range:"1s..1h"`
}

// Gate is the gate that rebuilds of selectors pass, which bounds the memory that
// they take.
//
// See lbcore.GateConfig.
type Gate struct {
	// StuckAfter is how long after a selector was replaced large rebuilds wait
	// for its readers. Default 10s, from 1ms to 1h.
	StuckAfter time.Duration `hcl:"stuck_after" default:"10s" range:"1ms..1h"`
	// MaxStuck is how many replaced selectors stuck readers may hold at once.
	// Default 4, from 1 to 1024.
	MaxStuck int `hcl:"max_stuck" default:"4" range:"1..1024"`
	// MaxStorage is the bytes of storage that one selector may take; one that
	// would take more is not built, and the last one serves on. It is a mistake if
	// a selector's ring or table would with a single endpoint already. Default
	// 1 GiB, from 64 KiB to 64 GiB.
	MaxStorage int `hcl:"max_storage" default:"1073741824" range:"65536..68719476736"`
}

// Health is the health checker that all clusters share.
type Health struct {
	// Workers is how many probes run at once. Default 0, which is as many as it
	// takes if no endpoint answers, and as the process may have descriptors for; up
	// to 65536.
	//
	// The formula is in the package comment of healthsvc, and in forwarder.ProbesFor.
	Workers int `hcl:"workers" range:"0..65536"`
}

// Telemetry is what happens to metrics. Source: Consul's telemetry stanza.
type Telemetry struct {
	// PrometheusRetentionTime is for how long /stats/prometheus shows metrics of what
	// has gone, as a cluster. Default 24h, at least 1m; unlike Consul's it can't be 0,
	// since the path is always served.
	PrometheusRetentionTime time.Duration `hcl:"prometheus_retention_time" default:"24h" range:"1m.."`
	// StatsdAddress is the host:port that metrics are sent to by UDP. Empty
	// means nowhere.
	StatsdAddress string `hcl:"statsd_address"`
	// StatsiteAddress is the host:port of a statsite server, by TCP. Empty means
	// nowhere.
	StatsiteAddress string `hcl:"statsite_address"`
	// DogstatsdAddr is the host:port of a dogstatsd server, by UDP, or unix:// and the
	// path of its socket. Empty means nowhere. DogstatsdTags are sent to it with each
	// metric, as in "env:blue".
	DogstatsdAddr string   `hcl:"dogstatsd_addr"`
	DogstatsdTags []string `hcl:"dogstatsd_tags"`
	// PrefixFilter says which metrics there are, /stats/prometheus included, by the
	// beginnings of names as statsd has them, without a host name: "+" or "-", then as
	// in "-gatehouse.selector". The longest that a name has counts; without one
	// FilterDefault does, by default true.
	PrefixFilter  []string `hcl:"prefix_filter"`
	FilterDefault bool     `hcl:"filter_default" default:"true"`
	// DisableHostname leaves the host name out of the names of gauges, which else
	// stands behind the MetricsPrefix in what is sent. Default true, unlike Consul's.
	DisableHostname bool `hcl:"disable_hostname" default:"true"`
	// MetricsPrefix begins every name: letters, digits and underscores, no
	// digit first. Default gatehouse.
	MetricsPrefix string `hcl:"metrics_prefix" default:"gatehouse"`
}

// Origin says where a Cluster or Listener was defined.
type Origin string

// The origins. Load gives OriginFile to all.
const (
	OriginFile   Origin = "file"
	OriginXDS    Origin = "xds"
	OriginConsul Origin = "consul"
)
