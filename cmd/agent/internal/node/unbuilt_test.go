package node

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/discovery"
	"gatehouse.internal/internal/loglimit"
	"gatehouse.internal/lbcore"
)

// lines is a log that may be read while it is written.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) contain(text string) bool { return l.count(text) > 0 }

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), text)
}

// A selector that never was built says why wherever somebody asks; of one that
// was the last serves on.
func TestSelectorThatCantBeBuilt(t *testing.T) {
	var log lines
	r := start(t, func(c *Config) {
		c.Gate = lbcore.NewGate(lbcore.GateConfig{MaxStorage: 65536})
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	one := listen(t, "one")
	ring := func(name string, least uint64) config.Cluster {
		c := clusterOf(name, eds(name))
		c.Selectors = []config.Selector{{Name: "ring", Policy: config.PolicyRingHash, MinimumRingSize: least, MaximumRingSize: 8 << 20, HashFunction: "xx_hash"}}
		return c
	}
	r.apply(Spec{
		Clusters:  []config.Cluster{ring("never", 8<<20), ring("once", 1024)},
		Listeners: []config.Listener{listenerOf("n", "never"), listenerOf("o", "once")},
	})
	r.eds.replace("never", one.Endpoint)
	r.eds.replace("once", one.Endpoint)

	const why = `selector "ring": storage of `
	within(t, "the cluster says what it waits for", func() bool {
		return strings.HasPrefix(r.cluster("never").Waiting, why)
	})
	if rec := r.refused("n"); !strings.HasPrefix(rec.Err.Error(), `cluster "never" has no endpoint that is ready: `+why) {
		t.Errorf("refused with %q", rec.Err)
	}
	if want := `"selector was not built, it serves nothing yet" cluster=never selector=ring generation=1`; !log.contain(want) {
		t.Errorf("not logged: %s", want)
	}

	within(t, "the other is warm", func() bool { return r.cluster("once").Waiting == "" })
	heavy := deaf(t)
	heavy.Weight = 1 << 20 // a ring with a point of the other has a million of it
	r.eds.replace("once", one.Endpoint, heavy)
	within(t, "the failure is logged", func() bool {
		return log.contain(`"selector was not rebuilt, the last one serves on" cluster=once selector=ring generation=2`)
	})
	r.mustDial("o", "one")
	r.eds.replace("once") // nobody
	within(t, "the empty set is in force", func() bool { return r.cluster("once").Selectors[0].Generation == 3 })
	if rec := r.refused("o"); rec.Err.Error() != `cluster "once" has no endpoint that is ready` {
		t.Errorf("refused with %q", rec.Err)
	}
}

// A control plane that is away, and one that changes all it has, are told in a few
// lines however many clusters there are.
func TestLinesOfManyClusters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lines
		r := start(t, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
		var spec Spec
		for i := range 200 {
			spec.Clusters = append(spec.Clusters, clusterOf(fmt.Sprint("web", i), eds("all")))
		}
		r.apply(spec)
		r.eds.replace("all", endpoint("192.0.2.1:80"))
		synctest.Wait()
		pass(time.Hour)
		r.eds.each("all", func(s discovery.Sink) { s.Fail(errors.New("connection refused")) }, func() {})
		synctest.Wait()
		for text, want := range map[string]int{"endpoints changed": loglimit.Burst, "discovery knows": loglimit.Burst, "discovery can't tell": loglimit.Burst, "not_logged=180": 1} {
			if n := log.count(text); n != want {
				t.Errorf("%d times %q, want %d", n, text, want)
			}
		}
	})
}

// Of many listeners that are opened at once some lines tell, and one how many they are:
// none is held back by the rate of lines.
func TestLinesOfManyListeners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lines
		p := ports{taken: make(map[string]bool)}
		r := start(t, func(c *Config) {
			c.Socket, c.Logger = p.open, slog.New(loglimit.Handler(slog.NewTextHandler(&log, nil)))
		})
		var spec Spec
		for i := range 3 * loglimit.HandlerBurst {
			spec.Optional = append(spec.Optional, optional(fmt.Sprint("web", i), fmt.Sprint("127.0.0.1:", i+1)))
		}
		r.apply(spec)
		for text, want := range map[string]int{"msg=listening listener=web": maxTold, "opened=600 told=100": 1} {
			if n := log.count(text); n != want {
				t.Errorf("%d times %q, want %d", n, text, want)
			}
		}
		spec.Optional = append(spec.Optional, optional("one", "127.0.0.1:1000"))
		r.apply(spec)
		if !log.contain("msg=listening listener=one") {
			t.Error("a listener that comes later is not told of")
		}
	})
}
