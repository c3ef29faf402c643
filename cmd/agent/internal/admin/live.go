package admin

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
	"time"

	"gatehouse.internal/cmd/agent/internal/admin/page"
	"gatehouse.internal/cmd/agent/internal/node"
	"gatehouse.internal/forwarder"
)

// The limits of what the live page is told: bytes of a text, and endpoints that the
// picture of a selector names.
const (
	liveText  = 300
	liveParts = 24
)

// The rows of the live page. page.js knows their fields; times are of RFC 3339,
// durations are in seconds.

type liveAgent struct {
	State    State     `json:"state"`
	Waiting  []string  `json:"waiting,omitempty"`
	Restored []string  `json:"restored,omitempty"`
	Version  string    `json:"version"`
	Node     string    `json:"node"`
	Started  time.Time `json:"started"`
	Now      time.Time `json:"now"`
	Drain    bool      `json:"drain"` // it can be asked to
	Enable   bool      `json:"enable"`
	Active   int64     `json:"active"`
	Accepted uint64    `json:"accepted"`
	Failed   uint64    `json:"failed"`  // connections that ended with another flag than -
	Bounds   []float64 `json:"bounds"`  // of Connect's buckets but for the last, in seconds
	Connect  []uint64  `json:"connect"` // connects of all clusters, in each bucket
	In       uint64    `json:"in"`
	Out      uint64    `json:"out"`
}

type liveListener struct {
	Name        string `json:"name"`
	Origin      string `json:"origin"`
	Address     string `json:"address,omitempty"`
	Cluster     string `json:"cluster"`
	Selector    string `json:"selector,omitempty"`
	Unsupported string `json:"unsupported,omitempty"`
	Draining    bool   `json:"draining,omitempty"`
	Active      int64  `json:"active"`
	Accepted    uint64 `json:"accepted"`
	Failed      uint64 `json:"failed"`
}

type liveCluster struct {
	Name        string         `json:"name"`
	Origin      string         `json:"origin"`
	Unsupported string         `json:"unsupported,omitempty"`
	Waiting     string         `json:"waiting,omitempty"`
	Aggregate   []string       `json:"aggregate,omitempty"`
	Generation  uint64         `json:"generation"`
	Ready       int            `json:"ready"`
	Listed      int            `json:"listed"`
	Active      int64          `json:"active"`
	Opened      uint64         `json:"opened"`
	Failed      uint64         `json:"failed"`
	Connect     []uint64       `json:"connect,omitempty"` // as the agent's
	Source      liveSource     `json:"source"`
	Blocks      []liveSource   `json:"blocks,omitempty"`
	Selectors   []liveSelector `json:"selectors,omitempty"`
}

type liveSource struct {
	Kind      string     `json:"kind,omitempty"`
	State     string     `json:"state"`
	Since     *time.Time `json:"since,omitempty"`
	Confirmed *time.Time `json:"confirmed,omitempty"`
	Error     string     `json:"error,omitempty"`
	Updates   uint64     `json:"updates"`
	Endpoints int        `json:"endpoints,omitempty"`
	Restored  bool       `json:"restored,omitempty"`
}

type liveSelector struct {
	Name       string  `json:"name"`
	Policy     string  `json:"policy"`
	Generation uint64  `json:"generation"`
	Rebuilds   uint64  `json:"rebuilds"`
	Failed     uint64  `json:"failed"`
	Queue      float64 `json:"queue_seconds"`
	Build      float64 `json:"build_seconds"`
	Bytes      int     `json:"bytes"`
	Panic      bool    `json:"panic,omitempty"`
	Error      string  `json:"error,omitempty"`
}

type liveEndpoint struct {
	Address  string     `json:"address"`
	Weight   uint32     `json:"weight"`
	Priority uint8      `json:"priority,omitempty"`
	Zone     string     `json:"zone,omitempty"`
	State    node.State `json:"state"`
	Degraded bool       `json:"degraded,omitempty"`
	Disabled bool       `json:"disabled,omitempty"`
	Since    *time.Time `json:"since,omitempty"`
	Why      string     `json:"why,omitempty"`
	Active   int64      `json:"active"`
	Opened   uint64     `json:"opened"`
	Failed   uint64     `json:"failed"`
}

// liveShares has the endpoints with the most, and how many others share the Rest. A
// ring's sectors are indices of Parts, -1 for nobody, or -2 to -4 for one of the others,
// so that neighbours can be told apart.
type liveShares struct {
	Selector   string     `json:"selector"`
	Policy     string     `json:"policy"`
	Generation uint64     `json:"generation"`
	Keys       int        `json:"keys,omitempty"`
	Parts      []livePart `json:"parts"`
	Others     int        `json:"others,omitempty"`
	Rest       float64    `json:"rest,omitempty"`
	Ring       []int      `json:"ring,omitempty"`
}

type livePart struct {
	Address string  `json:"address"`
	Share   float64 `json:"share"`
}

type liveControl struct {
	Server    string     `json:"server"`
	Connected bool       `json:"connected"`
	Since     *time.Time `json:"since,omitempty"`
	Error     string     `json:"error,omitempty"`
	Types     []liveType `json:"types"`
}

type liveType struct {
	Name      string     `json:"name"`
	Version   string     `json:"version,omitempty"`
	Resources int        `json:"resources"`
	Acked     *time.Time `json:"acked,omitempty"`
	Nacked    *time.Time `json:"nacked,omitempty"`
	Nack      string     `json:"nack,omitempty"`
}

func text(s string) string { return page.Cut(s, liveText) }

func texts(lines []string) (out []string) {
	for _, s := range lines[:min(len(lines), 8)] {
		out = append(out, text(s))
	}
	return out
}

// failures counts connections that did not end well.
func failures(st *forwarder.Stats) (n uint64) {
	for f, count := range st.Flags {
		if forwarder.Flag(f) != forwarder.FlagNone {
			n += count
		}
	}
	return n
}

// live returns the rows of the live page, with the details of a cluster.
func (cfg *Config) live(cluster string) page.Rows {
	rows := make(page.Rows)
	st := cfg.Summary()
	state, waiting := cfg.State()
	a := liveAgent{
		State: state, Waiting: texts(waiting), Version: cfg.Version, Node: cfg.Node, Started: cfg.Started.UTC(),
		Now: time.Now().UTC().Truncate(time.Millisecond), Drain: cfg.Drain != nil, Enable: cfg.SetEnabled != nil,
	}
	if cfg.Restored != nil {
		a.Restored = texts(cfg.Restored())
	}
	for i := range st.Listeners {
		l := &st.Listeners[i]
		lr := liveListener{
			Name: l.Name, Origin: l.Origin, Cluster: l.Cluster, Selector: l.Selector, Unsupported: text(l.Unsupported), Draining: l.Draining,
			Active: l.Stats.Active, Accepted: l.Stats.Accepted, Failed: failures(&l.Stats),
		}
		if l.Address.IsValid() {
			lr.Address = l.Address.String()
		}
		var to []string
		for _, w := range l.Weighted[:min(len(l.Weighted), 8)] {
			to = append(to, w.Name)
		}
		lr.Cluster = cmp.Or(lr.Cluster, strings.Join(to, ", "))
		rows.Set("listener|"+l.Name+"|"+lr.Address, lr)
		a.Active += lr.Active
		a.Accepted += lr.Accepted
		a.Failed += lr.Failed
		a.In += l.Stats.BytesIn
		a.Out += l.Stats.BytesOut
	}
	var took forwarder.LatencyCounts
	for i := range st.Clusters {
		took.Add(&st.Clusters[i].Connect)
	}
	a.Connect = took.Buckets[:]
	for _, b := range forwarder.LatencyBounds {
		a.Bounds = append(a.Bounds, b.Seconds())
	}
	rows.Set("agent|", a)
	for _, c := range st.Clusters {
		rows.Set("cluster|"+c.Name, liveClusterOf(c))
	}
	if cfg.XDS != nil {
		if x := cfg.XDS(); x.Server != "" {
			cr := liveControl{Server: x.Server, Connected: x.Connected, Since: instant(x.Since), Error: text(x.LastError)}
			for _, t := range x.Types {
				cr.Types = append(cr.Types, liveType{
					Name: t.URL[strings.LastIndexByte(t.URL, '.')+1:], Version: text(t.Version), Resources: len(t.Resources),
					Acked: instant(t.LastAckAt), Nacked: instant(t.LastNackAt), Nack: text(t.LastNack),
				})
			}
			rows.Set("control|", cr)
		}
	}
	if c, shares, ok := cfg.Cluster(cluster); ok {
		for _, e := range c.Endpoints {
			er := liveEndpoint{
				Address: e.Addr.String(), Weight: e.Weight, Priority: e.Priority, Zone: text(cmp.Or(e.Locality.Zone, e.Locality.Region)),
				State: e.State, Degraded: e.Degraded, Disabled: e.Disabled, Since: instant(e.Since), Why: text(e.Why),
				Active: e.Totals.Active, Opened: e.Totals.Opened, Failed: e.Totals.Failed,
			}
			rows.Set("endpoint|"+er.Address, er)
		}
		for _, s := range shares {
			rows.Set("shares|"+s.Name, liveSharesOf(s))
		}
	}
	return rows
}

func liveClusterOf(c node.ClusterStatus) liveCluster {
	cr := liveCluster{
		Name: c.Name, Origin: c.Origin, Unsupported: text(c.Unsupported), Waiting: text(c.Waiting), Aggregate: c.Aggregate,
		Generation: c.Generation, Ready: c.Counts.Ready, Listed: c.Counts.Listed,
		Active: c.Totals.Active, Opened: c.Totals.Opened, Failed: c.Totals.Failed,
		Source: liveSource{
			State: c.Source.State, Since: instant(c.Source.Since), Confirmed: instant(c.Source.Confirmed), Error: text(c.Source.Err),
			Updates: c.Source.Updates, Restored: c.Source.Restored != nil,
		},
	}
	if c.Connect.Count() > 0 {
		cr.Connect = c.Connect.Buckets[:]
	}
	for _, b := range c.Source.Blocks {
		cr.Blocks = append(cr.Blocks, liveSource{
			Kind: b.Kind, State: b.State, Since: instant(b.Since), Error: text(b.Err), Updates: b.Updates, Endpoints: b.Endpoints, Restored: b.Restored != nil,
		})
	}
	for _, s := range c.Selectors {
		sr := liveSelector{
			Name: s.Name, Policy: s.Policy, Generation: s.Generation, Rebuilds: s.Rebuilds, Failed: s.Failed,
			Queue: s.Queue.Seconds(), Build: s.Build.Seconds(), Bytes: s.Bytes,
		}
		for _, l := range s.Loads {
			sr.Panic = sr.Panic || l.Panic
		}
		if s.Err != nil {
			sr.Error = text(s.Err.Error())
		}
		cr.Selectors = append(cr.Selectors, sr)
	}
	return cr
}

func liveSharesOf(s node.SelectorShares) liveShares {
	sr := liveShares{Selector: s.Name, Policy: s.Policy, Generation: s.Generation, Keys: s.Keys, Parts: []livePart{}}
	order := make([]int, len(s.Parts))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(s.Parts[b].Share, s.Parts[a].Share) })
	named := make(map[int]int) // of those in sr.Parts
	for _, i := range order {
		if p := s.Parts[i]; len(sr.Parts) < liveParts {
			named[i] = len(sr.Parts)
			sr.Parts = append(sr.Parts, livePart{p.Addr.String(), p.Share})
		} else {
			sr.Others++
			sr.Rest += p.Share
		}
	}
	for _, i := range s.Ring {
		at, ok := named[i]
		switch {
		case i < 0:
			at = -1
		case !ok:
			at = -2 - i%3
		}
		sr.Ring = append(sr.Ring, at)
	}
	return sr
}

// livePage returns the page of the agent.
func livePage(cfg *Config) *page.Page { return page.New(page.Config{Rows: cfg.live, Log: cfg.Log}) }

// withToken refuses what a browser asks to be changed without the token of the page:
// other pages can't read that, even one that comes by as the same origin's.
func withToken(p *page.Page, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isBrowser(r) && changes(r) && !p.Knows(r) {
			http.Error(w, "the token of the page is missing or of another run of the agent: load the page again", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}
