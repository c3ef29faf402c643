package consul_test

import (
	"fmt"
	"strings"
	"testing"

	"gatehouse.internal/discovery/consul"
	"gatehouse.internal/discovery/consul/consultest"
)

// fleet are n services with one instance each, s0 at 127.1.0.1:80 and so on.
func fleet(n int) []consultest.Instance {
	is := consultest.Many("s", n)
	for i := range is {
		is[i].Name = fmt.Sprintf("s%d", i)
	}
	return is
}

// C15: an agent that has too many connections of one address says so, with 429
// before it is asked. That costs no set, and is told as what it is.
func TestRealC15TooManyConnections(t *testing.T) {
	t.Parallel()
	s := consultest.Start(t, consultest.Options{MaxConnsPerClient: 20})
	s.RegisterMany(fleet(40)...)
	r := newReal(t, consul.Config{Address: s.Addr()})
	var all []*watching
	for i := range 40 {
		all = append(all, r.watch(consul.Query{Service: fmt.Sprintf("s%d", i)}))
	}
	until(t, "all have a set or know why not, and some are refused", func() bool {
		for _, w := range all {
			if st := w.latest.State(); st.Set.Len() != 1 && st.Err == nil {
				return false
			}
		}
		return r.Stats().Throttled > 0
	})
	for i, w := range all {
		for _, rep := range w.rec.Reports() {
			if rep.Err == nil && rep.Set.Len() != 1 || rep.Err != nil && !strings.Contains(rep.Err.Error(), "raise the agent's http_max_conns_per_client, or lower max_watches") {
				t.Errorf("s%d: %s", i, rep)
			}
		}
	}
	r.end()
	r.wg.Wait()

	s.Restart() // which closes what r has left open
	r = newReal(t, consul.Config{Address: s.Addr(), MaxWatches: 4})
	for i := range 40 {
		w := r.watch(consul.Query{Service: fmt.Sprintf("s%d", i)})
		w.seeOf(1)
		w.neverFailed()
	}
	if got := r.Stats(); got.Throttled != 0 {
		t.Errorf("with max_watches = 4: %+v, want none throttled", got)
	}
}
