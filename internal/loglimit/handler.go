package loglimit

import (
	"context"
	"log/slog"
	"sync"
)

// HandlerBurst lines of one message may come at once through a Handler, and then one
// each Every.
const HandlerBurst = 200

// maxMessages bounds the messages that a Handler tells apart; what libraries log may
// hold what a peer has sent.
const maxMessages = 1000

// Handler returns a handler that hands on to next at most HandlerBurst lines of a
// message at once, whatever their attributes, and one each Every after that; the next one
// says how many there were as not_logged. Lines below slog.LevelInfo are not counted:
// who asks for them wants all. It may be used by any number of goroutines, like the
// handlers that are derived from it, which share its limits.
func Handler(next slog.Handler) slog.Handler {
	return &handler{next: next, shared: &shared{limits: make(map[string]*Limit)}}
}

type handler struct {
	next   slog.Handler
	shared *shared
}

type shared struct {
	mu     sync.Mutex
	limits map[string]*Limit // by message
	others Limit
}

func (s *shared) limit(msg string) *Limit {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.limits[msg]
	if l == nil {
		if len(s.limits) >= maxMessages {
			return &s.others
		}
		l = new(Limit)
		s.limits[msg] = l
	}
	return l
}

// Enabled implements slog.Handler.
func (h *handler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelInfo {
		held, ok := h.shared.limit(r.Message).allow(HandlerBurst)
		if !ok {
			return nil
		}
		if held > 0 {
			r = r.Clone()
			r.AddAttrs(slog.Uint64("not_logged", held))
		}
	}
	return h.next.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &handler{h.next.WithAttrs(attrs), h.shared}
}

// WithGroup implements slog.Handler.
func (h *handler) WithGroup(name string) slog.Handler {
	return &handler{h.next.WithGroup(name), h.shared}
}
