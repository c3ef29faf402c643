//go:build unix

package discovery_test

import (
	"path/filepath"
	"syscall"
	"testing"

	"gatehouse.internal/discovery"
)

// A pipe without a writer would block whoever opens it.
func TestFileNotRegular(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	must(t, syscall.Mkfifo(pipe, 0o644))
	watchFile(t, discovery.File{Path: pipe}).WaitFail(t, 0, pipe+" is not a regular file")
	watchFile(t, discovery.File{Path: dir}).WaitFail(t, 0, dir+" is not a regular file")
}
