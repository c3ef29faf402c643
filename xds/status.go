package xds

import (
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"gatehouse.internal/xds/internal/core"
	"gatehouse.internal/xds/internal/lrs"
	"gatehouse.internal/xds/internal/names"
)

// Status is a snapshot of a Client for dumps and logs.
type Status struct {
	// Server is the URI of the server that counts: the first, or one that takes
	// its place. Protocol is the variant of the protocol that it speaks, as far as
	// that is known: empty between streams.
	Server   string
	Protocol Protocol
	// Connected says that a stream is open, which need not mean that the server
	// answers. Since is when it was opened or ended.
	Connected bool
	Since     time.Time
	// LastError is what ended the last stream; empty if none has ended.
	LastError   string
	LastErrorAt time.Time
	// Types are CDS, EDS, LDS and SDS, in this order.
	Types []TypeStatus
}

// TypeStatus is what a Client knows of one resource type.
type TypeStatus struct {
	URL string
	// Version is that of the last response that was accepted as a whole; Nonce
	// is that of the last response on the present stream.
	Version, Nonce string
	// Wildcard says that all resources of the type are asked for.
	Wildcard bool
	// LastNack is the text of the last refusal.
	LastNack              string
	LastAckAt, LastNackAt time.Time
	// Resources are those that are held or asked for, sorted by name.
	Resources []ResourceStatus
}

// ResourceStatus is what a Client knows of one resource.
type ResourceStatus struct {
	Name string
	// State is "requested", "acked", "nacked", "does_not_exist" or
	// "received_error". Source: envoy.admin.v3.ClientResourceStatus.
	State string
	// Version is that of the response with the value in force; empty if there
	// is none.
	Version string
	// Error says why the newest version was refused, or why the server can't give
	// it; empty if neither is so.
	Error string
	// Updated is when the value in force came.
	Updated time.Time
	// Body has the bytes of the value in force, which is a message of the type's
	// URL as the server sent it, and Refused those of the newest version if that was
	// refused. Refused may be missing: of a type 64 MiB are kept.
	Body, Refused string
	// Nack is the last refusal, which is what Error says or has been mended since;
	// the zero value if none is known.
	Nack Nack
}

// Nack is the refusal of one version of a resource.
type Nack struct {
	Version, Reason string
	// At is when that version came last.
	At time.Time
}

// Resource returns what is known of the resource of a type and name, which may be
// written as the control plane does; nil if nothing is.
func (s *Status) Resource(url, name string) *ResourceStatus {
	name = names.Canonical(name)
	for i := range s.Types {
		if s.Types[i].URL != url {
			continue
		}
		all := s.Types[i].Resources
		at, there := slices.BinarySearchFunc(all, name, func(r ResourceStatus, name string) int { return strings.Compare(r.Name, name) })
		if there {
			return &all[at]
		}
	}
	return nil
}

// Status returns the present state. Before Run there is nothing but the name of
// the server; after it, what was known at its end.
func (c *Client) Status() Status {
	reply := make(chan Status, 1)
	c.mu.Lock()
	running := c.running
	if running {
		c.commands = append(c.commands, func(l *loop) { reply <- l.status() })
	}
	c.mu.Unlock()
	if running {
		signal(c.wake)
		select {
		case s := <-reply:
			return s
		case <-c.done:
		}
	}
	if s := c.last.Load(); s != nil {
		return *s
	}
	return Status{Server: c.cfg.Servers[0].URI}
}

func (l *loop) status() Status {
	active := &l.servers[l.active]
	s := Status{
		Server: l.uri(l.active), Connected: active.connected, Since: active.since,
		LastError: active.lastError, LastErrorAt: active.errorAt,
	}
	if active.connected {
		s.Protocol = Protocol(active.variant.String())
	}
	for _, t := range l.core.Dump() {
		n := l.types[t.URL]
		ts := TypeStatus{
			URL: t.URL, Version: t.Version, Nonce: t.Nonce, Wildcard: t.Wildcard,
			LastNack: n.nack, LastAckAt: n.lastAck, LastNackAt: n.lastNack,
		}
		for _, r := range t.Resources {
			if !r.Subscribed {
				continue
			}
			rs := ResourceStatus{
				Name: r.Name, State: r.State, Version: r.Version, Error: r.Error, Updated: l.updated(t, r.Name),
				Body: r.Body, Refused: r.Refused,
			}
			if n := r.Nack; n != (core.Nack{}) {
				rs.Nack = Nack{n.Version, n.Reason, time.Unix(0, n.Mark)}
			}
			ts.Resources = append(ts.Resources, rs)
		}
		s.Types = append(s.Types, ts)
	}
	return s
}

func (l *loop) updated(t core.TypeState, name string) time.Time {
	if e := l.clusters.entries[name]; t.URL == ClusterType && e != nil {
		return e.updated
	}
	if e := l.listeners.entries[name]; t.URL == ListenerType && e != nil {
		return e.updated
	}
	if e := l.secrets[name]; t.URL == SecretType && e != nil {
		return e.updated
	}
	if e := l.eds[name]; t.URL == AssignmentType && e != nil {
		return e.updated
	}
	return time.Time{}
}

// Counters are totals since NewClient, and whether a stream is open now.
type Counters struct {
	Connected bool
	// Streams counts streams opened, Failures attempts and streams that ended
	// without a response.
	Streams, Failures uint64
	// LeftOut counts endpoints that can't be dialled by this program,
	// Duplicates those whose address was listed before; both over all versions
	// of all EDS resources.
	LeftOut, Duplicates uint64
	// Stale counts EDS resources whose endpoints were taken away because they were
	// not sent again in time. Source: Envoy's assignment_stale.
	Stale uint64

	Clusters, Assignments, Listeners, Secrets TypeCounters

	// LoadReports counts load reports that were sent, LoadFailures streams for them
	// that have ended or could not be opened.
	LoadReports, LoadFailures uint64
}

// TypeCounters are the totals of one resource type.
type TypeCounters struct {
	// Accepted and Refused count responses.
	Accepted, Refused uint64
	// Changed counts versions of resources that came into force, Invalid those
	// that were refused.
	Changed, Invalid uint64
}

type counters struct {
	connected             atomic.Bool
	streams, failures     atomic.Uint64
	leftOut, duplicates   atomic.Uint64
	stale                 atomic.Uint64
	clusters, assignments typeCounters
	listeners, secrets    typeCounters
}

type typeCounters struct{ accepted, refused, changed, invalid atomic.Uint64 }

func (c *counters) of(url string) *typeCounters {
	switch url {
	case ClusterType:
		return &c.clusters
	case ListenerType:
		return &c.listeners
	case SecretType:
		return &c.secrets
	}
	return &c.assignments
}

func (t *typeCounters) load() TypeCounters {
	return TypeCounters{t.accepted.Load(), t.refused.Load(), t.changed.Load(), t.invalid.Load()}
}

// Counters returns the totals. It takes no lock and is cheap, unlike Status.
func (c *Client) Counters() Counters {
	n := &c.counters
	var loads lrs.Counters
	if c.reporter != nil {
		loads = c.reporter.Counters()
	}
	return Counters{
		n.connected.Load(), n.streams.Load(), n.failures.Load(), n.leftOut.Load(), n.duplicates.Load(), n.stale.Load(),
		n.clusters.load(), n.assignments.load(), n.listeners.load(), n.secrets.load(), loads.Reports, loads.Failures,
	}
}
