package filewatch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSecret(t *testing.T) {
	for text, want := range map[string]string{
		"  abc DEF\r\n":               "abc DEF",
		"":                            "! the file is empty",
		" \n":                         "! the file is empty",
		"abc\ndef":                    "! it has more than one line, or is not printable ASCII",
		"abc\x00def":                  "! it has more than one line, or is not printable ASCII",
		"abcä":                        "! it has more than one line, or is not printable ASCII",
		strings.Repeat("abc", 30_000): "! is larger than 65536 bytes",
	} {
		path := filepath.Join(t.TempDir(), "secret")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := Secret(path)
		if err != nil {
			if strings.Contains(err.Error(), "abc") {
				t.Errorf("%.20q: the error has it: %v", text, err)
			}
			got = "!" + strings.TrimPrefix(strings.TrimPrefix(err.Error(), path), ":")
		}
		if got != want {
			t.Errorf("%.20q: %q, want %q", text, got, want)
		}
	}
	if _, err := Secret(filepath.Join(t.TempDir(), "none")); !os.IsNotExist(err) {
		t.Errorf("a file that is not there: %v", err)
	}
}

func TestExposed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	if Exposed(path) {
		t.Error("a file that is not there is exposed")
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for mode, want := range map[os.FileMode]bool{0o600: false, 0o400: false, 0o640: false, 0o660: true, 0o620: true, 0o440: false, 0o644: true, 0o602: true, 0o604: true} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if got := Exposed(path); got != want {
			t.Errorf("%v: %t", mode, got)
		}
	}
}
