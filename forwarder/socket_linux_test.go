package forwarder

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gatehouse.internal/lbcore"
)

// F9: keepalive and user timeout are what each leg is to have.
func TestF9KeepaliveSettings(t *testing.T) { onEach(t, testF9KeepaliveSettings) }

func testF9KeepaliveSettings(t *testing.T) {
	up := newCluster(t, backend(t, anyPort, echo))
	up.dial.Keepalive = Keepalive{Time: -1, UserTimeout: -1}
	s := Settings{Keepalive: Keepalive{Time: 29500 * time.Millisecond, Interval: 7 * time.Second, Probes: 4, UserTimeout: 40 * time.Second}}
	r := start(t, Config{Upstream: up, Settings: s})
	check := func(want map[int]map[[2]int]int) {
		t.Helper()
		c := client(t, r.Addr())
		exchange(t, c, "hello")
		if r.port != nil {
			r.cfg.Loops.skip(tuneAfter)
		}
		for side, options := range want {
			for opt, want := range options {
				if got, err := unix.GetsockoptInt(fd(t, r, side), opt[0], opt[1]); got != want || err != nil {
					t.Errorf("side %d: option %v is %d, %v; want %d", side, opt, got, err, want)
				}
			}
		}
		_ = c.Close()
		r.record(t)
	}
	on, idle, interval := [2]int{unix.SOL_SOCKET, unix.SO_KEEPALIVE}, [2]int{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE}, [2]int{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL}
	probes, timeout := [2]int{unix.IPPROTO_TCP, unix.TCP_KEEPCNT}, [2]int{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT}
	check(map[int]map[[2]int]int{
		down:   {on: 1, idle: 30, interval: 7, probes: 4, timeout: 40_000},
		upSide: {on: 0, timeout: 0},
	})
	s.Keepalive = Keepalive{Time: -1, UserTimeout: time.Second}
	if err := r.Set(s); err != nil {
		t.Fatal(err)
	}
	check(map[int]map[[2]int]int{down: {on: 0, timeout: 1000}})
	// Where the first probe is due before the options would be set, they are set
	// in time.
	if d := (Keepalive{Time: 2 * time.Second}).soonest(); d > time.Second {
		t.Errorf("set after %v", d)
	}
	if d := (Keepalive{}).soonest(); d != tuneAfter {
		t.Errorf("by default after %v", d)
	}
}

const upSide = up // in a test whose up is a cluster

func TestBacklog(t *testing.T) { onEach(t, testBacklog) }

func testBacklog(t *testing.T) {
	r := start(t, Config{Upstream: refuse{}, Settings: Settings{Socket: Socket{Backlog: 7}}})
	most, err := os.ReadFile("/proc/sys/net/core/somaxconn")
	if err != nil {
		t.Fatal(err)
	}
	backlog := func() (n int) {
		_ = onFD(r.socket().(syscall.Conn), func(fd int) error {
			info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
			n = int(info.Sacked) // of a listening socket
			return err
		})
		return n
	}
	if n := backlog(); n != 7 {
		t.Errorf("backlog %d", n)
	}
	if err := r.Set(Settings{Socket: Socket{Backlog: 9}}); err != nil || backlog() != 9 {
		t.Errorf("set to 9: %v, backlog %d", err, backlog())
	}
	if err := r.Set(Settings{}); err != nil || backlog() == 9 {
		t.Errorf("set to the system's: %v, backlog %d, most %s", err, backlog(), most)
	}
	wantRefused(t, r.Addr()) // it still listens
}

// asUser runs f on a thread that has these credentials.
func asUser(t *testing.T, uid, gid int, f func()) {
	t.Helper()
	if os.Getuid() != 0 {
		if testing.Short() {
			t.Skip("needs root")
		}
		t.Fatal("this test needs root, to act as other users")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		for _, call := range [][2]uintptr{{unix.SYS_SETGROUPS, 0}, {unix.SYS_SETRESGID, uintptr(gid)}, {unix.SYS_SETRESUID, uintptr(uid)}} {
			a := call[1]
			args := [3]uintptr{a, a, a}
			if call[0] == unix.SYS_SETGROUPS {
				args = [3]uintptr{}
			}
			if _, _, e := unix.RawSyscall(call[0], args[0], args[1], args[2]); e != 0 {
				t.Errorf("system call %d: %v", call[0], e)
				return
			}
		}
		f()
	}()
	<-done
}

// The file of a unix socket has the mode and owner that it is to have, and
// nobody else can connect before that.
func TestUnixOwner(t *testing.T) { onEach(t, testUnixOwner) }

func testUnixOwner(t *testing.T) {
	const group, other, nobody = 23456, 23457, 65534
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s.sock")
	connects := func(gid int) (err error) {
		asUser(t, nobody, gid, func() {
			var c net.Conn
			if c, err = net.Dial("unix", path); err == nil {
				_ = c.Close()
			}
		})
		return err
	}
	s := Socket{Mode: 0o666, User: "root", Group: "23456"}
	umask := unix.Umask(0) // else it is what keeps them out
	ln, err := s.listen(t.Context(), lbcore.UnixAddr(path))
	unix.Umask(umask)
	if err != nil {
		t.Fatal(err)
	}
	if err := connects(group); !errors.Is(err, syscall.EACCES) {
		t.Errorf("before the mode is set: %v", err)
	}
	if err := s.own(path); err != nil {
		t.Fatal(err)
	}
	if err := connects(other); err != nil {
		t.Errorf("with mode 0666: %v", err)
	}
	_ = ln.Close()

	r := start(t, Config{Addr: lbcore.UnixAddr(path), Upstream: newCluster(t, backend(t, anyPort, echo)), Settings: Settings{
		Socket: Socket{Mode: 0o660, User: "1", Group: "23456"},
	}})
	fi, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if st := fi.Sys().(*syscall.Stat_t); fi.Mode() != fs.ModeSocket|0o660 || st.Uid != 1 || st.Gid != group {
		t.Errorf("%v of %d:%d", fi.Mode(), st.Uid, st.Gid)
	}
	if err := connects(group); err != nil {
		t.Errorf("of the group: %v", err)
	}
	if err := connects(other); !errors.Is(err, syscall.EACCES) {
		t.Errorf("of another group: %v", err)
	}
	exchange(t, client(t, r.Addr()), "hello")
	if err := r.Set(Settings{Socket: Socket{Mode: 0o606}}); err != nil {
		t.Fatal(err)
	}
	if err := connects(group); !errors.Is(err, syscall.EACCES) {
		t.Errorf("of the group that may no more: %v", err)
	}
	if err := connects(other); err != nil {
		t.Errorf("of another group: %v", err)
	}
	if err := r.Set(Settings{MaxConnections: 1, Socket: Socket{User: "no such user"}}); err == nil || !strings.Contains(err.Error(), "no such user") {
		t.Errorf("set an unknown user: %v", err)
	}
	if r.settings.Load().MaxConnections != 0 {
		t.Error("a set that failed has changed something")
	}
	r.cancel()
	<-r.ran
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after the end: %v", err)
	}

	l, err := New(Config{Name: "x", Addr: lbcore.UnixAddr(path), Upstream: refuse{}, Gate: lbcore.NewGate(lbcore.GateConfig{}), Settings: Settings{Socket: Socket{Group: "no such group"}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Bind(t.Context()); err == nil || !strings.Contains(err.Error(), "no such group") {
		t.Errorf("bind: %v", err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after a bind that failed: %v", err)
	}
}

func TestCheckOwner(t *testing.T) {
	for s, want := range map[Socket]string{
		{}: "", {User: "root", Group: "0"}: "", {User: "4294967295"}: "unknown user 4294967295",
		{User: "no such user"}: "unknown user no such user", {User: "root", Group: "no such group"}: "unknown group no such group",
	} {
		if err := s.CheckOwner(); (err == nil) != (want == "") || err != nil && !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", s, err, want)
		}
	}
}

// The end of an agent leaves the file of another alone, which has begun to listen
// at the same path after somebody had removed the file that was there.
func TestUnixFileOfAnother(t *testing.T) { onEach(t, testUnixFileOfAnother) }

func testUnixFileOfAnother(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	cfg := Config{Addr: lbcore.UnixAddr(path), Upstream: newCluster(t, backend(t, anyPort, echo))}
	first := start(t, cfg)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	second := start(t, cfg)
	first.cancel()
	<-first.ran
	exchange(t, client(t, second.Addr()), "hello")
	second.cancel()
	<-second.ran
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after the end of both: %v", err)
	}

	log := new(logBuffer)
	cfg.Logger = log.logger()
	third := start(t, cfg)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	third.cancel() // and nothing there is no mistake
	<-third.ran
	if s := log.String(); s != "" {
		t.Error(s)
	}
}

// F16: of several that find the same stale socket at once one gets its place,
// and keeps it.
func TestF16StaleSocketAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	for range 20 {
		ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
		if err != nil {
			t.Fatal(err)
		}
		ln.SetUnlinkOnClose(false) // as if killed
		_ = ln.Close()
		got := make(chan net.Listener, 8)
		var wg sync.WaitGroup
		for range cap(got) {
			wg.Go(func() {
				ln, err := PlainListen(t.Context(), lbcore.UnixAddr(path))
				switch {
				case err == nil:
					got <- ln
				case !errors.Is(err, syscall.EADDRINUSE):
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := len(got); n != 1 {
			t.Fatalf("%d listen at one path", n)
		}
		_ = client(t, lbcore.UnixAddr(path)).Close()
		_ = (<-got).Close()
	}
	// The lock is not waited for without end.
	unlock, err := lockDir(t.Context(), filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := PlainListen(ctx, lbcore.UnixAddr(path)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while another has the lock: %v", err)
	}
	ln, err := PlainListen(t.Context(), lbcore.UnixAddr(path))
	if err != nil {
		t.Fatalf("after a while: %v", err)
	}
	_ = ln.Close()
}

// What lies where the socket was is left alone.
func TestUnixModeOfAnother(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, path); err != nil {
		t.Fatal(err)
	}
	if err := chmodSocket(path, 0o666); err == nil {
		t.Error("no error")
	}
	if fi, err := os.Stat(secret); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", fi.Mode(), err)
	}
}

// Connections come from the address that they are to come from.
func TestSourceAddress(t *testing.T) { onEach(t, testSourceAddress) }

func testSourceAddress(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	shell(t, "ip addr add fd00::9/128 dev lo nodad") // which can be used at once
	from := make(chan net.Addr, 1)
	serve := func(c net.Conn) { from <- c.RemoteAddr(); echo(c) }
	up := newCluster(t, backend(t, anyPort, serve))
	up6 := newCluster(t, backend(t, lbcore.IPAddr(netip.MustParseAddrPort("[::1]:0")), serve))
	unixUp := newCluster(t, backend(t, lbcore.UnixAddr(filepath.Join(t.TempDir(), "s")), func(c net.Conn) { from <- &net.TCPAddr{}; echo(c) }))
	for want, up := range map[string]*cluster{"127.0.0.9": up, "fd00::9": up6, "invalid IP": unixUp} {
		up.dial.Source4, up.dial.Source6 = netip.MustParseAddr("127.0.0.9"), netip.MustParseAddr("fd00::9")
		r := start(t, Config{Upstream: up})
		exchange(t, client(t, r.Addr()), "hello")
		if got := (<-from).(*net.TCPAddr).AddrPort().Addr().String(); got != want {
			t.Errorf("from %s, want %s", got, want)
		}
	}
}

// A source address that the host does not have is not the endpoints' fault,
// and those of the other family are tried.
func TestSourceAddressMissing(t *testing.T) { onEach(t, testSourceAddressMissing) }

func testSourceAddressMissing(t *testing.T) {
	v6 := backend(t, lbcore.IPAddr(netip.MustParseAddrPort("[::1]:0")), echo)
	up := newCluster(t, backend(t, anyPort, hold), v6)
	up.dial.Source4 = netip.MustParseAddr("192.0.2.77")
	r := start(t, Config{Upstream: up})
	c := client(t, r.Addr())
	exchange(t, c, "hello")
	_ = c.Close()
	if rec := r.record(t); rec.Endpoint != v6 || rec.Attempts != 2 {
		t.Errorf("record %+v", rec)
	}
	if s := r.Stats(); s.DialsAbandoned != 1 || s.DialsFailed != 0 {
		t.Errorf("stats %+v", s)
	}
	notBlamed(t, up, 2)

	up = newCluster(t, backend(t, anyPort, hold), v6)
	up.dial.Source4, up.dial.Source6 = netip.MustParseAddr("192.0.2.77"), netip.MustParseAddr("2001:db8::77")
	r = start(t, Config{Upstream: up})
	wantRefused(t, r.Addr())
	if rec := r.record(t); rec.Flag != FlagUF || !errors.Is(rec.Err, syscall.EADDRNOTAVAIL) || rec.Attempts != 2 {
		t.Errorf("record %+v", rec)
	}
	if s := r.Stats(); s.DialsAbandoned != 2 || s.DialsFailed != 0 {
		t.Errorf("stats %+v", s)
	}
	notBlamed(t, up, 2)
}

func notBlamed(t *testing.T, up *cluster, n int) {
	t.Helper()
	for i := range n {
		m := up.member(i)
		if _, failed, _, _ := m.Counters(); failed != 0 {
			t.Errorf("endpoint %d has %d failed dials", i, failed)
		}
	}
}

// F14: an endpoint to which there is no way from the source address is not blamed, and
// the next one is tried.
func TestF14NoWayFromSource(t *testing.T) { onEach(t, testF14NoWayFromSource) }

func testF14NoWayFromSource(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	shell(t, `
		ip link add other type veth peer name far
		ip addr add 192.0.2.9/24 dev other
		ip link set other up
		ip link set far up`)
	up := newCluster(t, lbcore.IPAddr(netip.MustParseAddrPort("192.0.2.1:80")), backend(t, anyPort, echo))
	up.dial.Source4 = netip.MustParseAddr("127.0.0.9")
	r := start(t, Config{Upstream: up})
	c := client(t, r.Addr())
	exchange(t, c, "hello")
	_ = c.Close()
	if rec := r.record(t); rec.Attempts != 2 || rec.Endpoint != up.member(1).Addr() {
		t.Errorf("record %+v", rec)
	}
	if _, failed, _, _ := up.member(0).Counters(); failed != 0 || up.member(0).Active() != 0 {
		t.Errorf("%d failed dials, %d active", failed, up.member(0).Active())
	}
	if s := r.Stats(); s.Dials != 2 || s.DialsAbandoned != 1 || s.DialsFailed != 0 {
		t.Errorf("stats %+v", s)
	}
}

// F14: where the ports to one endpoint are used up the next one is tried, to
// which the same ports lead; and no endpoint is blamed.
func TestF14PortsUsedUp(t *testing.T) { onEach(t, testF14PortsUsedUp) }

func testF14PortsUsedUp(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	const ports = 4
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("40000 40003"), 0); err != nil {
		t.Fatal(err)
	}
	for name, source := range map[string]netip.Addr{"any address": {}, "source address": netip.MustParseAddr("127.0.0.9")} {
		t.Run(name, func(t *testing.T) {
			up := newCluster(t, backend(t, lbcore.IPAddr(netip.MustParseAddrPort("127.0.0.1:8080")), echo), backend(t, lbcore.IPAddr(netip.MustParseAddrPort("127.0.0.2:8080")), echo))
			up.dial.Source4 = source
			r := start(t, Config{Upstream: up, Addr: lbcore.UnixAddr(filepath.Join(t.TempDir(), "s"))})
			for range 2 * ports {
				exchange(t, client(t, r.Addr()), "hello")
			}
			for i := range 2 {
				if n := up.member(i).Active(); n != ports {
					t.Errorf("endpoint %d has %d connections", i, n)
				}
			}
			c := client(t, r.Addr())
			hold(c)
			if rec := r.record(t); rec.Flag != FlagUF || !errors.Is(rec.Err, syscall.EADDRNOTAVAIL) || rec.Attempts != 2 {
				t.Errorf("record %+v", rec)
			}
			if s := r.Stats(); s.DialsAbandoned != ports+2 || s.DialsFailed != 0 {
				t.Errorf("stats %+v", s)
			}
			notBlamed(t, up, 2)
		})
	}
}

// Packets to endpoints are marked.
func TestMark(t *testing.T) { onEach(t, testMark) }

func testMark(t *testing.T) {
	if err := CheckMark(); err != nil {
		t.Fatal(err)
	}
	up := newCluster(t, backend(t, anyPort, echo))
	up.dial.Mark = 0xfffffff7
	r := start(t, Config{Upstream: up})
	exchange(t, client(t, r.Addr()), "hello")
	for side, want := range []uint32{0, 0xfffffff7} {
		if got, err := unix.GetsockoptInt(fd(t, r, side), unix.SOL_SOCKET, unix.SO_MARK); uint32(got) != want || err != nil {
			t.Errorf("side %d: mark %#x, %v", side, got, err)
		}
	}
}

// Who may set no mark is told what is missing.
func TestCheckMark(t *testing.T) {
	asUser(t, 65534, 65534, func() {
		if err := CheckMark(); !errors.Is(err, syscall.EPERM) || !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
			t.Errorf("%v", err)
		}
	})
}

// A client with a link-local address is known by it and its zone, on the
// dual-stack socket as everywhere.
func TestF15Zone(t *testing.T) { onEach(t, testF15Zone) }

func testF15Zone(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	shell(t, "ip link add d0 type veth peer name d1")
	shell(t, "ip link set d1 up")
	shell(t, "ip link set d0 up")
	shell(t, "ip addr add fe80::1/64 dev d0 nodad")
	up := newCluster(t, backend(t, anyPort, echo))
	r := start(t, Config{Upstream: up, Settings: Settings{HashOn: HashSourceIP}, Addr: lbcore.IPAddr(netip.MustParseAddrPort("[::]:0"))})
	c, err := net.DialTCP("tcp", &net.TCPAddr{IP: net.ParseIP("fe80::1"), Zone: "d0"}, &net.TCPAddr{IP: net.ParseIP("fe80::1"), Zone: "d0", Port: int(r.Addr().AddrPort().Port())})
	if err != nil {
		t.Fatal(err)
	}
	exchange(t, c, "hello")
	_ = c.Close()
	if rec := r.record(t); rec.Client != c.LocalAddr().(*net.TCPAddr).AddrPort() || rec.Client.Addr().Zone() != "d0" {
		t.Errorf("client %v", rec.Client)
	}
	if k := up.keys[0]; k != lbcore.BytesKey([]byte("fe80::1")) {
		t.Errorf("the key is not that of the address without its zone: %+v", k)
	}
}
