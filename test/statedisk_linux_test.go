package test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A disk that is full or read-only costs the agent nothing but what it can't keep.
func TestStateDisk(t *testing.T) {
	needsServer(t)
	if os.Geteuid() != 0 {
		t.Fatal("this needs root: it mounts a file system in a namespace of its own")
	}
	agent, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, spoil, err string }{
		{"full", `head -c 1000000 /dev/zero > "$0/filler" 2> /dev/null`, "no space left on device"},
		{"read-only", `mount -o remount,ro "$0"`, "read-only file system"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := startBackend(t)
			dir := t.TempDir()
			list := filepath.Join(t.TempDir(), "web.hcl")
			write(t, list, fmt.Sprintf("endpoints = [%q]\n", a.addr))
			config := configFile(t, fmt.Sprintf("state_dir = %q\ncluster \"web\" {\n  discovery \"file\" {\n    path = %q\n  }\n}\n", dir, list)+webListener)
			script := `mount -t tmpfs -o size=64k,mode=0700 tmpfs "$0" && { ` + c.spoil + `; exec "$@"; }`
			p := start(t, func() (string, error) { return "unshare", nil },
				"-m", "sh", "-c", script, dir, agent, "run", "-config-file", config, "-log-json")
			p.awaitReady()
			startTraffic(t, p.listener("web")).lands(t, a)
			eventually(t, "the failure is counted", func() bool {
				return p.metric("gatehouse_state_failing") == 1 && p.metric("gatehouse_state_failures") > 0
			})
			if _, body := p.get("/server_info"); !strings.Contains(body, c.err) {
				t.Errorf("/server_info does not say %q:\n%s", c.err, body)
			}
			if n := strings.Count(p.output(), "state_dir can't be written"); n != 1 {
				t.Errorf("%d lines tell it", n)
			}
			if c.name != "full" {
				return
			}
			if err := os.Remove(fmt.Sprintf("/proc/%d/root%s/filler", p.cmd.Process.Pid, dir)); err != nil {
				t.Fatal(err)
			}
			eventually(t, "it is written when there is room", func() bool {
				return p.metric("gatehouse_state_failing") == 0 && p.metric("gatehouse_state_written") > 0
			})
		})
	}
}
