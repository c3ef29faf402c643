package main

import (
	"archive/tar"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"time"
)

// debugParts are the files of the archive, and where an agent has them. None holds
// secrets: configurations are redacted by the agent.
var debugParts = []struct {
	file, path string
	query      url.Values
}{
	{"server_info.json", "/server_info", nil},
	{"ready.txt", "/ready", nil},
	{"config_dump.json", "/config_dump", url.Values{"include_eds": {""}}},
	{"clusters.json", "/clusters", url.Values{"format": {"json"}}},
	{"listeners.json", "/listeners", url.Values{"format": {"json"}}},
	{"healthchecks.json", "/healthchecks", url.Values{"format": {"json"}}},
	{"connections.json", "/connections", url.Values{"format": {"json"}}},
	{"metrics.prom", "/stats/prometheus", nil},
	{"goroutines.txt", "/debug/pprof/goroutine", url.Values{"debug": {"2"}}},
	{"heap.pb.gz", "/debug/pprof/heap", nil},
	{"allocs.pb.gz", "/debug/pprof/allocs", nil},
	{"cpu.pb.gz", "/debug/pprof/profile", nil}, // and how long
	{"log.txt", "/debug/log", nil},
}

// debugManifest is manifest.json in the archive, and what debug -json prints.
type debugManifest struct {
	Archive string    `json:"archive,omitempty"`
	Agent   string    `json:"agent"`
	At      time.Time `json:"at"`
	// Version is that of the command, not of the agent.
	Version string   `json:"version"`
	Files   []string `json:"files"`
	// Errors says of each file that is not there why.
	Errors map[string]string `json:"errors"`
}

// debugCommand collects what a bug report needs.
func debugCommand(stdout io.Writer) *askCommand {
	var asJSON bool
	var output string
	var duration time.Duration
	return &askCommand{
		name: "debug", synopsis: "Collects what a bug report needs",
		usage: `
Usage: gatehouse debug [options]

  Writes one archive of what a running agent is and does: its configuration as far as
  /config_dump shows it, without secrets, what it knows of clusters, listeners, health
  checks and connections, metrics, goroutines, a heap and a CPU profile, and the newest
  lines of its log. Names and addresses of your services are in it. What the agent
  does not give is named in manifest.json.`,
		flags: func(fs *flag.FlagSet) {
			jsonFlag(fs, &asJSON)
			fs.StringVar(&output, "output", "", "the `file` to write, which must not exist; by default gatehouse-debug-TIME.tar.gz here")
			fs.DurationVar(&duration, "duration", 2*time.Second, "how long the CPU profile takes, 1s to 30s")
		},
		check: func([]string) error {
			if duration < time.Second || duration > 30*time.Second {
				return fmt.Errorf("-duration %v: want 1s to 30s", duration)
			}
			return nil
		},
		run: func(ctx context.Context, c *client, _ []string) (int, error) {
			now := time.Now().UTC()
			output := cmp.Or(output, now.Format("gatehouse-debug-20060102T150405Z.tar.gz"))
			if _, err := c.do(ctx, http.MethodGet, "/live", nil); err != nil { // before a file is made
				return exitRuntime, err
			}
			m := debugManifest{Agent: c.at.String(), At: now, Version: versionText(), Files: []string{}, Errors: map[string]string{}}
			if err := writeArchive(ctx, c, output, duration, &m); err != nil {
				return exitRuntime, err
			}
			if m.Archive = output; asJSON {
				printJSON(stdout, m)
				return exitOK, nil
			}
			for _, p := range debugParts {
				if why := m.Errors[p.file]; why != "" {
					fmt.Fprintf(stdout, "without %s: %s\n", p.file, shown(why))
				}
			}
			fmt.Fprintf(stdout, "%s: %d files\n", output, len(m.Files))
			return exitOK, nil
		},
	}
}

// writeArchive writes the archive, for its owner only, or leaves no file behind.
func writeArchive(ctx context.Context, c *client, output string, duration time.Duration, m *debugManifest) (err error) {
	f, err := os.OpenFile(output, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, f.Close())
		if err != nil {
			os.Remove(output)
		}
	}()
	zip := gzip.NewWriter(f)
	archive := tar.NewWriter(zip)
	add := func(file string, body []byte) error {
		err := archive.WriteHeader(&tar.Header{Name: "gatehouse-debug/" + file, Mode: 0o600, Size: int64(len(body)), ModTime: m.At})
		if err == nil {
			_, err = archive.Write(body)
		}
		return err
	}
	for _, p := range debugParts {
		query := p.query
		if p.path == "/debug/pprof/profile" {
			query = url.Values{"seconds": {fmt.Sprint(int(duration.Seconds()))}}
		}
		c.http.Timeout = duration + 2*askWithin
		a, err := c.do(ctx, http.MethodGet, p.path, query)
		// An agent that is not ready says so by 503.
		if err == nil && a.status != http.StatusOK && p.path != "/ready" {
			err = c.refusal(a)
		}
		if err != nil {
			m.Errors[p.file] = err.Error()
			continue
		}
		if err := add(p.file, a.body); err != nil {
			return fmt.Errorf("%s: %w", output, err)
		}
		m.Files = append(m.Files, p.file)
	}
	text, err := json.MarshalIndent(m, "", " ")
	if err == nil {
		err = add("manifest.json", append(text, '\n'))
	}
	if err = errors.Join(err, archive.Close(), zip.Close()); err != nil {
		return fmt.Errorf("%s: %w", output, err)
	}
	return nil
}
