package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/internal/tlsconf"
)

// retryTLS is how long after a client of TLS could not be made that is tried again:
// files may come, and certificates become valid.
const retryTLS = 5 * time.Second

// sharedTLS is one client of TLS for all of the node that have it by the same identity,
// so that clusters that share a probe's stream show and verify the same at any time.
type sharedTLS struct {
	identity string
	log      *slog.Logger
	made     atomic.Pointer[madeTLS]
	turn     chan struct{} // held by the cluster that runs the client
	refs     int           // tlsClients.mu guards it
}

// madeTLS is a client, or why there is none. It is never written.
type madeTLS struct {
	cfg      tlsconf.ClientConfig
	client   *tlsconf.Client
	err      error // why there is no client, or newer settings can't be used
	final    bool  // without a word of the control plane there won't be another
	replaced chan struct{}
}

// newTLS makes the client of cfg, unless no says why there can't be one.
func (s *sharedTLS) newTLS(cfg tlsconf.ClientConfig, no string) *madeTLS {
	m := &madeTLS{cfg: cfg, replaced: make(chan struct{})}
	if no != "" {
		m.err, m.final = errors.New("no tls: "+no), true
		return m
	}
	cfg.Logger = s.log
	m.client, m.err = tlsconf.NewClient(cfg)
	return m
}

// get returns the client, or why there is none. It may be called from anywhere.
func (s *sharedTLS) get() (*tlsconf.Client, error) {
	m := s.made.Load()
	if m.client != nil {
		return m.client, nil
	}
	return nil, m.err
}

// rotation returns what has to be done for s to go by other settings, nil for nothing.
// Those that can't be used don't replace a client that can, as when files rotate.
func (s *sharedTLS) rotation(cfg tlsconf.ClientConfig, no string) func() {
	now := s.made.Load()
	if no == "" && !now.final && reflect.DeepEqual(now.cfg, cfg) {
		return nil
	}
	next := s.newTLS(cfg, no)
	if now.final && next.final && now.err.Error() == next.err.Error() {
		return nil
	}
	if next.err != nil && !next.final && now.client != nil {
		next.client = now.client
	}
	return func() {
		switch {
		case next.err != nil && next.client != nil:
			s.log.Warn("new tls settings can't be used, the last good ones stay in force", "err", next.err)
		case next.err != nil:
			s.log.Warn("endpoints are not dialled for want of tls", "err", next.err)
		default:
			s.log.Info("tls rotated")
			logTLS(s.log, next.client.Status())
		}
		close(s.made.Swap(next).replaced)
	}
}

// run keeps the client's files watched until ctx ends, or tries to make one. Each
// cluster that has s calls it; one at a time does the work.
func (s *sharedTLS) run(ctx context.Context) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return
	}
	for ctx.Err() == nil {
		s.runOne(ctx, s.made.Load())
	}
}

// runOne is run until m is replaced, or may be.
func (s *sharedTLS) runOne(ctx context.Context, m *madeTLS) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		select {
		case <-m.replaced:
			cancel()
		case <-ctx.Done():
		}
	})
	switch {
	case m.err == nil:
		m.client.Run(ctx)
		return
	case m.final:
		<-ctx.Done()
		return
	}
	again := time.NewTimer(retryTLS)
	defer again.Stop()
	select {
	case <-again.C:
		if next := s.newTLS(m.cfg, ""); next.err == nil && s.made.CompareAndSwap(m, next) {
			s.log.Info("tls can be used now")
		}
	case <-ctx.Done():
	}
}

// tlsClients are those of the node. The zero value is ready.
type tlsClients struct {
	mu  sync.Mutex
	all map[string]*sharedTLS
}

// take returns what has that identity, with these settings, or why there can't be a
// client; or a new one. It is given back by release. Of what others have too the
// settings are not changed: see rotation.
func (t *tlsClients) take(identity string, cfg tlsconf.ClientConfig, no string, log *slog.Logger) *sharedTLS {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.all[identity]
	if s == nil {
		s = newSharedTLS(identity, cfg, no, log)
		if t.all == nil {
			t.all = make(map[string]*sharedTLS)
		}
		t.all[identity] = s
	}
	s.refs++
	return s
}

func newSharedTLS(identity string, cfg tlsconf.ClientConfig, no string, log *slog.Logger) *sharedTLS {
	s := &sharedTLS{identity: identity, log: log, turn: make(chan struct{}, 1)}
	s.made.Store(s.newTLS(cfg, no))
	return s
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
		identity := fmt.Sprintf("%q", []string{cfg.CAFile, cfg.CertFile, cfg.KeyFile})
		taken[i] = t.take(identity, cfg.Client(), "", log)
		if _, err := taken[i].get(); err != nil {
			t.release(taken...)
			return nil, fmt.Errorf("cluster %q: health_check %q: %w", c.Name, c.HealthChecks[i].Kind, err)
		}
	}
	return taken, nil
}
