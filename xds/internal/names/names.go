// Package names reads the names of xDS resources: old ones, which are any text,
// and new ones, which are URIs: xdstp://[authority]/type/id?parameters#directive.
// Two new names are the same if their parts are, whatever the order of the
// parameters. Source: gRFC A47, and "xDS transport protocol" TP1.
//
// # Usage
//
//	name := names.Canonical(text)
//	n, isNew, err := names.Parse(text)
//
// # Concurrency
//
// Everything is a pure function.
//
// # Limitations
//
// Directives are kept and mean nothing. A name that ends in "/*" is a name like
// any other. Which servers an authority has is not known here.
package names

import (
	"cmp"
	"errors"
	"net/url"
	"slices"
	"strings"
)

const scheme = "xdstp:"

// Name is a new name.
type Name struct {
	// Authority may be empty.
	Authority string
	// Type is the resource type's name, without "type.googleapis.com/".
	Type string
	// ID is the rest of the path, without the slash before it.
	ID string
	// Params are the context parameters, each once.
	Params map[string]string
	// Fragment has the directives, as they stand.
	Fragment string
}

// Parse reads a name. It reports whether the name is a new one; an old one is
// never an error, nor is a new one without the two slashes.
func Parse(text string) (n Name, isNew bool, err error) {
	if !strings.HasPrefix(text, scheme+"//") {
		return Name{}, false, nil
	}
	u, err := url.Parse(text)
	if err != nil {
		return Name{}, true, errors.New("not a URI") // url's own words have the whole name
	}
	var ok bool
	n = Name{Authority: u.Host, Fragment: u.Fragment}
	if n.Type, n.ID, ok = strings.Cut(strings.TrimPrefix(u.Path, "/"), "/"); !ok || n.Type == "" {
		return Name{}, true, errors.New("want xdstp://authority/type/id")
	}
	values, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return Name{}, true, errors.New("the context parameters can't be read")
	}
	for key, v := range values {
		if len(v) > 1 {
			return Name{}, true, errors.New("a context parameter is there twice")
		}
		if n.Params == nil {
			n.Params = make(map[string]string, len(values))
		}
		n.Params[key] = v[0]
	}
	return n, true, nil
}

// Canonical returns the name by which a resource is known: a new name with its
// parameters sorted, and any other text as it stands.
func Canonical(text string) string {
	if _, isNew, err := Parse(text); !isNew || err != nil {
		return text
	}
	head, fragment, directives := strings.Cut(text, "#")
	path, query, ok := strings.Cut(head, "?")
	if !ok {
		return text
	}
	params := strings.Split(query, "&")
	slices.SortFunc(params, func(a, b string) int { // by the keys: "a=" comes before "a1="
		ka, va, _ := strings.Cut(a, "=")
		kb, vb, _ := strings.Cut(b, "=")
		return cmp.Or(strings.Compare(ka, kb), strings.Compare(va, vb), strings.Compare(a, b))
	})
	text = path + "?" + strings.Join(params, "&")
	if directives {
		text += "#" + fragment
	}
	return text
}
