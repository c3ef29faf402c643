package consul

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/consul/api"

	"gatehouse.internal/internal/tlsconf/tlstest"
)

func golden[T any](t testing.TB, name string) (v T) {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name)
	if err == nil {
		err = json.Unmarshal(text, &v)
	}
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// What a real Consul 1.14.11 has said of a mesh that was thrown away after it: the key in
// connect_leaf.json is nobody's.
func TestMeshGolden(t *testing.T) {
	leaf, roots := golden[*api.LeafCert](t, "connect_leaf.json"), golden[*api.CARootList](t, "connect_roots.json")
	var n material
	if err := n.setLeaf("client", leaf); err != nil {
		t.Fatal(err)
	}
	if err := n.setRoots(roots); err != nil {
		t.Fatal(err)
	}
	if n.id.String() != leaf.ServiceURI || !n.leaf.NotAfter.Equal(leaf.ValidBefore) || serial(n.leaf) != leaf.SerialNumber || n.trustDomain != roots.TrustDomain || n.notAfter() != n.leaf.NotAfter {
		t.Errorf("%v, %v, %s, %s", n.id, n.leaf.NotAfter, serial(n.leaf), n.trustDomain)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(n.rootsPEM))
	if _, err := n.leaf.Verify(x509.VerifyOptions{Roots: pool, CurrentTime: leaf.ValidAfter.Add(time.Hour)}); err != nil {
		t.Error(err)
	}
	if id, ok := parseID(n.id); !ok || id != (serviceID{"", "default", "dc1", "client"}) || id.url(n.trustDomain) != leaf.ServiceURI {
		t.Errorf("%+v", id)
	}

	q := Query{Service: "web", Connect: true}
	var got []string
	d := q.decode(golden[[]*api.ServiceEntry](t, "health_connect.json"))
	for _, e := range d.endpoints {
		got = append(got, e.Addr.String())
	}
	if strings.Join(got, " ") != "127.0.0.2:8081 127.0.0.1:21000" || len(d.refused) > 0 {
		t.Errorf("endpoints %v, refused %v", got, d.refused)
	}
	if a := golden[api.AgentAuthorize](t, "connect_denied.json"); a.Authorized || !strings.HasPrefix(a.Reason, "Matched L4 intention") {
		t.Errorf("%+v", a)
	}
	if a := golden[api.AgentAuthorize](t, "connect_allowed.json"); !a.Authorized {
		t.Errorf("%+v", a)
	}
}

// What can't be used is refused as a whole, by a reason that quotes no key.
func TestMeshMaterial(t *testing.T) {
	good, other := golden[api.LeafCert](t, "connect_leaf.json"), tlstest.NewCA(t, "other").Issue(t, tlstest.Leaf{})
	edit := func(f func(*api.LeafCert)) *api.LeafCert { l := good; f(&l); return &l }
	for name, x := range map[string]struct {
		leaf    *api.LeafCert
		service string
		want    string
	}{
		"null":           {nil, "client", "null"},
		"empty":          {&api.LeafCert{}, "client", "no key"},
		"no key":         {edit(func(l *api.LeafCert) { l.PrivateKeyPEM = "" }), "client", "no key"},
		"no certificate": {edit(func(l *api.LeafCert) { l.CertPEM = "" }), "client", "can't be read"},
		"nonsense":       {edit(func(l *api.LeafCert) { l.PrivateKeyPEM = "secret" }), "client", "can't be read"},
		"another's key":  {edit(func(l *api.LeafCert) { l.PrivateKeyPEM = string(other.KeyPEM) }), "client", "do not belong together"},
		"no id":          {&api.LeafCert{CertPEM: string(other.CertPEM), PrivateKeyPEM: string(other.KeyPEM)}, "client", "not one SPIFFE id"},
		"of another":     {&good, "web", `not for service "web"`},
		"too large":      {edit(func(l *api.LeafCert) { l.CertPEM += strings.Repeat("\n", maxMaterial) }), "client", "larger than"},
	} {
		var n material
		err := n.setLeaf(x.service, x.leaf)
		contains(t, name, err, x.want)
		if n.certPEM != "" || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, %+v", name, err, n)
		}
	}
	ca := func(edit func(*api.CARootList)) *api.CARootList {
		l := golden[*api.CARootList](t, "connect_roots.json")
		edit(l)
		return l
	}
	for name, x := range map[string]struct {
		roots *api.CARootList
		want  string
	}{
		"null":           {nil, "null"},
		"empty":          {&api.CARootList{}, `"" is no trust domain`},
		"no roots":       {ca(func(l *api.CARootList) { l.Roots = nil }), "none in the answer"},
		"bad domain":     {ca(func(l *api.CARootList) { l.TrustDomain = "a/b" }), `"a/b" is no trust domain`},
		"a null root":    {ca(func(l *api.CARootList) { l.Roots = append(l.Roots, nil) }), "root 2 is null"},
		"no certificate": {ca(func(l *api.CARootList) { l.Roots[0].RootCertPEM = "x" }), "has no certificate"},
		"a bad one added": {ca(func(l *api.CARootList) {
			l.Roots[0].RootCertPEM += "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
		}), "is no certificate"},
		"too large": {ca(func(l *api.CARootList) { l.Roots[0].RootCertPEM += strings.Repeat("# \n", maxMaterial) }), "larger than"},
	} {
		var n material
		contains(t, name, n.setRoots(x.roots), x.want)
		if n.rootsPEM != "" {
			t.Errorf("%s: it is half in force", name)
		}
	}
}

// A sidecar must be the one of the service that was asked for, and of this mesh; the
// client shows who it is. Sessions are not resumed.
func TestMeshClient(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMeshRig(t, nil)
		client := m.id.Client(Query{Service: "web"})
		conf, err := client.Config()
		if err != nil {
			t.Fatal(err)
		}
		issue := func(id string) tlstest.Pair { return m.ca.Issue(t, tlstest.Leaf{Names: []string{id}}) }
		old := m.ca.Issue(t, tlstest.Leaf{Names: []string{spiffe("web")}, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour)})
		for name, x := range map[string]struct {
			pair tlstest.Pair
			want string
		}{
			"the service":          {issue(spiffe("web")), ""},
			"in capitals":          {issue(spiffe("WEB")), ""}, // as Consul's own package compares
			"another service":      {issue(spiffe("api")), "nothing of that is accepted"},
			"a longer name":        {issue(spiffe("web2")), "nothing of that is accepted"},
			"another trust domain": {issue("spiffe://other.consul/ns/default/dc/dc1/svc/web"), "nothing of that is accepted"},
			"another datacenter":   {issue("spiffe://" + trustDomain + "/ns/default/dc/dc2/svc/web"), "nothing of that is accepted"},
			"another namespace":    {issue("spiffe://" + trustDomain + "/ns/other/dc/dc1/svc/web"), "nothing of that is accepted"},
			"two ids":              {m.ca.Issue(t, tlstest.Leaf{Names: []string{spiffe("web"), spiffe("api")}}), "nothing of that is accepted"},
			"a host name":          {issue("web.internal"), "nothing of that is accepted"},
			"another authority":    {tlstest.NewCA(t, "other").Issue(t, tlstest.Leaf{Names: []string{spiffe("web")}}), "not among the trusted ones"},
			"expired":              {old, "expired at"},
		} {
			state, clientErr, _ := shake(conf, m.serverOf(x.pair))
			contains(t, name, clientErr, x.want)
			if x.want == "" && (state.PeerCertificates[0].URIs[0].String() != spiffe("client") || state.ServerName != "web.default.dc1.internal."+trustDomain) {
				t.Errorf("%s: the client is %v, and asks for %s", name, state.PeerCertificates[0].URIs, state.ServerName)
			}
		}
		server := m.serverOf(issue(spiffe("web")))
		for range 3 {
			if state, _, _ := shake(conf, server); state.DidResume {
				t.Error("a session was resumed: who is asked for intentions in whole handshakes only would not be asked")
			}
		}

		elsewhere, err := m.id.Client(Query{Service: "web", Datacenter: "dc2", Namespace: "team", Partition: "part"}, Query{Service: "api"}).Config()
		if err != nil {
			t.Fatal(err)
		}
		for id, want := range map[string]string{
			"spiffe://" + trustDomain + "/ap/part/ns/team/dc/dc2/svc/web": "", spiffe("api"): "", spiffe("web"): "nothing of that is accepted",
		} {
			_, clientErr, _ := shake(elsewhere, m.serverOf(issue(id)))
			contains(t, id, clientErr, want)
		}
	})
}

// A listener of the mesh lets those in who show a certificate of it, and nobody else.
func TestMeshServer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMeshRig(t, nil)
		server, err := m.id.Server().Config()
		if err != nil {
			t.Fatal(err)
		}
		shows := func(p tlstest.Pair) *tls.Config {
			c := p.TLS(t)
			return &tls.Config{InsecureSkipVerify: true, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &c, nil }}
		}
		issue := func(id string) tlstest.Pair { return m.ca.Issue(t, tlstest.Leaf{Names: []string{id}}) }
		for name, x := range map[string]struct {
			conf *tls.Config
			want string
		}{
			"of the mesh":          {shows(issue(spiffe("web"))), ""},
			"no certificate":       {&tls.Config{InsecureSkipVerify: true}, "has shown no certificate"},
			"another authority":    {shows(tlstest.NewCA(t, "other").Issue(t, tlstest.Leaf{Names: []string{spiffe("web")}})), "not among the trusted ones"},
			"another trust domain": {shows(issue("spiffe://other.consul/ns/default/dc/dc1/svc/web")), "nothing of that is accepted"},
			"no id":                {shows(issue("web.internal")), "nothing of that is accepted"},
			"expired": {shows(m.ca.Issue(t, tlstest.Leaf{
				Names: []string{spiffe("web")}, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour),
			})), "expired at"},
			"for servers": {shows(m.ca.Issue(t, tlstest.Leaf{Names: []string{spiffe("web")}, Usage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})), "not made for this side"},
		} {
			_, _, serverErr := shake(x.conf, server)
			contains(t, name, serverErr, x.want)
		}
	})
}

// Leaf and roots rotate when the agent has others. Whatever goes wrong, the last good
// ones stay until they expire; then, and before there are any, the error says why.
func TestMeshRotation(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMeshRig(t, func(s *scriptedMesh) { s.leaf = answers(http.StatusForbidden, "Permission denied") })
		client, server := m.id.Client(Query{Service: "web"}), m.id.Server()
		usable := func(what, want string) {
			t.Helper()
			_, err := client.Config()
			contains(t, what+", client", err, want)
			_, err = server.Config()
			contains(t, what+", server", err, want)
			contains(t, what, m.id.Usable(), want)
		}
		generation := func(what string, want uint64) {
			t.Helper()
			if st := m.id.Status(); st.Generation != want {
				t.Errorf("%s: generation %d, want %d: %+v", what, st.Generation, want, st)
			}
		}
		usable("no leaf", `has no certificate of the service mesh yet: consul at 127.0.0.1:8500: the token is refused: it needs service:write for "client"`)
		generation("no leaf", 0)

		first := m.leaf("client", 72*time.Hour)
		changed := m.id.Changed()
		m.rotate(func(s *scriptedMesh) { s.leaf = leafOf(first, "client") })
		m.pass(time.Minute)
		usable("first", "")
		generation("first", 1)
		select {
		case <-changed:
		default:
			t.Error("nobody is told")
		}
		if st := m.id.Status(); st.Err != nil || !st.NotAfter.Equal(first.Cert.NotAfter) || len(st.Certificates) != 1 || st.Certificates[0].Names[0] != spiffe("client") {
			t.Errorf("%+v", st)
		}

		// A leaf for an hour, which is renewed in time.
		m.rotate(func(s *scriptedMesh) { s.leaf = leafOf(m.leaf("client", time.Hour), "client") })
		m.pass(time.Second)
		generation("second", 2)
		last := m.leaf("client", time.Hour)
		m.rotate(func(s *scriptedMesh) { s.leaf = leafOf(last, "client") })
		m.pass(time.Second)
		generation("third", 3)
		before, err := client.Config()
		if err != nil {
			t.Fatal(err)
		}

		// Other roots: the old authority's sidecars are not accepted any more.
		sidecar := m.serverOf(m.leaf("web", time.Hour))
		_, clientErr, _ := shake(before, sidecar)
		contains(t, "before", clientErr, "")
		next := tlstest.NewCA(t, "next")
		m.rotate(func(s *scriptedMesh) { s.roots = rootsOf(next) })
		m.pass(time.Second)
		generation("other roots", 4)
		after, err := client.Config()
		if err != nil {
			t.Fatal(err)
		}
		_, clientErr, _ = shake(after, sidecar)
		contains(t, "after", clientErr, "not among the trusted ones")
		m.rotate(func(s *scriptedMesh) { s.roots = rootsOf(next, m.ca) })
		m.pass(time.Second)
		generation("both roots", 5)

		// What can't be used changes nothing.
		for _, bad := range []any{nil, api.LeafCert{}, leafOf(m.leaf("web", time.Hour), "web"), "x", answers(http.StatusInternalServerError, "No cluster leader")} {
			m.rotate(func(s *scriptedMesh) { s.leaf, s.roots = bad, bad })
			m.pass(time.Minute)
			usable("bad", "")
			generation("bad", 5)
			if m.id.Status().Err == nil {
				t.Errorf("%v: no error is shown", bad)
			}
		}

		// The agent is away, and the leaf expires.
		m.set(func(s *scripted) { s.down = true })
		m.change(func(*catalog) {})
		m.pass(30 * time.Minute)
		usable("away", "")
		m.pass(time.Hour)
		usable("expired", "expired at 2000-01-01T01:01:01Z: consul at 127.0.0.1:8500: ")
		usable("expired", "connection refused")

		m.set(func(s *scripted) { s.down = false })
		m.rotate(func(s *scriptedMesh) { s.leaf, s.roots = leafOf(m.leaf("client", time.Hour), "client"), rootsOf(m.ca) })
		m.pass(time.Minute)
		usable("back", "")
		if n := m.logs.count("service mesh certificates can't be renewed"); n < 2 || n > 20 {
			t.Errorf("%d lines say that there is trouble", n)
		}

		// Some time after its last user all is forgotten.
		m.end()
		synctest.Wait()
		usable("kept for a moment", "")
		if st := m.mesh.Stats(); st.Identities != 0 {
			t.Errorf("%+v", st)
		}
		m.pass(linger)
		usable("forgotten", "has no certificate of the service mesh yet")
		if m.mesh.Identity("client") == m.id {
			t.Error("it is still known")
		}
	})
}

// Several who speak for a service share what asks; the next goes on when one ends, and
// with another token, or another client, all is asked anew.
func TestMeshShared(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMeshRig(t, nil)
		ctx, cancel := newContext(t)
		m.wg.Go(func() { m.id.Run(ctx) })
		synctest.Wait()
		const path = "/v1/agent/connect/ca/leaf/client"
		if n := len(m.asked(path)); n != 2 { // one answer, one wait
			t.Errorf("%d requests for the leaf", n)
		}
		m.end()
		m.pass(10 * time.Second)
		if err := m.id.Usable(); err != nil {
			t.Errorf("the other one has nothing: %v", err)
		}
		m.rotate(func(s *scriptedMesh) { s.leaf = leafOf(m.leaf("client", time.Hour), "client") })
		m.pass(5 * time.Second)
		if st := m.id.Status(); st.Generation != 2 {
			t.Errorf("%+v", st)
		}
		from := m.s.count()
		if err := m.c.SetAccess(Config{Token: "another"}); err != nil {
			t.Fatal(err)
		}
		m.pass(5 * time.Second)
		asked := m.s.since(from, path)
		if len(asked) == 0 || asked[0].token != "another" || asked[0].index() != "" {
			t.Errorf("after another token: %v", asked)
		}
		cancel()
		synctest.Wait()
	})
}

// Who takes the place of the last one has what that one knew, also while the agent is
// away, and what was to be forgotten then is not.
func TestMeshHandedOn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMeshRig(t, nil)
		m.set(func(s *scripted) { s.down = true })
		m.end()
		m.pass(linger / 2)
		for range 3 {
			if m.mesh.Identity("client") != m.id {
				t.Fatal("another identity has the name")
			}
			ctx, cancel := newContext(t)
			m.wg.Go(func() { m.id.Run(ctx) })
			m.pass(2 * linger)
			contains(t, "with the next one", m.id.Usable(), "")
			if err := m.id.Waiting(); err != nil {
				t.Error(err)
			}
			cancel()
			m.pass(linger - time.Second)
			contains(t, "after it", m.id.Usable(), "")
		}
		m.pass(time.Second)
		contains(t, "forgotten", m.id.Usable(), "has no certificate of the service mesh yet")
		contains(t, "forgotten", m.id.Waiting(), "has no certificate of the service mesh yet")
	})
}

// A leaf that is not valid yet, as by a clock that is ahead, replaces none, and is taken
// once it is.
func TestMeshNotYetValid(t *testing.T) {
	bubble(t, func(t *testing.T) {
		early := func(m *meshRig) api.LeafCert {
			return leafOf(m.ca.Issue(t, tlstest.Leaf{
				Names: []string{spiffe("client")}, NotBefore: time.Now().Add(5 * time.Minute), NotAfter: time.Now().Add(time.Hour),
			}), "client")
		}
		m := newMeshRig(t, func(s *scriptedMesh) { s.leaf = answers(http.StatusForbidden, "Permission denied") })
		const why = "not valid before 2000-01-01T00:05:00Z; check the clocks"
		m.rotate(func(s *scriptedMesh) { s.leaf = early(m) })
		m.pass(time.Minute)
		client, server := m.id.Client(Query{Service: "web"}), m.id.Server()
		usable := func(what, want string) {
			t.Helper()
			_, err := client.Config()
			contains(t, what+", client", err, want)
			_, err = server.Config()
			contains(t, what+", server", err, want)
		}
		usable("at first", why)
		m.pass(5 * time.Minute)
		usable("later", "")

		m.rotate(func(s *scriptedMesh) { s.leaf = early(m) })
		for _, generation := range []uint64{1, 2} {
			m.pass(time.Minute)
			usable("another one", "")
			if st := m.id.Status(); st.Generation != generation || (st.Err != nil) != (generation == 1) {
				t.Errorf("%+v, want generation %d", st, generation)
			}
			m.pass(5 * time.Minute)
		}
	})
}

// A source with Connect asks for sidecars, and leaves out who is none of the service's.
func TestMeshQuery(t *testing.T) {
	entries := golden[[]*api.ServiceEntry](t, "health_connect.json")
	gateway, stranger, plain, bare := *entries[1].Service, *entries[1].Service, *entries[0].Service, *entries[1].Service
	gateway.Kind, gateway.ID = api.ServiceKindTerminatingGateway, "gateway"
	stranger.Proxy, stranger.ID = &api.AgentServiceConnectProxyConfig{DestinationServiceName: "api"}, "stranger"
	plain.Connect, plain.ID = nil, "plain"
	bare.Proxy, bare.ID = nil, "bare"
	entries[1].Service.Proxy.DestinationServiceName = "Web" // Consul has no regard for case
	for _, s := range []*api.AgentService{&gateway, &stranger, &plain, &bare} {
		entries = append(entries, &api.ServiceEntry{Node: entries[0].Node, Service: s})
	}
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil, func(c *Config) { c.MaxWatches = 1 })
		r.s.hook = func(c call) *reply {
			if c.path == "/v1/health/connect/web" {
				if c.index() != "" {
					return &reply{hang: true}
				}
				return &reply{header: headers(3), value: entries}
			}
			return nil
		}
		j := r.watch(Query{Service: "web", Connect: true})
		r.watch(Query{Service: "a"})
		r.watch(Query{Service: "b"}) // so that the others share queries
		r.pass(5 * time.Second)
		var got []string
		set := j.latest.State().Set
		for _, e := range set.All() {
			got = append(got, e.Addr.String())
		}
		if strings.Join(got, " ") != "127.0.0.1:21000 127.0.0.2:8081" {
			t.Errorf("endpoints %v:\n%s", got, j)
		}
		for _, text := range []string{"terminating-gateway", "sidecar proxy of another service", "neither a sidecar proxy nor native"} {
			if r.logs.count(text) == 0 {
				t.Errorf("the log has no %q:\n%s", text, r.logs)
			}
		}
		if n := len(r.asked("/v1/health/connect/web")); n < 2 {
			t.Errorf("%d requests: it does not wait by itself", n)
		}
	})
	for field, q := range map[string]Query{
		"prepared_query": {PreparedQuery: "x"}, "peer": {Service: "web", Peer: "x"}, "sameness_group": {Service: "web", SamenessGroup: "x"}, "port_name": {Service: "web", PortName: "x"},
	} {
		q.Connect = true
		if err := q.Validate(); err == nil || !strings.HasPrefix(err.Error(), field+": ") {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// FuzzMesh hands answers about the mesh, as they come from the wire, to who asks. None
// panics, a bad one leaves the last good one in force, and no error quotes a key.
func FuzzMesh(f *testing.F) {
	for _, name := range []string{"connect_leaf.json", "connect_roots.json", "connect_allowed.json", "connect_denied.json"} {
		text, err := os.ReadFile("testdata/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
		f.Add(text[:len(text)/2])
		f.Add(bytes.ReplaceAll(text, []byte("BEGIN"), []byte("BEGI")))
	}
	for _, text := range []string{"null", "{}", "[]", `{"Roots":[null]}`, `{"CertPEM":"x","PrivateKeyPEM":"y"}`, `{"Authorized":"yes"}`, `{"Authorized":true}`, "<html>"} {
		f.Add([]byte(text))
	}
	leaf, roots := golden[*api.LeafCert](f, "connect_leaf.json"), golden[*api.CARootList](f, "connect_roots.json")
	secret := strings.Split(leaf.PrivateKeyPEM, "\n")[1]
	f.Fuzz(func(t *testing.T, body []byte) {
		id := NewMesh(nil, nil).Identity("client")
		take := func(l *api.LeafCert, r *api.CARootList) []error {
			return []error{
				id.take(func(n *material) error { return n.setLeaf("client", l) }, func(n *material) *error { return &n.leafErr }),
				id.take(func(n *material) error { return n.setRoots(r) }, func(n *material) *error { return &n.rootsErr }),
			}
		}
		for _, err := range take(leaf, roots) {
			if err != nil {
				t.Fatal(err)
			}
		}
		var l *api.LeafCert
		var r *api.CARootList
		var errs []error
		if json.Unmarshal(body, &l) == nil && json.Unmarshal(body, &r) == nil {
			errs = take(l, r)
		}
		for _, err := range errs {
			if err != nil && (strings.Contains(err.Error(), secret) || len(err.Error()) > 1000) {
				t.Errorf("the error is %v", err)
			}
		}
		n := id.now.Load()
		if n.leaf == nil || n.rootsPEM == "" || n.trustDomain == "" || n.generation < 1 {
			t.Errorf("what was good is gone: %+v", n)
		}
		s := newScripted()
		s.hook = func(call) *reply { return &reply{body: bytes.NewReader(body)} }
		c, err := New(Config{Transport: s})
		if err != nil {
			t.Fatal(err)
		}
		id.client.Store(c)
		p := &api.AgentAuthorizeParams{Target: "client", ClientCertURI: spiffe("web")}
		var yes struct{ Authorized any }
		allowed := json.Unmarshal(body, &yes) == nil && yes.Authorized == true
		if err := id.authorized(t.Context(), p); err == nil && !allowed {
			t.Errorf("%q lets somebody in", body)
		}
	})
}
