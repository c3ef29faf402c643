package test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// Each test that docs/security.md names is there.
func TestSecurityNamesTests(t *testing.T) {
	text, err := os.ReadFile("../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile("`([a-z/]+)\\.(Test[A-Za-z0-9]+)`").FindAllSubmatch(text, -1)
	if len(names) < 60 {
		t.Errorf("only %d tests are named", len(names))
	}
	for _, m := range names {
		dir, name := string(m[1]), string(m[2])
		files, _ := filepath.Glob(filepath.Join("..", dir, "*_test.go"))
		if !slices.ContainsFunc(files, func(file string) bool {
			source, err := os.ReadFile(file)
			return err == nil && bytes.Contains(source, []byte("\nfunc "+name+"("))
		}) {
			t.Errorf("there is no test %s in %s", name, dir)
		}
	}
	// A row of a table without a test is a claim.
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(line, "|"); len(cells) == 5 && !strings.Contains(cells[3], "Test") && !strings.Contains(cells[3], "tests") && !strings.Contains(cells[3], "---") {
			t.Errorf("no test in the row %s", line)
		}
	}
}

// Contexts of TLS are made where versions and names are seen to: by tlsconf, and for
// Consul by its library.
func TestTLSIsMadeInOnePlace(t *testing.T) {
	may := map[string]string{
		"internal/tlsconf": "Config InsecureSkipVerify",
		"discovery/consul": "InsecureSkipVerify", // ssl_verify, which the operator turns off
		"cmd/agent":        "InsecureSkipVerify", // hands that on
	}
	seen := 0
	err := filepath.WalkDir("..", func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == ".git" || path == "../test" || d.Name() == "tlstest" || d.Name() == "consultest") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir := strings.TrimPrefix(filepath.ToSlash(filepath.Dir(path)), "../")
		found := func(what string, at token.Pos) {
			seen++
			if !strings.Contains(may[dir], what) {
				t.Errorf("%s: %s: let internal/tlsconf do that", fset.Position(at), what)
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CompositeLit:
				if s, ok := n.Type.(*ast.SelectorExpr); ok && s.Sel.Name == "Config" && fmt.Sprint(s.X) == "tls" {
					found("Config", n.Pos())
				}
			case *ast.KeyValueExpr:
				if fmt.Sprint(n.Key) == "InsecureSkipVerify" {
					found("InsecureSkipVerify", n.Pos())
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < 3 {
		t.Errorf("only %d places were seen", seen)
	}
}

var updateDocs = flag.Bool("update", false, "write docs/dependencies.md")

// licences tells a licence by a sentence that only it has, the first that fits.
var licences = []struct{ name, sentence string }{
	{"Apache-2.0", "Apache License"},
	{"MPL-2.0", "Mozilla Public License"},
	{"MIT", "Permission is hereby granted, free of charge"},
	{"ISC", "Permission to use, copy, modify, and/or distribute this software"},
	{"BSD-3-Clause", "endorse or promote products derived from"},
	{"BSD-2-Clause", "Redistributions in binary form must reproduce"},
}

// docs/dependencies.md lists what is linked and what tests use, as it is. A module
// without a licence that is known here is a mistake.
func TestDependencies(t *testing.T) {
	type module struct{ Path, Version, Dir, GoVersion string }
	list := func(args ...string) map[string]module {
		t.Helper()
		cmd := exec.Command("go", append([]string{"list", "-deps", "-json=Module"}, args...)...)
		cmd.Dir, cmd.Env = "..", append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0")
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		all := make(map[string]module)
		for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
			var p struct{ Module *module }
			if err := dec.Decode(&p); err != nil {
				t.Fatal(err)
			}
			if p.Module != nil && p.Module.Version != "" {
				all[p.Module.Path] = *p.Module
			}
		}
		return all
	}
	licence := func(m module) string {
		files, err := os.ReadDir(m.Dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if name := strings.ToLower(f.Name()); !strings.HasPrefix(name, "licen") && !strings.HasPrefix(name, "copying") {
				continue
			}
			text, err := os.ReadFile(filepath.Join(m.Dir, f.Name()))
			if err != nil {
				t.Fatal(err)
			}
			flat := strings.Join(strings.Fields(string(text)), " ")
			for _, l := range licences {
				if strings.Contains(flat, l.sentence) {
					return l.name
				}
			}
		}
		t.Errorf("%s %s: its licence is not known here: may it be used?", m.Path, m.Version)
		return "?"
	}
	linked, tests := list("./cmd/agent"), list("-test", "./...", "honnef.co/go/tools/cmd/staticcheck")
	var b strings.Builder
	b.WriteString("# Dependencies\n\n<!-- Made by go test ./test -run TestDependencies -update from go.mod and the modules. -->\n")
	table := func(title string, of map[string]module, but map[string]module) {
		fmt.Fprintf(&b, "\n## %s\n\n| module | version | licence |\n| --- | --- | --- |\n", title)
		var paths []string
		for path := range of {
			if _, there := but[path]; !there {
				paths = append(paths, path)
			}
		}
		slices.Sort(paths)
		for _, path := range paths {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", path, of[path].Version, licence(of[path]))
		}
		if len(paths) < 5 {
			t.Errorf("%s: only %d modules", title, len(paths))
		}
	}
	table("Linked into the agent", linked, nil)
	table("Of tests, benchmarks and tools only", tests, linked)
	const file = "../docs/dependencies.md"
	if *updateDocs {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if have, err := os.ReadFile(file); err != nil || string(have) != b.String() {
		t.Errorf("%s is not what go.mod says (%v): run go test ./test -run TestDependencies -update", file, err)
	}
}

// The agent serves, checks, keeps its state and reloads as a user without any
// capability, who can't get one.
func TestNoCapability(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("to run as another user takes root")
	}
	const nobody = 65534
	b := startBackend(t)
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { // the test's own
		t.Fatal(err)
	}
	exe := filepath.Join(dir, "gatehouse")
	copyFile(t, program(t, fastBinary), exe, 0o755)
	own := filepath.Join(dir, "own")
	if err := os.Mkdir(own, 0o700); err != nil {
		t.Fatal(err)
	}
	conf := filepath.Join(own, "gatehouse.hcl")
	write(t, conf, fmt.Sprintf(`
state_dir = "%[1]s/state"
admin { address = "unix://%[1]s/admin.sock" }
%[2]s  health_check "tcp" {
    interval = "100ms"
    timeout  = "100ms"
  }
}
listener "web" {
  address = "127.0.0.1:0"
  cluster = "web"
}
listener "local" {
  address = "unix://%[1]s/local.sock"
  cluster = "web"
  unix { mode = "0660" }
}
`, own, static("web", b)))
	for _, path := range []string{own, conf} {
		if err := os.Chown(path, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(exe, "run", "-config-file", conf, "-log-json")
	cmd.Dir = own
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	p := startCommand(t, cmd)
	at := p.listener("web")
	eventually(t, "a connection is served", func() bool {
		who, err := ask(t.Context(), at)
		return err == nil && who == b.addr
	})
	if who, err := ask(t.Context(), filepath.Join(own, "local.sock")); err != nil || who != b.addr {
		t.Errorf("by the unix socket: %q, %v", who, err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, set := range []string{"CapPrm", "CapEff", "CapAmb"} {
		if !regexp.MustCompile(set + `:\s+0+\n`).Match(status) {
			t.Errorf("the agent has capabilities:\n%s", status)
		}
	}
	if code, out := runCommand(t, nil, "reload", "-http-addr", "unix://"+own+"/admin.sock"); code != 0 {
		t.Errorf("reload: %d %s", code, out)
	}
}
