package xds

import (
	"context"
	"log/slog"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"gatehouse.internal/xds/internal/adsgrpc"
	"gatehouse.internal/xds/internal/lrs"
)

// ClusterLoad, EndpointLoad and Load are what connections there have been, for load
// reports.
type (
	ClusterLoad  = lrs.ClusterLoad
	EndpointLoad = lrs.EndpointLoad
	Load         = lrs.Load
)

// reporter is what reports the loads of a Client's clusters.
type reporter struct {
	*lrs.Reporter
	targets []*lrs.Target // by server
}

// newReporter returns a reporter over these servers.
func (c *Client) newReporter(node *corev3.Node, transports []*adsgrpc.Transport) *reporter {
	causes := causes{c.log, make(map[string]*cause)}
	r := &reporter{Reporter: lrs.New(lrs.Config{
		Node: node, Loads: c.cfg.Loads,
		Delay: func(failures int) time.Duration {
			return c.jitter(backoff(c.cfg.BackoffBase, c.cfg.BackoffMax, max(failures, 1)))
		},
		Tell: func(level slog.Level, text, msg string, args ...any) { causes.tell(level, "loads", text, msg, args...) },
	})}
	for i, t := range transports {
		r.targets = append(r.targets, &lrs.Target{
			URI: c.cfg.Servers[i].URI, End: t.EndLoads,
			Open: func(ctx context.Context) (lrs.Stream, error) {
				s, err := t.OpenLoads(ctx)
				if err != nil {
					return nil, err
				}
				return s, nil
			},
		})
	}
	return r
}

// aimLoads has loads reported to the active server, if any cluster that is in force
// wants that.
func (l *loop) aimLoads() {
	if l.c.reporter == nil {
		return
	}
	for _, e := range l.clusters.entries {
		if c := e.value; c != nil && c.LoadReports && c.Unsupported == "" {
			l.c.reporter.Aim(l.c.reporter.targets[l.active])
			return
		}
	}
	l.c.reporter.Aim(nil)
}
