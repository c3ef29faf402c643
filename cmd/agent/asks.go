package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"gatehouse.internal/cmd/agent/internal/admin"
)

// askCommands returns the commands that ask a running agent.
func askCommands(stdout, stderr io.Writer) []*askCommand {
	all := []*askCommand{
		reloadCommand(stdout, stderr), drainCommand(stdout), healthCommand(stdout), connectionsCommand(stdout),
		enableCommand(stdout, true), enableCommand(stdout, false), logLevelCommand(stdout),
		clustersCommand(stdout, stderr), endpointsCommand(stdout, stderr), explainCommand(stdout),
		simulateCommand(stdout, stderr), debugCommand(stdout), topCommand(stdout),
	}
	for _, c := range all {
		c.stderr = stderr
	}
	return all
}

// jsonFlag adds -json, which all have that print something.
func jsonFlag(fs *flag.FlagSet, on *bool) { fs.BoolVar(on, "json", false, "print JSON") }

func reloadCommand(stdout, stderr io.Writer) *askCommand {
	var asJSON bool
	var wait time.Duration
	return &askCommand{
		name: "reload", synopsis: "Has an agent read its configuration again",
		usage: `
Usage: gatehouse reload [options]

  Has the running agent read its configuration again, and says what came of it.
  Clusters, listeners and whom the agent asks change without a connection being
  lost; what is the same is not touched. If there is a mistake, or a listener can't
  be opened, nothing changes.

  The exit code is 0 if the configuration is in force; 1 if a part of it is not,
  because it needs a restart or is not ready within -wait, or if no agent answers; 2
  if it has mistakes, and 3 if a listener can't be opened.`,
		flags: func(fs *flag.FlagSet) {
			jsonFlag(fs, &asJSON)
			fs.DurationVar(&wait, "wait", 30*time.Second, "how long to wait until clusters that have changed are ready, up to 10m")
		},
		run: func(ctx context.Context, c *client, _ []string) (int, error) {
			c.http.Timeout = wait + time.Minute // it may have to wait for another reload
			a, err := c.do(ctx, http.MethodPost, "/reload", url.Values{"wait": {wait.String()}})
			if err != nil {
				return exitRuntime, err
			}
			var r admin.Reload
			if err := json.Unmarshal(a.body, &r); err != nil {
				return exitRuntime, c.refusal(a)
			}
			if asJSON {
				printJSON(stdout, r)
			} else {
				printReload(stdout, stderr, r)
			}
			switch {
			case r.Bind:
				return exitBind, nil
			case r.Errors != nil:
				return exitConfig, nil
			case r.Result != admin.ReloadInForce:
				return exitRuntime, nil
			}
			return exitOK, nil
		},
	}
}

// printReload says in words what came of a reload.
func printReload(stdout, stderr io.Writer, r admin.Reload) {
	for _, w := range r.Warnings {
		fmt.Fprintf(stderr, "warning: %v\n", w)
	}
	if r.Result == admin.ReloadRefused {
		r.Errors.Print(stderr)
		fmt.Fprintln(stderr, r.Error)
		return
	}
	changes := func(what string, c admin.Changes) {
		fmt.Fprintf(stdout, "%s: %d unchanged", what, len(c.Unchanged))
		for _, x := range []struct {
			word  string
			names []string
		}{{"added", c.Added}, {"changed", c.Changed}, {"removed", c.Removed}} {
			if len(x.names) > 0 {
				fmt.Fprintf(stdout, "; %s %s", x.word, strings.Join(x.names, ", "))
			}
		}
		fmt.Fprintln(stdout)
	}
	changes("clusters", r.Clusters)
	changes("listeners", r.Listeners)
	if len(r.Settings) > 0 {
		fmt.Fprintf(stdout, "settings: changed %s\n", strings.Join(r.Settings, ", "))
	}
	for _, u := range r.NotWarm {
		fmt.Fprintf(stderr, "not ready yet: cluster %q: %s\n", u.Cluster, shown(u.Why))
	}
	if len(r.NeedsRestart) > 0 {
		fmt.Fprintf(stderr, "needs a restart: %s\n", strings.Join(r.NeedsRestart, ", "))
	}
	if r.Result == admin.ReloadInForce {
		fmt.Fprintln(stdout, "the configuration is in force")
	} else {
		fmt.Fprintln(stderr, "the rest of the configuration is in force")
	}
}

func drainCommand(stdout io.Writer) *askCommand {
	var asJSON, graceful bool
	return &askCommand{
		name: "drain", synopsis: "Has an agent accept no more connections",
		usage: `
Usage: gatehouse drain [options]

  Closes the listeners of the running agent, which runs on: /ready answers 503. With
  -graceful its connections end within drain_timeout, without when they like. It does
  not wait for that: "gatehouse connections" shows those that are left.`,
		flags: func(fs *flag.FlagSet) {
			jsonFlag(fs, &asJSON)
			fs.BoolVar(&graceful, "graceful", false, "close connections that are left, within drain_timeout")
		},
		run: func(ctx context.Context, c *client, _ []string) (int, error) {
			query := make(url.Values)
			if graceful {
				query.Set("graceful", "")
			}
			if _, err := c.post(ctx, "/drain_listeners", query); err != nil {
				return exitRuntime, err
			}
			if asJSON {
				printJSON(stdout, map[string]any{"draining": true, "graceful": graceful})
			} else {
				fmt.Fprintln(stdout, "the agent accepts no more connections")
			}
			return exitOK, nil
		},
	}
}

// health is what health -json prints.
type health struct {
	OK      bool     `json:"ok"`
	State   string   `json:"state"`
	Waiting []string `json:"waiting"`
}

func healthCommand(stdout io.Writer) *askCommand {
	var asJSON, live, ready bool
	return &askCommand{
		name: "health", synopsis: "Tells by its exit code if an agent is ready",
		usage: `
Usage: gatehouse health [options]

  Exits with 0 if the agent is ready, or with -live if it runs, and with 1 if not,
  saying what it waits for. It is meant for the health checks of containers.`,
		flags: func(fs *flag.FlagSet) {
			jsonFlag(fs, &asJSON)
			fs.BoolVar(&live, "live", false, "ask only if the agent runs")
			fs.BoolVar(&ready, "ready", true, "ask if the agent is ready to take connections; -live goes before it")
		},
		run: func(ctx context.Context, c *client, _ []string) (int, error) {
			path := "/ready"
			if live || !ready {
				path = "/live"
			}
			a, err := c.do(ctx, http.MethodGet, path, nil)
			if err != nil {
				return exitRuntime, err
			}
			if a.status != http.StatusOK && a.status != http.StatusServiceUnavailable {
				return exitRuntime, c.refusal(a)
			}
			lines := strings.Split(strings.TrimSpace(string(a.body)), "\n")
			h := health{OK: a.status == http.StatusOK, State: lines[0], Waiting: lines[1:]}
			if asJSON {
				printJSON(stdout, h)
			} else {
				fmt.Fprintln(stdout, strings.Join(lines, "\n"))
			}
			if !h.OK {
				return exitRuntime, nil
			}
			return exitOK, nil
		},
	}
}

func connectionsCommand(stdout io.Writer) *askCommand {
	var asJSON bool
	var listener string
	var limit int
	return &askCommand{
		name: "connections", synopsis: "Lists open connections",
		usage: `
Usage: gatehouse connections [options]

  Lists the agent's open connections.`,
		flags: func(fs *flag.FlagSet) {
			jsonFlag(fs, &asJSON)
			fs.StringVar(&listener, "listener", "", "only those of the listener of this `name`")
			fs.IntVar(&limit, "limit", 1000, "at most so many, up to 10000")
		},
		run: func(ctx context.Context, c *client, _ []string) (int, error) {
			query := url.Values{"limit": {strconv.Itoa(limit)}}
			if listener != "" {
				query.Set("listener", listener)
			}
			var all admin.Connections
			if err := c.getJSON(ctx, "/connections", query, &all); err != nil {
				return exitRuntime, err
			}
			if asJSON {
				printJSON(stdout, all)
				return exitOK, nil
			}
			w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "LISTENER\tCLIENT\tCLUSTER\tENDPOINT\tSTATE\tAGE\tRECEIVED\tSENT")
			for _, x := range all.Connections {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\n", shown(x.Listener), shown(x.Client), shown(x.Cluster), shown(x.Endpoint),
					shown(x.State), time.Since(x.Start).Truncate(time.Second), x.In, x.Out)
			}
			w.Flush()
			if len(all.Connections) == limit {
				fmt.Fprintf(stdout, "there may be more than %d: see -limit\n", limit)
			}
			return exitOK, nil
		},
	}
}

// shown returns s for a table: what others have written may hold what a terminal
// would obey.
func shown(s string) string {
	if s == "" {
		return "-"
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, s)
}

func enableCommand(stdout io.Writer, enable bool) *askCommand {
	name, synopsis, effect := "enable", "Lets an endpoint take connections again", `
  Takes back what "gatehouse disable" said.`
	if !enable {
		name, synopsis, effect = "disable", "Keeps new connections from an endpoint", `
  The endpoint gets no new connection, in this cluster, until it is enabled again, or
  the agent is restarted without a state_dir. Open ones go on, unless on_removal of the
  cluster says otherwise.`
	}
	var asJSON bool
	return &askCommand{
		name: name, synopsis: synopsis, args: []string{"CLUSTER", "ADDRESS"},
		usage: "\nUsage: gatehouse " + name + " [options] CLUSTER ADDRESS\n" + effect + "\n  ADDRESS is IP:port or unix:///path, as /clusters shows it.",
		flags: func(fs *flag.FlagSet) { jsonFlag(fs, &asJSON) },
		run: func(ctx context.Context, c *client, args []string) (int, error) {
			body, err := c.post(ctx, "/endpoints/"+url.PathEscape(args[0])+"/"+url.PathEscape(args[1])+"/"+name, nil)
			switch {
			case err != nil:
				return exitRuntime, err
			case asJSON:
				stdout.Write(body)
			default:
				fmt.Fprintf(stdout, "%s in cluster %s is %sd\n", args[1], args[0], name)
			}
			return exitOK, nil
		},
	}
}

func logLevelCommand(stdout io.Writer) *askCommand {
	var asJSON bool
	return &askCommand{
		name: "log-level", synopsis: "Tells or changes how much an agent logs",
		args: []string{"LEVEL"}, optional: 1,
		usage: `
Usage: gatehouse log-level [options] [debug|info|warn|error]

  Tells the level of the running agent's log, or changes it until the agent is
  restarted or a reload changes log.level.`,
		flags: func(fs *flag.FlagSet) { jsonFlag(fs, &asJSON) },
		check: func(args []string) error {
			if len(args) > 0 && !slices.Contains(admin.Levels(), args[0]) {
				return fmt.Errorf("level %q: want one of %s", args[0], strings.Join(admin.Levels(), ", "))
			}
			return nil
		},
		run: func(ctx context.Context, c *client, args []string) (int, error) {
			query, ask := make(url.Values), c.get
			if asJSON {
				query.Set("format", "json")
			}
			if len(args) > 0 {
				query.Set("level", args[0])
				ask = c.post
			}
			body, err := ask(ctx, "/logging", query)
			if err != nil {
				return exitRuntime, err
			}
			stdout.Write(body)
			return exitOK, nil
		},
	}
}
