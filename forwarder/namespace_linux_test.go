package forwarder

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// namespaceEnv names the test that a test binary is to run in its network
// namespace.
const namespaceEnv = "FORWARDER_TEST_NAMESPACE"

// inNamespace runs the test again in a process with a network namespace of its
// own, which has nothing but a loopback interface, and reports whether this is
// that process. It fails where a program is missing that the test needs.
func inNamespace(t *testing.T, programs ...string) bool {
	t.Helper()
	if os.Getenv(namespaceEnv) == t.Name() {
		shell(t, "ip link set lo up")
		return true
	}
	if testing.Short() {
		t.Skip("needs a network namespace")
	}
	for _, program := range append(programs, "ip") {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("%v: the test needs the Debian packages iproute2 and iptables", err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "-test.v", "-test.run=^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$")
	cmd.Env = append(os.Environ(), namespaceEnv+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if os.Getuid() != 0 {
		id := []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings, cmd.SysProcAttr.GidMappings = id, []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()+" ") {
		t.Fatalf("in a network namespace, which takes root or user namespaces: %v\n%s", err, out)
	}
	return false
}

// shell runs commands, a line each.
func shell(t *testing.T, lines string) {
	t.Helper()
	for line := range strings.Lines(lines) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if out, err := exec.CommandContext(t.Context(), words[0], words[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", strings.TrimSpace(line), err, out)
		}
	}
}
