package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/discovery/consul"
	"gatehouse.internal/forwarder"
	"gatehouse.internal/internal/takeover"
	"gatehouse.internal/lbcore"
)

// succession is how an agent takes the place of another process, and gives its own to
// the next.
type succession struct {
	// taker is the conversation with the process that is to be replaced, and inherited
	// the sockets that it has handed over; both are set before run, or nil.
	taker     *takeover.Taker
	inherited *inherited

	charge    chan struct{} // closed when the agent may accept and write its state
	since     time.Time     // from when on initial_timeout counts; not written once charge is closed
	main      chan struct{} // closed when it is the process that a service manager listens to
	changes   chan struct{} // one slot: filled while listeners change, and while another process takes over
	handing   atomic.Bool   // another process takes over at present
	left      atomic.Bool   // to that one, since this one was ended meanwhile
	leaving   chan struct{} // closed when a drain begins
	leaveOnce sync.Once
	unwanted  error         // why the process before goes on though this one has accepted; set before gone is done
	taken     atomic.Uint64 // 1 if it has replaced a process
	failed    atomic.Uint64 // processes that were to replace it, and did not
}

func newSuccession() succession {
	return succession{charge: make(chan struct{}), main: make(chan struct{}), changes: make(chan struct{}, 1), leaving: make(chan struct{})}
}

// inherited are the sockets of the process before, while it is not certain that this
// one takes its place: closing any of them costs that one nothing.
type inherited struct {
	mu      sync.Mutex
	sockets []takeover.Socket
	opened  []net.Listener
	unused  []takeover.Socket // nobody has asked for
}

func newInherited(sockets []takeover.Socket) *inherited {
	return &inherited{sockets: sockets, unused: slices.Clone(sockets)}
}

// take returns a listener of the socket of that kind and address, nil without one.
// Where the system has chosen the port, the name must be the same too. It may be
// called from anywhere.
func (i *inherited) take(kind takeover.Kind, name string, addr lbcore.Addr) (net.Listener, error) {
	if i == nil {
		return nil, nil
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, s := range i.sockets {
		if s.Kind != kind || s.Given || !isAt(s, addr) || addr.Path() == "" && addr.AddrPort().Port() == 0 && s.Name != name {
			continue
		}
		ln, err := forwarder.TakenListener(s.File, s.Remove)
		if err != nil {
			return nil, fmt.Errorf("the socket of the process before: %w", err)
		}
		forwarder.KeepFile(ln, true)
		i.opened = append(i.opened, ln)
		i.unused = slices.DeleteFunc(i.unused, func(u takeover.Socket) bool { return u.File == s.File })
		return ln, nil
	}
	return nil, nil
}

// isAt reports whether a socket is where addr is. Several paths may lead to one file.
func isAt(s takeover.Socket, addr lbcore.Addr) bool {
	path, unix := strings.CutPrefix(s.Address, "unix://")
	return s.Address == addr.String() || unix && addr.Path() != "" && sameFile(path, addr.Path())
}

// waiting returns under which names a service manager keeps the sockets that nobody has
// asked for yet. It may be called from anywhere.
func (i *inherited) waiting() (names []string) {
	if i == nil {
		return nil
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, s := range i.unused {
		if name, _, err := storedName(s.Kind, s.File); err == nil {
			names = append(names, name)
		}
	}
	return names
}

// discard closes the sockets at these addresses that nobody has asked for, with their files.
func (i *inherited) discard(at func(lbcore.Addr) bool) {
	if i == nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.unused = slices.DeleteFunc(i.unused, func(s takeover.Socket) bool {
		_, addr, err := storedName(s.Kind, s.File)
		if err != nil || !at(addr) {
			return false
		}
		i.sockets = slices.DeleteFunc(i.sockets, func(x takeover.Socket) bool { return x.File == s.File })
		closeSocket(s)
		_ = s.File.Close()
		return true
	})
}

// closeSocket closes a socket that is listened at, with its file; the descriptor stays.
func closeSocket(s takeover.Socket) {
	if ln, err := forwarder.TakenListener(s.File, s.Remove); err == nil {
		_ = ln.Close()
	}
}

// adopt makes the sockets this process' own: what nobody wants is closed, with its file,
// and the files of the other unix sockets are this one's to remove.
func (i *inherited) adopt(log *slog.Logger) {
	if i == nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, ln := range i.opened {
		forwarder.KeepFile(ln, false)
	}
	for _, s := range i.unused {
		if s.Given {
			continue
		}
		log.Info("a socket of the process before is not wanted any more", "kind", s.Kind, "listener", s.Name, "address", s.Address)
		closeSocket(s)
	}
	i.close()
}

// drop closes the sockets, and leaves their files.
func (i *inherited) drop() {
	if i == nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.close()
}

func (i *inherited) close() {
	for _, s := range i.sockets {
		if !s.Given {
			_ = s.File.Close()
		}
	}
	i.sockets, i.opened, i.unused = nil, nil, nil
}

// askBefore asks the process that runs for its sockets. It returns nil if there is none.
func askBefore(ctx context.Context, cfg *config.Config, log *slog.Logger) (*takeover.Taker, error) {
	path := cfg.Takeover.Socket
	if path == "" {
		return nil, configError{errors.New("-takeover: no takeover.socket is set, and neither state_dir nor RUNTIME_DIRECTORY says where one is")}
	}
	t, err := takeover.Dial(ctx, path, takeover.Hello{Build: versionText(), StateDir: cfg.StateDir})
	switch {
	case errors.Is(err, takeover.ErrNobody):
		log.Warn("no agent runs to take over from, starting as without -takeover", "socket", path, "err", err)
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("can't take over from the agent at %s: %w", path, err)
	}
	log.Info("taking over from a running agent, which goes on until this one is ready", "socket", path, "sockets", len(t.Sockets))
	return t, nil
}

// succeeds has a take the place of the process at the other end of t. It is called
// before run.
func (a *agent) succeeds(t *takeover.Taker) {
	a.taker, a.inherited = t, newInherited(t.Sockets)
	for _, s := range t.Sockets {
		if !s.Given {
			if name, addr, err := storedName(s.Kind, s.File); err == nil && s.Kind != takeover.KindTakeover {
				a.stored[name] = storedSocket{addr: addr} // that one may have given it to the manager
			}
			continue
		}
		if slices.ContainsFunc(a.cfg.Load().Listeners, func(l config.Listener) bool { return l.Name == s.Name }) {
			a.given = a.given.with(s.Name, s.File)
		} else {
			_ = s.File.Close()
		}
	}
}

// taking reports whether another process still has the place of this one.
func (a *agent) taking() bool {
	select {
	case <-a.charge:
		return false
	default:
		return a.taker != nil
	}
}

// mains reports whether this process is the one that a service manager listens to.
func (a *agent) mains() bool {
	select {
	case <-a.main:
		return true
	default:
		return false
	}
}

// after is f, run once from is closed.
func after(from <-chan struct{}, f func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-from:
			return f(ctx)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// takeOver waits until the agent is ready and then takes the place of the process
// before. On an error that one goes on; it does too where leave is called, and this one is
// to drain, since it has accepted connections.
func (a *agent) takeOver(ctx context.Context, leave func(error)) error {
	defer a.taker.Close()
	gone, err := a.awaitTurn(ctx)
	if err != nil {
		a.refuse(ctx, err)
		if errors.Is(err, errDraining) {
			return nil
		}
		return err
	}
	if !gone {
		if err = a.taker.Ready(ctx); errors.Is(err, takeover.ErrGone) {
			gone, err = true, nil // nobody else has the sockets
		}
		if err != nil {
			return fmt.Errorf("ready, but the agent before goes on: %w", err)
		}
	}
	a.since = time.Now()
	close(a.charge)
	if !gone {
		if err := a.taker.Accepting(ctx); errors.Is(err, takeover.ErrGone) {
			gone = true
		} else if err != nil {
			a.unwanted = fmt.Errorf("the agent before goes on: %w", err)
			if ctx.Err() != nil {
				return a.unwanted
			}
			a.log.Error("has not taken over, what was accepted meanwhile goes on as in any drain", "err", err)
			a.inherited.drop()
			leave(consul.ErrStays)
			return a.store.Suspend(ctx)
		}
	}
	close(a.main)
	a.taken.Add(1)
	a.log.Info("has taken over", "after", time.Since(a.started).Round(time.Millisecond), "the_agent_before_had_ended", gone)
	select {
	case <-a.live: // until then the control plane may want what nobody has asked for
	case <-a.leaving:
	case <-ctx.Done():
	}
	a.inherited.adopt(a.log)
	a.listenersChanged()
	return nil
}

// awaitTurn waits until the agent is ready, or is the only one that has the sockets since
// the process before has ended. On an error, which is errDraining if this one is to end,
// that one goes on.
func (a *agent) awaitTurn(ctx context.Context) (gone bool, err error) {
	limit := a.cfg.Load().Takeover.Timeout
	timer := time.NewTimer(limit)
	defer timer.Stop()
	watching, stop := context.WithCancel(ctx)
	defer stop()
	var end error
	ended := make(chan struct{})
	go func() {
		end = a.taker.AwaitEnd(watching)
		close(ended)
	}()
	select {
	case <-a.live:
	case <-ended:
	case <-timer.C:
		_, waiting := a.state()
		err = fmt.Errorf("not ready within %s, the agent before goes on; waiting for: %s", limit, strings.Join(waiting, "; "))
	case <-a.leaving:
		err = errDraining
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	stop()
	<-ended
	switch _, refused := errors.AsType[*takeover.Refusal](end); {
	case errors.Is(end, takeover.ErrGone):
		if _, waiting := a.state(); len(waiting) > 0 {
			a.log.Warn("the agent before has ended, this one goes on in its place before it is ready", "waiting", waiting)
		}
		return true, nil
	case refused:
		return false, fmt.Errorf("the agent before does not let go: %w", end)
	case err == nil && !errors.Is(end, context.Canceled):
		return false, fmt.Errorf("can't follow the agent before: %w", end)
	}
	return false, err
}

// refuse tells the process before that it is to go on. The state is its again by then.
func (a *agent) refuse(ctx context.Context, err error) {
	a.store.Close()
	a.taker.Refuse(context.WithoutCancel(ctx), err)
}

// errSupervised is why nobody takes over from a supervised agent: its end would be the end
// of all.
var errSupervised = errors.New("this agent was started by run -supervised, which watches one process: restart that instead")

// errTakeover is why nothing is changed meanwhile.
var errTakeover = errors.New("another process is taking over from this one")

// changeListeners has f change what is listened at: not while another process takes over, which
// would not know of it.
func (a *agent) changeListeners(ctx context.Context, f func() error) error {
	select {
	case a.changes <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-a.changes }()
	return f()
}

// takeoverSocket opens the socket at which the next process asks. An agent without it
// runs all the same.
func (a *agent) takeoverSocket(ctx context.Context) net.Listener {
	path := a.cfg.Load().Takeover.Socket
	if path == "" {
		return nil
	}
	ln, err := a.inherited.take(takeover.KindTakeover, "", lbcore.UnixAddr(path))
	if ln == nil && err == nil {
		ln, err = forwarder.Socket{Mode: 0o600}.Listen(ctx, lbcore.UnixAddr(path))
	}
	if err != nil {
		a.log.Error("no other process can take over from this one", "socket", path, "err", err)
		return nil
	}
	return ln
}

// takeovers hands over to whoever asks at ln and is ready then; it calls leave and
// returns when somebody has taken over.
func (a *agent) takeovers(ctx context.Context, ln net.Listener, leave func(error)) error {
	if ln == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	ctx, end := context.WithCancelCause(ctx)
	d := newDoor(ln)
	defer d.close(ctx)
	defer end(nil)
	for {
		q, err := a.nextAsking(ctx, d)
		if err != nil {
			return err
		}
		if a.serveTakeover(ctx, q, ln) {
			forwarder.KeepFile(ln, true)
			end(errTaken)
			_ = ln.Close()
			leave(consul.ErrStays)
			return nil
		}
	}
}

// serveTakeover talks to one process, and reports whether it has taken over.
func (a *agent) serveTakeover(ctx context.Context, q asking, at net.Listener) bool {
	g, hello := q.giver, q.hello
	defer g.Close()
	log := a.log.With("pid", hello.PID, "version", hello.Build)
	log.Info("a process asks to take over")
	a.handing.Store(true)
	defer a.handing.Store(false)
	err := a.changeListeners(ctx, func() error { return a.handOver(ctx, g, hello, at) })
	if err != nil && (a.left.Load() || ctx.Err() != nil && a.manager == nil) {
		_ = g.Close() // which says that it is the only one
		log.Info("this agent is ended, the process goes on in its place")
		return true
	}
	if err != nil {
		g.Refuse(context.WithoutCancel(ctx), err)
		a.failed.Add(1)
		log.Error("the process has not taken over, this one goes on as before", "err", err)
		return false
	}
	log.Info("the process has taken over")
	return true
}

// handOver gives the sockets to a process, and returns nil when that accepts from them.
func (a *agent) handOver(ctx context.Context, g *takeover.Giver, hello takeover.Hello, at net.Listener) (err error) {
	if a.draining.Load() {
		return errDraining
	}
	if a.supervised {
		return errSupervised
	}
	if a.manager != nil && !sameGroup(hello.PID) {
		return errors.New("this agent is a service manager's, and the process is outside of its control group: " +
			"have the agent start its successor, as by systemctl kill --kill-whom=main --signal=USR2 gatehouse")
	}
	cfg, running := a.cfg.Load(), ctx // as long as the store, which may have ended before the other one is told
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(cfg.Takeover.Timeout, func() { cancel(fmt.Errorf("it was not ready within takeover.timeout (%s)", cfg.Takeover.Timeout)) })
	defer timer.Stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	wg.Go(func() {
		select {
		case <-a.leaving:
			cancel(errDraining)
		case <-ctx.Done():
		}
	})
	if a.store != nil && sameFile(hello.StateDir, cfg.StateDir) {
		if err := a.store.Suspend(ctx); err != nil {
			return err
		}
		defer func() {
			if err != nil && !a.left.Load() {
				_ = a.store.Resume(running) // else there is nothing to write any more
			}
		}()
	}
	sockets, err := a.sockets(at)
	if err != nil {
		return err
	}
	err = g.Give(ctx, sockets)
	for _, s := range sockets {
		if !s.Given {
			_ = s.File.Close()
		}
	}
	if err == nil {
		err = g.AwaitReady(ctx)
	}
	if err != nil {
		return err
	}
	// What it tells the manager before that would not be heard.
	if err := g.Commit(ctx, func() { a.manager.hand(hello.PID) }); err != nil {
		return err
	}
	a.keepFiles()
	return nil
}

// keepFiles has the files of unix sockets stay: another process listens there, or is to. It
// is called while run is on.
func (a *agent) keepFiles() {
	a.node.KeepFiles()
	if ln := a.adminLn; ln != nil {
		forwarder.KeepFile(ln, true)
	}
}

// leaveTo leaves the place of this agent, which is ended, to the process that takes over at
// present, though that may not be ready: nobody else would answer. A service manager
// that ends this one ends all processes of the service: then none is left anything.
func (a *agent) leaveTo() {
	if a.handing.Load() && a.manager == nil {
		a.left.Store(true)
		a.keepFiles()
	}
}

// sockets returns everything that is listened at. Files that are not Given are the
// caller's to close.
func (a *agent) sockets(at net.Listener) ([]takeover.Socket, error) {
	f, err := forwarder.SocketFile(at)
	if err != nil {
		return nil, err
	}
	all, err := a.ownSockets()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	all = append(all, takeover.Socket{
		Kind: takeover.KindTakeover, Address: lbcore.UnixAddr(a.cfg.Load().Takeover.Socket).String(), Remove: forwarder.RemovesFile(at), File: f,
	})
	for name, files := range a.given {
		for _, f := range files {
			all = append(all, takeover.Socket{Kind: takeover.KindListener, Name: name, Address: "given", Given: true, File: f})
		}
	}
	return all, nil
}

// sameFile reports whether two paths lead to one file or directory.
func sameFile(a, b string) bool {
	if a == b {
		return true
	}
	ai, aerr := os.Stat(a)
	bi, berr := os.Stat(b)
	return aerr == nil && berr == nil && os.SameFile(ai, bi)
}

// sameGroup reports whether a process is in the control group of this one, as those are
// that a service manager watches together.
func sameGroup(pid int) bool {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return true // there are none
	}
	other, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	return err == nil && string(own) == string(other)
}

// successor starts the program that is installed now, with the arguments of this one,
// to take over, and returns when it has ended, or this agent has.
func (a *agent) successor(args []string) {
	path, err := os.Executable()
	path = strings.TrimSuffix(path, " (deleted)") // it was replaced
	if err == nil && a.cfg.Load().Takeover.Socket == "" {
		err = errors.New("no takeover.socket is set")
	}
	if a.supervised {
		err = errSupervised
	}
	if err == nil {
		cmd := exec.Command(path, successorArgs(args)...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		for _, v := range os.Environ() {
			if !strings.HasPrefix(v, "WATCHDOG_PID=") { // it is this one's
				cmd.Env = append(cmd.Env, v)
			}
		}
		a.log.Info("starting the process that is to take over", "path", path)
		err = cmd.Run()
	}
	if err != nil {
		a.log.Error("the process that was to take over has ended, this one goes on", "err", err)
	}
}

// successorArgs returns the arguments of run for a process that takes over.
func successorArgs(args []string) []string {
	const flag = "-takeover"
	if i := slices.Index(args, "run"); i >= 0 && !slices.Contains(args, flag) && !slices.Contains(args, "-"+flag) {
		return slices.Insert(slices.Clone(args), i+1, flag)
	}
	return args
}
