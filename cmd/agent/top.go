package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	tea "github.com/charmbracelet/bubbletea"
	"github.com/mattn/go-isatty"

	"gatehouse.internal/forwarder"
)

// topCommand shows a running agent live.
func topCommand(stdout io.Writer) *askCommand {
	var every time.Duration
	return &askCommand{
		name: "top", synopsis: "Shows a running agent live",
		usage: `
Usage: gatehouse top [options]

  Shows the clusters and endpoints of a running agent in the terminal, and how they
  change: connections a second, which are open, how long half of the last connects of a
  cluster and 99 of 100 took at most (P50, P99), latency of endpoints where an adaptive
  selector has learnt it, health, rebuilds and sources. For scripts there are "clusters -json" and
  "endpoints -json".

  Keys: tab or e endpoints or clusters, s the next column to sort by, r the other way
  round, / filter by a part of a name (enter keeps it, esc drops it), p or space pause,
  arrows, j, k, page up and down scroll, q quit.`,
		flags: func(fs *flag.FlagSet) {
			fs.DurationVar(&every, "interval", time.Second, "how often the agent is asked, 100ms to 1m")
		},
		check: func([]string) error {
			if every < 100*time.Millisecond || every > time.Minute {
				return fmt.Errorf("-interval %v: want 100ms to 1m", every)
			}
			return nil
		},
		run: func(ctx context.Context, c *client, _ []string) (int, error) {
			first := askTop(ctx, c)()
			if err := first.(topAnswer).err; err != nil { // before the screen is taken
				return exitRuntime, err
			}
			if f, ok := stdout.(*os.File); !ok || !isatty.IsTerminal(f.Fd()) {
				return exitRuntime, errors.New(`top needs a terminal: ask by "gatehouse clusters -json" and "gatehouse endpoints -json" otherwise`)
			}
			m := newTopModel(c.at.String(), every, askTop(ctx, c))
			next, _ := m.Update(first)
			_, err := tea.NewProgram(next, tea.WithContext(ctx), tea.WithAltScreen(), tea.WithOutput(stdout)).Run()
			if err != nil {
				return exitRuntime, err
			}
			return exitOK, nil
		},
	}
}

// topAnswer is what the agent says, or why it doesn't.
type topAnswer struct {
	at    time.Time
	state topState
	err   error
}

// topState is what top reads of /clusters.
type topState struct {
	Clusters []topCluster `json:"cluster_statuses"`
}

type topCluster struct {
	Name  string    `json:"name"`
	Hosts []topHost `json:"host_statuses"`
	More  struct {
		Origin      string `json:"origin"`
		Unsupported string `json:"unsupported"`
		Ready       int    `json:"ready"`
		Active      int64  `json:"cx_active"`
		Total       uint64 `json:"cx_total"`
		Failed      uint64 `json:"cx_connect_fail"`
		Generation  uint64 `json:"generation"`
		Connect     struct {
			Buckets []uint64 `json:"buckets"`
		} `json:"connect_time"`
		Selectors []struct {
			Name     string `json:"name"`
			Policy   string `json:"policy"`
			Rebuilds uint64 `json:"rebuilds"`
			Failed   uint64 `json:"failed"`
		} `json:"selectors"`
		Source struct {
			State     string    `json:"state"`
			Confirmed time.Time `json:"confirmed"`
			Blocks    []struct {
				Kind string `json:"kind"`
			} `json:"blocks"`
		} `json:"source"`
	} `json:"gatehouse"`
}

// connects returns how long connects have taken so far.
func (c *topCluster) connects() (n forwarder.LatencyCounts) {
	copy(n.Buckets[:], c.More.Connect.Buckets)
	return n
}

type topHost struct {
	hostDump
	Stats []struct {
		Name  string `json:"name"`
		Value uint64 `json:"value,string"`
	} `json:"stats"`
}

func (h *topHost) stat(name string) uint64 {
	for _, s := range h.Stats {
		if s.Name == name {
			return s.Value
		}
	}
	return 0
}

// askTop returns a command that asks the agent.
func askTop(ctx context.Context, c *client) tea.Cmd {
	return func() tea.Msg {
		a := topAnswer{at: time.Now()}
		a.err = c.getJSON(ctx, "/clusters", nil, &a.state)
		return a
	}
}
