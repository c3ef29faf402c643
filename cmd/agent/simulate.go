package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"text/tabwriter"

	"gatehouse.internal/cmd/agent/internal/admin"
	"gatehouse.internal/cmd/agent/internal/node"
	"gatehouse.internal/lbcore"
)

// simulation is what simulate -json prints.
type simulation struct {
	Cluster  string `json:"cluster"`
	Selector string `json:"selector"`
	Policy   string `json:"policy"`
	Keys     int    `json:"keys"`
	// Moved, how many percent of the keys have another endpoint afterwards, and Freed,
	// those of them whose endpoint is removed, are there only where keys have endpoints
	// of their own.
	Moved *float64 `json:"keys_moved_percent,omitempty"`
	Freed *float64 `json:"keys_of_removed_percent,omitempty"`
	// None is how many percent get no endpoint, before and after.
	NoneBefore float64    `json:"none_before_percent"`
	NoneAfter  float64    `json:"none_after_percent"`
	Shares     []shareRow `json:"shares"`
}

type shareRow struct {
	// Cluster is whose endpoint it is, in a cluster that consists of others.
	Cluster string  `json:"cluster,omitempty"`
	Address string  `json:"address"`
	Before  float64 `json:"before_percent"`
	After   float64 `json:"after_percent"`
	Ready   bool    `json:"ready"`
	// Change is added, removed or empty.
	Change string `json:"change,omitempty"`
}

// simulateCommand says how a change of endpoints would spread the load.
func simulateCommand(stdout, stderr io.Writer) *askCommand {
	var (
		asJSON  bool
		cluster string
		change  = node.Change{Keys: 100_000}
		files   = configFlags{}
	)
	return &askCommand{
		name: "simulate", synopsis: "Says how load would spread if endpoints came or went",
		usage: `
Usage: gatehouse simulate -cluster NAME [-remove ADDRESS] [-add ADDRESS] [options]

  Builds a selector of the cluster twice, before and after the change, and has it
  choose for many keys: what share each endpoint gets, and how many keys move to
  another one. The endpoints, and which of them are ready, are those of a running
  agent; or with -config-file or -config-dir those that the configuration lists, and
  no agent is needed.

  Keys are texts of IPv4 addresses, as of hash_on = "source_ip". Selectors that have no
  use for keys are given as many connections, none of which ends. An endpoint that is
  added is in the priority and the locality of the first one. hash_balance_factor,
  slow_start and limits of connections have no effect.

  Of a cluster that consists of others the load is spread over their priorities; an
  endpoint that is removed leaves all of them, and one that is added is in the first.`,
		flags: func(fs *flag.FlagSet) {
			jsonFlag(fs, &asJSON)
			fs.StringVar(&cluster, "cluster", "", "the `name` of the cluster")
			fs.StringVar(&change.Selector, "selector", "", "the `name` of one of its selectors; by default the first")
			fs.IntVar(&change.Keys, "keys", change.Keys, fmt.Sprintf("how many keys, up to %d", node.MaxSimulated))
			path := func(s string) error {
				files.paths = append(files.paths, s)
				return nil
			}
			fs.Func("config-file", "take the cluster of this `file`, HCL or JSON; may be given several times", path)
			fs.Func("config-dir", "take the cluster of the files of this `directory`", path)
			fs.Func("remove", "without the endpoint of this `address`, IP:port or unix:///path; may be given several times, and hold several by commas", func(s string) error {
				for _, text := range strings.Split(s, ",") {
					a, err := lbcore.ParseAddr(text)
					if err != nil {
						return err
					}
					change.Remove = append(change.Remove, a)
				}
				return nil
			})
			fs.Func("add", "with an endpoint of this `address`, or ADDRESS=WEIGHT; several as for -remove", func(s string) error {
				for _, text := range strings.Split(s, ",") {
					e := lbcore.Endpoint{Weight: 1}
					if i := strings.LastIndexByte(text, '='); i >= 0 {
						n, err := strconv.ParseUint(text[i+1:], 10, 32)
						if err != nil {
							return fmt.Errorf("weight %q: want a number from 0 to 4294967295", text[i+1:])
						}
						text, e.Weight = text[:i], uint32(n)
					}
					var err error
					if e.Addr, err = lbcore.ParseAddr(text); err != nil {
						return err
					}
					change.Add = append(change.Add, e)
				}
				return nil
			})
		},
		check: func([]string) error {
			switch {
			case cluster == "":
				return errors.New("simulate needs -cluster")
			case change.Keys < 1 || change.Keys > node.MaxSimulated:
				return fmt.Errorf("-keys %d: want 1 to %d", change.Keys, node.MaxSimulated)
			}
			return nil
		},
		run: func(ctx context.Context, c *client, _ []string) (int, error) {
			var m node.Model
			var code int
			var err error
			if len(files.paths) > 0 {
				m, code, err = modelOfFiles(ctx, &files, cluster, stderr)
			} else {
				m, err = modelOfAgent(ctx, c, cluster)
			}
			if err != nil || code != exitOK {
				return code, err
			}
			s, err := node.Simulate(ctx, m, change)
			if err != nil {
				return exitRuntime, err
			}
			out := simulated(s)
			if asJSON {
				printJSON(stdout, out)
				return exitOK, nil
			}
			return exitOK, printSimulation(stdout, out)
		},
	}
}

func modelOfAgent(ctx context.Context, c *client, cluster string) (node.Model, error) {
	var s admin.Selectors
	if err := c.getJSON(ctx, "/selectors", url.Values{"cluster": {cluster}}, &s); err != nil {
		return node.Model{}, err
	}
	return s.Model()
}

// modelOfFiles returns the model of a cluster of a configuration. With a code other
// than exitOK and no error it has said why there is none.
func modelOfFiles(ctx context.Context, files *configFlags, name string, stderr io.Writer) (m node.Model, code int, err error) {
	cfg, err := files.read()
	if err != nil {
		printMistakes(stderr, err)
		return m, exitConfig, nil
	}
	var names []string
	for _, c := range cfg.Clusters {
		if c.Name == name {
			ctx, cancel := context.WithTimeout(ctx, askWithin)
			defer cancel()
			m, err = node.ModelOf(ctx, c, lbcore.Locality(cfg.Node.Locality))
			return m, exitOK, err
		}
		names = append(names, strconv.Quote(c.Name))
	}
	return m, exitConfig, fmt.Errorf("the configuration has no cluster %q: it has %s", name, orNone(strings.Join(names, ", ")))
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

func simulated(s node.Simulation) simulation {
	percent := func(n int) float64 { return 100 * float64(n) / float64(s.Keys) }
	out := simulation{
		Cluster: s.Cluster, Selector: s.Selector, Policy: s.Policy, Keys: s.Keys,
		NoneBefore: percent(s.None[0]), NoneAfter: percent(s.None[1]), Shares: make([]shareRow, 0, len(s.Shares)),
	}
	if s.Keyed {
		out.Moved, out.Freed = new(percent(s.Moved)), new(percent(s.Freed))
	}
	for _, x := range s.Shares {
		row := shareRow{Address: x.Addr.String(), Before: percent(x.Before), After: percent(x.After), Ready: x.Ready}
		if s.Policy == "" {
			row.Cluster = x.Cluster
		}
		switch {
		case x.Added:
			row.Change = "added"
		case x.Removed:
			row.Change = "removed"
		}
		out.Shares = append(out.Shares, row)
	}
	return out
}

// barWidth is the length of the longest bar.
const barWidth = 40

// printSimulation prints a table with two bars an endpoint.
func printSimulation(w io.Writer, s simulation) error {
	if s.Policy == "" {
		fmt.Fprintf(w, "cluster %q, which consists of others, %d keys\n", s.Cluster, s.Keys)
	} else {
		fmt.Fprintf(w, "cluster %q, selector %q (%s), %d keys\n", s.Cluster, s.Selector, s.Policy, s.Keys)
	}
	if s.Moved != nil {
		fmt.Fprintf(w, "keys moved: %.2f%%; %.2f%% had to, as their endpoint is removed\n", *s.Moved, *s.Freed)
	} else {
		fmt.Fprintf(w, "keys moved: %s has no use for keys\n", cmp.Or(s.Policy, "one of its selectors at least"))
	}
	if s.NoneBefore > 0 || s.NoneAfter > 0 {
		fmt.Fprintf(w, "no endpoint: %.2f%% before, %.2f%% after\n", s.NoneBefore, s.NoneAfter)
	}
	most := 0.0
	for _, r := range s.Shares {
		most = max(most, r.Before, r.After)
	}
	bar := func(share float64) string {
		if share == 0 {
			return ""
		}
		return strings.Repeat("█", max(1, int(share/most*barWidth+0.5)))
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "ENDPOINT\t\tSHARE\t")
	for _, r := range s.Shares {
		note := r.Change
		if !r.Ready && note == "" {
			note = "not ready"
		}
		who := r.Address
		if r.Cluster != "" {
			who = r.Cluster + " " + who
		}
		fmt.Fprintf(tw, "%s\tbefore\t%6.2f%%\t%s\n", shown(who), r.Before, bar(r.Before))
		fmt.Fprintf(tw, "%s\tafter\t%6.2f%%\t%s\n", note, r.After, bar(r.After))
	}
	return tw.Flush()
}
