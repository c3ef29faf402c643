package admin

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// What requests can reach is little: no file, no program, and no change but by these
// paths. Who adds one says so in docs/security.md too.
func TestReach(t *testing.T) {
	var posts []string
	seen := 0
	for _, dir := range []string{".", "page", "../configdump"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			seen++
			for _, imp := range file.Imports {
				if slices.Contains([]string{`"os"`, `"os/exec"`, `"io/ioutil"`, `"path/filepath"`, `"syscall"`, `"plugin"`, `"golang.org/x/sys/unix"`}, imp.Path.Value) {
					t.Errorf("%s imports %s: a request may reach files or programs by that", name, imp.Path.Value)
				}
			}
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.BasicLit:
					if text, err := strconv.Unquote(n.Value); err == nil && strings.HasPrefix(text, "POST /") {
						posts = append(posts, text)
					}
				case *ast.SelectorExpr:
					if slices.Contains([]string{"ServeFile", "ServeFileFS", "FileServer", "FileServerFS"}, n.Sel.Name) {
						t.Errorf("%s has %s: it would serve files", name, n.Sel.Name)
					}
				}
				return true
			})
		}
	}
	want := []string{"POST /drain_listeners", "POST /endpoints/{cluster}/{address}/disable", "POST /endpoints/{cluster}/{address}/enable", "POST /logging", "POST /reload"}
	if slices.Sort(posts); !slices.Equal(posts, want) {
		t.Errorf("what changes something is %q, want %q", posts, want)
	}
	if seen < 20 {
		t.Errorf("only %d files were looked at", seen)
	}
}
