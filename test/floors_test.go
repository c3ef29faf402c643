package test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// module is the path of the module, and the prefix of each package's.
const module = "gatehouse.internal/"

// floors says on which floor each package stands. A package imports only
// packages of lower floors. A package that is missing here fails the test, so
// that whoever adds one decides where it stands.
var floors = map[string]int{
	"lbcore":            0,
	"internal/hcltext":  0,
	"xds/internal/core": 0,

	"discovery":          1,
	"healthsvc":          1,
	"forwarder":          1,
	"lbcore/ringhash":    1,
	"lbcore/roundrobin":  1,
	"lbcore/leastweight": 1,

	"xds":                          2,
	"cmd/agent/internal/config":    2,
	"cmd/agent/internal/telemetry": 2,

	"cmd/agent/internal/node":  3,
	"cmd/agent/internal/admin": 4,
	"cmd/agent":                5,
}

// beside are the packages that no other imports: drivers of tests. They may
// import anything that the compiler lets them.
var beside = []string{"test", "discovery/discoverytest", "lbcore/lbtest"}

// never are imports that a package must do without, its own and those of what
// it imports: they are what it "must not know".
var never = map[string][]string{
	"lbcore": {"net", "net/http", "log", "log/slog", "google.golang.org/protobuf/...", "github.com/hashicorp/..."},
	"lbcore/...": {"net", "net/http", "log", "log/slog", "sync", "time", "google.golang.org/protobuf/...",
		"github.com/hashicorp/..."},
	"xds/internal/core": {"time", "net", "google.golang.org/...", "github.com/envoyproxy/..."},
	"discovery":         {"google.golang.org/...", "net/http"},
	"healthsvc":         {"github.com/hashicorp/...", "github.com/envoyproxy/..."},
	"forwarder":         {"github.com/hashicorp/...", "github.com/envoyproxy/...", "net/http"},
}

// listed is what go list says of a package.
type listed struct {
	ImportPath   string
	Doc          string
	Imports      []string
	GoFiles      []string
	TestGoFiles  []string
	XTestGoFiles []string
}

func packages(t *testing.T) []listed {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json", "./...")
	cmd.Dir = ".."
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, &stderr)
	}
	var ps []listed
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return ps
		} else if err != nil {
			t.Fatal(err)
		}
		p.ImportPath = strings.TrimPrefix(p.ImportPath, module)
		ps = append(ps, p)
	}
}

func TestFloors(t *testing.T) {
	for _, p := range packages(t) {
		for _, complaint := range complaints(p) {
			t.Error(complaint)
		}
	}
}

// complaints says what is wrong with p's place in the house.
func complaints(p listed) (cs []string) {
	if p.Doc == "" && len(p.GoFiles) > 0 {
		cs = append(cs, p.ImportPath+" has no package comment")
	}
	if slices.Contains(beside, p.ImportPath) || strings.HasPrefix(p.ImportPath, "test/") {
		return cs
	}
	floor, ok := floors[p.ImportPath]
	if !ok {
		return append(cs, p.ImportPath+" has no floor: decide where it stands and add it to the map")
	}
	for _, imp := range p.Imports {
		name, own := strings.CutPrefix(imp, module)
		if !own {
			if rule, bad := forbidden(p.ImportPath, imp); bad {
				cs = append(cs, p.ImportPath+" must not know "+imp+" (rule "+rule+")")
			}
			continue
		}
		below, ok := floors[name]
		switch {
		case slices.Contains(beside, name) || strings.HasPrefix(name, "test"):
			cs = append(cs, p.ImportPath+" imports "+name+", which is for tests")
		case ok && below >= floor:
			cs = append(cs, p.ImportPath+" imports "+name+", which is not on a lower floor")
		}
	}
	return cs
}

func forbidden(pkg, imp string) (rule string, bad bool) {
	for at, rules := range never {
		if !matches(at, pkg) {
			continue
		}
		for _, rule := range rules {
			if matches(rule, imp) {
				return rule, true
			}
		}
	}
	return "", false
}

// matches reports whether path is pattern or, if that ends in "/...", lies
// below it.
func matches(pattern, path string) bool {
	if dir, ok := strings.CutSuffix(pattern, "..."); ok {
		return strings.HasPrefix(path, dir)
	}
	return pattern == path
}

// The keeper of the floors is kept too: each kind of fault is found.
func TestFloorsFindFaults(t *testing.T) {
	for _, tt := range []struct {
		name string
		p    listed
		want string
	}{
		{"upward", listed{ImportPath: "lbcore", Doc: "x", Imports: []string{module + "healthsvc"}}, "not on a lower floor"},
		{"same floor", listed{ImportPath: "forwarder", Doc: "x", Imports: []string{module + "healthsvc"}}, "not on a lower floor"},
		{"must not know", listed{ImportPath: "lbcore", Doc: "x", Imports: []string{"net/http"}}, "must not know net/http"},
		{"must not know below", listed{ImportPath: "xds/internal/core", Doc: "x", Imports: []string{"google.golang.org/grpc"}}, "must not know"},
		{"policies have no clock", listed{ImportPath: "lbcore/ringhash", Doc: "x", Imports: []string{"time"}}, "must not know time"},
		{"no comment", listed{ImportPath: "lbcore", GoFiles: []string{"a.go"}}, "no package comment"},
		{"no floor", listed{ImportPath: "attic", Doc: "x"}, "no floor"},
		{"tests only", listed{ImportPath: "xds", Doc: "x", Imports: []string{module + "discovery/discoverytest"}}, "for tests"},
	} {
		if got := strings.Join(complaints(tt.p), "\n"); !strings.Contains(got, tt.want) {
			t.Errorf("%s: complaints %q, want one with %q", tt.name, got, tt.want)
		}
	}
	if got := complaints(listed{ImportPath: "xds", Doc: "x", Imports: []string{module + "lbcore", "net"}}); got != nil {
		t.Errorf("a good package: complaints %q", got)
	}
}

// Every package of the map must exist: a floor that nobody stands on hides a
// rename.
func TestFloorsAreInhabited(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range packages(t) {
		seen[p.ImportPath] = true
	}
	for name := range floors {
		if !seen[name] {
			t.Errorf("package %s is in the map but not in the module", name)
		}
	}
}
