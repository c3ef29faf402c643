package consultest

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// binary is the path of the Consul binary, looked for once a process.
var binary = sync.OnceValues(buildBinary)

// buildBinary builds Consul unless the cache has it, and returns its path.
func buildBinary() (string, error) {
	mod, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("no Consul: the module's folder is not known: go env GOMOD: %w", err)
	}
	cmd := exec.Command(filepath.Join(filepath.Dir(strings.TrimSpace(string(mod))), "test", "consul", "build"))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	path, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("no Consul: to see why, run ./test/consul/build at the top of the module: %w\n%s", err, tail(stderr.Bytes()))
	}
	return strings.TrimSpace(string(path)), nil
}

// tail returns the end of a log, as much as a reader of a failed test wants.
func tail(log []byte) []byte {
	const most = 32 << 10
	if len(log) <= most {
		return log
	}
	return append([]byte("[…]\n"), log[len(log)-most:]...)
}
