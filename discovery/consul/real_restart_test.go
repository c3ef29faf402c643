package consul_test

import (
	"testing"

	"gatehouse.internal/discovery/consul"
	"gatehouse.internal/discovery/consul/consultest"
)

// everyWay watches the service web in each way there is to ask for it.
func everyWay(t *testing.T, cfg consul.Config) map[string]*watching {
	t.Helper()
	direct := newReal(t, cfg)
	cfg.MaxWatches = 1
	shared := newReal(t, cfg)
	shared.watch(consul.Query{Service: "other"})
	return map[string]*watching{
		"direct":     direct.web(),
		"shared":     shared.web(),
		"cached":     direct.watch(consul.Query{Service: "web", Cached: true}),
		"near":       direct.watch(consul.Query{Service: "web", Near: "_agent", Nearest: 10}),
		"default":    direct.watch(consul.Query{Service: "web", Consistency: consul.Default}),
		"consistent": direct.watch(consul.Query{Service: "web", Consistency: consul.Consistent}),
	}
}

// agents runs f with a server that is asked itself, and with one behind an agent
// in client mode.
func agents(t *testing.T, f func(t *testing.T, server, agent *consultest.Server)) {
	t.Parallel()
	t.Run("server", func(t *testing.T) {
		s := consultest.Start(t, consultest.Options{})
		f(t, s, s)
	})
	t.Run("client", func(t *testing.T) {
		s := consultest.Start(t, consultest.Options{})
		f(t, s, consultest.Start(t, consultest.Options{Join: []*consultest.Server{s}}))
	})
}

// C01, C20: an agent that restarts costs no endpoint, though a server that was
// just started says that there are none before it has caught up. Its clients say
// that it is away, and after that they see changes as before.
func TestRealC01AgentRestarted(t *testing.T) {
	agents(t, func(t *testing.T, server, agent *consultest.Server) {
		server.Register(instance(1))
		server.RegisterMany(instance(2))
		ways := everyWay(t, consul.Config{Address: agent.Addr()})
		for _, w := range ways {
			w.see("1 2")
		}
		agent.Kill()
		for _, w := range ways {
			w.fail("consul at " + agent.Addr())
			w.held("1 2")
		}
		agent.Restart()
		for _, w := range ways {
			w.fresh("1 2")
			w.only("1 2")
		}
		server.Register(instance(3))
		for name, w := range ways {
			step(t, name)
			w.see("1 2 3")
		}
	})
}

// C09, C11: a server that has lost its data counts its index from the
// beginning; what it says is seen soon, not after the wait for the old index.
func TestRealC11ServerWiped(t *testing.T) {
	t.Parallel()
	s := consultest.Start(t, consultest.Options{})
	s.Register(instance(1))
	age(s)
	s.RegisterMany(instance(2))
	ways := everyWay(t, consul.Config{Address: s.Addr()})
	for _, w := range ways {
		w.see("1 2")
	}
	s.WipeAndRestart()
	s.RegisterMany(instance(3))
	for name, w := range ways {
		step(t, name)
		w.see("3")
	}
	s.RegisterMany(instance(4))
	for name, w := range ways {
		step(t, name)
		w.see("3 4")
		w.only("1 2", "", "3", "3 4")
	}
}

// C09: a snapshot is restored: the index goes back without a failure.
func TestRealC09SnapshotRestored(t *testing.T) {
	agents(t, func(t *testing.T, server, agent *consultest.Server) {
		server.RegisterMany(instance(1))
		snapshot := server.Snapshot()
		age(server)
		server.RegisterMany(instance(2), instance(3))
		ways := everyWay(t, consul.Config{Address: agent.Addr()})
		for _, w := range ways {
			w.see("1 2 3")
		}
		server.Restore(snapshot)
		for name, w := range ways {
			step(t, name)
			w.see("1")
		}
		server.RegisterMany(instance(4))
		for name, w := range ways {
			step(t, name)
			w.see("1 4")
			w.only("1 2 3", "1", "1 4")
		}
	})
}
