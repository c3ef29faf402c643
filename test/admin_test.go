package test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"gatehouse.internal/internal/tlsconf/tlstest"
)

// run runs a command of the binary with these variables, and returns the exit code
// and all that it has printed.
func runCommand(t *testing.T, env []string, args ...string) (code int, out string) {
	t.Helper()
	cmd := exec.Command(program(t, binary), args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Dir = t.TempDir()
	text, err := cmd.CombinedOutput()
	if _, failed := err.(*exec.ExitError); err != nil && !failed {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(text)
}

// Every command works with an admin interface that asks for a token and for
// certificates, by flags and by the environment, and without them changes nothing.
func TestCommandsOverTLS(t *testing.T) {
	a := startBackend(t)
	dir := t.TempDir()
	agents, operators := tlstest.NewCA(t, "agents"), tlstest.NewCA(t, "operators")
	operatorsFile := operators.Write(t, dir)
	if err := os.Rename(operatorsFile, filepath.Join(dir, "operators.pem")); err != nil {
		t.Fatal(err)
	}
	caFile := agents.Write(t, dir)
	cert, key := agents.Issue(t, tlstest.Leaf{Names: []string{"127.0.0.1"}}).Write(t, dir, "admin")
	clientCert, clientKey := operators.Issue(t, tlstest.Leaf{}).Write(t, dir, "operator")
	const secret = "canary-admin-token-0123456789"
	token := filepath.Join(dir, "token")
	write(t, token, secret+"\n")
	file := filepath.Join(dir, "gatehouse.hcl")
	write(t, file, fmt.Sprintf(`
admin {
  address    = "127.0.0.1:0"
  token_file = %q
  tls {
    cert_file      = %q
    key_file       = %q
    client_ca_file = %q
  }
}
cluster "web" {
  discovery "static" { endpoints = [%q] }
  selector "default" { policy = "ring_hash" }
}
listener "web" {
  address = "127.0.0.1:0"
  cluster = "web"
}
`, token, cert, key, filepath.Join(dir, "operators.pem"), a.addr))
	p := startAgentWith(t, "run", "-config-file", file, "-log-json")
	at := p.admin()
	flags := []string{"-http-addr", "https://" + at, "-ca-file", caFile, "-client-cert", clientCert, "-client-key", clientKey, "-token-file", token}
	env := []string{
		"GATEHOUSE_ADMIN_ADDRESS=" + at, "GATEHOUSE_ADMIN_CA_FILE=" + caFile, "GATEHOUSE_ADMIN_CLIENT_CERT=" + clientCert,
		"GATEHOUSE_ADMIN_CLIENT_KEY=" + clientKey, "GATEHOUSE_ADMIN_TOKEN=" + secret,
	}
	eventually(t, "the agent is ready", func() bool {
		code, _ := runCommand(t, nil, append([]string{"health"}, flags...)...)
		return code == 0
	})
	for _, args := range [][]string{
		{"health"}, {"clusters"}, {"endpoints"}, {"connections"}, {"reload"}, {"log-level"},
		{"explain", "-cluster", "web", "-key", "k"}, {"simulate", "-cluster", "web", "-add", "127.0.0.1:1"}, {"debug", "-duration", "1s"},
	} {
		code, out := runCommand(t, env, args...)
		if code != 0 || strings.Contains(out, secret) {
			t.Errorf("%q by the environment: %d %s", args, code, out)
		}
		code, out = runCommand(t, nil, append(append([]string{args[0]}, flags...), args[1:]...)...)
		if code != 0 || strings.Contains(out, secret) {
			t.Errorf("%q by flags: %d %s", args, code, out)
		}
	}
	for _, args := range [][]string{{"disable", "web", a.addr}, {"enable", "web", a.addr}, {"log-level", "debug"}} {
		if code, out := runCommand(t, env, args...); code != 0 {
			t.Errorf("%q: %d %s", args, code, out)
		}
	}
	if code, out := runCommand(t, env, "top"); code != 1 || !strings.Contains(out, "top needs a terminal") { // it has asked by then
		t.Errorf("top: %d %s", code, out)
	}
	// Without the token, with a wrong one, without the certificate or without TLS
	// nothing is told.
	replace := func(name, value string) []string {
		var out []string
		for _, e := range env {
			if !strings.HasPrefix(e, name+"=") {
				out = append(out, e)
			}
		}
		return append(out, name+"="+value)
	}
	for want, env := range map[string][]string{
		"wants the token of its admin interface":           replace("GATEHOUSE_ADMIN_TOKEN", ""),
		"none or a wrong one":                              replace("GATEHOUSE_ADMIN_TOKEN", secret+"x"),
		"certificate":                                      replace("GATEHOUSE_ADMIN_CLIENT_CERT", ""),
		"an authority that is not among the trusted ones":  replace("GATEHOUSE_ADMIN_CA_FILE", filepath.Join(dir, "operators.pem")),
		"is not valid for elsewhere.internal":              replace("GATEHOUSE_ADMIN_TLS_SERVER_NAME", "elsewhere.internal"),
		"HTTP request to an HTTPS server":                  {"GATEHOUSE_ADMIN_ADDRESS=" + at},
		"the token of the admin interface: stat":           append(replace("GATEHOUSE_ADMIN_TOKEN", ""), "GATEHOUSE_ADMIN_TOKEN_FILE="+filepath.Join(dir, "none")),
		"the TLS of the admin interface: tls client: stat": replace("GATEHOUSE_ADMIN_CA_FILE", filepath.Join(dir, "none")),
	} {
		for _, command := range []string{"clusters", "drain"} {
			if code, out := runCommand(t, env, command); code == 0 || !strings.Contains(out, want) || strings.Contains(out, secret) {
				t.Errorf("%s: %d %s; want %q", command, code, out, want)
			}
		}
	}
	// What is told without the token is the state.
	if code, out := runCommand(t, replace("GATEHOUSE_ADMIN_TOKEN", ""), "health"); code != 0 {
		t.Errorf("health without the token: %d %s", code, out)
	}
	if code, out := runCommand(t, env, "drain"); code != 0 {
		t.Errorf("drain: %d %s", code, out)
	}
	if code := p.end(syscall.SIGTERM); code != 0 {
		t.Errorf("ended with %d", code)
	}
	if strings.Contains(p.output(), secret) {
		t.Error("the log has the token")
	}
}

// The file of a unix socket is its owner's, whatever the umask, or whose it is said to
// be.
func TestAdminSocketMode(t *testing.T) {
	for conf, want := range map[string]os.FileMode{"": 0o600, "unix {\n mode = \"0660\"\n}": 0o660} {
		dir := t.TempDir()
		socket, file := filepath.Join(dir, "admin.sock"), filepath.Join(dir, "gatehouse.hcl")
		write(t, file, fmt.Sprintf("admin {\n  address = %q\n%s\n}\n", "unix://"+socket, conf))
		p := startCommand(t, exec.Command("sh", "-c", `umask 0; exec "$@"`, "sh", program(t, binary), "run", "-config-file", file, "-log-json"))
		p.admin()
		info, err := os.Stat(socket)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%q: the socket has the mode %v", conf, got)
		}
		if code, out := runCommand(t, nil, "health", "-http-addr", "unix://"+socket); code != 0 {
			t.Errorf("health: %d %s", code, out)
		}
	}
}

// By default the interface is on loopback, and refuses to be elsewhere.
func TestAdminElsewhere(t *testing.T) {
	file := filepath.Join(t.TempDir(), "gatehouse.hcl")
	write(t, file, "admin { address = \"0.0.0.0:0\" }\n")
	for _, command := range []string{"validate", "run"} {
		if code, out := runCommand(t, nil, command, "-config-file", file); code != 2 || !strings.Contains(out, "could change what the agent does") {
			t.Errorf("%s: %d %s", command, code, out)
		}
	}
	p := startAgent(t, "")
	code, body := p.get("/config_dump")
	var dump struct {
		Configs []map[string]any `json:"configs"`
	}
	if err := json.Unmarshal([]byte(body), &dump); err != nil || code != http.StatusOK || !strings.HasPrefix(p.admin(), "127.0.0.1:") {
		t.Errorf("%d at %s: %v", code, p.admin(), err)
	}
}
