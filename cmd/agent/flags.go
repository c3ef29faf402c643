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
	"time"

	"gatehouse.internal/cmd/agent/internal/accesslog"
	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/forwarder"
	"gatehouse.internal/internal/logfile"
)

// configFlags are the flags by which a command finds its configuration.
type configFlags struct {
	set   *flag.FlagSet
	paths []string
	flags []config.Flag
}

func newConfigFlags(name string, stderr io.Writer) *configFlags {
	c := &configFlags{set: flag.NewFlagSet(name, flag.ContinueOnError)}
	c.set.SetOutput(stderr)
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

// load parses args and reads the configuration. On an error it has said why.
func (c *configFlags) load(args []string, stderr io.Writer) (*config.Config, int) {
	if err := c.set.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil, exitOK
	} else if err != nil {
		return nil, exitConfig
	}
	if c.set.NArg() > 0 {
		fmt.Fprintf(stderr, "%s takes no arguments, got %q: name files with -config-file\n", c.set.Name(), c.set.Args())
		return nil, exitConfig
	}
	if len(c.paths) == 0 {
		fmt.Fprintf(stderr, "%s needs -config-file or -config-dir\n", c.set.Name())
		return nil, exitConfig
	}
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	opts := loadOptions()
	opts.Paths, opts.Hostname, opts.Env, opts.Flags = c.paths, host, os.LookupEnv, c.flags
	cfg, err := config.Load(opts)
	if err != nil {
		if errs, ok := errors.AsType[config.Errors](err); ok {
			errs.Print(stderr)
			plural := "s"
			if len(errs) == 1 {
				plural = ""
			}
			fmt.Fprintf(stderr, "%d mistake%s in the configuration\n", len(errs), plural)
		} else {
			fmt.Fprintln(stderr, err)
		}
		return nil, exitConfig
	}
	return cfg, exitOK
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

// newLogger returns the logger that cfg asks for.
func newLogger(cfg config.Log, w io.Writer) *slog.Logger {
	opts := &slog.HandlerOptions{Level: cfg.Level}
	if cfg.JSON {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

// endLogWithin bounds how long the end of the log waits for who reads it.
const endLogWithin = 2 * time.Second

// startLog returns the logger that cfg asks for, which makes nobody wait for
// stderr: event loops log too, and a pipe that nobody reads must not stop them.
// end writes what is left, within bounds.
func startLog(cfg config.Log, stderr io.Writer) (log *slog.Logger, lines *logfile.Writer, end func()) {
	lines = logfile.NewWriter(logfile.Config{Name: logfile.Stderr, Out: stderr, Lost: func(s logfile.Stats) {
		log.Warn("log lines were lost, stderr does not take them", "lines", s.Lost)
	}})
	log = newLogger(cfg, lines)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		lines.Run(ctx)
		close(ended)
	}()
	return log, lines, func() {
		cancel()
		select {
		case <-ended:
		case <-time.After(endLogWithin):
		}
	}
}
