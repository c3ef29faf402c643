package config

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gatehouse.internal/discovery"
	"gatehouse.internal/lbcore"
)

// docsFile is the reference of the configuration. The struct tags say what there
// is, the comments of the fields what it means, and testdata/docs shows it.
const docsFile = "../../../../docs/configuration.md"

const docsHead = `# Configuration

<!-- Made by go test ./cmd/agent/internal/config -run TestDocs -update from the types there. -->

What the blocks and arguments of a configuration mean. It is HCL, or JSON of the same
schema in files that end in ` + "`.json`" + `. ` + "`gatehouse validate`" + ` finds all mistakes at
once; unknown and repeated keys are mistakes.

Defaults come first, then files in the order in which they are given, the environment,
and flags; what comes later wins, for each argument of a single block by itself. A
directory stands for its ` + "`*.hcl` and `*.json`" + ` files in the order of their names. A
cluster or listener comes whole from one file. Each argument of a single block that is
no list and no object has a variable: ` + "`log.level`" + ` is ` + "`GATEHOUSE_LOG_LEVEL`" + `.

Durations are text as ` + "`\"250ms\"`, `\"5s\"` or `\"1m30s\"`" + `. HCL wants each argument on a line
of its own; in one line a block holds at most one. *Source* is where a name and its
meaning come from, as a field of Envoy's API.
`

// docs writes the reference.
type docs struct {
	out      bytes.Buffer
	comments map[string]string            // of types, and of fields as "Type.Field"
	keys     map[string]string            // "Type.Field" as operators write it
	own      map[string]map[string]string // by type: fields as operators write them
	types    map[string]string            // as operators write their blocks
	written  map[string]string            // types that have a section, and its block
	errs     []string
}

func (d *docs) fail(format string, args ...any) {
	d.errs = append(d.errs, fmt.Sprintf(format, args...))
}

func newDocs(t *testing.T) *docs {
	d := &docs{comments: map[string]string{}, keys: map[string]string{}, own: map[string]map[string]string{}, types: map[string]string{}, written: map[string]string{}}
	d.read(t)
	return d
}

// read reads the comments of all types. A field without one that follows another is
// covered by that one's.
func (d *docs) read(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			decl, ok := n.(*ast.GenDecl)
			if !ok || decl.Tok != token.TYPE {
				return true
			}
			for _, s := range decl.Specs {
				spec := s.(*ast.TypeSpec)
				st, ok := spec.Type.(*ast.StructType)
				if !ok {
					continue
				}
				d.comments[spec.Name.Name] = firstParagraph(cmp.Or(spec.Doc, decl.Doc))
				for _, field := range st.Fields.List {
					for _, id := range field.Names {
						d.comments[spec.Name.Name+"."+id.Name] = firstParagraph(field.Doc)
					}
				}
			}
			return true
		})
	}
}

// firstParagraph is what operators read; what is behind an empty line is for who
// reads the code.
func firstParagraph(c *ast.CommentGroup) string {
	text, _, _ := strings.Cut(c.Text(), "\n\n")
	return strings.Join(strings.Fields(text), " ")
}

// name notes how operators write the fields of b and of the blocks inside it.
func (d *docs) name(b *block, t reflect.Type) {
	if d.own[t.Name()] != nil {
		return
	}
	own := map[string]string{}
	d.own[t.Name()] = own
	d.types[t.Name()] = b.name
	for _, f := range b.fields {
		sf := t.Field(f.index)
		own[sf.Name] = f.name
		d.keys[t.Name()+"."+sf.Name] = strings.TrimPrefix(b.name+"."+f.name, ".")
		if f.block != nil {
			d.name(f.block, element(sf.Type))
		}
	}
}

func element(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Slice {
		return t.Elem()
	}
	return t
}

var (
	goName      = regexp.MustCompile(`\b(?:([A-Z]\w*)\.)?([A-Z]\w*)\b`)
	oneWord     = regexp.MustCompile(`^([A-Z][a-z0-9]*|[A-Z]+)$`)
	allCapitals = regexp.MustCompile(`^[A-Z]+$`)
	sourceOf    = regexp.MustCompile(`\bSource: .*$`)
	leftOver    = regexp.MustCompile(`\b[a-z]\w*\.[A-Z]\w+|\b[A-Z][a-z0-9]+[A-Z]\w*\.[A-Z]\w*|\b(?:[A-Z][a-z0-9]+){2,}\b`)
	// capitalised are names outside of this program.
	capitalised = regexp.MustCompile(`\b(ClientHello|HashiCorp|OpenSSL)\b`)
)

// anywhere returns how operators write the field called name, if all types that have
// it agree.
func (d *docs) anywhere(name string) (key string) {
	for _, own := range d.own {
		if own[name] != "" && key != "" && own[name] != key {
			return ""
		}
		key = cmp.Or(key, own[name])
	}
	return key
}

// text turns the comment of a field, or of a type, into what operators read.
func (d *docs) text(at, typ, comment string) string {
	text, src := comment, sourceOf.FindString(comment)
	text = strings.TrimSpace(strings.TrimSuffix(text, src))
	var out strings.Builder
	last := 0
	for _, m := range goName.FindAllStringSubmatchIndex(text, -1) {
		out.WriteString(text[last:m[0]])
		last = m[1]
		name := text[m[4]:m[5]]
		switch {
		case m[2] >= 0:
			name = cmp.Or(d.keys[text[m[0]:m[1]]], text[m[0]:m[1]])
		case !oneWord.MatchString(name): // no word of English
			name = cmp.Or(d.own[typ][name], d.types[name], d.anywhere(name), name)
		case m[0] == 0 && name == typ:
			name = d.types[name]
		case m[0] == 0, !allCapitals.MatchString(name) && name != typ && name != "Consul" && !strings.HasSuffix(text[:m[0]], ". "):
			name = cmp.Or(d.own[typ][name], name)
		}
		if name != text[m[0]:m[1]] {
			name = "`" + name + "`"
		}
		out.WriteString(name)
	}
	text = out.String() + text[last:]
	if bad := leftOver.FindString(capitalised.ReplaceAllString(text, "")); bad != "" {
		d.fail("%s: %q in the comment of the Go type is for programmers, and would stand in docs/configuration.md: say it in an operator's words, or behind an empty line of the comment, which is left out there", at, bad)
	}
	if src != "" {
		text += " *" + strings.Replace(strings.TrimSuffix(src, "."), "Source:", "Source:*", 1) + "."
	}
	return text
}

// block writes the section of b, the block at path.
func (d *docs) block(path string, b *block, t reflect.Type, f *field, live bool) {
	if first, ok := d.written[t.Name()]; ok {
		fmt.Fprintf(&d.out, "\n## %s\n\nAs [%s](#%s).\n", path, first, anchor(first))
		return
	}
	if path != "" {
		d.written[t.Name()] = path
		fmt.Fprintf(&d.out, "\n## %s\n\n", path)
		d.head(path, b, t, f, live)
	} else {
		fmt.Fprint(&d.out, "\n## Top level\n\n")
	}
	var blocks []field
	said := func(f field) string { return d.comments[t.Name()+"."+t.Field(f.index).Name] }
	for i, j := 0, 0; i < len(b.fields); i = j {
		for j = i + 1; j < len(b.fields) && b.fields[i].block == nil && b.fields[j].block == nil && said(b.fields[j]) == ""; j++ {
		}
		group, comment := b.fields[i:j], said(b.fields[i])
		at := strings.TrimPrefix(path+"."+group[0].name, ".")
		if comment == "" {
			d.fail("%s has no description: write one or two sentences into the comment of %s.%s (what it does, units, what 0 means, the default, the field of Envoy that it follows), and run this test with -update", at, t.Name(), t.Field(group[0].index).Name)
			continue
		}
		d.group(at, b, t, group, comment, live)
		if group[0].block != nil {
			blocks = append(blocks, group[0])
		}
	}
	for _, f := range blocks {
		d.block(strings.TrimPrefix(path+"."+f.name, "."), f.block, element(t.Field(f.index).Type), &f, live || f.live || path == "" && f.many)
	}
}

// head writes what a block is, and its example.
func (d *docs) head(path string, b *block, t reflect.Type, f *field, live bool) {
	comment := d.comments[t.Name()]
	if comment == "" {
		d.fail("the block %s has no description: write it into the comment of the type %s", path, t.Name())
	}
	fmt.Fprintf(&d.out, "%s\n\n", d.text(path, t.Name(), comment))
	label := ""
	if b.label != nil {
		label = ` "NAME"`
		if b.label.enum != nil {
			label = ` "KIND"`
		}
	}
	fmt.Fprintf(&d.out, "Written `%s%s { … }`", b.name, label)
	if f.many {
		fmt.Fprint(&d.out, ", as often as wanted")
	}
	fmt.Fprint(&d.out, ". ")
	if l := b.label; l != nil {
		name := t.Field(l.index).Name
		switch comment := d.comments[t.Name()+"."+name]; {
		case l.enum != nil:
			fmt.Fprintf(&d.out, "KIND is %s. ", words(l.enum))
		case comment == "":
			d.fail("the label of the block %s has no description: write it into the comment of %s.%s", path, t.Name(), name)
		default:
			// Only the name itself is in front: "Name is", or "URI is".
			fmt.Fprintf(&d.out, "NAME %s ", d.text(path, t.Name(), strings.TrimPrefix(comment, name)))
		}
	}
	switch anyLive := slices.ContainsFunc(b.fields, func(f field) bool { return f.live }); {
	case live:
		fmt.Fprint(&d.out, "A reload can change it.\n\n")
	case anyLive:
		fmt.Fprint(&d.out, "A reload can change what says so; the rest takes a restart.\n\n")
	default:
		fmt.Fprint(&d.out, "A change takes a restart.\n\n")
	}
	example := filepath.Join("testdata/docs", path+".hcl")
	text, err := os.ReadFile(example)
	if err != nil {
		d.fail("the block %s has no example: write a small configuration that is valid by itself and has that block into cmd/agent/internal/config/%s, and run this test with -update", path, example)
		return
	}
	fmt.Fprintf(&d.out, "```hcl\n%s```\n\n", text)
}

// group writes arguments with one description.
func (d *docs) group(at string, b *block, t reflect.Type, group []field, comment string, live bool) {
	text := d.text(at, t.Name(), comment)
	for i, f := range group {
		if name := t.Field(f.index).Name; len(group) > 1 && !regexp.MustCompile(`\b`+name+`\b`).MatchString(comment) {
			d.fail("%s.%s has no description, and the comment of the fields before it does not name it: give %s.%s a comment of one or two sentences (what it does, units, what 0 means, the default, the field of Envoy that it follows), and run this test with -update",
				strings.TrimSuffix(at, "."+group[0].name), f.name, t.Name(), name)
		}
		if i > 0 {
			fmt.Fprint(&d.out, "\n  ")
		} else {
			fmt.Fprint(&d.out, "- ")
		}
		fmt.Fprintf(&d.out, "**`%s`**", f.name)
		if f.block != nil {
			section := strings.TrimPrefix(at, ".")
			fmt.Fprintf(&d.out, ": [block](#%s)", anchor(section))
		} else {
			fmt.Fprintf(&d.out, ": %s", d.facts(&f, t.Field(f.index).Type, b, live))
		}
		if i < len(group)-1 {
			fmt.Fprint(&d.out, "<br>")
		}
		if f.forKinds != nil {
			text = strings.Replace(text, " ("+strings.Join(f.forKinds, ", ")+")", "", 1)
		}
		if f.env != "" { // said already
			text = regexp.MustCompile(` ?\bVariables? [A-Z_]+(( and|,) [A-Z_]+)*\.`).ReplaceAllString(text, "")
		}
		if f.def != "" { // said already
			text = regexp.MustCompile(` ?\bDefault `+regexp.QuoteMeta(f.def)+`(, (from|up to|at least)( (\d+(\.\d+)?\w*|to|GiB|KiB|MiB))+)?\.( |$)`).ReplaceAllString(text, "$6")
		}
	}
	fmt.Fprintf(&d.out, ".<br>\n  %s\n", strings.TrimSpace(text))
}

// facts is what the tags say of an argument.
func (d *docs) facts(f *field, t reflect.Type, b *block, live bool) string {
	facts := []string{typeName(f, t)}
	if f.forKinds != nil {
		facts = append(facts, "for "+words(f.forKinds))
	}
	zero := ""
	switch {
	case f.def != "" || f.required:
		zero = f.def
	case t.Kind() == reflect.Bool:
		zero = "false"
	case t == reflect.TypeFor[time.Duration]() && (f.min == "" || f.min == "0s"):
		zero = "0s"
	case slices.Contains([]reflect.Kind{reflect.Int, reflect.Uint32, reflect.Uint64, reflect.Float64}, t.Kind()) && f.enum == nil && (f.min == "" || f.min == "0"):
		zero = "0"
	}
	if t == reflect.TypeFor[FileMode]() {
		zero = ""
	}
	switch {
	case f.min != "" && f.max != "":
		facts = append(facts, fmt.Sprintf("`%s` to `%s`", f.min, f.max))
	case f.min != "":
		facts = append(facts, fmt.Sprintf("at least `%s`", f.min))
	}
	if zero != "" {
		facts = append(facts, "default `"+zero+"`")
	}
	if f.required {
		facts = append(facts, "required")
	}
	if f.env != "" {
		facts = append(facts, "also `"+f.env+"`")
	}
	if f.live && !live {
		facts = append(facts, "changed by a reload")
	}
	return strings.Join(facts, ", ")
}

func typeName(f *field, t reflect.Type) string {
	list := ""
	if t.Kind() == reflect.Slice && t != reflect.TypeFor[[]lbcore.Endpoint]() {
		list, t = "list of ", t.Elem()
	}
	if f.enum != nil {
		return list + words(f.enum)
	}
	names := map[reflect.Type]string{
		reflect.TypeFor[time.Duration]():     "duration",
		reflect.TypeFor[bool]():              "true or false",
		reflect.TypeFor[int]():               "whole number",
		reflect.TypeFor[uint32]():            "whole number",
		reflect.TypeFor[uint64]():            "whole number",
		reflect.TypeFor[float64]():           "number",
		reflect.TypeFor[string]():            "text",
		reflect.TypeFor[Secret]():            "text, never shown",
		reflect.TypeFor[Payload]():           "text, or hex behind `0x`",
		reflect.TypeFor[FileMode]():          "octal digits in quotes",
		reflect.TypeFor[StatusRange]():       "HTTP statuses, as `204` or `\"200-299\"`",
		reflect.TypeFor[netip.Addr]():        "IP address",
		reflect.TypeFor[netip.Prefix]():      "ranges of IP addresses",
		reflect.TypeFor[lbcore.Addr]():       "`IP:port` or `unix:///path`",
		reflect.TypeFor[slog.Level]():        "level",
		reflect.TypeFor[map[string]string](): "object of texts",
		reflect.TypeFor[map[string]any]():    "object",
		reflect.TypeFor[[]lbcore.Endpoint](): "list of endpoints",
	}
	name, ok := names[t]
	if !ok {
		panic("docs_test.go: say in typeName how operators write " + t.String() + ", the type of " + f.name)
	}
	return list + name
}

// words lists words as "`a`, `b` or `c`".
func words(list []string) string {
	text := ""
	for i, w := range list {
		switch {
		case i == 0:
		case i == len(list)-1:
			text += " or "
		default:
			text += ", "
		}
		text += "`" + w + "`"
	}
	return text
}

// anchor is the fragment that GitHub gives a heading.
func anchor(heading string) string {
	return regexp.MustCompile(`[^a-z0-9_-]`).ReplaceAllString(strings.ToLower(heading), "")
}

// docs/configuration.md is what the schema says, and every key has a description.
func TestDocs(t *testing.T) {
	d := newDocs(t)
	root := newBlock("", reflect.TypeFor[Config]())
	d.name(root, reflect.TypeFor[Config]())
	d.out.WriteString(docsHead)
	d.block("", root, reflect.TypeFor[Config](), nil, false)
	for _, err := range d.errs {
		t.Error(err)
	}
	if t.Failed() {
		return
	}
	if *update {
		if err := os.WriteFile(docsFile, d.out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(docsFile)
	if err != nil || !bytes.Equal(got, d.out.Bytes()) {
		t.Errorf("docs/configuration.md is not what the schema says (%v): run go test ./cmd/agent/internal/config -run TestDocs -update", err)
	}
}

// What lacks a description or an example is named, with what to do, and so is a comment
// that is for programmers.
func TestDocsNameWhatIsMissing(t *testing.T) {
	// undescribed is a block.
	type undescribed struct {
		// Timeout is how long it may take: see lbcore.Config.
		Timeout time.Duration `hcl:"timeout"`
		Size    int           `hcl:"size"`
		// Path is a file.
		//
		// See lbcore.Path.
		Path string `hcl:"path"`
	}
	d := newDocs(t)
	typ := reflect.TypeFor[undescribed]()
	b := newBlock("web", typ)
	d.name(b, typ)
	d.block("web", b, typ, &field{name: "web"}, false)
	all := strings.Join(d.errs, "\n")
	for _, want := range []string{
		"the block web has no example: write a small configuration", "testdata/docs/web.hcl",
		`web.timeout: "lbcore.Config" in the comment of the Go type is for programmers`,
		"web.size has no description, and the comment of the fields before it does not name it: give undescribed.Size a comment",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is not said:\n%s", want, all)
		}
	}
	if len(d.errs) != 3 || !strings.Contains(d.out.String(), "`path` is a file.\n") {
		t.Errorf("%s\n%s", all, &d.out)
	}
}

// Each example of the reference is valid by itself, without a warning, and has its
// block.
func TestDocsExamples(t *testing.T) {
	files, err := filepath.Glob("testdata/docs/*.hcl")
	if err != nil || len(files) < 20 {
		t.Fatalf("%d examples, %v", len(files), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".hcl")
		t.Run(name, func(t *testing.T) {
			cfg := mustLoad(t, Options{Paths: []string{file}, Hostname: "node-7"})
			for _, w := range cfg.Warnings {
				t.Errorf("warning: %v", w)
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, block := range strings.Split(name, ".") {
				if !regexp.MustCompile(`(?m)^\s*` + block + `\b`).Match(text) {
					t.Errorf("there is no block %s in it", block)
				}
			}
		})
	}
}

// Each block of HCL in README.md and docs is a valid configuration, without a warning.
// Words behind hcl say what it is a part of: in=listener the inside of such a block,
// endpoints the list of a discovery "file".
func TestDocsPages(t *testing.T) {
	files, err := filepath.Glob("../../../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	fence := regexp.MustCompile("(?ms)^( *)```hcl([^\n]*)\n(.*?)^ *```$")
	wrap := map[string]string{
		"":             "%s",
		"in=listener":  "cluster \"web\" {\n  discovery \"static\" { endpoints = [\"192.0.2.1:80\"] }\n}\nlistener \"web\" {\n  address = \"127.0.0.1:8080\"\n  cluster = \"web\"\n%s}\n",
		"in=cluster":   "cluster \"web\" {\n  discovery \"static\" { endpoints = [\"192.0.2.1:80\"] }\n%s}\n",
		"in=discovery": "cluster \"web\" {\n  discovery \"consul\" {\n%s}\n}\n",
	}
	n := 0
	for _, file := range append(files, "../../../../README.md") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range fence.FindAllStringSubmatchIndex(string(text), -1) {
			n++
			at := fmt.Sprintf("%s:%d", filepath.Base(file), 1+bytes.Count(text[:m[0]], []byte("\n")))
			how, body := strings.TrimSpace(string(text[m[4]:m[5]])), string(text[m[6]:m[7]])
			if strings.HasPrefix(how, "as=") {
				how = ""
			}
			if how == "endpoints" {
				if _, _, err := discovery.ParseFile("endpoints.hcl", []byte(body)); err != nil {
					t.Errorf("%s: %v", at, err)
				}
				continue
			}
			format, ok := wrap[how]
			if !ok {
				t.Errorf("%s: %q is not a way to test a block: see docs/development.md", at, how)
				continue
			}
			path := filepath.Join(t.TempDir(), "gatehouse.hcl")
			if err := os.WriteFile(path, fmt.Appendf(nil, format, body), 0o600); err != nil {
				t.Fatal(err)
			}
			cfg, err := Load(Options{Paths: []string{path}, Hostname: "node-7"})
			if err != nil {
				t.Errorf("%s: %v", at, err)
				continue
			}
			for _, w := range cfg.Warnings {
				t.Errorf("%s: warning: %v", at, w)
			}
		}
	}
	if n < 20 {
		t.Errorf("only %d blocks were found", n)
	}
}
