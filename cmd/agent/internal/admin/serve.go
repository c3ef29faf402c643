package admin

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse.internal/internal/loglimit"
	"gatehouse.internal/internal/tlsconf"
)

// The limits of what a client may take.
const (
	// DefaultMaxConnections is ServeConfig.MaxConnections where that is 0.
	DefaultMaxConnections = 128
	// maxStreams is how many requests one connection of HTTP/2 may have at once.
	maxStreams = 32
	maxHeader  = 16 << 10
)

// ServeConfig says how an interface is served. The zero value speaks no TLS.
type ServeConfig struct {
	// TLS, if set, is spoken on all connections. Who serves runs it too.
	TLS *tlsconf.Server
	// MaxConnections is how many may be open at once. For one over it the oldest is
	// closed of those whose last request was not let in, or that have asked for nothing;
	// where there is none of these, the new one is. 0 means DefaultMaxConnections.
	MaxConnections int
	// Log has a line of each cause for which connections end, at a bounded rate. Nil
	// means no log.
	Log *slog.Logger
}

// Serve answers on ln until ctx ends; requests under way then have a second, and
// their contexts end with ctx. HTTP/2 is spoken with who begins with it, as gRPC
// does.
func Serve(ctx context.Context, ln net.Listener, h http.Handler, cfg ServeConfig) error {
	if cfg.MaxConnections == 0 {
		cfg.MaxConnections = DefaultMaxConnections
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(cfg.TLS == nil)
	srv := &http.Server{
		Handler:           h,
		Protocols:         &protocols,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext:       withGuest,
		ReadHeaderTimeout: 5 * time.Second, // a TLS handshake has it too
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      time.Minute,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          log.New(&peers{log: cfg.Log}, "", 0),
	}
	served := make(chan error, 1)
	go func() {
		served <- srv.Serve(&door{Listener: ln, cfg: cfg})
	}()
	select {
	case err := <-served:
		return fmt.Errorf("admin: %w", err)
	case <-ctx.Done():
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	err := srv.Shutdown(bounded)
	if err != nil {
		err = srv.Close()
	}
	if served := <-served; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	if err != nil {
		return fmt.Errorf("admin: %w", err)
	}
	return ctx.Err()
}

// door lets so many connections in at once.
type door struct {
	net.Listener
	cfg  ServeConfig
	full loglimit.Limit

	mu     sync.Mutex
	guests []*guest // the oldest first
}

// Accept closes connections where there are too many: who waits for a place would not
// know why.
func (d *door) Accept() (net.Conn, error) {
	for {
		c, err := d.Listener.Accept()
		if err != nil {
			return nil, err
		}
		g := &guest{Conn: c, door: d}
		out := d.enter(g)
		if out != nil {
			if held, ok := d.full.Allow(); ok {
				d.cfg.Log.Warn("a connection to the admin interface was closed, there are too many", "peer", out.RemoteAddr(), "max_connections", d.cfg.MaxConnections, "not_logged", held)
			}
			out.Conn.Close()
		}
		switch {
		case out == g:
			continue
		case d.cfg.TLS != nil:
			return tls.Server(g, d.cfg.TLS.Config()), nil
		}
		return g, nil
	}
}

// enter gives g a place, and returns who is to leave for that, which may be g; or nil.
// Who was let in keeps its place: strangers could lock the operator out else.
func (d *door) enter(g *guest) (out *guest) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.guests) >= d.cfg.MaxConnections {
		i := slices.IndexFunc(d.guests, func(g *guest) bool { return !g.known.Load() })
		if i < 0 {
			return g
		}
		out = d.guests[i]
		d.guests = slices.Delete(d.guests, i, i+1)
	}
	d.guests = append(d.guests, g)
	return out
}

// leave gives g's place back, if it has one.
func (d *door) leave(g *guest) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if i := slices.Index(d.guests, g); i >= 0 {
		d.guests = slices.Delete(d.guests, i, i+1)
	}
}

// guest is a connection that has a place.
type guest struct {
	net.Conn
	door  *door
	known atomic.Bool // its last request was let in
}

// Close gives the place back.
func (g *guest) Close() error {
	defer g.door.leave(g)
	return g.Conn.Close()
}

type guestKey struct{}

// withGuest has requests of a connection find its guest.
func withGuest(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	return context.WithValue(ctx, guestKey{}, c)
}

// letIn notes whether a request is one of those that are let in.
func letIn(r *http.Request, is bool) {
	if g, ok := r.Context().Value(guestKey{}).(*guest); ok {
		g.known.Store(is)
	}
}

// peers takes the lines of package http, which peers cause: a handshake that fails, or
// a request that is none.
type peers struct {
	log   *slog.Logger
	limit loglimit.Limit
}

// Write is called with a line each.
func (p *peers) Write(line []byte) (int, error) {
	if held, ok := p.limit.Allow(); ok {
		p.log.Warn("admin interface", "err", string(bytes.TrimSpace(line)), "not_logged", held)
	}
	return len(line), nil
}
