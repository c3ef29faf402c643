package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gatehouse.internal/internal/tlsconf/tlstest"
)

const someToken = "0123456789abcdef"

// Who is not on the host reaches the admin interface with a certificate or a token
// only.
func TestAdminAddress(t *testing.T) {
	dir := t.TempDir()
	ca := tlstest.NewCA(t, "test")
	caFile := ca.Write(t, dir)
	cert, key := ca.Issue(t, tlstest.Leaf{}).Write(t, dir, "admin")
	token := filepath.Join(dir, "token")
	write(t, token, someToken, 0o600)
	tls := fmt.Sprintf("tls {\n cert_file = %q\n key_file = %q\n}\n", cert, key)
	mutual := fmt.Sprintf("tls {\n cert_file = %q\n key_file = %q\n client_ca_file = %q\n}\n", cert, key, caFile)
	asked := fmt.Sprintf("token_file = %q\n", token)
	const refused = "could change what the agent does"
	for _, tt := range []struct{ address, more, mistake, warning string }{
		{"127.0.0.1:9901", "", "", ""},
		{"127.9.9.9:0", "", "", ""},
		{"[::1]:9901", "", "", ""},
		{"[::ffff:127.0.0.1]:9901", "", "", ""},
		{"unix:///run/a.sock", "", "", ""},
		{"unix:///run/a.sock", mutual + asked + "unix {\n mode = \"0660\"\n}\n", "", ""},
		{"127.0.0.1:9901", asked, "", ""},
		{"0.0.0.0:9901", "", refused, ""},
		{"[::]:9901", "", refused, ""},
		{"10.0.0.1:0", "", refused, ""},
		{"[fe80::1%eth0]:9901", "", refused, ""},
		{"10.0.0.1:9901", tls, refused, ""},
		{"10.0.0.1:9901", asked, "", "in plain text"},
		{"10.0.0.1:9901", asked + tls, "", ""},
		{"10.0.0.1:9901", mutual, "", ""},
		{"[::]:9901", asked + mutual, "", ""},
	} {
		conf := files(t, "a.hcl", fmt.Sprintf("admin {\n address = %q\n%s}\n", tt.address, tt.more))
		cfg, err := Load(Options{Paths: []string{conf}, Hostname: "h", TLSFiles: true})
		switch {
		case tt.mistake != "":
			if err == nil || !strings.Contains(err.Error(), tt.mistake) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s %s: %v", tt.address, tt.more, err)
			}
		case err != nil:
			t.Errorf("%s %s: %v", tt.address, tt.more, err)
		case tt.warning == "" != (len(cfg.Warnings) == 0) || !strings.Contains(cfg.Warnings.Error(), tt.warning):
			t.Errorf("%s %s: warnings %v", tt.address, tt.more, cfg.Warnings)
		}
	}
}

// The environment and flags are no way around it.
func TestAdminAddressByFlag(t *testing.T) {
	env := map[string]string{"GATEHOUSE_ADMIN_ADDRESS": "0.0.0.0:1"}
	opts := Options{Hostname: "h", Env: func(name string) (string, bool) { v, ok := env[name]; return v, ok }}
	if got, want := mistakes(t, opts, ""), "GATEHOUSE_ADMIN_ADDRESS: address: whoever reaches 0.0.0.0:1 could"; !strings.HasPrefix(got, want) {
		t.Error(got)
	}
	opts = Options{Hostname: "h", Flags: []Flag{{"-http-addr", "admin.address", "10.0.0.1:1"}}}
	if got, want := mistakes(t, opts, ""), "-http-addr: address: whoever reaches 10.0.0.1:1 could"; !strings.HasPrefix(got, want) {
		t.Error(got)
	}
}

func TestAdminToken(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]string{
		someToken + "\n":               "",
		"":                             "the file is empty",
		"s3cr3t":                       "at least 16 characters",
		"s3cr3t s3cr3t s3cr3t":         "without blanks",
		"s3cr3ts3cr3ts3cr3t\ns3cr3t":   "more than one line",
		"s3cr3ts3cr3ts3cr3ts3cr3t\xff": "not printable",
	} {
		token := filepath.Join(dir, "token")
		write(t, token, text, 0o600)
		conf := files(t, "a.hcl", fmt.Sprintf("admin {\n  token_file = %q\n}\n", token))
		_, err := Load(Options{Paths: []string{conf}, Hostname: "h", TLSFiles: true})
		if want == "" {
			if err != nil {
				t.Errorf("%q: %v", text, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), "a.hcl:2:16: token_file: ") || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("%q: %v", text, err)
		}
	}
	conf := files(t, "a.hcl", fmt.Sprintf("admin {\n  token_file = %q\n}\n", filepath.Join(dir, "none")))
	if _, err := Load(Options{Paths: []string{conf}, Hostname: "h", TLSFiles: true}); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Error(err)
	}
}

// Keys and tokens that others can read are warned of, each file once.
func TestExposedFiles(t *testing.T) {
	dir := t.TempDir()
	ca := tlstest.NewCA(t, "test")
	cert, key := ca.Issue(t, tlstest.Leaf{}).Write(t, dir, "a")
	token := filepath.Join(dir, "token")
	write(t, token, someToken, 0o600)
	conf := filepath.Join(files(t, "a.hcl", fmt.Sprintf(`
admin {
  token_file = %[3]q
  tls {
    cert_file = %[1]q
    key_file  = %[2]q
  }
}
xds {
  server "a:1" {
    token_file = %[3]q
    initial_metadata_files = { x = %[3]q }
    tls {
      cert_file = %[1]q
      key_file  = %[2]q
    }
  }
}
consul {
  token_file = %[3]q
  listeners  = true
}
cluster "a" {
  discovery "file" { path = "x" }
  tls {
    cert_file = %[1]q
    key_file  = %[2]q
  }
  health_check "tcp" {
    tls {
      cert_file = %[1]q
      key_file  = %[2]q
    }
  }
}
listener "l" {
  address = "127.0.0.1:1"
  cluster = "a"
  tls {
    cert_file = %[1]q
    key_file  = %[2]q
    tls_certificates "b" {
      cert_file = %[1]q
      key_file  = %[2]q
    }
  }
}
`, cert, key, token)), "a.hcl")
	load := func(modeKey, modeToken os.FileMode) []string {
		t.Helper()
		for file, mode := range map[string]os.FileMode{key: modeKey, token: modeToken} {
			if err := os.Chmod(file, mode); err != nil {
				t.Fatal(err)
			}
		}
		var got []string
		for _, w := range mustLoad(t, Options{Paths: []string{conf}, Hostname: "h", TLSFiles: true}).Warnings {
			got = append(got, strings.ReplaceAll(w.Message, dir+"/", ""))
		}
		return got
	}
	if got := load(0o640, 0o600); len(got) != 0 {
		t.Errorf("private files: %q", got)
	}
	if got, want := load(0o644, 0o606), []string{"token_file: other users can read or write token", "key_file: other users can read or write a-key.pem"}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
	// Each place that names the key is looked at.
	text, err := os.ReadFile(conf)
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Split(string(text), "\n")
	places := 0
	for i, line := range all {
		if !strings.Contains(line, "key_file") {
			continue
		}
		_, own := ca.Issue(t, tlstest.Leaf{}).Write(t, dir, fmt.Sprint("own", i))
		data, err := os.ReadFile(key)
		if err != nil {
			t.Fatal(err)
		}
		write(t, own, string(data), 0o644)
		lines := append([]string(nil), all...)
		lines[i] = strings.Replace(line, key, own, 1)
		write(t, conf, strings.Join(lines, "\n"), 0o600)
		if got := load(0o600, 0o600); len(got) != 1 || !strings.Contains(got[0], filepath.Base(own)) {
			t.Errorf("line %d: %q", i, got)
		}
		places++
	}
	if places != 6 {
		t.Errorf("%d places", places)
	}
}

func write(t *testing.T, file, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, mode); err != nil {
		t.Fatal(err)
	}
}

// A file of the configuration that others can read is warned of where a secret stands in
// it, once; what comes from the environment stands in none.
func TestExposedConfiguration(t *testing.T) {
	env := func(name string) (string, bool) {
		v, ok := map[string]string{"CONSUL_HTTP_TOKEN": "s3cr3t"}[name]
		return v, ok
	}
	for text, want := range map[string]string{
		"consul {\n  token = \"s3cr3t\"\n  http_auth = \"u:s3cr3t\"\n}\n":                                              "token: other users can read or write a.hcl",
		"consul {\n  http_auth = \"u:s3cr3t\"\n}\n":                                                                    "http_auth: other users can read or write a.hcl",
		"xds {\n  clusters = true\n  server \"a:1\" {\n    initial_metadata = { x-token = \"s3cr3t\" }\n  }\n}\n":      "initial_metadata: other users can read or write a.hcl",
		"xds {\n  clusters = true\n  server \"a:1\" {\n    initial_metadata_files = { x-token = \"/none\" }\n  }\n}\n": "",
		"consul {\n  listeners = true\n}\n":                                                                            "",
	} {
		conf := filepath.Join(files(t, "a.hcl", text), "a.hcl")
		for mode, exposed := range map[os.FileMode]bool{0o600: false, 0o640: false, 0o644: true, 0o660: true} {
			if err := os.Chmod(conf, mode); err != nil {
				t.Fatal(err)
			}
			opts := Options{Paths: []string{conf}, Hostname: "h", TLSFiles: true}
			if want == "" {
				opts.Env = env
			}
			var got []string
			for _, w := range mustLoad(t, opts).Warnings {
				if strings.Contains(w.Message, "other users") {
					got = append(got, strings.ReplaceAll(w.Message, filepath.Dir(conf)+"/", ""))
				}
			}
			if exposed && want != "" && (len(got) != 1 || got[0] != want) || !(exposed && want != "") && len(got) != 0 {
				t.Errorf("mode %o: %q, want %q of\n%s", mode, got, want, text)
			}
		}
	}
}
