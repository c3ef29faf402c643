package config

import (
	"encoding/hex"
	"fmt"
	"log/slog"
	"math"
	"math/big"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"

	"gatehouse.internal/discovery"
	"gatehouse.internal/internal/hcltext"
	"gatehouse.internal/lbcore"
)

// value decodes x into dst, the argument p, and reports if it could. If not,
// dst is as before.
func (d *decoder) value(p path, f *field, dst reflect.Value, x hcl.Expression) bool {
	d.at[p] = x.Range()
	if n := notPlain(x); n != nil {
		msg, hint := f.name+" is not a plain value", "only text, numbers, true, false, lists and objects are possible"
		switch n.(type) {
		case *hclsyntax.ScopeTraversalExpr:
			hint = "text needs quotes"
			if !f.secret {
				hint += fmt.Sprintf(": %q", n.Range().SliceBytes(d.sources[n.Range().Filename].text))
			}
		case *hclsyntax.LiteralValueExpr:
			msg, hint = f.name+" is out of range", wanted(f)
		}
		d.mistake(p, n.Range(), msg, hint)
		return false
	}
	if eps, ok := dst.Addr().Interface().(*[]lbcore.Endpoint); ok {
		list, diags := discovery.DecodeEndpoints(x)
		if d.diagnostics(p, diags); diags.HasErrors() {
			return false
		}
		*eps = list
		return true
	}
	if dst.Kind() != reflect.Slice {
		return d.scalar(p, f, dst, x)
	}
	elems, diags := hcl.ExprList(x)
	if diags.HasErrors() {
		d.mistake(p, x.Range(), f.name+" must be a list", "write it in brackets: [ ... ]")
		return false
	}
	list, ok := reflect.Zero(dst.Type()), true // nil if empty
	for _, e := range elems {
		v := reflect.New(dst.Type().Elem()).Elem()
		ok = d.scalar(p, f, v, e) && ok
		list = reflect.Append(list, v)
	}
	if ok {
		dst.Set(list)
	}
	return ok
}

func (d *decoder) scalar(p path, f *field, dst reflect.Value, x hcl.Expression) bool {
	v, diags := x.Value(nil)
	if d.diagnostics(p, diags); diags.HasErrors() {
		return false
	}
	msg, hint := set(f, dst, v)
	if msg != "" {
		d.mistake(p, x.Range(), msg, hint)
	}
	return msg == ""
}

// override sets an argument from the environment or a flag, called name.
func (d *decoder) override(s setting, name, text string) {
	rng := hcl.Range{Filename: name}
	d.at[s.path] = rng
	if msg, hint := setText(s.f, s.dst, text); msg != "" {
		d.mistake(s.path, rng, msg, hint)
	}
}

// setText is set for a value that is text outside of HCL.
func setText(f *field, dst reflect.Value, text string) (msg, hint string) {
	v := cty.StringVal(text)
	if _, isDuration := dst.Interface().(time.Duration); !isDuration && f.enum == nil {
		switch dst.Kind() {
		case reflect.Bool:
			b, err := strconv.ParseBool(text)
			if err != nil {
				return f.name + " must be true or false", ""
			}
			v = cty.BoolVal(b)
		case reflect.Int, reflect.Uint32, reflect.Uint64, reflect.Float64:
			n, err := strconv.ParseFloat(text, 64)
			if err != nil || math.IsInf(n, 0) || math.IsNaN(n) {
				return f.name + " must be a number", wanted(f)
			}
			v = cty.NumberFloatVal(n)
		}
	}
	return set(f, dst, v)
}

// set stores v in dst. If it can't, it says what is wrong and what to do, and
// leaves dst as it was.
func set(f *field, dst reflect.Value, v cty.Value) (msg, hint string) {
	if v.IsNull() {
		return f.name + " is null", "leave it out, or give it a value"
	}
	switch p := dst.Addr().Interface().(type) {
	case *bool:
		if v.Type() != cty.Bool {
			return mustBe(f, "true or false", v)
		}
		*p = v.True()
		return "", ""
	case *map[string]any:
		m, ok := plainValue(v).(map[string]any)
		if !ok {
			return mustBe(f, "an object", v)
		}
		*p = m
		return "", ""
	case *map[string]string:
		m, ok := plainValue(v).(map[string]any)
		if !ok {
			return mustBe(f, "an object", v)
		}
		texts := make(map[string]string, len(m))
		for k, e := range m {
			if texts[k], ok = e.(string); !ok {
				return fmt.Sprintf("%s must be an object of texts, and %q is none", f.name, k), "put its value in quotes"
			}
		}
		*p = texts
		return "", ""
	case *int, *uint32, *uint64:
		n, ok := whole(v)
		if !ok {
			return mustBe(f, "a whole number", v)
		}
		parse := func(s string) (int64, error) { return strconv.ParseInt(s, 10, 64) }
		if msg, hint := outOfRange(f, n, parse); msg != "" {
			return msg, hint
		}
		if dst.CanInt() {
			dst.SetInt(n)
		} else {
			dst.SetUint(uint64(n)) // none has a range below 0
		}
		return "", ""
	case *float64:
		if !isNumber(v) {
			return mustBe(f, "a number", v)
		}
		n, _ := v.AsBigFloat().Float64()
		parse := func(s string) (float64, error) { return strconv.ParseFloat(s, 64) }
		if msg, hint := outOfRange(f, n, parse); msg != "" {
			return msg, hint
		}
		*p = n
		return "", ""
	case *StatusRange:
		if n, ok := whole(v); ok {
			v = cty.StringVal(strconv.FormatInt(n, 10))
		} else if v.Type() != cty.String {
			return mustBe(f, "a status or a range of them", v)
		}
	}
	if v.Type() != cty.String {
		if _, ok := dst.Interface().(time.Duration); ok {
			return mustBe(f, `a duration in quotes, as "5s"`, v)
		}
		return mustBe(f, "text in quotes", v)
	}
	return setString(f, dst, v.AsString())
}

// setString is set for what is written as text.
func setString(f *field, dst reflect.Value, s string) (msg, hint string) {
	switch {
	case f.required && s == "":
		return f.name + " is empty", "it is required"
	case f.enum != nil && !f.allows(s):
		return fmt.Sprintf("%s can't be %q", f.name, s), hcltext.Suggest(s, f.enum)
	}
	switch p := dst.Addr().Interface().(type) {
	case *time.Duration:
		t, err := time.ParseDuration(s)
		if err != nil {
			return fmt.Sprintf("%s: %q is no duration", f.name, s), `write it as "5s", "1m30s" or "250ms"`
		}
		if msg, hint := outOfRange(f, t, time.ParseDuration); msg != "" {
			return msg, hint
		}
		*p = t
	case *slog.Level:
		if err := p.UnmarshalText([]byte(s)); err != nil {
			return f.name + ": " + err.Error(), "" // not with the words of the enum
		}
	case *lbcore.Addr:
		a, hint := parseListen(s)
		if hint != "" {
			return fmt.Sprintf("%s: can't listen on %q", f.name, s), hint
		}
		*p = a
	case *StatusRange:
		from, to, isRange := strings.Cut(s, "-")
		if !isRange {
			to = from
		}
		a, err1 := strconv.ParseUint(from, 10, 16)
		b, err2 := strconv.ParseUint(to, 10, 16)
		if err1 != nil || err2 != nil || a < 100 || b > 599 || a > b {
			return fmt.Sprintf("%s: %q is neither a status nor a range of them", f.name, s), `from 100 to 599, as in 204 or "200-299"`
		}
		*p = StatusRange{Start: int(a), End: int(b) + 1}
	case *netip.Prefix:
		r, err := netip.ParsePrefix(s)
		if a, err1 := netip.ParseAddr(s); err1 == nil && a.Zone() == "" {
			r, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		if err != nil {
			return fmt.Sprintf("%s: %q is no range of addresses", f.name, s), `as in "10.0.0.0/8", "2001:db8::/32" or "10.0.0.7"`
		}
		*p = r.Masked()
	case *netip.Addr:
		a, err := netip.ParseAddr(s)
		if err != nil || a.Zone() != "" || a.IsUnspecified() || a.IsMulticast() {
			return fmt.Sprintf("%s: %q is no address of a host", f.name, s), `an IP, as in "10.0.0.7" or "2001:db8::7"`
		}
		*p = a.Unmap()
	case *FileMode:
		mode, err := strconv.ParseUint(s, 8, 32)
		if err != nil || mode == 0 || mode > 0o777 {
			return fmt.Sprintf("%s: %q is no mode of a file", f.name, s), `three octal digits, as in "0660"`
		}
		*p = FileMode(mode)
	case *Payload:
		if digits, ok := strings.CutPrefix(s, "0x"); ok {
			b, err := hex.DecodeString(digits)
			if err != nil {
				return f.name + " begins with 0x and is not hex", `two digits a byte; text that begins with 0x is 0x3078...`
			}
			s = string(b)
		}
		*p = Payload(s)
	case *string:
		*p = s
	case *Secret:
		*p = Secret(s)
	default:
		return f.name + " can't be text", ""
	}
	return "", ""
}

// outOfRange says so if v is outside of f's range, the ends of which parse
// reads.
func outOfRange[T int64 | float64 | time.Duration](f *field, v T, parse func(string) (T, error)) (msg, hint string) {
	lo, errLo := parse(f.min)
	hi, errHi := parse(f.max)
	if f.min != "" && (errLo != nil || v < lo) || f.max != "" && (errHi != nil || v > hi) {
		return fmt.Sprintf("%s is out of range: %v", f.name, v), wanted(f)
	}
	return "", ""
}

// wanted names the range of f, and the default.
func wanted(f *field) string {
	hint := ""
	switch {
	case f.min != "" && f.max != "":
		hint = fmt.Sprintf("from %s to %s", f.min, f.max)
	case f.min != "":
		hint = "at least " + f.min
	}
	if f.def != "" {
		hint += "; the default is " + f.def
	}
	return strings.TrimPrefix(hint, "; ")
}

// mustBe says that v is not what is wanted. Numbers are not printed: to write
// out an exponent can take forever.
func mustBe(f *field, what string, v cty.Value) (msg, hint string) {
	got := v.Type().FriendlyName()
	switch {
	case got == "number" && strings.HasSuffix(what, "number"):
		return f.name + " must be " + what, wanted(f)
	case got == "string" && what != "an object":
		hint = "without quotes"
	case got == "tuple":
		got = "list"
	}
	return fmt.Sprintf("%s must be %s, not %s", f.name, what, got), hint
}

func isNumber(v cty.Value) bool { return v.IsKnown() && !v.IsNull() && v.Type() == cty.Number }

// magnitude returns the binary exponent of a number, without its sign.
func magnitude(v cty.Value) int {
	n := v.AsBigFloat()
	if n.IsInf() {
		return math.MaxInt
	}
	e := n.MantExp(nil)
	return max(e, -e)
}

func whole(v cty.Value) (int64, bool) {
	if !isNumber(v) {
		return 0, false
	}
	n, accuracy := v.AsBigFloat().Int64()
	return n, accuracy == big.Exact
}

// plainValue returns v as structpb.NewStruct and encoding/json take it.
func plainValue(v cty.Value) any {
	switch t := v.Type(); {
	case v.IsNull():
		return nil
	case t == cty.String:
		return v.AsString()
	case t == cty.Bool:
		return v.True()
	case t == cty.Number:
		n, _ := v.AsBigFloat().Float64()
		return min(max(n, -math.MaxFloat64), math.MaxFloat64)
	case t.IsTupleType():
		list := []any{}
		for _, e := range v.AsValueSlice() {
			list = append(list, plainValue(e))
		}
		return list
	default:
		m := map[string]any{}
		for k, e := range v.AsValueMap() {
			m[k] = plainValue(e)
		}
		return m
	}
}

// maxSocketPath is the longest path of a unix socket, on Linux.
const maxSocketPath = 107

// parseListen reads the address of something that listens, or says what is
// wanted.
func parseListen(s string) (a lbcore.Addr, hint string) {
	if strings.HasPrefix(s, "unix:") {
		a, err := lbcore.ParseAddr(s)
		if err != nil || len(a.Path()) > maxSocketPath {
			return a, fmt.Sprintf("an absolute path of at most %d bytes, as unix:///run/gatehouse/web.sock", maxSocketPath)
		}
		return a, ""
	}
	ap, err := netip.ParseAddrPort(s)
	if err == nil {
		return lbcore.IPAddr(ap), ""
	}
	if port, ok := strings.CutPrefix(s, ":"); ok {
		return a, fmt.Sprintf("say on which address: 127.0.0.1:%s, or 0.0.0.0:%s for all", port, port)
	}
	if strings.HasPrefix(s, "localhost:") {
		return a, "write 127.0.0.1" + strings.TrimPrefix(s, "localhost")
	}
	return a, "IP:port, [IPv6]:port or unix:///path; host names are not looked up"
}
