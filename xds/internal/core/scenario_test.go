package core

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
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
// event "hold" leaves that out. The line "servers N" makes a Core for N of them,
// and "delta" has the streams that open from there on be of that variant. An
// event that ends in @N is about server N, and not the first.
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
			servers := 1
			if _, n, ok := strings.Cut(string(text), "\nservers "); ok {
				servers = int(n[0] - '0')
			}
			p := player{c: New(servers, testTypes()...)}
			for i, block := range strings.Split(strings.TrimSpace(string(text)), "\n\n") {
				events, _, _ := strings.Cut(block, "\n----")
				if i > 0 {
					got.WriteString("\n")
				}
				got.WriteString(events + "\n")
				if strings.HasPrefix(events, "#") && !strings.Contains(events, "\n") {
					continue
				}
				got.WriteString("----\n" + p.play(t, events))
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

type player struct {
	c       *Core
	variant Variant
}

func (p *player) play(t *testing.T, events string) string {
	c := p.c
	var out strings.Builder
	flush := true
	for line := range strings.Lines(events) {
		f := strings.Fields(line)
		server := 0
		if word, n, ok := strings.Cut(f[0], "@"); ok {
			f[0], server = word, int(n[0]-'0')
		}
		reason := strings.Join(f[1:], " ")
		switch {
		case strings.HasPrefix(line, "#") || f[0] == "servers":
		case f[0] == "delta":
			p.variant = Delta
		case f[0] == "sotw":
			p.variant = StateOfTheWorld
		case f[0] == "hold":
			flush = false
		case f[0] == "flush":
		case f[0] == "start":
			c.Start()
		case f[0] == "connected":
			c.Connected(server, p.variant)
		case f[0] == "closed":
			c.Closed(server, reason, Lost)
		case f[0] == "refused":
			c.Closed(server, reason, Refused)
		case f[0] == "unfit":
			c.Closed(server, reason, Unfit)
		case f[0] == "again":
			c.Closed(server, reason, Again)
		case f[0] == "sent":
			c.Sent(server)
		case f[0] == "fired":
			f = append(f, "", "")
			for k := TimerReconnect; k <= TimerTTL; k++ {
				if k.String() == f[1] {
					c.Fired(Timer{k, f[2], f[3], server})
				}
			}
		case f[0] == "response": // type version nonce resources
			c.Response(server, parseResponse(t, f[1:]))
		case f[0] == "restore": // type name version body
			if err := c.Restore(f[1], f[2], f[3], []byte(f[4])); err != nil {
				fmt.Fprintf(&out, "%s %s: %v\n", f[1], f[2], err)
			}
		case f[0] == "dump":
			for _, ts := range c.Dump() {
				fmt.Fprintf(&out, "%s version=%q nonce=%q wildcard=%v\n", ts.URL, ts.Version, ts.Nonce, ts.Wildcard)
				for _, r := range ts.Resources {
					fmt.Fprintf(&out, "    {Name:%s Subscribed:%t State:%s Version:%s Error:%s}\n", r.Name, r.Subscribed, r.State, r.Version, r.Error)
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
			out.WriteString("Send")
			if s.Server > 0 {
				fmt.Fprintf(&out, "@%d", s.Server)
			}
			if r.Variant == Delta {
				fmt.Fprintf(&out, " delta %s nonce=%q subscribe=%q unsubscribe=%q initial=%q", r.Type, r.Nonce, r.Subscribe, r.Unsubscribe, r.Initial)
			} else {
				fmt.Fprintf(&out, " %s version=%q nonce=%q names=%q", r.Type, r.Version, r.Nonce, r.Names)
			}
			if r.Node {
				out.WriteString(" node")
			}
			if r.Error != "" {
				fmt.Fprintf(&out, " error=%q", r.Error)
			}
			out.WriteString("\n")
			continue
		}
		line := fmt.Sprintf("%s%+v\n", strings.TrimPrefix(fmt.Sprintf("%T", e), "core."), e)
		out.WriteString(strings.NewReplacer(" Server:0}", "}", " TTL:0}", "}").Replace(line))
	}
	return out.String()
}

// parseResponse reads "type version nonce" and resources: "name=value",
// "type/name=value", with a wrapper "name@version=value" or, with a TTL in
// nanoseconds, "name@version~9=value", where "=>body" gives the body as it stands
// and neither makes it a heartbeat; "-name" is removed, "!name:code:reason" an
// error.
func parseResponse(t *testing.T, f []string) Response {
	r := Response{Type: f[0], Version: f[1], Nonce: f[2]}
	for _, word := range f[3:] {
		if name, ok := strings.CutPrefix(word, "-"); ok {
			r.Removed = append(r.Removed, name)
			continue
		}
		if e := strings.SplitN(word, ":", 3); word[0] == '!' {
			code, err := strconv.ParseUint(e[1], 10, 32)
			if err != nil {
				t.Fatal(err)
			}
			r.Errors = append(r.Errors, ResourceError{e[0][1:], uint32(code), e[2]})
			continue
		}
		res := Resource{Type: f[0]}
		if typ, rest, other := strings.Cut(word, "/"); other {
			res.Type, word = typ, rest
		}
		res.Body = []byte(word)
		if name, rest, wrapped := strings.Cut(word, "@"); wrapped {
			head, value, body := strings.Cut(rest, "=")
			version, ttl, _ := strings.Cut(head, "~")
			res.Name, res.Version, res.Bare = name, version, !body
			res.TTL, _ = strconv.ParseInt("0"+ttl, 10, 64)
			res.Body = []byte(name + "=" + value)
			if raw, ok := strings.CutPrefix(value, ">"); ok {
				res.Body = []byte(raw)
			}
			if res.Bare {
				res.Type, res.Body = "", nil
			}
		}
		r.Resources = append(r.Resources, res)
	}
	return r
}
