package main

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// clustersCommand shows where the clusters of a running agent come from, and how
// old what is known of them is.
func clustersCommand(stdout, stderr io.Writer) *askCommand {
	var asJSON bool
	return &askCommand{
		name: "clusters", synopsis: "Shows the clusters of a running agent", stderr: stderr,
		usage: `
Usage: gatehouse clusters [options]

  Shows each cluster of a running agent: who gave it (ORIGIN), where its endpoints
  come from and what is known of them (SOURCE, STATE), how many of them are ready,
  the versions of the control plane's resources that are in force (CDS, EDS), how
  long ago the endpoints were told, how long half of the connects and 99 of 100 took at
  most since the agent began (P50, P99), and the last version that was refused.`,
		flags: func(fs *flag.FlagSet) { fs.BoolVar(&asJSON, "json", false, "print one JSON array") },
		run: func(ctx context.Context, c *client, _ []string) (int, error) {
			var answer clustersAnswer
			if err := c.getJSON(ctx, "/clusters", nil, &answer); err != nil {
				return exitRuntime, err
			}
			rows := answer.rows(time.Now())
			if !asJSON {
				return exitOK, printClusters(stdout, rows)
			}
			enc := json.NewEncoder(stdout)
			enc.SetEscapeHTML(false)
			enc.SetIndent("", " ")
			return exitOK, enc.Encode(rows)
		},
	}
}

// clustersAnswer is what is read of /clusters?format=json.
type clustersAnswer struct {
	Clusters []struct {
		Name      string `json:"name"`
		Hosts     []any  `json:"host_statuses"`
		Gatehouse struct {
			Origin      string `json:"origin"`
			Unsupported string `json:"unsupported"`
			Ready       int    `json:"ready"`
			Source      struct {
				State     string    `json:"state"`
				Confirmed time.Time `json:"confirmed"`
				Error     string    `json:"error"`
				Blocks    []struct {
					Kind string `json:"kind"`
				} `json:"blocks"`
			} `json:"source"`
			CDS, EDS *resourceAnswer
			Connect  *struct {
				P50 float64 `json:"p50_seconds"`
				P99 float64 `json:"p99_seconds"`
			} `json:"connect_time"`
		} `json:"gatehouse"`
	} `json:"cluster_statuses"`
}

type resourceAnswer struct {
	Name     string    `json:"name"`
	State    string    `json:"state"`
	Version  string    `json:"version"`
	Updated  time.Time `json:"updated"`
	Error    string    `json:"error"`
	LastNACK *nack     `json:"last_nack"`
}

// nack is the refusal of a version.
type nack struct {
	// Type is cds or eds, Age how many seconds ago the version came, and Mended says
	// that a good one has come since.
	Type    string    `json:"type"`
	Version string    `json:"version"`
	Reason  string    `json:"reason"`
	At      time.Time `json:"at"`
	Age     float64   `json:"age_seconds"`
	Mended  bool      `json:"mended"`
}

// clusterRow is one line of the table, and an element of the array.
type clusterRow struct {
	Name        string   `json:"name"`
	Origin      string   `json:"origin"`
	Source      []string `json:"source"`
	State       string   `json:"state"`
	Error       string   `json:"error,omitempty"`
	Unsupported string   `json:"unsupported,omitempty"`
	Ready       int      `json:"ready"`
	Endpoints   int      `json:"endpoints"`
	CDS         string   `json:"cds_version,omitempty"`
	EDS         string   `json:"eds_version,omitempty"`
	// Age is how many seconds ago the endpoints were told; missing if never.
	Age *float64 `json:"age_seconds,omitempty"`
	// P50 and P99 are how long connects took; missing without any.
	P50      *float64 `json:"connect_p50_seconds,omitempty"`
	P99      *float64 `json:"connect_p99_seconds,omitempty"`
	LastNACK *nack    `json:"last_nack,omitempty"`
}

func (a *clustersAnswer) rows(now time.Time) []clusterRow {
	rows := make([]clusterRow, 0, len(a.Clusters))
	for _, c := range a.Clusters {
		g := c.Gatehouse
		row := clusterRow{
			Name: c.Name, Origin: g.Origin, Source: []string{}, State: g.Source.State, Error: g.Source.Error,
			Unsupported: g.Unsupported, Ready: g.Ready, Endpoints: len(c.Hosts),
		}
		for _, b := range g.Source.Blocks {
			row.Source = append(row.Source, b.Kind)
		}
		told := g.Source.Confirmed
		for typ, r := range map[string]*resourceAnswer{"cds": g.CDS, "eds": g.EDS} {
			if r == nil {
				continue
			}
			if typ == "cds" {
				row.CDS = r.Version
			} else {
				row.EDS, told = r.Version, r.Updated
			}
			if n := r.LastNACK; n != nil && (row.LastNACK == nil || n.At.After(row.LastNACK.At)) {
				n.Type, n.Age, n.Mended = typ, now.Sub(n.At).Seconds(), r.State != "nacked"
				row.LastNACK = n
			}
		}
		if !told.IsZero() {
			row.Age = new(now.Sub(told).Seconds())
		}
		if g.Connect != nil {
			row.P50, row.P99 = &g.Connect.P50, &g.Connect.P99
		}
		rows = append(rows, row)
	}
	return rows
}

// printClusters prints the table. What a control plane has written can't break it.
func printClusters(w io.Writer, rows []clusterRow) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(cells ...string) {
		for i := range cells {
			cells[i] = cmp.Or(onOneLine(cells[i]), "-")
		}
		fmt.Fprintln(tw, strings.Join(cells, "\t"))
	}
	line("CLUSTER", "ORIGIN", "SOURCE", "STATE", "READY", "CDS", "EDS", "AGE", "P50", "P99", "LAST NACK")
	for _, r := range rows {
		state, last, age, p50, p99 := r.State, "", "", "", ""
		if r.Unsupported != "" {
			state = "unsupported"
		}
		if r.Age != nil {
			age = ago(*r.Age)
		}
		if r.P50 != nil {
			p50, p99 = millis(*r.P50), millis(*r.P99)
		}
		if n := r.LastNACK; n != nil {
			last = fmt.Sprintf("%s %q %s ago: %s", n.Type, short(n.Version), ago(n.Age), n.Reason)
			if n.Mended {
				last = "(mended) " + last
			}
		}
		line(r.Name, r.Origin, strings.Join(r.Source, ","), state, fmt.Sprintf("%d/%d", r.Ready, r.Endpoints), short(r.CDS), short(r.EDS), age, p50, p99, last)
	}
	return tw.Flush()
}

// short returns enough of a version, which may be a long hash.
func short(version string) string {
	const enough = 12
	runes := []rune(version)
	if len(runes) <= enough {
		return version
	}
	return string(runes[:enough-1]) + "…"
}

// millis is a duration in milliseconds.
func millis(seconds float64) string {
	return strconv.FormatFloat(1000*seconds, 'f', 1, 64) + "ms"
}

// ago is an age as people write it.
func ago(seconds float64) string {
	d := time.Duration(max(seconds, 0) * float64(time.Second))
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}
