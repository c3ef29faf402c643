package config

import (
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/v2"
)

// block is the schema of one block, read from the tags of its struct.
type block struct {
	name   string // "" is the top level
	label  *field // nil: none
	kind   *field // label or argument that chooses among the arguments, or nil
	fields []field
	body   *hcl.BodySchema
}

// field is an argument, a block or a label.
type field struct {
	name     string
	index    int // in the struct
	def      string
	min, max string // of range
	enum     []string
	forKinds []string // nil belongs to all kinds
	required bool
	secret   bool
	env      string // another variable, below GATEHOUSE_*
	block    *block // nil: an argument
	many     bool   // a block that may occur several times
	live     bool   // a reload can change it, and all in it
}

// newBlock reads the schema of t. The tags are part of the program, so
// mistakes in them show in tests.
func newBlock(name string, t reflect.Type) *block {
	b := &block{name: name, body: &hcl.BodySchema{}}
	for i := range t.NumField() {
		sf := t.Field(i)
		tag, ok := sf.Tag.Lookup("hcl")
		if !ok {
			continue
		}
		name, option, _ := strings.Cut(tag, ",")
		f := field{
			name:     name,
			index:    i,
			def:      sf.Tag.Get("default"),
			required: sf.Tag.Get("required") != "",
			secret:   sf.Type == reflect.TypeFor[Secret]() || sf.Tag.Get("secret") != "",
			env:      sf.Tag.Get("env"),
			live:     sf.Tag.Get("reload") != "",
		}
		f.min, f.max, _ = strings.Cut(sf.Tag.Get("range"), "..")
		if enum := sf.Tag.Get("enum"); enum != "" {
			f.enum = strings.Split(enum, "|")
		}
		if kinds := sf.Tag.Get("for"); kinds != "" {
			f.forKinds = strings.Split(kinds, "|")
		}
		switch option {
		case "label":
			b.label = &f
			if f.enum != nil {
				b.kind = &f
			}
			continue
		case "kind":
			b.kind = &f
		case "block":
			inner := sf.Type
			if f.many = inner.Kind() == reflect.Slice; f.many {
				inner = inner.Elem()
			}
			f.block = newBlock(f.name, inner)
			header := hcl.BlockHeaderSchema{Type: f.name}
			if l := f.block.label; l != nil {
				header.LabelNames = []string{"name"}
				if l.enum != nil {
					header.LabelNames[0] = "kind"
				}
			}
			b.body.Blocks = append(b.body.Blocks, header)
			b.fields = append(b.fields, f)
			continue
		}
		b.body.Attributes = append(b.body.Attributes, hcl.AttributeSchema{Name: f.name})
		b.fields = append(b.fields, f)
	}
	return b
}

// isFor reports whether f belongs to a block of that kind.
func (f *field) isFor(kind string) bool {
	return f.forKinds == nil || slices.Contains(f.forKinds, kind)
}

// allows reports whether f's enum has s. 0xNN in an enum stands for a byte.
func (f *field) allows(s string) bool {
	return slices.ContainsFunc(f.enum, func(e string) bool {
		head, isByte := strings.CutSuffix(e, "0xNN")
		if !isByte {
			return s == e
		}
		_, ok := ParseByte(strings.TrimPrefix(s, head))
		return ok && strings.HasPrefix(s, head)
	})
}

// ParseByte reads a byte written as 0xNN.
func ParseByte(s string) (byte, bool) {
	digits, ok := strings.CutPrefix(s, "0x")
	n, err := strconv.ParseUint(digits, 16, 8)
	return byte(n), ok && err == nil && len(digits) == 2
}

// isKind reports whether f is the argument that chooses b's kind.
func (b *block) isKind(f *field) bool {
	return b.kind != nil && b.kind != b.label && b.kind.index == f.index
}

// kindOf returns the kind that v, a struct of schema b, has by now.
func (b *block) kindOf(v reflect.Value) string {
	if b.kind == nil {
		return ""
	}
	return v.Field(b.kind.index).String()
}

// names returns the names of b's arguments and blocks.
func (b *block) names() (names []string) {
	for _, f := range b.fields {
		names = append(names, f.name)
	}
	return names
}

// owners returns the names of b and the blocks inside it that have an argument or
// block of that name, each once.
func (b *block) owners(name string) []string {
	var found []string
	for _, f := range b.fields {
		if f.name == name && b.name != "" {
			found = append(found, b.name)
		}
		if f.block != nil {
			found = append(found, f.block.owners(name)...)
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// setting is a plain argument that the environment or a flag may set.
type setting struct {
	path path
	f    *field
	dst  reflect.Value
}

// settings returns the plain arguments of v's single blocks.
func (b *block) settings(p path, v reflect.Value) []setting {
	var all []setting
	for i := range b.fields {
		f := &b.fields[i]
		dst, at := v.Field(f.index), p.sub(f.name)
		switch {
		case f.many || dst.Kind() == reflect.Map || dst.Kind() == reflect.Slice:
		case f.block != nil:
			all = append(all, f.block.settings(at, dst)...)
		default:
			all = append(all, setting{at, f, dst})
		}
	}
	return all
}

// path is the place of a value in a configuration, by names and indices.
type path string

func (p path) sub(parts ...string) path {
	for _, s := range parts {
		if p != "" {
			p += "\x00" // occurs in no name
		}
		p += path(s)
	}
	return p
}

func (p path) parent() path {
	i := strings.LastIndexByte(string(p), 0)
	return p[:max(i, 0)]
}

// join returns the names of p with sep between them.
func (p path) join(sep string) string { return strings.ReplaceAll(string(p), "\x00", sep) }
