package page

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// The limits of a Log: bytes of all lines, and of each; and what the page shows of them:
// lines, and bytes of each.
const (
	maxBytes   = 256 << 10
	maxText    = 4 << 10
	shownLines = 200
	shownText  = 500
)

// Log keeps the last lines of a log, for the page and for a bug report. The zero Log is
// empty and ready to use. Its methods may be called from anywhere.
type Log struct {
	mu    sync.Mutex
	lines []line // the oldest first
	bytes int    // of their texts
	next  uint64 // the number of the next line
}

type line struct {
	At    time.Time `json:"at"`
	Level string    `json:"level"`
	Text  string    `json:"text"`
}

// Tee returns a handler that has h handle each record, and keeps it.
func (l *Log) Tee(h slog.Handler) slog.Handler { return &keeper{log: l, next: h} }

// keeper is a handler whose attributes and groups are written already.
type keeper struct {
	log   *Log
	next  slog.Handler
	attrs string // each with a space before it
	group string // with a dot behind each
}

func (k *keeper) Enabled(ctx context.Context, level slog.Level) bool {
	return k.next.Enabled(ctx, level)
}

func (k *keeper) Handle(ctx context.Context, r slog.Record) error {
	var b strings.Builder
	b.WriteString(r.Message)
	b.WriteString(k.attrs)
	r.Attrs(func(a slog.Attr) bool {
		writeAttr(&b, k.group, a)
		return b.Len() < maxText
	})
	k.log.keep(line{r.Time.UTC(), r.Level.String(), Cut(b.String(), maxText)})
	return k.next.Handle(ctx, r)
}

func (l *Log) keep(n line) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines, l.next = append(l.lines, n), l.next+1
	l.bytes += n.size()
	for l.bytes > maxBytes {
		l.bytes -= l.lines[0].size()
		l.lines[0] = line{}
		l.lines = l.lines[1:]
	}
}

// size is what a line takes, roughly.
func (n line) size() int { return len(n.Text) + 64 }

// Text returns the lines, the oldest first, each with its time and level; what a text has
// of ends of lines is escaped.
func (l *Log) Text() []byte {
	l.mu.Lock()
	lines := slices.Clone(l.lines)
	l.mu.Unlock()
	var b bytes.Buffer
	for _, n := range lines {
		fmt.Fprintf(&b, "%s %s %s\n", n.At.Format("2006-01-02T15:04:05.000Z"), n.Level, endless.Replace(n.Text))
	}
	return b.Bytes()
}

var endless = strings.NewReplacer("\n", `\n`, "\r", `\r`)

func (k *keeper) WithAttrs(attrs []slog.Attr) slog.Handler {
	var b strings.Builder
	b.WriteString(k.attrs)
	for _, a := range attrs {
		writeAttr(&b, k.group, a)
	}
	return &keeper{k.log, k.next.WithAttrs(attrs), Cut(b.String(), maxText), k.group}
}

func (k *keeper) WithGroup(name string) slog.Handler {
	group := k.group
	if name != "" {
		group += name + "."
	}
	return &keeper{k.log, k.next.WithGroup(name), k.attrs, group}
}

func writeAttr(b *strings.Builder, group string, a slog.Attr) {
	v := a.Value.Resolve()
	if v.Kind() == slog.KindGroup {
		if a.Key != "" {
			group += a.Key + "."
		}
		for _, in := range v.Group() {
			writeAttr(b, group, in)
		}
		return
	}
	if a.Key != "" {
		fmt.Fprintf(b, " %s%s=%s", group, a.Key, v)
	}
}

// add adds a row for each line: the older ones first, by their names.
func (l *Log) add(rows Rows) {
	l.mu.Lock()
	lines, next := slices.Clone(l.lines[max(len(l.lines)-shownLines, 0):]), l.next
	l.mu.Unlock()
	for i, n := range lines {
		n.Text = Cut(n.Text, shownText)
		rows.Set(fmt.Sprintf("log|%012d", next-uint64(len(lines)-i)), n)
	}
}

// Cut returns at most n bytes of s, n at least 3, whole characters, and a mark where some are
// missing.
func Cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	const mark = "…"
	for n -= len(mark); !utf8.RuneStart(s[n]); n-- {
	}
	return s[:n] + mark
}
