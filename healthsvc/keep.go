package healthsvc

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
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
	var all []kept
	hashes := make(specs)
	s.mu.Lock()
	if s.exported != nil && s.exportedAt == s.changes {
		s.mu.Unlock()
		return s.exported, nil
	}
	at := s.changes
	for _, t := range s.targets {
		for _, v := range t.verdicts {
			if t.refs > 0 && v.word != lbcore.HealthUnknown {
				all = append(all, kept{keyOf(t.key(), v, hashes), v.word.String()})
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
// same too, until a probe says otherwise: the first result counts as it does for an
// endpoint that is unknown. The caller judges how old is too old. It is called
// before Acquire. It returns how many there are; on an error none is taken.
func (s *Service) Import(b []byte) (n int, err error) {
	var all []kept
	if err := json.Unmarshal(b, &all); err != nil {
		return 0, err
	}
	verdicts := make(map[keptKey]lbcore.Health, len(all))
	for i, k := range all {
		switch k.State {
		case lbcore.HealthHealthy.String():
			verdicts[k.keptKey] = lbcore.HealthHealthy
		case lbcore.HealthUnhealthy.String():
			verdicts[k.keptKey] = lbcore.HealthUnhealthy
		case lbcore.HealthDegraded.String():
			verdicts[k.keptKey] = lbcore.HealthDegraded
		default:
			return 0, fmt.Errorf("verdict %d: state %q: want healthy, unhealthy or degraded", i, k.State)
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
func (s *Service) restore(t *target, v *verdict, now time.Time) {
	if len(s.imported) == 0 || v.word != lbcore.HealthUnknown || !t.last.ended.IsZero() {
		return
	}
	k := keyOf(t.key(), v, make(specs))
	if word, ok := s.imported[k]; ok {
		delete(s.imported, k)
		v.word, v.since = word, momentOf(now)
		v.published.Store(word)
	}
}

// key is the Key that t was made of.
func (k targetKey) key() Key { return Key{Addr: k.addr, Spec: k.what.id.spec, Owner: k.what.id.owner} }

// restored reports whether the verdict is that of an earlier run.
func (v *verdict) restored() bool {
	return v.word != lbcore.HealthUnknown && v.state == lbcore.HealthUnknown
}
