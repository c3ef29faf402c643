package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	hcljson "github.com/hashicorp/hcl/v2/json"

	"gatehouse.internal/internal/hcltext"
	"gatehouse.internal/lbcore"
)

// maxFileSize bounds a file, in bytes.
const maxFileSize = 4 << 20

// maxRepairs bounds how often a file with mistakes in its syntax is parsed.
const maxRepairs = 20

// Options says what to load.
type Options struct {
	// Paths are files and directories, in order. A file whose name ends in
	// ".json" is JSON, any other HCL.
	Paths []string
	// Hostname is the default of node.id.
	Hostname string
	// Env looks up an environment variable, as os.LookupEnv. Nil means that
	// there are none.
	Env func(name string) (value string, ok bool)
	// Flags win over everything else.
	Flags []Flag
	// Bootstrap looks at the bootstrap of the xds block; its error is a mistake
	// too. Nil means that nobody looks. XDSServer looks at a server block, as those
	// below do at theirs.
	Bootstrap func(XDS) error
	XDSServer func(XDSServer) error
	// TLSFiles has the files that tls blocks name looked at, and that of the token of
	// the admin interface: it is a mistake if they can't be used. Keys and tokens that
	// other users can read are a warning, once for each file, and so are files of the
	// configuration with a secret in them.
	TLSFiles bool
	// SocketMark says why this process can't mark sockets, and is asked if a
	// cluster is to; its error is a mistake. Nil means that nobody looks.
	SocketMark func() error
	// SocketOwner says why these can't own a unix socket's file, of which either
	// may be empty; its error is a mistake. Nil means that nobody looks.
	SocketOwner func(user, group string) error
	// LogFiles has the paths of access logs looked at: it is a mistake if there
	// can be no file.
	LogFiles bool
	// StateDir looks at the directory of state_dir; its error is a mistake. Nil means
	// that nobody looks.
	StateDir func(dir string) error
	// Consul, Register and Query look at the consul block, at its register
	// block, and at a discovery "consul". They return the mistakes joined by
	// errors.Join, each beginning with the name of the argument and a colon. Nil
	// means that nobody looks.
	Consul   func(Consul) error
	Register func(Register, Admin) error
	Query    func(Discovery) error
	// DNS and Name look, likewise, at the dns block and at a discovery "dns".
	DNS  func(DNS) error
	Name func(Discovery) error
	// Searched returns the names that the one of a discovery "dns" may mean, in the
	// order in which they are tried; several are a warning. Nil means that nobody
	// looks.
	Searched func(DNS, Discovery) []string
	// AccessLog looks at the format of an access log, and returns the operators
	// that it does not know, which is a warning. Nil means that nobody looks.
	AccessLog func(format string) (unknown []string, err error)
}

// Flag is a value of the command line for one argument.
type Flag struct {
	Name  string // as the operator wrote it, "-log-level"
	Path  string // of the argument, "log.level"
	Value string
}

// Load reads a configuration. The error, if any, is Errors with all mistakes
// that there are; there is no configuration then. Without any Paths it is made
// of defaults, environment and flags.
func Load(opts Options) (*Config, error) {
	d := newDecoder()
	d.level(func() {
		for _, name := range d.files(opts.Paths) {
			if text, ok := d.read(name); ok {
				d.file(name, text)
			}
		}
	})
	return d.result(opts)
}

// env returns a variable of the environment, "" if it is not set.
func (o Options) env(name string) string {
	if o.Env == nil || name == "" {
		return ""
	}
	text, _ := o.Env(name)
	return text
}

// file decodes a file.
func (d *decoder) file(name string, text []byte) {
	if body, ok := d.parse(name, text); ok {
		d.block(d.root, "", reflect.ValueOf(d.cfg).Elem(), body, hcl.Range{Filename: name, Start: hcl.InitialPos}, false)
	}
}

// result puts the environment and the flags upon the files, and returns what
// came out of all.
func (d *decoder) result(opts Options) (*Config, error) {
	d.opts = opts
	d.settings(opts)
	d.finish(opts)
	d.check(d.cfg)
	if len(d.errs) > 0 {
		return nil, d.errs.sorted()
	}
	d.cfg.Warnings = d.warnings.sorted()
	return d.cfg, nil
}

// files returns the files that paths stand for.
func (d *decoder) files(paths []string) []string {
	var files []string
	for _, p := range paths {
		info, err := os.Stat(p)
		if err != nil {
			d.unreadable(p, err)
			continue
		}
		if !info.IsDir() {
			files = append(files, p)
			continue
		}
		entries, err := os.ReadDir(p) // sorted by name
		if err != nil {
			d.unreadable(p, err)
			continue
		}
		before := len(files) + len(d.errs)
		for _, e := range entries {
			name := e.Name()
			if ext := filepath.Ext(name); name[0] == '.' || e.IsDir() || ext != ".hcl" && ext != ".json" {
				continue
			}
			name = filepath.Join(p, name)
			if e.Type()&fs.ModeSymlink != 0 {
				d.unreadable(name, errors.New("symbolic links in a directory are not followed"))
				continue
			}
			files = append(files, name)
		}
		if len(files)+len(d.errs) == before {
			d.unreadable(p, errors.New("no configuration in this directory"))
		}
	}
	return files
}

func (d *decoder) unreadable(name string, err error) {
	hint := "name a file, or a directory with *.hcl and *.json files"
	if errors.Is(err, fs.ErrPermission) {
		hint = "let the agent's user read it"
	}
	if perr, ok := errors.AsType[*fs.PathError](err); ok {
		err = perr.Err // the path stands in front of it
	}
	d.incomplete = true
	d.add(hcl.Range{Filename: name}, err.Error(), hint)
}

// read returns the content of a file.
func (d *decoder) read(name string) ([]byte, bool) {
	f, err := os.Open(name)
	if err != nil {
		d.unreadable(name, err)
		return nil, false
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFileSize+1))
	err = errors.Join(err, f.Close())
	if err == nil && len(text) > maxFileSize {
		err = fmt.Errorf("larger than %d bytes", maxFileSize)
	}
	if err != nil {
		d.unreadable(name, err)
		return nil, false
	}
	return text, true
}

// parse parses a file. HCL's parser does not say much after the first mistake
// in syntax, so it gets the file again with the line of the mistake made good,
// until nothing is left, or the mistake is beyond that: then the file is torn,
// and there is nothing to be said about the rest of it.
func (d *decoder) parse(name string, text []byte) (hcl.Body, bool) {
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	src := &source{text: text, lines: bytes.Split(text, []byte("\n")), bad: map[int]bool{}, secret: map[int]bool{}}
	src.hide()
	d.sources[name] = src
	for i, n := 0, 0; i < len(text); i += n {
		var r rune
		if r, n = utf8.DecodeRune(text[i:]); r == utf8.RuneError && n == 1 {
			// Package hcl would go on to find places that the file hasn't got.
			d.add(hcltext.Place(name, text, i), "not UTF-8", "save it in that encoding")
			d.tear(src)
			return nil, false
		}
	}
	if strings.EqualFold(filepath.Ext(name), ".json") {
		return d.parseJSON(name, src)
	}
	for {
		if rng, ok := hcltext.TooDeep(name, src.text); ok {
			d.add(rng, "nested too deeply, or too many operators", "values are plain: text, numbers, true, false, lists and objects")
			d.tear(src)
			return nil, false
		}
		file, diags := hclsyntax.ParseConfig(src.text, name, hcl.InitialPos)
		var first *hcl.Diagnostic // the others may follow from it
		for _, diag := range diags {
			if diag.Summary != "Attribute redefined" && (first == nil || diag.Subject.Start.Byte < first.Subject.Start.Byte) {
				first = diag
			}
		}
		if first == nil {
			d.diagnostics("", diags)
			return file.Body, true
		}
		d.diagnostics("", hcl.Diagnostics{first})
		line := first.Subject.Start.Line
		if src.bad[line] || len(src.bad) >= maxRepairs || !d.repair(src, line) {
			d.tear(src)
			return nil, false
		}
		src.bad[line] = true
	}
}

func (d *decoder) parseJSON(name string, src *source) (hcl.Body, bool) {
	if at, err := hcltext.CheckJSON(src.text); err != nil {
		d.add(hcltext.Place(name, src.text, at), "JSON: "+err.Error(), "JSON knows no comments, and no comma before a closing bracket")
		d.tear(src)
		return nil, false
	}
	file, diags := hcljson.Parse(src.text, name)
	if len(diags) > 0 {
		d.diagnostics("", diags[:1])
		d.tear(src)
		return nil, false
	}
	return file.Body, true
}

func (d *decoder) tear(src *source) {
	src.torn = true
	d.incomplete = true
}

var startOfItem = regexp.MustCompile(`^[ \t]*([A-Za-z_][A-Za-z0-9_-]*)`)

// repair makes the argument in a line null, or takes out the block that is all
// in it, and reports if it could.
func (d *decoder) repair(src *source, line int) bool {
	lines := bytes.Split(src.text, []byte("\n"))
	item := startOfItem.FindSubmatch(lines[line-1])
	if item == nil {
		return false
	}
	open, hasBlock := 0, false
	for _, c := range lines[line-1] {
		switch c {
		case '{', '[', '(':
			open++
			hasBlock = hasBlock || c == '{'
		case '}', ']', ')':
			open--
		}
		if open < 0 {
			return false
		}
	}
	if open > 0 {
		return false
	}
	lines[line-1] = []byte(string(item[1]) + " = null")
	if hasBlock {
		lines[line-1] = nil
		d.incomplete = true
	}
	src.text = bytes.Join(lines, []byte("\n"))
	return true
}

// settings applies the environment and the flags.
func (d *decoder) settings(opts Options) {
	settings := d.root.settings("", reflect.ValueOf(d.cfg).Elem())
	environment := func(name func(setting) string) {
		d.level(func() {
			for _, s := range settings {
				if text := opts.env(name(s)); text != "" {
					d.override(s, name(s), text)
				}
			}
		})
	}
	if d.consul = d.saysConsul(settings, opts); d.consul { // whose variables the others are
		environment(func(s setting) string { return s.f.env })
	}
	environment(variable)
	d.level(func() {
		for _, f := range opts.Flags {
			i := slices.IndexFunc(settings, func(s setting) bool { return s.path.join(".") == f.Path })
			if i < 0 {
				d.add(hcl.Range{Filename: f.Name}, "there is no argument "+f.Path, "")
				continue
			}
			d.override(settings[i], f.Name, f.Value)
		}
	})
}

// variable returns the name of the variable that sets s.
func variable(s setting) string { return "GATEHOUSE_" + strings.ToUpper(s.path.join("_")) }

// runtimeDirectory returns the first directory that a service manager has made for
// the agent, or "".
func runtimeDirectory(opts Options) string {
	if opts.Env == nil {
		return ""
	}
	dirs, _ := opts.Env("RUNTIME_DIRECTORY")
	first, _, _ := strings.Cut(dirs, ":")
	return first
}

// finish fills in the defaults that depend on other values.
func (d *decoder) finish(opts Options) {
	if n := &d.cfg.Node; n.ID == "" && !d.isSet("node", "id") {
		n.ID = opts.Hostname
	}
	if t := &d.cfg.Takeover; t.Socket == "" && !d.isSet("takeover", "socket") {
		if dir := cmp.Or(runtimeDirectory(opts), d.cfg.StateDir); filepath.IsAbs(dir) {
			t.Socket = filepath.Join(dir, "takeover.sock")
		}
	}
	for i := range d.cfg.Clusters {
		c := &d.cfg.Clusters[i]
		c.Origin = OriginFile
		for j := range c.Discovery {
			switch x := &c.Discovery[j]; {
			case x.Kind == DiscoveryEDS && x.ServiceName == "":
				x.ServiceName = c.Name
			case x.Kind == DiscoveryConsul && x.Service == "" && x.PreparedQuery == "":
				x.Service = c.Name
			}
		}
		if len(c.Selectors) == 0 {
			c.Selectors = defaultSelectors()
		}
		for j := range c.Selectors {
			if s := &c.Selectors[j]; s.HashFunction == HashKetama {
				s.MinimumRingSize = 0
			}
		}
	}
	d.finishConsul()
	d.finishXDS(opts)
	d.finishOutlier()
	d.finishTLS()
	d.finishConnect()
	for i := range d.cfg.Listeners {
		d.cfg.Listeners[i].Origin = OriginFile
	}
}

func defaultSelectors() []Selector {
	return []Selector{{Name: DefaultSelector, Policy: PolicyRoundRobin}}
}

// DefaultCluster returns what a file's cluster without any setting but its
// discovery is, for clusters that come from elsewhere.
func DefaultCluster(name string, origin Origin, discovery ...Discovery) Cluster {
	c := defaultsOf[Cluster]("cluster")
	c.Name, c.Origin, c.Discovery, c.Selectors = name, origin, discovery, defaultSelectors()
	return c
}

// DefaultListener returns what a file's listener without any setting but its
// address and cluster is.
func DefaultListener(name string, origin Origin, address lbcore.Addr, cluster string) Listener {
	l := defaultsOf[Listener]("listener")
	l.Name, l.Origin, l.Address, l.Cluster = name, origin, address, cluster
	return l
}

func defaultsOf[T any](name string) (v T) {
	new(decoder).defaults(newBlock(name, reflect.TypeFor[T]()), reflect.ValueOf(&v).Elem())
	return v
}
