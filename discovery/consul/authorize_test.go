package consul

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/consul/api"

	"gatehouse.internal/internal/tlsconf/tlstest"
)

const authorizePath = "/v1/agent/connect/authorize"

// connected is a connection with a client that has shown a certificate.
func (m *meshRig) connected(service string) *tls.ConnectionState {
	m.t.Helper()
	return &tls.ConnectionState{PeerCertificates: []*x509.Certificate{m.leaf(service, time.Hour).Cert}}
}

// What the agent says is what counts, for three seconds; anything but its yes is a no,
// with the reason.
func TestAuthorize(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMeshRig(t, nil)
		server := m.id.Server()
		web := m.connected("web")
		if err := server.Authorize(t.Context(), web); err != nil {
			t.Fatal(err)
		}
		asked := m.s.since(0, authorizePath)
		want := fmt.Sprintf(`{"Target":"client","ClientCertURI":%q,"ClientCertSerial":%q}`, spiffe("web"), serial(web.PeerCertificates[0]))
		if len(asked) != 1 || string(asked[0].body) != want || asked[0].method != http.MethodPost || asked[0].token != secretToken || !strings.HasPrefix(asked[0].auth, "Basic ") {
			t.Errorf("asked %v: %s, want %s", asked, asked[0].body, want)
		}

		m.set(func(s *scripted) {
			s.mesh.authorize = func(api.AgentAuthorizeParams) *reply {
				return &reply{value: api.AgentAuthorize{Reason: "Matched L4 intention: default/web => default/client\n" + strings.Repeat("x", 5000)}}
			}
		})
		if err := server.Authorize(t.Context(), web); err != nil {
			t.Errorf("the answer was forgotten: %v", err)
		}
		m.pass(decisionLife + time.Millisecond)
		err := server.Authorize(t.Context(), web)
		contains(t, "denied", err, "intentions do not let "+spiffe("web")+` connect to "client": Matched L4 intention: default/web => default/client x`)
		if _, ok := errors.AsType[*DeniedError](err); !ok || len(err.Error()) > 600 {
			t.Errorf("%T of %d bytes", err, len(err.Error()))
		}
		if n := len(m.asked(authorizePath)); n != 2 {
			t.Errorf("%d questions", n)
		}

		for name, x := range map[string]struct {
			answer *reply
			want   string
		}{
			"no leader":    {answers(http.StatusInternalServerError, "No cluster leader"), "No cluster leader"},
			"no rights":    {answers(http.StatusForbidden, "Permission denied"), `the token is refused: it needs service:write for "client"`},
			"bad request":  {answers(http.StatusBadRequest, "ClientCertURI not a valid Connect identifier"), "not a valid Connect identifier"},
			"elsewhere":    {answers(http.StatusFound, ""), "redirects elsewhere"},
			"null":         {answers(http.StatusOK, "null"), "the answer is null"},
			"nonsense":     {answers(http.StatusOK, "<html>"), "invalid character"},
			"half":         {answers(http.StatusOK, `{"Authorized":tr`), "invalid character"},
			"another type": {answers(http.StatusOK, `{"Authorized":"true"}`), "cannot unmarshal"},
			"empty":        {answers(http.StatusOK, "{}"), "intentions do not let"},
			"no agent":     {&reply{err: refusedConnection}, "connection refused"},
			"silence":      {&reply{hang: true}, "no answer within 5s"},
		} {
			m.set(func(s *scripted) {
				s.mesh.authorize = func(api.AgentAuthorizeParams) *reply { r := *x.answer; return &r }
			})
			m.pass(decisionLife + time.Millisecond)
			begin := time.Now()
			err := server.Authorize(t.Context(), web)
			m.told(err)
			contains(t, name, err, x.want)
			if took := time.Since(begin); took > authorizeTimeout {
				t.Errorf("%s took %v", name, took)
			}
			if _, denied := errors.AsType[*DeniedError](err); denied != (name == "empty") {
				t.Errorf("%s: %T", name, err)
			}
		}

		// Who has no id of a service is not asked for.
		before := len(m.asked(authorizePath))
		for name, cs := range map[string]*tls.ConnectionState{
			"no certificate": {},
			"no id":          {PeerCertificates: []*x509.Certificate{m.ca.Issue(t, tlstest.Leaf{}).Cert}},
			"an agent":       {PeerCertificates: []*x509.Certificate{m.ca.Issue(t, tlstest.Leaf{Names: []string{"spiffe://" + trustDomain + "/agent/client/dc/dc1/id/x"}}).Cert}},
			"two ids":        {PeerCertificates: []*x509.Certificate{m.ca.Issue(t, tlstest.Leaf{Names: []string{spiffe("a"), spiffe("b")}}).Cert}},
		} {
			contains(t, name, server.Authorize(t.Context(), cs), "intentions do not let")
		}
		if n := len(m.asked(authorizePath)) - before; n != 0 {
			t.Errorf("%d questions about nobody", n)
		}
		if st := m.mesh.Stats(); st.Allowed != 2 || st.Denied != 6 || st.Failed != 10 || st.Identities != 1 {
			t.Errorf("%+v", st)
		}
	})
}

// Many at once with the same certificate ask once; those whose connection ends don't
// wait; an agent that is away is not asked by each; what is kept is bounded.
func TestAuthorizeMany(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMeshRig(t, nil)
		server, web := m.id.Server(), m.connected("web")
		var answer atomic.Pointer[reply]
		answer.Store(&reply{hang: true})
		m.set(func(s *scripted) {
			s.mesh.authorize = func(api.AgentAuthorizeParams) *reply { r := *answer.Load(); return &r }
		})
		var wg sync.WaitGroup
		var failed atomic.Int64
		many := func(n int, of func(int) *tls.ConnectionState) {
			for k := range n {
				cs := of(k)
				wg.Go(func() {
					if errorIs[*UnknownError](server.Authorize(t.Context(), cs)) {
						failed.Add(1)
					}
				})
			}
			synctest.Wait()
		}
		same := func(int) *tls.ConnectionState { return web }
		many(100, same)
		impatient, cancel := context.WithCancel(t.Context())
		wg.Go(func() { contains(t, "its connection has ended", server.Authorize(impatient, web), "context canceled") })
		synctest.Wait()
		cancel()
		synctest.Wait()
		if n := len(m.asked(authorizePath)); n != 1 {
			t.Errorf("%d questions for 100 connections", n)
		}
		wg.Wait()
		if failed.Load() != 100 || m.now() > authorizeTimeout {
			t.Errorf("%d of 100 were refused, after %v", failed.Load(), m.now())
		}
		many(100, same)
		wg.Wait()
		if n := len(m.asked(authorizePath)); n != 1 {
			t.Errorf("%d questions right after there was no answer", n)
		}

		// With other certificates: eight at once, and the others wait, but not for long.
		other := m.connected("web").PeerCertificates[0]
		clients := func(k int) *tls.ConnectionState {
			c := *other
			u, err := url.Parse(spiffe(fmt.Sprint("c", k)))
			if err != nil {
				t.Error(err)
			}
			c.URIs = []*url.URL{u}
			return &tls.ConnectionState{PeerCertificates: []*x509.Certificate{&c}}
		}
		before := len(m.asked(authorizePath))
		many(50, clients)
		if n := len(m.asked(authorizePath)) - before; n != maxAuthorizations {
			t.Errorf("%d questions at once", n)
		}
		begin := time.Now()
		wg.Wait()
		if took := time.Since(begin); took > authorizeTimeout {
			t.Errorf("some waited for %v", took)
		}
		answer.Store(&reply{value: api.AgentAuthorize{Authorized: true}})
		m.pass(time.Minute)
		many(3*maxDecisions, clients)
		wg.Wait()
		if n := len(m.id.decided.all); n > maxDecisions {
			t.Errorf("%d answers are kept", n)
		}
		m.pass(time.Minute)
		many(10, func(k int) *tls.ConnectionState { return clients(5*maxDecisions + k) })
		wg.Wait()
		if n := len(m.id.decided.all); n != 10 {
			t.Errorf("%d answers are kept after the others are of no use", n)
		}
	})
}

// A question that hangs ends with the last connection that waits for its answer, as at the
// end of a drain, and who comes then asks anew.
func TestAuthorizeEndsWithWhoWaits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMeshRig(t, nil)
		server, web := m.id.Server(), m.connected("web")
		m.set(func(s *scripted) {
			s.mesh.authorize = func(api.AgentAuthorizeParams) *reply { return &reply{hang: true} }
		})
		began := m.now()
		var ended atomic.Int64
		var wg sync.WaitGroup
		var cancels []context.CancelFunc
		for range 3 {
			ctx, cancel := context.WithCancel(t.Context())
			cancels = append(cancels, cancel)
			wg.Go(func() {
				contains(t, "its connection has ended", server.Authorize(ctx, web), "context canceled")
				ended.Add(1)
			})
			synctest.Wait()
		}
		for i, cancel := range cancels {
			cancel()
			synctest.Wait()
			// The first one asks, for the others too.
			if want := []int64{0, 1, 3}[i]; ended.Load() != want {
				t.Errorf("%d have ended after %d were to, want %d", ended.Load(), i+1, want)
			}
		}
		wg.Wait()
		if took := m.now() - began; took != 0 {
			t.Errorf("it took %v", took)
		}
		m.set(func(s *scripted) { s.mesh.authorize = nil })
		if err := server.Authorize(t.Context(), web); err != nil {
			t.Error(err)
		}
		if n := len(m.asked(authorizePath)); n != 2 {
			t.Errorf("%d questions, want 2", n)
		}
	})
}

// An answer counts from when it was asked for: one that came late tells of intentions as
// they were then.
func TestAuthorizeLateAnswer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMeshRig(t, nil)
		server, web := m.id.Server(), m.connected("web")
		m.set(func(s *scripted) { s.mesh.slow = 2 * time.Second })
		for want := 1; want <= 2; want++ {
			if err := server.Authorize(t.Context(), web); err != nil {
				t.Fatal(err)
			}
			m.pass(decisionLife - 2*time.Second)
			if err := server.Authorize(t.Context(), web); err != nil {
				t.Fatal(err)
			}
			if n := len(m.asked(authorizePath)); n != want {
				t.Errorf("%d questions, want %d", n, want)
			}
			m.pass(time.Millisecond)
		}
	})
}
