package forwarder

import (
	"errors"
	"net/netip"
	"sync"
)

var errCircle = errors.New("original_dst: the connection is the agent's own, redirected back to it: leave what the agent sends out of the rule")

// Circles finds connections that a redirect leads round: from a Listener with
// OriginalDst, by a rule that also catches what the agent sends, back to such a
// Listener. One client of that would take all descriptors; it still goes round as
// long as accepting is faster than dialling. The zero value is ready; the
// Listeners that are given the same find each other's connections.
type Circles struct {
	// Both ends of a connection are here, by its addresses. Whichever comes second
	// finds the other.
	accepted, dialled sync.Map // of hop
}

// hop is where a connection comes from, and where it was meant to go.
type hop struct{ from, to netip.AddrPort }

// arrives tells what the client had connected to, and returns errCircle if the
// client is the agent itself. local is this end of the connection.
func (f *flow) arrives(to, local netip.AddrPort) error {
	f.connectedTo(to)
	h := hop{f.client, to}
	if to == local || !to.IsValid() || !f.client.IsValid() {
		return nil
	}
	f.rare.arrived = h
	f.l.cfg.Circles.accepted.Store(h, nil)
	return f.circle(&f.l.cfg.Circles.dialled, h)
}

// leaves tells of a connection to an endpoint, from its own end to the other, and
// returns errCircle if that is the agent itself. dialFailed, finish and the next call take it back.
func (f *flow) leaves(from, to netip.AddrPort) error {
	if !f.settings.OriginalDst && !f.handed || !from.IsValid() || !to.IsValid() {
		return nil
	}
	h := hop{from, to}
	if f.rare != nil && f.rare.left == h {
		return nil
	}
	f.returns()
	f.known().left = h
	f.l.cfg.Circles.dialled.Store(h, nil)
	return f.circle(&f.l.cfg.Circles.accepted, h)
}

// returns takes back what leaves has told.
func (f *flow) returns() {
	if f.rare != nil && f.rare.left != (hop{}) {
		f.l.cfg.Circles.dialled.Delete(f.rare.left)
		f.rare.left = hop{}
	}
}

// gone takes back what arrives and leaves have told.
func (f *flow) gone() {
	f.returns()
	if f.rare != nil && f.rare.arrived != (hop{}) {
		f.l.cfg.Circles.accepted.Delete(f.rare.arrived)
		f.rare.arrived = hop{}
	}
}

// circle returns errCircle if h has its other end in ends.
func (f *flow) circle(ends *sync.Map, h hop) error {
	if _, ok := ends.Load(h); !ok {
		return nil
	}
	if held, ok := f.l.failLog.allow(); ok {
		f.l.log.Warn("a connection of the agent's own comes back to it", "from", h.from, "to", h.to, "err", errCircle, "not_logged", held)
	}
	return errCircle
}
