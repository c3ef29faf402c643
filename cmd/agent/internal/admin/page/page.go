package page

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	_ "embed"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
)

//go:embed page.html
var document string

//go:embed page.css
var style string

//go:embed page.js
var script string

// TokenHeader is where a browser puts the token of the page.
const TokenHeader = "X-Gatehouse-Token"

// Config configures a Page.
type Config struct {
	// Rows returns what there is now, with the details of one cluster, of none for
	// "". It is not called by two streams at once, and what it returns is not
	// written any more.
	Rows func(cluster string) Rows
	// Log, if set, is shown as rows too.
	Log *Log
}

// Page serves the document and its streams. Make one with New. Its methods may be
// called from anywhere.
type Page struct {
	cfg    Config
	token  string
	html   string
	policy string
	open   chan struct{} // a place for each stream
	turn   chan struct{} // one builds
}

// New returns a Page with a token of its own.
func New(cfg Config) *Page {
	p := &Page{cfg: cfg, token: rand.Text(), open: make(chan struct{}, maxStreams), turn: make(chan struct{}, 1)}
	p.html = strings.NewReplacer("{{style}}", style, "{{script}}", script, "{{token}}", p.token).Replace(document)
	// Hashes, not a nonce: whatever a name may become, no other script runs.
	p.policy = fmt.Sprintf("default-src 'none'; script-src '%s'; style-src '%s'; connect-src 'self'; img-src data:; "+
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'", digest(script), digest(style))
	return p
}

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// ServeHTTP answers with the document.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", p.policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store") // it holds the token
	http.ServeContent(w, r, "", zeroTime, strings.NewReader(p.html))
}

// Knows reports whether a request has the token of the page, which pages of other
// origins can't read.
func (p *Page) Knows(r *http.Request) bool {
	return subtle.ConstantTimeCompare([]byte(r.Header.Get(TokenHeader)), []byte(p.token)) == 1
}
