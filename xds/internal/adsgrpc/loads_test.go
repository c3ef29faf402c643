package adsgrpc

import (
	"context"
	"crypto/tls"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	loadv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"gatehouse.internal/internal/tlsconf/tlstest"
)

// A stream of load reports has the credentials and the metadata of other streams, and
// does not touch theirs.
func TestLoads(t *testing.T) {
	ca := tlstest.NewCA(t, "ca")
	server := newRawServer(t, serverTLS(t, ca, tls.NoClientCert))
	tr := newTransport(t, Server{URI: server.addr, TLS: &TLS{CAFile: ca.Write(t, t.TempDir())}, Metadata: map[string]string{"x-tenant": "blue"}})
	ads, err := open(t, tr)
	if err != nil {
		t.Fatal(err)
	}
	discovery := server.next(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s, err := tr.OpenLoads(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	at := server.next(t)
	if at.method != "/envoy.service.load_stats.v3.LoadReportingService/StreamLoadStats" {
		t.Errorf("method %s", at.method)
	}
	if got := at.md.Get("x-tenant"); len(got) != 1 || got[0] != "blue" {
		t.Errorf("x-tenant is %q", got)
	}
	if err := s.Send(&loadv3.LoadStatsRequest{Node: &corev3.Node{Id: "n"}}); err != nil {
		t.Fatal(err)
	}
	var sent loadv3.LoadStatsRequest
	if err := proto.Unmarshal(at.recv(t), &sent); err != nil || sent.GetNode().GetId() != "n" {
		t.Errorf("%v, %v", &sent, err)
	}
	answer, err := proto.Marshal(&loadv3.LoadStatsResponse{Clusters: []string{"web"}})
	if err != nil {
		t.Fatal(err)
	}
	at.send(t, answer)
	if r, err := s.Recv(); err != nil || len(r.GetClusters()) != 1 {
		t.Errorf("%v, %v", r, err)
	}
	// A response beyond all measure ends this stream, and no other.
	big, err := proto.Marshal(&loadv3.LoadStatsResponse{Clusters: []string{strings.Repeat("x", maxLoadResponse)}})
	if err != nil {
		t.Fatal(err)
	}
	at.send(t, big)
	_, err = s.Recv()
	if reason, refused := tr.EndLoads(err); refused || !strings.Contains(reason, "larger than max") {
		t.Errorf("%q, %t", reason, refused)
	}
	at.end <- nil
	discovery.end <- status.Error(codes.Unavailable, "so far")
	if _, err := ads.Recv(); err == nil || !strings.Contains(err.Error(), "so far") {
		t.Errorf("the other stream: %v", err)
	}
}

// Refusals are told from trouble, with the cause of a connection that can't be made.
func TestEndLoads(t *testing.T) {
	for code, want := range map[codes.Code]bool{
		codes.Unimplemented: true, codes.PermissionDenied: true, codes.Unauthenticated: true, codes.InvalidArgument: true,
		codes.Unavailable: false, codes.Internal: false, codes.ResourceExhausted: false,
	} {
		if reason, refused := new(Transport).EndLoads(status.Error(code, "words")); refused != want || !strings.HasPrefix(reason, "words (") {
			t.Errorf("%v: %q, %t", code, reason, refused)
		}
	}
	tr := newTransport(t, Server{URI: "127.0.0.1:1"})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := tr.OpenLoads(ctx)
	if reason, refused := tr.EndLoads(err); refused || reason != "connection refused" {
		t.Errorf("%q, %t", reason, refused)
	}
}
