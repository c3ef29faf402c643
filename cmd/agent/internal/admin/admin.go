package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"gatehouse.internal/cmd/agent/internal/admin/page"
	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/cmd/agent/internal/configdump"
	"gatehouse.internal/cmd/agent/internal/node"
	"gatehouse.internal/forwarder"
	"gatehouse.internal/healthsvc"
	"gatehouse.internal/internal/contain"
	"gatehouse.internal/internal/lastgood"
	"gatehouse.internal/lbcore"
	"gatehouse.internal/xds"
)

// State is what /ready and /server_info call the agent's state.
// Source: envoy.admin.v3.ServerInfo.State.
type State string

// The states.
const (
	Initializing State = "INITIALIZING"
	Live         State = "LIVE"
	Draining     State = "DRAINING"
)

// Config configures a Handler. Status, Summary, Cluster, HealthChecks, State and
// Metrics are required, and may be called by several requests at once.
type Config struct {
	Status func() node.Status
	// Summary and Cluster are what the live page shows, and of the cluster that is
	// looked at: node.Node.Summary and node.Node.Cluster. Log, if set, has the newest
	// lines of the agent's log, of which it shows the last; /debug/log has them all.
	Summary func() node.Status
	Cluster func(name string) (node.ClusterStatus, []node.SelectorShares, bool)
	Log     *page.Log
	// HealthChecks returns all that is probed: healthsvc.Service.Keys.
	HealthChecks func() []healthsvc.KeyStatus
	// State returns the agent's state and, a line each, what it waits for.
	State   func() (State, []string)
	Metrics http.Handler
	// Restored, if set, says, a line each, what in force is of before a restart.
	Restored func() []string
	// Store, if set, describes state_dir.
	Store func() lastgood.Stats
	// Drain, if set, closes the listeners; graceful has their connections end
	// within drain_timeout. It must not wait for that.
	Drain func(graceful bool)
	// Connections, if set, returns open connections of a listener, or of all for
	// "", at most most.
	Connections func(ctx context.Context, listener string, most int) ([]forwarder.Connection, error)
	// XDS returns what is known of the control plane; nil without one.
	XDS func() xds.Status
	// ConfigDump, if set, is what /config_dump and CSDS show.
	ConfigDump *configdump.Dumper
	// Reload, if set, reads the configuration anew, and returns when it is in force
	// or wait after it was taken up; the error is ctx's.
	Reload func(ctx context.Context, wait time.Duration) (Reload, error)
	// SetEnabled, if set, is the operator's word on an endpoint:
	// node.Node.SetEnabled.
	SetEnabled func(ctx context.Context, cluster string, a lbcore.Addr, enabled bool) error
	// Explain, if set, says how a connection gets its endpoint: node.Node.Explain.
	Explain func(cluster, selector string, k lbcore.Key) (node.Explanation, error)
	// Model, if set, is what the selectors of a cluster choose by: node.Node.Model.
	Model func(cluster string) (node.Model, error)
	// Level, if set, is what the log obeys.
	Level *slog.LevelVar
	// Token, if set, returns the token that requests must have, read anew; while it
	// can't tell, all are refused but what is told without. It must be quick.
	Token func() (string, error)
	// Logger has a line of each cause for which requests are refused, at a bounded
	// rate. Nil means no log.
	Logger *slog.Logger
	// Panics counts and tells the panics of requests. Nil leaves them to package http.
	Panics *contain.Panics
	// Hosts are names of this host, by which requests may come, besides its IP
	// addresses and localhost. By other names nothing is changed, and without Token
	// and TLS nothing but /live and /ready is read.
	Hosts   []string
	Version string
	Node    string // the node's id
	Started time.Time
}

// Handler answers the paths of the package comment. What changes something is
// POST; else anything but GET and HEAD is refused. So is what a browser sends for
// a page of another origin or by a name that is not this host's, and what changes
// something by such a name, whoever sends it. A browser changes something only
// with the token of the live page. With Config.Token all but /live and the state in
// /ready is for who has that token, as a bearer's or, so that a browser can open the
// live page, as the password of any user (Basic).
func Handler(cfg Config) http.Handler {
	mux := http.NewServeMux()
	p := livePage(&cfg)
	mux.Handle("GET /{$}", p)
	mux.HandleFunc("GET /events", p.Events)
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, r *http.Request) {
		state, waiting := cfg.State()
		plain(w)
		if state != Live {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		fmt.Fprintln(w, state)
		if stranger(r) {
			return
		}
		for _, line := range waiting {
			writeLine(w, "%s", line)
		}
		if cfg.Restored != nil && state == Live {
			for _, line := range cfg.Restored() {
				writeLine(w, "%s", line)
			}
		}
	})
	mux.HandleFunc("GET /live", func(w http.ResponseWriter, r *http.Request) {
		plain(w)
		fmt.Fprintln(w, "LIVE")
	})
	mux.HandleFunc("GET /clusters", dump(cfg.known, func(k known) any { return clusters(k) }, writeClusters))
	mux.HandleFunc("GET /listeners", dump(cfg.Status, func(st node.Status) any { return listeners(st) }, writeListeners))
	mux.HandleFunc("GET /healthchecks", dump(cfg.HealthChecks, func(k []healthsvc.KeyStatus) any { return healthChecks(k) }, writeHealthChecks))
	mux.Handle("GET /stats/prometheus", cfg.Metrics)
	mux.HandleFunc("GET /server_info", func(w http.ResponseWriter, r *http.Request) {
		state, _ := cfg.State()
		info := map[string]any{
			"version": cfg.Version, "state": state,
			"uptime_current_epoch": fmt.Sprintf("%ds", int64(time.Since(cfg.Started).Seconds())),
			"node":                 map[string]string{"id": cfg.Node},
		}
		if cfg.Store != nil {
			if st := cfg.Store(); st.Dir != "" {
				info["gatehouse"] = map[string]any{"state_dir": storeJSON{
					Dir: st.Dir, Files: st.Files, Bytes: st.Bytes, Written: st.Written, Failures: st.Failures,
					Damaged: st.Damaged, Pruned: st.Pruned, Error: st.Err, Since: instant(st.Since),
				}}
			}
		}
		writeJSON(w, info)
	})
	if cfg.Connections != nil {
		mux.HandleFunc("GET /connections", connections(cfg))
	}
	if cfg.ConfigDump != nil {
		mux.HandleFunc("GET /config_dump", configDump(cfg.ConfigDump))
		mux.Handle("POST "+clientStatusPath, clientStatus(cfg.ConfigDump))
	}
	if cfg.Drain != nil {
		mux.HandleFunc("POST /drain_listeners", func(w http.ResponseWriter, r *http.Request) {
			query := r.URL.Query()
			for key := range query {
				if key != "graceful" && key != "skip_exit" { // the agent ends by a signal in any case
					http.Error(w, fmt.Sprintf("%q is not supported: want graceful, or nothing", key), http.StatusBadRequest)
					return
				}
			}
			cfg.Drain(query.Has("graceful"))
			plain(w)
			io.WriteString(w, "OK\n")
		})
	}
	if cfg.Reload != nil {
		mux.HandleFunc("POST /reload", reload(cfg))
	}
	if cfg.SetEnabled != nil {
		mux.HandleFunc("POST /endpoints/{cluster}/{address}/enable", setEnabled(cfg, true))
		mux.HandleFunc("POST /endpoints/{cluster}/{address}/disable", setEnabled(cfg, false))
	}
	if cfg.Explain != nil {
		mux.HandleFunc("GET /explain", explain(cfg))
	}
	if cfg.Model != nil {
		mux.HandleFunc("GET /selectors", showSelectors(cfg))
	}
	mux.HandleFunc("GET /debug/pprof/{name}", ownReader(profile))
	if cfg.Log != nil {
		mux.HandleFunc("GET /debug/log", ownReader(recentLog(cfg)))
	}
	if cfg.Level != nil {
		mux.HandleFunc("GET /logging", logging(cfg))
		mux.HandleFunc("POST /logging", logging(cfg))
	}
	return contained(cfg.Panics, authorized(&cfg, guard(&cfg, bounded(withToken(p, mux)))))
}

// known is what /clusters shows.
type known struct {
	node.Status
	xds xds.Status
}

func (cfg *Config) known() known {
	k := known{Status: cfg.Status()}
	if cfg.XDS != nil {
		k.xds = cfg.XDS()
	}
	return k
}

// cds returns what is known of the CDS resource that a cluster is, and eds of the
// first EDS resource with its endpoints; nil for nothing.
func (k *known) cds(c node.ClusterStatus) *xds.ResourceStatus {
	if c.Origin != string(config.OriginXDS) {
		return nil
	}
	return k.xds.Resource(xds.ClusterType, c.Name)
}

func (k *known) eds(c node.ClusterStatus) *xds.ResourceStatus {
	for _, b := range c.Source.Blocks {
		if b.Kind == config.DiscoveryEDS {
			return k.xds.Resource(xds.AssignmentType, b.Resource)
		}
	}
	return nil
}

// dump answers with text, or with JSON for ?format=json.
func dump[T any](get func() T, shape func(T) any, text func(io.Writer, T)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch format := r.URL.Query().Get("format"); format {
		case "json":
			writeJSON(w, shape(get()))
		case "", "text":
			plain(w)
			text(w, get())
		default:
			http.Error(w, fmt.Sprintf("format %q: want text or json", format), http.StatusBadRequest)
		}
	}
}

func plain(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-cache, max-age=0")
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-cache, max-age=0")
	enc := json.NewEncoder(w)
	enc.SetIndent("", " ")
	enc.Encode(v) // an error is the reader's: it has gone
}
