package node

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/forwarder"
	"gatehouse.internal/lbcore"
)

// A listener that is given its socket accepts once its cluster is warm, or once the
// node's owner is ready; until then who connects waits. One without a socket of its own
// does not wait.
func TestGivenSocketIsHeld(t *testing.T) {
	for name, release := range map[string]func(r *rig, spec Spec, one *backend, ready chan struct{}){
		"warm": func(r *rig, spec Spec, one *backend, _ chan struct{}) {
			spec.Clusters = []config.Cluster{clusterOf("web", static(one.Endpoint))}
			r.apply(spec)
		},
		"ready": func(_ *rig, _ Spec, _ *backend, ready chan struct{}) { close(ready) },
	} {
		t.Run(name, func(t *testing.T) {
			ready := make(chan struct{})
			r := start(t, func(c *Config) {
				c.Ready = ready
				c.Socket = func(listener string, a lbcore.Addr) (net.Listener, error) {
					if listener != "given" {
						return nil, nil
					}
					return forwarder.PlainListen(context.Background(), a)
				}
			})
			one := listen(t, "one")
			spec := Spec{Listeners: []config.Listener{listenerOf("given", "web"), listenerOf("own", "web")}}
			r.apply(spec) // the cluster is not known yet
			early, err := net.Dial("tcp", r.listener("given").Address.Dial())
			if err != nil {
				t.Fatal(err)
			}
			defer early.Close()
			other, err := net.Dial("tcp", r.listener("own").Address.Dial())
			if err == nil {
				defer other.Close()
			} else if !errors.Is(err, syscall.ECONNRESET) { // as it is, but before the dial was told
				t.Fatal(err)
			}
			within(t, "the listener with a socket of its own accepts", func() bool { return r.listener("own").Stats.Accepted == 1 })
			if n := r.listener("given").Stats.Accepted; n != 0 {
				t.Errorf("%d connections were accepted before there was a cluster", n)
			}
			release(r, spec, one, ready)
			within(t, "the connection is accepted", func() bool { return r.listener("given").Stats.Accepted == 1 })
			if name == "warm" {
				r.mustDial("given", "one").Close()
				if st := r.listener("given").Stats; st.Flags[forwarder.FlagNC]+st.Flags[forwarder.FlagUH] != 0 {
					t.Errorf("the one that waited got no endpoint: %+v", st)
				}
			}
		})
	}
}

// A listener that is held may leave.
func TestHeldListenerLeaves(t *testing.T) {
	r := start(t, func(c *Config) {
		c.Ready = make(chan struct{})
		c.Socket = func(_ string, a lbcore.Addr) (net.Listener, error) {
			return forwarder.PlainListen(context.Background(), a)
		}
	})
	r.apply(Spec{Listeners: []config.Listener{listenerOf("given", "web")}})
	r.apply(Spec{})
	within(t, "it is gone", func() bool { return len(r.Status().Listeners) == 0 })
}

// A listener that is held to the end has accepted nobody: who waits in the queue of a
// socket that is another process' too is left to that one.
func TestHeldToTheEnd(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	t.Run("node", func(t *testing.T) {
		r := start(t, func(c *Config) {
			c.Hold = make(chan struct{})
			c.Socket = func(string, lbcore.Addr) (net.Listener, error) {
				f, err := ln.(*net.TCPListener).File()
				if err != nil {
					return nil, err
				}
				defer f.Close()
				return net.FileListener(f)
			}
		})
		r.apply(Spec{Listeners: []config.Listener{listenerOf("l", "a")}})
		for range 50 {
			c, err := net.Dial("tcp", ln.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
		}
	})
	ln.(*net.TCPListener).SetDeadline(time.Now().Add(20 * time.Second))
	for range 50 {
		c, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
}
