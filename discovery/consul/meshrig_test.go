package consul

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/consul/api"

	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/internal/tlsconf/tlstest"
)

// trustDomain is that of the scripted mesh.
const trustDomain = "11111111-2222-3333-4444-555555555555.consul"

// spiffe is the id of a service of the scripted mesh.
func spiffe(service string) string {
	return "spiffe://" + trustDomain + "/ns/default/dc/dc1/svc/" + service
}

// scriptedMesh is what a scripted agent says of the mesh. leaf and roots are replies
// of their own index, which blocking queries wait for.
type scriptedMesh struct {
	leaf, roots           any
	leafIndex, rootsIndex uint64
	// authorize answers; nil is a yes.
	authorize func(api.AgentAuthorizeParams) *reply
	slow      time.Duration // how long it takes
}

// meshAPI answers what is asked below /v1/agent/connect/.
func (s *scripted) meshAPI(ctx context.Context, c call) *reply {
	if c.path == "/v1/agent/connect/authorize" && c.method == http.MethodPost {
		s.mu.Lock()
		slow := s.mesh.slow
		s.mu.Unlock()
		<-time.After(slow)
		s.mu.Lock()
		defer s.mu.Unlock()
		var p api.AgentAuthorizeParams
		switch err := json.Unmarshal(c.body, &p); {
		case s.down:
			return &reply{err: refusedConnection}
		case err != nil:
			return answers(http.StatusBadRequest, "Request decode failed")
		case s.mesh.authorize != nil:
			return s.mesh.authorize(p)
		}
		return &reply{value: api.AgentAuthorize{Authorized: true, Reason: "allowed by the test"}}
	}
	wait, _ := time.ParseDuration(c.query.Get("wait"))
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for late := false; ; {
		s.mu.Lock()
		changed, value, index, down := s.changed, s.mesh.roots, s.mesh.rootsIndex, s.down
		if strings.HasPrefix(c.path, "/v1/agent/connect/ca/leaf/") {
			value, index = s.mesh.leaf, s.mesh.leafIndex
		}
		s.mu.Unlock()
		r, ready := value.(*reply)
		switch {
		case down:
			return &reply{err: refusedConnection}
		case ready:
			copied := *r
			return &copied
		case late || c.index() == "" || c.index() != headers(index).Get("X-Consul-Index"):
			return &reply{header: headers(index), value: value}
		}
		select {
		case <-changed:
		case <-timer.C:
			late = true
		case <-ctx.Done():
			return &reply{err: ctx.Err()}
		}
	}
}

// leafOf is the agent's answer about the leaf of a service.
func leafOf(p tlstest.Pair, service string) api.LeafCert {
	return api.LeafCert{
		SerialNumber: serial(p.Cert), CertPEM: string(p.CertPEM), PrivateKeyPEM: string(p.KeyPEM),
		Service: service, ServiceURI: spiffe(service), ValidAfter: p.Cert.NotBefore, ValidBefore: p.Cert.NotAfter,
	}
}

// rootsOf is its answer about roots.
func rootsOf(cas ...*tlstest.CA) api.CARootList {
	list := api.CARootList{TrustDomain: trustDomain}
	for k, ca := range cas {
		list.Roots = append(list.Roots, &api.CARoot{ID: string(rune('a' + k)), Name: "Consul CA Root Cert", RootCertPEM: string(ca.PEM), Active: k == 0})
	}
	return list
}

// meshRig is a rig whose agent knows a mesh, and the identity of service client.
type meshRig struct {
	*rig
	ca   *tlstest.CA
	mesh *Mesh
	id   *Identity
	end  context.CancelFunc
}

// newMeshRig returns one whose identity has learnt what there is, which edit may change
// before.
func newMeshRig(t *testing.T, edit func(*scriptedMesh)) *meshRig {
	t.Helper()
	m := &meshRig{rig: newRig(t, nil, nil), ca: tlstest.NewCA(t, "mesh")}
	m.s.mesh = scriptedMesh{leaf: leafOf(m.leaf("client", 72*time.Hour), "client"), roots: rootsOf(m.ca), leafIndex: 7, rootsIndex: 5}
	if edit != nil {
		edit(&m.s.mesh)
	}
	m.mesh = NewMesh(func(ctx context.Context, f func(context.Context, *Client) error) error { return f(ctx, m.c) }, m.logs.logger())
	m.id = m.mesh.Identity("client")
	var ctx context.Context
	ctx, m.end = context.WithCancel(m.ctx)
	t.Cleanup(m.end)
	m.wg.Go(func() { m.id.Run(ctx) })
	synctest.Wait()
	return m
}

// leaf issues the certificate of a service. Its key is never told.
func (m *meshRig) leaf(service string, life time.Duration) tlstest.Pair {
	m.t.Helper()
	p := m.ca.Issue(m.t, tlstest.Leaf{Names: []string{spiffe(service)}, NotAfter: time.Now().Add(life)})
	lines := strings.Split(string(p.KeyPEM), "\n")
	m.secret = append(m.secret, lines[1])
	return p
}

// rotate has the agent say something else of the mesh.
func (m *meshRig) rotate(edit func(*scriptedMesh)) {
	m.change(func(*catalog) {
		edit(&m.s.mesh)
		m.s.mesh.leafIndex++
		m.s.mesh.rootsIndex++
	})
}

// shake makes a handshake, and one byte pass, and returns how each side sees it.
func shake(client, server *tls.Config) (state tls.ConnectionState, clientErr, serverErr error) {
	a, b := net.Pipe()
	var wg sync.WaitGroup
	wg.Go(func() {
		conn := tls.Server(b, server)
		defer b.Close()
		if serverErr = conn.Handshake(); serverErr == nil {
			state = conn.ConnectionState()
			_, serverErr = conn.Write([]byte{1})
		}
	})
	conn := tls.Client(a, client)
	if clientErr = conn.Handshake(); clientErr == nil {
		_, clientErr = conn.Read(make([]byte, 1))
	}
	a.Close()
	wg.Wait()
	return state, tlsconf.Explain(clientErr), tlsconf.Explain(serverErr)
}

// serverOf is the TLS of a sidecar that shows that certificate, and takes any client.
func (m *meshRig) serverOf(p tlstest.Pair) *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{p.TLS(m.t)}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: m.ca.Pool()}
}

// contains checks an error; an empty text wants none.
func contains(t *testing.T, what string, err error, text string) {
	t.Helper()
	if (err == nil) != (text == "") || err != nil && !strings.Contains(err.Error(), text) {
		t.Errorf("%s: got %v, want %q", what, err, text)
	}
}
