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
	"sync"
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
	// MaxConnections is how many may be open at once; those over it are closed. 0
	// means DefaultMaxConnections.
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
		ReadHeaderTimeout: 5 * time.Second, // a TLS handshake has it too
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      time.Minute,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          log.New(&peers{log: cfg.Log}, "", 0),
	}
	served := make(chan error, 1)
	go func() {
		served <- srv.Serve(&door{Listener: ln, cfg: cfg, places: make(chan struct{}, cfg.MaxConnections)})
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
	cfg    ServeConfig
	places chan struct{}
	full   loglimit.Limit
}

// Accept closes the connections that there is no place for: who waits for one would
// not know why.
func (d *door) Accept() (net.Conn, error) {
	for {
		c, err := d.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case d.places <- struct{}{}:
		default:
			if held, ok := d.full.Allow(); ok {
				d.cfg.Log.Warn("a connection to the admin interface was closed, there are too many", "max_connections", d.cfg.MaxConnections, "not_logged", held)
			}
			c.Close()
			continue
		}
		c = &guest{Conn: c, leave: sync.OnceFunc(func() { <-d.places })}
		if d.cfg.TLS != nil {
			c = tls.Server(c, d.cfg.TLS.Config())
		}
		return c, nil
	}
}

// guest is a connection that has a place.
type guest struct {
	net.Conn
	leave func()
}

// Close gives the place back.
func (g *guest) Close() error {
	defer g.leave()
	return g.Conn.Close()
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
