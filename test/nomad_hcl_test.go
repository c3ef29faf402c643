package test

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/nomad/api"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	"github.com/zclconf/go-cty/cty/gocty"
)

// readJob reads a job file into Nomad's own type, by the tags of that. A key that the
// type does not have is an error: nomad/api has no reader, and Nomad's is part of its
// server.
func readJob(t *testing.T, path string) *api.Job {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	file, diags := hclparse.NewParser().ParseHCL(text, path)
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	d := &jobReader{t: t, text: text}
	body := file.Body.(*hclsyntax.Body)
	if len(body.Blocks) != 1 || body.Blocks[0].Type != "job" || len(body.Attributes) > 0 {
		t.Fatalf("%s is not one job", path)
	}
	job := new(api.Job)
	d.block(body.Blocks[0], reflect.ValueOf(job).Elem())
	job.Name = &body.Blocks[0].Labels[0]
	job.Canonicalize()
	return job
}

type jobReader struct {
	t    *testing.T
	text []byte
}

func (d *jobReader) fail(at hcl.Range, format string, args ...any) {
	d.t.Helper()
	d.t.Fatalf("%s: %s", at, fmt.Sprintf(format, args...))
}

// field returns the field of a struct that has this name in HCL; kind is block or
// optional.
func field(v reflect.Value, name, kind string) (reflect.Value, bool) {
	for i := range v.NumField() {
		tag, how, _ := strings.Cut(v.Type().Field(i).Tag.Get("hcl"), ",")
		if tag == name && (how == kind || how == "" && kind == "optional") {
			return v.Field(i), true
		}
	}
	return reflect.Value{}, false
}

// block reads a block into a struct.
func (d *jobReader) block(b *hclsyntax.Block, into reflect.Value) {
	if len(b.Labels) > 0 {
		for i := range into.NumField() {
			if _, how, _ := strings.Cut(into.Type().Field(i).Tag.Get("hcl"), ","); how == "label" {
				d.set(cty.StringVal(b.Labels[0]), b.Range(), into.Field(i))
			}
		}
	}
	for name, attr := range b.Body.Attributes {
		f, ok := field(into, name, "optional")
		if !ok {
			d.fail(attr.Range(), "%s has no %q", into.Type(), name)
		}
		d.set(d.value(attr.Expr), attr.Range(), f)
	}
	for _, inner := range b.Body.Blocks {
		f, ok := field(into, inner.Type, "block")
		if !ok {
			d.fail(inner.Range(), "%s has no block %q", into.Type(), inner.Type)
		}
		d.nested(inner, f)
	}
}

// nested reads a block into the field that is for such ones.
func (d *jobReader) nested(b *hclsyntax.Block, f reflect.Value) {
	switch t := f.Type(); {
	case t.Kind() == reflect.Slice:
		d.nested(b, grow(f))
	case t.Kind() == reflect.Pointer:
		f.Set(reflect.New(t.Elem()))
		d.nested(b, f.Elem())
	case t.Kind() == reflect.Struct:
		d.block(b, f)
	case t.Elem().Kind() == reflect.Pointer: // a map by label
		v := reflect.New(t.Elem().Elem())
		d.block(b, v.Elem())
		put(f, b.Labels[0], v)
	case t.Elem().Kind() == reflect.String:
		for name, attr := range b.Body.Attributes {
			v := reflect.New(t.Elem()).Elem()
			d.set(d.value(attr.Expr), attr.Range(), v)
			put(f, name, v)
		}
	default: // what a driver reads
		for name, attr := range b.Body.Attributes {
			put(f, name, reflect.ValueOf(d.value(attr.Expr)))
		}
		for _, inner := range b.Body.Blocks {
			v := reflect.New(reflect.TypeFor[map[string]any]()).Elem()
			d.nested(inner, v)
			put(f, inner.Type, v)
		}
	}
}

func grow(f reflect.Value) reflect.Value {
	f.Set(reflect.Append(f, reflect.Zero(f.Type().Elem())))
	return f.Index(f.Len() - 1)
}

func put(m reflect.Value, key string, v reflect.Value) {
	if m.IsNil() {
		m.Set(reflect.MakeMap(m.Type()))
	}
	m.SetMapIndex(reflect.ValueOf(key), v)
}

// value evaluates an expression. What Nomad's clients fill in stays as it is written.
func (d *jobReader) value(e hclsyntax.Expression) cty.Value {
	if len(e.Variables()) > 0 {
		return cty.StringVal(strings.Trim(string(e.Range().SliceBytes(d.text)), `"`))
	}
	v, diags := e.Value(nil)
	if diags.HasErrors() {
		d.t.Fatal(diags)
	}
	return v
}

// set stores a value in a field.
func (d *jobReader) set(v cty.Value, at hcl.Range, f reflect.Value) {
	if f.Kind() == reflect.Pointer {
		f.Set(reflect.New(f.Type().Elem()))
		f = f.Elem()
	}
	if f.Type() == reflect.TypeFor[time.Duration]() {
		if v.Type() != cty.String {
			d.fail(at, "a duration is written as \"5s\"")
		}
		n, err := time.ParseDuration(v.AsString())
		if err != nil {
			d.fail(at, "%v", err)
		}
		f.SetInt(int64(n))
		return
	}
	want, err := gocty.ImpliedType(f.Interface())
	if err == nil {
		v, err = convert.Convert(v, want)
	}
	if err == nil {
		err = gocty.FromCtyValue(v, f.Addr().Interface())
	}
	if err != nil {
		d.fail(at, "%v", err)
	}
}
