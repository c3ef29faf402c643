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
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// agent is the process, which is started anew now and then.
type agent struct {
	t      testing.TB
	binary string
	dir    string
	admin  string
	log    *os.File
	cmd    *exec.Cmd
	done   chan struct{}
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

func (a *agent) start() {
	a.cmd = exec.Command(a.binary, "run", "-config-file", a.conf(), "-log-json")
	a.cmd.Stderr = a.log
	if err := a.cmd.Start(); err != nil {
		a.t.Fatal(err)
	}
	cmd, done := a.cmd, make(chan struct{})
	a.done = done
	go func() {
		cmd.Wait()
		close(done)
	}()
}

// stop drains the agent, and returns its exit code.
func (a *agent) stop() int {
	a.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-a.done:
	case <-time.After(time.Minute):
		a.cmd.Process.Kill()
		<-a.done
		return -1
	}
	return a.cmd.ProcessState.ExitCode()
}

// ended reports whether the agent has ended by itself.
func (a *agent) ended() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
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

// fresh waits until the agent is ready with what its sources have said since it was
// started.
func (a *agent) fresh() bool {
	return a.until(func() bool {
		code, body, err := a.ask("GET", "/ready")
		return err == nil && code == http.StatusOK && strings.TrimSpace(body) == "LIVE"
	})
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

// logHas reports whether the agent's log has a text.
func (a *agent) logHas(text string) bool {
	data, err := os.ReadFile(a.log.Name())
	return err == nil && bytes.Contains(data, []byte(text))
}
