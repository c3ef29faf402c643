package admin

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"runtime/debug"
	"strings"

	"gatehouse.internal/internal/contain"
)

// guard refuses requests that a page of somebody else has made a browser send: of
// another origin, or, where a name of theirs was made to lead here (DNS rebinding), for
// another host. Such a page may do what the browser's user may, and a browser does not
// always say that it is one: it sends no Sec-Fetch-Site to a name that it can't trust,
// and no Origin with a page's request for its own. So on an interface that anybody may
// use, nothing but the paths of open is read by another name. Where there is a token or
// TLS, a name of theirs has neither the token nor the certificate. Who follows a link of
// another page gets here.
func guard(cfg *Config, next http.Handler) http.Handler {
	origins := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		anyName := !changes(r) && !isBrowser(r) && (cfg.Token != nil || r.TLS != nil || open[r.URL.Path] || r.Host == "")
		if !anyName && !ownHost(r, cfg.Hosts) {
			http.Error(w, fmt.Sprintf("the host %q is not known here: ask for the IP address, localhost or the name of the host", r.Host), http.StatusForbidden)
			return
		}
		asked := r
		if !changes(r) && r.Header.Get("Sec-Fetch-Mode") != "navigate" {
			// They couldn't read the answer, but could take all places of live pages.
			asked = r.WithContext(r.Context())
			asked.Method = http.MethodPost // of reads nothing is checked otherwise
		}
		if err := origins.Check(asked); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// contained has a panic cost the request, which ends without the rest of its answer. It
// shares nothing half written: what changes something is done by its owner. Package http
// would pass over it too, uncounted.
func contained(panics *contain.Panics, next http.Handler) http.Handler {
	if panics == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			x := recover()
			if x == nil {
				return
			}
			if x != http.ErrAbortHandler {
				_ = panics.Caught(contain.Request, x, debug.Stack()) // who asks is told nothing of it
			}
			panic(http.ErrAbortHandler) // ends the answer, and package http does not log it
		}()
		next.ServeHTTP(w, r)
	})
}

func isBrowser(r *http.Request) bool {
	return r.Header.Get("Sec-Fetch-Site") != "" || r.Header.Get("Origin") != ""
}

func changes(r *http.Request) bool { return r.Method != http.MethodGet && r.Method != http.MethodHead }

// ownHost reports whether a request is for an IP address, localhost or one of
// hosts. Names don't lead to a unix socket, so there any will do.
func ownHost(r *http.Request, hosts []string) bool {
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && local.Network() == "unix" {
		return true
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if _, err := netip.ParseAddr(host); err == nil || strings.EqualFold(host, "localhost") {
		return true
	}
	for _, own := range hosts {
		if own != "" && strings.EqualFold(strings.TrimSuffix(host, "."), own) {
			return true
		}
	}
	return false
}
