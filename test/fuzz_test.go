package test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// decoders are what reads bytes that others have made, each with the target that fuzzes
// it: a decoder without one is a mistake. To add one, add a line.
var decoders = map[string]string{
	"PROXY protocol, versions 1 and 2":     "forwarder FuzzParseProxy",
	"ClientHello":                          "forwarder FuzzServerName",
	"matching of filter chains":            "forwarder/filterchain FuzzFind",
	"RBAC rules":                           "forwarder/rbac FuzzRules",
	"configuration, HCL":                   "cmd/agent/internal/config FuzzHCL",
	"configuration, JSON":                  "cmd/agent/internal/config FuzzJSON",
	"guards of HCL and JSON":               "internal/hcltext FuzzGuards",
	"format of access logs":                "cmd/agent/internal/accesslog FuzzFormat",
	"endpoint files, HCL":                  "discovery FuzzParseFileHCL",
	"endpoint files, JSON":                 "discovery FuzzParseFileJSON",
	"addresses":                            "lbcore FuzzParseAddr",
	"health statuses":                      "lbcore FuzzParseStatus",
	"DNS answers":                          "discovery/dns FuzzAnswer",
	"resolv.conf":                          "discovery/dns FuzzResolvConf",
	"Consul's health endpoints":            "discovery/consul FuzzDecode",
	"Consul's answers, catalog, listeners": "discovery/consul FuzzAnswer",
	"Consul's leaf, roots and intentions":  "discovery/consul FuzzMesh",
	"xDS clusters":                         "xds FuzzDecodeCluster",
	"xDS endpoints":                        "xds FuzzDecodeAssignment",
	"xDS listeners":                        "xds FuzzDecodeListener",
	"xDS secrets":                          "xds FuzzDecodeSecret",
	"xDS resources of the last run":        "xds FuzzRestore",
	"xDS bootstrap":                        "xds FuzzParseBootstrap",
	"xDS responses":                        "xds/internal/core FuzzResponse",
	"xDS protocol, any order of events":    "xds/internal/core FuzzEvents",
	"xDS messages on the wire":             "xds/internal/adsgrpc FuzzUnmarshal",
	"xDS names":                            "xds/internal/names FuzzCanonical",
	"protobuf of strangers":                "xds/internal/guard FuzzUnmarshal",
	"terms of load reports":                "xds/internal/lrs FuzzTerms",
	"redaction of any message":             "cmd/agent/internal/configdump FuzzRedact",
	"requests to the admin interface":      "cmd/agent/internal/admin FuzzRequest",
	"state: the file's format":             "internal/lastgood FuzzDecode",
	"state: until when items were right":   "internal/lastgood FuzzConfirmed",
	"state: sets of endpoints":             "discovery FuzzDecodeSet",
	"state: verdicts of checks":            "healthsvc FuzzImport",
	"state: listeners of the catalog":      "cmd/agent FuzzDecodeListeners",
	"state: what the operator has said":    "cmd/agent/internal/node FuzzDecodeSaid",
	"messages to the supervisor":           "internal/sdnotify FuzzReceive",
	"messages of a takeover":               "internal/takeover FuzzDecode",
	"a takeover that is asked for":         "internal/takeover FuzzAccept",
	"what a tcp check gets":                "healthsvc FuzzReceive",
	"PEM files":                            "internal/tlsconf FuzzParse",
	"SPIFFE IDs":                           "internal/tlsconf FuzzSPIFFE",
	"names of certificates":                "internal/tlsconf FuzzMatcher",
	"regexes of names":                     "internal/fullmatch FuzzCompile",
}

// Each decoder has a target with seeds, and each target is what ./test/fuzz finds.
func TestDecodersAreFuzzed(t *testing.T) {
	seeds := make(map[string]bool) // by package and name; whether it has some
	err := filepath.WalkDir("..", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() && strings.HasPrefix(d.Name(), ".") && d.Name() != ".." {
			return orSkip(err)
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || fn.Recv != nil || !strings.HasPrefix(fn.Name.Name, "Fuzz") {
				continue
			}
			dir := filepath.Dir(path)
			kept, _ := os.ReadDir(filepath.Join(dir, "testdata/fuzz", fn.Name.Name))
			body := new(bytes.Buffer)
			ast.Inspect(fn, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok {
					body.WriteString(id.Name + " ")
				}
				return true
			})
			// Seeds are added here, by a helper that gets f, or are files.
			adds := regexp.MustCompile(`\bAdd\b|\bfuzz\w* f\b|MakeFuzz`).MatchString(body.String())
			name := strings.TrimPrefix(filepath.ToSlash(dir), "../") + " " + fn.Name.Name
			seeds[name] = adds || len(kept) > 0
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for what, name := range decoders {
		if _, there := seeds[name]; !there {
			t.Errorf("%s: there is no %s", what, name)
		}
	}
	for name, has := range seeds {
		if !has {
			t.Errorf("%s has no seeds", name)
		}
	}
	if len(seeds) < len(decoders) {
		t.Errorf("%d targets for %d decoders", len(seeds), len(decoders))
	}
}

// orSkip leaves a directory out unless it could not be read.
func orSkip(err error) error {
	if err != nil {
		return err
	}
	return filepath.SkipDir
}

// The command finds targets, says what it is called with wrongly, and ends with 1 and
// keeps the input where one fails, and with 1 too where one has run nothing.
func TestFuzzCommand(t *testing.T) {
	needsServer(t) // it builds
	fuzz := func(dir string, args ...string) (int, string) {
		t.Helper()
		cmd := exec.Command(filepath.Join(dir, "test/fuzz"), args...)
		out, err := cmd.CombinedOutput()
		if _, failed := err.(*exec.ExitError); err != nil && !failed {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), string(out)
	}
	for _, args := range [][]string{{"sixty"}, {"60"}, {"1s", "a", "b"}, {"1x", "no-such-target"}} {
		if code, out := fuzz("..", args...); code != 2 {
			t.Errorf("%q: %d %s", args, code, out)
		}
	}
	dir := t.TempDir()
	for file, text := range map[string]string{
		"go.mod":         "module example\n\ngo 1.26\n",
		"a/a_test.go":    "package a\n\nimport \"testing\"\n\nfunc FuzzGood(f *testing.F) {\n\tf.Add(1)\n\tf.Fuzz(func(t *testing.T, n int) {})\n}\n",
		"a/none_test.go": "//go:build ignore\n\npackage a\n\nimport \"testing\"\n\nfunc FuzzNone(f *testing.F) {\n\tf.Fuzz(func(t *testing.T, n int) {})\n}\n",
		"b_test.go":      "package b\n\nimport \"testing\"\n\nfunc FuzzBad(f *testing.F) {\n\tf.Add(1)\n\tf.Fuzz(func(t *testing.T, n int) {\n\t\tif n != 1 {\n\t\t\tt.Error(\"not one\")\n\t\t}\n\t})\n}\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, file)), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, file), text)
	}
	script, err := os.ReadFile("fuzz")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "test"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "test/fuzz"), script, 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("git", "init", "-q", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	code, out := fuzz(dir, "10000x")
	kept, _ := os.ReadDir(filepath.Join(dir, "testdata/fuzz/FuzzBad"))
	if code != 1 || !strings.Contains(out, "ok     ./a FuzzGood") || !strings.Contains(out, "FAILED ./. FuzzBad") || !strings.Contains(out, "not one") || len(kept) != 1 {
		t.Errorf("%d, %d kept: %s", code, len(kept), out)
	}
	if code, out = fuzz(dir, "10x", "FuzzNone"); code != 1 || !strings.Contains(out, "FAILED ./a FuzzNone") || !strings.Contains(out, "no input was tried") {
		t.Errorf("a target that has run nothing: %d %s", code, out)
	}
	if code, out = fuzz(dir, "10x", "/a.FuzzG"); code != 0 || !strings.Contains(out, "1 targets, 0 failed") {
		t.Errorf("%d %s", code, out)
	}
}
