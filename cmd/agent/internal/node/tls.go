package node

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"sync"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/discovery/consul"
	"gatehouse.internal/internal/tlsconf"
)

// downstreamTLS makes a listener's TLS configurations. It belongs to Run's
// goroutine, but for server.
type downstreamTLS struct {
	cfg    config.DownstreamTLS
	server *tlsconf.Server
	cancel context.CancelFunc // ends its Run; nil before

	// In place of these, of a listener of Consul's service mesh.
	connect config.DownstreamConnect
	id      *consul.Identity
	mesh    *consul.MeshServer
}

// run keeps it up to date until ctx ends, and calls known once it can be used.
func (d *downstreamTLS) run(ctx context.Context, known func()) {
	if d.id == nil {
		d.server.Run(ctx)
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { d.id.Run(ctx) })
	for changed := d.id.Changed(); d.waiting() != ""; changed = d.id.Changed() {
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
	known()
}

// waiting returns what keeps a listener from taking any connection, in one line, or
// nothing: it is of the mesh, and has had no certificate yet.
func (d *downstreamTLS) waiting() string {
	if d == nil || d.id == nil {
		return ""
	}
	return uncertified(d.id)
}

// status returns nil for a listener without TLS.
func (d *downstreamTLS) status() *tlsconf.Status {
	if d == nil {
		return nil
	}
	if d.id != nil {
		return new(d.id.Status())
	}
	return new(d.server.Status())
}

// secure returns what makes the TLS configurations of a listener, nil without
// TLS. It is the one that there is if the settings are the same, and has no effect
// yet otherwise.
func (r *runner) secure(cfg *config.Listener) (*downstreamTLS, error) {
	if !cfg.TLS.Enabled && !cfg.Connect.Enabled {
		return nil, nil
	}
	if have := r.tls[cfg.Name]; have != nil && reflect.DeepEqual(have.cfg, cfg.TLS) && have.connect == cfg.Connect {
		return have, nil
	}
	if cfg.Connect.Enabled {
		if r.n.cfg.Mesh == nil {
			return nil, fmt.Errorf("listener %q: %w", cfg.Name, errNoConsul)
		}
		id := r.n.cfg.Mesh.Identity(cfg.Connect.Service)
		return &downstreamTLS{connect: cfg.Connect, id: id, mesh: id.Server()}, nil
	}
	tc := cfg.TLS.Server()
	tc.Logger = r.n.log.With("listener", cfg.Name)
	server, err := tlsconf.NewServer(tc)
	if err != nil {
		return nil, fmt.Errorf("listener %q: %w", cfg.Name, err)
	}
	return &downstreamTLS{cfg: cfg.TLS, server: server}, nil
}

// use has next, which may be nil, in force for the listener of that name, so that
// it rotates, and the one before does not any more.
func (r *runner) use(ctx context.Context, name string, next *downstreamTLS) {
	was := r.tls[name]
	if was == next {
		return
	}
	if was != nil {
		was.cancel()
		delete(r.tls, name)
	}
	if next == nil {
		return
	}
	r.tls[name] = next
	ctx, next.cancel = context.WithCancel(ctx)
	r.wg.Go(func() { next.run(ctx, func() { poke(r.n.wake) }) })
	logTLS(r.n.log.With("listener", name), *next.status())
}

func logTLS(log *slog.Logger, st tlsconf.Status) {
	for _, c := range st.Certificates {
		log.Info("tls certificate", "subject", c.Subject, "names", c.Names, "not_after", c.NotAfter)
	}
}
