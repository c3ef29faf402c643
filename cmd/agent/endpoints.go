package main

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// endpointsCommand prints what a running agent knows of its endpoints.
func endpointsCommand(stdout, stderr io.Writer) *askCommand {
	var (
		asJSON bool
		only   *string // a cluster
	)
	return &askCommand{
		name: "endpoints", synopsis: "Prints the endpoints of a running agent", stderr: stderr,
		usage: `
Usage: gatehouse endpoints [-cluster NAME] [options]

  Prints each endpoint of a running agent: its status, since when and why, when it
  is probed next, and the last error of its checks. Times are UTC.`,
		flags: func(fs *flag.FlagSet) {
			fs.BoolVar(&asJSON, "json", false, "print one JSON object")
			fs.Func("cluster", "only the endpoints of the cluster of this `name`", func(s string) error {
				only = &s
				return nil
			})
		},
		run: func(ctx context.Context, c *client, _ []string) (int, error) {
			ctx, cancel := context.WithTimeout(ctx, askWithin)
			defer cancel()
			var dump clustersDump
			if err := c.getJSON(ctx, "/clusters", nil, &dump); err != nil {
				return exitRuntime, err
			}
			if only != nil {
				i := slices.IndexFunc(dump.Clusters, func(c clusterDump) bool { return c.Name == *only })
				if i < 0 {
					return exitRuntime, fmt.Errorf("no cluster %q: %s", *only, dump.names())
				}
				dump.Clusters = dump.Clusters[i : i+1]
			}
			rows := dump.rows()
			if !asJSON {
				return exitOK, writeEndpoints(stdout, rows)
			}
			enc := json.NewEncoder(stdout)
			enc.SetEscapeHTML(false)
			enc.SetIndent("", " ")
			return exitOK, enc.Encode(map[string]any{
				"endpoints": slices.DeleteFunc(rows, func(r endpointRow) bool { return r.Address == "" }),
			})
		},
	}
}

// clustersDump is what the command reads of /clusters.
type clustersDump struct {
	Clusters []clusterDump `json:"cluster_statuses"`
}

type clusterDump struct {
	Name  string     `json:"name"`
	Hosts []hostDump `json:"host_statuses"`
	More  struct {
		Unsupported string `json:"unsupported"`
		Waiting     string `json:"waiting"`
		Source      struct {
			State string     `json:"state"`
			Since *time.Time `json:"since"`
			Error string     `json:"error"`
		} `json:"source"`
	} `json:"gatehouse"`
}

type hostDump struct {
	Address struct {
		Socket struct {
			Address string `json:"address"`
			Port    uint16 `json:"port_value"`
		} `json:"socket_address"`
		Pipe struct {
			Path string `json:"path"`
		} `json:"pipe"`
	} `json:"address"`
	More struct {
		Ready  bool        `json:"ready"`
		State  string      `json:"state"`
		Since  *time.Time  `json:"since"`
		Why    string      `json:"why"`
		Checks []checkDump `json:"checks"`
		// Adaptive is of 2^24 microseconds the part that the latency is.
		Adaptive float64 `json:"adaptive_weight"`
	} `json:"gatehouse"`
}

type checkDump struct {
	Kind        string     `json:"kind"`
	NextProbe   *time.Time `json:"next_probe"`
	LastFailure *time.Time `json:"last_failure"`
	LastError   string     `json:"last_error"`
	LastLocal   string     `json:"last_local_error"`
}

// names says which clusters there are, as far as that helps.
func (d *clustersDump) names() string {
	const most = 10
	var names []string
	for _, c := range d.Clusters {
		names = append(names, strconv.Quote(c.Name))
	}
	switch n := len(names); {
	case n == 0:
		return "there is none"
	case n > most:
		return fmt.Sprintf("there are %s and %d more", strings.Join(names[:most], ", "), n-most)
	default:
		return "there are " + strings.Join(names, ", ")
	}
}

// endpointRow is an endpoint of a cluster as the command shows it; with -json its
// fields are a contract with scripts. Without an Address it tells why a cluster has
// no endpoints.
type endpointRow struct {
	Cluster string     `json:"cluster"`
	Address string     `json:"address"`
	Status  string     `json:"status"`
	Ready   bool       `json:"ready"`
	Since   *time.Time `json:"since,omitempty"`
	Why     string     `json:"why,omitempty"`
	Checks  int        `json:"checks"`
	// NextProbe is that of the check that is due first. It is missing while a probe
	// of each check is in flight, and without checks.
	NextProbe *time.Time `json:"next_probe,omitempty"`
	// LastError is of the check that failed last, or why the newest probe gave no
	// result.
	LastError   string     `json:"last_error,omitempty"`
	LastFailure *time.Time `json:"last_failure,omitempty"`
}

// rows never returns nil, for JSON.
func (d *clustersDump) rows() []endpointRow {
	rows := []endpointRow{}
	for _, c := range d.Clusters {
		if len(c.Hosts) == 0 {
			rows = append(rows, endpointRow{
				Cluster: c.Name, Status: c.More.Source.State, Since: c.More.Source.Since,
				Why: "no endpoints: " + cmp.Or(c.More.Unsupported, c.More.Waiting, c.More.Source.Error, "discovery lists none"),
			})
		}
		for _, h := range c.Hosts {
			rows = append(rows, h.row(c.Name))
		}
	}
	return rows
}

// addr returns the address as commands take it.
func (h *hostDump) addr() string {
	if path := h.Address.Pipe.Path; path != "" {
		return "unix://" + path
	}
	return net.JoinHostPort(h.Address.Socket.Address, strconv.Itoa(int(h.Address.Socket.Port)))
}

func (h *hostDump) row(cluster string) endpointRow {
	r := endpointRow{
		Cluster: cluster, Status: h.More.State, Ready: h.More.Ready, Since: h.More.Since, Why: h.More.Why, Checks: len(h.More.Checks),
		Address: h.addr(),
	}
	local := false // the error shown is newer than any failure
	for _, k := range h.More.Checks {
		if k.NextProbe != nil && (r.NextProbe == nil || k.NextProbe.Before(*r.NextProbe)) {
			r.NextProbe = k.NextProbe
		}
		switch {
		case k.LastLocal != "" && !local:
			r.LastError, r.LastFailure, local = k.Kind+" check, no result: "+k.LastLocal, nil, true
		case k.LastError == "" || local:
		case r.LastError == "" || k.LastFailure != nil && r.LastFailure != nil && k.LastFailure.After(*r.LastFailure):
			r.LastError, r.LastFailure = k.Kind+" check: "+k.LastError, k.LastFailure
		}
	}
	return r
}

// writeEndpoints writes a table. What may be long comes last, so that it does not
// spread the rest.
func writeEndpoints(w io.Writer, rows []endpointRow) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "CLUSTER\tENDPOINT\tSTATUS\tSINCE\tNEXT PROBE\tWHY, LAST ERROR")
	for _, r := range rows {
		next := shortTime(r.NextProbe)
		if r.NextProbe == nil && r.Checks > 0 {
			next = "under way"
		}
		var words []string
		if r.Why != "" {
			words = append(words, r.Why)
		}
		if r.LastError != "" {
			last := "last error"
			if r.LastFailure != nil {
				last += " at " + shortTime(r.LastFailure)
			}
			words = append(words, last+": "+r.LastError)
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\n", onOneLine(r.Cluster), onOneLine(cmp.Or(r.Address, "-")), onOneLine(r.Status),
			shortTime(r.Since), next, onOneLine(cmp.Or(strings.Join(words, "; "), "-")))
	}
	return tw.Flush()
}

func shortTime(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

// onOneLine keeps a text on its line, and from a terminal what a terminal obeys:
// parts of it may be a peer's.
func onOneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ReplaceAll(s, "\n", "; "))
}
