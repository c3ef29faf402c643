package core

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the scenarios' output into testdata; commit only what you understand")

// testTypes are "cds", which is complete, and "eds". A body is "name=value"; a
// value that begins with "!" is invalid, a body that begins with "?" has no
// name that could be read.
func testTypes() []Type {
	decode := func(body []byte) (string, any, error) {
		if strings.HasPrefix(string(body), "?") {
			return "", nil, errors.New("not a resource")
		}
		name, value, _ := strings.Cut(string(body), "=")
		if reason, bad := strings.CutPrefix(value, "!"); bad {
			return name, nil, errors.New(reason)
		}
		return name, value, nil
	}
	return []Type{{"cds", true, decode}, {"eds", false, decode}}
}

// TestScenarios runs the files of testdata: blocks of event lines, a line of
// dashes, and everything that came of them. A block ends with a Flush; the
// event "hold" leaves that out.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			c := New(testTypes()...)
			for i, block := range strings.Split(strings.TrimSpace(string(text)), "\n\n") {
				events, _, _ := strings.Cut(block, "\n----")
				if i > 0 {
					got.WriteString("\n")
				}
				got.WriteString(events + "\n")
				if strings.HasPrefix(events, "#") && !strings.Contains(events, "\n") {
					continue
				}
				got.WriteString("----\n" + play(t, c, events))
			}
			if *update {
				if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got.String() != string(text) {
				t.Errorf("%s: got\n%s\nwant\n%s", file, got.String(), text)
			}
		})
	}
}

func play(t *testing.T, c *Core, events string) string {
	var out strings.Builder
	flush := true
	for line := range strings.Lines(events) {
		f := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, "#"):
		case f[0] == "hold":
			flush = false
		case f[0] == "flush":
		case f[0] == "start":
			c.Start()
		case f[0] == "connected":
			c.Connected()
		case f[0] == "closed":
			c.Closed(strings.Join(f[1:], " "))
		case f[0] == "sent":
			c.Sent()
		case f[0] == "fired":
			f = append(f, "", "")
			for k := TimerReconnect; k <= TimerNack; k++ {
				if k.String() == f[1] {
					c.Fired(Timer{k, f[2], f[3]})
				}
			}
		case f[0] == "response": // type version nonce resources
			r := Response{Type: f[1], Version: f[2], Nonce: f[3]}
			for _, body := range f[4:] {
				typ, rest, other := strings.Cut(body, "/")
				if !other {
					typ, rest = f[1], body
				}
				r.Resources = append(r.Resources, Resource{typ, []byte(rest)})
			}
			c.Response(r)
		case f[0] == "dump":
			for _, ts := range c.Dump() {
				fmt.Fprintf(&out, "%s version=%q nonce=%q wildcard=%v\n", ts.URL, ts.Version, ts.Nonce, ts.Wildcard)
				for _, r := range ts.Resources {
					fmt.Fprintf(&out, "    %+v\n", r)
				}
			}
		case len(f) == 1:
			t.Fatalf("bad event %q", line)
		default:
			do := map[string]func(string){
				"subscribe":   func(n string) { c.Subscribe(f[1], n) },
				"unsubscribe": func(n string) { c.Unsubscribe(f[1], n) },
				"wildcard":    func(string) { c.SubscribeAll(f[1]) },
				"no-wildcard": func(string) { c.UnsubscribeAll(f[1]) },
			}[f[0]]
			if do == nil {
				t.Fatalf("bad event %q", line)
			}
			if len(f) == 2 {
				do("")
			}
			for _, name := range f[2:] {
				do(name)
			}
		}
	}
	if flush {
		c.Flush()
	}
	for _, e := range c.Take() {
		if s, ok := e.(Send); ok {
			r := s.Request
			fmt.Fprintf(&out, "Send %s version=%q nonce=%q names=%q", r.Type, r.Version, r.Nonce, r.Names)
			if r.Node {
				out.WriteString(" node")
			}
			if r.Error != "" {
				fmt.Fprintf(&out, " error=%q", r.Error)
			}
			out.WriteString("\n")
			continue
		}
		fmt.Fprintf(&out, "%s%+v\n", strings.TrimPrefix(fmt.Sprintf("%T", e), "core."), e)
	}
	return out.String()
}
