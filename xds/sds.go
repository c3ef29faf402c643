package xds

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"gatehouse.internal/internal/tlsconf"
	"gatehouse.internal/xds/internal/core"
	"gatehouse.internal/xds/internal/guard"
)

// secretFields tells what becomes of the fields of Secret. Ticket keys are the agent's
// own, and nothing here takes what is generic.
var secretFields = union(
	allOf(applied, "name", "tls_certificate", "validation_context"),
	allOf(refused, "session_ticket_keys", "generic_secret"),
)

// mostWanted bounds the secrets that are asked for.
const mostWanted = 1 << 14

// secret is an SDS resource: a certificate with its key, or how peers are verified. It
// is never written after it was made.
type secret struct {
	pair  *tlsconf.KeyPair // or nil
	trust *trust           // or nil
	// unsupported says what keeps this valid secret from being used as meant. If it is
	// not empty it must not be used at all.
	unsupported string
	ignored     []string
}

// decodeSecret reads an SDS resource. It is a core.Type's Decode. Errors never quote
// what a secret holds.
func decodeSecret(body []byte) (string, any, error) {
	var m tlsv3.Secret
	if err := guard.Unmarshal(body, &m); err != nil {
		return guard.String(body, 1), nil, fmt.Errorf("not a Secret: %w", err)
	}
	name := m.GetName()
	if name == "" {
		return "", nil, errors.New("name: missing")
	}
	var r tlsReader
	r.fields(&m, "", secretFields)
	s := new(secret)
	switch x := m.GetType().(type) {
	case *tlsv3.Secret_TlsCertificate:
		pair, err := r.certificate(x.TlsCertificate, "tls_certificate.")
		if err != nil {
			return name, nil, err
		}
		s.pair = &pair
	case *tlsv3.Secret_ValidationContext:
		t, err := r.validation(x.ValidationContext, "validation_context.")
		if err != nil {
			return name, nil, err
		}
		s.trust = &t
	case nil:
		return name, nil, errors.New("type: missing: want tls_certificate or validation_context")
	}
	s.ignored = r.ignored
	if len(r.unsupported) > 0 {
		return name, &secret{unsupported: core.Clip(strings.Join(r.unsupported, ", ")), ignored: r.ignored}, nil
	}
	if err := s.check(); err != nil {
		return name, nil, err
	}
	s.call(name)
	return name, s, nil
}

// check returns what is wrong with the PEM in s.
func (s *secret) check() error {
	if s.pair != nil {
		return tlsconf.Check("", "", *s.pair)
	}
	return tlsconf.Check(s.trust.file, s.trust.ca)
}

// call has later errors name the secret where they name what is inline.
func (s *secret) call(name string) {
	of := fmt.Sprintf(" of secret %q", name)
	if s.pair != nil {
		if s.pair.Cert != "" {
			s.pair.CertFile += of
		}
		if s.pair.Key != "" {
			s.pair.KeyFile += of
		}
	}
	if s.trust != nil && s.trust.ca != "" {
		s.trust.file += of
	}
}

// secretState is the newest word on a secret. It is never written after it was made.
type secretState struct {
	value   *secret // in force, or nil
	err     error   // why there is none
	pending bool    // no server has said anything yet: it may come any moment
}

// secretLookup returns the state of the secret of that name, never nil.
type secretLookup func(name string) *secretState

// usable returns the secret, or why it can't be used.
func (s *secretState) usable(name string) (*secret, error) {
	switch {
	case s.value == nil:
		return nil, fmt.Errorf("secret %q: %w", name, s.err)
	case s.value.unsupported != "":
		return nil, fmt.Errorf("secret %q is not supported: %s", name, s.value.unsupported)
	}
	return s.value, nil
}

func (s *secretState) certificate(name string) (tlsconf.KeyPair, error) {
	x, err := s.usable(name)
	switch {
	case err != nil:
		return tlsconf.KeyPair{}, err
	case x.pair == nil:
		return tlsconf.KeyPair{}, fmt.Errorf("secret %q is a validation_context: want a tls_certificate", name)
	}
	return *x.pair, nil
}

func (s *secretState) validation(name string) (trust, error) {
	x, err := s.usable(name)
	switch {
	case err != nil:
		return trust{}, err
	case x.trust == nil:
		return trust{}, fmt.Errorf("secret %q is a tls_certificate: want a validation_context", name)
	}
	return *x.trust, nil
}

// secretEntry is a secret that a cluster or a listener wants.
type secretEntry struct {
	state   *secretState
	updated time.Time
}

// taker is a resource that may take secrets: a *Cluster or a *Listener.
type taker[T any] interface {
	*T
	secretNames() []string
	withSecrets(secretLookup) *T
}

// taken is a secret that a version of a resource was filled with.
type taken struct {
	name  string
	state *secretState
}

// inForce returns the version of a resource that is in force, with what its secrets
// hold, nil if there is none. A new version that takes a secret that may come any
// moment waits for that as long as there is one before. What has not changed keeps its
// pointer.
func inForce[T any, P taker[T]](e *allEntry[T], lookup secretLookup) *T {
	fill := func(v *T) (filled *T, took []taken, waits bool) {
		filled = P(v).withSecrets(func(name string) *secretState {
			s := lookup(name)
			took = append(took, taken{name, s})
			waits = waits || s.pending
			return s
		})
		return filled, took, waits
	}
	if e.value == nil {
		return nil
	}
	if e.active != e.value {
		if filled, took, waits := fill(e.value); e.active == nil || !waits {
			e.active, e.filled, e.took = e.value, filled, took
		}
	}
	if slices.ContainsFunc(e.took, func(t taken) bool { return lookup(t.name) != t.state }) {
		e.filled, e.took, _ = fill(e.active)
	}
	return e.filled
}

// wantedSecrets adds the names of the secrets that a resource may take.
func wantedSecrets[T any, P taker[T]](all map[string]*allEntry[T], wanted map[string]bool) {
	for _, e := range all {
		for _, v := range []*T{e.value, e.active, e.partial} {
			if v == nil {
				continue
			}
			for _, name := range P(v).secretNames() {
				wanted[name] = true
			}
		}
	}
}

// syncSecrets subscribes to the secrets that clusters and listeners want.
func (l *loop) syncSecrets() {
	wanted := make(map[string]bool)
	wantedSecrets(l.clusters.entries, wanted)
	wantedSecrets(l.listeners.entries, wanted)
	for name := range l.secrets {
		if !wanted[name] {
			delete(l.secrets, name)
			l.core.Unsubscribe(SecretType, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		if l.secrets[name] == nil && len(l.secrets) < mostWanted {
			e := &secretEntry{state: l.noSecret()}
			l.secrets[name] = e
			l.takeOverSecret(name, e)
			l.core.Subscribe(SecretType, name)
		}
	}
}

// formerSecrets returns what the Client before has in force, if anything.
func formerSecrets(cfg *Config) map[string]ResourceStatus {
	all := make(map[string]ResourceStatus)
	if cfg.Former == nil || cfg.Former.cfg.scope() != cfg.scope() {
		return all
	}
	st := cfg.Former.Status()
	for _, t := range st.Types {
		for _, r := range t.Resources {
			if t.URL == SecretType && r.Body != "" {
				all[r.Name] = r
			}
		}
	}
	return all
}

// takeOverSecret has the core know what the Client before knew of name, and e have it
// at once: what takes it is about to be published. It is followed by a subscription.
func (l *loop) takeOverSecret(name string, e *secretEntry) {
	r, ok := l.c.former[name]
	if !ok {
		return
	}
	delete(l.c.former, name)
	_, value, err := decodeSecret([]byte(r.Body))
	if err == nil {
		err = l.core.Restore(SecretType, name, r.Version, []byte(r.Body))
	}
	if err != nil { // it was good before
		l.c.log.Warn("a secret can't be taken over", "secret", name, "err", err)
		return
	}
	e.state, e.updated = &secretState{value: value.(*secret)}, r.Updated
}

// noSecret is the state of a secret that no server has said anything of.
func (l *loop) noSecret() *secretState {
	err := errors.New("it has not come yet")
	if trouble := l.unreachable(); trouble != nil {
		err = fmt.Errorf("it has not come yet: %w", trouble)
	}
	return &secretState{err: err, pending: true}
}

var errTooManySecrets = &secretState{err: fmt.Errorf("more than %d secrets are wanted", mostWanted)}

// lookupSecret is a secretLookup.
func (l *loop) lookupSecret(name string) *secretState {
	if e := l.secrets[name]; e != nil {
		return e.state
	}
	return errTooManySecrets
}

// secretsDirty has clusters and listeners be filled with secrets anew.
func (l *loop) secretsDirty() { l.clusters.dirty, l.listeners.dirty = true, true }

// secretChanged takes a new version.
func (l *loop) secretChanged(name string, s *secret) {
	e := l.secrets[name]
	if e == nil {
		return
	}
	e.updated = time.Now()
	if e.state.value != s {
		e.state = &secretState{value: s}
		l.secretsDirty()
	}
}

// secretFailed takes the reason why there is no new version; the one in force stays.
func (l *loop) secretFailed(name string, err error) {
	if e := l.secrets[name]; e != nil && e.state.value == nil {
		e.state = &secretState{err: err}
		l.secretsDirty()
	}
}

// secretGone takes a secret away that a server has deleted, or not renewed. What has
// not been confirmed in time by another server stays in force.
func (l *loop) secretGone(name string, why core.Cause) {
	if e := l.secrets[name]; e != nil && why != core.TimedOut {
		e.state = new(secretState)
	}
	l.secretFailed(name, l.absence(why))
}

// secretsPending has the secrets that have not come say why.
func (l *loop) secretsPending() {
	for _, e := range l.secrets {
		if e.state.pending {
			e.state = l.noSecret()
			l.secretsDirty()
		}
	}
}
