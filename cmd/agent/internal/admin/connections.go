package admin

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

const (
	defaultConnections = 1000
	maxConnections     = 10_000
	// connectionsWithin bounds the wait for event loops.
	connectionsWithin = 5 * time.Second
)

// Connections is what /connections?format=json answers.
type Connections struct {
	Connections []Connection `json:"connections"`
}

// Connection is an open connection. What is not known before an endpoint is
// connected is left out.
type Connection struct {
	Listener   string    `json:"listener"`
	State      string    `json:"state"`
	Start      time.Time `json:"start_time"`
	Client     string    `json:"downstream_remote_address,omitempty"`
	Cluster    string    `json:"upstream_cluster,omitempty"`
	Endpoint   string    `json:"upstream_host,omitempty"`
	Generation uint64    `json:"selector_generation,omitempty"`
	Connect    float64   `json:"connect_seconds,omitempty"`
	In         uint64    `json:"bytes_received"`
	Out        uint64    `json:"bytes_sent"`
}

// connections answers with at most as many open connections as limit says, of one
// listener if that says which.
func connections(cfg Config) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		format, most := query.Get("format"), defaultConnections
		if s := query.Get("limit"); s != "" {
			n, err := strconv.Atoi(s)
			if err != nil || n < 1 || n > maxConnections {
				http.Error(w, fmt.Sprintf("limit %q: want 1 to %d", s, maxConnections), http.StatusBadRequest)
				return
			}
			most = n
		}
		if format != "" && format != "text" && format != "json" {
			http.Error(w, fmt.Sprintf("format %q: want text or json", format), http.StatusBadRequest)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), connectionsWithin)
		defer cancel()
		all, err := cfg.Connections(ctx, query.Get("listener"), most)
		if err != nil {
			http.Error(w, fmt.Sprintf("event loops have not answered: %v", err), http.StatusServiceUnavailable)
			return
		}
		out := Connections{make([]Connection, 0, len(all))}
		for _, c := range all {
			cj := Connection{
				Listener: c.Listener, State: c.State, Start: c.Start.UTC(), Cluster: c.Cluster,
				Generation: c.Generation, Connect: c.Connect.Seconds(), In: c.BytesIn, Out: c.BytesOut,
			}
			if c.Client.IsValid() {
				cj.Client = c.Client.String()
			}
			if c.Endpoint.IsValid() {
				cj.Endpoint = c.Endpoint.String()
			}
			out.Connections = append(out.Connections, cj)
		}
		if format == "json" {
			writeJSON(w, out)
			return
		}
		plain(w)
		for _, c := range out.Connections {
			writeLine(w, "%s::%s::%s::%s::state=%s since=%s generation=%d received=%d sent=%d", c.Listener, orNone(c.Client), orNone(c.Cluster), orNone(c.Endpoint),
				c.State, c.Start.Format(time.RFC3339Nano), c.Generation, c.In, c.Out)
		}
	}
}

func orNone(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
