package test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
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
