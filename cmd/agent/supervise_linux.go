package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/internal/sdnotify"
)

const (
	// supervisorVar has the process id of the supervisor in the environment of the agent,
	// which believes it where that is its parent.
	supervisorVar = "GATEHOUSE_SUPERVISOR_PID"
	// maxKept is how many sockets a supervisor keeps, and maxCrashes how many crashes
	// within crashesWithin it bears: those that it hides Nomad does not see.
	maxKept       = 1024
	maxCrashes    = 5
	crashesWithin = time.Minute
	restartAfter  = time.Second
	// An agent that was silent for patientTicks of the supervisor's ticks is aborted, so
	// that it shows its stacks, and killed killTicks later. A supervisor that did not run
	// itself has not ticked.
	superviseTick = 5 * time.Second
	patientTicks  = 6
	startTicks    = 18 // before it is ready, as systemd's TimeoutStartSec=
	killTicks     = 2
)

// bySupervisor reports whether a supervisor has started this process, and makes the
// sockets that it passes this process' own: it could not know its id before.
func bySupervisor() bool {
	by := os.Getenv(supervisorVar)
	if by != strconv.Itoa(os.Getppid()) {
		return false
	}
	if os.Getenv("LISTEN_FDS") != "" {
		_ = os.Setenv("LISTEN_PID", strconv.Itoa(os.Getpid())) // fails for names that are none
	}
	return true
}

// supervisor runs the agent in a process of its own, and is the service manager of that:
// it keeps what it is given, and starts it again where it has crashed. It reads no
// configuration and listens nowhere but at its own socket.
type supervisor struct {
	log    *slog.Logger
	path   string   // of the program
	args   []string // all, the program's name first
	notify *sdnotify.Receiver
	addr   string // of notify
	tick   time.Duration

	crashes []time.Time // the newest, oldest first
	asked   bool        // a signal was to end it
	proven  bool        // an agent was ready before: one that can't be started or is not ready has crashed

	mu       sync.Mutex
	child    int              // process id; 0 while there is none
	heard    bool             // it has said something: signals don't end it any more before it knows them
	held     []syscall.Signal // that it gets then, each once
	ready    bool
	stopping bool
	silent   int  // ticks since it has said that it lives
	deaf     bool // somebody has removed the socket
	kept     []keptSocket
}

// keptSocket is a socket that the agent has given to be kept.
type keptSocket struct {
	name string
	fd   int
	id   socketID
}

// socketID is the same for all descriptors of a socket.
type socketID struct{ dev, ino uint64 }

// supervise is run with -supervised.
func (c *runCommand) supervise(flags *configFlags) int {
	if os.Getenv("NOTIFY_SOCKET") != "" || os.Getenv("LISTEN_PID") == strconv.Itoa(os.Getpid()) {
		fmt.Fprintln(c.stderr, "-supervised: NOTIFY_SOCKET or LISTEN_FDS says that there is a service manager already, which keeps the sockets by itself: leave -supervised out")
		return exitConfig
	}
	asJSON := slices.ContainsFunc(flags.flags, func(f config.Flag) bool { return f.Path == "log.json" && f.Value == "true" })
	log, _, _, _, end := startLog(config.Log{JSON: asJSON}, c.stderr)
	defer end()
	code, err := superviseAgent(log.With("of", "supervisor"), os.Args, superviseTick)
	if err != nil {
		log.Error("can't supervise", "err", err)
	}
	return code
}

// superviseAgent runs the program with args until it is over, and returns the code to
// exit with.
func superviseAgent(log *slog.Logger, args []string, tick time.Duration) (code int, err error) {
	path, err := os.Executable() // also what has replaced it, when it is started again
	if err != nil {
		return exitRuntime, err
	}
	dir, err := os.MkdirTemp("", "gatehouse-") // nobody else can write there
	if err != nil {
		return exitRuntime, fmt.Errorf("no directory for the agent to report at, TMPDIR says where one may be made: %w", err)
	}
	defer os.RemoveAll(dir)
	s := &supervisor{log: log, path: path, args: args, addr: filepath.Join(dir, "notify"), tick: tick}
	if s.notify, err = sdnotify.Listen(s.addr, s.handle); err != nil {
		return exitRuntime, fmt.Errorf("no socket for the agent to report at, %s may be too long: TMPDIR says where it is: %w", s.addr, err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer s.notify.Close()
	wg.Go(func() {
		if err := s.notify.Run(); err != nil {
			log.Error("the agent is not heard any more", "err", err)
		}
	})
	defer s.closeKept()
	return s.run()
}

// run starts the agent, and again where that is due.
func (s *supervisor) run() (code int, err error) {
	// The kernel ends the agent when the thread ends that has started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	signals, ended := make(chan os.Signal, 8), make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGQUIT)
	defer signal.Stop(signals)
	signal.Notify(ended, syscall.SIGCHLD)
	defer signal.Stop(ended)
	tick := time.NewTicker(s.tick)
	defer tick.Stop()
	if err := s.start(); err != nil {
		return exitRuntime, err
	}
	var again <-chan time.Time
	for {
		select {
		case <-ended:
			status, ok := s.reap()
			if !ok {
				continue
			}
			code, restart := s.after(status, time.Now())
			if !restart {
				return code, nil
			}
			again = time.After(restartAfter)
		case <-again:
			again = nil
			if err := s.start(); err != nil {
				if !s.again(err.Error(), time.Now()) {
					return exitRuntime, err
				}
				again = time.After(restartAfter)
			}
		case sig := <-signals:
			if s.pass(sig.(syscall.Signal)) {
				return exitOK, nil
			}
		case <-tick.C:
			s.watch()
		}
	}
}

// start starts the agent with the sockets that are kept.
func (s *supervisor) start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var env []string
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		if !slices.Contains([]string{"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", supervisorVar}, name) {
			env = append(env, v)
		}
	}
	env = append(env, "NOTIFY_SOCKET="+s.addr, fmt.Sprintf("WATCHDOG_USEC=%d", (patientTicks*s.tick).Microseconds()), fmt.Sprintf("%s=%d", supervisorVar, os.Getpid()))
	files, names := []uintptr{0, 1, 2}, []string{}
	for _, k := range s.kept {
		files, names = append(files, uintptr(k.fd)), append(names, k.name)
	}
	if len(names) > 0 {
		env = append(env, fmt.Sprintf("LISTEN_FDS=%d", len(names)), "LISTEN_FDNAMES="+strings.Join(names, ":"))
	}
	pid, err := syscall.ForkExec(s.path, s.args, &syscall.ProcAttr{
		Env: env, Files: files,
		Sys: &syscall.SysProcAttr{
			Pdeathsig: syscall.SIGTERM, // it does not outlive this process for longer than a drain
			Setpgid:   true,            // a terminal's signals come once, from here
		},
	})
	if err != nil {
		return fmt.Errorf("can't start %s: %w", s.path, err)
	}
	s.child, s.heard, s.held, s.ready, s.stopping, s.silent = pid, false, nil, false, false, 0
	s.log.Info("the agent is started", "pid", pid, "sockets", len(names))
	return nil
}

// reap takes note of processes that have ended, as the first process of a container has
// to of all, and returns how the agent has if it is among them.
func (s *supervisor) reap() (status syscall.WaitStatus, ok bool) {
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil || pid <= 0:
			return status, ok
		}
		s.mu.Lock()
		is := pid == s.child
		s.mu.Unlock()
		if !is {
			continue
		}
		s.notify.Pending() // what it has said before
		s.mu.Lock()
		s.child = 0
		s.mu.Unlock()
		status, ok = ws, true
	}
}

// after says what follows when the agent has ended: it is started again where it has
// crashed, or the code to exit with.
func (s *supervisor) after(status syscall.WaitStatus, now time.Time) (code int, restart bool) {
	s.mu.Lock()
	ready, stopping := s.ready, s.stopping
	s.mu.Unlock()
	s.proven = s.proven || ready
	how := fmt.Sprintf("exit code %d", status.ExitStatus())
	if code = status.ExitStatus(); status.Signaled() {
		code, how = 128+int(status.Signal()), status.Signal().String()
	}
	return code, code != exitOK && !s.asked && !stopping && s.proven && s.again(how, now)
}

// again says if the agent is started again after a crash, and keeps count of those.
func (s *supervisor) again(how string, now time.Time) bool {
	s.mu.Lock()
	sockets := len(s.kept)
	s.mu.Unlock()
	s.crashes = append(slices.DeleteFunc(s.crashes, func(t time.Time) bool { return now.Sub(t) > crashesWithin }), now)
	if len(s.crashes) > maxCrashes {
		s.log.Error("the agent has crashed too often, it is not started again", "how", how, "crashes", len(s.crashes), "within", crashesWithin)
		return false
	}
	s.log.Error("the agent has crashed, it is started again with its listening sockets", "how", how, "after", restartAfter, "sockets", sockets)
	return true
}

// pass passes a signal on to the agent. It reports whether all is over: there is none
// that could end.
func (s *supervisor) pass(sig syscall.Signal) (over bool) {
	ends := sig == syscall.SIGTERM || sig == syscall.SIGINT
	s.asked = s.asked || ends
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.child == 0:
		return ends
	case !s.heard && !ends && sig != syscall.SIGQUIT: // which is for one that hangs too
		if !slices.Contains(s.held, sig) {
			s.held = append(s.held, sig)
		}
		return false
	}
	_ = syscall.Kill(s.child, sig) // it is there until it is reaped
	return false
}

// watch ends an agent that does not say any more that it lives.
func (s *supervisor) watch() {
	s.notify.Pending()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.child == 0 {
		return
	}
	if _, err := os.Lstat(s.addr); err != nil { // a cleaner of temporary files: it can't be heard
		if !s.deaf {
			s.deaf = true
			s.log.Error("the agent can't be heard any more and is not watched, restart it", "err", err)
		}
		return
	}
	most := patientTicks
	if !s.ready {
		most = startTicks
	}
	switch s.silent++; s.silent {
	case most + 1:
		s.log.Error("the agent has not said for too long that it lives, it is ended", "pid", s.child, "ready", s.ready)
		_ = syscall.Kill(s.child, syscall.SIGABRT)
	case most + 1 + killTicks:
		_ = syscall.Kill(s.child, syscall.SIGKILL)
	}
}

// handle obeys a message of the agent.
func (s *supervisor) handle(m sdnotify.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.child == 0 || m.PID != s.child {
		m.CloseFiles()
		s.log.Warn("a process that is not the agent is not listened to", "pid", m.PID)
		return
	}
	if !s.heard {
		s.heard = true
		for _, sig := range s.held {
			_ = syscall.Kill(s.child, sig)
		}
	}
	if m.Fields["READY"] == "1" {
		s.ready, s.silent = true, 0
	}
	if m.Fields["WATCHDOG"] == "1" || m.Fields["EXTEND_TIMEOUT_USEC"] != "" {
		s.silent = 0
	}
	if m.Fields["STOPPING"] == "1" {
		s.stopping = true
	}
	name := m.Fields["FDNAME"]
	if m.Fields["FDSTOREREMOVE"] == "1" {
		s.kept = slices.DeleteFunc(s.kept, func(k keptSocket) bool {
			if k.name == name {
				_ = unix.Close(k.fd)
			}
			return k.name == name
		})
	}
	if m.Fields["FDSTORE"] == "1" && sdnotify.ValidName(name) {
		for _, fd := range m.Files {
			s.keep(name, fd)
		}
		return
	}
	m.CloseFiles() // that of a barrier is waited for
}

// keep takes a descriptor, and closes it where it is not to be kept.
func (s *supervisor) keep(name string, fd int) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	id := socketID{uint64(st.Dev), uint64(st.Ino)} // their types are not the same on all machines
	switch {
	case err != nil || st.Mode&unix.S_IFMT != unix.S_IFSOCK:
		s.log.Warn("the agent has given what is no socket", "name", name)
	case slices.ContainsFunc(s.kept, func(k keptSocket) bool { return k.id == id }):
	case len(s.kept) >= maxKept:
		s.log.Warn("more sockets are not kept, a crash closes them", "kept", len(s.kept))
	default:
		s.kept = append(s.kept, keptSocket{name, fd, id})
		return
	}
	_ = unix.Close(fd)
}

func (s *supervisor) closeKept() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.kept {
		_ = unix.Close(k.fd)
	}
	s.kept = nil
}
