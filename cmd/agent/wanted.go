package main

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/cmd/agent/internal/node"
	"gatehouse.internal/discovery/consul"
	"gatehouse.internal/internal/loglimit"
	"gatehouse.internal/xds"
)

// giver is one who says a part of what the node is to run besides the files. It
// says the whole of its part each time, so the newest word is all that counts.
type giver[T any] struct {
	said  atomic.Pointer[T] // the newest, nil before the first
	taken atomic.Pointer[T] // what was made of it part of what runs
}

// wanted joins the parts: files win over the control plane, which wins over the
// catalog. One goroutine, that of run, owns it.
type wanted struct {
	files   node.Spec
	mute    mute
	cds     giver[xds.ClustersUpdate] // anybody
	catalog giver[consul.Listeners]   // anybody
	wake    chan struct{}             // one slot
	reloads chan rereading
	notes   notes
	trouble string // of the catalog, as logged last

	staleWaits bool // what an earlier run knew does not count as an answer
}

// mute are the givers that are not asked: what they have said, or say still, does
// not count.
type mute struct{ cds, catalog bool }

// muted returns who is not asked according to cfg.
func muted(cfg *config.Config) mute {
	return mute{cds: !cfg.XDS.Enabled() || !cfg.XDS.Clusters, catalog: !cfg.Consul.Listeners}
}

// rereading is what files say anew.
type rereading struct {
	files node.Spec
	mute  mute
	done  chan error
}

// reread makes files part of what runs, in the place of what they said before. On
// an error that stays. It waits for run.
func (w *wanted) reread(ctx context.Context, files node.Spec, mute mute) error {
	r := rereading{files, mute, make(chan error, 1)}
	select {
	case w.reloads <- r:
		return <-r.done
	case <-ctx.Done():
		return ctx.Err()
	}
}

// take takes up what files say anew, and what the givers said that was taken last:
// an error is the files' then.
func (w *wanted) take(ctx context.Context, r rereading, apply func(context.Context, node.Spec) error) error {
	cds, catalog := w.cds.taken.Load(), w.catalog.taken.Load()
	if r.mute.cds {
		cds = nil
	}
	if r.mute.catalog {
		catalog = nil
	}
	files := w.files
	w.files = r.files
	if err := apply(ctx, w.join(cds, catalog)); err != nil {
		w.files = files
		return err
	}
	if r.mute.cds != w.mute.cds {
		w.cds.said.Store(nil)
		w.cds.taken.Store(nil)
	}
	if r.mute.catalog != w.mute.catalog {
		w.catalog.said.Store(nil)
		w.catalog.taken.Store(nil)
	}
	w.mute = r.mute
	w.poke() // what a giver said in vain may go with these files
	return nil
}

// saidClusters and saidListeners take a giver's newest word. They don't block.
func (w *wanted) saidClusters(u xds.ClustersUpdate) {
	w.cds.said.Store(&u)
	w.poke()
}

func (w *wanted) saidListeners(l consul.Listeners) {
	w.catalog.said.Store(&l)
	w.poke()
}

func (w *wanted) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// run makes what the givers say part of what runs, until ctx ends.
func (w *wanted) run(ctx context.Context, apply func(context.Context, node.Spec) error, taken func()) error {
	for {
		select {
		case r := <-w.reloads:
			r.done <- w.take(ctx, r, apply)
		case <-w.wake:
			cds, catalog := w.cds.said.Load(), w.catalog.said.Load()
			if w.mute.cds {
				cds = nil
			}
			if w.mute.catalog {
				catalog = nil
			}
			w.tellTrouble(catalog)
			cds, catalog = w.known(cds, catalog)
			if w.differs(cds, catalog) {
				spec := w.join(cds, catalog)
				if err := apply(ctx, spec); err != nil {
					if ctx.Err() == nil {
						w.notes.log.Error("what the control plane and the catalog say is not applied", "err", err)
					}
					continue
				}
			}
			// Not before: the agent is not ready until it is there.
			w.cds.taken.Store(cds)
			w.catalog.taken.Store(catalog)
			taken()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// known returns these words, or in the place of one without knowledge what was taken
// last, with the newest error: who is asked in the place of another, since a reload,
// takes nothing away before the first answer.
func (w *wanted) known(cds *xds.ClustersUpdate, catalog *consul.Listeners) (*xds.ClustersUpdate, *consul.Listeners) {
	if last := w.cds.taken.Load(); cds != nil && !cds.Known && last != nil {
		held := *last
		held.Err = cds.Err
		cds = &held
	}
	if last := w.catalog.taken.Load(); catalog != nil && !catalog.Known && last != nil {
		held := *last
		held.Err = catalog.Err
		catalog = &held
	}
	return cds, catalog
}

// differs reports whether there is more in these words than was taken.
func (w *wanted) differs(cds *xds.ClustersUpdate, catalog *consul.Listeners) bool {
	c, l := w.cds.taken.Load(), w.catalog.taken.Load()
	return cds != nil && cds.Known && (c == nil || !c.Known || !slices.Equal(c.Clusters, cds.Clusters) || !slices.Equal(c.Rejected, cds.Rejected)) ||
		catalog != nil && catalog.Known && (l == nil || !l.Known || !slices.Equal(l.Listeners, catalog.Listeners) || !slices.Equal(l.Refused, catalog.Refused))
}

// join returns the whole state that is wanted, and notes what of it is not to
// be had.
func (w *wanted) join(cds *xds.ClustersUpdate, catalog *consul.Listeners) node.Spec {
	spec := w.files
	if cds != nil {
		spec = w.withClusters(spec, cds)
	}
	if catalog != nil {
		spec = w.withListeners(spec, catalog)
	}
	w.notes.end()
	return spec
}

// withClusters adds the control plane's part.
func (w *wanted) withClusters(spec node.Spec, u *xds.ClustersUpdate) node.Spec {
	clusters, unsupported := node.FromXDS(u.Clusters)
	for _, r := range u.Rejected { // of those with a version before, that one runs
		if !slices.ContainsFunc(u.Clusters, func(c *xds.Cluster) bool { return c.Name == r.Name }) && r.Name != "" {
			unsupported = append(unsupported, node.Unsupported{Name: r.Name, Reason: "rejected: " + r.Reason})
		}
	}
	spec, shadowed := spec.With(clusters, unsupported)
	if len(shadowed) > 0 {
		w.notes.add(slog.LevelWarn, "clusters of the control plane are not used, a file has clusters of these names", "clusters", shadowed)
	}
	for _, c := range u.Clusters {
		if len(c.Ignored) > 0 {
			w.notes.add(slog.LevelInfo, "cluster has settings that are not applied", "cluster", c.Name, "settings", c.Ignored)
		}
	}
	for _, un := range spec.Unsupported {
		w.notes.add(slog.LevelWarn, "cluster is not supported and refuses connections", "cluster", un.Name, "reason", un.Reason)
	}
	return spec
}

// withListeners adds the catalog's part: a listener for each address that a
// service asks for, and a cluster for each service that has none yet.
func (w *wanted) withListeners(spec node.Spec, l *consul.Listeners) node.Spec {
	var clusters []config.Cluster
	var listeners []config.Listener
	for _, x := range l.Listeners { // sorted
		if n := len(clusters); n == 0 || clusters[n-1].Name != x.Service {
			clusters = append(clusters, config.DefaultCluster(x.Service, config.OriginConsul,
				config.Discovery{Kind: config.DiscoveryConsul, Service: x.Service}))
		}
		listeners = append(listeners, config.DefaultListener(x.Service+"@"+x.Address.String(), config.OriginConsul, x.Address, x.Service))
	}
	spec, shadowed := spec.With(clusters, nil)
	if len(shadowed) > 0 {
		w.notes.add(slog.LevelInfo, "services of the catalog use the clusters of these names that are there already", "clusters", shadowed)
	}
	spec = spec.WithOptional(listeners)
	for _, r := range l.Refused {
		spec.UnsupportedListeners = append(spec.UnsupportedListeners, node.Unsupported{Name: r.Service + "@" + r.Value, Reason: r.Reason})
	}
	for _, un := range spec.UnsupportedListeners {
		w.notes.add(slog.LevelWarn, "a listener of the catalog is refused", "listener", un.Name, "reason", un.Reason)
	}
	return spec
}

// tellTrouble logs when the catalog begins or ceases to tell its listeners.
func (w *wanted) tellTrouble(l *consul.Listeners) {
	text := ""
	if l != nil && l.Err != nil {
		text = l.Err.Error()
	}
	if text == w.trouble {
		return
	}
	w.trouble = text
	if text != "" {
		w.notes.log.Warn("the catalog does not tell its listeners, the last ones stay", "err", text)
	} else {
		w.notes.log.Info("the catalog tells its listeners", "listeners", len(l.Listeners))
	}
}

// waiting says, a line each, whose first word was not taken yet.
func (w *wanted) waiting(cds, catalog bool) (lines []string) {
	line := func(what string, known bool, err error) {
		switch {
		case known && (!w.staleWaits || restoredAge(err) == ""):
		case err != nil:
			lines = append(lines, fmt.Sprintf("%s: %v", what, err))
		default:
			lines = append(lines, what+": no answer yet")
		}
	}
	if cds {
		u := w.cds.taken.Load()
		if u == nil {
			u = new(xds.ClustersUpdate)
		}
		line("clusters of the control plane", u.Known, u.Err)
	}
	if catalog {
		l := w.catalog.taken.Load()
		if l == nil {
			l = new(consul.Listeners)
		}
		line("listeners of the catalog", l.Known, l.Err)
	}
	return lines
}

// restored says, a line each, of which giver the last word is one of an earlier run.
func (w *wanted) restored() (lines []string) {
	if u := w.cds.said.Load(); u != nil && restoredAge(u.Err) != "" {
		lines = append(lines, fmt.Sprintf("clusters of the control plane: stale, those of before the restart, %s old", restoredAge(u.Err)))
	}
	if l := w.catalog.said.Load(); l != nil && restoredAge(l.Err) != "" {
		lines = append(lines, fmt.Sprintf("listeners of the catalog: stale, those of before the restart, %s old", restoredAge(l.Err)))
	}
	return lines
}

// notes are what is to be said about a state, each once for as long as it lasts, at a
// rate.
type notes struct {
	log       *slog.Logger
	said, now map[string]bool
	limit     loglimit.Limit
}

func (n *notes) add(level slog.Level, msg string, args ...any) {
	key := fmt.Sprint(msg, args)
	if n.now == nil {
		n.now = make(map[string]bool)
	}
	if !n.said[key] && !n.now[key] {
		if held, ok := n.limit.Allow(); ok {
			if held > 0 {
				args = append(args, "not_logged", held)
			}
			n.log.Log(context.Background(), level, msg, args...)
		}
	}
	n.now[key] = true
}

// end ends the notes about one state.
func (n *notes) end() { n.said, n.now = n.now, nil }
