package test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A stderr that nobody reads stops no connection, no signal and no end.
func TestStuckStderr(t *testing.T) {
	needsServer(t)
	agent, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, 4096); err != nil {
		t.Fatal(err)
	}
	a := startBackend(t)
	front := filepath.Join(t.TempDir(), "front.sock")
	// Each connection logs two lines of failed dials, if the other ones are first.
	config := configFile(t, fmt.Sprintf(`
log { level = "debug" }
drain_timeout = "0s"
cluster "web" {
  discovery "static" { endpoints = ["127.0.0.1:1", "127.0.0.2:1", %q] }
}
listener "web" {
  address = "unix://%s"
  cluster = "web"
}
`, a.addr, front))
	cmd := exec.Command(agent, "run", "-config-file", config)
	cmd.Stderr = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer cmd.Process.Kill()
	askFront := func() (string, error) {
		c, err := net.DialTimeout("unix", front, patience)
		if err != nil {
			return "", err
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(patience))
		return askOn(c)
	}
	eventually(t, "it serves", func() bool { who, _ := askFront(); return who == a.addr })
	for range 500 {
		if who, err := askFront(); err != nil || who != a.addr {
			t.Fatalf("%q, %v", who, err)
		}
	}
	cmd.Process.Signal(syscall.SIGUSR1) // writes to stderr too
	if who, err := askFront(); err != nil || who != a.addr {
		t.Fatalf("%q, %v", who, err)
	}
	cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("it does not end")
	}
}

// An access log in two forms: whole lines of every connection, also after the
// file was moved, and of those that the end of the agent cuts. Another has these only:
// none is in its sample, and failures are not a matter of chance.
func TestAccessLog(t *testing.T) {
	needsServer(t)
	a := startBackend(t)
	path := filepath.Join(t.TempDir(), "access.log")
	p := startAgent(t, "drain_timeout = \"100ms\"\n"+static("web", a)+fmt.Sprintf(`}
listener "web" {
  address = "127.0.0.1:0"
  cluster = "web"
  access_log {
    path   = %q
    format = "json"
  }
  access_log {
    path            = %q
    format          = "json"
    sample          = 0
    sample_failures = false
  }
  access_log {
    path   = "stderr"
    format = "{\"msg\":\"access\",\"flag\":\"%%RESPONSE_FLAGS%%\",\"x\":\"%%REQ(X)%%\"}"
  }
}
`, path, path+".failed"))
	p.awaitReady()
	if p.logged("the configuration says what may not be meant", "", "") == nil {
		t.Error("no warning of an operator that means nothing here")
	}
	type line struct {
		Flag    string `json:"response_flags"`
		Host    string `json:"upstream_host"`
		Cluster string `json:"upstream_cluster"`
		Details string `json:"connection_termination_details"`
		In      int    `json:"bytes_received"`
	}
	read := func(path string) (lines []line) {
		b, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		for text := range bytes.Lines(b) {
			var l line
			if err := json.Unmarshal(text, &l); err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			lines = append(lines, l)
		}
		return lines
	}
	use := func(n int) {
		t.Helper()
		for range n {
			if who, err := ask(t.Context(), p.listener("web")); err != nil || who != a.addr {
				t.Fatalf("%q, %v", who, err)
			}
		}
	}
	use(20)
	eventually(t, "20 lines are written", func() bool { return len(read(path)) == 20 })
	for _, l := range read(path) {
		if l.Host != a.addr || l.Cluster != "web" || l.In == 0 {
			t.Errorf("line %+v", l)
		}
	}
	eventually(t, "they are in the log too", func() bool { return strings.Count(p.output(), `{"msg":"access","flag":`) == 20 })
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	p.cmd.Process.Signal(syscall.SIGHUP)
	eventually(t, "it is opened again", func() bool { _, err := os.Stat(path); return err == nil })
	use(3)
	eventually(t, "3 lines are written", func() bool { return len(read(path)) == 3 })
	if n := p.metric(fmt.Sprintf("gatehouse_access_log_lines{path=%q}", path)); n != 23 {
		t.Errorf("%v lines are counted", n)
	}

	c, err := net.Dial("tcp", p.listener("web"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := askOn(c); err != nil {
		t.Fatal(err)
	}
	p.cmd.Process.Signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if lines := read(path); len(lines) != 4 || lines[3].Flag != "LR" || lines[3].Details == "" {
		t.Errorf("lines %+v", lines)
	}
	if lines := read(path + ".failed"); len(lines) != 1 || lines[0].Flag != "LR" {
		t.Errorf("lines of failures %+v", lines)
	}
	if len(read(path+".1")) != 20 {
		t.Error("the first file has changed")
	}
}
