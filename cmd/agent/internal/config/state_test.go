package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What is wrong with state_dir is a mistake at its place.
func TestStateDir(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.hcl")
	if err := os.WriteFile(file, []byte("\nstate_dir = \"/x\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	looked := ""
	opts := Options{Paths: []string{file}, Hostname: "host", StateDir: func(dir string) error {
		looked = dir
		return errors.New("it is too small")
	}}
	if _, err := Load(opts); err == nil || !strings.Contains(err.Error(), "x.hcl:2:13: state_dir: it is too small") || looked != "/x" {
		t.Errorf("looked at %q: %v", looked, err)
	}
	opts.Paths, looked = nil, ""
	if cfg, err := Load(opts); err != nil || looked != "" || cfg.StateDir != "" || !cfg.StaleIsReady {
		t.Errorf("without it: looked at %q, %v", looked, err)
	}
}
