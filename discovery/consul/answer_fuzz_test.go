package consul

import (
	"bytes"
	"net/http"
	"os"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/hashicorp/consul/api"

	"gatehouse.internal/discovery"
)

// FuzzAnswer hands whole answers, as they come from the wire, to everything that
// asks. None panics, a bad one costs nothing that was known, errors are short
// and of one line, and the next good answer is followed.
func FuzzAnswer(f *testing.F) {
	whole, err := os.ReadFile("testdata/health_service.json")
	if err != nil {
		f.Fatal(err)
	}
	for _, body := range [][]byte{
		whole, whole[:len(whole)/2], nil, []byte("[]"), []byte("null"), []byte("{}"), []byte("[null]"), []byte(`[{}]`), []byte(`[{"Node":{},"Service":{}}]`),
		[]byte(`[{"Node":{"Node":"n","Address":"10.0.0.1"},"Service":{"ID":"a","Port":1e99},"Checks":[null]}]`),
		[]byte(`[{"Node":{"Node":"n","Address":"10.0.0.1"},"Service":{"ID":"a","Port":80},"Checks":[{"Status":"passing","Definition":{"Interval":"` + strings.Repeat("9", 300) + `"}}]}]`),
		[]byte(`{"a":["gatehouse.listen=127.0.0.1:80",null],"b":null,"":[""]}`), []byte(`{"Nodes":[{}]}`), []byte(`{"Nodes":[{"Node":null,"Service":null,"Checks":null}]}`),
		[]byte("\xff\xfe"), []byte("<html>\x1b[31m"), []byte(strings.Repeat("[", 20000)), []byte(`[{"Service":{"Port":1` + strings.Repeat("0", 9999) + `}}]`),
	} {
		f.Add(body, 200, "7", "true", "0", "", "", "false")
	}
	f.Add([]byte("[]"), 200, "", "", "", "", "", "")
	f.Add([]byte("[]"), 200, "99999999999999999999", "TRUE", "-1", "18446744073709551615", "streaming", "true")
	f.Add([]byte("[]"), 200, "7", "true", "99999999", "99999999", "blocking-query", "true")
	f.Add([]byte("No cluster leader"), 500, "", "", "", "", "", "")
	f.Add([]byte("\x00\x1b\n\u2028\u202e"), 403, "", "", "", "", "", "")
	f.Add([]byte(""), 302, "", "", "", "", "", "")
	f.Fuzz(func(t *testing.T, body []byte, status int, index, leader, contact, age, backend, filtered string) {
		if status < 200 || status > 599 {
			status = 200 + (status%400+400)%400
		}
		s := newScripted()
		addWeb(s.cat)
		s.cat.tag("web", 1, ":80")
		c, err := New(Config{Transport: s})
		if err != nil {
			t.Fatal(err)
		}
		bad := func(call) *reply {
			h := http.Header{}
			for k, v := range map[string]string{
				"X-Consul-Index": index, "X-Consul-Knownleader": leader, "X-Consul-Lastcontact": contact, "Age": age,
				"X-Consul-Query-Backend": backend, "X-Consul-Results-Filtered-By-Acls": filtered,
			} {
				if v != "" {
					h.Set(k, v)
				}
			}
			return &reply{status: status, header: h, body: bytes.NewReader(body)}
		}
		for _, q := range []Query{{Service: "web"}, {PreparedQuery: "web"}} {
			j := &journal{latest: discovery.NewLatest()}
			w := &watch{blocking: blocking{c: c}, q: q, log: c.log, sink: j, look: make(chan struct{}, 1)}
			read := func(hook func(call) *reply) error {
				s.hook, w.pace = hook, pacer{}
				return w.read(t.Context())
			}
			if err := read(nil); err != nil || j.now() != "fresh 1 2" {
				t.Fatalf("%s: %v, %q", q.name(), err, j.now())
			}
			w.index = 0
			before := w.set
			if err := read(bad); err != nil {
				fit(t, err)
				if gone := missing(before, w.set); len(gone) > 0 {
					t.Errorf("%v, and yet %d instances are gone", err, len(gone))
				}
			} else if status != 200 {
				t.Errorf("status %d is no failure", status)
			}
			w.index = 0
			if err := read(nil); err != nil || j.now() != "fresh 1 2" {
				t.Errorf("%s, after a good answer: %v, %q", q.name(), err, j.now())
			}
			w.release()
		}

		l := listing{c: c, b: blocking{c: c}}
		for i, hook := range []func(call) *reply{nil, bad, nil} {
			s.hook, l.b.pace, l.b.index = hook, pacer{}, 0
			before := l.now
			if err := l.read(t.Context()); err != nil {
				fit(t, err)
				if i != 1 || len(before.Listeners) != len(l.now.Listeners) {
					t.Errorf("listeners: %v, with %v", err, l.now)
				}
			}
			for _, x := range l.now.Refused {
				if text := x.Service + x.Value + x.Reason; len(text) > 800 || !printable(text) {
					t.Errorf("refused: %d bytes %q", len(text), text)
				}
			}
		}
		if len(l.now.Listeners) != 1 {
			t.Errorf("in the end: got %v, want one listener", l.now)
		}

		s.hook = bad
		for i := range signals {
			b := blocking{c: c}
			if _, _, err := b.once(t.Context(), true, func(opts *api.QueryOptions) (*api.QueryMeta, error) {
				_, meta, err := signals[i].ask(c.api, opts)
				return meta, err
			}); err != nil {
				fit(t, err)
			}
		}
		if _, err := c.assert(t.Context(), &agentService, true); err != nil {
			fit(t, err)
		}
	})
}

// fit checks that an error is fit for a log line.
func fit(t *testing.T, err error) {
	t.Helper()
	if text := err.Error(); len(text) > 1200 || !printable(text) {
		t.Errorf("got an error of %d bytes: %.1500q", len(text), text)
	}
}

func printable(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, unicode.IsControl)
}
