package core

import (
	"errors"
	"fmt"
)

// Restore takes in a resource that an earlier run had accepted, as if a server had
// given it that does not exist any more: it is handed on to who subscribes, which
// is to follow at once, and no server is told that it is held. What the next
// server does not confirm ends by the rules for what another server gave. The bytes
// are decoded anew; on an error nothing is known of the resource.
//
// A server is not told the version because it would send nothing then if it has one
// of the same name: what a server that has started anew calls "1" need not be what
// was called so before.
func (c *Core) Restore(url, name, version string, body []byte) error {
	t := c.typ(url)
	if t == nil {
		return errors.New("of a type that is not asked for")
	}
	if r := t.res[name]; r != nil && r.known() {
		return nil // what is known is newer
	}
	got, value, err := t.Decode(body)
	switch {
	case err != nil:
		return err
	case got != name:
		return fmt.Errorf("is called %q inside", got)
	case t.byBody[string(body)] != nil:
		return errors.New("is there twice")
	}
	it := received{name: name, body: body}
	if c.limit(t, t.res[name], &it); it.err != "" {
		return errors.New(it.err)
	}
	r := t.res[name]
	if r == nil {
		r = t.add(name)
	}
	r.held, r.value, r.body, r.version, r.from, r.restored = true, value, string(body), version, nobody, true
	t.byBody[r.body] = r
	t.count(r)
	return nil
}

// HeldResource is a resource that a Core holds.
type HeldResource struct {
	Version, Body string
	// Restored says that it is of an earlier run, and was not confirmed since.
	Restored bool
	// TTL says that it ends unless it is renewed.
	TTL bool
}

// Held returns what is held of a name, if anything.
func (c *Core) Held(url, name string) (HeldResource, bool) {
	if t := c.typ(url); t != nil {
		if r := t.res[name]; r != nil && r.held {
			return HeldResource{r.version, r.body, r.restored, r.ttl}, true
		}
	}
	return HeldResource{}, false
}
