//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// The wall clock of a machine can't be another one for one process: a time namespace
// has none of its own. So the agent is built with a package time whose Now adds what
// a file says, as long as the file of this variable is there; all else is the same.
const skewEnv = "GATEHOUSE_FAULTS_CLOCK"

const skewSource = `package time

import (
	"sync/atomic"
	"syscall"
	"unsafe"
)

var skewSeconds = openSkew()

func openSkew() *int64 {
	none := new(int64)
	path, ok := syscall.Getenv("` + skewEnv + `")
	if !ok {
		return none
	}
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return none
	}
	defer syscall.Close(fd)
	b, err := syscall.Mmap(fd, 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return none
	}
	return (*int64)(unsafe.Pointer(&b[0]))
}

func skew() int64 {
	if skewSeconds == nil {
		return 0
	}
	return atomic.LoadInt64(skewSeconds)
}
`

// skewOverlay writes what go build wants to use that package, and returns the file
// for -overlay.
func skewOverlay(ctx context.Context, dir string) (string, error) {
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOROOT: %w", err)
	}
	std := filepath.Join(string(bytes.TrimSpace(root)), "src", "time")
	source, err := os.ReadFile(filepath.Join(std, "time.go"))
	if err != nil {
		return "", err
	}
	was := []byte("func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n")
	if bytes.Count(source, was) != 1 {
		return "", fmt.Errorf("%s is not as it was when this was written: want once\n%s", filepath.Join(std, "time.go"), was)
	}
	source = bytes.Replace(source, was, append(was[:len(was):len(was)], "\tsec += skew()\n"...), 1)
	replace := make(map[string]string)
	for name, text := range map[string][]byte{"time.go": source, "skew.go": []byte(skewSource)} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			return "", err
		}
		replace[filepath.Join(std, name)] = path
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, b, 0o600)
}

// clock is the wall clock of an agent.
type clock struct {
	w   *world
	mem []byte
	env string
}

func (w *world) clock() *clock {
	w.Helper()
	path := filepath.Join(w.dir, "clock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	w.check(err)
	defer f.Close()
	w.check(f.Truncate(8))
	mem, err := syscall.Mmap(int(f.Fd()), 0, 8, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	w.check(err)
	return &clock{w, mem, skewEnv + "=" + path}
}

// set has the agent's clock go wrong by d from now on.
func (c *clock) set(d time.Duration) {
	binary.NativeEndian.PutUint64(c.mem, uint64(int64(d/time.Second)))
}
