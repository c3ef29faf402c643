package config

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"

	"gatehouse.internal/internal/hcltext"
)

// decoder turns the bodies of files into a Config and collects the mistakes.
type decoder struct {
	root     *block
	cfg      *Config // so far
	sources  map[string]*source
	errs     Errors
	warnings Errors
	// at is where each value was set, or block begins: of several, the last.
	at map[path]hcl.Range
	// bad has the arguments with mistakes, and the blocks with mistakes that
	// can't be put down to one, so that others are not derived from them.
	bad map[path]bool
	// incomplete says that something could not be read, so that what seems to
	// be missing may be there.
	incomplete bool
	consul     bool            // see saysConsul
	exposed    map[string]bool // files that were warned of
	opts       Options
}

// newDecoder returns a decoder with the defaults.
func newDecoder() *decoder {
	d := &decoder{
		root:    newBlock("", reflect.TypeFor[Config]()),
		cfg:     &Config{},
		sources: map[string]*source{},
		at:      map[path]hcl.Range{},
		bad:     map[path]bool{},
		exposed: map[string]bool{},
	}
	d.defaults(d.root, reflect.ValueOf(d.cfg).Elem())
	return d
}

// isSet reports whether somebody has set an argument of p.
func (d *decoder) isSet(p path, names ...string) bool {
	return slices.ContainsFunc(names, func(n string) bool { _, ok := d.at[p.sub(n)]; return ok })
}

// source is a file.
type source struct {
	text  []byte // as it is parsed
	lines [][]byte
	bad   map[int]bool // lines with mistakes in syntax, made good in text
	torn  bool         // nothing can be said of it
	// secret has the lines that are not shown.
	secret map[int]bool
}

// mistake records a mistake in the argument or block p.
func (d *decoder) mistake(p path, rng hcl.Range, msg, hint string) {
	d.bad[p] = true
	d.add(rng, msg, hint)
}

// diagnostics records mistakes in the argument or block p.
func (d *decoder) diagnostics(p path, diags hcl.Diagnostics) {
	for _, diag := range diags {
		rng, msg, hint := explain(diag)
		d.mistake(p, rng, msg, hint)
	}
}

// defaults sets what v's arguments are where nobody sets them.
func (d *decoder) defaults(b *block, v reflect.Value) {
	if k := b.kind; k != nil && k.def != "" && v.Field(k.index).IsZero() {
		v.Field(k.index).SetString(k.def)
	}
	kind := b.kindOf(v)
	for i := range b.fields {
		f := &b.fields[i]
		switch dst := v.Field(f.index); {
		case f.block != nil && !f.many:
			d.defaults(f.block, dst)
		case b.isKind(f) || f.def == "" || !f.isFor(kind):
		default:
			if msg, _ := setText(f, dst, f.def); msg != "" {
				panic("config: default of " + b.name + "." + msg) // a mistake in the tags; a test meets all of them
			}
		}
	}
}

// block decodes body, the content of a block that begins at def, into v. The
// arguments of a fresh block get their defaults first, once its kind is known.
func (d *decoder) block(b *block, p path, v reflect.Value, body hcl.Body, def hcl.Range, fresh bool) {
	content, diags := body.Content(b.body)
	for _, diag := range diags {
		rng, msg, hint := explain(diag)
		at := p
		name := strings.Trim(string(rng.SliceBytes(d.sources[rng.Filename].text)), `"`)
		switch diag.Summary {
		case "Unsupported argument", "Unsupported block type", "Extraneous JSON object property":
			msg, hint = "unknown key "+strconv.Quote(name)+inside(b), d.whereIs(b, name)
			meant := hcltext.Nearest(name, b.names())
			if slices.ContainsFunc(b.fields, func(f field) bool { return f.secret && (f.name == meant || meant == "") }) {
				d.sources[rng.Filename].secret[rng.Start.Line] = true // the value may be a secret
			}
			at = p.sub(cmp.Or(meant, name)) // what was meant is not missed too
		case "Duplicate argument":
			at = p.sub(name)
		}
		d.mistake(at, rng, msg, hint)
	}

	kindKnown := true
	if k := b.kind; k != nil && k != b.label {
		if attr := content.Attributes[k.name]; attr != nil {
			kindKnown = d.value(p.sub(k.name), k, v.Field(k.index), attr.Expr)
		}
	}
	if fresh {
		d.defaults(b, v)
	}
	kind := b.kindOf(v)
	for i := range b.fields {
		f := &b.fields[i]
		attr := content.Attributes[f.name]
		mine := f.isFor(kind)
		switch {
		case f.block != nil || b.isKind(f):
		case attr == nil:
			if f.required && mine {
				d.mistake(p.sub(f.name), def, fmt.Sprintf("no %s%s", f.name, inside(b)), "it is required")
			}
		case !mine && kindKnown:
			owners := `"` + strings.Join(f.forKinds, `" or "`) + `"`
			d.mistake(p, attr.NameRange, fmt.Sprintf("%s is for %s, and this %s is %q", f.name, owners, b.name, kind), "leave it out")
		default:
			d.value(p.sub(f.name), f, v.Field(f.index), attr.Expr)
		}
	}

	single := map[string]hcl.Range{}
	for _, blk := range content.Blocks {
		i := slices.IndexFunc(b.fields, func(f field) bool { return f.name == blk.Type })
		f := &b.fields[i]
		if f.many {
			d.element(p, f, v.Field(f.index), blk)
			continue
		}
		at := p.sub(f.name)
		if first, ok := single[f.name]; ok {
			d.mistake(p, blk.TypeRange, f.name+" is there twice", "put all into the block at "+d.position(first))
		} else {
			single[f.name] = blk.TypeRange
			d.at[at] = blk.TypeRange
		}
		d.block(f.block, at, v.Field(f.index), blk.Body, blk.TypeRange, false)
	}
}

// element decodes one of the blocks of a kind that may occur several times,
// and appends it to list.
func (d *decoder) element(p path, f *field, list reflect.Value, blk *hcl.Block) {
	if f.block.label == nil { // found by its number
		at := p.sub(f.name, strconv.Itoa(list.Len()))
		d.at[at] = blk.TypeRange
		v := reflect.New(list.Type().Elem()).Elem()
		d.block(f.block, at, v, blk.Body, blk.TypeRange, true)
		list.Set(reflect.Append(list, v))
		return
	}
	label, rng := blk.Labels[0], blk.LabelRanges[0]
	l := f.block.label
	at := p.sub(f.name, label)
	twice := false
	if l == f.block.kind {
		if !slices.Contains(l.enum, label) {
			d.mistake(p.sub(f.name), rng, fmt.Sprintf("unknown %s %q", f.name, label), hcltext.Suggest(label, l.enum))
			return
		}
		at = p.sub(f.name, strconv.Itoa(list.Len()))
	} else {
		if label == "" || len(label) > maxName || strings.ContainsFunc(label, unprintable) {
			d.mistake(p.sub(f.name), rng, "not a name for a "+f.name, fmt.Sprintf("1 to %d printable characters", maxName))
		}
		var first hcl.Range
		if first, twice = d.at[at]; twice {
			name := strconv.Quote(label)
			if strings.ContainsAny(label, "@?#") { // an address with a secret in it, by mistake
				name = "of this name"
			}
			d.mistake(p.sub(f.name), rng, fmt.Sprintf("%s %s is defined twice", f.name, name), "the other one is at "+d.position(first))
			at = p.sub(f.name, label, "again") // only to find the mistakes inside
		}
	}
	d.at[at] = rng
	v := reflect.New(list.Type().Elem()).Elem()
	v.Field(l.index).SetString(label)
	d.block(f.block, at, v, blk.Body, rng, true)
	if !twice {
		list.Set(reflect.Append(list, v))
	}
}

const maxName = 255

func unprintable(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError }

// whereIs says what an operator may have meant by the unknown key name in b.
func (d *decoder) whereIs(b *block, name string) string {
	names := b.names()
	for _, f := range b.fields {
		switch {
		case f.name != name:
		case f.block != nil:
			return name + " is a block: write it with braces and without ="
		default:
			return name + " is an argument: write it with ="
		}
	}
	if near := hcltext.Nearest(name, names); near != "" {
		return fmt.Sprintf("did you mean %q?", near)
	}
	if owners := d.root.owners(name); len(owners) > 0 {
		return "it belongs in " + strings.Join(owners, " or ")
	}
	return hcltext.Suggest(name, names)
}

func inside(b *block) string {
	if b.name == "" {
		return ""
	}
	return " in " + b.name
}

// notPlain returns the first part of x that depends on something else, or is a
// number good for nothing: its text could take gigabytes.
func notPlain(x hcl.Expression) hclsyntax.Node {
	root, ok := x.(hclsyntax.Node)
	if !ok {
		return nil // JSON: text stays text without an EvalContext
	}
	var culprit hclsyntax.Node
	hclsyntax.VisitAll(root, func(n hclsyntax.Node) hcl.Diagnostics {
		plain := false
		switch n := n.(type) {
		case *hclsyntax.LiteralValueExpr:
			plain = !isNumber(n.Val) || magnitude(n.Val) <= 1024
		case *hclsyntax.UnaryOpExpr:
			plain = n.Op == hclsyntax.OpNegate
		case *hclsyntax.TemplateExpr, *hclsyntax.TupleConsExpr, *hclsyntax.ObjectConsExpr, *hclsyntax.ObjectConsKeyExpr,
			*hclsyntax.ParenthesesExpr, *hclsyntax.ExprSyntaxError:
			plain = true
		}
		if !plain && culprit == nil {
			culprit = n
		}
		return nil
	})
	return culprit
}
