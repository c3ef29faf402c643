package page

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The document brings all of itself, and its policy allows that and nothing else.
func TestDocument(t *testing.T) {
	p := New(Config{})
	w := httptest.NewRecorder()
	p.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	body, policy := w.Body.String(), w.Header().Get("Content-Security-Policy")
	for tag, directive := range map[string]string{"script": "script-src", "style": "style-src"} {
		_, text, _ := strings.Cut(body, "<"+tag+">")
		text, _, ok := strings.Cut(text, "</"+tag+">")
		if want := directive + " '" + digest(text) + "';"; !ok || !strings.Contains(policy, want) {
			t.Errorf("the policy %q does not have %s", policy, want)
		}
		if strings.Count(body, "<"+tag) != 1 {
			t.Errorf("there is more than one %s", tag)
		}
	}
	for _, want := range []string{"default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"} {
		if !strings.Contains(policy, want) {
			t.Errorf("the policy is %q, want %s", policy, want)
		}
	}
	if strings.Contains(policy, "unsafe") {
		t.Errorf("the policy is %q", policy)
	}
	for _, without := range []string{"{{", " style=", " onclick=", "http://", "https://", "//cdn"} {
		if strings.Contains(strings.ReplaceAll(body, svgSpace, ""), without) {
			t.Errorf("the document has %q", without)
		}
	}
	for _, without := range []string{".innerHTML =", "insertAdjacentHTML", "document.write", "outerHTML", "eval(", "new Function"} {
		if strings.Contains(script, without) {
			t.Errorf("the script has %q", without)
		}
	}
	if h := w.Header(); h.Get("Cache-Control") != "no-store" || h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Referrer-Policy") != "no-referrer" {
		t.Errorf("the header is %v", h)
	}
	if other := New(Config{}); other.token == p.token || len(p.token) < 26 || !strings.Contains(body, `name="token" content="`+p.token+`"`) {
		t.Errorf("the tokens are %q and %q", p.token, other.token)
	}
}

// svgSpace is a name, not an address.
const svgSpace = "http://www.w3.org/2000/svg"

func TestToken(t *testing.T) {
	p := New(Config{})
	for token, want := range map[string]bool{p.token: true, "": false, p.token[1:]: false, p.token + "x": false} {
		r := httptest.NewRequest("POST", "/", nil)
		r.Header.Set(TokenHeader, token)
		if p.Knows(r) != want {
			t.Errorf("token %q: %t", token, !want)
		}
	}
}

// Whatever the rows were and are, the events of a change make these of those, and
// none is larger than the limit and a row.
func TestChanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(label string) Rows {
			rows := make(Rows)
			for name, size := range rapid.MapOf(rapid.StringMatching(`[a-c]\|[a-d]{0,2}`), rapid.IntRange(0, maxEvent)).Draw(t, label) {
				rows.Set(name, strings.Repeat("x", size))
			}
			return rows
		}
		before, now := draw("before"), draw("now")
		got := make(Rows)
		for name, row := range before {
			got[name] = row
		}
		more, last := false, ""
		for e := range changes(before, now) {
			for _, name := range e.Gone {
				delete(got, name)
			}
			size := 0
			for name, row := range e.Set {
				if string(before[name]) == string(row) {
					t.Fatalf("row %s has not changed", name)
				}
				got[name] = row
				size += len(name) + len(row)
				if name <= last {
					t.Fatalf("%s comes after %s", name, last)
				}
			}
			for name := range e.Set {
				last = max(last, name)
			}
			if size > 2*maxEvent+64 {
				t.Fatalf("an event has %d bytes", size)
			}
			more = e.More
		}
		if more {
			t.Fatal("the last event says that more comes")
		}
		if len(got) != len(now) {
			t.Fatalf("%d rows, want %d", len(got), len(now))
		}
		for name, row := range now {
			if string(got[name]) != string(row) {
				t.Fatalf("row %s is another", name)
			}
		}
	})
}

func TestPause(t *testing.T) {
	for _, tt := range []struct {
		took time.Duration
		n    int
		want time.Duration
	}{
		{0, 0, time.Second}, {50 * time.Millisecond, 100, time.Second}, {200 * time.Millisecond, 100, 4 * time.Second},
		{0, 1 << 20, 4 * time.Second},
	} {
		if got := pause(tt.took, tt.n); got != tt.want {
			t.Errorf("%v, %d bytes: %v, want %v", tt.took, tt.n, got, tt.want)
		}
	}
}

// streamed is a writer of a stream, read in a bubble.
type streamed struct {
	*httptest.ResponseRecorder
	mu sync.Mutex
}

func (s *streamed) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ResponseRecorder.Write(b)
}

func (s *streamed) events(t *testing.T) (all []event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for lines := bufio.NewScanner(strings.NewReader(s.Body.String())); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			var e event
			if err := json.Unmarshal([]byte(text), &e); err != nil {
				t.Fatal(err)
			}
			all = append(all, e)
		}
	}
	return all
}

// A stream tells the whole, then once a second what has changed, and ends with its
// reader. Of too many streams the last is refused.
func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		state, looks := "up", 0
		log := new(Log)
		p := New(Config{Log: log, Rows: func(cluster string) Rows {
			mu.Lock()
			defer mu.Unlock()
			looks++
			rows := make(Rows)
			rows.Set("cluster|"+cluster, state)
			rows.Set("agent|", "same\n</script>")
			return rows
		}})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		open := func() *streamed {
			w := &streamed{ResponseRecorder: httptest.NewRecorder()}
			wg.Go(func() { p.Events(w, httptest.NewRequest("GET", "/events?cluster=a%2Fb", nil).WithContext(ctx)) })
			return w
		}
		one := open()
		synctest.Wait()
		all := one.events(t)
		if len(all) != 1 || string(all[0].Set["cluster|a/b"]) != `"up"` || len(all[0].Set) != 2 {
			t.Fatalf("the first events are %v", all)
		}
		if one.Header().Get("Content-Type") != "text/event-stream" {
			t.Errorf("the header is %v", one.Header())
		}
		time.Sleep(5500 * time.Millisecond)
		if all := one.events(t); len(all) != 1 {
			t.Errorf("without a change: %v", all)
		}
		mu.Lock()
		state = "down"
		mu.Unlock()
		slog.New(log.Tee(slog.DiscardHandler)).Info("not kept: nobody wants it")
		slog.New(log.Tee(slog.NewTextHandler(new(strings.Builder), nil))).Info("kept")
		time.Sleep(time.Second)
		all = one.events(t)
		if last := all[len(all)-1]; len(all) != 2 || len(last.Set) != 2 || string(last.Set["cluster|a/b"]) != `"down"` || !strings.Contains(string(last.Set["log|000000000000"]), `"kept"`) {
			t.Errorf("after a change: %v", all)
		}
		mu.Lock()
		if looks > 8 {
			t.Errorf("%d looks in six seconds", looks)
		}
		mu.Unlock()
		for range maxStreams - 1 {
			open()
		}
		synctest.Wait()
		w := httptest.NewRecorder()
		p.Events(w, httptest.NewRequest("GET", "/events", nil))
		if w.Code != http.StatusServiceUnavailable {
			t.Errorf("one stream more: %d", w.Code)
		}
		cancel()
		wg.Wait()
		if len(p.open) != 0 {
			t.Errorf("%d places are taken", len(p.open))
		}
	})
}

// The log keeps its last lines, with all that they say, and none is long.
func TestLog(t *testing.T) {
	l := new(Log)
	var out strings.Builder
	log := slog.New(l.Tee(slog.NewTextHandler(&out, nil)))
	log.With("cluster", "web").WithGroup("g").With("a", 1).Warn("told", "b", slog.GroupValue(slog.Int("c", 2)), "", 3, "err", fmt.Errorf("one\ntwo"))
	log.Debug("not told")
	rows := make(Rows)
	l.add(rows)
	var got line
	if err := json.Unmarshal(rows["log|000000000000"], &got); err != nil || len(rows) != 1 {
		t.Fatalf("%v, %v", rows, err)
	}
	if want := "told cluster=web g.a=1 g.b.c=2 g.err=one\ntwo"; got.Text != want || got.Level != "WARN" || got.At.IsZero() {
		t.Errorf("got %+v, want %q", got, want)
	}
	if !strings.Contains(out.String(), "cluster=web g.a=1") {
		t.Errorf("the next handler was told %q", &out)
	}
	for i := range 3 * shownLines {
		log.Info(strings.Repeat("é", i), "i", i)
	}
	rows = make(Rows)
	l.add(rows)
	if len(rows) != shownLines || rows[fmt.Sprintf("log|%012d", 3*shownLines)] == nil {
		t.Errorf("%d lines are shown", len(rows))
	}
	for name, row := range rows {
		if err := json.Unmarshal(row, &got); err != nil || len(got.Text) > shownText || strings.ContainsRune(got.Text, '�') {
			t.Errorf("%s: %v, %q", name, err, got.Text)
		}
	}
}

// What a bug report has is more, and has bounds too: the newest lines, whole ones.
func TestLogText(t *testing.T) {
	l := new(Log)
	if len(l.Text()) != 0 {
		t.Errorf("an empty log has %q", l.Text())
	}
	log := slog.New(l.Tee(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelDebug})))
	log.Warn("first", "err", "one\ntwo\r")
	if got := string(l.Text()); !regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z WARN first err=one\\ntwo\\r\n$`).MatchString(got) {
		t.Errorf("got %q", got)
	}
	var all []string
	for i := range 20_000 {
		line := fmt.Sprintf("line %d %s", i, strings.Repeat("x", i%97*i%301))
		all = append(all, line)
		log.Debug(line)
		if i%997 != 0 {
			continue
		}
		lines := strings.Split(strings.TrimSuffix(string(l.Text()), "\n"), "\n")
		if i > 5000 && (len(l.Text()) > maxBytes || len(l.Text()) < maxBytes/2) {
			t.Fatalf("%d bytes are kept", len(l.Text()))
		}
		for k, line := range lines {
			if want := all[len(all)-min(len(lines), len(all)):]; k >= len(lines)-len(want) && !strings.HasSuffix(line, want[k-len(lines)+len(want)]) {
				t.Fatalf("line %d of %d is %q", k, len(lines), line)
			}
		}
	}
	log.Info(strings.Repeat("y", 2*maxBytes))
	if lines := strings.Split(string(l.Text()), "\n"); len(lines[len(lines)-2]) > maxText+64 {
		t.Errorf("a line of %d bytes", len(lines[len(lines)-2]))
	}
}

func TestCut(t *testing.T) {
	for _, tt := range []struct {
		s    string
		n    int
		want string
	}{{"short", 5, "short"}, {"longer", 5, "lo…"}, {"ééé", 5, "é…"}} {
		if got := Cut(tt.s, tt.n); got != tt.want {
			t.Errorf("Cut(%q, %d) is %q, want %q", tt.s, tt.n, got, tt.want)
		}
	}
}
