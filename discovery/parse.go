package discovery

import (
	"bytes"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/json"

	"gatehouse.internal/lbcore"
)

const (
	// maxMistakes and maxLine, in bytes, bound the text of an error, since
	// messages quote the file; who has more mistakes has one many times.
	maxMistakes = 100
	maxLine     = 400
	// maxNesting and maxOperators bound what the parser's recursion can be
	// driven to, which would otherwise overflow the stack and end the
	// program. The schema nests four deep and has no operators.
	maxNesting   = 32
	maxOperators = 1000
)

// ParseFile reads the content of an endpoints file: one attribute, endpoints,
// as DecodeEndpoints takes it. The syntax is JSON if name ends in ".json", and
// HCL if not. An empty or cut off file is an error, never an empty set.
//
// Of several endpoints with one address the first is kept and the others are
// returned, by their position in the list. The error has a line for every
// mistake, "name:line:column: what; hint", up to a hundred of them.
func ParseFile(name string, data []byte) (lbcore.Set, []lbcore.Dropped, error) {
	body, diags := parseSyntax(name, data)
	if diags.HasErrors() {
		return lbcore.Set{}, nil, mistakes(diags)
	}
	content, diags := body.Content(&hcl.BodySchema{Attributes: []hcl.AttributeSchema{{Name: "endpoints", Required: true}}})
	var eps []lbcore.Endpoint
	if attr := content.Attributes["endpoints"]; attr != nil {
		var more hcl.Diagnostics
		eps, more = DecodeEndpoints(attr.Expr)
		diags = append(diags, more...)
	}
	if diags.HasErrors() {
		return lbcore.Set{}, nil, mistakes(diags)
	}
	set, dropped, err := lbcore.NewSet(eps)
	if err != nil {
		return lbcore.Set{}, nil, fmt.Errorf("%s: %w", name, err)
	}
	return set, dropped, nil
}

// parseSyntax returns the body of a file that is good as far as syntax goes.
func parseSyntax(name string, data []byte) (hcl.Body, hcl.Diagnostics) {
	var (
		file  *hcl.File
		diags hcl.Diagnostics
	)
	if filepath.Ext(name) == ".json" {
		// The standard parser bounds nesting, hcl's doesn't.
		if err := stdjson.Unmarshal(data, new(stdjson.RawMessage)); err != nil {
			return nil, jsonDiagnostics(name, data, err)
		}
		file, diags = json.Parse(data, name)
	} else {
		if diags := boundHCL(name, data); diags.HasErrors() {
			return nil, diags
		}
		file, diags = hclsyntax.ParseConfig(data, name, hcl.InitialPos)
	}
	if diags.HasErrors() {
		return nil, diags
	}
	return file.Body, diags
}

// boundHCL refuses what would make the parser recurse deeper than any list of
// endpoints needs.
func boundHCL(name string, data []byte) hcl.Diagnostics {
	closes := map[hclsyntax.TokenType]hclsyntax.TokenType{
		hclsyntax.TokenCBrace:         hclsyntax.TokenOBrace,
		hclsyntax.TokenCBrack:         hclsyntax.TokenOBrack,
		hclsyntax.TokenCParen:         hclsyntax.TokenOParen,
		hclsyntax.TokenCQuote:         hclsyntax.TokenOQuote,
		hclsyntax.TokenCHeredoc:       hclsyntax.TokenOHeredoc,
		hclsyntax.TokenTemplateSeqEnd: hclsyntax.TokenTemplateInterp,
	}
	tokens, _ := hclsyntax.LexConfig(data, name, hcl.InitialPos)
	var open []hclsyntax.TokenType
	operators := 0
	for _, t := range tokens {
		switch t.Type {
		case hclsyntax.TokenComment, hclsyntax.TokenNewline, hclsyntax.TokenIdent, hclsyntax.TokenNumberLit,
			hclsyntax.TokenQuotedLit, hclsyntax.TokenStringLit, hclsyntax.TokenComma, hclsyntax.TokenEqual, hclsyntax.TokenColon:
		case hclsyntax.TokenOBrace, hclsyntax.TokenOBrack, hclsyntax.TokenOParen, hclsyntax.TokenOQuote, hclsyntax.TokenOHeredoc:
			open = append(open, t.Type)
		case hclsyntax.TokenTemplateInterp, hclsyntax.TokenTemplateControl:
			open = append(open, hclsyntax.TokenTemplateInterp)
			operators++
		default:
			// A closing bracket that fits nothing closes nothing.
			if o, ok := closes[t.Type]; !ok {
				operators++
			} else if n := len(open); n > 0 && open[n-1] == o {
				open = open[:n-1]
			}
		}
		if len(open) > maxNesting || operators > maxOperators {
			return hcl.Diagnostics{{
				Severity: hcl.DiagError,
				Summary:  "nested too deeply, or too many operators, for a list of endpoints",
				Subject:  &t.Range,
			}}
		}
	}
	return nil
}

func jsonDiagnostics(name string, data []byte, err error) hcl.Diagnostics {
	at := len(data)
	if e, ok := errors.AsType[*stdjson.SyntaxError](err); ok && int(e.Offset) < len(data) {
		at = max(int(e.Offset)-1, 0) // Offset counts the offending byte
	}
	before := data[:at]
	pos := hcl.Pos{
		Line:   1 + bytes.Count(before, []byte("\n")),
		Column: 1 + utf8.RuneCount(before[1+bytes.LastIndexByte(before, '\n'):]),
		Byte:   at,
	}
	return hcl.Diagnostics{{
		Severity: hcl.DiagError,
		Summary:  err.Error(),
		Subject:  &hcl.Range{Filename: name, Start: pos, End: pos},
	}}
}

// mistakes makes one error of diags, in the order of the file.
func mistakes(diags hcl.Diagnostics) error {
	for _, d := range diags {
		if d.Subject == nil {
			d.Subject = &hcl.Range{Start: hcl.InitialPos}
		}
	}
	slices.SortStableFunc(diags, func(a, b *hcl.Diagnostic) int { return a.Subject.Start.Byte - b.Subject.Start.Byte })
	var lines []string
	for _, d := range diags[:min(len(diags), maxMistakes)] {
		line := d.Summary
		if d.Detail != "" {
			line += "; " + d.Detail
		}
		if len(line) > maxLine {
			line = strings.ToValidUTF8(line[:maxLine], "") + "..."
		}
		lines = append(lines, fmt.Sprintf("%s:%d:%d: %s", d.Subject.Filename, d.Subject.Start.Line, d.Subject.Start.Column, line))
	}
	if more := len(diags) - len(lines); more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return errors.New(strings.Join(lines, "\n"))
}
