package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"gatehouse.internal/cmd/agent/internal/config"
)

// demoCommand runs the whole agent against a control plane and backends of its
// own, and shows what happens when they change.
type demoCommand struct{ stdout, stderr io.Writer }

func (c *demoCommand) Synopsis() string { return "Shows the agent at work" }

func (c *demoCommand) Help() string {
	fs, _ := c.flags(io.Discard)
	return helpText(`
Usage: gatehouse demo [options]

  Starts, in this process and on loopback, a go-control-plane ADS server, three
  TCP backends, the agent as that server's client, and clients that connect
  through the agent. Then a backend stops, one is added and one removed. The
  agent is the one that "run" runs, over the same connections.`, fs)
}

func (c *demoCommand) flagSet() *flag.FlagSet {
	fs, _ := c.flags(io.Discard)
	return fs
}

type demoOptions struct {
	duration time.Duration
	json     bool
	verbose  bool

	// A test's: the time between changes, and the rounds to play.
	act    time.Duration
	rounds int
}

func (c *demoCommand) flags(w io.Writer) (*flag.FlagSet, *demoOptions) {
	o := new(demoOptions)
	fs := newFlagSet("demo", w, c.Help)
	fs.DurationVar(&o.duration, "duration", 0, "end by itself after this time, at least 5s; 0 repeats until interrupted")
	fs.BoolVar(&o.json, "json", false, "print one JSON object at the end in place of the story; needs -duration")
	fs.BoolVar(&o.verbose, "v", false, "show the agent's own log on stderr")
	return fs, o
}

// minDemo leaves time for each act.
const minDemo = 5 * time.Second

// demoCycle is how long a round of a demo without -duration takes.
const demoCycle = 20 * time.Second

func (c *demoCommand) Run(args []string) int {
	fs, o := c.flags(c.stderr)
	switch err := fs.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		return exitConfig
	case fs.NArg() > 0 || o.duration != 0 && o.duration < minDemo || o.json && o.duration == 0:
		fmt.Fprintf(c.stderr, "demo takes no arguments, -duration is 0 or at least %s, and -json needs -duration\n", minDemo)
		return exitConfig
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	defer context.AfterFunc(ctx, stop)() // a second signal ends at once
	d := &demo{opts: *o, say: func(format string, args ...any) { fmt.Fprintf(c.stdout, format+"\n", args...) }}
	if o.json {
		d.say = func(string, ...any) {}
	}
	log := slog.New(slog.DiscardHandler)
	if o.verbose {
		log = slog.New(slog.NewTextHandler(c.stderr, nil))
	}
	report, err := d.run(ctx, log)
	if err != nil {
		fmt.Fprintln(c.stderr, "demo:", err)
		return exitCode(err)
	}
	if o.json {
		json.NewEncoder(c.stdout).Encode(report)
	}
	if report.Failed > 0 {
		return exitRuntime
	}
	return exitOK
}

// demoReport is what -json prints.
type demoReport struct {
	// Connections were made by the clients. Failed of them got no backend;
	// FailedAfterDetection are those that began after the stopped backend was
	// noticed. Cut are those that the stopped backend already had.
	Connections          int            `json:"connections"`
	Failed               int            `json:"failed"`
	FailedAfterDetection int            `json:"failed_after_detection"`
	Cut                  int            `json:"cut"`
	DetectionMS          int64          `json:"detection_ms"`
	Endpoints            []demoEndpoint `json:"endpoints"`
	Selectors            []demoSelector `json:"selectors"`
	Probes               demoProbes     `json:"probes"`
}

type demoEndpoint struct {
	Address     string `json:"address"`
	Connections int    `json:"connections"`
	Healthy     bool   `json:"healthy"`
}

type demoSelector struct {
	Cluster    string `json:"cluster"`
	Name       string `json:"name"`
	Policy     string `json:"policy"`
	Generation uint64 `json:"generation"`
	Rebuilds   uint64 `json:"rebuilds"`
	Coalesced  uint64 `json:"coalesced"`
}

// demoProbes: Targets are probed, each once for all Views that list it.
type demoProbes struct {
	Targets int `json:"targets"`
	Views   int `json:"views"`
}

// The configuration of the demo's agent: as an operator would write it.
const demoConfig = `
node  { id = "demo" }
admin { address = "127.0.0.1:0" }

xds {
  server_uri = %q
  clusters   = true
}

# Two selectors over one view. The control plane says who the endpoints are.
cluster "web" {
  discovery "eds" {}
  health_check "tcp" {
    interval            = "200ms"
    timeout             = "100ms"
    unhealthy_threshold = 2
    healthy_threshold   = 1
  }
  selector "sticky" { policy = "ring_hash" }
  selector "spread" { policy = "least_weight" }
}

listener "sticky" {
  address  = "127.0.0.1:0"
  cluster  = "web"
  selector = "sticky"
  hash_on  = "source_ip"
}

listener "spread" {
  address  = "127.0.0.1:0"
  cluster  = "web"
  selector = "spread"
}

# A cluster that comes whole from the control plane, on the same endpoints with
# the same check: its probes are shared.
listener "api" {
  address = "127.0.0.1:0"
  cluster = "api"
}
`

// demo is one performance.
type demo struct {
	opts     demoOptions
	say      func(format string, args ...any)
	agent    *agent
	control  *controlPlane
	clients  *demoClients
	backends []*demoBackend // every one that ever was
	start    func(part string, run func(context.Context) error)
	report   demoReport
}

// run sets the stage, plays, and strikes it again.
func (d *demo) run(ctx context.Context, log *slog.Logger) (report *demoReport, err error) {
	// An interrupt ends the play; the stage stands until the ending is told.
	stage, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	play, interrupt := context.WithCancel(stage)
	defer interrupt()
	defer context.AfterFunc(ctx, interrupt)()
	d.start = func(part string, run func(context.Context) error) {
		wg.Go(func() {
			if err := run(stage); err != nil && stage.Err() == nil {
				cancel(fmt.Errorf("%s: %w", part, err))
			}
		})
	}

	for range 3 {
		if err := d.addBackend(); err != nil {
			return nil, err
		}
	}
	d.control, err = newControlPlane()
	if err != nil {
		return nil, err
	}
	if err := d.control.publish(d.backends); err != nil {
		return nil, err
	}
	d.start("control plane", d.control.run)
	d.say("control plane: go-control-plane ADS on %s, clusters and endpoints for node \"demo\"", d.control.addr())

	dir, err := os.MkdirTemp("", "gatehouse-demo-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "gatehouse.hcl")
	if err := os.WriteFile(file, fmt.Appendf(nil, demoConfig, d.control.addr()), 0o600); err != nil {
		return nil, err
	}
	cfg, err := config.Load(config.Options{Paths: []string{file}, Hostname: "demo"})
	if err != nil {
		return nil, err
	}
	d.agent, err = newAgent(cfg, log)
	if err != nil {
		return nil, err
	}
	d.clients = newDemoClients()
	d.agent.onDone = d.clients.ended
	drain := make(chan struct{})
	agentDone := make(chan struct{})
	d.start("agent", func(ctx context.Context) error {
		defer close(agentDone)
		return d.agent.run(ctx, drain)
	})
	if err := d.until(play, "the agent is ready", func() bool { state, _ := d.agent.state(); return state == "LIVE" }); err != nil {
		return nil, err
	}
	d.say("agent: ready; open http://%s/ (try /clusters, /stats/prometheus)", d.agent.adminAddr())

	d.clients.targets = d.agent.listenerAddrs()
	d.start("clients", d.clients.run)
	if err := d.play(play); stage.Err() != nil {
		return nil, context.Cause(stage)
	} else if err != nil && play.Err() == nil {
		return nil, err
	}
	d.clients.stop()
	d.tell()
	// The agent's word on a connection may come after the client's.
	if err := d.until(stage, "the agent has told of every broken connection", d.clients.allTold); err != nil {
		return nil, err
	}
	report = d.finish()

	close(drain)
	<-agentDone
	return report, nil
}

// play changes the world, act by act.
func (d *demo) play(ctx context.Context) error {
	act := cmp.Or(d.opts.act, d.opts.duration/4, demoCycle/4)
	for round := 1; ; round++ {
		if err := d.wait(ctx, act); err != nil {
			return err
		}
		if err := d.stopOne(ctx); err != nil {
			return err
		}
		if err := d.wait(ctx, act); err != nil {
			return err
		}
		if err := d.addOne(ctx); err != nil {
			return err
		}
		if err := d.wait(ctx, act); err != nil {
			return err
		}
		if err := d.removeOne(ctx); err != nil {
			return err
		}
		if err := d.wait(ctx, act); err != nil {
			return err
		}
		if d.opts.duration > 0 || round == d.opts.rounds {
			return nil
		}
		if err := d.reviveOne(ctx); err != nil {
			return err
		}
	}
}

// wait lets clients connect for a while and then tells the shares.
func (d *demo) wait(ctx context.Context, act time.Duration) error {
	t := time.NewTimer(act)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	d.tell()
	return nil
}

// until polls what the dumps show, as an operator would.
func (d *demo) until(ctx context.Context, what string, ok func() bool) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(20 * time.Second)
	defer limit.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-limit.C:
			return fmt.Errorf("gave up waiting until %s", what)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
