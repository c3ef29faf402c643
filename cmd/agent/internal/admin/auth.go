package admin

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"

	"gatehouse.internal/internal/loglimit"
)

// maxBody bounds the body of a request, in bytes. No path reads one, but for CSDS,
// which has a limit of its own for each of its messages.
const maxBody = 64 << 10

// open are the paths that are answered without the token: whoever runs the agent must
// be able to tell if it does. They say no more than that.
var open = map[string]bool{"/live": true, "/ready": true}

type strangerKey struct{}

// stranger reports whether a request lacks the token, so that it is told no names.
func stranger(r *http.Request) bool { return r.Context().Value(strangerKey{}) != nil }

// authorized refuses requests without the token. It goes before all that a request
// could be told, also of which paths there are.
func authorized(cfg *Config, next http.Handler) http.Handler {
	if cfg.Token == nil {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			letIn(r, true)
			next.ServeHTTP(w, r)
		})
	}
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	var refused, unknown loglimit.Limit
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		want, err := cfg.Token()
		known := err == nil && knows(r, want)
		letIn(r, known)
		switch {
		case known:
			next.ServeHTTP(w, r)
		case open[r.URL.Path]:
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), strangerKey{}, true)))
		case err != nil:
			if held, ok := unknown.Allow(); ok {
				log.Warn("requests to the admin interface are refused, the token can't be read", "err", err, "not_logged", held)
			}
			http.Error(w, "the token of the admin interface can't be read: the log says why", http.StatusServiceUnavailable)
		default:
			if held, ok := refused.Allow(); ok {
				log.Warn("a request to the admin interface without its token was refused", "peer", r.RemoteAddr, "path", fmt.Sprintf("%.100s", r.URL.Path), "not_logged", held)
			}
			w.Header().Add("WWW-Authenticate", `Bearer realm="gatehouse"`)
			w.Header().Add("WWW-Authenticate", `Basic realm="gatehouse", charset="UTF-8"`)
			http.Error(w, `the token of the admin interface is missing or wrong: send "authorization: Bearer …"`, http.StatusUnauthorized)
		}
	})
}

// knows reports whether a request has the token, in a time that tells neither how much
// of it is right nor how long it is.
func knows(r *http.Request, want string) bool {
	got, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		_, got, ok = r.BasicAuth()
	}
	a, b := sha256.Sum256([]byte(got)), sha256.Sum256([]byte(want))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1 && ok && want != ""
}

// bounded refuses requests with a body that nobody wants, before they are acted on: one
// without a length is read as far as it may go, which ReadTimeout bounds in time.
func bounded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, clientStatusPath) {
			next.ServeHTTP(w, r)
			return
		}
		err := error(&http.MaxBytesError{Limit: maxBody})
		if r.ContentLength <= maxBody {
			_, err = io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, maxBody))
		}
		if _, large := errors.AsType[*http.MaxBytesError](err); large {
			w.Header().Set("Connection", "close")
			http.Error(w, fmt.Sprintf("a body of more than %d bytes", maxBody), http.StatusRequestEntityTooLarge)
			return
		}
		if err != nil {
			http.Error(w, "the body of the request can't be read", http.StatusBadRequest)
			return
		}
		r.Body = http.NoBody
		next.ServeHTTP(w, r)
	})
}
