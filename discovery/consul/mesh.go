package consul

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/consul/api"

	"gatehouse.internal/internal/tlsconf"
)

// maxMaterial bounds, in bytes, a leaf with its key, and all roots together.
const maxMaterial = 1 << 20

// linger is how long what an Identity has learnt stays after its last Run has ended, for
// who takes that one's place: it may begin a moment later, and while the agent is away.
const linger = 10 * time.Second

// Mesh is what a process is in Consul's service mesh: an Identity for each service
// that it speaks for. NewMesh makes it. Its methods may be called from anywhere.
type Mesh struct {
	each func(context.Context, func(context.Context, *Client) error) error
	log  *slog.Logger

	mu  sync.Mutex // held for a few assignments only
	all map[string]*Identity

	authorizations // of all identities
}

// NewMesh returns a Mesh. Each runs a function with the Client that is to be asked,
// and again with one that takes its place, until its context ends or the function
// returns by itself. A nil log means none.
func NewMesh(each func(context.Context, func(context.Context, *Client) error) error, log *slog.Logger) *Mesh {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Mesh{each: each, log: log, all: make(map[string]*Identity)}
}

// Identity is one service of Consul's service mesh that this process speaks for: its
// leaf certificate with the key, and the roots that vouch for all of the mesh, which
// Run learns of the Consul agent and keeps up to date. Its methods may be called from
// anywhere. The key is in memory only.
type Identity struct {
	mesh    *Mesh
	service string
	turn    chan struct{} // held by the Run that asks
	refs    int           // Runs; mesh.mu
	end     *time.Timer   // of linger, nil before the first; mesh.mu
	client  atomic.Pointer[Client]
	decided decisions

	mu  sync.Mutex // of those who write now
	now atomic.Pointer[material]
}

// material is what is known at one time. It is never written.
type material struct {
	generation uint64 // 0: leaf or roots are not known yet
	loaded     time.Time
	next       chan struct{} // closed when other material is in force

	certPEM, keyPEM string
	leaf            *x509.Certificate
	id              *url.URL // that of the leaf
	rootsPEM        string
	trustDomain     string
	rootsUntil      time.Time // when the last of them expires

	leafErr, rootsErr error // why newer ones can't be had
	failures          uint64
}

// Identity returns the identity of a service, the same for all who ask while somebody
// runs it.
func (m *Mesh) Identity(service string) *Identity {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := m.all[service]
	if i == nil {
		i = &Identity{mesh: m, service: service, turn: make(chan struct{}, 1)}
		i.now.Store(&material{next: make(chan struct{})})
		m.all[service] = i
	}
	return i
}

// Run learns leaf and roots until ctx ends, and returns ctx.Err(). Several may run
// at once: one asks. What is known is forgotten 10 s after the last one has ended.
func (i *Identity) Run(ctx context.Context) error {
	m := i.mesh
	m.mu.Lock()
	i.refs++
	if i.end != nil {
		i.end.Stop()
	}
	if m.all[i.service] == nil {
		m.all[i.service] = i
	}
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		if i.refs--; i.refs == 0 {
			i.end = time.AfterFunc(linger, i.forget)
		}
		m.mu.Unlock()
	}()
	select {
	case i.turn <- struct{}{}:
		defer func() { <-i.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	return m.each(ctx, i.learn)
}

// forget drops what is known, unless somebody runs i again.
func (i *Identity) forget() {
	m := i.mesh
	m.mu.Lock()
	defer m.mu.Unlock()
	if i.refs > 0 {
		return
	}
	if m.all[i.service] == i {
		delete(m.all, i.service)
	}
	i.decided.forget()
	i.update(func(n *material) { *n = material{} })
}

// learn asks c until ctx ends.
func (i *Identity) learn(ctx context.Context, c *Client) error {
	i.client.Store(c)
	i.decided.forget()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		i.follow(ctx, c, &blocking{c: c}, func(opts *api.QueryOptions) (*api.QueryMeta, func(*material) error, error) {
			leaf, meta, err := c.api.Agent().ConnectCALeaf(url.PathEscape(i.service), opts)
			return meta, func(n *material) error { return n.setLeaf(i.service, leaf) }, err
		}, func(n *material) *error { return &n.leafErr })
	})
	i.follow(ctx, c, &blocking{c: c}, func(opts *api.QueryOptions) (*api.QueryMeta, func(*material) error, error) {
		roots, meta, err := c.api.Agent().ConnectCARoots(opts)
		return meta, func(n *material) error { return n.setRoots(roots) }, err
	}, func(n *material) *error { return &n.rootsErr })
	return ctx.Err()
}

// follow asks one query until ctx ends, and has what it answers in force. failed is
// where its trouble stands.
func (i *Identity) follow(ctx context.Context, c *Client, b *blocking,
	ask func(*api.QueryOptions) (*api.QueryMeta, func(*material) error, error), failed func(*material) *error) {
	c.list(b, true)
	defer c.list(b, false)
	for {
		var set func(*material) error
		_, same, err := b.once(ctx, true, func(opts *api.QueryOptions) (meta *api.QueryMeta, err error) {
			meta, set, err = ask(opts)
			return meta, err
		})
		if ctx.Err() != nil {
			return
		}
		if refused(err) {
			err = c.fail(fmt.Errorf("the token is refused: it needs service:write for %q", i.service))
		}
		if err == nil && !(same && *failed(i.now.Load()) == nil) {
			if err = i.take(set, failed); err != nil {
				err = c.fail(err)
			}
		}
		if err == nil {
			b.backoff.reset()
			continue
		}
		b.index = 0
		i.fail(err, failed)
		if b.rest(ctx) != nil {
			return
		}
	}
}

// update has other material in force.
func (i *Identity) update(change func(*material)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	was := i.now.Load()
	next := *was
	change(&next)
	next.next = make(chan struct{})
	i.now.Store(&next)
	close(was.next)
}

// take has what set says in force.
func (i *Identity) take(set func(*material) error, failed func(*material) *error) (err error) {
	var rotated material
	i.update(func(n *material) {
		before := *n
		if err = set(n); err != nil {
			*n = before
			return
		}
		*failed(n) = nil
		if n.leaf == nil || n.rootsPEM == "" || before.certPEM == n.certPEM && before.keyPEM == n.keyPEM && before.rootsPEM == n.rootsPEM && before.trustDomain == n.trustDomain {
			return
		}
		n.generation, n.loaded = before.generation+1, time.Now()
		rotated = *n
	})
	if rotated.generation > 0 {
		i.mesh.log.Info("service mesh certificate", "service", i.service, "id", rotated.id.String(), "serial", serial(rotated.leaf),
			"not_after", rotated.leaf.NotAfter, "generation", rotated.generation)
	}
	return err
}

// fail notes why newer material can't be had, and says so once.
func (i *Identity) fail(err error, failed func(*material) *error) {
	if was := *failed(i.now.Load()); was != nil && was.Error() == err.Error() {
		return
	}
	i.update(func(n *material) {
		*failed(n) = err
		n.failures++
	})
	if n := i.now.Load(); n.generation == 0 {
		i.mesh.log.Warn("there is no service mesh certificate, connections that need it are refused", "service", i.service, "err", err)
	} else {
		i.mesh.log.Warn("service mesh certificates can't be renewed, the last good ones stay in force", "service", i.service, "not_after", n.leaf.NotAfter, "err", err)
	}
}

// setLeaf takes a leaf certificate in. Its errors quote nothing of the key.
func (n *material) setLeaf(service string, l *api.LeafCert) error {
	if l == nil {
		return errors.New("connect leaf: the answer is null")
	}
	if len(l.CertPEM)+len(l.PrivateKeyPEM) > maxMaterial {
		return fmt.Errorf("connect leaf: larger than %d bytes", maxMaterial)
	}
	if l.PrivateKeyPEM == "" {
		return errors.New("connect leaf: no key in the answer")
	}
	pair, err := tls.X509KeyPair([]byte(l.CertPEM), []byte(l.PrivateKeyPEM))
	switch {
	case err != nil && strings.Contains(err.Error(), "private key does not match"):
		return errors.New("connect leaf: certificate and key do not belong together")
	case err != nil:
		return errors.New("connect leaf: certificate or key can't be read")
	case len(pair.Leaf.URIs) != 1 || pair.Leaf.URIs[0].Scheme != "spiffe":
		return errors.New("connect leaf: the certificate has not one SPIFFE id")
	case time.Now().Before(pair.Leaf.NotBefore): // what is in force is better
		return fmt.Errorf("connect leaf: the certificate is not valid before %s; check the clocks", pair.Leaf.NotBefore.UTC().Format(time.RFC3339))
	}
	id := pair.Leaf.URIs[0]
	if got, ok := parseID(id); !ok || !strings.EqualFold(got.service, service) {
		return fmt.Errorf("connect leaf: it is for %s, not for service %q", quote(id.String()), service)
	}
	n.certPEM, n.keyPEM, n.leaf, n.id = l.CertPEM, l.PrivateKeyPEM, pair.Leaf, id
	return nil
}

// setRoots takes the roots in, all or none.
func (n *material) setRoots(list *api.CARootList) error {
	if list == nil {
		return errors.New("connect roots: the answer is null")
	}
	if _, err := tlsconf.SPIFFE("spiffe://" + list.TrustDomain); err != nil || strings.Contains(list.TrustDomain, "/") {
		return fmt.Errorf("connect roots: %s is no trust domain", quote(list.TrustDomain))
	}
	var all strings.Builder
	var until time.Time
	for k, r := range list.Roots {
		if r == nil {
			return fmt.Errorf("connect roots: root %d is null", k+1)
		}
		found := false
		for rest := []byte(r.RootCertPEM); ; {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil {
				break
			}
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil || block.Type != "CERTIFICATE" {
				return fmt.Errorf("connect roots: root %d %s is no certificate", k+1, quote(r.Name))
			}
			if found = true; cert.NotAfter.After(until) {
				until = cert.NotAfter
			}
		}
		if !found {
			return fmt.Errorf("connect roots: root %d %s has no certificate", k+1, quote(r.Name))
		}
		all.WriteString(strings.TrimSpace(r.RootCertPEM) + "\n")
		if all.Len() > maxMaterial {
			return fmt.Errorf("connect roots: larger than %d bytes together", maxMaterial)
		}
	}
	if all.Len() == 0 {
		return errors.New("connect roots: none in the answer")
	}
	n.rootsPEM, n.trustDomain, n.rootsUntil = all.String(), list.TrustDomain, until
	return nil
}

// notAfter is when n ends to work.
func (n *material) notAfter() time.Time {
	if n.leaf == nil || n.rootsUntil.Before(n.leaf.NotAfter) {
		return n.rootsUntil
	}
	return n.leaf.NotAfter
}

// why is the trouble that there is, or nil.
func (n *material) why() error { return cmp.Or(n.leafErr, n.rootsErr) }

// usable returns why n can't be used, or nil.
func (i *Identity) usable(n *material) error {
	reason := ""
	if err := n.why(); err != nil {
		reason = ": " + err.Error()
	}
	switch {
	case n.generation == 0 && n.leaf == nil:
		return fmt.Errorf("service %q has no certificate of the service mesh yet%s", i.service, reason)
	case n.generation == 0:
		return fmt.Errorf("service %q knows no roots of the service mesh yet%s", i.service, reason)
	case time.Now().After(n.leaf.NotAfter):
		return fmt.Errorf("the service mesh's certificate of service %q expired at %s%s", i.service, n.leaf.NotAfter.UTC().Format(time.RFC3339), reason)
	case time.Now().After(n.rootsUntil):
		return fmt.Errorf("the service mesh's roots expired at %s%s", n.rootsUntil.UTC().Format(time.RFC3339), reason)
	}
	return nil
}

// Service returns the name of the service.
func (i *Identity) Service() string { return i.service }

// Usable returns nil if there are a leaf and roots that have not expired, or why not.
func (i *Identity) Usable() error { return i.usable(i.now.Load()) }

// Waiting returns why nothing has been known yet since Run began, or nil if something
// has, be it of no use any more.
func (i *Identity) Waiting() error {
	if n := i.now.Load(); n.generation == 0 {
		return i.usable(n)
	}
	return nil
}

// Changed returns a channel that is closed when what is known changes.
func (i *Identity) Changed() <-chan struct{} { return i.now.Load().next }

// Status says what is in force; Generation is 0 while nothing is.
func (i *Identity) Status() tlsconf.Status {
	n := i.now.Load()
	st := tlsconf.Status{Generation: n.generation, LoadedAt: n.loaded, Err: n.why(), Failures: n.failures}
	if n.generation > 0 {
		st.NotAfter = n.notAfter()
		st.Certificates = []tlsconf.Certificate{{Subject: n.leaf.Subject.String(), Names: tlsconf.Names(n.leaf), NotAfter: n.leaf.NotAfter}}
	}
	return st
}

// serviceID is what a SPIFFE id of Consul's says of a service.
// Source: SpiffeIDService.
type serviceID struct{ partition, namespace, datacenter, service string }

// parseID reads the id of a service, as in
// spiffe://TRUST-DOMAIN/ns/NAMESPACE/dc/DATACENTER/svc/SERVICE, perhaps with
// /ap/PARTITION before it.
func parseID(u *url.URL) (id serviceID, ok bool) {
	if u.Scheme != "spiffe" || u.Opaque != "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return id, false
	}
	path, hasPartition := strings.CutPrefix(u.EscapedPath(), "/ap/")
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	if hasPartition {
		id.partition, parts = parts[0], parts[1:]
	}
	if len(parts) != 6 || parts[0] != "ns" || parts[2] != "dc" || parts[4] != "svc" || hasPartition && id.partition == "" {
		return id, false
	}
	id.namespace, id.datacenter, id.service = parts[1], parts[3], parts[5]
	for _, text := range []*string{&id.partition, &id.namespace, &id.datacenter, &id.service} {
		plain, err := url.PathUnescape(*text)
		if err != nil || plain == "" && text != &id.partition {
			return id, false
		}
		*text = plain
	}
	return id, true
}

// url returns the id in a trust domain.
func (id serviceID) url(trustDomain string) string {
	path := "/ns/" + id.namespace + "/dc/" + id.datacenter + "/svc/" + id.service
	if id.partition != "" && id.partition != "default" {
		path = "/ap/" + id.partition + path
	}
	u := url.URL{Scheme: "spiffe", Host: trustDomain, Path: path}
	return u.String()
}

// serial returns the serial number as Consul writes it.
func serial(cert *x509.Certificate) string {
	var b strings.Builder
	for k, x := range cert.SerialNumber.Bytes() {
		if k > 0 {
			b.WriteByte(':')
		}
		fmt.Fprintf(&b, "%02x", x)
	}
	return b.String()
}
