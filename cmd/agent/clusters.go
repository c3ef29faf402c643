package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"gatehouse.internal/lbcore"
)

// The defaults and limits of who asks a running agent.
const (
	defaultAdmin = "127.0.0.1:9901"
	adminEnv     = "GATEHOUSE_ADMIN_ADDRESS" // as for admin.address of a configuration
	askWithin    = 30 * time.Second
	maxAnswer    = 1 << 30 // bytes
)

// askAgent reads what a running agent answers at a path into v.
func askAgent(at, path string, v any) error {
	addr, err := lbcore.ParseAddr(at)
	if err != nil {
		return fmt.Errorf("-http-addr: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), askWithin)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+path, nil)
	if err != nil {
		return err
	}
	if addr.Path() == "" {
		r.URL.Host = addr.String()
	}
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, addr.Network(), addr.Dial())
		},
	}}
	resp, err := client.Do(r)
	if err != nil {
		if op, ok := errors.AsType[*net.OpError](err); ok {
			err = op
		}
		return fmt.Errorf("no agent answers at %s: %w\nStart one with gatehouse run, or say where it is with -http-addr or %s", addr, err, adminEnv)
	}
	defer resp.Body.Close()
	body := io.LimitReader(resp.Body, maxAnswer)
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(body, 500))
		return fmt.Errorf("%s answers %s to %s: %s", addr, resp.Status, path, strings.TrimSpace(string(text)))
	}
	if err := json.NewDecoder(body).Decode(v); err != nil {
		return fmt.Errorf("%s answers %s with what can't be read: %w", addr, path, err)
	}
	return nil
}

// clustersCommand shows where the clusters of a running agent come from, and how
// old what is known of them is.
type clustersCommand struct{ stdout, stderr io.Writer }

func (c *clustersCommand) Synopsis() string { return "Shows the clusters of a running agent" }

func (c *clustersCommand) Help() string {
	return help(`
Usage: gatehouse clusters [options]

  Shows each cluster of a running agent: who gave it (ORIGIN), where its endpoints
  come from and what is known of them (SOURCE, STATE), how many of them are ready,
  the versions of the control plane's resources that are in force (CDS, EDS), how
  long ago the endpoints were told, and the last version that was refused.`, func(w io.Writer) {
		fs, _, _ := c.flags(w)
		fs.PrintDefaults()
	})
}

func (c *clustersCommand) flags(w io.Writer) (fs *flag.FlagSet, at *string, asJSON *bool) {
	fs = flag.NewFlagSet("clusters", flag.ContinueOnError)
	fs.SetOutput(w)
	at = fs.String("http-addr", cmp.Or(os.Getenv(adminEnv), defaultAdmin), "where the admin interface of the agent is, as `IP:port` or unix:///path")
	return fs, at, fs.Bool("json", false, "print one JSON array")
}

func (c *clustersCommand) Run(args []string) int {
	fs, at, asJSON := c.flags(c.stderr)
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		return exitOK
	} else if err != nil {
		return exitConfig
	}
	if fs.NArg() > 0 {
		fmt.Fprintf(c.stderr, "clusters takes no arguments, got %q\n", fs.Args())
		return exitConfig
	}
	if _, err := lbcore.ParseAddr(*at); err != nil {
		fmt.Fprintf(c.stderr, "-http-addr: %v\n", err)
		return exitConfig
	}
	var answer clustersAnswer
	if err := askAgent(*at, "/clusters?format=json", &answer); err != nil {
		fmt.Fprintln(c.stderr, err)
		return exitRuntime
	}
	rows := answer.rows(time.Now())
	if *asJSON {
		enc := json.NewEncoder(c.stdout)
		enc.SetIndent("", " ")
		enc.Encode(rows)
		return exitOK
	}
	printClusters(c.stdout, rows)
	return exitOK
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
	Age      *float64 `json:"age_seconds,omitempty"`
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
		rows = append(rows, row)
	}
	return rows
}

// printClusters prints the table. What a control plane has written can't break it.
func printClusters(w io.Writer, rows []clusterRow) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(cells ...string) {
		for i := range cells {
			cells[i] = cmp.Or(printable(cells[i]), "-")
		}
		fmt.Fprintln(tw, strings.Join(cells, "\t"))
	}
	line("CLUSTER", "ORIGIN", "SOURCE", "STATE", "READY", "CDS", "EDS", "AGE", "LAST NACK")
	for _, r := range rows {
		state, last, age := r.State, "", ""
		if r.Unsupported != "" {
			state = "unsupported"
		}
		if r.Age != nil {
			age = ago(*r.Age)
		}
		if n := r.LastNACK; n != nil {
			last = fmt.Sprintf("%s %q %s ago: %s", n.Type, short(n.Version), ago(n.Age), n.Reason)
			if n.Mended {
				last = "(mended) " + last
			}
		}
		line(r.Name, r.Origin, strings.Join(r.Source, ","), state, fmt.Sprintf("%d/%d", r.Ready, r.Endpoints), short(r.CDS), short(r.EDS), age, last)
	}
	tw.Flush()
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

// printable replaces what would move a terminal's cursor or a table's columns.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return '?'
		}
		return r
	}, text)
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
