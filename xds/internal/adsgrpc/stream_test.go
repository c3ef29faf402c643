package adsgrpc

import (
	"bytes"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"gatehouse.internal/xds/internal/core"
)

func marshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// What a server can put into a response arrives in the core's terms, in both
// variants: wrappers, TTLs, heartbeats, removals, errors, and names in their
// canonical form.
func TestResponses(t *testing.T) {
	server := newRawServer(t)
	wrapped := []*discoveryv3.Resource{
		{Name: "a", Version: "7", Resource: &anypb.Any{TypeUrl: "t", Value: []byte("A")}, Ttl: durationpb.New(time.Second)},
		{Name: "a", Version: "7", Ttl: durationpb.New(time.Minute)},
		{ResourceName: &discoveryv3.ResourceName{Name: "xdstp://one/t/b?y=2&x=1"}, Resource: &anypb.Any{TypeUrl: "t", Value: []byte("B")}, Ttl: durationpb.New(-1)},
	}
	errs := []*discoveryv3.ResourceError{{
		ResourceName: &discoveryv3.ResourceName{Name: "xdstp://one/t/c?y=2&x=1"}, ErrorDetail: status.New(codes.NotFound, "none").Proto(),
	}}
	sotw := &discoveryv3.DiscoveryResponse{VersionInfo: "v", TypeUrl: "t", Nonce: "n", ResourceErrors: errs}
	for _, w := range wrapped {
		sotw.Resources = append(sotw.Resources, &anypb.Any{TypeUrl: wrapper, Value: marshal(t, w)})
	}
	sotw.Resources = append(sotw.Resources, &anypb.Any{TypeUrl: "t", Value: []byte("D")}, &anypb.Any{TypeUrl: wrapper, Value: []byte{0xff}})
	delta := &discoveryv3.DeltaDiscoveryResponse{
		SystemVersionInfo: "v", TypeUrl: "t", Nonce: "n", ResourceErrors: errs, Resources: wrapped,
		RemovedResources: []string{"e", "xdstp://one/t/f?y=2&x=1"}, RemovedResourceNames: []*discoveryv3.ResourceName{{Name: "g"}},
	}
	common := core.Response{
		Type: "t", Version: "v", Nonce: "n",
		Resources: []core.Resource{
			{Type: "t", Body: []byte("A"), Name: "a", Version: "7", TTL: 1e9},
			{Bare: true, Name: "a", Version: "7", TTL: 60e9},
			{Type: "t", Body: []byte("B"), Name: "xdstp://one/t/b?x=1&y=2"},
		},
		Errors: []core.ResourceError{{Name: "xdstp://one/t/c?x=1&y=2", Code: 5, Reason: "none (NotFound)"}},
	}
	for _, protocol := range []Protocol{StateOfTheWorld, Delta} {
		want := common
		m := proto.Message(delta)
		if protocol == StateOfTheWorld {
			m = sotw
			want.Resources = append(want.Resources[:3:3], core.Resource{Type: "t", Body: []byte("D")}, core.Resource{Type: wrapper, Body: []byte{0xff}})
		} else {
			want.Removed = []string{"e", "xdstp://one/t/f?x=1&y=2", "g"}
		}
		s, err := open(t, newTransport(t, Server{URI: server.addr, Protocol: protocol}))
		if err != nil {
			t.Fatal(err)
		}
		at := server.next(t)
		at.send(t, marshal(t, m))
		got, err := s.Recv()
		if d := cmp.Diff(want, got); d != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", protocol, err, d)
		}
		at.end <- nil
	}
}

// A message that can't be taken ends the stream, with words, before it takes
// memory, and the next attempt comes late: it would be the same.
func TestUnfitMessages(t *testing.T) {
	server := newRawServer(t)
	for name, tt := range map[string]struct {
		body []byte
		want string
	}{
		"junk":      {[]byte("\xff\xff\xff"), "the server sent what is no response"},
		"truncated": {[]byte{0x12, 0x7f}, "the server sent what is no response"},
		"bad field": {[]byte{0x12, 2, 0x0a, 0x7f}, "the server sent what is no response"},
		"many":      {bytes.Repeat([]byte{0x12, 0}, maxResources+1), "more than 262144 resources"},
		"large":     {bytes.Repeat([]byte("\x0a\x00"), 3<<20), "larger than max"},
	} {
		for _, protocol := range []Protocol{StateOfTheWorld, Delta} {
			tr := newTransport(t, Server{URI: server.addr, Protocol: protocol})
			s, err := open(t, tr)
			if err != nil {
				t.Fatal(err)
			}
			at := server.next(t)
			at.send(t, tt.body)
			_, err = s.Recv()
			if words, how := tr.End(err, true); how != core.Unfit || !strings.Contains(words, tt.want) {
				t.Errorf("%s, %s: %q, %v", name, protocol, words, how)
			}
			at.end <- nil
		}
	}
}

// FuzzUnmarshal: any bytes are a response or an error, in both variants.
func FuzzUnmarshal(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("\xff"))
	f.Add(marshal(f, &discoveryv3.DiscoveryResponse{VersionInfo: "v", Resources: []*anypb.Any{{TypeUrl: wrapper, Value: marshal(f, &discoveryv3.Resource{Name: "a"})}}}))
	f.Add(marshal(f, &discoveryv3.DeltaDiscoveryResponse{Nonce: "n", RemovedResources: []string{"a"}, Resources: []*discoveryv3.Resource{{Name: "a", Ttl: durationpb.New(1)}}}))
	f.Fuzz(func(t *testing.T, data []byte) {
		c := new(codec)
		sotw := new(discoveryv3.DiscoveryResponse)
		if c.Unmarshal(raw(data), sotw) == nil {
			response(sotw)
		}
		delta := new(discoveryv3.DeltaDiscoveryResponse)
		if c.Unmarshal(raw(data), delta) == nil {
			deltaResponse(delta)
		}
	})
}
