package healthsvc

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
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

// fullBacklog returns the address of a socket that listens with the shortest
// backlog, which connections that nobody accepts have filled: the kernel drops
// what else comes.
func fullBacklog(t *testing.T) lbcore.Addr {
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
	return lbcore.IPAddr(netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(at.(*syscall.SockaddrInet4).Port)))
}
