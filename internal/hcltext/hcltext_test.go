package hcltext_test

import (
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/json"

	"gatehouse.internal/internal/hcltext"
)

func TestTooDeep(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       bool
	}{
		{"flat", `a = [1, 2, {b = "c"}]`, false},
		{"many siblings", "a = [" + strings.Repeat("[], ", 5000) + "]", false},
		{"brackets", "a = " + strings.Repeat("[", 101), true},
		{"as deep as allowed", "a = " + strings.Repeat("[", 100) + strings.Repeat("]", 100), false},
		{"operators", "a = " + strings.Repeat("!", 1001) + "true", true},
		{"templates", `a = "` + strings.Repeat("${\"", 101), true},
		{"template ifs", `a = "` + strings.Repeat("%{if a}", 1001), true},
		{"closers", strings.Repeat("]", 1001), true},
	} {
		if _, got := hcltext.TooDeep("x.hcl", []byte(tt.text)); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}

func TestCheckJSON(t *testing.T) {
	for _, tt := range []struct {
		text         string
		at           int
		line, column int
	}{
		{"{\n  \"a\": tru\n}", 12, 2, 11},
		{"{\"ä\": x}", 7, 1, 7},
		{"", 0, 1, 1},
	} {
		at, err := hcltext.CheckJSON([]byte(tt.text))
		p := hcltext.Place("x.json", []byte(tt.text), at).Start
		if err == nil || at != tt.at || p.Line != tt.line || p.Column != tt.column {
			t.Errorf("%q: byte %d, %d:%d, %v; want byte %d, %d:%d", tt.text, at, p.Line, p.Column, err, tt.at, tt.line, tt.column)
		}
	}
	if _, err := hcltext.CheckJSON([]byte(`{"a": [1]}`)); err != nil {
		t.Error(err)
	}
}

func TestSuggest(t *testing.T) {
	words := []string{"selector", "listener", "eds", "dns"}
	for given, want := range map[string]string{
		"selectr": `did you mean "selector"?`,
		"edss":    `did you mean "eds"?`,
		"xyz":     "one of selector, listener, eds, dns",
		"":        "one of selector, listener, eds, dns",
	} {
		if got := hcltext.Suggest(given, words); got != want {
			t.Errorf("%q: %s, want %s", given, got, want)
		}
	}
}

// Whatever the guards let through, the parsers survive, and places lie within
// the text.
func FuzzGuards(f *testing.F) {
	for _, s := range []string{`a = [1, {b = "c"}]`, `{"a": [1]}`, "a = ${\n", strings.Repeat("[", 200)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		text := []byte(s)
		if _, deep := hcltext.TooDeep("x.hcl", text); !deep {
			hclsyntax.ParseConfig(text, "x.hcl", hcl.InitialPos)
		}
		if at, err := hcltext.CheckJSON(text); err == nil {
			json.Parse(text, "x.json")
		} else if p := hcltext.Place("x.json", text, at).Start; at > len(text) || p.Byte > len(text) || p.Line < 1 || p.Column < 1 {
			t.Errorf("byte %d of %d, %d:%d", at, len(text), p.Line, p.Column)
		}
	})
}
