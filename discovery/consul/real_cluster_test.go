package consul_test

import (
	"testing"
	"time"

	"gatehouse.internal/discovery/consul"
	"gatehouse.internal/discovery/consul/consultest"
)

// C05: the loss of the leader, and of all that could elect one, costs no
// endpoint. The first is over soon, the second is told of; changes made
// afterwards are seen.
func TestRealC05LeaderKilled(t *testing.T) {
	// Servers hold back what only a leader can answer for so long.
	c := consultest.StartCluster(t, 3, consultest.Options{Config: `performance { rpc_hold_timeout = "1s" }`})
	follower := c.Follower()
	watch := func(want string) map[string]*watching {
		// What is streamed does not tell of the leader, however short the wait.
		ways := everyWay(t, consul.Config{Address: follower.Addr(), WaitTime: time.Second})
		for _, w := range ways {
			w.see(want)
			w.fromNow() // the follower may have been behind at first
		}
		return ways
	}
	follower.RegisterMany(instance(1), instance(2))
	ways := watch("1 2")
	c.Leader().Kill()
	c.Leader()
	follower.RegisterMany(instance(3))
	for name, w := range ways {
		step(t, "a new leader: "+name)
		w.see("1 2 3")
		w.only("1 2", "1 2 3")
	}

	ways = watch("1 2 3")
	for _, s := range c.Servers {
		if s != follower {
			s.Kill()
		}
	}
	for name, w := range ways {
		if name == "cached" { // which outlives servers
			continue
		}
		step(t, "no leader: "+name)
		w.fail("")
		w.held("1 2 3")
	}
	for _, s := range c.Servers {
		if s != follower {
			s.Launch()
		}
	}
	follower.AwaitReady()
	follower.RegisterMany(instance(4))
	for name, w := range ways {
		step(t, "a leader again: "+name)
		w.fresh("1 2 3 4")
		w.only("1 2 3", "1 2 3 4")
	}
}
