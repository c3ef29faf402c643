package test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// browser is a tab of a headless Chromium that keeps what goes wrong in it.
type browser struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	wrong    []string
	requests []string
}

// openBrowser starts Chromium with a profile of its own.
func openBrowser(t *testing.T, more ...chromedp.ExecAllocatorOption) *browser {
	t.Helper()
	needsServer(t)
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatalf("%v: install the Debian package chromium", err)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.UserDataDir(t.TempDir()), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.NoFirstRun,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true),
		chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true), chromedp.Flag("hide-scrollbars", false),
		chromedp.Flag("host-resolver-rules", "MAP evil.example 127.0.0.1"),
		chromedp.WSURLReadTimeout(time.Minute), chromedp.WindowSize(1200, 900))
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	t.Cleanup(cancel)
	ctx, end := chromedp.NewExecAllocator(ctx, append(options, more...)...)
	t.Cleanup(end)
	ctx, _ = chromedp.NewContext(ctx)
	b := &browser{t: t, ctx: ctx}
	if err := chromedp.Listen(ctx, b.hear); err != nil {
		t.Fatalf("start chromium: %v", err)
	}
	if _, err := chromedp.Call(ctx, network.Enable, network.EnableParams{}); err != nil {
		t.Fatal(err)
	}
	if _, err := chromedp.Call(ctx, cdplog.Enable, cdp.Empty{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // waits until it has ended
		if err := chromedp.Cancel(ctx); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("chromium: %v", err)
		}
	})
	return b
}

func (b *browser) hear(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		b.wrong = append(b.wrong, e.ExceptionDetails.Text+" "+e.ExceptionDetails.Exception.Description)
	case *runtime.EventConsoleAPICalled:
		for _, a := range e.Args {
			b.wrong = append(b.wrong, fmt.Sprintf("console.%s %s %s", e.Type, a.Value, a.Description))
		}
	case *cdplog.EventEntryAdded:
		b.wrong = append(b.wrong, fmt.Sprintf("%s: %s %s", e.Entry.Level, e.Entry.Text, e.Entry.URL))
	case *network.EventRequestWillBeSent:
		b.requests = append(b.requests, e.Request.URL)
	}
}

func (b *browser) do(what string, steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, steps...); err != nil {
		b.t.Fatalf("%s: %v", what, err)
	}
}

// open loads the page of an agent and waits until it lives.
func (b *browser) open(p *process) {
	b.t.Helper()
	b.do("open the page", chromedp.Navigate("http://"+p.admin()+"/"))
	b.becomes("the page is live", `document.getElementById("link").textContent === "connected" && document.querySelectorAll("#clusters-t tbody tr").length > 0`)
}

// is returns what an expression is at this moment.
func (b *browser) is(expression string) bool {
	b.t.Helper()
	return evaluate[bool](b, "Boolean("+expression+")")
}

func evaluate[T any](b *browser, expression string) T {
	b.t.Helper()
	x, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return x
}

// run runs a script.
func (b *browser) run(what, script string) {
	b.t.Helper()
	b.do(what, chromedp.Evaluate[chromedp.Void](script))
}

func (b *browser) becomes(what, expression string) {
	b.t.Helper()
	eventually(b.t, what, func() bool { return b.is(expression) })
}

// row is the script for the row of an endpoint, by what its first cell has.
func row(address string) string {
	return fmt.Sprintf(`[...document.querySelectorAll("#endpoints-t tbody tr")].find(tr => tr.cells[0].textContent.startsWith(%q))`, address)
}

// clean checks that nothing was wrong, and that all was asked of the agent.
func (b *browser) clean(p *process) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, w := range b.wrong {
		b.t.Errorf("in the browser: %s", w)
	}
	for _, r := range b.requests {
		if u, err := url.Parse(r); err != nil || u.Host != p.admin() && r != "data:," {
			b.t.Errorf("a request outside: %s", r)
		}
	}
	if len(b.requests) < 2 {
		b.t.Errorf("the requests are %q", b.requests)
	}
}

// picture keeps what is seen among the artifacts of the test.
func (b *browser) picture(name string, full bool) {
	b.t.Helper()
	shoot := chromedp.CaptureScreenshot()
	if full {
		shoot = chromedp.FullScreenshot(100)
	}
	png, err := chromedp.Run(b.ctx, shoot)
	if err != nil {
		b.t.Fatalf("screenshot: %v", err)
	}
	if err := os.WriteFile(filepath.Join(b.t.ArtifactDir(), name+".png"), png, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

func (b *browser) scheme(name string) {
	b.t.Helper()
	media := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}}}
	if _, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, media); err != nil {
		b.t.Fatalf("set the scheme: %v", err)
	}
}

// tabTo presses Tab until an expression of the focused element, e, is true.
func (b *browser) tabTo(what, expression string) {
	b.t.Helper()
	for range 200 {
		b.do("press Tab", chromedp.KeyEvent(kb.Tab))
		if b.is(`(e => ` + expression + `)(document.activeElement)`) {
			if !b.is(`getComputedStyle(document.activeElement).outlineStyle !== "none"`) {
				b.t.Errorf("the focus on %s can't be seen", what)
			}
			return
		}
	}
	b.t.Fatalf("Tab does not lead to %s", what)
}
