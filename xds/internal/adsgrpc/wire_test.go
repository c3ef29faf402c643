package adsgrpc

import (
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"gatehouse.internal/xds/internal/core"
)

var update = flag.Bool("update", false, "write testdata/wire_*.txt; commit only what you understand")

const (
	cds = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	eds = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
)

// conversation is a core on a real connection to a scripted server.
type conversation struct {
	t      *testing.T
	core   *core.Core
	tr     *Transport
	server *rawServer
	stream *Stream
	at     *rawStream
	out    strings.Builder

	timers  bool // are written down
	blocked bool // nobody says that a request was sent
}

func (c *conversation) say(what string) { fmt.Fprintf(&c.out, "# %s\n", what) }

// connect opens a stream and writes down how it begins.
func (c *conversation) connect() {
	c.t.Helper()
	var err error
	if c.stream, err = c.tr.Open(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	c.core.Connected(0, c.stream.Variant())
	c.at = c.server.next(c.t)
	fmt.Fprintf(&c.out, "POST %s\n", c.at.method)
	for _, key := range []string{"authorization", "x-tenant"} {
		for _, value := range c.at.md.Get(key) {
			fmt.Fprintf(&c.out, "%s: %s\n", key, value)
		}
	}
	c.flush()
}

// flush sends what is due and writes down what the server gets, to the byte.
func (c *conversation) flush() {
	c.t.Helper()
	for {
		c.core.Flush()
		sent := false
		for _, e := range c.core.Take() {
			switch e := e.(type) {
			case core.Send:
				if err := c.stream.Send(e.Request); err != nil {
					c.t.Fatal(err)
				}
				if sent = !c.blocked; sent {
					c.core.Sent(0)
				}
				c.out.WriteString(hex.Dump(c.at.recv(c.t)))
				c.out.WriteString("\n")
			case core.StartTimer:
				if c.timers {
					c.say(fmt.Sprintf("timer %s %s, attempt %d, TTL %d", e.Timer.Kind, e.Timer.Name, e.Attempt, e.TTL))
				}
			case core.StopTimer:
				if c.timers {
					c.say(fmt.Sprintf("no timer %s %s", e.Timer.Kind, e.Timer.Name))
				}
			}
		}
		if !sent {
			return
		}
	}
}

// respond sends resources, "name=value", of a type.
func (c *conversation) respond(typ, version, nonce string, resources []string, removed ...string) {
	c.t.Helper()
	c.say(fmt.Sprintf("the server sends %s %s %s %q, removed %q", typ[strings.LastIndex(typ, ".")+1:], version, nonce, resources, removed))
	sotw := &discoveryv3.DiscoveryResponse{TypeUrl: typ, VersionInfo: version, Nonce: nonce}
	delta := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typ, SystemVersionInfo: version, Nonce: nonce, RemovedResources: removed}
	for _, r := range resources {
		body := &anypb.Any{TypeUrl: typ, Value: []byte(r)}
		name, _, _ := strings.Cut(r, "=")
		sotw.Resources = append(sotw.Resources, body)
		delta.Resources = append(delta.Resources, &discoveryv3.Resource{Name: name, Version: version + name, Resource: body})
	}
	c.answer(sotw, delta)
}

// answer sends the message of the stream's variant.
func (c *conversation) answer(sotw *discoveryv3.DiscoveryResponse, delta *discoveryv3.DeltaDiscoveryResponse) {
	c.t.Helper()
	m := proto.Message(sotw)
	if c.stream.Variant() == core.Delta {
		m = delta
	}
	c.at.send(c.t, marshal(c.t, m))
	r, err := c.stream.Recv()
	if err != nil {
		c.t.Fatal(err)
	}
	c.core.Response(0, r)
	c.flush()
}

// lose ends the stream.
func (c *conversation) lose() {
	c.t.Helper()
	c.say("the stream ends")
	c.end(status.Error(codes.Unavailable, "restart"), true)
}

func (c *conversation) end(err error, heard bool) (reason string, how core.Ending) {
	c.at.end <- err
	_, err = c.stream.Recv()
	c.stream.Close()
	reason, how = c.tr.End(err, heard)
	c.core.Closed(0, reason, how)
	return reason, how
}

// converse plays a conversation in both variants, and compares it with its file.
func converse(t *testing.T, name string, server *rawServer, s Server, play func(*conversation)) {
	decode := func(body []byte) (string, any, error) {
		name, value, _ := strings.Cut(string(body), "=")
		if strings.HasPrefix(value, "!") {
			return name, nil, errors.New(value[1:])
		}
		return name, value, nil
	}
	metadata, err := structpb.NewStruct(map[string]any{"b": 1, "a": "x", "c": true})
	if err != nil {
		t.Fatal(err)
	}
	for _, protocol := range []Protocol{StateOfTheWorld, Delta} {
		t.Run(string(protocol), func(t *testing.T) {
			s := s
			s.URI, s.Protocol = server.addr, protocol
			c := &conversation{
				t: t, server: server,
				core: core.New(1, core.Type{URL: cds, Complete: true, Decode: decode}, core.Type{URL: eds, Decode: decode}),
				tr: newTransport(t, s, func(o *Options) {
					o.Node = &corev3.Node{Id: "node-7", Cluster: "edge", Metadata: metadata}
				}),
			}
			play(c)
			c.stream.Close()

			path := "testdata/" + name + "_" + string(protocol) + ".txt"
			if *update {
				if err := os.WriteFile(path, []byte(c.out.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil || c.out.String() != string(want) {
				t.Errorf("%v, got\n%s\nwant\n%s", err, c.out.String(), want)
			}
		})
	}
}

// Every message of a conversation, byte for byte: wildcard and names, answers to
// good and to bad, subscriptions that change, and the begin of the next stream.
func TestWire(t *testing.T) {
	converse(t, "wire", newRawServer(t), Server{}, func(c *conversation) {
		c.core.SubscribeAll(cds)
		c.connect()
		c.respond(cds, "c1", "n1", []string{"web=1", "api=1"})
		c.say("the clusters' endpoints are wanted")
		c.core.Subscribe(eds, "web")
		c.core.Subscribe(eds, "api")
		c.flush()
		c.respond(eds, "e1", "n2", []string{"web=1", "api=!weight: 0"})
		c.respond(cds, "c2", "n3", []string{"web=2"}, "api")
		c.say("one cluster's endpoints are not wanted any more")
		c.core.Unsubscribe(eds, "api")
		c.flush()
		c.respond(eds, "e2", "n4", []string{"web=2"})
		c.lose()
		c.connect()
		c.say("everything is taken back")
		c.core.Unsubscribe(eds, "web")
		c.core.UnsubscribeAll(cds)
		c.flush()
		c.lose()
		c.connect()
	})
}
