package admin

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"gatehouse.internal/cmd/agent/internal/node"
	"gatehouse.internal/lbcore"
)

// enabledJSON is the answer to a word on an endpoint.
type enabledJSON struct {
	Cluster string `json:"cluster"`
	Address string `json:"address"`
	Enabled bool   `json:"enabled"`
}

// setEnabled takes the operator's word on an endpoint.
func setEnabled(cfg Config, enabled bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		addr, err := lbcore.ParseAddr(r.PathValue("address"))
		if err != nil {
			http.Error(w, fmt.Sprintf("%v: want an endpoint's IP:port or unix:///path, escaped as a part of a path", err), http.StatusBadRequest)
			return
		}
		cluster := r.PathValue("cluster")
		switch err := cfg.SetEnabled(r.Context(), cluster, addr, enabled); {
		case errors.Is(err, node.ErrUnknown):
			http.Error(w, err.Error(), http.StatusNotFound)
		case err != nil:
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		default:
			writeJSON(w, enabledJSON{cluster, addr.String(), enabled})
		}
	}
}

// Levels returns the levels of the log, from the most to the least that is told.
func Levels() []string { return []string{"debug", "info", "warn", "error"} }

// logging tells the level of the log, and on POST changes it until the agent is
// restarted or a reload changes log.level.
func logging(cfg Config) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		if r.Method == http.MethodPost {
			name := query.Get("level")
			if !slices.Contains(Levels(), name) {
				http.Error(w, fmt.Sprintf("level %q: want one of %s", name, strings.Join(Levels(), ", ")), http.StatusBadRequest)
				return
			}
			var level slog.Level
			level.UnmarshalText([]byte(name)) // it is one
			cfg.Level.Set(level)
		}
		name := strings.ToLower(cfg.Level.Level().String())
		if query.Get("format") == "json" {
			writeJSON(w, map[string]string{"level": name})
			return
		}
		plain(w)
		writeLine(w, "level: %s", name)
	}
}
