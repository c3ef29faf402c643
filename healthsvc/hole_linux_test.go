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
	"strings"
	"syscall"
	"testing"
	"time"

	"gatehouse.internal/lbcore"
)

func TestFullBacklog(t *testing.T) {
	a := fullBacklog(t)
	for _, p := range kinds(Transport{}) {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		wantTimeout(t, p.Probe(ctx, a), "connect: timed out")
		cancel()
	}
}

// In a network namespace of its own, the peer of a link swallows what is sent.
func TestBlackHole(t *testing.T) {
	if testing.Short() {
		t.Skip("makes a network namespace")
	}
	errs := make(chan error)
	go func() { // its thread ends with it, and the namespace with the thread
		runtime.LockOSThread()
		errs <- inBlackHole(t.Context())
	}()
	if err := <-errs; err != nil {
		t.Error(err)
	}
}

func inBlackHole(ctx context.Context) error {
	if err := syscall.Unshare(syscall.CLONE_NEWNET); err != nil {
		return fmt.Errorf("this test needs root, to make a network namespace: %w", err)
	}
	for _, line := range []string{
		"link add here type veth peer name hole", "addr add 192.0.2.1/24 dev here", "link set here up", "link set hole up",
		"neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev here",
	} {
		if out, err := exec.CommandContext(ctx, "ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			return fmt.Errorf("this test needs ip (apt-get install iproute2): ip %s: %w: %s", line, err, out)
		}
	}
	a := lbcore.IPAddr(netip.MustParseAddrPort("192.0.2.2:80"))
	// Not GRPC: package grpc dials on another thread.
	for _, p := range []Probe{TCP{}, TCP{Receive: [][]byte{{1}}}, HTTP{Path: "/"}} {
		ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		err := p.Probe(ctx, a)
		cancel()
		if err == nil || err.Error() != "connect: timed out" || !errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("%s in a black hole: %v", p.Kind(), err)
		}
	}
	// What has no route is told at once.
	if err := (TCP{}).Probe(ctx, lbcore.IPAddr(netip.MustParseAddrPort("198.51.100.1:80"))); err == nil || err.Error() != "connect: network is unreachable" {
		return fmt.Errorf("without a route: %v", err)
	}
	return nil
}

// What the node can never reach fails, although connect says of it what it says
// when the ports have run out, which is no result.
func TestNoRouteIsAFailure(t *testing.T) {
	if testing.Short() {
		t.Skip("makes a network namespace")
	}
	errs := make(chan error)
	go func() { // its thread ends with it, and the namespace with the thread
		runtime.LockOSThread()
		errs <- withoutIPv6(t.Context())
	}()
	if err := <-errs; err != nil {
		t.Error(err)
	}
}

func withoutIPv6(ctx context.Context) error {
	if err := syscall.Unshare(syscall.CLONE_NEWNET); err != nil {
		return fmt.Errorf("this test needs root, to make a network namespace: %w", err)
	}
	if out, err := exec.CommandContext(ctx, "ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return fmt.Errorf("this test needs ip (apt-get install iproute2): %w: %s", err, out)
	}
	for file, text := range map[string]string{
		"ipv6/conf/all/disable_ipv6": "1", "ipv4/ip_local_port_range": "40000 40001",
	} {
		if err := os.WriteFile("/proc/sys/net/"+file, []byte(text), 0); err != nil {
			return err
		}
	}
	for _, a := range []string{"[::1]:9", "[fd00::1]:80"} {
		err := TCP{}.Probe(ctx, lbcore.IPAddr(netip.MustParseAddrPort(a)))
		if err == nil || isLocal(err) {
			return fmt.Errorf("%s without IPv6: %v: local %t", a, err, isLocal(err))
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:80")
	if err != nil {
		return err
	}
	defer l.Close()
	for range 2 {
		c, err := net.Dial("tcp", "127.0.0.1:80")
		if err != nil {
			return err
		}
		defer c.Close()
	}
	a := lbcore.IPAddr(netip.MustParseAddrPort("127.0.0.1:80"))
	if err := (TCP{}).Probe(ctx, a); err == nil || !errors.Is(err, syscall.EADDRNOTAVAIL) || !isLocal(err) {
		return fmt.Errorf("without a port: %v: local %t", err, err != nil && isLocal(err))
	}
	return nil
}

// fullBacklog returns the address of a socket that listens with the shortest
// backlog, which connections that nobody accepts have filled: the kernel drops
// what else comes.
func fullBacklog(t *testing.T) lbcore.Addr {
	t.Helper()
	a, _ := fullBacklogAt(t)
	return a
}

func fullBacklogAt(t *testing.T) (a lbcore.Addr, listener int) {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	open := func() int {
		fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
		check(err)
		t.Cleanup(func() { syscall.Close(fd) })
		return fd
	}
	l := open()
	check(syscall.Bind(l, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	check(syscall.Listen(l, 0))
	at, err := syscall.Getsockname(l)
	check(err)
	for range 3 {
		if err := syscall.Connect(open(), at); err != nil && err != syscall.EINPROGRESS {
			t.Fatal(err)
		}
	}
	return lbcore.IPAddr(netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(at.(*syscall.SockaddrInet4).Port))), l
}
