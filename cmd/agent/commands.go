package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"syscall"

	"github.com/coreos/go-systemd/v22/activation"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/cmd/agent/internal/node"
	"gatehouse.internal/internal/takeover"
)

// gcPercent is how much garbage Go may let grow, in percent of what lives, before it
// collects. Nearly all that an agent has in its heap are endpoints, which stay, and on
// every machine of a fleet: with Go's 100 it has twice of that resident. It makes
// little garbage: with a thousand probes a second the CPU of collections that come a
// third more often can't be told from noise.
const gcPercent = 75

// runCommand runs the agent until a signal ends it.
type runCommand struct{ stderr io.Writer }

const runUsage = `
Usage: gatehouse run -config-file FILE [options]

  Runs the agent. SIGTERM and SIGINT drain it for at most drain_timeout; a
  second one ends it at once. SIGUSR1 writes the metrics to stderr. SIGHUP opens the
  access logs again and reads the configuration again, as "gatehouse reload" does:
  if it has a mistake, what runs runs on, and the log tells the mistakes.

  With -takeover the agent takes the place of the one that runs and has the same
  takeover.socket: it gets its listening sockets, and when it is ready the other one
  accepts no more and drains. If it does not become ready the other one goes on as
  before. Where none runs it starts as usual. SIGUSR2 has an agent start its program
  file anew with the same arguments and -takeover.

  A service manager that has NOTIFY_SOCKET in the environment is told how the agent
  does, and sockets that it passes (LISTEN_FDS) are for the listeners of their names. It
  is given the agent's other listening sockets to keep over a crash.

  With -supervised the process is such a manager for another one that it starts, which is
  the agent: where that crashes once it has been ready, it is started again after a
  second, with its listening sockets, and who connects meanwhile waits. Signals are passed
  on. It is for Nomad, containers, and whatever else only starts processes; an agent under
  it has no SIGUSR2.`

func (c *runCommand) Synopsis() string { return "Runs the agent" }

func (c *runCommand) Help() string {
	flags, _, _ := c.flags()
	return helpText(runUsage, flags.set)
}

func (c *runCommand) flags() (flags *configFlags, takes, supervised *bool) {
	flags = newConfigFlags("run", runUsage, c.stderr)
	supervised = flags.set.Bool("supervised", false, "run the agent in a process of its own, which is started again with its listening sockets where it crashes")
	takes = flags.set.Bool("takeover", false, "take over from the agent that runs, once this one is ready; without one start as usual")
	flags.override("takeover-socket", "takeover.socket", "the `path` of the unix socket at which a process that takes over asks")
	return flags, takes, supervised
}

func (c *runCommand) flagSet() *flag.FlagSet {
	flags, _, _ := c.flags()
	return flags.set
}

func (c *runCommand) Run(args []string) int {
	signal.Ignore(syscall.SIGPIPE) // before the first line of the log: who reads it may have gone
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent) // before the configuration is read, which makes the most garbage
	}
	flags, takes, supervised := c.flags()
	if ok, code := flags.parse(args, c.stderr); !ok {
		return code
	}
	by := bySupervisor()
	if *supervised && !by { // the agent that it starts has the same arguments
		return c.supervise(flags)
	}
	cfg, err := flags.read()
	if err != nil {
		printMistakes(c.stderr, err)
		return exitConfig
	}
	log, level, lines, recent, end := startLog(cfg.Log, c.stderr)
	defer end()
	slog.SetDefault(log) // libraries that log by package log are heard in the same form
	for _, w := range cfg.Warnings {
		log.Warn("the configuration says what may not be meant", "warning", w.Error())
	}
	var before *takeover.Taker
	if *takes {
		if before, err = askBefore(context.Background(), cfg, log); err != nil {
			log.Error("can't start", "err", err)
			return exitCode(err)
		}
	}
	a, err := newAgent(cfg, log)
	if err != nil {
		if before != nil {
			before.Refuse(context.Background(), err)
			before.CloseSockets()
		}
		log.Error("can't start", "err", err)
		return exitCode(err)
	}
	a.files.Stderr, a.read, a.level, a.recent = lines, flags.read, level, recent
	a.supervised = by
	stored, named := sortGiven(activation.Files(true))
	a.given = giveSockets(named, cfg, log)
	if before == nil {
		a.restores(stored)
	} else { // those that it gives are the same
		for _, f := range stored {
			_ = f.Close()
		}
		a.succeeds(before)
	}
	newManager(os.Getenv, log).attach(a)
	if a.loops != nil && os.Getenv("GOMAXPROCS") == "" {
		// Each loop that is busy keeps one of Go's Ps; all else has as many again.
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + a.loops.Len())
	}

	// Two signals: the first drains, the second ends at once.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)
	dump := make(chan os.Signal, 1)
	signal.Notify(dump, syscall.SIGUSR1)
	defer signal.Stop(dump)
	hangup := make(chan os.Signal, 1) // unhandled it would end the agent without a drain
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	upgrade := make(chan os.Signal, 1)
	notifyUpgrade(upgrade)
	defer signal.Stop(upgrade)

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	drain := make(chan struct{})
	var dumping, upgrading atomic.Bool
	go func() {
		for n := 0; ; {
			select {
			case <-dump:
				if !dumping.Swap(true) { // not here: stderr may be stuck
					go func() {
						a.telemetry.Dump(c.stderr)
						dumping.Store(false)
					}()
				}
			case <-upgrade:
				if upgrading.Swap(true) {
					log.Warn("a process that is to take over runs already")
					continue
				}
				go func() {
					a.successor(os.Args[1:])
					upgrading.Store(false)
				}()
			case <-hangup:
				a.files.Reopen()
				select {
				case a.hangup <- struct{}{}:
				default: // one that is about to begin will do
				}
			case s := <-signals:
				switch n++; n {
				case 1:
					log.Info("draining", "signal", s.String(), "deadline", a.cfg.Load().DrainTimeout, "closing_from", a.closingFrom())
					close(drain)
				default:
					log.Warn("ending at once", "signal", s.String())
					cancel()
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	if err := a.run(ctx, drain); err != nil {
		log.Error("ended", "err", err)
		return exitCode(err)
	}
	log.Info("ended")
	return exitOK
}

// exitCode tells a socket that can't be opened from other failures.
func exitCode(err error) int {
	if _, ok := errors.AsType[*node.BindError](err); ok {
		return exitBind
	}
	if _, ok := errors.AsType[configError](err); ok {
		return exitConfig
	}
	return exitRuntime
}

// validateCommand reads a configuration and says what is wrong with it.
type validateCommand struct{ stdout, stderr io.Writer }

const validateUsage = `
Usage: gatehouse validate -config-file FILE [options]

  Reads the configuration, and the bootstrap and TLS files that it names, as run
  would, without opening a socket. All mistakes are listed with their positions;
  the exit code is 2 if there are any. Warnings don't count.`

// Synopsis implements cli.Command.
func (c *validateCommand) Synopsis() string { return "Checks a configuration" }

// Help implements cli.Command.
func (c *validateCommand) Help() string {
	flags, _ := c.flags()
	return helpText(validateUsage, flags.set)
}

func (c *validateCommand) flags() (*configFlags, *bool) {
	flags := newConfigFlags("validate", validateUsage, c.stderr)
	return flags, flags.set.Bool("json", false, "print one JSON object, also of a configuration with mistakes")
}

func (c *validateCommand) flagSet() *flag.FlagSet {
	flags, _ := c.flags()
	return flags.set
}

// validity is what validate -json prints. It is a contract with scripts: fields are
// added, never renamed.
type validity struct {
	Valid     bool          `json:"valid"`
	Errors    config.Errors `json:"errors"`
	Warnings  config.Errors `json:"warnings"`
	Clusters  int           `json:"clusters"`
	Listeners int           `json:"listeners"`
}

// Run implements cli.Command.
func (c *validateCommand) Run(args []string) int {
	flags, asJSON := c.flags()
	if ok, code := flags.parse(args, c.stderr); !ok {
		return code
	}
	cfg, err := flags.read()
	v, code := validity{Valid: err == nil, Errors: config.Errors{}, Warnings: config.Errors{}}, exitOK
	if err != nil {
		code = exitConfig
		if errs, ok := errors.AsType[config.Errors](err); ok {
			v.Errors = errs
		}
	} else {
		v.Warnings, v.Clusters, v.Listeners = append(v.Warnings, cfg.Warnings...), len(cfg.Clusters), len(cfg.Listeners)
	}
	switch {
	case *asJSON:
		printJSON(c.stdout, v)
	case err != nil:
		printMistakes(c.stderr, err)
	default:
		for _, w := range v.Warnings {
			fmt.Fprintf(c.stderr, "warning: %v\n", w)
		}
		fmt.Fprintf(c.stdout, "the configuration is valid: %d clusters, %d listeners\n", v.Clusters, v.Listeners)
	}
	return code
}

func printJSON(w io.Writer, v any) {
	enc := json.NewEncoder(w)
	enc.SetIndent("", " ")
	enc.SetEscapeHTML(false)
	enc.Encode(v) // an error is the reader's: it has gone
}

// versionCommand prints the version.
type versionCommand struct{ stdout, stderr io.Writer }

func (c *versionCommand) Synopsis() string { return "Prints the version" }

func (c *versionCommand) Help() string {
	fs, _ := c.flags(io.Discard)
	return helpText("Usage: gatehouse version [-json]", fs)
}

func (c *versionCommand) flags(w io.Writer) (*flag.FlagSet, *bool) {
	fs := newFlagSet("version", w, c.Help)
	return fs, fs.Bool("json", false, "print one JSON object")
}

func (c *versionCommand) flagSet() *flag.FlagSet {
	fs, _ := c.flags(io.Discard)
	return fs
}

func (c *versionCommand) Run(args []string) int {
	fs, asJSON := c.flags(c.stderr)
	if ok, code := parseFlags(fs, args, 0); !ok {
		return code
	}
	if *asJSON {
		json.NewEncoder(c.stdout).Encode(map[string]string{
			"version": versionText(), "go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH,
		})
		return exitOK
	}
	fmt.Fprintf(c.stdout, "gatehouse %s (%s %s/%s)\n", versionText(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return exitOK
}
