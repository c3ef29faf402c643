package healthsvc

import (
	"net/netip"
	"syscall"
	"testing"

	"gatehouse.internal/lbcore"
)

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
