package xds

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// index reads the tables of BUGS.md and SCENARIOS.md, and the tests that they name.
type index struct {
	t     *testing.T
	tests map[string]map[string]string // by package, the source with comments
}

// rows returns the cells of the rows of a table, without its head.
func (x *index) rows(path string) (rows [][]string) {
	x.t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		x.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "|") {
			var cells []string
			for c := range strings.SplitSeq(strings.Trim(line, "|"), "|") {
				cells = append(cells, strings.TrimSpace(c))
			}
			rows = append(rows, cells)
		}
	}
	if len(rows) < 3 {
		x.t.Fatalf("%s: no table", path)
	}
	return rows[2:]
}

var quoted = regexp.MustCompile("`([^`]+)`")

// named returns what a cell has between backquotes.
func named(cell string) (names []string) {
	for _, m := range quoted.FindAllStringSubmatch(cell, -1) {
		names = append(names, m[1])
	}
	return names
}

// source returns the text of the test or of the scenario file of that name, or an
// error if there is none.
func (x *index) source(name string) (string, error) {
	if !strings.Contains(name, "Test") {
		text, err := os.ReadFile(filepath.Join("internal/core/testdata", name+".txt"))
		return string(text), err
	}
	pkg := "xds"
	if at := strings.LastIndex(name, ".Test"); at >= 0 {
		pkg, name = name[:at], name[at+1:]
	}
	name, sub, _ := strings.Cut(name, "/")
	if x.tests[pkg] == nil {
		x.tests[pkg] = make(map[string]string)
		files, _ := filepath.Glob(filepath.Join("..", pkg, "*_test.go"))
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return "", err
			}
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, file, text, parser.ParseComments)
			if err != nil {
				return "", err
			}
			for _, d := range f.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
					from := fn.Pos()
					if fn.Doc != nil {
						from = fn.Doc.Pos()
					}
					x.tests[pkg][fn.Name.Name] = string(text[fset.Position(from).Offset:fset.Position(fn.End()).Offset])
				}
			}
		}
	}
	text, there := x.tests[pkg][name]
	if !there {
		return "", fmt.Errorf("package %s has no %s", pkg, name)
	}
	if sub != "" && !strings.Contains(text, fmt.Sprintf("%q", sub)) {
		return "", fmt.Errorf("%s has no part %q", name, sub)
	}
	return text, nil
}

// Every report of the table has tests that bear its number, or the reason why there
// is nothing to test.
func TestBugsAreIndexed(t *testing.T) {
	x := &index{t, make(map[string]map[string]string)}
	rows := x.rows("BUGS.md")
	if len(rows) != 37 {
		t.Errorf("%d reports, want 37", len(rows))
	}
	for i, row := range rows {
		number := fmt.Sprintf("%02d", i+1)
		if len(row) != 4 || row[0] != number {
			t.Errorf("row %d: %q", i+1, row)
			continue
		}
		tests := named(row[3])
		if len(tests) == 0 && !strings.HasPrefix(row[3], "can't apply: ") {
			t.Errorf("bug %s: nothing shows it", number)
		}
		for _, name := range tests {
			text, err := x.source(name)
			if err != nil {
				t.Errorf("bug %s: %v", number, err)
			} else if !strings.Contains(text, "bug "+number) {
				t.Errorf("bug %s: %s does not bear its number", number, name)
			}
		}
	}
}

// Every scenario of gRPC's clients has a test here, which exists.
func TestScenariosAreIndexed(t *testing.T) {
	x := &index{t, make(map[string]map[string]string)}
	var there []string
	for _, row := range x.rows("internal/core/SCENARIOS.md") {
		there = append(there, row[0])
		for _, name := range named(row[1]) {
			if name == "dump" { // a word of the scenarios' language
				continue
			}
			if _, err := x.source(name); err != nil {
				t.Errorf("%s: %v", row[0], err)
			}
		}
	}
	for _, want := range strings.Fields(`
		ACK_NACK_Simple NACK_InvalidFirstResponse ACK_NACK_ResourceIsNotRequestedAnymore
		NACKError_DuplicateSuppression NACKError_DuplicateSuppression_MultipleResources
		BackoffAfterStreamFailure RetriesAfterBrokenStream ResourceRequestedBeforeStreamCreation
		FlowControl_SingleResource FlowControl_MultipleResources FlowControl_ResourceErrors FlowControl_ResourceDoesNotExist
		ResourcesAreRequestedAfterStreamRestart WatchState_StreamBreaks WatchState_TimerFires
		Authority_XDSChannelSharing Authority_XDSChannelClose Authority_Fallback
		Watch TwoWatchesForSameResourceName ThreeWatchesForDifferentResourceNames ResourceCaching
		ExpiryTimerFiresBeforeResponse ValidResponseCancelsExpiryTimerBehavior ResourceRemoved
		NewWatcherForRemovedResource NACKError ResourceCaching_NACKError PartialValid PartialResponse
		WatchCallAnotherWatch NodeProtoSentOnlyInFirstRequest WatchErrorsContainNodeID Federation_ContextParameterOrder
		Fallback_OnStartup Fallback_MidUpdate Fallback_MidStartup Fallback_ThreeServerPromotion`) {
		if !slices.Contains(there, want) {
			t.Errorf("%s is not in the table", want)
		}
	}
}
