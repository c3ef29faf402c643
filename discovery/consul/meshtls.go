package consul

import (
	"cmp"
	"crypto/tls"
	"strings"
	"sync/atomic"

	"gatehouse.internal/internal/tlsconf"
)

// The names of what stands for files, in errors.
const (
	rootsName = "roots of the service mesh"
	leafName  = "leaf of the service mesh"
)

// MeshClient makes the TLS configurations of connections to services of the mesh.
// Identity.Client makes it. Its methods may be called from anywhere.
type MeshClient struct {
	id    *Identity
	peers []Query
	made  atomic.Pointer[madeClient]
}

// madeClient is what was made of material. It is never written.
type madeClient struct {
	of     *material
	client *tlsconf.Client
}

// Client returns what makes connections to the instances that queries with Connect
// ask for. The leaf is shown to them, and of theirs is wanted that the roots vouch
// for it, and that it has the SPIFFE id of one of the services: in the trust domain
// of the mesh, in the query's namespace and datacenter, or else the Client's and
// those of the identity. That is what Consul's own package connect wants, and the
// trust domain, which that one leaves to the roots.
func (i *Identity) Client(queries ...Query) *MeshClient { return &MeshClient{id: i, peers: queries} }

// Usable returns why Config would return an error, or nil.
func (c *MeshClient) Usable() error { return c.id.Usable() }

// Config returns the configuration for one connection, which must not be written to.
// The error is why nothing may be connected to: leaf or roots are not known, or have
// expired.
func (c *MeshClient) Config() (*tls.Config, error) {
	n := c.id.now.Load()
	if err := c.id.usable(n); err != nil {
		return nil, err
	}
	made := c.made.Load()
	if made == nil || !made.of.same(n) {
		client, err := c.make(n)
		if err != nil {
			return nil, err
		}
		made = &madeClient{n, client}
		c.made.Store(made)
	}
	return made.client.Config(""), nil
}

// same reports whether configurations of n and m are alike.
func (n *material) same(m *material) bool {
	return n.generation == m.generation && n.leaf == m.leaf && n.rootsPEM == m.rootsPEM
}

func (c *MeshClient) make(n *material) (*tlsconf.Client, error) {
	own, _ := parseID(n.id) // setLeaf has
	// No session is resumed: Consul's own proxy asks for intentions where a whole
	// handshake is made, and nowhere else.
	tc := tlsconf.ClientConfig{MaxSessions: -1, CAFile: rootsName, CA: n.rootsPEM, CertFile: leafName, Cert: n.certPEM, KeyFile: leafName, Key: n.keyPEM}
	var in Config
	if client := c.id.client.Load(); client != nil {
		in = client.cfg
	}
	for _, q := range c.peers {
		id := serviceID{
			partition:  cmp.Or(q.Partition, in.Partition, own.partition),
			namespace:  cmp.Or(q.Namespace, in.Namespace, own.namespace),
			datacenter: cmp.Or(q.Datacenter, in.Datacenter, own.datacenter), service: q.Service,
		}
		tc.SANs = append(tc.SANs, tlsconf.Matcher{Type: tlsconf.URI, Exact: id.url(n.trustDomain), IgnoreCase: true})
		if len(c.peers) == 1 { // as Envoys say whom they want, which a terminating gateway has to know
			tc.ServerName = sni(id, n.trustDomain)
		}
	}
	return tlsconf.NewClient(tc)
}

// sni returns the server name by which the mesh knows a service, or nothing if it
// can't be sent. Source: connect.ServiceSNI.
func sni(id serviceID, trustDomain string) string {
	name := strings.ToLower(strings.Join([]string{id.service, id.namespace, id.datacenter, "internal", trustDomain}, "."))
	if id.partition != "" && id.partition != "default" {
		name = strings.ToLower(strings.Join([]string{id.service, id.namespace, id.partition, id.datacenter, "internal-v1", trustDomain}, "."))
	}
	if len(name) > 253 {
		return ""
	}
	return name
}

// MeshServer ends the TLS of clients of the mesh. Identity.Server makes it. Its
// methods may be called from anywhere.
type MeshServer struct {
	id   *Identity
	made atomic.Pointer[madeServer]
}

// madeServer is what was made of material. It is never written.
type madeServer struct {
	of     *material
	server *tlsconf.Server
}

// Server returns what ends TLS for the service: clients have to show a certificate
// that the roots vouch for, with a SPIFFE id in the trust domain of the mesh.
// Authorize says which of them may connect.
func (i *Identity) Server() *MeshServer { return &MeshServer{id: i} }

// Config returns the configuration for one connection, which must not be written to
// or cloned. The error is why nobody may connect: leaf or roots are not known, or
// have expired.
func (s *MeshServer) Config() (*tls.Config, error) {
	n := s.id.now.Load()
	if err := s.id.usable(n); err != nil {
		return nil, err
	}
	made := s.made.Load()
	if made == nil || !made.of.same(n) {
		server, err := makeServer(n)
		if err != nil {
			return nil, err
		}
		made = &madeServer{n, server}
		s.made.Store(made)
	}
	return made.server.Config(), nil
}

func makeServer(n *material) (*tlsconf.Server, error) {
	mesh, err := tlsconf.SPIFFE("spiffe://" + n.trustDomain)
	if err != nil {
		return nil, err
	}
	return tlsconf.NewServer(tlsconf.ServerConfig{
		More:         []tlsconf.KeyPair{{CertFile: leafName, KeyFile: leafName, Cert: n.certPEM, Key: n.keyPEM}},
		ClientCAFile: rootsName, ClientCA: n.rootsPEM, RequireClientCert: true, SANs: []tlsconf.Matcher{mesh},
	})
}
