package admin

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime/pprof"
	"strings"
	"testing"

	"gatehouse.internal/cmd/agent/internal/admin/page"
)

func TestProfiles(t *testing.T) {
	log := new(page.Log)
	slog.New(log.Tee(slog.NewTextHandler(io.Discard, nil))).Info("a line")
	h := Handler(Config{Metrics: http.NotFoundHandler(), Log: log})
	for _, name := range append([]string{"profile"}, profiles...) {
		w := ask(h, "GET", "/debug/pprof/"+name+"?seconds=0")
		zip, err := gzip.NewReader(w.Body)
		if err != nil || w.Code != 200 {
			t.Errorf("%s: %d, %v", name, w.Code, err)
			continue
		}
		if body, err := io.ReadAll(zip); err != nil || len(body) == 0 {
			t.Errorf("%s: %d bytes, %v", name, len(body), err)
		}
	}
	if w := ask(h, "GET", "/debug/pprof/goroutine?debug=2"); !strings.HasPrefix(w.Body.String(), "goroutine ") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := ask(h, "GET", "/debug/log"); !strings.HasSuffix(w.Body.String(), " INFO a line\n") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	for path, want := range map[string]int{
		"/debug/pprof/profile?seconds=31": 400, "/debug/pprof/profile?seconds=-1": 400, "/debug/pprof/heap?debug=x": 400,
		"/debug/pprof/cmdline": 404, "/debug/pprof/symbol": 404, "/debug/pprof/": 404,
	} {
		if w := ask(h, "GET", path); w.Code != want {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	if w := ask(h, "POST", "/debug/pprof/profile"); w.Code != 405 {
		t.Errorf("POST: %d", w.Code)
	}
}

// A CPU profile ends with who asks for it, and there is one at a time.
func TestProfileOneAtATime(t *testing.T) {
	h := Handler(Config{Metrics: http.NotFoundHandler()})
	if err := pprof.StartCPUProfile(io.Discard); err != nil {
		t.Fatal(err)
	}
	w := ask(h, "GET", "/debug/pprof/profile?seconds=0")
	pprof.StopCPUProfile()
	if w.Code != 409 {
		t.Errorf("beside another: %d %s", w.Code, w.Body)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w = httptest.NewRecorder()
	r := httptest.NewRequest("GET", "/debug/pprof/profile?seconds=30", nil).WithContext(ctx)
	r.Host = "127.0.0.1:9901"
	h.ServeHTTP(w, r)
	if w.Code != 200 || !bytes.HasPrefix(w.Body.Bytes(), []byte{0x1f, 0x8b}) {
		t.Errorf("of who has gone: %d %.20q", w.Code, w.Body)
	}
}

// Pages of others can't have a browser begin a profile.
func TestProfilesAreNotForOtherPages(t *testing.T) {
	h := Handler(Config{Metrics: http.NotFoundHandler(), Log: new(page.Log)})
	for _, path := range []string{"/debug/pprof/heap", "/debug/log"} {
		for site, want := range map[string]int{"cross-site": 403, "same-site": 403, "same-origin": 200, "none": 200} {
			r := httptest.NewRequest("GET", path, nil)
			r.Host = "127.0.0.1:9901"
			r.Header.Set("Sec-Fetch-Site", site)
			w := httptest.NewRecorder()
			if h.ServeHTTP(w, r); w.Code != want {
				t.Errorf("%s of %s: %d", path, site, w.Code)
			}
		}
	}
}
