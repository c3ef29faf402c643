package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"gatehouse.internal/internal/sdnotify"
)

// phase is what a service manager was told of the agent.
type phase int32

const (
	phaseStarting phase = iota
	phaseReady
	phaseStopping
)

const (
	// beatAtMost is how often the service manager hears of the agent at least.
	beatAtMost = 5 * time.Second
	// extendBy is how much longer a start or a stop may take with each beat, if it has
	// taken as long as its unit allows.
	extendBy = 3 * beatAtMost
	// settleWithin bounds the wait for a manager that is to close a socket.
	settleWithin = 2 * time.Second
)

// manager is a service manager that is told how the agent does, by sd_notify(3). Its
// methods do nothing if it is nil.
type manager struct {
	log *slog.Logger
	// say sends a message, with a descriptor unless that is nil, and settle waits until
	// all that was said before is done.
	say    func(string, *os.File) error
	settle func() error
	// watchdog is how long the agent may be silent before it is killed; 0 is for ever.
	watchdog time.Duration
	// turn waits until all event loops have gone round, and status is a line about what
	// runs; attach sets both.
	turn   func(context.Context) error
	status func() string

	phase atomic.Int32
	left  atomic.Bool     // another process is the service's
	ready <-chan struct{} // closed when the agent has become ready and its sockets are kept; attach sets it
}

// newManager returns the service manager that the environment names, or nil without
// one.
func newManager(getenv func(string) string, log *slog.Logger) *manager {
	addr := getenv("NOTIFY_SOCKET")
	if addr == "" {
		return nil
	}
	watchdog, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("the service manager's watchdog is not fed", "err", err)
	}
	return &manager{
		log: log, watchdog: watchdog,
		say:    func(state string, f *os.File) error { return sdnotify.Send(addr, state, f) },
		settle: func() error { return sdnotify.Barrier(addr, settleWithin) },
	}
}

// attach has m, if it is not nil, told how a does. It is called before a runs.
func (m *manager) attach(a *agent) {
	if m == nil {
		return
	}
	a.manager, a.onReload, m.status, m.ready = m, m.reload, a.status, a.first
	m.turn = func(ctx context.Context) error {
		if a.loops == nil {
			return nil
		}
		return a.loops.Turn(ctx)
	}
}

// hand tells that the process of that id is the service's main one, and no more from
// then on: what that one says counts.
func (m *manager) hand(pid int) {
	if m == nil {
		return
	}
	m.tell(fmt.Sprintf("MAINPID=%d", pid))
	m.left.Store(true)
}

// tell sends lines as one message.
func (m *manager) tell(lines ...string) {
	if m.left.Load() {
		return
	}
	if err := m.say(strings.Join(lines, "\n"), nil); err != nil {
		m.log.Warn("the service manager can't be told", "message", lines[0], "err", err)
	}
}

// listens reports whether there is a manager that listens to this process.
func (m *manager) listens() bool { return m != nil && !m.left.Load() }

// store gives it a descriptor to keep by a name, and unstore has it close that. They are
// for a manager that listens.
func (m *manager) store(name string, f *os.File) error { return m.say("FDSTORE=1\nFDNAME="+name, f) }
func (m *manager) unstore(name string) error           { return m.say("FDSTOREREMOVE=1\nFDNAME="+name, nil) }

// run tells of the agent until ctx ends: once that it is ready, and again and again
// that it lives, as far as its event loops go round.
func (m *manager) run(ctx context.Context) error {
	every := beatAtMost
	if m.watchdog > 0 {
		every = min(every, m.watchdog/2)
	}
	beats := time.NewTicker(every)
	defer beats.Stop()
	told := m.status()
	m.tell(statusLine(told))
	for ready := m.ready; ; {
		select {
		case <-ready:
			ready = nil
			if m.phase.CompareAndSwap(int32(phaseStarting), int32(phaseReady)) {
				told = m.status()
				m.tell(daemon.SdNotifyReady, statusLine(told))
			}
		case <-beats.C:
			turned, cancel := context.WithTimeout(ctx, every)
			err := m.turn(turned)
			cancel()
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				m.log.Error("event loops do not go round, the service manager is told nothing", "for", every)
				continue
			}
			var lines []string
			if m.watchdog > 0 {
				lines = append(lines, daemon.SdNotifyWatchdog)
			}
			if phase(m.phase.Load()) != phaseReady {
				lines = append(lines, extendLine)
			}
			if now := m.status(); now != told {
				told = now
				lines = append(lines, statusLine(now))
			}
			if lines != nil {
				m.tell(lines...)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// reload tells that a reload begins, or that it has ended: also one that has failed,
// since what runs runs on, and the manager would wait for ever.
func (m *manager) reload(begins bool) {
	if m == nil || phase(m.phase.Load()) != phaseReady {
		return
	}
	if begins {
		m.tell(daemon.SdNotifyReloading, daemon.SdNotifyMonotonicUsec())
		return
	}
	m.tell(daemon.SdNotifyReady, statusLine(m.status()))
}

// stop tells that the agent drains and then ends.
func (m *manager) stop() {
	if m == nil {
		return
	}
	m.phase.Store(int32(phaseStopping))
	m.tell(daemon.SdNotifyStopping, extendLine, statusLine(m.status()))
}

var extendLine = fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", extendBy.Microseconds())

// statusLine keeps a status to its line.
func statusLine(text string) string { return "STATUS=" + onOneLine(text) }

// status is what the service manager shows.
func (a *agent) status() string {
	var listed, ready int
	st := a.node.Summary()
	for _, c := range st.Clusters {
		listed += c.Counts.Listed
		ready += c.Counts.Ready
	}
	parts := []string{fmt.Sprintf("%d clusters, %d of %d endpoints ready, %d connections", len(st.Clusters), ready, listed, a.open.Open())}
	switch state, waiting := a.state(); {
	case a.draining.Load():
		parts[0] = "draining, " + parts[0]
	case len(waiting) > 0:
		parts[0] = fmt.Sprintf("%s, waiting for %d, first: %s", strings.ToLower(string(state)), len(waiting), waiting[0])
	}
	if a.xdsConfig.Load() != nil {
		word := "connected"
		if !a.xdsStatus().Connected {
			word = "away"
		}
		parts = append(parts, "control plane "+word)
	}
	if a.lastRefused.Load() {
		parts = append(parts, "the last reload was refused")
	}
	return strings.Join(parts, "; ")
}
