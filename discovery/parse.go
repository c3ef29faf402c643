package discovery

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/json"

	"gatehouse.internal/internal/hcltext"
	"gatehouse.internal/lbcore"
)

const (
	// maxMistakes and maxLine, in bytes, bound the text of an error, since
	// messages quote the file; who has more mistakes has one many times.
	maxMistakes = 100
	maxLine     = 400
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
		if at, err := hcltext.CheckJSON(data); err != nil {
			return nil, mistake(err.Error(), hcltext.Place(name, data, at))
		}
		file, diags = json.Parse(data, name)
	} else {
		if rng, deep := hcltext.TooDeep(name, data); deep {
			return nil, mistake("nested too deeply, or too many operators, for a list of endpoints", rng)
		}
		file, diags = hclsyntax.ParseConfig(data, name, hcl.InitialPos)
	}
	if diags.HasErrors() {
		return nil, diags
	}
	return file.Body, diags
}

func mistake(what string, at hcl.Range) hcl.Diagnostics {
	return hcl.Diagnostics{{Severity: hcl.DiagError, Summary: what, Subject: &at}}
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
