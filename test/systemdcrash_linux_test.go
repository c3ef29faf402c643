package test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// systemdEnv has the path of the agent for a run of the test in namespaces.
const systemdEnv = "GATEHOUSE_TEST_SYSTEMD"

// systemd itself keeps the sockets of an agent that is killed, with what the unit says of
// that; also those of one that has taken over; and a stop refuses at once. It is a user's
// manager, in namespaces of its own, since that is what runs where another process is the
// first one.
func TestCrashUnderSystemd(t *testing.T) {
	needsServer(t)
	unshare, systemctl, ip := tool(t, "unshare", "util-linux"), tool(t, "systemctl", "systemd"), tool(t, "ip", "iproute2")
	const systemd = "/usr/lib/systemd/systemd"
	if _, err := os.Stat(systemd); err != nil {
		t.Fatalf("there is no systemd, install the Debian package systemd: %v", err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv(systemdEnv) == "" {
		if os.Getuid() != 0 {
			t.Fatal("namespaces for systemd take root")
		}
		cmd := exec.CommandContext(t.Context(), unshare, "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--cgroup", "--net",
			exe, "-test.v", "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), systemdEnv+"="+program(t, fastBinary))
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
			t.Fatalf("in namespaces: %v\n%s", err, out)
		}
		return
	}

	output(t, ip, "link", "set", "lo", "up")
	if err := syscall.Mount("tmpfs", "/run", "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	c, dir := newCrashing(t), t.TempDir()
	units := filepath.Join(dir, "units")
	for _, d := range []string{"/run/systemd/system", units} { // by the first one libraries tell that there is a systemd
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	shipped, err := os.ReadFile(filepath.Join(systemdFiles, "gatehouse.service"))
	if err != nil {
		t.Fatal(err)
	}
	service := regexp.MustCompile(`(?m)^(Type|NotifyAccess|Restart|RestartSec|KillMode|WatchdogSec|FileDescriptorStoreMax)=.*\n`).FindAllString(string(shipped), -1)
	log := filepath.Join(dir, "agent.log")
	write(t, filepath.Join(units, "gatehouse.service"), "[Unit]\nDefaultDependencies=no\nStartLimitIntervalSec=0\n[Service]\n"+strings.Join(service, "")+
		fmt.Sprintf("ExecStart=%s run -config-file %s\nStandardError=append:%s\n", os.Getenv(systemdEnv), c.file, log))
	for _, target := range []string{"basic", "default", "shutdown"} {
		write(t, filepath.Join(units, target+".target"), "[Unit]\nDefaultDependencies=no\n")
	}
	t.Setenv("XDG_RUNTIME_DIR", dir)
	t.Setenv("SYSTEMD_UNIT_PATH", units)
	var said bytes.Buffer
	manager := exec.Command(systemd, "--user")
	manager.Env = append(os.Environ(), "SYSTEMD_LOG_TARGET=console")
	manager.Stdout, manager.Stderr = &said, &said
	if err := manager.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		manager.Process.Kill()
		manager.Wait()
		if t.Failed() {
			text, _ := os.ReadFile(log)
			t.Logf("systemd has said:\n%s\nthe agent's log:\n%s", &said, text)
		}
	})
	eventually(t, "systemd answers", func() bool { return exec.Command(systemctl, "--user", "show-environment").Run() == nil })
	property := func(name string) int {
		t.Helper()
		n, err := strconv.Atoi(strings.TrimSpace(output(t, systemctl, "--user", "show", "gatehouse", "--value", "-p", name)))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	keeps := func(n int) {
		t.Helper()
		eventually(t, fmt.Sprintf("systemd keeps %d sockets", n), func() bool { return property("NFileDescriptorStore") == n })
	}
	var pid int
	another := func(what string) {
		t.Helper()
		before := pid
		eventually(t, what, func() bool { pid = property("MainPID"); return pid != 0 && pid != before })
	}
	output(t, systemctl, "--user", "start", "gatehouse")
	another("there is an agent")
	keeps(4)
	stop := c.knock()
	defer stop()
	c.goesOn("before")
	for _, when := range []string{"a kill", "another one", "a takeover"} {
		if when == "a takeover" {
			output(t, systemctl, "--user", "kill", "--kill-whom=main", "--signal=USR2", "gatehouse")
			another("the successor is the main process")
			c.goesOn("after a takeover")
		}
		syscall.Kill(pid, syscall.SIGKILL)
		served := c.wait()
		served()
		another("it is started again")
		keeps(4)
		c.goesOn("after " + when)
	}
	stop()
	output(t, systemctl, "--user", "stop", "gatehouse")
	refuses(t, "after a stop", c.at, c.gone, c.local)
	keeps(0)
}
