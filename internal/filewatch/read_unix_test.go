//go:build unix

package filewatch_test

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"gatehouse.internal/internal/filewatch"
)

func TestRead(t *testing.T) {
	dir := t.TempDir()
	path, pipe := filepath.Join(dir, "a"), filepath.Join(dir, "pipe")
	replace(t, path, "12345")
	must(t, syscall.Mkfifo(pipe, 0o600))
	if b, err := filewatch.Read(path, 5); string(b) != "12345" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	for path, want := range map[string]string{
		path: path + " is larger than 4 bytes", pipe: pipe + " is not a regular file", dir: dir + " is not a regular file",
		filepath.Join(dir, "b"): "no such file",
	} {
		if _, err := filewatch.Read(path, 4); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
