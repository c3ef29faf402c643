//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"gatehouse.internal/test/bench/forward"
)

// agent is the agent under test.
type agent struct {
	w   *world
	cmd *exec.Cmd
	p   *forward.Program

	admin  int
	client *http.Client // which keeps its connection: it counts in the base too

	mu   sync.Mutex
	part []byte // a line that has not ended
	raw  bytes.Buffer
	log  []map[string]any
}

// run starts the agent and waits until it is ready.
func (w *world) runAgent(hcl string, env ...string) *agent {
	w.Helper()
	file := filepath.Join(w.dir, "gatehouse.hcl")
	w.check(os.WriteFile(file, []byte("admin { address = \"127.0.0.1:0\" }\n"+hcl), 0o600))
	a := &agent{w: w, client: new(http.Client)}
	path := w.spec.Agent
	if w.spec.Skewed != "" {
		path = w.spec.Skewed
	}
	a.cmd = exec.Command(path, "run", "-config-file", file, "-log-json")
	a.cmd.Env = append(os.Environ(), env...)
	a.cmd.Stderr = a
	var err error
	a.p, err = forward.Start(a.cmd)
	w.check(err)
	w.Cleanup(func() { a.p.Stop() })
	w.check(a.p.Until(w.ctx, func() error {
		e := a.logged("admin interface", "", "")
		if e == nil {
			return fmt.Errorf("it has not logged its admin address")
		}
		_, port, err := net.SplitHostPort(e["address"].(string))
		if err != nil {
			return err
		}
		a.admin, err = strconv.Atoi(port)
		if err != nil {
			return err
		}
		code, body, err := a.ask("/ready")
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("%s", body)
		}
		return err
	}))
	return a
}

// Write implements io.Writer for the log, which it looks at line by line.
func (a *agent) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.raw.Write(p)
	a.part = append(a.part, p...)
	for {
		line, rest, whole := bytes.Cut(a.part, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		var e map[string]any
		if json.Unmarshal(line, &e) == nil {
			e[cameAt] = time.Now()
			a.log = append(a.log, e)
		}
		a.part = rest
	}
}

// logged returns the newest entry of that message with that attribute, or nil.
func (a *agent) logged(msg, key, value string) map[string]any {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, e := range slices.Backward(a.log) {
		if e["msg"] == msg && (key == "" || e[key] == value) {
			return e
		}
	}
	return nil
}

// cameAt is the key of when an entry has come, as a time.Time.
const cameAt = "came at"

// told returns when the first entry of that message since a time has come, or the zero
// time. An empty message is any entry above level INFO.
func (a *agent) told(msg string, since time.Time) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, e := range a.log {
		at := e[cameAt].(time.Time)
		if !at.Before(since) && (e["msg"] == msg || msg == "" && e["level"] != "INFO" && e["level"] != "DEBUG") {
			return at
		}
	}
	return time.Time{}
}

// lines counts the lines of the log whose message begins so.
func (a *agent) lines(msg string) (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, e := range a.log {
		if text, ok := e["msg"].(string); ok && strings.HasPrefix(text, msg) {
			n++
		}
	}
	return n
}

func (a *agent) output() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.raw.String()
}

// listener returns the address of a listener, once the agent has told it.
func (a *agent) listener(name string) string {
	a.w.Helper()
	var e map[string]any // the log may be behind
	a.w.until(fmt.Sprintf("the agent listens as %q", name), func() bool { e = a.logged("listening", "listener", name); return e != nil })
	return e["address"].(string)
}

// ask asks the admin interface.
func (a *agent) ask(path string) (code int, body []byte, err error) {
	req, err := http.NewRequestWithContext(a.w.ctx, "GET", fmt.Sprintf("http://127.0.0.1:%d%s", a.admin, path), nil)
	if err != nil {
		return 0, nil, err
	}
	r, err := a.client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer r.Body.Close()
	body, err = io.ReadAll(r.Body)
	return r.StatusCode, body, err
}

// metrics returns all metrics by their names with labels.
func (a *agent) metrics() map[string]float64 {
	a.w.Helper()
	m, err := forward.Scrape(a.w.ctx, a.admin)
	a.w.check(err)
	return m
}

func (a *agent) metric(name string) float64 { a.w.Helper(); return a.metrics()[name] }

// cluster is what the agent says of one.
type cluster struct {
	ready      []string // sorted
	state, err string
}

func (a *agent) cluster(name string) (c cluster) {
	a.w.Helper()
	_, body, err := a.ask("/clusters?format=json")
	a.w.check(err)
	var all struct {
		ClusterStatuses []struct {
			Name         string
			HostStatuses []struct {
				Address struct {
					SocketAddress struct {
						Address   string
						PortValue int `json:"port_value"`
					} `json:"socket_address"`
				}
				Gatehouse struct{ Ready bool }
			} `json:"host_statuses"`
			Gatehouse struct {
				Source struct{ State, Error string }
			}
		} `json:"cluster_statuses"`
	}
	a.w.check(json.Unmarshal(body, &all))
	for _, s := range all.ClusterStatuses {
		if s.Name != name {
			continue
		}
		c.state, c.err = s.Gatehouse.Source.State, s.Gatehouse.Source.Error
		for _, h := range s.HostStatuses {
			if h.Gatehouse.Ready {
				c.ready = append(c.ready, net.JoinHostPort(h.Address.SocketAddress.Address, strconv.Itoa(h.Address.SocketAddress.PortValue)))
			}
		}
	}
	slices.Sort(c.ready)
	return c
}

// serves reports whether these are the endpoints of "web" that are ready.
func (a *agent) serves(backends ...*child) bool {
	a.w.Helper()
	var want []string
	for _, b := range backends {
		want = append(want, b.addr)
	}
	slices.Sort(want)
	return slices.Equal(a.cluster("web").ready, want)
}

// usage is what it takes at present. The request that asks for its goroutines counts.
func (a *agent) usage() (u usage) {
	a.w.Helper()
	m, err := forward.Scrape(context.WithoutCancel(a.w.ctx), a.admin)
	a.w.check(err)
	u.Goroutines = int(m["go_goroutines"])
	dir := fmt.Sprintf("/proc/%d/fd", a.cmd.Process.Pid)
	fds, err := os.ReadDir(dir)
	a.w.check(err)
	for _, fd := range fds {
		to, err := os.Readlink(filepath.Join(dir, fd.Name()))
		if err == nil && !strings.HasPrefix(to, "pipe:") {
			u.Descriptors++
		}
	}
	u.Resident, err = a.p.Resident()
	a.w.check(err)
	return u
}

// web is the cluster and the listener that most faults have. discovery and more are
// blocks of the cluster, in HCL.
func web(discovery, more string) string {
	return fmt.Sprintf(`
cluster "web" {
%s
  connect_timeout = "1s"
  tcp_keepalive {
    keepalive_time     = "1s"
    keepalive_interval = "1s"
    user_timeout       = "3s"
  }
%s
}
listener "web" {
  address = "127.0.0.1:0"
  cluster = "web"
}
`, discovery, more)
}

// checked is the health check of most faults: an endpoint that is silent is out after
// two intervals and two timeouts at most.
const checked = `
  health_check "tcp" {
    interval            = "1s"
    timeout             = "1s"
    unhealthy_threshold = 2
    healthy_threshold   = 1
    send                = "ping\n"
    receive             = ["pong"]
  }`

// static lists backends.
func static(backends ...*child) string {
	var addrs []string
	for _, b := range backends {
		addrs = append(addrs, strconv.Quote(b.addr))
	}
	return "  discovery \"static\" { endpoints = [" + strings.Join(addrs, ", ") + "] }"
}
