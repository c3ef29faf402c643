package node

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/discovery/consul"
	"gatehouse.internal/forwarder"
	"gatehouse.internal/internal/tlsconf/tlstest"
	"gatehouse.internal/lbcore"
)

// meshAgent is a Consul agent that knows a mesh, and lets everybody in.
type meshAgent struct {
	t    *testing.T
	ca   *tlstest.CA
	away atomic.Bool // no certificates are to be had
}

const meshDomain = "11111111-2222-3333-4444-555555555555.consul"

// issue returns the certificate of a service.
func (a *meshAgent) issue(service string) tlstest.Pair {
	return a.ca.Issue(a.t, tlstest.Leaf{Names: []string{"spiffe://" + meshDomain + "/ns/default/dc/dc1/svc/" + service}})
}

func (a *meshAgent) RoundTrip(req *http.Request) (*http.Response, error) {
	service, isLeaf := strings.CutPrefix(req.URL.Path, "/v1/agent/connect/ca/leaf/")
	var v any = api.AgentAuthorize{Authorized: true}
	switch {
	case req.URL.Path == "/v1/agent/connect/authorize":
	case a.away.Load():
		return nil, errors.New("connection refused")
	case req.URL.Query().Get("index") != "": // nothing ever changes
		<-req.Context().Done()
		return nil, req.Context().Err()
	case isLeaf:
		p := a.issue(service)
		v = api.LeafCert{CertPEM: string(p.CertPEM), PrivateKeyPEM: string(p.KeyPEM)}
	default:
		v = api.CARootList{TrustDomain: meshDomain, Roots: []*api.CARoot{{RootCertPEM: string(a.ca.PEM)}}}
	}
	body, err := json.Marshal(v)
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"X-Consul-Index": {"7"}}, Body: io.NopCloser(bytes.NewReader(body)), Request: req}, err
}

// startMesh is start for a node in the mesh of an agent.
func startMesh(t *testing.T, change ...func(*Config)) (*rig, *meshAgent) {
	a := &meshAgent{t: t, ca: tlstest.NewCA(t, "mesh")}
	c, err := consul.New(consul.Config{Transport: a})
	if err != nil {
		t.Fatal(err)
	}
	mesh := consul.NewMesh(func(ctx context.Context, f func(context.Context, *consul.Client) error) error { return f(ctx, c) }, nil)
	return start(t, append(change, func(c *Config) { c.Mesh = mesh })...), a
}

// sidecarOf returns a listener that takes the connections of a service of the mesh.
func sidecarOf(name, service string) config.Listener {
	l := listenerOf(name, "local")
	l.Connect = config.DownstreamConnect{Enabled: true, Service: service}
	return l
}

// asClient makes the handshake of service client on a connection, and returns the
// backend that answers.
func (a *meshAgent) asClient(raw net.Conn) (from string, err error) {
	raw.SetDeadline(time.Now().Add(20 * time.Second))
	b := make([]byte, 64)
	n, err := tls.Client(raw, &tls.Config{Certificates: []tls.Certificate{a.issue("client").TLS(a.t)}, InsecureSkipVerify: true}).Read(b)
	return strings.TrimSuffix(string(b[:n]), "\n"), err
}

// A listener of the mesh keeps the agent from being ready until it has a certificate,
// and where it has its socket from elsewhere it accepts nobody before.
func TestMeshListenerWaits(t *testing.T) {
	r, a := startMesh(t, func(c *Config) {
		c.Ready = make(chan struct{})
		c.Socket = func(_ string, a lbcore.Addr) (net.Listener, error) {
			return forwarder.PlainListen(context.Background(), a)
		}
	})
	a.away.Store(true)
	one := listen(t, "one")
	r.apply(Spec{Clusters: []config.Cluster{clusterOf("local", static(one.Endpoint))}, Listeners: []config.Listener{sidecarOf("web", "web")}})
	early, err := net.Dial("tcp", r.listener("web").Address.Dial())
	if err != nil {
		t.Fatal(err)
	}
	defer early.Close()
	const why = `listener "web": service "web" has no certificate of the service mesh yet`
	within(t, "only the certificate is waited for, and it is said why", func() bool {
		lines := r.Waiting()
		return len(lines) == 1 && strings.HasPrefix(lines[0], why) && strings.Contains(lines[0], "connection refused")
	})
	if n := r.listener("web").Stats.Accepted; n != 0 {
		t.Errorf("%d connections were accepted", n)
	}
	a.away.Store(false)
	if from, err := a.asClient(early); err != nil || from != "one" {
		t.Errorf("who came early got to %q: %v", from, err)
	}
	if lines := r.Waiting(); len(lines) > 0 {
		t.Errorf("there is a certificate, and it waits: %q", lines)
	}
}

// A listener that takes the place of another of the same service has its certificate at
// once, also while no other is to be had.
func TestMeshListenerReplaced(t *testing.T) {
	r, a := startMesh(t)
	one := listen(t, "one")
	spec := Spec{Clusters: []config.Cluster{clusterOf("local", static(one.Endpoint))}, Listeners: []config.Listener{sidecarOf("web", "web")}}
	r.apply(spec)
	within(t, "it serves", func() bool { return len(r.Waiting()) == 0 })
	a.away.Store(true)
	for _, name := range []string{"other", "another"} {
		spec.Listeners = []config.Listener{sidecarOf(name, "web")}
		r.apply(spec)
		raw, err := net.Dial("tcp", r.listener(name).Address.Dial())
		if err != nil {
			t.Fatal(err)
		}
		if from, err := a.asClient(raw); err != nil || from != "one" {
			t.Errorf("listener %s led to %q: %v", name, from, err)
		}
		raw.Close()
		within(t, "the one before has ended", func() bool { return len(r.Status().Listeners) == 1 })
	}
}
