package dns

import (
	"testing"
	"testing/synctest"
	"time"

	wire "github.com/miekg/dns"

	"gatehouse.internal/lbcore"
)

func endpointSet(t *testing.T, addrs ...string) lbcore.Set {
	t.Helper()
	var eps []lbcore.Endpoint
	for _, s := range addrs {
		a, err := lbcore.ParseAddr(s)
		if err != nil {
			t.Fatal(err)
		}
		eps = append(eps, lbcore.Endpoint{Addr: a, Weight: 1})
	}
	return lbcore.MustSet(eps...)
}

// resume watches a source that begins with what an earlier run knew.
func (c *Client) resume(t *testing.T, q Query, set lbcore.Set) (w *watching, end func()) {
	t.Helper()
	w, end = c.watchWith(t, q, func(s *Source) { s.Resume(set) })
	return w, end
}

// D9, haproxy#1683, #1795: after a reload what was known came and went with the first
// answers. What an earlier run knew goes as it would have gone in that run: a record
// after so many answers without it, all of them after the hold.
func TestD9KnownBeforeTheRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(2)
		n.zone.set("web.test. 3600 IN A 192.0.2.1") // of three that were known
		c := n.client(t, Config{})
		w, end := c.resume(t, web(), endpointSet(t, "192.0.2.1:80", "192.0.2.2:80", "192.0.2.3:80"))
		pass(time.Second)
		w.wants("", "192.0.2.1:80", "192.0.2.2:80", "192.0.2.3:80")
		n.zone.set("web.test. 3600 IN A 192.0.2.1", "web.test. 3600 IN A 192.0.2.3") // a subset again
		pass(40 * time.Second)
		w.wants("", "192.0.2.1:80", "192.0.2.3:80")
		end()

		// None at all is believed after the hold, and until then nothing is said.
		n.zone.fail("web.test.", wire.RcodeNameError)
		w, end = c.resume(t, web(), endpointSet(t, "192.0.2.1:80"))
		pass(25 * time.Second)
		w.wants("NXDOMAIN", "unknown")
		pass(40 * time.Second)
		w.wants("")
		end()

		// Silence is no answer.
		for i := range 2 {
			n.server(i).change(func() { n.server(i).down = true })
		}
		w, end = c.resume(t, web(), endpointSet(t, "192.0.2.1:80"))
		pass(time.Hour)
		w.wants("no answer in time", "unknown")
		end()
	})
}

// The same of SRV records, whose targets may fail meanwhile.
func TestD9KnownTargetsBeforeTheRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(2)
		n.zone.set("_web._tcp.test. 3600 IN SRV 0 1 80 a.test.", "_web._tcp.test. 3600 IN SRV 0 1 80 b.test.", "a.test. 3600 IN A 192.0.2.1")
		n.zone.fail("b.test.", wire.RcodeServerFailure)
		c := n.client(t, Config{})
		q := service()
		q.Targets = A
		w, end := c.resume(t, q, endpointSet(t, "192.0.2.1:80", "192.0.2.2:80"))
		defer end()
		pass(5 * time.Second)
		set, _, _ := w.state()
		if set.Len() != 2 {
			t.Errorf("while a target fails: %q", texts(set))
		}
		pass(2 * time.Minute)
		set, _, _ = w.state()
		if set.Len() != 1 {
			t.Errorf("when it has failed for long: %q", texts(set))
		}
	})
}
