package node

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse.internal/lbcore"
)

// Clusters that are replaced, and those that are removed while their listener
// turns to another, refuse nobody: they end when nobody asks them any more.
func TestNobodyIsRefusedByTurns(t *testing.T) {
	const clusters = 20
	r := start(t)
	spec := func(have []string, to string, optional int, timeout time.Duration) (s Spec) {
		for i := range clusters {
			for _, name := range have {
				c := clusterOf(fmt.Sprint(name, i), static(endpoint("192.0.2.1:80")))
				c.ConnectTimeout = timeout
				s.Clusters = append(s.Clusters, c)
			}
			s.Listeners = append(s.Listeners, listenerOf(fmt.Sprint("l", i), fmt.Sprint(to, i)))
		}
		for i := range optional {
			s.Optional = append(s.Optional, listenerOf(fmt.Sprint("o", i), fmt.Sprint(to, 0)))
		}
		return s
	}
	warm := func() bool {
		t := r.table.Load()
		for _, c := range t.clusters {
			if !c.warm.Load() {
				return false
			}
		}
		return len(t.warming) == 0
	}
	r.apply(spec([]string{"a"}, "a", 0, time.Second))
	within(t, "all are warm", warm)

	var stop atomic.Bool
	var wg sync.WaitGroup
	var refused atomic.Int64
	for range 2 {
		wg.Go(func() {
			gate := r.Node.cfg.Gate
			for i := 0; !stop.Load(); i++ {
				l := r.table.Load().listeners[i%clusters]
				reader := gate.Pin()
				picks, _, err := l.Pick(reader, lbcore.Key{})
				reader.Unpin()
				if err != nil || picks.Len() == 0 {
					refused.Add(1)
				}
			}
		})
	}
	for i := range 20 {
		r.apply(spec([]string{"a"}, "a", 0, time.Second+time.Duration(i+1)*time.Millisecond))
		within(t, "they are replaced", warm)
	}
	at, other := "a", "b"
	for range 20 {
		r.apply(spec([]string{at, other}, at, 0, time.Minute))
		within(t, "the others are warm", warm)
		r.apply(spec([]string{other}, other, 10, time.Minute))
		at, other = other, at
	}
	stop.Store(true)
	wg.Wait()
	if n := refused.Load(); n > 0 {
		t.Errorf("%d picks were refused", n)
	}
}
