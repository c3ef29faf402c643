package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"gatehouse.internal/forwarder"
	"gatehouse.internal/internal/takeover"
	"gatehouse.internal/lbcore"
)

// storedPrefix begins the names of the sockets that the agent gives to its service manager
// to keep. The kind follows, and something of the address: names are unique, and say the
// same in the next process.
const storedPrefix = "gatehouse-stored-"

// errDeaf is of a socket at which nobody can connect, whatever it is bound to.
var errDeaf = errors.New("it does not listen")

// storedName returns the name of a listening socket, and where that listens. With errDeaf
// there is an address all the same.
func storedName(kind takeover.Kind, f *os.File) (string, lbcore.Addr, error) {
	ln, err := net.FileListener(f) // a duplicate
	if err != nil {
		return "", lbcore.Addr{}, err
	}
	defer ln.Close()
	addr := boundTo(ln)
	if addr == (lbcore.Addr{}) {
		return "", addr, errors.New("it is no listening socket")
	}
	if on, err := forwarder.Accepts(f); err != nil {
		return "", addr, err
	} else if !on {
		return "", addr, errDeaf
	}
	sum := sha256.Sum256([]byte(addr.String())) // whose characters are not all fit for a name
	return fmt.Sprintf("%s%s-%x", storedPrefix, kind, sum[:8]), addr, nil
}

// storing is what an agent needs to have its service manager keep its listening sockets
// (FDSTORE of sd_notify(3)), so that they outlive a crash.
type storing struct {
	changed chan struct{} // one slot: what is listened at may have changed
	busy    chan struct{} // one slot: filled by whoever uses what follows
	stored  map[string]storedSocket
	first   chan struct{} // closed when the manager was given all once, or refused, after the agent was ready
	over    bool          // nothing is to be kept any more
}

// storedSocket is one that the manager may have.
type storedSocket struct {
	addr lbcore.Addr // the zero value if it is of no use
	file os.FileInfo // which socket it is; nil if a process before has given it
}

func newStoring() storing {
	return storing{changed: make(chan struct{}, 1), busy: make(chan struct{}, 1), first: make(chan struct{}), stored: make(map[string]storedSocket)}
}

// listenersChanged has what the manager keeps brought up to date. It may be called from
// anywhere.
func (s *storing) listenersChanged() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// sortGiven returns those of the sockets of a service manager that an agent before this one
// has given it to keep, and the others, which somebody has named.
func sortGiven(files []*os.File) (stored, named []*os.File) {
	for _, f := range files {
		if strings.HasPrefix(f.Name(), storedPrefix) {
			stored = append(stored, f)
		} else {
			named = append(named, f)
		}
	}
	return stored, named
}

// restores has a listen at the sockets that the service manager has kept, as those of a
// process that it takes over from. It is called before run, and not with succeeds.
func (a *agent) restores(files []*os.File) {
	var sockets []takeover.Socket
	for _, f := range files {
		kind, _, _ := strings.Cut(strings.TrimPrefix(f.Name(), storedPrefix), "-")
		_, addr, err := storedName(takeover.Kind(kind), f)
		if err == nil && addr.Path() != "" {
			_, err = os.Lstat(addr.Path()) // nobody can connect to a socket whose file is gone
		}
		a.stored[f.Name()] = storedSocket{addr: addr}
		if err != nil {
			a.log.Warn("a socket that the service manager has kept is of no use", "name", f.Name(), "err", err)
			_ = f.Close()
			continue
		}
		sockets = append(sockets, takeover.Socket{Kind: takeover.Kind(kind), Address: addr.String(), Remove: true, File: f})
	}
	if len(sockets) > 0 {
		a.log.Info("the service manager has kept listening sockets of an agent that has crashed", "sockets", len(sockets))
	}
	a.inherited = newInherited(sockets)
}

// storeAgain is how long after a manager could not be told it is tried again.
const storeAgain = 5 * time.Second

// keepSockets has the manager keep what is listened at, until ctx ends. What a process
// before this one has left is given up once this one is ready: the control plane may want
// it until then.
func (a *agent) keepSockets(ctx context.Context) error {
	live, told := a.live, ""
	var first sync.Once
	for {
		var again <-chan time.Time
		why := ""
		if err := a.storeSockets(ctx); err != nil && ctx.Err() == nil {
			why, again = err.Error(), time.After(storeAgain)
			if why != told {
				a.log.Warn("the service manager does not keep what is listened at, it is told again", "err", err)
			}
		}
		told = why
		if live == nil { // a manager that does not take a message ends the try: nothing is waited for long
			first.Do(func() { close(a.first) })
		}
		select {
		case <-again:
		case <-a.changed:
		case <-live:
			live = nil
			if a.taker == nil { // else takeOver does it
				a.inherited.adopt(a.log)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// lockStored has the caller use what is stored, until unlockStored.
func (a *agent) lockStored(ctx context.Context) bool {
	select {
	case a.busy <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (a *agent) unlockStored() { <-a.busy }

// storeSockets takes back what is not listened at any more, and gives the manager what it
// does not have yet.
func (a *agent) storeSockets(ctx context.Context) error {
	if !a.manager.listens() || !a.lockStored(ctx) {
		return nil
	}
	defer a.unlockStored()
	if a.over {
		return nil
	}
	sockets, err := a.ownSockets()
	if err != nil { // out of descriptors, most likely
		return err
	}
	wanted := make(map[string]*os.File) // nil for those that may be wanted yet
	for _, name := range a.inherited.waiting() {
		wanted[name] = nil
	}
	addrs := make(map[string]lbcore.Addr)
	for _, s := range sockets {
		defer s.File.Close()
		name, addr, nerr := storedName(s.Kind, s.File)
		if nerr == nil && addr.Path() == "" && addr.String() != s.Address { // the next process is to have another port
			continue
		}
		if errors.Is(nerr, errDeaf) { // somebody has shut it: the next process opens another one
			continue
		}
		wanted[name], addrs[name] = s.File, addr
		err = errors.Join(err, nerr)
	}
	if err != nil {
		return err
	}
	// First of all: at a socket that nobody but the manager has whoever connects waits for ever.
	if err := a.unstore(func(name string, _ storedSocket) bool { _, ok := wanted[name]; return !ok }); err != nil {
		return err
	}
	for name, f := range wanted {
		if f == nil {
			continue
		}
		if err := a.storeSocket(name, addrs[name], f); err != nil {
			return err
		}
	}
	return nil
}

// storeSocket gives one to the manager, unless it has it.
func (a *agent) storeSocket(name string, addr lbcore.Addr, f *os.File) error {
	file, err := f.Stat()
	if err != nil {
		return err
	}
	has, ok := a.stored[name]
	switch {
	case ok && has.file != nil && os.SameFile(has.file, file):
		return nil
	case ok && has.file != nil: // another one is there by now
		if err := a.manager.unstore(name); err != nil {
			return err
		}
	}
	if err := a.manager.store(name, f); err != nil { // one that it has already it has once
		return err
	}
	a.stored[name] = storedSocket{addr, file}
	return nil
}

// unstore takes back those that are meant, and returns when the manager has closed them.
// It is for whoever has locked them.
func (a *agent) unstore(meant func(name string, s storedSocket) bool) error {
	taken := false
	for name, s := range a.stored {
		if !meant(name, s) {
			continue
		}
		if err := a.manager.unstore(name); err != nil {
			return err
		}
		delete(a.stored, name)
		taken = true
	}
	if !taken {
		return nil
	}
	return a.manager.settle()
}

// releaseSockets has the manager close all that it has kept, for a drain: who connects is
// to be refused.
func (a *agent) releaseSockets(ctx context.Context) {
	if !a.manager.listens() || !a.mains() || !a.lockStored(ctx) {
		return
	}
	defer a.unlockStored()
	a.over = true
	if err := a.unstore(func(string, storedSocket) bool { return true }); err != nil {
		a.log.Warn("the service manager may keep listening sockets, at which nobody answers", "err", err)
	}
}

// makeWay has nobody keep a socket where the agent is about to open one. What is still in
// use is kept again afterwards.
func (a *agent) makeWay(addr lbcore.Addr) {
	if !a.manager.listens() || a.taking() {
		return
	}
	a.busy <- struct{}{} // for as long as the manager takes, which is bounded
	defer a.unlockStored()
	inTheWay := func(at lbcore.Addr) bool { return overlap(at, addr) }
	if !slices.ContainsFunc(slices.Collect(maps.Values(a.stored)), func(s storedSocket) bool { return inTheWay(s.addr) }) {
		return
	}
	if a.taker == nil {
		a.inherited.discard(inTheWay)
	}
	if err := a.unstore(func(_ string, s storedSocket) bool { return inTheWay(s.addr) }); err != nil {
		a.log.Warn("the service manager may keep a listening socket where another one is to be opened", "address", addr, "err", err)
	}
	a.listenersChanged()
}

// listenAdmin opens the socket of the admin interface, or takes that of a process before,
// whose file may be as another configuration has wanted it.
func (a *agent) listenAdmin(ctx context.Context, addr lbcore.Addr, as forwarder.Socket) (net.Listener, error) {
	ln, err := a.inherited.take(takeover.KindAdmin, "", addr)
	if err != nil {
		return nil, err
	}
	if ln == nil {
		a.makeWay(addr)
		return as.Listen(ctx, addr)
	}
	if err := as.Own(addr); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Join(err, ln.Close())
	}
	return ln, nil
}

// overlap reports whether no two sockets can listen at the addresses, or only may if the
// system likes.
func overlap(a, b lbcore.Addr) bool {
	if a == b {
		return a != lbcore.Addr{}
	}
	x, y := a.AddrPort(), b.AddrPort()
	return x.IsValid() && y.IsValid() && x.Port() == y.Port() && (x.Addr().IsUnspecified() || y.Addr().IsUnspecified())
}

// ownSockets returns what is listened at that no service manager has opened, but for
// where the next process asks. The caller closes the files.
func (a *agent) ownSockets() ([]takeover.Socket, error) {
	f, err := forwarder.SocketFile(a.adminLn)
	if err != nil {
		return nil, err
	}
	all := []takeover.Socket{{Kind: takeover.KindAdmin, Address: a.cfg.Load().Admin.Address.String(), Remove: forwarder.RemovesFile(a.adminLn), File: f}}
	listeners, err := a.node.Sockets()
	for _, s := range listeners {
		if a.given[s.Listener] != nil { // it is among those
			_ = s.File.Close()
			continue
		}
		all = append(all, takeover.Socket{Kind: takeover.KindListener, Name: s.Listener, Address: s.Address.String(), Remove: s.Removes, File: s.File})
	}
	if err != nil {
		_ = f.Close() // Sockets has returned none
		return nil, err
	}
	return all, nil
}
