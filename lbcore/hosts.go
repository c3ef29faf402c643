package lbcore

import "sync"

// Hosts knows of every address which Members of the node's Views have it, so
// that what is open to an address can be summed up over all clusters, and those of a
// cluster whose settings have changed are counted together. The zero value is ready for use. Its methods may be called from anywhere.
type Hosts struct {
	mu sync.Mutex
	// The first of those that are listed by a View, or have connections; the others
	// follow by Member.next. Most addresses are in one View.
	m map[Addr]*Member
}

// add takes in a new Member of a View. It is nobody else's yet.
func (h *Hosts) add(m *Member) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.insert(m)
	for x := m.next; x != nil; x = x.next { // the newest comes first
		if x.view.name == m.view.name {
			m.before.Store(x)
			return
		}
	}
}

// leave is told that the View has forgotten m. It is followed as long as it has
// connections, which count for the address.
func (h *Hosts) leave(m *Member) {
	m.conns.Or(connLeft)
	h.follow(m)
}

// follow keeps a Member that its View has forgotten while it has connections.
// It is called whenever their number has changed.
func (h *Hosts) follow(m *Member) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if m.Active() > 0 {
		h.insert(m)
		return
	}
	a := m.Addr()
	first := h.m[a]
	at := &first
	for *at != nil && *at != m {
		at = &(*at).next
	}
	if *at == nil {
		return
	}
	*at, m.next = m.next, nil
	for x := first; x != nil; x = x.next { // nobody holds its View for it
		x.before.CompareAndSwap(m, m.before.Load())
	}
	if first == nil {
		delete(h.m, a)
	} else {
		h.m[a] = first
	}
}

// insert adds m unless it is there. The caller holds mu.
func (h *Hosts) insert(m *Member) {
	if h.m == nil {
		h.m = make(map[Addr]*Member)
	}
	a := m.Addr()
	for x := h.m[a]; x != nil; x = x.next {
		if x == m {
			return
		}
	}
	m.next = h.m[a]
	h.m[a] = m
}

// count returns the connections and dials to an address.
func (h *Hosts) count(a Addr) (open, dialing int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for m := h.m[a]; m != nil; m = m.next {
		c := m.conns.Load()
		open += c & connMask
		dialing += c >> connBits & connMask
	}
	return open, dialing
}

// Len returns the number of addresses that are listed by a View or have
// connections.
func (h *Hosts) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.m)
}
