package consul

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/consul/api"
)

var agentService = Registration{Name: "gatehouse", ID: "gatehouse-1", Port: 9901, CheckURL: "http://127.0.0.1:9901/ready"}

// registered is what the agent has of its own.
func (r *rig) registered() *api.AgentServiceRegistration {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	return r.s.agent[agentService.ID]
}

// register runs Register until the returned function is called, which returns
// how long that took.
func (r *rig) register(reg Registration) (end func() time.Duration) {
	ctx, cancel := newContext(r.t)
	done := make(chan error, 1)
	r.wg.Go(func() { done <- r.c.Register(ctx, reg) })
	synctest.Wait()
	return func() time.Duration {
		start := time.Now()
		cancel()
		if err := <-done; err != context.Canceled {
			r.t.Errorf("Register returned %v", err)
		}
		return time.Since(start)
	}
}

func TestRegister(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil, nil)
		r.s.tokens = map[string]bool{secretToken: true}
		reg := agentService
		reg.Tags, reg.Meta, reg.Address = []string{"a", "b"}, map[string]string{"k": "v"}, "192.0.2.1"
		reg.CheckInterval, reg.CheckTimeout, reg.DeregisterAfter = 3*time.Second, 4*time.Second, 5*time.Minute
		end := r.register(reg)
		put := r.s.since(0, "")[0]
		if put.method != http.MethodPut || put.path != "/v1/agent/service/register" || put.query.Get("replace-existing-checks") != "true" || put.token != secretToken {
			t.Errorf("got %v with the token %q", put, put.token)
		}
		got, want := map[string]any{}, map[string]any{
			"ID": "gatehouse-1", "Name": "gatehouse", "Tags": []any{"a", "b"}, "Port": 9901.0, "Address": "192.0.2.1", "Meta": map[string]any{"k": "v"}, "Checks": nil,
			"Check": map[string]any{
				"CheckID": "service:gatehouse-1", "Name": "gatehouse is ready", "HTTP": "http://127.0.0.1:9901/ready",
				"Interval": "3s", "Timeout": "4s", "DeregisterCriticalServiceAfter": "5m0s",
			},
		}
		if err := json.Unmarshal(put.body, &got); err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("registered\n%v\nwant\n%v", got, want)
		}
		r.pass(time.Hour)
		if n := r.s.count(); n < 300 || n > 451 {
			t.Errorf("looked %d times in an hour", n)
		}
		if got := len(r.s.since(0, "/v1/agent/service/register")); got != 1 {
			t.Errorf("registered %d times", got)
		}
		if d := end(); d != 0 || r.registered() != nil {
			t.Errorf("it took %v to end, and the agent has %v", d, r.registered())
		}
		if got := strings.Count(r.logs.String(), "\n"); got != 1 || r.logs.count("registered with consul") != 1 {
			t.Errorf("logged:\n%s", r.logs)
		}
	})
	t.Run("defaults", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			r := newRig(t, nil, nil)
			end := r.register(agentService)
			got := r.registered()
			if got.Check.Interval != "10s" || got.Check.Timeout != "2s" || got.Check.DeregisterCriticalServiceAfter != "" || got.Address != "" {
				t.Errorf("got %+v %+v", got, got.Check)
			}
			end()
		})
	})
}

// An agent that was restarted with an empty state gets it again; one that kept
// it does not. A first registration replaces what an earlier run left.
func TestRegisterAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil, nil)
		r.s.agent[agentService.ID] = &api.AgentServiceRegistration{ID: agentService.ID, Name: "old", Port: 1}
		end := r.register(agentService)
		if got := r.registered(); got.Name != "gatehouse" || got.Port != 9901 {
			t.Errorf("got %+v", got)
		}
		for n := range 3 {
			r.pass(time.Minute)
			r.set(func(s *scripted) { s.down = true })
			r.pass(time.Minute)
			r.set(func(s *scripted) { s.down = false; delete(s.agent, agentService.ID) })
			r.pass(21 * time.Second)
			if r.registered() == nil {
				t.Errorf("not registered again")
			}
			if again, lost := r.logs.count("again=true"), r.logs.count("is not registered"); again != n+1 || lost != n+1 {
				t.Errorf("round %d: logged:\n%s", n, r.logs)
			}
		}
		r.set(func(s *scripted) { s.down = true })
		r.pass(time.Minute)
		r.set(func(s *scripted) { s.down = false })
		r.pass(time.Minute)
		if got := len(r.s.since(0, "/v1/agent/service/register")); got != 4 {
			t.Errorf("registered %d times, want 4", got)
		}
		r.set(func(s *scripted) { delete(s.agent, agentService.ID) })
		r.pass(12 * time.Second)
		if r.registered() == nil {
			t.Error("not registered again within 12s")
		}
		end()
	})
}

// An agent that can't be reached is tried again for ever, and told of once for
// each reason, also where the system words it anew each time.
func TestRegisterTriesAgain(t *testing.T) {
	port := 40000
	for name, fault := range map[string]func() *reply{
		"refused": func() *reply { return &reply{err: refusedConnection} },
		"status":  func() *reply { return answers(500, "no") },
		"reset": func() *reply {
			port++
			from := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}
			return &reply{err: &net.OpError{Op: "read", Net: "tcp", Source: from, Addr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8500}, Err: syscall.ECONNRESET}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, nil, nil)
				r.s.hook = func(call) *reply { return fault() }
				end := r.register(agentService)
				r.pass(time.Hour)
				if n := r.s.count(); n < 200 || n > 290 {
					t.Errorf("tried %d times in an hour", n)
				}
				if got := strings.Count(r.logs.String(), "\n"); got != 1 {
					t.Errorf("logged %d lines:\n%s", got, r.logs)
				}
				r.set(func(s *scripted) { s.hook = func(call) *reply { return answers(403, "Permission denied") } })
				r.pass(time.Minute)
				if got := r.logs.count("the token is refused"); got != 1 {
					t.Errorf("logged:\n%s", r.logs)
				}
				r.set(func(s *scripted) { s.hook = nil })
				r.pass(21 * time.Second)
				if r.registered() == nil {
					t.Error("not registered")
				}
				end()
			})
		})
	}
}

// The end takes two seconds at most, whatever Consul does, and is tried also
// where no registration was answered.
func TestRegisterEnds(t *testing.T) {
	for _, c := range []struct {
		name  string
		reply func() *reply
		most  time.Duration
		warns int
	}{
		{"hangs", func() *reply { return &reply{hang: true} }, 2 * time.Second, 1},
		{"refused", func() *reply { return &reply{err: io.EOF} }, 0, 1},
		{"not found", func() *reply { return answers(404, "unknown service ID") }, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, nil, nil)
				end := r.register(agentService)
				r.set(func(s *scripted) { s.hook = func(call) *reply { return c.reply() } })
				if d := end(); d != c.most {
					t.Errorf("it took %v to end, want %v", d, c.most)
				}
				if got := r.logs.count("stays registered"); got != c.warns {
					t.Errorf("logged:\n%s", r.logs)
				}
			})
		})
	}
	t.Run("without an answer", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			r := newRig(t, nil, nil)
			r.s.hook = func(c call) *reply {
				if c.path == "/v1/agent/service/register" {
					return &reply{hang: true}
				}
				return nil
			}
			end := r.register(agentService)
			if d := end(); d != 0 || len(r.s.since(0, "/v1/agent/service/deregister/gatehouse-1")) != 1 {
				t.Errorf("it took %v; requests: %v", d, r.s.since(0, ""))
			}
		})
	})
	t.Run("while all lookups are taken", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			r := newRig(t, nil, nil)
			end := r.register(agentService)
			r.set(func(s *scripted) {
				s.hook = func(c call) *reply {
					if strings.HasPrefix(c.path, "/v1/health") {
						return &reply{hang: true}
					}
					return nil
				}
			})
			for range 20 {
				r.watch(Query{Service: "web"})
			}
			synctest.Wait()
			if d := end(); d > 2*time.Second || r.registered() != nil {
				t.Errorf("it took %v to end, and the agent has %v", d, r.registered())
			}
		})
	})
}

func TestRegisterInvalid(t *testing.T) {
	c, err := New(Config{Transport: newScripted()})
	if err != nil {
		t.Fatal(err)
	}
	err = c.Register(t.Context(), Registration{ID: "a/b", Port: 65536, CheckURL: "ftp://x", CheckInterval: -1, CheckTimeout: -1, DeregisterAfter: time.Second})
	for _, want := range []string{"name: ", "id: ", "port: 65536", "check_url: ", "check_interval: ", "check_timeout: ", "deregister_after: "} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
}
