package lbcore

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"unique"
)

// Labels are names with a value each. They take one word, are comparable (the same
// names with the same values are equal), and the zero Labels has none. Behind them
// others may stand, which count where these say nothing.
type Labels struct{ h unique.Handle[labels] }

// labels are quoted names and values with a NUL on either side of each pair, sorted:
// none is in what is quoted.
type labels struct {
	text   string
	behind Labels
}

// LabelsOf returns the labels of m, with others behind them.
func LabelsOf(m map[string]string, behind Labels) Labels {
	if len(m) == 0 && behind == (Labels{}) {
		return Labels{}
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(m)) {
		b.WriteByte(0)
		b.WriteString(strconv.Quote(name))
		b.WriteByte('=')
		b.WriteString(strconv.Quote(m[name]))
	}
	if len(m) > 0 {
		b.WriteByte(0)
	}
	return Labels{unique.Make(labels{b.String(), behind})}
}

// text returns the text of l, without those behind.
func (l Labels) text() string {
	if l == (Labels{}) {
		return ""
	}
	return l.h.Value().text
}

// Behind returns those that stand behind l, which may have none.
func (l Labels) Behind() Labels {
	if l == (Labels{}) {
		return l
	}
	return l.h.Value().behind
}

// Has reports whether each of want, which may have none, is one of l; what stands
// behind either does not count. It allocates nothing.
func (l Labels) Has(want Labels) bool {
	have, rest := l.text(), want.text()
	for len(rest) > 1 {
		end := strings.IndexByte(rest[1:], 0) + 2 // both NULs are in it
		if !strings.Contains(have, rest[:end]) {
			return false
		}
		rest = rest[end-1:]
	}
	return true
}

// String returns the labels as name=value, with what is behind them in parentheses.
func (l Labels) String() string {
	text := strings.Join(strings.Split(strings.Trim(l.text(), "\x00"), "\x00"), " ")
	if b := l.Behind(); b != (Labels{}) {
		text = strings.TrimSpace(text + " (" + b.String() + ")")
	}
	return text
}

// Equal reports whether l and m are the same, as == does; packages like go-cmp ask
// for it.
func (l Labels) Equal(m Labels) bool { return l == m }
