package consul

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/hashicorp/consul/api"

	"gatehouse.internal/lbcore"
)

// What makes a service a listener: a tag that begins with listenTag, or a
// metadata entry of this key (Consul allows no dot in keys).
const (
	listenTag = "gatehouse.listen="
	listenKey = "gatehouse-listen"
)

// maxListeners bounds the listeners that a catalog may ask for.
const maxListeners = 1000

// Listener is an address that a service asks agents to listen on.
type Listener struct {
	Service string
	Address lbcore.Addr
}

// RefusedListener is a wish that is not followed, and why. Service and Value are
// quoted, and cut if long.
type RefusedListener struct{ Service, Value, Reason string }

// Listeners is what the catalog asks for.
type Listeners struct {
	// Known says that Listeners was learnt. It may be empty.
	Known bool
	// Listeners are sorted by service and address; each address is there once.
	Listeners []Listener
	Refused   []RefusedListener
	// Err is why nothing newer is known at the moment, or nil.
	Err error
}

// ResumeListeners has WatchListeners begin with what an earlier run knew, if that is
// anything: a loss is believed as it is later on. It is called before that.
func (c *Client) ResumeListeners(list []Listener) { c.resumed = list }

// WatchListeners reports which services ask to be listened for, and each change
// of it, until ctx ends; then it returns ctx.Err(). A service asks by a tag
// "gatehouse.listen=127.0.0.1:8080", or by the same address in its metadata
// under "gatehouse-listen". ":8080" means 127.0.0.1. Only loopback addresses
// are accepted, since whoever may register a service may write this. Of two
// services with one address the one that has it keeps it. Where Consul refuses to
// list services by their metadata, as old versions do, only tags count, which is
// logged. report must not block for long; nothing is reported twice.
func (c *Client) WatchListeners(ctx context.Context, report func(Listeners)) error {
	l := listing{c: c, b: blocking{c: c, opts: api.QueryOptions{AllowStale: true}}}
	if c.resumed != nil {
		l.now, l.fresh = Listeners{Known: true, Listeners: c.resumed}, true
	}
	c.list(&l.b, true)
	defer c.list(&l.b, false)
	for {
		err := l.read(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		text := ""
		if err != nil {
			text = err.Error()
		}
		if l.fresh || text != l.said {
			l.fresh, l.said = false, text
			l.now.Err = err
			report(l.now)
		}
		if err == nil {
			l.b.backoff.reset()
		} else if l.b.rest(ctx) != nil {
			return ctx.Err()
		}
	}
}

// listing is the state of WatchListeners.
type listing struct {
	c     *Client
	b     blocking
	now   Listeners
	fresh bool   // now was not reported yet
	said  string // the error that was

	filters bool // Consul has listed services by their metadata
	warned  bool // that it can't
}

// wish is what one service asks for, or why that can't be read.
type wish struct{ service, value, trouble string }

// survey is what some answers of one time come to.
type survey struct {
	c      *Client
	wishes []wish
	hidden bool  // ACLs have emptied an answer
	behind error // why an answer is not believed about what is gone
}

// note judges an answer.
func (s *survey) note(meta *api.QueryMeta, entries int) {
	s.hidden = s.hidden || entries == 0 && meta.ResultsFilteredByACLs
	if s.behind == nil {
		s.behind = s.c.behind(meta)
	}
}

// tags returns the request for the services with their tags.
func (s *survey) tags() func(*api.QueryOptions) (*api.QueryMeta, error) {
	return func(opts *api.QueryOptions) (*api.QueryMeta, error) {
		list, meta, err := s.c.api.Catalog().Services(opts)
		if err == nil && len(list) == 0 {
			err = unmask(meta, opts, func(opts *api.QueryOptions) (meta *api.QueryMeta, err error) {
				_, meta, err = s.c.api.Catalog().Services(opts)
				return meta, err
			})
		}
		if err != nil {
			return nil, err
		}
		*s = survey{c: s.c}
		s.note(meta, len(list))
		for name, tags := range list {
			for _, tag := range tags {
				if value, ok := strings.CutPrefix(tag, listenTag); ok {
					s.wishes = append(s.wishes, wish{service: name, value: value})
				}
			}
		}
		return meta, nil
	}
}

// read asks the catalog once.
func (l *listing) read(ctx context.Context) error {
	s := survey{c: l.c}
	// What ACLs take away, or give, changes no index.
	if _, _, err := l.b.once(ctx, true, s.tags()); err != nil {
		return err
	}
	if err := l.take(ctx, &s); err != nil {
		l.b.index = 0 // ask again soon
		return err
	}
	return nil
}

// take works out what the services' tags and metadata ask for.
func (l *listing) take(ctx context.Context, s *survey) error {
	if s.hidden && !l.now.Known {
		return l.c.fail(errFiltered)
	}
	if err := l.describe(ctx, s, l.b.opts); err != nil {
		return err
	}
	next := judge(s.wishes, l.now.Listeners)
	if gone := lost(l.now.Listeners, next.Listeners); len(gone) > 0 {
		switch {
		case s.hidden:
			return l.c.fail(errFiltered)
		case s.behind != nil:
			return l.c.fail(fmt.Errorf("%w: %d listeners that it does not list are kept", s.behind, len(gone)))
		case wiped(len(l.now.Listeners), len(gone)):
			sure, err := l.confirm(ctx)
			if err != nil {
				return err
			}
			next = judge(sure.wishes, l.now.Listeners)
		}
	}
	if !l.now.Known || !slices.Equal(next.Listeners, l.now.Listeners) || !slices.Equal(next.Refused, l.now.Refused) {
		l.fresh = true
	}
	next.Known = true
	l.now = next
	return nil
}

// confirm asks the leader.
func (l *listing) confirm(ctx context.Context) (*survey, error) {
	s := &survey{c: l.c}
	opts := api.QueryOptions{RequireConsistent: true} // as watch.confirm
	if _, err := l.c.lookup(ctx, opts, s.tags()); err != nil {
		return nil, err
	}
	if err := l.describe(ctx, s, opts); err != nil {
		return nil, err
	}
	switch {
	case s.hidden:
		return nil, l.c.fail(errFiltered)
	case s.behind != nil:
		return nil, l.c.fail(s.behind)
	}
	return s, nil
}

// describe adds what the metadata of services asks for. A listing of services
// has none, so those that have the key are asked for one by one.
func (l *listing) describe(ctx context.Context, s *survey, opts api.QueryOptions) error {
	var list map[string][]string
	opts.Filter = `"` + listenKey + `" in ServiceMeta`
	meta, err := l.c.lookup(ctx, opts, func(o *api.QueryOptions) (meta *api.QueryMeta, err error) {
		list, meta, err = l.c.api.Catalog().Services(o)
		return meta, err
	})
	if se, ok := errors.AsType[*statusError](err); ok && se.code == http.StatusBadRequest && !l.filters {
		if !l.warned {
			l.warned = true
			l.c.log.Warn("this consul can't list services by their metadata, so that "+listenKey+" is not followed there", "err", err)
		}
		return nil
	}
	if err != nil {
		return err
	}
	l.filters = true
	names := slices.Collect(maps.Keys(list))
	if len(names) == 0 && meta.ResultsFilteredByACLs {
		// ACLs hide some services, perhaps these. Each can tell for itself.
		for _, x := range l.now.Listeners {
			names = append(names, x.Service)
		}
	}
	s.note(meta, 1)
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if len(s.wishes) > maxListeners {
			break
		}
		if (Query{Service: name}).Validate() != nil {
			s.wishes = append(s.wishes, wish{service: name, trouble: "has metadata that can't be asked for under this name"})
			continue
		}
		var instances []*api.CatalogService
		meta, err := l.c.lookup(ctx, opts, func(o *api.QueryOptions) (meta *api.QueryMeta, err error) {
			instances, meta, err = l.c.api.Catalog().Service(name, "", o)
			return meta, err
		})
		if err != nil {
			return err
		}
		s.note(meta, len(instances))
		if len(instances) == 0 && meta.ResultsFilteredByACLs {
			s.wishes = append(s.wishes, wish{service: name, trouble: "the token may not read its metadata"})
		}
		for _, in := range instances {
			if in != nil && in.ServiceMeta[listenKey] != "" {
				s.wishes = append(s.wishes, wish{service: name, value: in.ServiceMeta[listenKey]})
			}
		}
	}
	return nil
}

// judge sorts wishes into those that are followed and those that are not.
// Those that were before have the first right, to their address and at all.
func judge(wishes []wish, before []Listener) (out Listeners) {
	slices.SortFunc(wishes, func(a, b wish) int {
		return cmp.Or(strings.Compare(a.service, b.service), strings.Compare(a.value, b.value), strings.Compare(a.trouble, b.trouble))
	})
	type claim struct {
		wish
		Listener
	}
	var claims []claim
	refuse := func(w wish, reason string) {
		if len(out.Refused) < maxListeners {
			out.Refused = append(out.Refused, RefusedListener{quote(w.service), quote(w.value), reason})
		}
	}
	for _, w := range slices.Compact(wishes) {
		if addr, err := parseListen(w); err != nil {
			refuse(w, err.Error())
		} else {
			claims = append(claims, claim{w, Listener{w.service, addr}})
		}
	}
	had := make(map[Listener]bool)
	for _, l := range before {
		had[l] = true
	}
	owner := make(map[lbcore.Addr]string)
	for _, old := range []bool{true, false} {
		for _, cl := range claims {
			switch first, taken := owner[cl.Address]; {
			case had[cl.Listener] != old:
			case taken && first != cl.Service:
				refuse(cl.wish, fmt.Sprintf("service %s has this address", quote(first)))
			case taken: // ":80" and "127.0.0.1:80"
			case len(out.Listeners) >= maxListeners:
				refuse(cl.wish, fmt.Sprintf("there are %d listeners already", maxListeners))
			default:
				owner[cl.Address] = cl.Service
				out.Listeners = append(out.Listeners, cl.Listener)
			}
		}
	}
	slices.SortFunc(out.Listeners, func(a, b Listener) int {
		return cmp.Or(strings.Compare(a.Service, b.Service), a.Address.Compare(b.Address))
	})
	return out
}

// parseListen reads the address that a service asks for.
func parseListen(w wish) (lbcore.Addr, error) {
	if w.trouble != "" {
		return lbcore.Addr{}, errors.New(w.trouble)
	}
	if (Query{Service: w.service}).Validate() != nil {
		return lbcore.Addr{}, errors.New("a service of this name can't be asked for")
	}
	value := strings.TrimSpace(w.value)
	if strings.HasPrefix(value, ":") {
		value = "127.0.0.1" + value
	}
	addr, err := lbcore.ParseAddr(value)
	switch {
	case err != nil || addr.Network() != "tcp":
		return addr, errors.New("want a loopback address with a port, as in 127.0.0.1:8080")
	case !addr.AddrPort().Addr().IsLoopback():
		return addr, errors.New("not a loopback address: a service may not open this host to others")
	}
	return addr, nil
}

// lost returns the listeners of old that next does not have.
func lost(old, next []Listener) (gone []Listener) {
	for _, l := range old {
		if !slices.Contains(next, l) {
			gone = append(gone, l)
		}
	}
	return gone
}
