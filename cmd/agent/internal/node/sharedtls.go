package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/internal/tlsconf"
)

// retryTLS is how long after a client of TLS could not be made that is tried again:
// files may come, and certificates become valid.
const retryTLS = 5 * time.Second

// sharedTLS is one client of TLS for all of the node that have it with the same
// settings, so that clusters that share a probe's stream show and verify the same at
// any time.
type sharedTLS struct {
	identity string
	cfg      tlsconf.ClientConfig
	made     atomic.Pointer[madeTLS]
	turn     chan struct{} // held by the cluster that runs the client
	refs     int           // tlsClients.mu guards it
}

// madeTLS is a client, or why there is none. It is never written.
type madeTLS struct {
	client *tlsconf.Client
	err    error
}

// newSharedTLS returns one whose client has been made, or why it could not be.
func newSharedTLS(identity string, cfg tlsconf.ClientConfig, log *slog.Logger) (*sharedTLS, error) {
	cfg.Logger = log
	s := &sharedTLS{identity: identity, cfg: cfg, turn: make(chan struct{}, 1)}
	s.make()
	_, err := s.get()
	return s, err
}

// get returns the client, or why there is none. It may be called from anywhere.
func (s *sharedTLS) get() (*tlsconf.Client, error) {
	m := s.made.Load()
	return m.client, m.err
}

func (s *sharedTLS) make() {
	client, err := tlsconf.NewClient(s.cfg)
	s.made.Store(&madeTLS{client, err})
}

// run keeps the client's files watched until ctx ends, once it could be made. Each
// cluster that has s calls it; one at a time does the work.
func (s *sharedTLS) run(ctx context.Context) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return
	}
	again := time.NewTicker(retryTLS)
	defer again.Stop()
	for ctx.Err() == nil {
		if client, err := s.get(); err == nil {
			again.Stop()
			client.Run(ctx)
			return
		}
		select {
		case <-again.C:
			s.make()
		case <-ctx.Done():
		}
	}
}

// tlsClients are those of the node. The zero value is ready.
type tlsClients struct {
	mu  sync.Mutex
	all map[string]*sharedTLS
}

// take returns the one of these settings, beside why it has no client if it has none.
// It is given back by release.
func (t *tlsClients) take(identity string, cfg tlsconf.ClientConfig, log *slog.Logger) (*sharedTLS, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.all[identity]
	if s == nil {
		s, _ = newSharedTLS(identity, cfg, log)
		if t.all == nil {
			t.all = make(map[string]*sharedTLS)
		}
		t.all[identity] = s
	}
	s.refs++
	_, err := s.get()
	return s, err
}

// release gives back what take has returned, of which some may be nil.
func (t *tlsClients) release(taken ...*sharedTLS) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range taken {
		if s == nil {
			continue
		}
		if s.refs--; s.refs == 0 {
			delete(t.all, s.identity)
		}
	}
}

// takeChecks returns what the checks of a cluster have, nil for those without TLS of
// their own.
func (t *tlsClients) takeChecks(c *config.Cluster, log *slog.Logger) ([]*sharedTLS, error) {
	taken := make([]*sharedTLS, len(c.HealthChecks))
	for i := range c.HealthChecks {
		cfg := c.HealthChecks[i].TLS
		if !cfg.Enabled {
			continue
		}
		var err error
		identity := fmt.Sprintf("%q", []string{cfg.CAFile, cfg.CertFile, cfg.KeyFile})
		if taken[i], err = t.take(identity, cfg.Client(), log); err != nil {
			t.release(taken...)
			return nil, fmt.Errorf("cluster %q: health_check %q: %w", c.Name, c.HealthChecks[i].Kind, err)
		}
	}
	return taken, nil
}

// digest tells settings from others, without what is secret in them.
func digest(c *tlsconf.ClientConfig) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%#v", *c))
	return hex.EncodeToString(sum[:])
}
