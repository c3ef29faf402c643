// Package hcltext is what every reader of HCL and JSON needs beside package
// hcl: guards against text that overflows a parser's stack, places of mistakes
// in JSON, and hints for slips of the pen.
//
// # Usage
//
//	if rng, ok := hcltext.TooDeep(name, text); ok { … }   // before hclsyntax.ParseConfig
//	if at, err := hcltext.CheckJSON(text); err != nil { … } // before json.Parse
//
// # Concurrency
//
// The functions depend on their arguments only.
//
// # Limitations
//
// The bounds fit files of values: a hundred levels, a thousand operators. A
// language with expressions would need others.
package hcltext

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/agext/levenshtein"
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// The bounds of TooDeep. HCL's parsers call themselves for each level of
// nesting and each operator, so without them one file could overflow the
// stack, which ends the program.
const (
	MaxDepth     = 100
	MaxOperators = 1000
)

// closers says what ends what.
var closers = map[hclsyntax.TokenType]hclsyntax.TokenType{
	hclsyntax.TokenOBrace:          hclsyntax.TokenCBrace,
	hclsyntax.TokenOBrack:          hclsyntax.TokenCBrack,
	hclsyntax.TokenOParen:          hclsyntax.TokenCParen,
	hclsyntax.TokenOQuote:          hclsyntax.TokenCQuote,
	hclsyntax.TokenOHeredoc:        hclsyntax.TokenCHeredoc,
	hclsyntax.TokenTemplateInterp:  hclsyntax.TokenTemplateSeqEnd,
	hclsyntax.TokenTemplateControl: hclsyntax.TokenTemplateSeqEnd,
}

// TooDeep returns where HCL text exceeds MaxDepth or MaxOperators, if it does.
func TooDeep(name string, text []byte) (hcl.Range, bool) {
	var open []hclsyntax.TokenType // what has to come, the next last
	operators := 0
	tokens, _ := hclsyntax.LexConfig(text, name, hcl.InitialPos) // the parser reports what is wrong
	for _, t := range tokens {
		switch t.Type {
		case hclsyntax.TokenComment, hclsyntax.TokenNewline, hclsyntax.TokenIdent, hclsyntax.TokenNumberLit,
			hclsyntax.TokenQuotedLit, hclsyntax.TokenStringLit, hclsyntax.TokenComma, hclsyntax.TokenEqual, hclsyntax.TokenColon:
		default:
			if c, ok := closers[t.Type]; ok {
				open = append(open, c)
				if c == hclsyntax.TokenTemplateSeqEnd {
					operators++ // an if that is closed in itself nests what follows it
				}
			} else if n := len(open); n > 0 && open[n-1] == t.Type {
				open = open[:n-1]
			} else {
				operators++ // a bracket that closes nothing is no less suspicious
			}
		}
		if len(open) > MaxDepth || operators > MaxOperators {
			return t.Range, true
		}
	}
	return hcl.Range{}, false
}

// CheckJSON returns the first mistake in the syntax of JSON text and the
// offset of the byte that is wrong. The standard library knows the place
// better than hcl, and bounds nesting.
func CheckJSON(text []byte) (at int, err error) {
	err = json.Unmarshal(text, new(json.RawMessage))
	if err == nil {
		return 0, nil
	}
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		return max(min(int(e.Offset), len(text))-1, 0), err // Offset counts the byte that is wrong
	}
	return len(text), err
}

// Place returns the place of byte at of text, columns in characters.
func Place(name string, text []byte, at int) hcl.Range {
	before := text[:min(at, len(text))]
	pos := hcl.Pos{
		Line:   1 + bytes.Count(before, []byte("\n")),
		Column: 1 + utf8.RuneCount(before[1+bytes.LastIndexByte(before, '\n'):]),
		Byte:   len(before),
	}
	return hcl.Range{Filename: name, Start: pos, End: pos}
}

// Suggest returns a hint that says which of words given is a slip of, or what
// all of them are.
func Suggest(given string, words []string) string {
	if near := Nearest(given, words); near != "" {
		return fmt.Sprintf("did you mean %q?", near)
	}
	return "one of " + strings.Join(words, ", ")
}

// Nearest returns the word that given is a slip of, or "".
func Nearest(given string, words []string) string {
	if len(given) > 255 {
		return ""
	}
	best, least := "", 3
	for _, w := range words {
		if len(given) < 5 && !strings.HasPrefix(w, given[:min(1, len(given))]) {
			continue // short words are all near each other
		}
		if n := levenshtein.Distance(given, w, nil); n < least {
			best, least = w, n
		}
	}
	return best
}
