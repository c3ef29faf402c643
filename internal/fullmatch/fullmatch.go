// Package fullmatch has the regular expressions that peers' names are held against:
// RE2's syntax, which matches in linear time, the whole text, and bounds of what one
// takes, since a control plane may write them.
//
// # Usage
//
//	test, err := fullmatch.Compile("spiffe://[^/]+/ns/default/.*")
//	ok := err == nil && test("spiffe://a/ns/default/web")
//
// # Concurrency
//
// What Compile returns may be called from anywhere.
//
// # Limitations
//
// The bounds are fixed.
package fullmatch

import (
	"fmt"
	"regexp"
	"regexp/syntax"
)

// The bounds of a regex: how long it is, in bytes, and what it comes to with its
// repetitions written out, in characters and operators. Without the latter 4 KiB can
// come to 64 MB, and a tenth of a second for a text.
const (
	MaxLength = 4096
	MaxSize   = 8192
)

// Compile returns what reports whether a regex matches a whole text. An error says what
// is wrong with the regex, and of one that is too large how large it is.
func Compile(regex string) (func(string) bool, error) {
	if len(regex) > MaxLength {
		return nil, fmt.Errorf("a regex of %d bytes: want at most %d", len(regex), MaxLength)
	}
	// By itself first: "a)|(b" must not become good by what is put around it.
	parsed, err := syntax.Parse(regex, syntax.Perl)
	if err != nil {
		return nil, err
	}
	if n := size(parsed); n > MaxSize {
		return nil, fmt.Errorf("the regex %.100q is too large: with its repetitions written out it has %d characters and operators, want at most %d", regex, n, MaxSize)
	}
	re, err := regexp.Compile(`\A(?:` + regex + `)\z`)
	if err != nil {
		return nil, err
	}
	return re.MatchString, nil
}

// size returns what a regex comes to. It does not overflow: the parser allows at most
// 1000 repetitions, within each other too.
func size(re *syntax.Regexp) int {
	n := 1
	if re.Op == syntax.OpLiteral {
		n = len(re.Rune)
	}
	for _, sub := range re.Sub {
		n += size(sub)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(re.Max, re.Min+1) // without an end the last of them is a loop
	}
	return n
}
