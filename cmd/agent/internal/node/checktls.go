package node

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/internal/tlsconf"
)

// tlsFiles are what the TLS of health checks is made of.
type tlsFiles struct{ ca, cert, key string }

// sharedTLS is one client of TLS for all checks of the node with the same files,
// so that clusters that share a stream show and verify the same at any time.
type sharedTLS struct {
	client   *tlsconf.Client
	identity string
	turn     chan struct{} // held by the cluster that runs the client
	refs     int           // tlsClients.mu guards it
}

// run keeps the client's files watched until ctx ends. Each cluster that has s
// calls it; one at a time does the work.
func (s *sharedTLS) run(ctx context.Context) {
	select {
	case s.turn <- struct{}{}:
		s.client.Run(ctx)
		<-s.turn
	case <-ctx.Done():
	}
}

// tlsClients are those of the node. The zero value is ready.
type tlsClients struct {
	mu  sync.Mutex
	all map[tlsFiles]*sharedTLS
}

// take returns the clients of a cluster's checks, nil for those without TLS.
// They are given back by release.
func (t *tlsClients) take(c *config.Cluster, log *slog.Logger) ([]*sharedTLS, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	taken := make([]*sharedTLS, len(c.HealthChecks))
	for i := range c.HealthChecks {
		cfg := c.HealthChecks[i].TLS
		if !cfg.Enabled {
			continue
		}
		files := tlsFiles{cfg.CAFile, cfg.CertFile, cfg.KeyFile}
		s := t.all[files]
		if s == nil {
			tc := cfg.Client()
			tc.Logger = log
			client, err := tlsconf.NewClient(tc)
			if err != nil {
				t.giveBack(taken)
				return nil, fmt.Errorf("cluster %q: health_check %q: %w", c.Name, c.HealthChecks[i].Kind, err)
			}
			s = &sharedTLS{client: client, identity: fmt.Sprintf("%q", files), turn: make(chan struct{}, 1)}
			if t.all == nil {
				t.all = make(map[tlsFiles]*sharedTLS)
			}
			t.all[files] = s
		}
		s.refs++
		taken[i] = s
	}
	return taken, nil
}

func (t *tlsClients) release(taken []*sharedTLS) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.giveBack(taken)
}

func (t *tlsClients) giveBack(taken []*sharedTLS) {
	for _, s := range taken {
		if s == nil {
			continue
		}
		if s.refs--; s.refs == 0 {
			for files, x := range t.all {
				if x == s {
					delete(t.all, files)
				}
			}
		}
	}
}
