package healthsvc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"gatehouse.internal/lbcore"
)

// A probe that only connects does so over both families, is through before it ends,
// and ends by a reset.
func TestConnectOnly(t *testing.T) {
	for _, at := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		ends := make(chan error, 1)
		go func() {
			c, err := l.Accept()
			if err == nil {
				_, err = c.Read(make([]byte, 1))
				c.Close()
			}
			ends <- err
		}()
		a := lbcore.IPAddr(netip.MustParseAddrPort(l.Addr().String()))
		wantError(t, probeOnce(t, TCP{}, a), "")
		if err := <-ends; !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: the backend read %v, want a reset", a, err)
		}
		l.Close()
		wantError(t, probeOnce(t, TCP{}, a), "connect: connection refused")
	}
}

// descriptors returns those that are open, by what they are: a number is soon used
// again.
func descriptors(t *testing.T) map[string]int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	open := make(map[string]int)
	for _, e := range fds {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			t.Fatal(err)
		}
		if what, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil { // not that of ReadDir
			open[what] = fd
		}
	}
	return open
}

// connecting returns a socket that waits for its peer and is not among before.
func connecting(t *testing.T, before map[string]int) (fd int, ok bool) {
	t.Helper()
	for what, fd := range descriptors(t) {
		if _, old := before[what]; old {
			continue
		}
		const synSent = 2
		if info, err := unix.GetsockoptTCPInfo(fd, unix.SOL_TCP, unix.TCP_INFO); err == nil && info.State == synSent {
			return fd, true
		}
	}
	return 0, false
}

// connects waits until there is one.
func connects(t *testing.T, before map[string]int) (fd int) {
	t.Helper()
	poll(t, "the probe connects", func() (ok bool) {
		fd, ok = connecting(t, before)
		return ok
	})
	return fd
}

// One that does not connect at once is waited for, without a thread.
func TestConnectWaits(t *testing.T) {
	a, l := fullBacklogAt(t)
	before := descriptors(t)
	ended := make(chan error, 1)
	go func() { ended <- probeOnce(t, TCP{}, a) }()
	// Its SYN was dropped: the kernel sends another one after a second.
	connects(t, before)
	var err error
	poll(t, "the probe has ended", func() bool {
		select {
		case err = <-ended:
			return true
		default:
		}
		fd, _, err := syscall.Accept(l) // of the others too, or these take all places
		if err == nil {
			t.Cleanup(func() { syscall.Close(fd) })
		} else if err != syscall.EAGAIN {
			t.Fatal(err)
		}
		return false
	})
	wantError(t, err, "")
}

// What ends while it still connects gives its descriptor back at once, and not when
// garbage is collected.
func TestConnectEnds(t *testing.T) {
	a := fullBacklog(t)
	before := descriptors(t)
	for range 10 {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- TCP{}.Probe(ctx, a) }()
		connects(t, before)
		cancel()
		if err := <-ended; err == nil {
			t.Fatal("connected to a full backlog")
		}
		if _, ok := connecting(t, before); ok {
			t.Fatal("its socket is left")
		}
	}
	if after := descriptors(t); len(after) > len(before) {
		t.Errorf("%d descriptors are open, %d were before", len(after), len(before))
	}
}

// A port of this node on which nobody listens may be the one that the system gives
// the probe: it must not find itself.
func TestProbeDoesNotFindItself(t *testing.T) {
	if testing.Short() {
		t.Skip("makes a network namespace")
	}
	errs := make(chan error)
	go func() { // its thread ends with it, and the namespace with the thread
		runtime.LockOSThread()
		errs <- withOnePort(t.Context())
	}()
	if err := <-errs; err != nil {
		t.Error(err)
	}
}

func withOnePort(ctx context.Context) error {
	if err := syscall.Unshare(syscall.CLONE_NEWNET); err != nil {
		return fmt.Errorf("this test needs root, to make a network namespace: %w", err)
	}
	if out, err := exec.CommandContext(ctx, "ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return fmt.Errorf("this test needs ip (apt-get install iproute2): %w: %s", err, out)
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("40000 40000"), 0); err != nil {
		return err
	}
	// Who does not look finds itself.
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	err = errors.Join(
		syscall.SetsockoptLinger(fd, syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1}),
		syscall.Connect(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: 40000}),
		syscall.Close(fd))
	if err != nil {
		return fmt.Errorf("a socket does not connect with itself: %w", err)
	}
	for _, a := range []string{"127.0.0.1:40000", "[::1]:40000"} {
		err := TCP{}.Probe(ctx, lbcore.IPAddr(netip.MustParseAddrPort(a)))
		if err == nil || err.Error() != "connect: connection refused" {
			return fmt.Errorf("nobody listens on %s: %v", a, err)
		}
	}
	return nil
}

// Thousands of these a second are made: their garbage is small.
func TestConnectAllocations(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	at := netip.MustParseAddrPort(l.Addr().String())
	ctx := t.Context()
	if n := testing.AllocsPerRun(100, func() {
		if err := connect(ctx, at); err != nil {
			t.Error(err)
		}
	}); n > 5 {
		t.Errorf("%v allocations", n)
	}
}
