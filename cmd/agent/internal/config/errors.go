package config

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/hashicorp/hcl/v2"
)

// Error is one mistake in a configuration.
type Error struct {
	// File is its path, or the name of an environment variable or a flag.
	File string `json:"file"`
	// Line and Column count from 1, columns in characters. They are 0 where the
	// mistake is not in the text of a file.
	Line   int `json:"line,omitempty"`
	Column int `json:"column,omitempty"`
	// Message says what is wrong, Hint what to do.
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
	// Source is the line of the file, without its end; empty if it is longer
	// than 500 bytes, or if there may be a secret in it.
	Source string `json:"source,omitempty"`
}

// Error returns "file:line:column: message (hint)".
func (e Error) Error() string {
	s := e.File
	if e.Line > 0 {
		s = fmt.Sprintf("%s:%d:%d", s, e.Line, e.Column)
	}
	s += ": " + e.Message
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	return s
}

// Errors are all mistakes of a configuration, in the order of file, line and
// column.
type Errors []Error

// Error returns the mistakes, one a line.
func (es Errors) Error() string {
	lines := make([]string, len(es))
	for i, e := range es {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// Print writes the mistakes, each with the line it is in and a mark below the
// place.
func (es Errors) Print(w io.Writer) error {
	for _, e := range es {
		text := e.Error() + "\n"
		if strings.TrimSpace(e.Source) != "" {
			text += fmt.Sprintf("  %5d | %s\n        | %s^\n", e.Line, e.Source, e.mark())
		}
		if _, err := io.WriteString(w, text); err != nil {
			return err
		}
	}
	return nil
}

// mark returns the blanks that lead from the start of the line to the mistake.
func (e Error) mark() string {
	r := []rune(e.Source)
	return strings.Map(func(c rune) rune {
		if c == '\t' {
			return c
		}
		return ' '
	}, string(r[:min(max(e.Column-1, 0), len(r))]))
}

// The limits of what is reported, since messages quote the file.
const (
	maxErrors  = 1000
	maxMessage = 400 // bytes of a message or hint
	maxSource  = 500 // bytes; a longer line is not shown
)

// add records a mistake at rng, unless it only follows from a mistake in
// syntax.
func (d *decoder) add(rng hcl.Range, msg, hint string) { d.note(&d.errs, rng, msg, hint) }

// warn records what is no mistake.
func (d *decoder) warn(rng hcl.Range, msg, hint string) { d.note(&d.warnings, rng, msg, hint) }

func (d *decoder) note(list *Errors, rng hcl.Range, msg, hint string) {
	src := d.sources[rng.Filename]
	if src == nil {
		src = &source{}
	}
	if src.torn || src.bad[rng.Start.Line] {
		return
	}
	e := Error{
		File: rng.Filename, Line: rng.Start.Line, Column: d.column(rng),
		Message: printable(msg, maxMessage), Hint: printable(hint, maxMessage),
	}
	if n := e.Line; n > 0 && n <= len(src.lines) && len(src.lines[n-1]) <= maxSource && !src.secret[n] {
		e.Source = printable(strings.TrimSuffix(string(src.lines[n-1]), "\r"), maxSource)
	}
	*list = append(*list, e)
}

// column returns the column in characters, which hcl counts otherwise: in JSON
// a tab is two to it.
func (d *decoder) column(rng hcl.Range) int {
	src := d.sources[rng.Filename]
	if src == nil || rng.Start.Byte > len(src.text) {
		return rng.Start.Column
	}
	before := src.text[:rng.Start.Byte]
	return 1 + utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:])
}

func (d *decoder) position(rng hcl.Range) string {
	return fmt.Sprintf("%s:%d:%d", rng.Filename, rng.Start.Line, d.column(rng))
}

// printable returns at most n bytes of s without what a terminal would obey.
func printable(s string, n int) string {
	if len(s) > n {
		s = s[:n] + "..."
	}
	return strings.Map(func(r rune) rune {
		if r == '\t' || unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, s)
}

// sorted returns the mistakes in order, each once, at most maxErrors.
func (es Errors) sorted() Errors {
	slices.SortFunc(es, func(a, b Error) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column),
			cmp.Compare(a.Message, b.Message), cmp.Compare(a.Hint, b.Hint))
	})
	es = slices.Compact(es)
	if more := len(es) - maxErrors; more > 0 {
		es = append(es[:maxErrors], Error{File: es[maxErrors].File, Message: fmt.Sprintf("%d more mistakes follow", more), Hint: "correct these first"})
	}
	return es
}

// hclPosition is how package hcl writes a range into a text.
var hclPosition = regexp.MustCompile(`:(\d+),(\d+)(-\d+(,\d+)?)?`)

// explain puts a diagnostic of package hcl, or of a decoder that keeps to its
// form, into this package's words.
func explain(diag *hcl.Diagnostic) (rng hcl.Range, msg, hint string) {
	if diag.Subject != nil {
		rng = *diag.Subject
	}
	msg, hint = diag.Summary, hclPosition.ReplaceAllString(strings.Join(strings.Fields(diag.Detail), " "), ":$1:$2")
	switch {
	case msg == "Missing newline after argument" || msg == "Invalid number literal":
		hint = `one argument a line; durations and addresses are text, as in "5s" and "127.0.0.1:80"`
	case msg == "Invalid single-argument block definition":
		hint = "in one line a block holds at most one argument; give each a line of its own, and the closing brace too"
	case strings.HasPrefix(msg, "Missing name for ") || strings.HasPrefix(msg, "Missing kind for "):
		hint = fmt.Sprintf("as in %s \"...\" {", msg[len("Missing name for "):])
	case strings.HasPrefix(msg, "Extraneous label for "):
		hint = "leave it out"
	}
	if _, size := utf8.DecodeRuneInString(msg); size > 0 && !strings.HasPrefix(msg, "JSON") {
		msg = strings.ToLower(msg[:size]) + msg[size:]
	}
	return rng, msg, hint
}
