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
// that process.
func inNamespace(t *testing.T) bool {
	t.Helper()
	if os.Getenv(namespaceEnv) == t.Name() {
		ip(t, "link", "set", "lo", "up")
		return true
	}
	if testing.Short() {
		t.Skip("makes a network namespace")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$")
	cmd.Env = append(os.Environ(), namespaceEnv+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if os.Getuid() != 0 {
		id := []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings, cmd.SysProcAttr.GidMappings = id, []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("in a network namespace, which takes root or user namespaces, and iproute2: %v\n%s", err, out)
	}
	return false
}

// ip runs iproute2's program.
func ip(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s (of Debian's iproute2): %v\n%s", strings.Join(args, " "), err, out)
	}
}
