package xds

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"gatehouse.internal/discovery"
	"gatehouse.internal/internal/lastgood"
	"gatehouse.internal/xds/internal/core"
)

// buckets is how many items the resources of a type are kept in: a change writes
// one of them, and many resources are not as many files.
const buckets = 256

// keeping is what is on disk of the resources in force: their bytes as the server
// sent them, so that they are read and judged anew. The loop owns it.
type keeping struct {
	types map[string]*keptType // by URL; empty where nothing is kept
}

// keptType is what is kept of one type.
type keptType struct {
	items   [buckets]*lastgood.Item
	held    [buckets]map[string]core.HeldResource // in force, sharing the core's memory
	dirty   map[int]bool
	fresh   bool
	answers bool // a server has answered since the start
	// empty says that a server has said that there is none. It is kept as an empty first
	// bucket, and was so in an earlier run until nothing, if that is set.
	empty   bool
	nothing time.Time

	former map[string]former // of an earlier run, that nobody has asked for yet
	times  map[string]time.Time
}

// keptResource is a resource on disk.
type keptResource struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Body    []byte `json:"body"`
}

// former is a resource of an earlier run.
type former struct {
	keptResource
	confirmed time.Time
}

func bucketOf(name string) int {
	h := fnv.New32a()
	h.Write([]byte(name))
	return int(h.Sum32() % buckets)
}

// scope says on what it depends beside its name what a resource is: who asks whom.
func (cfg *Config) scope() string {
	parts := []string{cfg.Node.ID, cfg.Node.Cluster}
	for _, s := range cfg.Servers {
		parts = append(parts, s.URI)
	}
	return strings.Join(parts, " ")
}

// keptKinds are the kinds of items, by type.
var keptKinds = map[string]string{ClusterType: "clusters", AssignmentType: "assignments", ListenerType: "listeners"}

// newKeeping reads what an earlier run has kept.
func newKeeping(c *Config) *keeping {
	k := &keeping{types: make(map[string]*keptType)}
	if c.State == nil {
		return k
	}
	scope := c.scope()
	for url, kind := range keptKinds {
		t := &keptType{dirty: make(map[int]bool), former: make(map[string]former), times: make(map[string]time.Time)}
		k.types[url] = t
		for i := range buckets {
			item := c.State.Item(lastgood.Key{Kind: kind, Name: fmt.Sprintf("%d of %d: %s", i, buckets, scope)})
			t.items[i] = item
			r, ok := item.Load()
			if !ok {
				continue
			}
			list, err := decodeResources(r.Payload)
			if err != nil {
				item.Damaged(err)
				continue
			}
			if i == 0 && len(list) == 0 {
				t.nothing = r.Confirmed
			}
			for _, x := range list {
				t.former[x.Name] = former{x, r.Confirmed}
			}
		}
	}
	return k
}

// nothing returns until when it was right that there is no resource of a type, if an
// earlier run knew that; else the zero Time.
func (k *keeping) nothing(url string) time.Time {
	if t := k.types[url]; t != nil && len(t.former) == 0 && len(t.times) == 0 && !t.answers {
		return t.nothing
	}
	return time.Time{}
}

// release gives up all items.
func (k *keeping) release() {
	for _, t := range k.types {
		for _, i := range t.items {
			i.Release()
		}
	}
}

// restore has the core know what an earlier run knew of name, if it does not know
// more. It is followed by a subscription.
func (l *loop) restore(url, name string) {
	t := l.keeping.types[url]
	if t == nil {
		return
	}
	f, ok := t.former[name]
	if !ok {
		return
	}
	delete(t.former, name)
	if err := l.core.Restore(url, name, f.Version, f.Body); err != nil {
		l.causes.tell(slog.LevelWarn, "restore", name+err.Error(), "a resource of before the restart can't be used any more",
			"type", url, "resource", name, "err", err)
		return
	}
	t.times[name] = f.confirmed
}

// restoreAll is restore of all names of a type.
func (l *loop) restoreAll(url string) {
	t := l.keeping.types[url]
	if t == nil || len(t.former) == 0 {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(t.former)) {
		l.restore(url, name)
	}
	var oldest time.Duration
	for _, at := range t.times {
		oldest = max(oldest, lastgood.Age(at))
	}
	l.c.log.Warn("xds resources of before the restart are in force until the server answers",
		"type", url, "resources", len(t.times), "age", oldest.Round(time.Second).String())
}

// restored returns until when the value in force of a resource was right, if it is
// that of an earlier run; else the zero Time.
func (l *loop) restored(url, name string) time.Time {
	if h, ok := l.core.Held(url, name); ok && h.Restored {
		if t := l.keeping.types[url]; t != nil {
			return t.times[name]
		}
	}
	return time.Time{}
}

// keep notes the value in force of a resource.
func (l *loop) keep(url, name string) {
	t := l.keeping.types[url]
	if t == nil {
		return
	}
	h, ok := l.core.Held(url, name)
	if !ok {
		return
	}
	i := bucketOf(name)
	was, had := t.held[i][name]
	if h.TTL { // it would be over by then
		l.unkeep(url, name)
		return
	}
	if what := secretIn(url, h.Body); what != "" {
		l.causes.tell(slog.LevelInfo, "secret", name+what, "a resource is not kept on disk, since it holds what is secret", "type", url, "resource", name, "field", what)
		l.unkeep(url, name)
		return
	}
	if had && was.Body == h.Body {
		return
	}
	if t.held[i] == nil {
		t.held[i] = make(map[string]core.HeldResource)
	}
	t.held[i][name] = h
	t.dirty[i] = true
}

// unkeep notes that a resource is of no more use.
func (l *loop) unkeep(url, name string) {
	if t := l.keeping.types[url]; t != nil {
		i := bucketOf(name)
		if _, had := t.held[i][name]; had {
			delete(t.held[i], name)
			t.dirty[i] = true
		}
	}
}

// unkeepLater is unkeep for what nobody wants any more, once that has been so for a
// while. At the end of a run, and when another client takes the place of this one, the
// watches may end before it: what is kept is for the next one.
func (l *loop) unkeepLater(url, name string) {
	if l.keeping.types[url] != nil {
		l.timers.start(core.Timer{Kind: timerUnkeep, Type: url, Name: name}, time.Now().Add(l.c.cfg.InitialFetchTimeout))
	}
}

// unkeepUnwanted is unkeep unless somebody wants the resource again.
func (l *loop) unkeepUnwanted(url, name string) {
	if url == ClusterType && l.clusters.entries[name] != nil || url == ListenerType && l.listeners.entries[name] != nil ||
		url == AssignmentType && l.eds[name] != nil {
		return
	}
	l.unkeep(url, name)
}

// answered notes that a server has answered about a type. What nobody has asked for
// by then is forgotten.
func (l *loop) answered(url string) {
	t := l.keeping.types[url]
	if t == nil || t.answers {
		return
	}
	t.answers = true
	if !t.nothing.IsZero() {
		t.dirty[0] = true // it may be so no more
	}
	for name := range t.former {
		t.dirty[bucketOf(name)] = true
	}
	t.former = nil
}

// noteEmpty notes whether there is none of a type of which every resource is asked for,
// by the numbers of watches and of what they know of.
func (k *keeping) noteEmpty(url string, watches, entries int) {
	t := k.types[url]
	if t == nil || watches == 0 || !t.answers {
		return // what is kept is for the next ones
	}
	if empty := entries == 0; empty != t.empty {
		t.empty = empty
		t.dirty[0] = true
	}
}

// write hands what has changed to who writes it.
func (l *loop) write() {
	connected := l.servers[l.active].connected && l.trouble == ""
	l.keeping.noteEmpty(ClusterType, len(l.clusters.watches), len(l.clusters.entries))
	l.keeping.noteEmpty(ListenerType, len(l.listeners.watches), len(l.listeners.entries))
	for _, t := range l.keeping.types {
		if fresh := connected && t.answers; fresh != t.fresh {
			t.fresh = fresh
			for _, item := range t.items {
				item.Fresh(fresh)
			}
		}
		for i := range t.dirty {
			held := maps.Clone(t.held[i])
			for name, f := range t.former { // not asked for yet, and as good as what is held
				if bucketOf(name) == i {
					if held == nil {
						held = make(map[string]core.HeldResource)
					}
					held[name] = core.HeldResource{Version: f.Version, Body: string(f.Body)}
				}
			}
			if len(held) == 0 && (i != 0 || !t.empty) {
				t.items[i].Remove()
			} else {
				t.items[i].Put(func() ([]byte, error) { return encodeResources(held) })
			}
		}
		clear(t.dirty)
	}
}

func encodeResources(held map[string]core.HeldResource) ([]byte, error) {
	list := make([]keptResource, 0, len(held))
	for _, name := range slices.Sorted(maps.Keys(held)) {
		list = append(list, keptResource{name, held[name].Version, []byte(held[name].Body)})
	}
	return json.Marshal(list)
}

func decodeResources(b []byte) (list []keptResource, err error) {
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, err
	}
	if list == nil {
		return nil, errors.New("it has no list of resources")
	}
	for i, x := range list {
		if x.Name == "" || x.Name == core.Wildcard {
			return nil, fmt.Errorf("resource %d is called %q", i, x.Name)
		}
	}
	return list, nil
}

// stale returns err as the reason why what was right until then is not confirmed.
func stale(restored time.Time, err error) error {
	if restored.IsZero() {
		return err
	}
	if err == nil {
		err = discovery.ErrNoAnswer
	}
	return &discovery.RestoredError{Confirmed: restored, Reason: err}
}
