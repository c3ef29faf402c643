package fullmatch_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"gatehouse.internal/internal/fullmatch"
)

func TestCompile(t *testing.T) {
	for _, tt := range []struct {
		regex     string
		good, bad []string
	}{
		{"", []string{""}, []string{"a"}},
		{"a|ab", []string{"a", "ab"}, []string{"abc", "xa", "a\n"}},
		{"^spiffe://[^/]+/ns/x$", []string{"spiffe://a/ns/x"}, []string{"spiffe://a/ns/xy", "spiffe://a/b/ns/x"}},
		{"(?i)web", []string{"WEB"}, []string{"webs"}},
		{"a{3}b?", []string{"aaa", "aaab"}, []string{"aa", "aaaa"}},
		{strings.Repeat("a", fullmatch.MaxLength), []string{strings.Repeat("a", fullmatch.MaxLength)}, []string{"a"}},
		{strings.Repeat("a|bc|", fullmatch.MaxLength/5) + "d", []string{"d", "bc"}, []string{"ad"}},
		{"[a-z]{1000}", []string{strings.Repeat("x", 1000)}, []string{"x"}},
	} {
		test, err := fullmatch.Compile(tt.regex)
		if err != nil {
			t.Errorf("%.40q: %v", tt.regex, err)
			continue
		}
		for _, s := range tt.good {
			if !test(s) {
				t.Errorf("%.40q does not match %.40q", tt.regex, s)
			}
		}
		for _, s := range tt.bad {
			if test(s) {
				t.Errorf("%.40q matches %.40q", tt.regex, s)
			}
		}
	}
}

func TestCompileRefuses(t *testing.T) {
	for regex, want := range map[string]string{
		strings.Repeat("a", 4097):                  "a regex of 4097 bytes: want at most 4096",
		strings.Repeat(".{1000}", 9):               "is too large: with its repetitions written out it has 18",
		strings.Repeat("(?:a?b?c?){1000}", 255):    "is too large",
		strings.Repeat("(?:(?:ab{9}){9}c){9}", 10): "is too large",
		strings.Repeat("(?:.*a){500,}", 20):        "is too large",
		"a)|(b":                                    "unexpected )",
		"(":                                        "missing closing )",
		"a{1001}":                                  "invalid repeat count",
		fmt.Sprintf("(%s){1000}", "(?:a{100}){100}"): "invalid repeat count",
	} {
		if _, err := fullmatch.Compile(regex); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", regex, err, want)
		}
	}
}

// What passes matches what the longest match of package regexp says is the whole.
func FuzzCompile(f *testing.F) {
	f.Add("^spiffe://[^/]+/ns/x$", "spiffe://a/ns/x")
	f.Add("(?:a{10}){10}|b*", "bb")
	f.Add("a|ab|(?i)ABC", "abc")
	f.Add("a)|(b", "a")
	f.Fuzz(func(t *testing.T, regex, text string) {
		test, err := fullmatch.Compile(regex)
		if err != nil {
			return
		}
		plain := regexp.MustCompile(regex)
		plain.Longest()
		at := plain.FindStringIndex(text)
		if want := at != nil && at[0] == 0 && at[1] == len(text); test(text) != want {
			t.Errorf("%q matches %q: %v, want %v", regex, text, !want, want)
		}
	})
}
