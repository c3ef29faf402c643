package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/internal/tlsconf/tlstest"
)

// The files of a health check's TLS are looked at before anything runs.
func TestValidateCheckTLS(t *testing.T) {
	dir := t.TempDir()
	ca := tlstest.NewCA(t, "one").Write(t, dir)
	file := filepath.Join(dir, "a.hcl")
	load := func(ca string) error {
		text := "cluster \"web\" {\n  discovery \"static\" { endpoints = [] }\n  health_check \"tcp\" {\n    tls { ca_file = \"" + ca + "\" }\n  }\n}\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		opts := loadOptions()
		opts.Paths, opts.Hostname = []string{file}, "test"
		_, err := config.Load(opts)
		return err
	}
	if err := load(ca); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{filepath.Join(dir, "none.pem"), file} {
		if err := load(bad); err == nil || !strings.Contains(err.Error(), file+":4:21: tls client: ") {
			t.Errorf("error %v", err)
		}
	}
}
