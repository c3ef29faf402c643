package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// patience is how long is waited for an agent.
const patience = time.Minute

// agent is a running process.
type agent struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended

	mu   sync.Mutex
	log  bytes.Buffer
	said map[string]map[string]any // the newest line by its message, and for listeners their name
	more chan struct{}             // one slot: something was said
}

// start starts an agent. sockets are for the listeners of these names.
func start(program, file string, flags []string, names []string, sockets ...*os.File) (*agent, error) {
	// The shell becomes the agent, and so it knows the process's number before.
	args := append([]string{"-c", `LISTEN_PID=$$ exec "$0" "$@"`, program, "run", "-config-file", file, "-log-json"}, flags...)
	a := &agent{cmd: exec.Command("/bin/sh", args...), done: make(chan struct{}), said: make(map[string]map[string]any), more: make(chan struct{}, 1)}
	a.cmd.Env = os.Environ()
	if len(sockets) > 0 {
		a.cmd.Env = append(a.cmd.Env, fmt.Sprintf("LISTEN_FDS=%d", len(sockets)), "LISTEN_FDNAMES="+strings.Join(names, ":"))
		a.cmd.ExtraFiles = sockets
	}
	stderr, err := a.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := a.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(a.done)
		a.read(stderr)
		_ = a.cmd.Wait() // the state says how it ended
	}()
	return a, nil
}

func (a *agent) read(r io.Reader) {
	for lines := bufio.NewScanner(r); lines.Scan(); {
		var entry map[string]any
		_ = json.Unmarshal(lines.Bytes(), &entry) // what is no entry is kept as text
		a.mu.Lock()
		a.log.Write(append(lines.Bytes(), '\n'))
		if msg, ok := entry["msg"].(string); ok {
			if name, ok := entry["listener"].(string); ok {
				msg += " " + name
			}
			a.said[msg] = entry
		}
		a.mu.Unlock()
		select {
		case a.more <- struct{}{}:
		default:
		}
	}
}

// await waits until the agent has logged a message.
func (a *agent) await(ctx context.Context, msg string) (map[string]any, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("the agent does not say %q", msg))
	defer cancel()
	for {
		a.mu.Lock()
		entry := a.said[msg]
		a.mu.Unlock()
		if entry != nil {
			return entry, nil
		}
		select {
		case <-a.more:
		case <-a.done:
			return nil, fmt.Errorf("the agent has ended with %v:\n%s", a.cmd.ProcessState, a.output())
		case <-ctx.Done():
			return nil, fmt.Errorf("%w:\n%s", context.Cause(ctx), a.output())
		}
	}
}

func (a *agent) output() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.log.String()
}

// ended waits for the end, which must be a good one.
func (a *agent) ended(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errors.New("the agent does not end"))
	defer cancel()
	select {
	case <-a.done:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if a.cmd.ProcessState.ExitCode() != 0 || strings.Contains(a.output(), "DATA RACE") {
		return fmt.Errorf("the agent has ended with %v:\n%s", a.cmd.ProcessState, a.output())
	}
	return nil
}

// world is what the restarts of a mode need.
type world struct {
	settings
	file    string
	state   string
	running *agent
	before  []*agent // that drain
	sockets []*os.File
	names   []string
}

// measure makes the restarts of a mode under load.
func measure(ctx context.Context, s settings, mode, dir string) (*result, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	w := &world{settings: s, file: filepath.Join(dir, "gatehouse.hcl"), state: filepath.Join(dir, "state")}
	defer w.kill()
	var backends []string
	for range 8 {
		b, err := startBackend()
		if err != nil {
			return nil, err
		}
		defer b.stop()
		backends = append(backends, fmt.Sprintf("%q", b.ln.Addr()))
	}
	l := &load{rate: s.rate}
	address, local := "127.0.0.1:0", filepath.Join(dir, "web.sock")
	if mode == "activation" {
		ln, err := net.Listen("tcp", address)
		if err != nil {
			return nil, err
		}
		defer ln.Close()
		f, err := ln.(*net.TCPListener).File()
		if err != nil {
			return nil, err
		}
		defer f.Close()
		address, w.sockets, w.names = ln.Addr().String(), []*os.File{f}, []string{"web"}
	} else {
		l.unix = local
	}
	config := fmt.Sprintf(`admin { address = "127.0.0.1:0" }
state_dir = %q
drain_timeout = %q
cluster "web" {
  discovery "static" { endpoints = [%s] }
  max_connect_attempts = 3
  health_check "tcp" {}
}
listener "web" {
  address = %q
  cluster = "web"
}
listener "local" {
  address = "unix://%s"
  cluster = "web"
}
`, w.state, s.drain, strings.Join(backends, ", "), address, local)
	if err := os.WriteFile(w.file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	var err error
	if w.running, err = start(s.agent, w.file, nil, w.names, w.sockets...); err != nil {
		return nil, err
	}
	if _, err = w.running.await(ctx, "ready"); err != nil {
		return nil, err
	}
	at, err := w.running.await(ctx, "listening web")
	if err != nil {
		return nil, err
	}
	l.tcp, _ = at["address"].(string)

	loading, end := context.WithCancel(ctx)
	ran := make(chan struct{})
	go func() {
		l.run(loading)
		close(ran)
	}()
	err = w.restartAll(ctx, mode, l)
	end()
	<-ran
	if err == nil {
		err = w.endAll(ctx)
	}
	r := l.result()
	r.Mode, r.Rate, r.Restarts = mode, s.rate, s.restarts
	return r, err
}

// restartAll makes the restarts, one after the other.
func (w *world) restartAll(ctx context.Context, mode string, l *load) error {
	tick := time.NewTicker(w.every)
	defer tick.Stop()
	for range w.restarts {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		var err error
		if mode == "takeover" {
			l.hold(w.held, w.drain/2) // the first deadline, with the default of drain_spread
			err = w.takeover(ctx)
		} else {
			l.hold(w.held, min(w.drain/2, 500*time.Millisecond)) // nobody is served before they have ended
			err = w.activation(ctx)
		}
		if err != nil {
			return err
		}
	}
	select {
	case <-tick.C: // the last one has some load too
	case <-ctx.Done():
	}
	return nil
}

// takeover replaces the agent by one that takes over.
func (w *world) takeover(ctx context.Context) error {
	next, err := start(w.agent, w.file, []string{"-takeover"}, nil)
	if err != nil {
		return err
	}
	w.before = append(w.before, w.running)
	w.running = next
	_, err = next.await(ctx, "has taken over")
	return err
}

// activation ends the agent and starts the next one with the same socket.
func (w *world) activation(ctx context.Context) error {
	err := w.running.cmd.Process.Signal(syscall.SIGTERM)
	if err == nil {
		err = w.running.ended(ctx)
	}
	if err != nil {
		return err
	}
	if w.running, err = start(w.agent, w.file, nil, w.names, w.sockets...); err != nil {
		return err
	}
	_, err = w.running.await(ctx, "ready")
	return err
}

// endAll ends the agent, and waits for those before, which end by themselves.
func (w *world) endAll(ctx context.Context) error {
	err := w.running.cmd.Process.Signal(syscall.SIGTERM)
	for _, a := range append(w.before, w.running) {
		err = errors.Join(err, a.ended(ctx))
	}
	return err
}

func (w *world) kill() {
	for _, a := range append(w.before, w.running) {
		if a != nil {
			_ = a.cmd.Process.Kill() // it may have ended
			<-a.done
		}
	}
}
