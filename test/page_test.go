package test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// pageAgent runs an agent with backends behind a listener, checked often.
func pageAgent(t *testing.T, backends ...*backend) *process {
	var endpoints []string
	for _, b := range backends {
		endpoints = append(endpoints, fmt.Sprintf("{ address = %q }", b.addr))
	}
	p := startAgent(t, `
cluster "web" {
  discovery "static" { endpoints = [`+strings.Join(endpoints, ", ")+`] }
  health_check "tcp" {
    interval = "1s"
    healthy_threshold = 1
    unhealthy_threshold = 1
  }
  selector "default" { policy = "round_robin" }
  selector "sticky" { policy = "ring_hash" }
  selector "fast" { policy = "adaptive" }
}
cluster "<img src=x onerror=console.error(1)>" {
  discovery "static" { endpoints = [{ address = "127.0.0.1:9" }] }
}
listener "web" {
  address = "127.0.0.1:0"
  cluster = "web"
}
listener "sticky" {
  address = "127.0.0.1:0"
  cluster = "web"
  selector = "sticky"
}
`)
	p.awaitReady()
	return p
}

func (b *browser) choose(cluster string) {
	b.t.Helper()
	b.run("choose a cluster", fmt.Sprintf(`[...document.querySelectorAll("#clusters-t button")].find(b => b.textContent === %q).click()`, cluster))
	b.becomes("the cluster is shown", fmt.Sprintf(`document.getElementById("detail-h").textContent === %q && document.querySelectorAll("#endpoints-t tbody tr").length > 0`, cluster))
}

// takes reports whether an endpoint takes new connections.
func (p *process) takes(cluster, address string) bool {
	p.t.Helper()
	return slices.Contains(p.cluster(cluster).ready, address)
}

// The page lives: it follows what happens, says why, and acts by mouse and keyboard.
func TestLivePage(t *testing.T) {
	backends := []*backend{startBackend(t), startBackend(t), startBackend(t)}
	p := pageAgent(t, backends...)
	b := openBrowser(t)
	b.scheme("light")
	b.open(p)
	b.becomes("a hostile name is text", `[...document.querySelectorAll("#clusters-t button")].some(b => b.textContent.includes("<img src=x"))`)
	if b.is(`document.querySelector("main img, main script") !== null`) {
		t.Error("a name has become an element")
	}
	b.choose("web")
	b.becomes("all are ready", `document.getElementById("endpoints-count").textContent === "3 of 3 ready"`)
	b.becomes("each selector has its shares", `document.querySelectorAll("#selectors .card").length === 3 && [...document.querySelectorAll("#selectors .shares")].every(l => l.children.length === 3)`)
	b.becomes("the ring is drawn", `document.querySelectorAll("#selectors .ring path").length > 10`)

	tr := startTraffic(t, p.listener("web"))
	b.becomes("connections are drawn", `document.querySelectorAll("#traffic .big")[1].textContent > "0"`)

	dead := backends[1].addr
	backends[1].kill()
	b.becomes("its endpoint has failed, and why", row(dead)+`?.textContent.match(/failed.*connection refused/)`)
	b.becomes("it has no share", `[...document.querySelectorAll("#selectors .shares")].every(l => l.children.length === 2 && !l.textContent.includes("`+dead+`"))`)
	b.becomes("it is among the events", `document.getElementById("log").textContent.includes("`+dead+` was ready and is failed")`)
	b.becomes("the agent's log is among the events", `document.getElementById("log").textContent.includes("listening")`)

	mine := backends[0].addr
	b.run("click Disable", row(mine)+`.querySelector("button").click()`)
	b.becomes("it is disabled", row(mine)+`?.textContent.includes("disabled")`)
	b.becomes("it is said", `document.getElementById("said").textContent.includes("is disabled")`)
	if p.takes("web", mine) {
		t.Error("the endpoint is enabled all the same")
	}
	tr.stop()

	// By keyboard alone: the focus is in its place again after the next moments.
	b.run("leave the focus", `document.activeElement.blur(); window.scrollTo(0, 0)`)
	b.tabTo("Enable", fmt.Sprintf(`e.getAttribute("aria-label") === "Enable %s"`, mine))
	b.do("press Enter", chromedp.KeyEvent(kb.Enter))
	b.becomes("it is enabled", row(mine)+`?.textContent.includes("ready")`)
	if !p.takes("web", mine) {
		t.Error("the endpoint is disabled all the same")
	}
	b.becomes("the focus is where it was", fmt.Sprintf(`document.activeElement.getAttribute("aria-label") === "Disable %s"`, mine))
	b.tabTo("the events", `e.id === "log"`)
	b.clean(p)

	b.run("leave the focus", `document.activeElement.blur(); document.getElementById("drain").focus()`)
	b.do("press Enter", chromedp.KeyEvent(kb.Enter))
	b.becomes("it asks, and Cancel is in front", `document.getElementById("ask").open && document.activeElement.id === "ask-no"`)
	b.tabTo("Drain", `e.id === "ask-yes"`)
	b.do("press Enter", chromedp.KeyEvent(kb.Enter))
	b.becomes("the agent drains", `document.getElementById("state").textContent === "DRAINING"`)
	b.clean(p)
}

// The page outlives the agent: it says that it is disconnected, and when an agent is at the
// address again it goes on without being loaded again. What it shows then is what that
// one counts, and it may act there.
func TestLivePageOutlivesAgent(t *testing.T) {
	needsServer(t)
	one, two := startBackend(t), startBackend(t)
	file := filepath.Join(t.TempDir(), "gatehouse.hcl")
	write(t, file, fmt.Sprintf("admin { address = %q }\n%s}\nlistener \"web\" {\n  address = \"127.0.0.1:0\"\n  cluster = \"web\"\n}\n", freePorts(t, 1)[0], static("web", one, two)))
	run := func() *process {
		p := startAgentWith(t, "run", "-config-file", file, "-log-json")
		p.awaitReady()
		return p
	}
	use := func(p *process, n int) {
		t.Helper()
		for range n {
			if _, err := ask(t.Context(), p.listener("web")); err != nil {
				t.Fatal(err)
			}
		}
	}
	opened := func(n int) string {
		return fmt.Sprintf(`[...document.querySelectorAll("#endpoints-t tbody tr")].reduce((n, tr) => n + Number(tr.cells[4].textContent), 0) === %d`, n)
	}
	p := run()
	b := openBrowser(t)
	b.open(p)
	b.run("mark the document", `window.mark = "the same"`)
	use(p, 5)
	b.becomes("its connections are counted", opened(5))
	b.becomes("the time to connect is told", `document.querySelector("#clusters-t tbody tr").cells[8].textContent.match(/^[0-9.]+ [µm]?s, [0-9.]+ [µm]?s$/)`)
	b.becomes("and drawn", `document.querySelectorAll("#traffic .card")[2].textContent.match(/p50 and p99[0-9.]+|at most [1-9]/)`)
	p.end(syscall.SIGKILL)
	b.becomes("it says that the agent is gone", `document.getElementById("link").textContent.startsWith("disconnected") && document.getElementById("state").textContent === ""`)

	p = run()
	b.becomes("it is back", `document.getElementById("link").textContent === "connected" && document.getElementById("state").textContent === "LIVE"`)
	b.becomes("nothing is counted yet", opened(0))
	use(p, 3)
	b.becomes("its connections are counted anew", opened(3))
	b.becomes("all are ready", `document.getElementById("endpoints-count").textContent === "2 of 2 ready"`)
	b.run("click Disable", row(one.addr)+`.querySelector("button").click()`)
	b.becomes("it is disabled", row(one.addr)+`?.textContent.includes("disabled")`)
	if p.takes("web", one.addr) {
		t.Error("the endpoint is enabled all the same")
	}
	if !b.is(`window.mark === "the same"`) {
		t.Error("the page was loaded again")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, w := range b.wrong { // Chromium tells of what it can't load by itself
		if !strings.Contains(w, "net::ERR_") {
			t.Errorf("in the browser: %s", w)
		}
	}
}

// Nothing scrolls sideways, on a telephone neither, and both schemes have contrast.
func TestLivePageLooks(t *testing.T) {
	var backends []*backend
	var web, api []string
	for i := range 6 {
		backends = append(backends, startBackendOn(t, "tcp", fmt.Sprintf("127.0.1.%d:0", i+1)))
		web = append(web, fmt.Sprintf("{ address = %q }", backends[i].addr))
		api = append(api, fmt.Sprintf("%q", backends[i].addr))
	}
	file := filepath.Join(t.TempDir(), "api.hcl")
	list := func(n int) { write(t, file, "endpoints = ["+strings.Join(api[:n], ", ")+"]\n") }
	list(3)
	p := startFastAgent(t, fmt.Sprintf(`
node { id = "node-7" }
cluster "web" {
  discovery "static" { endpoints = [%s] }
  health_check "tcp" {
    interval = "1s"
    healthy_threshold = 1
    unhealthy_threshold = 1
  }
  selector "default" { policy = "adaptive" }
  selector "sticky" { policy = "ring_hash" }
}
cluster "api" {
  discovery "file" { path = %q }
}
listener "web" {
  address = "127.0.0.1:0"
  cluster = "web"
}
listener "api" {
  address = "127.0.0.1:0"
  cluster = "api"
}
`, strings.Join(web, ", "), file))
	p.awaitReady()
	b := openBrowser(t)
	b.scheme("light")
	b.open(p)
	b.choose("web")
	b.becomes("all are ready", `document.getElementById("endpoints-count").textContent === "6 of 6 ready"`)
	startTraffic(t, p.listener("web"))
	startTraffic(t, p.listener("api"))
	for n := 4; n <= 6; n++ {
		list(n)
		b.becomes("the rebuild is told", fmt.Sprintf(`document.querySelectorAll("#rebuilds circle").length === %d`, n-3))
	}
	backends[4].kill()
	b.becomes("one has failed", `document.getElementById("endpoints-count").textContent === "5 of 6 ready"`)
	b.becomes("there is a line to see", `document.querySelectorAll("#traffic .line")[0].getAttribute("d").split("L").length > 15`)
	b.do("set the size of the picture in docs", chromedp.EmulateViewport(1200, 1240))
	b.run("show the top", `window.scrollTo(0, 0)`)
	b.picture("live-page", false)
	for _, width := range []int64{1200, 768, 390} {
		b.do("set the width", chromedp.EmulateViewport(width, 900))
		for _, scheme := range []string{"light", "dark"} {
			b.scheme(scheme)
			b.becomes("the scheme is in force", fmt.Sprintf(`matchMedia("(prefers-color-scheme: %s)").matches`, scheme))
			b.becomes(fmt.Sprintf("nothing is wider than %d", width), fmt.Sprintf(`document.documentElement.scrollWidth <= %d`, width))
			for _, f := range evaluate[[]string](b, contrast) {
				t.Errorf("%s: little contrast: %s", scheme, f)
			}
			b.picture(fmt.Sprintf("page-%d-%s", width, scheme), true)
		}
	}
	b.clean(p)
}

// contrast lists texts whose contrast with the ground they stand on is below that of
// WCAG 2 AA.
const contrast = `(() => {
  const ink = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgb = c => { ink.clearRect(0, 0, 1, 1); ink.fillStyle = c; ink.fillRect(0, 0, 1, 1); return [...ink.getImageData(0, 0, 1, 1).data]; };
  const light = ([r, g, b]) => { const f = x => (x /= 255) <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4; return .2126 * f(r) + .7152 * f(g) + .0722 * f(b); };
  const faint = new Set();
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let n; n = walk.nextNode();) {
    const e = n.parentElement;
    if (!n.data.trim() || !e.checkVisibility() || e.disabled || e.closest("svg, script, noscript, .skip")) continue;
    let on = e;
    while (on && rgb(getComputedStyle(on).backgroundColor)[3] === 0) on = on.parentElement;
    const a = light(rgb(getComputedStyle(e).color)), b = light(rgb(getComputedStyle(on || document.documentElement).backgroundColor));
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) faint.add(ratio.toFixed(2) + " " + e.className + " " + n.data.trim().slice(0, 30));
  }
  return [...faint];
})()`

// Five thousand endpoints are found, paged and acted on.
func TestLivePageOfManyEndpoints(t *testing.T) {
	needsServer(t)
	var endpoints []string
	for i := range 5000 {
		endpoints = append(endpoints, fmt.Sprintf("{ address = \"127.1.%d.%d:80\" }", i/250, i%250+1))
	}
	p := startFastAgent(t, "cluster \"web\" {\n  discovery \"static\" { endpoints = ["+strings.Join(endpoints, ",")+"] }\n  selector \"sticky\" { policy = \"ring_hash\" }\n  selector \"default\" { policy = \"least_weight\" }\n}\n")
	p.awaitReady()
	b := openBrowser(t)
	b.open(p)
	b.becomes("all are there", `document.getElementById("endpoints-count").textContent === "5000 of 5000 ready"`)
	if !b.is(`document.querySelectorAll("#endpoints-t tbody tr").length === 25 && document.getElementById("endpoints-n").textContent.includes("of 5000")`) {
		t.Error("they are not shown in pages")
	}
	b.becomes("the ring is drawn", `document.querySelectorAll("#selectors .ring path").length > 10`)
	b.do("find one", chromedp.SendKeys("#endpoints-find", "127.1.7.77:"))
	b.becomes("it alone is shown", `document.querySelectorAll("#endpoints-t tbody tr").length === 1`)
	b.run("click Disable", row("127.1.7.77:80")+`.querySelector("button").click()`)
	b.becomes("it is disabled", row("127.1.7.77:80")+`?.textContent.includes("disabled")`)
	b.becomes("it is counted", `document.getElementById("endpoints-count").textContent === "4999 of 5000 ready"`)
	b.run("show all, and the last page", `(() => { const f = document.getElementById("endpoints-find"); f.value = ""; f.dispatchEvent(new Event("input")); })()`)
	b.becomes("there is a next page", `[...document.querySelectorAll("#endpoints-n button")].some(b => b.textContent === "Next" && !b.disabled)`)
	b.run("turn the page", `[...document.querySelectorAll("#endpoints-n button")].find(b => b.textContent === "Next").click()`)
	b.becomes("it is the second page", `document.getElementById("endpoints-n").textContent.includes("26–50 of 5000")`)
	b.picture("page-5000", false)
	b.clean(p)
}

// A page that came by a name of somebody else, which was made to lead here, reads
// nothing: for a browser it is of the same origin.
func TestLivePageRebinding(t *testing.T) {
	p := pageAgent(t, startBackend(t))
	b := openBrowser(t, chromedp.Flag("host-resolver-rules", "MAP evil.example 127.0.0.1"))
	_, port, _ := net.SplitHostPort(p.admin())
	for _, path := range []string{"/", "/config_dump", "/stats/prometheus"} {
		b.do("open "+path, chromedp.Navigate("http://evil.example:"+port+path))
		if text := evaluate[string](b, `document.documentElement.textContent`); !strings.Contains(text, "is not known here") {
			t.Errorf("%s shows %.200q", path, text)
		}
	}
}

// A page of somebody else changes nothing and reads nothing, nor does who has no token change anything.
func TestLivePageRefusesOthers(t *testing.T) {
	backends := []*backend{startBackend(t), startBackend(t)}
	p := pageAgent(t, backends...)
	path := "http://" + p.admin() + "/endpoints/web/" + backends[0].addr + "/disable"
	for _, tt := range []struct {
		what, host string
		headers    map[string]string
	}{
		{"another origin", "", map[string]string{"Origin": "http://evil.example"}},
		{"another host", "evil.example", map[string]string{"Origin": "http://evil.example"}},
		{"its own origin without the token", "", map[string]string{"Origin": "http://" + p.admin(), "Sec-Fetch-Site": "same-origin"}},
		{"a wrong token", "", map[string]string{"Origin": "http://" + p.admin(), "X-Gatehouse-Token": "guess"}},
	} {
		r, err := http.NewRequestWithContext(t.Context(), "POST", path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = tt.host
		for k, v := range tt.headers {
			r.Header.Set(k, v)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusForbidden {
			t.Errorf("%s: %s", tt.what, resp.Status)
		}
	}
	// What a real browser sends for such a page.
	evil := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<link rel="icon" href="data:,"><p id=done></p><script>fetch(%q, {method: "POST", mode: "no-cors"}).finally(() => { document.getElementById("done").textContent = "done"; });</script>`, path)
	}))
	defer evil.Close()
	b := openBrowser(t)
	b.do("open the other page", chromedp.Navigate(evil.URL))
	b.becomes("it has tried", `document.getElementById("done").textContent === "done"`)
	if !p.takes("web", backends[0].addr) {
		t.Error("another page has disabled an endpoint")
	}
	// A name of theirs that leads here, as by DNS rebinding: what is under it they may read.
	_, port, err := net.SplitHostPort(p.admin())
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/", "/clusters", "/config_dump"} {
		b.do("open it by another name", chromedp.Navigate("http://evil.example:"+port+path))
		b.becomes("it is refused", `document.body.innerText.includes("is not known here")`)
	}
	http.DefaultClient.CloseIdleConnections()
}
