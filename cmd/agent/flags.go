package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"gatehouse.internal/cmd/agent/internal/accesslog"
	"gatehouse.internal/cmd/agent/internal/admin/page"
	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/forwarder"
	"gatehouse.internal/internal/lastgood"
	"gatehouse.internal/internal/logfile"
	"gatehouse.internal/internal/loglimit"
)

// configFlags are the flags by which a command finds its configuration.
type configFlags struct {
	set   *flag.FlagSet
	paths []string
	flags []config.Flag
}

func newConfigFlags(name, usage string, stderr io.Writer) *configFlags {
	c := new(configFlags)
	c.set = newFlagSet(name, stderr, func() string { return helpText(usage, c.set) })
	path := func(s string) error {
		c.paths = append(c.paths, s)
		return nil
	}
	c.set.Func("config-file", "read this `file`, HCL or (if it ends in .json) JSON; may be given several times", path)
	c.set.Func("config-dir", "read the *.hcl and *.json files of this `directory`, sorted by name", path)
	c.override("log-level", "log.level", "debug, info, warn or error")
	c.override("http-addr", "admin.address", "where the admin interface listens, as IP:port or unix:///path")
	c.set.BoolFunc("log-json", "log JSON, one object a line", func(s string) error {
		on, err := strconv.ParseBool(s)
		c.flags = append(c.flags, config.Flag{Name: "-log-json", Path: "log.json", Value: strconv.FormatBool(on)})
		return err
	})
	return c
}

// override makes a flag of an argument of the configuration.
func (c *configFlags) override(name, path, usage string) {
	c.set.Func(name, usage, func(s string) error {
		c.flags = append(c.flags, config.Flag{Name: "-" + name, Path: path, Value: s})
		return nil
	})
}

// parse parses args. If there is nothing to be done it has said why, and the code
// counts.
func (c *configFlags) parse(args []string, stderr io.Writer) (ok bool, code int) {
	if ok, code := parseFlags(c.set, args, 0); !ok {
		return false, code
	}
	if len(c.paths) == 0 {
		fmt.Fprintf(stderr, "%s needs -config-file or -config-dir\n", c.set.Name())
		c.set.Usage()
		return false, exitConfig
	}
	return true, exitOK
}

// read reads the configuration, each time anew. It may be called from anywhere
// once parse has returned.
func (c *configFlags) read() (*config.Config, error) {
	opts := loadOptions()
	opts.Paths, opts.Hostname, opts.Env, opts.Flags = c.paths, hostname(), os.LookupEnv, c.flags
	cfg, err := config.Load(opts)
	if err == nil && isIdle(cfg) {
		cfg.Warnings = append(cfg.Warnings, config.Error{
			File: strings.Join(c.paths, ", "), Message: "there is nothing to do: no cluster and no listener, and nobody is asked for any",
			Hint: "define them, or set clusters and listeners in xds, or listeners in consul",
		})
	}
	return cfg, err
}

// isIdle reports whether an agent of that configuration does nothing.
func isIdle(cfg *config.Config) bool {
	return len(cfg.Clusters)+len(cfg.Listeners) == 0 && !cfg.XDS.Clusters && !cfg.XDS.Listeners && !cfg.Consul.Listeners
}

func hostname() string {
	host, err := os.Hostname()
	if err != nil {
		return "localhost"
	}
	return host
}

// printMistakes writes what read says, if that is an error.
func printMistakes(w io.Writer, err error) {
	errs, ok := errors.AsType[config.Errors](err)
	if !ok {
		fmt.Fprintln(w, err)
		return
	}
	errs.Print(w)
	fmt.Fprintf(w, "%s in the configuration\n", mistakes(len(errs)))
}

func mistakes(n int) string {
	if n == 1 {
		return "1 mistake"
	}
	return fmt.Sprintf("%d mistakes", n)
}

// newFlagSet returns flags that print the command's help where one is wrong.
func newFlagSet(name string, w io.Writer, help func() string) *flag.FlagSet {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(w)
	fs.Usage = func() { fmt.Fprint(w, "\n"+help()) }
	return fs
}

// parseFlags parses args, of which at most most may stand after the flags. If
// something is wrong it has said so, with the help, and the code counts.
func parseFlags(fs *flag.FlagSet, args []string, most int) (ok bool, code int) {
	switch err := fs.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return false, exitOK
	case err != nil:
		return false, exitConfig
	case fs.NArg() <= most:
		return true, exitOK
	case most == 0:
		fmt.Fprintf(fs.Output(), "%s takes no arguments, got %q\n", fs.Name(), fs.Args())
	default:
		fmt.Fprintf(fs.Output(), "%s takes no more arguments than %d, got %q; flags come first\n", fs.Name(), most, fs.Args())
	}
	fs.Usage()
	return false, exitConfig
}

// loadOptions returns who looks at the values that package config can't judge.
func loadOptions() config.Options {
	return config.Options{
		Bootstrap: func(x config.XDS) error {
			_, err := loadBootstrap(x)
			return err
		},
		XDSServer:  func(s config.XDSServer) error { return xdsServer(s, "").Check() },
		TLSFiles:   true,
		SocketMark: forwarder.CheckMark,
		SocketOwner: func(user, group string) error {
			return forwarder.Socket{User: user, Group: group}.CheckOwner()
		},
		LogFiles: true,
		StateDir: lastgood.Check,
		Consul:   func(c config.Consul) error { return consulConfig(c).Validate() },
		Register: checkRegistration,
		Query:    func(d config.Discovery) error { return consulQuery(d).Validate() },
		DNS:      checkDNS,
		Name:     checkName,
		Searched: func(c config.DNS, d config.Discovery) []string {
			cfg, err := dnsConfig(c)
			if err != nil { // it is told of
				return nil
			}
			return cfg.Names(d.HostName)
		},
		AccessLog: func(format string) (unknown []string, err error) {
			_, unknown, err = accesslog.Parse(format)
			return unknown, err
		},
	}
}

// newLogger returns a logger of the form that cfg asks for, which obeys level. Its lines
// have a rate, by message, so that nobody who makes the agent log fills a disk.
func newLogger(cfg config.Log, level slog.Leveler, w io.Writer) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level}
	if cfg.JSON {
		return slog.New(loglimit.Handler(slog.NewJSONHandler(w, opts)))
	}
	return slog.New(loglimit.Handler(slog.NewTextHandler(w, opts)))
}

// endLogWithin bounds how long the end of the log waits for who reads it.
const endLogWithin = 2 * time.Second

// startLog returns the logger that cfg asks for, which makes nobody wait for
// stderr: event loops log too, and a pipe that nobody reads must not stop them.
// It obeys level, which begins as cfg's; recent has its newest lines, and end writes
// what is left, within bounds.
func startLog(cfg config.Log, stderr io.Writer) (log *slog.Logger, level *slog.LevelVar, lines *logfile.Writer, recent *page.Log, end func()) {
	level = new(slog.LevelVar)
	level.Set(cfg.Level)
	lines = logfile.NewWriter(logfile.Config{Name: logfile.Stderr, Out: stderr, Lost: func(s logfile.Stats) {
		log.Warn("log lines were lost, stderr does not take them", "lines", s.Lost)
	}})
	recent = new(page.Log)
	log = slog.New(recent.Tee(newLogger(cfg, level, lines).Handler()))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		lines.Run(ctx)
		close(ended)
	}()
	return log, level, lines, recent, func() {
		cancel()
		select {
		case <-ended:
		case <-time.After(endLogWithin):
		}
	}
}
