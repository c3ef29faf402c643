package healthsvc

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"gatehouse.internal/lbcore"
)

// kept is a verdict for the next run: what it is about, and what it says.
type kept struct {
	keptKey
	State string `json:"state"`
	// Confirmed is until when it was right, of one of an earlier run that no probe has
	// spoken for or against since: the others are right as of Export.
	Confirmed *time.Time `json:"confirmed,omitempty"`
}

// imported is a verdict of an earlier run.
type imported struct {
	word      lbcore.Health
	confirmed time.Time
}

type keptKey struct {
	Address string `json:"address"`
	Owner   string `json:"owner,omitempty"`
	Spec    string `json:"spec"` // hashed, since it may hold what is secret
	// What the verdict goes by.
	Healthy        uint32        `json:"healthy_threshold"`
	Unhealthy      uint32        `json:"unhealthy_threshold"`
	InitialHealthy bool          `json:"initial_healthy,omitempty"`
	Timeout        time.Duration `json:"timeout"`
}

// specs hashes the texts of specs, of which there are few.
type specs map[string]string

func (s specs) hash(spec string) string {
	h, ok := s[spec]
	if !ok {
		sum := sha256.Sum256([]byte(spec))
		h = hex.EncodeToString(sum[:16])
		s[spec] = h
	}
	return h
}

func keyOf(k Key, v *verdict, s specs) keptKey {
	return keptKey{
		Address: k.Addr.String(), Owner: k.Owner, Spec: s.hash(k.Spec),
		Healthy: v.Thresholds.Healthy, Unhealthy: v.Thresholds.Unhealthy, InitialHealthy: v.InitialHealthy, Timeout: v.timeout,
	}
}

// Export returns the verdicts for Import in a later run. It is the same slice as
// long as they are the same. Anybody may call it, and nobody may write to it.
func (s *Service) Export() ([]byte, error) {
	all := []kept{}
	hashes := make(specs)
	s.mu.Lock()
	if b := s.exported; b != nil && s.exportedAt == s.changes {
		s.mu.Unlock()
		return b, nil
	}
	at := s.changes
	for _, t := range s.targets {
		for _, v := range t.verdicts {
			if t.refs > 0 && v.word != lbcore.HealthUnknown {
				k := kept{keptKey: keyOf(t.key(), v, hashes), State: v.word.String()}
				if v.restored() {
					k.Confirmed = new(v.since.time().UTC())
				}
				all = append(all, k)
			}
		}
	}
	s.mu.Unlock()
	slices.SortFunc(all, func(a, b kept) int {
		return cmp.Or(strings.Compare(a.Address, b.Address), strings.Compare(a.Spec, b.Spec), strings.Compare(a.Owner, b.Owner),
			cmp.Compare(a.Healthy, b.Healthy), cmp.Compare(a.Unhealthy, b.Unhealthy), cmp.Compare(a.Timeout, b.Timeout))
	})
	b, err := json.Marshal(all)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.exported, s.exportedAt = b, at
	s.mu.Unlock()
	return b, nil
}

// Import takes what Export returned in an earlier run. A check that has not been
// probed yet begins with its verdict of then, if thresholds and timeout are the
// same too, and goes on with it as that run would: it takes as many results against it
// as the threshold says, so that one probe that is slow at the start does not cost a
// node all its endpoints. Confirmed is when Export was called, by the wall clock;
// verdicts that are older than maxAge are left out. It is called before Acquire. It
// returns how many are taken; on an error none is.
func (s *Service) Import(b []byte, confirmed time.Time, maxAge time.Duration) (n int, err error) {
	var all []kept
	if err := json.Unmarshal(b, &all); err != nil {
		return 0, err
	}
	if all == nil {
		return 0, errors.New("it has no list of verdicts")
	}
	now := time.Now()
	verdicts := make(map[keptKey]imported, len(all))
	for i, k := range all {
		v := imported{confirmed: confirmed}
		switch k.State {
		case lbcore.HealthHealthy.String():
			v.word = lbcore.HealthHealthy
		case lbcore.HealthUnhealthy.String():
			v.word = lbcore.HealthUnhealthy
		case lbcore.HealthDegraded.String():
			v.word = lbcore.HealthDegraded
		default:
			return 0, fmt.Errorf("verdict %d: state %q: want healthy, unhealthy or degraded", i, k.State)
		}
		if k.Confirmed != nil && k.Confirmed.Before(confirmed) {
			v.confirmed = *k.Confirmed
		}
		if v.confirmed.After(now) { // the clock was set back
			v.confirmed = now
		}
		if now.Sub(v.confirmed) <= maxAge {
			verdicts[k.keptKey] = v
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.imported = verdicts
	return len(verdicts), nil
}

// Forget forgets what Import took and no check has asked for. It is called when all
// have had the time.
func (s *Service) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.imported = nil
}

// restore has v, of t, begin with the verdict of an earlier run, if there is one
// and nothing newer. mu is held.
func (s *Service) restore(t *target, v *verdict) {
	if len(s.imported) == 0 || v.word != lbcore.HealthUnknown || !t.last.ended.IsZero() {
		return
	}
	k := keyOf(t.key(), v, make(specs))
	if was, ok := s.imported[k]; ok {
		delete(s.imported, k)
		v.state, v.word, v.since = was.word, was.word, momentOf(was.confirmed)
		if was.word == lbcore.HealthDegraded {
			v.state, v.degraded = lbcore.HealthHealthy, true
		}
		v.published.Store(v.word)
	}
}

// key is the Key that t was made of.
func (k targetKey) key() Key { return Key{Addr: k.addr, Spec: k.what.id.spec, Owner: k.what.id.owner} }

// restored reports whether the verdict is that of an earlier run: all results since
// speak against it, and are too few.
func (v *verdict) restored() bool {
	return v.word != lbcore.HealthUnknown && (v.streak == 0 || v.against > 0 && !v.turned)
}
