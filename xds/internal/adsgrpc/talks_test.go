package adsgrpc

import (
	"crypto/tls"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"gatehouse.internal/internal/tlsconf/tlstest"
	"gatehouse.internal/xds/internal/core"
	"gatehouse.internal/xds/internal/names"
)

// Every message of some conversations that go another way, byte for byte.
func TestTalks(t *testing.T) {
	server := newRawServer(t)
	talk := func(name string, play func(*conversation)) {
		t.Run(name, func(t *testing.T) {
			converse(t, name, server, Server{}, func(c *conversation) {
				c.timers = true
				play(c)
			})
		})
	}

	// Resources with a TTL, in wrappers, and heartbeats without a body, which are
	// answered as any other response.
	talk("heartbeats", func(c *conversation) {
		wrapped := func(version string, list ...*discoveryv3.Resource) {
			c.t.Helper()
			sotw := &discoveryv3.DiscoveryResponse{TypeUrl: eds, VersionInfo: version, Nonce: "n" + version}
			for _, r := range list {
				sotw.Resources = append(sotw.Resources, &anypb.Any{TypeUrl: wrapper, Value: marshal(c.t, r)})
			}
			c.answer(sotw, &discoveryv3.DeltaDiscoveryResponse{TypeUrl: eds, SystemVersionInfo: version, Nonce: "n" + version, Resources: list})
		}
		c.core.Subscribe(eds, "web")
		c.connect()
		c.say("the server sends web for 30 s")
		wrapped("1", &discoveryv3.Resource{Name: "web", Version: "1", Ttl: durationpb.New(30 * time.Second), Resource: &anypb.Any{TypeUrl: eds, Value: []byte("web=1")}})
		c.say("the server sends a heartbeat")
		wrapped("2", &discoveryv3.Resource{Name: "web", Version: "1", Ttl: durationpb.New(30 * time.Second)})
		c.say("its time is over")
		c.core.Fired(core.Timer{Kind: core.TimerTTL, Type: eds, Name: "web"})
		c.flush()
		c.say("the server sends a heartbeat")
		wrapped("3", &discoveryv3.Resource{Name: "web", Version: "1", Ttl: durationpb.New(30 * time.Second)})
		c.lose()
		c.connect()
	})

	// What is resent at once after it was refused is answered when the time has come.
	talk("nack_throttling", func(c *conversation) {
		c.core.Subscribe(eds, "web")
		c.connect()
		for i := range 3 {
			c.respond(eds, "1", fmt.Sprint("n", i+1), []string{"web=!bad"})
			if i > 0 {
				c.say("its time has come")
				c.core.Fired(core.Timer{Kind: core.TimerNack, Type: eds})
				c.flush()
			}
		}
		c.respond(eds, "2", "n4", []string{"web=2"})
	})

	// A server that refuses for good: its words, and the longest delay.
	talk("permanent_refusal", func(c *conversation) {
		c.core.Subscribe(eds, "web")
		c.connect()
		reason, how := c.end(status.Error(codes.PermissionDenied, "node-7 may not ask"), false)
		c.say(fmt.Sprintf("ended, refused: %v: %s", how == core.Refused, reason))
		c.connect()
		c.respond(eds, "1", "n1", []string{"web=1"})
	})

	// While a request is on its way, what is due is gathered.
	talk("flow_control", func(c *conversation) {
		c.core.SubscribeAll(cds)
		c.blocked = true
		c.connect()
		c.respond(cds, "1", "n1", []string{"web=1"})
		c.core.Subscribe(eds, "web")
		c.flush()
		c.respond(cds, "2", "n2", []string{"web=1", "api=1"})
		c.core.Subscribe(eds, "api")
		c.flush()
		c.say("the first request is gone")
		c.blocked = false
		c.core.Sent(0)
		c.flush()
	})

	// A name of the new kind is asked for in its canonical form, whatever the order
	// of its parameters, and known by it.
	talk("xdstp", func(c *conversation) {
		const typ = "xdstp://one/envoy.config.endpoint.v3.ClusterLoadAssignment/web"
		c.core.Subscribe(eds, names.Canonical(typ+"?zone2=b&zone=a"))
		c.core.Subscribe(eds, names.Canonical(typ+"?zone=a&zone2=b"))
		c.connect()
		c.say("the server can't give it")
		errs := []*discoveryv3.ResourceError{{
			ResourceName: &discoveryv3.ResourceName{Name: typ + "?zone2=b&zone=a"}, ErrorDetail: status.New(codes.NotFound, "none").Proto(),
		}}
		c.answer(&discoveryv3.DiscoveryResponse{TypeUrl: eds, VersionInfo: "1", Nonce: "n1", ResourceErrors: errs},
			&discoveryv3.DeltaDiscoveryResponse{TypeUrl: eds, SystemVersionInfo: "1", Nonce: "n1", ResourceErrors: errs})
		c.say("it is not wanted any more")
		c.core.Unsubscribe(eds, names.Canonical(typ+"?zone=a&zone2=b"))
		c.flush()
	})

	// A token is read anew for each stream, and sent with the metadata.
	t.Run("call_credentials", func(t *testing.T) {
		dir := t.TempDir()
		ca, token := tlstest.NewCA(t, "ca"), filepath.Join(dir, "token")
		s := Server{TLS: &TLS{CAFile: ca.Write(t, dir)}, TokenFile: token, Metadata: map[string]string{"x-tenant": "blue"}}
		converse(t, "call_credentials", newRawServer(t, serverTLS(t, ca, tls.NoClientCert)), s, func(c *conversation) {
			tlstest.Replace(t, token, []byte("first\n"))
			c.core.Subscribe(eds, "web")
			c.connect()
			tlstest.Replace(t, token, []byte("second\n"))
			c.lose()
			c.connect()
		})
	})
}
