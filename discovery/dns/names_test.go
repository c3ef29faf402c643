package dns

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	wire "github.com/miekg/dns"

	"gatehouse.internal/lbcore"
)

// A logical name is one endpoint. Its first address stays while answers list it,
// though nameservers take turns in which they have first.
func TestLogical(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1)
		n.zone.set(webA+"192.0.2.2", webA+"192.0.2.1", webA+"192.0.2.3")
		q := web()
		q.Logical = true
		w, end := n.client(t, Config{}).watch(t, q)
		defer end()
		wants := func(want, others string) {
			t.Helper()
			set, _, _ := w.state()
			if set.Len() != 1 {
				t.Fatalf("endpoints %q, want one; reports:\n%s", texts(set), w.rec)
			}
			e := set.At(0)
			if got := fmt.Sprint(slices.Collect(e.Additional.All())); e.Addr.String() != want || got != others || e.Hostname != "web.test" {
				t.Errorf("got %s with %s of %q, want %s with %s", e.Addr, got, e.Hostname, want, others)
			}
		}
		pass(time.Second)
		wants("192.0.2.2:80", "[192.0.2.1:80 192.0.2.3:80]")
		n.zone.set(webA+"192.0.2.3", webA+"192.0.2.4", webA+"192.0.2.2")
		pass(time.Minute)
		wants("192.0.2.2:80", "[192.0.2.3:80 192.0.2.4:80]")
		n.zone.set(webA+"192.0.2.4", webA+"192.0.2.3")
		pass(time.Minute)
		wants("192.0.2.4:80", "[192.0.2.3:80]")
		n.zone.fail("web.test.", wire.RcodeServerFailure)
		pass(time.Hour)
		wants("192.0.2.4:80", "[192.0.2.3:80]")
	})
	synctest.Test(t, func(t *testing.T) { // more than an endpoint has room for
		n := newNetwork(1)
		var records []string
		for i := range 2 + lbcore.MaxAdditional {
			records = append(records, fmt.Sprintf("web.test. 10 IN A 192.0.2.%d", i+1))
		}
		n.zone.set(records...)
		q := web()
		q.Logical = true
		w, end := n.client(t, Config{}).watch(t, q)
		defer end()
		pass(time.Second)
		set, _, err := w.state()
		if set.Len() != 1 || set.At(0).Additional.Len() != lbcore.MaxAdditional || err != nil {
			t.Errorf("got %q with %v", texts(set), err)
		}
	})
}

// One family is taken where a name has any of it, and the other otherwise.
func TestPreferredFamily(t *testing.T) {
	const v4, v6 = webA + "192.0.2.1", "web.test. 10 IN AAAA 2001:db8::1"
	for _, tt := range []struct {
		prefer        Type
		both, v4, v6  []string
		logical       string
		lookUpFailing []string // of AAAA
	}{
		{"", []string{"192.0.2.1:80", "[2001:db8::1]:80"}, []string{"192.0.2.1:80"}, []string{"[2001:db8::1]:80"}, "[2001:db8::1]:80", []string{"192.0.2.1:80"}},
		{A, []string{"192.0.2.1:80"}, []string{"192.0.2.1:80"}, []string{"[2001:db8::1]:80"}, "192.0.2.1:80", []string{"192.0.2.1:80"}},
		{AAAA, []string{"[2001:db8::1]:80"}, []string{"192.0.2.1:80"}, []string{"[2001:db8::1]:80"}, "[2001:db8::1]:80", []string{"192.0.2.1:80"}},
	} {
		q := web()
		q.Type, q.Prefer = AAAAA, tt.prefer
		run := func(name string, q Query, hook func(*wire.Msg, bool) []packet, want []string, records ...string) {
			t.Run(fmt.Sprint("prefer ", tt.prefer, " ", name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := newNetwork(1)
					n.server(0).hook = hook
					n.zone.set(records...)
					w, end := n.client(t, Config{}).watch(t, q)
					defer end()
					pass(10 * time.Minute)
					if set, _, _ := w.state(); !slices.Equal(texts(set), want) {
						t.Errorf("got %q, want %q; reports:\n%s", texts(set), want, w.rec)
					}
				})
			})
		}
		run("both", q, nil, tt.both, v4, v6)
		run("IPv4 only", q, nil, tt.v4, v4)
		run("IPv6 only", q, nil, tt.v6, v6)
		run("no answers for IPv6", q, func(m *wire.Msg, _ bool) []packet {
			if m.Question[0].Qtype == wire.TypeAAAA {
				return []packet{}
			}
			return nil
		}, tt.lookUpFailing, v4, v6)
		q.Logical = true
		run("logical", q, nil, []string{tt.logical}, v4, v6)
	}
}

// Jitter takes the place of the 15 % either way.
func TestJitter(t *testing.T) {
	for _, tt := range []struct {
		jitter, random float64
		want           time.Duration
	}{{0, 0, 8500 * time.Millisecond}, {4, 0, 10 * time.Second}, {4, 0.5, 12 * time.Second}, {4, 0.999, 13996 * time.Millisecond}} {
		q := web()
		q.Jitter = time.Duration(tt.jitter * float64(time.Second))
		q = q.withDefaults()
		m := newMemory(&q, question{q.Name, wire.TypeA})
		now := time.Now()
		m.take(answer{class: found, ttl: 10 * time.Second, hasTTL: true}, now, tt.random)
		if got := m.due.Sub(now); got.Round(time.Millisecond) != tt.want {
			t.Errorf("jitter of %v s at %v: the next look-up is after %s, want %s", tt.jitter, tt.random, got, tt.want)
		}
	}
}

func TestBadNames(t *testing.T) {
	for want, q := range map[string]Query{
		"prefer":            {Name: "web.test.", Type: A, Port: 80, Prefer: A},
		"prefer: \"srv\"":   {Name: "web.test.", Type: AAAAA, Port: 80, Prefer: SRV},
		"are for addresses": {Name: "web.test.", Type: SRV, Logical: true},
		"jitter":            {Name: "web.test.", Type: A, Port: 80, Jitter: -1},
	} {
		if err := q.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}

// Names tells what a name may mean, without asking anybody.
func TestNames(t *testing.T) {
	conf := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(conf, []byte("search corp.test lab.test\noptions ndots:2\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		cfg  Config
		name string
		want string
	}{
		{Config{ResolvConf: conf}, "web.test.", "web.test."},
		{Config{ResolvConf: conf}, "Web.test", "web.test.corp.test. web.test.lab.test. web.test."},
		{Config{ResolvConf: conf, NDots: 1}, "web.test", "web.test. web.test.corp.test. web.test.lab.test."},
		{Config{ResolvConf: conf, Search: []string{"other.test"}}, "web", "web.other.test. web."},
		{Config{ResolvConf: conf, Search: []string{}}, "web", "web."},
		{Config{ResolvConf: conf + ".none"}, "web", "web."},
	} {
		if got := strings.Join(tt.cfg.Names(tt.name), " "); got != tt.want {
			t.Errorf("%s by %+v: got %q, want %q", tt.name, tt.cfg, got, tt.want)
		}
	}
}
