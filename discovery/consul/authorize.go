package consul

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/consul/api"
)

const (
	// authorizeTimeout bounds a question, after which the answer is no.
	authorizeTimeout = 5 * time.Second
	// decisionLife is how long an answer counts, and failureLife how long it does that
	// there was none. Consul's agent has intentions in memory and is told of changes.
	decisionLife, failureLife = 3 * time.Second, time.Second
	// maxDecisions is how many answers are kept for an identity.
	maxDecisions = 1024
	// maxAuthorizations is how many questions an identity asks at once. Others wait.
	maxAuthorizations = 8
	// maxReason bounds, in bytes, what Consul says of an answer.
	maxReason = 512
)

// authorizations count what was asked.
type authorizations struct{ allowed, denied, failed atomic.Uint64 }

// MeshStats is what a Mesh has done and knows.
type MeshStats struct {
	// Allowed, Denied and Failed count the connections of clients of the mesh by what
	// Consul's intentions say of them; Failed are those that were refused because it
	// did not say.
	Allowed, Denied, Failed uint64
	// Identities are the services that this process speaks for now: those that Run.
	Identities int
}

// Stats returns the present figures.
func (m *Mesh) Stats() MeshStats {
	m.mu.Lock()
	defer m.mu.Unlock()
	st := MeshStats{Allowed: m.allowed.Load(), Denied: m.denied.Load(), Failed: m.failed.Load()}
	for _, i := range m.all {
		if i.refs > 0 {
			st.Identities++
		}
	}
	return st
}

// DeniedError says that intentions do not let a client connect.
type DeniedError struct{ Client, Service, Reason string }

func (e *DeniedError) Error() string {
	return fmt.Sprintf("intentions do not let %s connect to %q: %s", e.Client, e.Service, e.Reason)
}

// UnknownError says that it can't be known whether intentions let a client connect,
// which therefore may not.
type UnknownError struct {
	Client, Service string
	Err             error
}

func (e *UnknownError) Error() string {
	return fmt.Sprintf("it can't be known whether intentions let %s connect to %q: %v", e.Client, e.Service, e.Err)
}
func (e *UnknownError) Unwrap() error { return e.Err }

// Authorize asks Consul's agent if the client of a connection, which the
// configuration of Config has verified, may connect: nil means yes. Else it is a
// *DeniedError or an *UnknownError: without an answer within 5 s the client may not.
// An answer counts until 3 s after the question, for all connections with that
// certificate. ctx ends the wait, and the question where nobody else waits for its answer.
func (s *MeshServer) Authorize(ctx context.Context, cs *tls.ConnectionState) error {
	err := s.authorize(ctx, cs)
	switch m := s.id.mesh; {
	case err == nil:
		m.allowed.Add(1)
	case errorIs[*DeniedError](err):
		m.denied.Add(1)
	default:
		m.failed.Add(1)
	}
	return err
}

func errorIs[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

func (s *MeshServer) authorize(ctx context.Context, cs *tls.ConnectionState) error {
	if len(cs.PeerCertificates) == 0 || len(cs.PeerCertificates[0].URIs) != 1 {
		return &DeniedError{"a client without a SPIFFE id", s.id.service, "nobody is named by its certificate"}
	}
	cert := cs.PeerCertificates[0]
	who := cert.URIs[0].String()
	if _, ok := parseID(cert.URIs[0]); !ok {
		return &DeniedError{quote(who), s.id.service, "its certificate is not that of a service"}
	}
	return s.id.decide(ctx, &api.AgentAuthorizeParams{Target: s.id.service, ClientCertURI: who, ClientCertSerial: serial(cert)})
}

// decisions are the answers of late. The zero value has none.
type decisions struct {
	mu  sync.Mutex // held for a few assignments only
	all map[api.AgentAuthorizeParams]*decision
}

// decision is one answer. err and until are written before done is closed.
type decision struct {
	done    chan struct{}
	err     error
	until   time.Time
	waiting int                // for the answer; decisions.mu
	stop    context.CancelFunc // ends the question
}

// over reports whether d counts no more.
func (d *decision) over(now time.Time) bool {
	select {
	case <-d.done:
		return now.After(d.until)
	default:
		return false
	}
}

// forget drops all answers.
func (ds *decisions) forget() {
	ds.mu.Lock()
	ds.all = nil
	ds.mu.Unlock()
}

// find returns the answer that counts. Where asking is not nil the caller has to give it,
// within that: the question is not bound by ctx, since others may wait for it.
func (ds *decisions) find(ctx context.Context, p *api.AgentAuthorizeParams) (d *decision, asking context.Context) {
	now := time.Now()
	ds.mu.Lock()
	defer ds.mu.Unlock()
	if d = ds.all[*p]; d != nil && !d.over(now) {
		d.waiting++
		return d, nil
	}
	if ds.all == nil {
		ds.all = make(map[api.AgentAuthorizeParams]*decision)
	}
	if len(ds.all) >= maxDecisions {
		for key, old := range ds.all {
			if old.over(now) {
				delete(ds.all, key)
			}
		}
	}
	d = &decision{done: make(chan struct{}), waiting: 1}
	asking, d.stop = context.WithTimeout(context.WithoutCancel(ctx), authorizeTimeout)
	if len(ds.all) < maxDecisions { // else it is not kept
		ds.all[*p] = d
	}
	return d, asking
}

// leave says that somebody waits for d no longer. Without anybody the question ends, and
// who comes then asks anew.
func (ds *decisions) leave(p *api.AgentAuthorizeParams, d *decision) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	if d.waiting--; d.waiting > 0 {
		return
	}
	if ds.all[*p] == d {
		delete(ds.all, *p)
	}
	d.stop()
}

// decide returns nil if the client may connect. Of several that ask the same at once
// one asks Consul.
func (i *Identity) decide(ctx context.Context, p *api.AgentAuthorizeParams) error {
	d, asking := i.decided.find(ctx, p)
	if asking != nil {
		defer d.stop()
		defer context.AfterFunc(ctx, func() { i.decided.leave(p, d) })()
		// Whatever becomes of the question, who waits for it must not wait for ever.
		d.err = &UnknownError{p.ClientCertURI, p.Target, errors.New("the question ended without an answer")}
		defer close(d.done)
		asked := time.Now() // an answer that comes late is old already
		d.err = i.authorized(asking, p)
		d.until = asked.Add(decisionLife)
		switch {
		case errors.Is(asking.Err(), context.Canceled): // nobody waits any more
			d.err = &UnknownError{p.ClientCertURI, p.Target, ctx.Err()}
		case errorIs[*UnknownError](d.err):
			d.until = time.Now().Add(failureLife)
		}
		return d.err
	}
	select {
	case <-d.done:
		return d.err
	case <-ctx.Done():
		i.decided.leave(p, d)
		return &UnknownError{p.ClientCertURI, p.Target, ctx.Err()}
	}
}

// authorized asks Consul.
func (i *Identity) authorized(ctx context.Context, p *api.AgentAuthorizeParams) error {
	unknown := func(err error) error { return &UnknownError{p.ClientCertURI, p.Target, err} }
	c := i.client.Load()
	if c == nil {
		return unknown(errors.New("no Consul agent is asked"))
	}
	select {
	case c.authorizing <- struct{}{}:
		defer func() { <-c.authorizing }()
	case <-ctx.Done():
		return unknown(c.fail(fmt.Errorf("no answer within %v: too many are waiting", authorizeTimeout)))
	}
	var out *api.AgentAuthorize
	_, err := c.ask(ctx, authorizeTimeout, api.QueryOptions{}, func(opts *api.QueryOptions) (*api.QueryMeta, error) {
		return nil, c.post(opts.Context(), "/v1/agent/connect/authorize", opts.Token, p, &out)
	})
	switch {
	case ctx.Err() != nil && err != nil:
		return unknown(c.fail(fmt.Errorf("no answer within %v", authorizeTimeout)))
	case refused(err):
		return unknown(c.fail(fmt.Errorf("the token is refused: it needs service:write for %q", p.Target)))
	case err != nil:
		return unknown(err)
	case out == nil:
		return unknown(c.fail(errors.New("the answer is null")))
	case !out.Authorized:
		return &DeniedError{p.ClientCertURI, p.Target, short(out.Reason[:min(len(out.Reason), maxReason)])}
	}
	return nil
}

// post sends in and reads out, as package api does where it takes a context.
func (c *Client) post(ctx context.Context, path, token string, in, out any) error {
	text, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	where := req.URL.Query()
	for name, value := range map[string]string{"ns": c.cfg.Namespace, "partition": c.cfg.Partition} {
		if value != "" {
			where.Set(name, value)
		}
	}
	req.URL.RawQuery = where.Encode()
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("X-Consul-Token", token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return api.StatusError{Code: resp.StatusCode, Body: string(body)}
	}
	return json.Unmarshal(body, out)
}
