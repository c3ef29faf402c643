package page

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// The limits of a Log: lines, and bytes of each.
const (
	maxLines = 200
	maxLine  = 500
)

// Log keeps the last lines of a log. The zero Log is empty and ready to use. Its
// methods may be called from anywhere.
type Log struct {
	mu    sync.Mutex
	lines [maxLines]line // that of number n is at n % maxLines
	next  uint64
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
		return b.Len() < maxLine
	})
	l := k.log
	l.mu.Lock()
	l.lines[l.next%maxLines] = line{r.Time.UTC(), r.Level.String(), Cut(b.String(), maxLine)}
	l.next++
	l.mu.Unlock()
	return k.next.Handle(ctx, r)
}

func (k *keeper) WithAttrs(attrs []slog.Attr) slog.Handler {
	var b strings.Builder
	b.WriteString(k.attrs)
	for _, a := range attrs {
		writeAttr(&b, k.group, a)
	}
	return &keeper{k.log, k.next.WithAttrs(attrs), Cut(b.String(), maxLine), k.group}
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
	lines, next := l.lines, l.next
	l.mu.Unlock()
	for n := next - min(next, maxLines); n < next; n++ {
		rows.Set(fmt.Sprintf("log|%012d", n), lines[n%maxLines])
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
