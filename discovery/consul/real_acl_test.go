package consul_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"gatehouse.internal/discovery/consul"
	"gatehouse.internal/discovery/consul/consultest"
)

// minimalPolicy is all that an agent's token needs: the services and nodes to
// read, and the service that the agent registers for itself.
const minimalPolicy = `
service_prefix "" { policy = "read" }
node_prefix    "" { policy = "read" }
service "gatehouse" { policy = "write" }
`

// withoutNodes is a policy that is easily thought to do.
const withoutNodes = `service_prefix "" { policy = "read" }`

// token is an ACL token and its policy.
type token struct {
	t                          *testing.T
	s                          *consultest.Server
	acl                        *api.ACL
	secret, accessor, policyID string
}

// newToken makes a token that may do what the rules say.
func newToken(t *testing.T, s *consultest.Server, name, rules string) *token {
	t.Helper()
	acl := s.API(consultest.ManagementToken).ACL()
	p, _, err := acl.PolicyCreate(&api.ACLPolicy{Name: name, Rules: rules}, nil)
	if err != nil {
		t.Fatal(err)
	}
	tok, _, err := acl.TokenCreate(&api.ACLToken{Policies: []*api.ACLLink{{ID: p.ID}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &token{t, s, acl, tok.SecretID, tok.AccessorID, p.ID}
}

func (tok *token) delete() {
	tok.t.Helper()
	if _, err := tok.acl.TokenDelete(tok.accessor, nil); err != nil {
		tok.t.Fatal(err)
	}
}

// allow changes the rules, and returns when the server goes by them: when it shows
// the instances of web to the token, or hides them. A server was seen that went by the
// old ones for a minute, so that they are written again now and then.
func (tok *token) allow(name, rules string, visible bool) {
	tok.t.Helper()
	health := tok.s.API(tok.secret).Health()
	var written time.Time
	until(tok.t, fmt.Sprintf("Consul itself goes by the rules %q", rules), func() bool {
		if time.Since(written) > 10*time.Second {
			if !written.IsZero() {
				tok.t.Log("Consul goes by the old rules, and they are written again")
			}
			if _, _, err := tok.acl.PolicyUpdate(&api.ACLPolicy{ID: tok.policyID, Name: name, Rules: rules}, nil); err != nil {
				tok.t.Fatal(err)
			}
			written = time.Now()
		}
		entries, _, err := health.Service("web", "", false, nil)
		if err != nil {
			tok.t.Fatal(err)
		}
		return (len(entries) > 0) == visible
	})
}

func writeFile(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// C14: a token that may not read all that it takes, or none, gives no empty set,
// and the failure says what is missing.
func TestRealC14TokenLacksRights(t *testing.T) {
	t.Parallel()
	s := consultest.Start(t, consultest.Options{ACL: true})
	s.RegisterMany(instance(1), instance(2))
	for _, c := range []struct{ name, rules, want string }{
		{"none", "", "service:read and node:read"},
		{"no-nodes", withoutNodes, "service:read and node:read"},
		{"no-services", `node_prefix "" { policy = "read" }`, "service:read and node:read"},
		{"other-service", `service "db" { policy = "read" } node_prefix "" { policy = "read" }`, "service:read and node:read"},
	} {
		cfg := consul.Config{Address: s.Addr()}
		if c.rules != "" {
			cfg.Token = newToken(t, s, c.name, c.rules).secret
		}
		step(t, c.name)
		r := newReal(t, cfg)
		w := r.web()
		cached := r.watch(consul.Query{Service: "web", Cached: true})
		err := w.fail(c.want)
		if cfg.Token != "" && strings.Contains(err.Error(), cfg.Token) {
			t.Errorf("%s: the failure tells the token", c.name)
		}
		cached.fail(c.want)
		w.only() // no set at all
		cached.only()
	}
	l := newReal(t, consul.Config{Address: s.Addr()}).listeners()
	l.wait("unknown for lack of rights", func(text string) bool {
		return strings.Contains(text, "service:read") && strings.HasSuffix(text, " unknown")
	})
	w := newReal(t, consul.Config{Address: s.Addr(), Token: "c0175e57-0000-4000-8000-00000000ffff"}).web()
	w.fail("the token is refused", `403 "ACL not found"`)
	w.only()

	// Rights that go away and come back under a blocking query. Consul tells of
	// it when the wait ends, at the earliest.
	tok := newToken(t, s, "changing", minimalPolicy)
	cfg := consul.Config{Address: s.Addr(), Token: tok.secret, WaitTime: time.Second}
	ways := everyWay(t, cfg)
	for _, w := range ways {
		w.see("1 2")
	}
	tok.allow("changing", withoutNodes, false)
	for name, w := range ways {
		step(t, "rights are lost: "+name)
		w.fail("service:read and node:read")
		w.held("1 2")
	}
	s.RegisterMany(instance(3))
	tok.allow("changing", minimalPolicy, true)
	for name, w := range ways {
		step(t, "rights are back: "+name)
		w.fresh("1 2 3")
		w.only("1 2", "1 2 3")
	}
}

// C13, C16: a token that is deleted under a blocking query takes no endpoint
// with it, and another one in its file is used.
func TestRealC13TokenDeleted(t *testing.T) {
	t.Parallel()
	s := consultest.Start(t, consultest.Options{ACL: true})
	s.RegisterMany(instance(1), instance(2))
	file := filepath.Join(t.TempDir(), "token")
	first, second := newToken(t, s, "first", minimalPolicy), newToken(t, s, "second", minimalPolicy)
	writeFile(t, file, first.secret+"\n")
	cfg := consul.Config{Address: s.Addr(), TokenFile: file, WaitTime: 3 * time.Second}
	ways := everyWay(t, cfg)
	// Consul may answer with an empty list when the wait ends just as the token
	// goes, so some waits end often.
	cfg.WaitTime = time.Second
	hasty := newReal(t, cfg)
	for _, name := range strings.Fields("a b c d e f g h") {
		ways[name] = hasty.web()
	}
	for _, w := range ways {
		w.see("1 2")
	}
	first.delete()
	for name, w := range ways {
		if name == "cached" { // the agent's cache may outlive the token
			continue
		}
		step(t, "deleted: "+name)
		w.fail("the token is refused", "ACL not found")
		w.held("1 2")
	}
	writeFile(t, file, second.secret)
	s.RegisterMany(instance(3))
	for name, w := range ways {
		step(t, "another: "+name)
		w.fresh("1 2 3")
		w.only("1 2", "1 2 3")
	}
}

// While a token file is missing or empty nothing is asked without a token.
func TestRealTokenFileComesLater(t *testing.T) {
	t.Parallel()
	s := consultest.Start(t, consultest.Options{ACL: true})
	s.RegisterMany(instance(1))
	file := filepath.Join(t.TempDir(), "token")
	r := newReal(t, consul.Config{Address: s.Addr(), TokenFile: file})
	web := r.web()
	web.fail("no such file", "no request is made without a token")
	writeFile(t, file, "\n")
	web.fail("is empty", "no request is made without a token")
	if got := r.Stats().Requests; got != 0 {
		t.Errorf("got %d requests, want none without a token", got)
	}
	writeFile(t, file, newToken(t, s, "late", minimalPolicy).secret+"\n")
	web.fresh("1")
}

// The policy of the documentation does for everything there is.
func TestRealMinimalPolicy(t *testing.T) {
	t.Parallel()
	s := consultest.Start(t, consultest.Options{ACL: true})
	listening := instance(1)
	listening.Tags = []string{"gatehouse.listen=127.0.0.1:8080"}
	s.Register(listening)
	s.RegisterMany(instance(2))
	cfg := consul.Config{Address: s.Addr(), Token: newToken(t, s, "minimal", minimalPolicy).secret}
	for name, w := range everyWay(t, cfg) {
		step(t, name)
		w.see("1 2")
		w.neverFailed()
	}
	r := newReal(t, cfg)
	l := r.listeners()
	l.see("web=127.0.0.1:8080")
	reg := registration()
	r.register(reg)
	r.watch(consul.Query{Service: reg.Name}).seeOf(1)
	if got := r.Stats(); got.Failures != 0 {
		t.Errorf("got %+v, want no failures", got)
	}
}
