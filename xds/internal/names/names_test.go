package names

import (
	"strings"
	"testing"
)

func TestCanonical(t *testing.T) {
	for in, want := range map[string]string{
		"web":                             "web",
		"":                                "",
		"xdstp:web":                       "xdstp:web",
		"xdstp:/a/b":                      "xdstp:/a/b",
		"XDSTP://a/t/i":                   "XDSTP://a/t/i",
		"xdstp://a/t/i":                   "xdstp://a/t/i",
		"xdstp:///t/i":                    "xdstp:///t/i",
		"xdstp://a/t/i/j":                 "xdstp://a/t/i/j",
		"xdstp://a/t/i?b=2&a=1":           "xdstp://a/t/i?a=1&b=2",
		"xdstp://a/t/i?a=1&b=2":           "xdstp://a/t/i?a=1&b=2",
		"xdstp://a/t/i?b=%32&a=x%20y":     "xdstp://a/t/i?a=x%20y&b=%32",
		"xdstp://a/t/i?b=2&a=1#alt=x,y":   "xdstp://a/t/i?a=1&b=2#alt=x,y",
		"xdstp://a/t/i?zone2=y&zone=x":    "xdstp://a/t/i?zone=x&zone2=y", // by the keys, without the "="
		"xdstp://a/t/*":                   "xdstp://a/t/*",
		"xdstp://a/t":                     "xdstp://a/t", // no name of the new kind
		"xdstp://a/t/i?a=1&a=2":           "xdstp://a/t/i?a=1&a=2",
		"xdstp://a/t/i?%zz":               "xdstp://a/t/i?%zz",
		"xdstp://%zz/t/i":                 "xdstp://%zz/t/i",
		"xdstp:///envoy.x.v3.Y/unix:/a b": "xdstp:///envoy.x.v3.Y/unix:/a b",
	} {
		if got := Canonical(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestParse(t *testing.T) {
	n, isNew, err := Parse("xdstp://one/envoy.config.cluster.v3.Cluster/a/b?z=1#entry=x")
	if err != nil || !isNew || n.Authority != "one" || n.Type != "envoy.config.cluster.v3.Cluster" || n.ID != "a/b" || n.Params["z"] != "1" || n.Fragment != "entry=x" {
		t.Errorf("%+v, %v, %v", n, isNew, err)
	}
	for in, want := range map[string]string{
		"xdstp://a/t": "want xdstp://authority/type/id", "xdstp://a": "want xdstp://authority/type/id", "xdstp://a//i": "want xdstp://authority/type/id",
		"xdstp://%zz/t/i": "not a URI", "xdstp://a/t/i?x=%zz": "the context parameters can't be read", "xdstp://a/t/i?x=1&x=1": "a context parameter is there twice",
	} {
		if _, isNew, err := Parse(in); !isNew || err == nil || err.Error() != want {
			t.Errorf("%q: %v, %v; want %s", in, isNew, err, want)
		}
	}
}

// FuzzCanonical: the canonical form of a canonical form is itself, and a name of
// one kind stays one of that kind.
func FuzzCanonical(f *testing.F) {
	f.Add("web")
	f.Add("xdstp://a/t/i?b=2&a=1#x")
	f.Add("xdstp:///t//i?=&;")
	f.Fuzz(func(t *testing.T, in string) {
		once := Canonical(in)
		if twice := Canonical(once); twice != once {
			t.Errorf("%q: %q, then %q", in, once, twice)
		}
		if strings.HasPrefix(in, "xdstp://") != strings.HasPrefix(once, "xdstp://") {
			t.Errorf("%q: %q", in, once)
		}
	})
}
