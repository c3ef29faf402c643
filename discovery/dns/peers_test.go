package dns

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	wire "github.com/miekg/dns"

	"gatehouse.internal/discovery"
)

// The bugs of others, each with its number: see the list of peers' issues that
// each test names.

const webA = "web.test. 10 IN A "

// D1, envoy#2691: a transient NXDOMAIN removed all hosts.
func TestD1TransientNXDomainKeepsTheLastGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(2)
		n.zone.set(webA+"192.0.2.1", webA+"192.0.2.2")
		w, end := n.client(t, Config{}).watch(t, web())
		defer end()
		pass(time.Second)
		w.wants("", "192.0.2.1:80", "192.0.2.2:80")
		n.zone.fail("web.test.", wire.RcodeNameError)
		pass(25 * time.Second)
		w.wants("NXDOMAIN", "192.0.2.1:80", "192.0.2.2:80")
		_, _, err := w.state()
		held := new(discovery.HeldError)
		if !asHeld(err, &held) || held.Listed != 0 || held.Known != 2 || held.Until.Before(time.Now()) {
			t.Errorf("got %#v, want a HeldError of 0 from 2", err)
		}
		n.zone.fail("web.test.", wire.RcodeSuccess)
		pass(30 * time.Second)
		w.wants("", "192.0.2.1:80", "192.0.2.2:80")
		for _, r := range w.rec.Reports() {
			if r.Err == nil && r.Set.Len() != 2 {
				t.Errorf("a set of %d endpoints was reported", r.Set.Len())
			}
		}
	})
}

func asHeld(err error, held **discovery.HeldError) bool {
	for err != nil {
		if h, ok := err.(*discovery.HeldError); ok {
			*held = h
			return true
		}
		switch x := err.(type) {
		case interface{ Unwrap() error }:
			err = x.Unwrap()
		case interface{ Unwrap() []error }:
			for _, e := range x.Unwrap() {
				if asHeld(e, held) {
					return true
				}
			}
			return false
		default:
			return false
		}
	}
	return false
}

// D2, envoy#20890: an empty success kept the hosts, although the documentation
// said otherwise. What is done is what Hold says.
func TestD2EmptySuccessObeysHold(t *testing.T) {
	for _, tt := range []struct {
		name  string
		hold  time.Duration
		after time.Duration
		want  []string
		fails string
	}{
		{"during the hold", 30 * time.Second, 35 * time.Second, []string{"192.0.2.1:80"}, "NODATA"},
		{"after the hold", 30 * time.Second, 60 * time.Second, nil, ""},
		{"short hold, two answers", time.Millisecond, 20 * time.Second, nil, ""},
		{"for ever", 0, 2 * time.Hour, []string{"192.0.2.1:80"}, "NODATA"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(1)
				n.zone.set(webA + "192.0.2.1")
				q := web()
				q.Hold.NoData = tt.hold
				w, end := n.client(t, Config{}).watch(t, q)
				defer end()
				pass(time.Second)
				n.zone.set("web.test. 10 IN TXT \"x\"")
				pass(tt.after)
				w.wants(tt.fails, tt.want...)
			})
		})
	}
}

// D3, envoy#7808: NXDOMAIN has no TTL, which counted as 0: a storm of queries.
func TestD3NoQueryStormAfterNXDomain(t *testing.T) {
	for _, noSOA := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork(1)
			n.zone.noSOA, n.zone.minTTL = noSOA, 0
			n.zone.set()
			q := web()
			w, end := n.client(t, Config{}).watch(t, q)
			defer end()
			pass(10 * time.Minute)
			w.wants("", []string{}...)
			// 1, 2, 4, 8, 16 s and then every 30 s.
			if got := len(n.queries()); got < 15 || got > 30 {
				t.Errorf("%d queries in 10 minutes", got)
			}
		})
	}
}

// D3 too: records with the TTL 0 are asked for at Refresh's pace.
func TestD3TTL0(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1)
		n.zone.set("web.test. 0 IN A 192.0.2.1")
		w, end := n.client(t, Config{}).watch(t, web())
		defer end()
		pass(100 * time.Second)
		w.wants("", "192.0.2.1:80")
		if got := len(n.queries()); got < 17 || got > 25 {
			t.Errorf("%d queries in 100 s, want about 20", got)
		}
	})
}

// D4, envoy#41771: with rotating answers all addresses ever seen stayed.
func TestD4RotatingAnswersAgeOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1)
		w, end := n.client(t, Config{}).watch(t, web())
		defer end()
		for i := range 200 {
			n.zone.set(fmt.Sprintf("%s192.0.2.%d", webA, i))
			pass(12 * time.Second)
		}
		for _, r := range w.rec.Reports() {
			if r.Set.Len() > 3 {
				t.Fatalf("a set of %d endpoints", r.Set.Len())
			}
		}
		pass(time.Minute)
		w.wants("", "192.0.2.199:80")
	})
}

// D5, envoy#35745: all that had started together asked together for ever.
func TestD5Jitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1)
		n.zone.set("web.test. 60 IN A 192.0.2.1")
		c := n.client(t, Config{})
		for range 50 {
			_, end := c.watch(t, web())
			defer end()
		}
		pass(75 * time.Second)
		times := make(map[time.Duration]int)
		early, late := time.Hour, time.Duration(0)
		var first time.Time
		for i, q := range n.queries() {
			if i == 0 {
				first = q.at
			}
			if i < 50 {
				continue
			}
			d := q.at.Sub(first)
			times[d.Truncate(100*time.Millisecond)]++
			early, late = min(early, d), max(late, d)
		}
		if len(times) < 20 || early < 50*time.Second || late > 71*time.Second || late-early < 8*time.Second {
			t.Errorf("second look-ups from %v to %v at %d different moments", early, late, len(times))
		}
	})
}

// D6, haproxy#1160, #1180, #345: servers flapped, as answers were subsets, or
// because additional records were missing; and all went when DNS was down.
func TestD6SubsetsAndOutages(t *testing.T) {
	t.Run("subsets", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork(1)
			w, end := n.client(t, Config{}).watch(t, web())
			defer end()
			all := []string{webA + "192.0.2.1", webA + "192.0.2.2", webA + "192.0.2.3"}
			n.zone.set(all...)
			pass(time.Second)
			from := len(w.rec.Reports())
			for i := range 30 { // each lacks another one
				n.server(0).change(func() {
					n.server(0).hook = n.server(0).says(func(_, r *wire.Msg) { r.Answer = slices.Delete(r.Answer, i%3, i%3+1) })
				})
				pass(9 * time.Second)
			}
			for _, r := range w.rec.Reports()[from:] {
				if r.Err == nil && r.Set.Len() < 2 {
					t.Errorf("a set of %d endpoints", r.Set.Len())
				}
			}
		})
	})
	t.Run("one answer", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork(1)
			n.zone.set(webA+"192.0.2.1", webA+"192.0.2.2")
			w, end := n.client(t, Config{}).watch(t, web())
			defer end()
			pass(time.Second)
			once := true
			n.server(0).change(func() {
				n.server(0).hook = n.server(0).says(func(_, r *wire.Msg) {
					if once {
						once, r.Answer = false, r.Answer[:1]
					}
				})
			})
			pass(2 * time.Minute)
			for _, r := range w.rec.Reports() {
				if r.Err != nil || r.Set.Len() != 2 {
					t.Errorf("report: %v", r)
				}
			}
		})
	})
	t.Run("additional records", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork(1)
			n.zone.set("_web._tcp.test. 10 IN SRV 1 1 80 a.test.", "_web._tcp.test. 10 IN SRV 1 1 80 b.test.",
				"a.test. 10 IN A 192.0.2.1", "b.test. 10 IN A 192.0.2.2")
			w, end := n.client(t, Config{}).watch(t, service())
			defer end()
			i := 0
			n.server(0).change(func() {
				n.server(0).hook = n.server(0).says(func(_, r *wire.Msg) {
					if i++; len(r.Extra) > 1 {
						r.Extra = r.Extra[i%2 : i%2+1]
					}
				})
			})
			pass(5 * time.Minute)
			for _, r := range w.rec.Reports() {
				if r.Err != nil || r.Set.Len() != 2 {
					t.Errorf("report: %v", r)
				}
			}
		})
	})
	t.Run("DNS is down", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork(2)
			n.zone.set(webA + "192.0.2.1")
			w, end := n.client(t, Config{}).watch(t, web())
			defer end()
			pass(time.Second)
			for i := range 2 {
				n.server(i).change(func() { n.server(i).down = true })
			}
			pass(2 * time.Hour)
			w.wants("no answer in time", "192.0.2.1:80")
			before := len(n.queries())
			pass(time.Hour)
			if got := len(n.queries()) - before; got < 4*3600/40 || got > 4*3600/29+8 { // 2 nameservers, twice each
				t.Errorf("%d queries in an hour of silence", got)
			}
		})
	})
}

// D7, haproxy#3400: all targets replaced at once left a backend without servers.
func TestD7AllTargetsReplaced(t *testing.T) {
	for _, misses := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork(1)
			n.zone.set("_web._tcp.test. 10 IN SRV 1 1 80 a.test.", "_web._tcp.test. 10 IN SRV 1 1 81 b.test.",
				"a.test. 10 IN A 192.0.2.1", "b.test. 10 IN A 192.0.2.2")
			q := service()
			q.Misses = misses
			w, end := n.client(t, Config{}).watch(t, q)
			defer end()
			pass(time.Second)
			w.wants("", "192.0.2.1:80", "192.0.2.2:81")
			n.zone.set("_web._tcp.test. 10 IN SRV 1 1 90 c.test.", "_web._tcp.test. 10 IN SRV 1 1 91 d.test.",
				"c.test. 10 IN A 192.0.2.3", "d.test. 10 IN A 192.0.2.4")
			pass(time.Minute)
			w.wants("", "192.0.2.3:90", "192.0.2.4:91")
			for _, r := range w.rec.Reports() {
				if got := texts(r.Set); r.Err == nil && len(got) != 2 && (misses == 1 || len(got) != 4) {
					t.Errorf("with %d misses: a set of %q", misses, got)
				}
			}
		})
	}
}

// D8, haproxy#1421: an answer of more than 512 bytes was not taken.
func TestD8LargeAnswers(t *testing.T) {
	var lines, want []string
	for i := range 200 {
		lines = append(lines, fmt.Sprintf("%s192.0.2.%d", webA, i))
		want = append(want, fmt.Sprintf("192.0.2.%d:80", i))
	}
	for _, tt := range []struct {
		name    string
		records int
		tcp     bool
	}{{"EDNS0 is enough", 40, false}, {"TCP", 200, true}} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(1)
				n.zone.set(lines[:tt.records]...)
				w, end := n.client(t, Config{}).watch(t, web())
				defer end()
				pass(time.Second)
				w.wants("", want[:tt.records]...)
				qs := n.queries()
				if qs[0].tcp || qs[0].edns != udpSize || qs[len(qs)-1].tcp != tt.tcp {
					t.Errorf("queries %+v", qs)
				}
			})
		})
	}
}

// D10, grpc-go#1663, #6604: new servers were never seen, since nothing was looked
// up without a failure.
func TestD10NewServersAreSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1)
		n.zone.set(webA + "192.0.2.1")
		w, end := n.client(t, Config{}).watch(t, web())
		defer end()
		pass(time.Second)
		n.zone.set(webA+"192.0.2.1", webA+"192.0.2.2")
		pass(12 * time.Second)
		w.wants("", "192.0.2.1:80", "192.0.2.2:80")
	})
}

// D11, nginx-upstream-dynamic-servers#24: a stuck socket went on to time out after
// DNS was back. Every query has a socket, a port and an id of its own.
func TestD11FreshSockets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1)
		n.zone.set(webA + "192.0.2.1")
		n.server(0).down = true
		w, end := n.client(t, Config{}).watch(t, web())
		defer end()
		pass(10 * time.Minute)
		w.wants("no answer", "unknown")
		n.server(0).change(func() { n.server(0).down = false })
		pass(40 * time.Second)
		w.wants("", "192.0.2.1:80")
		ports, ids := make(map[uint16]bool), make(map[uint16]bool)
		qs := n.queries()
		for _, q := range qs {
			ports[q.from.Port()], ids[q.id] = true, true
		}
		if len(ports) != len(qs) || len(ids) < len(qs)*9/10 {
			t.Errorf("%d queries from %d ports with %d ids", len(qs), len(ports), len(ids))
		}
		if n.open > 1 { // one may be under way
			t.Errorf("%d sockets are open", n.open)
		}
	})
}

// D12, consul#1931, #3355, #3937: SRV answers were truncated to nothing, or cut
// without a word where EDNS0 was used.
func TestD12TruncatedSRV(t *testing.T) {
	var lines, want []string
	for i := range 100 {
		lines = append(lines, fmt.Sprintf("_web._tcp.test. 0 IN SRV 1 1 %d %d-7f000001.addr.dc1.test.", 8000+i, i),
			fmt.Sprintf("%d-7f000001.addr.dc1.test. 0 IN A 127.0.0.1", i))
		want = append(want, fmt.Sprintf("127.0.0.1:%d", 8000+i))
	}
	t.Run("truncated", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork(1)
			n.zone.set(lines...)
			w, end := n.client(t, Config{}).watch(t, service())
			defer end()
			pass(time.Second)
			w.wants("", want...)
		})
	})
	t.Run("cut without a word", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork(1)
			n.zone.set(lines...)
			n.server(0).hook = func(m *wire.Msg, tcp bool) []packet {
				r := n.zone.reply(m)
				if !tcp && len(r.Answer) > 3 {
					r.Answer, r.Extra = r.Answer[:3], nil
				}
				return []packet{{data: fit(m, r, tcp)}}
			}
			q := service()
			q.TCP = true
			w, end := n.client(t, Config{}).watch(t, q)
			defer end()
			pass(time.Second)
			w.wants("", want...)
			for _, q := range n.queries() {
				if !q.tcp {
					t.Fatalf("a query by UDP: %+v", q)
				}
			}
		})
	})
}

// D13, nginx#867: the process did not start where a name could not be resolved.
func TestD13StartsWithoutDNS(t *testing.T) {
	for _, tt := range []struct {
		name  string
		broke func(n *network)
		fails string
	}{
		{"NXDOMAIN", func(n *network) { n.zone.set() }, "NXDOMAIN"},
		{"SERVFAIL", func(n *network) { n.zone.fail("web.test.", wire.RcodeServerFailure) }, "SERVFAIL"},
		{"silence", func(n *network) { n.server(0).change(func() { n.server(0).down = true }) }, "no answer in time"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(1)
				n.zone.set(webA + "192.0.2.1")
				tt.broke(n)
				w, end := n.client(t, Config{}).watch(t, web())
				defer end()
				pass(20 * time.Second)
				w.wants(tt.fails, "unknown")
				n.server(0).change(func() { n.server(0).down = false })
				n.zone.set(webA + "192.0.2.1")
				pass(35 * time.Second)
				w.wants("", "192.0.2.1:80")
			})
		})
	}
	// Without any resolv.conf, too.
	c, err := New(Config{ResolvConf: t.TempDir() + "/none"})
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Stats().Nameservers; len(got) != 1 || !strings.HasPrefix(got[0].Address.String(), "127.0.0.1:53") {
		t.Errorf("nameservers %v", got)
	}
}

// D9, haproxy#1683, #1795: servers were stale or gone after a reload. A source that is
// watched again, while nobody answers, says that it knows nothing, and never that
// there are no endpoints, so that whoever had the last good ones keeps them: see also
// TestD9ChangedSettingsWhileDNSIsDown of the node.
func TestD9WatchedAgainWithoutDNS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(2)
		n.zone.set(webA + "192.0.2.1")
		c := n.client(t, Config{})
		w, end := c.watch(t, web())
		pass(time.Second)
		w.wants("", "192.0.2.1:80")
		end()
		for i := range 2 {
			n.server(i).change(func() { n.server(i).down = true })
		}
		w, end = c.watch(t, web())
		defer end()
		pass(time.Hour)
		w.wants("no answer in time", "unknown")
		for i := range 2 {
			n.server(i).change(func() { n.server(i).down = false })
		}
		pass(time.Minute)
		w.wants("", "192.0.2.1:80")
	})
}
