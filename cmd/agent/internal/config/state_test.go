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

// Where the next process asks is in the directory of the service manager, or else in
// that of the state, unless it is said.
func TestTakeoverSocket(t *testing.T) {
	for _, c := range []struct{ text, runtime, want string }{
		{"", "", ""},
		{"", "/run/a:/run/b", "/run/a/takeover.sock"},
		{"", "relative", ""},
		{`state_dir = "/s"`, "", "/s/takeover.sock"},
		{`state_dir = "/s"`, "/run/a", "/run/a/takeover.sock"},
		{`takeover { socket = "/x.sock" }`, "/run/a", "/x.sock"},
		{`takeover { socket = "" }`, "/run/a", ""},
	} {
		file := filepath.Join(t.TempDir(), "x.hcl")
		if err := os.WriteFile(file, []byte(c.text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := Load(Options{Paths: []string{file}, Hostname: "host", Env: func(name string) (string, bool) {
			if name == "RUNTIME_DIRECTORY" {
				return c.runtime, c.runtime != ""
			}
			return "", false
		}})
		if err != nil || cfg.Takeover.Socket != c.want {
			t.Errorf("%q with %q: %q, %v; want %q", c.text, c.runtime, cfg.Takeover.Socket, err, c.want)
		}
	}
}
