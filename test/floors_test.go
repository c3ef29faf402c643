package test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
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
	"internal/filewatch": -1, // below all who read files
	"internal/fullmatch": -1, // below all who match names
	"internal/contain":   -1, // below all that may panic

	"lbcore":                0,
	"forwarder/filterchain": 0,
	"forwarder/rbac":        0,
	"internal/hcltext":      0,
	"internal/lastgood":     0,
	"internal/logfile":      0,
	"internal/loglimit":     0,
	"internal/sdnotify":     0,
	"internal/takeover":     0,
	"internal/tlsconf":      0,
	"xds/internal/core":     0,
	"xds/internal/names":    0,
	"xds/internal/guard":    0,

	"discovery":            1,
	"healthsvc":            1,
	"healthsvc/outlier":    1,
	"forwarder":            1,
	"lbcore/ringhash":      1,
	"lbcore/roundrobin":    1,
	"lbcore/leastweight":   1,
	"lbcore/adaptive":      1,
	"lbcore/random":        1,
	"lbcore/maglev":        1,
	"xds/internal/adsgrpc": 1,
	"xds/internal/lrs":     1,

	"xds":                          2,
	"discovery/consul":             2,
	"discovery/dns":                2,
	"cmd/agent/internal/accesslog": 2,
	"cmd/agent/internal/config":    2,
	"cmd/agent/internal/telemetry": 2,

	"cmd/agent/internal/admin/page": 3,
	"cmd/agent/internal/configdump": 3,
	"cmd/agent/internal/node":       3,
	"cmd/agent/internal/admin":      4,
	"cmd/agent":                     5,
}

// beside are the packages that no other imports: drivers of tests. They may
// import anything that the compiler lets them.
var beside = []string{"test", "discovery/discoverytest", "discovery/consul/consultest", "discovery/dns/dnstest", "lbcore/lbtest", "internal/tlsconf/tlstest"}

// never are packages of the standard library that a package must do without:
// they are what it "must not know".
var never = map[string][]string{
	"lbcore":                {"net", "net/http", "log", "log/slog"},
	"lbcore/...":            {"net", "net/http", "log", "log/slog", "sync", "time"},
	"xds/internal/core":     {"time", "net", "sync"},
	"xds/internal/names":    {"time", "net", "sync"},
	"xds/internal/guard":    {"time", "net", "sync"},
	"discovery":             {"net/http"},
	"forwarder":             {"net/http"},
	"healthsvc/outlier":     {"net", "sync", "log/slog"},
	"forwarder/filterchain": {"net", "sync", "time", "log/slog"},
	"forwarder/rbac":        {"net", "sync", "time", "log/slog"},
}

// libraries are all that the lower floors may import of other modules. Packages
// that are not here may import any.
var libraries = map[string][]string{
	"lbcore":                {"github.com/cespare/xxhash/v2"},
	"lbcore/ringhash":       {"github.com/cespare/xxhash/v2"},
	"lbcore/roundrobin":     {},
	"lbcore/leastweight":    {},
	"lbcore/adaptive":       {},
	"lbcore/random":         {},
	"lbcore/maglev":         {"github.com/cespare/xxhash/v2"},
	"xds/internal/core":     {},
	"xds/internal/names":    {},
	"xds/internal/guard":    {"google.golang.org/protobuf/..."},
	"internal/hcltext":      {"github.com/agext/levenshtein", "github.com/hashicorp/hcl/v2", "github.com/hashicorp/hcl/v2/..."},
	"internal/lastgood":     {},
	"internal/logfile":      {},
	"internal/loglimit":     {},
	"internal/contain":      {},
	"internal/sdnotify":     {"golang.org/x/sys/unix"},
	"internal/takeover":     {"golang.org/x/sys/unix"},
	"internal/filewatch":    {"github.com/fsnotify/fsnotify"},
	"internal/tlsconf":      {},
	"discovery":             {"github.com/hashicorp/hcl/v2", "github.com/hashicorp/hcl/v2/...", "github.com/zclconf/go-cty/..."},
	"healthsvc":             {"google.golang.org/grpc", "google.golang.org/grpc/...", "golang.org/x/sys/unix"},
	"healthsvc/outlier":     {},
	"forwarder/filterchain": {},
	"forwarder/rbac":        {},
	"forwarder":             {"github.com/pires/go-proxyproto", "golang.org/x/sys/unix"},
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

// packages lists the module as it is built for an operating system.
func packages(t *testing.T, goos string) []listed {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json", "./...")
	cmd.Dir = ".."
	cmd.Env = append(os.Environ(), "GOOS="+goos, "CGO_ENABLED=0")
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
	for _, goos := range []string{"linux", "darwin", "windows"} {
		for _, p := range packages(t, goos) {
			for _, complaint := range complaints(p) {
				t.Errorf("%s: %s", goos, complaint)
			}
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
			if forbidden(p.ImportPath, imp) {
				cs = append(cs, p.ImportPath+" must not know "+imp)
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

func forbidden(pkg, imp string) bool {
	if allowed, ok := libraries[pkg]; ok && strings.Contains(strings.Split(imp, "/")[0], ".") {
		return !slices.ContainsFunc(allowed, func(a string) bool { return matches(a, imp) })
	}
	for at, rules := range never {
		if matches(at, pkg) && slices.Contains(rules, imp) {
			return true
		}
	}
	return false
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
		{"a library", listed{ImportPath: "lbcore", Doc: "x", Imports: []string{"google.golang.org/grpc"}}, "must not know google.golang.org/grpc"},
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
	for _, p := range packages(t, "linux") {
		seen[p.ImportPath] = true
	}
	for name := range floors {
		if !seen[name] {
			t.Errorf("package %s is in the map but not in the module", name)
		}
	}
}
