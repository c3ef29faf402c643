package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// agent is what is started anew now and then.
type agent struct {
	t        testing.TB
	binary   string
	dir      string
	admin    string
	all      []*process
	*process // the one that serves
}

// process is one run of the agent.
type process struct {
	cmd  *exec.Cmd
	log  string        // the file
	done chan struct{} // closed when it has ended
}

func (a *agent) conf() string { return filepath.Join(a.dir, "gatehouse.hcl") }

// configure replaces the configuration as a whole.
func (a *agent) configure(text string) {
	if err := os.WriteFile(a.conf()+".new", []byte(text), 0o600); err != nil {
		a.t.Fatal(err)
	}
	if err := os.Rename(a.conf()+".new", a.conf()); err != nil {
		a.t.Fatal(err)
	}
}

// launch starts a process.
func (a *agent) launch(flags ...string) *process {
	p := &process{log: filepath.Join(a.dir, fmt.Sprintf("agent-%d.log", len(a.all)+1)), done: make(chan struct{})}
	log, err := os.Create(p.log)
	if err != nil {
		a.t.Fatal(err)
	}
	defer log.Close()
	p.cmd = exec.Command(a.binary, append([]string{"run", "-config-file", a.conf(), "-log-json"}, flags...)...)
	p.cmd.Stderr = log
	if err := p.cmd.Start(); err != nil {
		a.t.Fatal(err)
	}
	a.all = append(a.all, p)
	go func() {
		p.cmd.Wait()
		close(p.done)
	}()
	return p
}

// stop drains the process, and returns its exit code.
func (p *process) stop() int {
	p.cmd.Process.Signal(syscall.SIGTERM)
	return p.wait()
}

// wait waits for the end of a process, and returns its exit code.
func (p *process) wait() int {
	select {
	case <-p.done:
	case <-time.After(time.Minute):
		p.kill()
		return -1
	}
	return p.cmd.ProcessState.ExitCode()
}

func (p *process) kill() {
	p.cmd.Process.Kill()
	<-p.done
}

// ended reports whether the process has ended.
func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// said returns when the process has logged a message, zero if it has not.
func (p *process) said(msg string) time.Time {
	data, err := os.ReadFile(p.log)
	if err != nil {
		return time.Time{}
	}
	for line := range bytes.Lines(data) {
		var entry struct {
			Time time.Time
			Msg  string
		}
		if json.Unmarshal(line, &entry) == nil && entry.Msg == msg {
			return entry.Time
		}
	}
	return time.Time{}
}

func (a *agent) ask(method, path string) (int, string, error) {
	r, err := http.NewRequest(method, "http://"+a.admin+path, nil)
	if err != nil {
		return 0, "", err
	}
	resp, err := (&http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

// until waits for something of the agent's, and says if it came.
func (a *agent) until(ok func() bool) bool {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(2 * time.Minute); ; <-tick.C {
		if ok() {
			return true
		}
		if a.ended() || time.Now().After(end) {
			return false
		}
	}
}

// fresh reports whether the agent is ready with what its sources have said since it was
// started.
func (a *agent) fresh() bool {
	code, body, err := a.ask("GET", "/ready")
	return err == nil && code == http.StatusOK && strings.TrimSpace(body) == "LIVE"
}

// usage is what the process takes.
type usage struct {
	rss        int64 // bytes
	fds        int
	goroutines int
	active     int64 // connections of listeners
}

func (a *agent) usage() (u usage, err error) {
	proc := fmt.Sprintf("/proc/%d/", a.cmd.Process.Pid)
	fds, err := os.ReadDir(proc + "fd")
	if err != nil {
		return u, err
	}
	u.fds = len(fds)
	status, err := os.ReadFile(proc + "status")
	if err != nil {
		return u, err
	}
	for line := range strings.Lines(string(status)) {
		if kb, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, err := strconv.ParseInt(strings.Fields(kb)[0], 10, 64)
			if err != nil {
				return u, err
			}
			u.rss = n << 10
		}
	}
	_, metrics, err := a.ask("GET", "/stats/prometheus")
	if err != nil {
		return u, err
	}
	for line := range strings.Lines(metrics) {
		if n, ok := strings.CutPrefix(line, "go_goroutines "); ok {
			u.goroutines, err = strconv.Atoi(strings.TrimSpace(n))
			if err != nil {
				return u, err
			}
		}
	}
	_, body, err := a.ask("GET", "/connections?format=json")
	if err != nil {
		return u, err
	}
	var open struct {
		Connections []json.RawMessage `json:"connections"`
	}
	if err := json.Unmarshal([]byte(body), &open); err != nil {
		return u, err
	}
	u.active = int64(len(open.Connections))
	return u, nil
}

// logsHave reports whether the log of any process has a text.
func (a *agent) logsHave(text string) bool {
	return slices.ContainsFunc(a.all, func(p *process) bool {
		data, err := os.ReadFile(p.log)
		return err == nil && bytes.Contains(data, []byte(text))
	})
}
