package config

import (
	"reflect"
)

// Reload returns what an agent runs that ran c and has read next: next, but for
// the settings that only a restart can change, which stay as they are. What can
// change without has the tag reload. Both lists have the paths of settings that
// differ, as "log.level" and "xds.server", in the order of their definition:
// settings those that are in force with after, restart the others. Clusters and
// listeners, which are never among these, are next's. It may be called from
// anywhere.
func (c *Config) Reload(next *Config) (after *Config, settings, restart []string) {
	after = new(*next)
	d := differences{settings: []string{}, restart: []string{}}
	d.block("", newBlock("", reflect.TypeFor[Config]()), false,
		reflect.ValueOf(c).Elem(), reflect.ValueOf(next).Elem(), reflect.ValueOf(after).Elem())
	return after, d.settings, d.restart
}

// differences are the paths of settings that differ.
type differences struct{ settings, restart []string }

// block compares two values of a block, and puts what stays into after.
func (d *differences) block(p path, b *block, live bool, was, next, after reflect.Value) {
	before := len(d.settings) + len(d.restart)
	for i := range b.fields {
		f := &b.fields[i]
		at := p.sub(f.name)
		x, y := was.Field(f.index), next.Field(f.index)
		switch {
		case p == "" && f.many: // clusters and listeners
		case f.block != nil && !f.many:
			d.block(at, f.block, live || f.live, x, y, after.Field(f.index))
		case !reflect.DeepEqual(x.Interface(), y.Interface()):
			d.note(at, live || f.live, x, after.Field(f.index))
		}
	}
	// What is in no argument: that there is such a block.
	if p != "" && len(d.settings)+len(d.restart) == before && !reflect.DeepEqual(was.Interface(), next.Interface()) {
		d.note(p, live, was, after)
	}
}

func (d *differences) note(p path, live bool, was, after reflect.Value) {
	if live {
		d.settings = append(d.settings, p.join("."))
		return
	}
	d.restart = append(d.restart, p.join("."))
	after.Set(was)
}
