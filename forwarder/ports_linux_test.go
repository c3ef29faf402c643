package forwarder

import (
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"gatehouse.internal/lbcore"
)

// F14: a local port serves connections to different destinations at once, so
// that one busy listener can't use up the ports of the whole host. Here each
// socket may use the same single port.
func TestF14PortsAreShared(t *testing.T) { onEach(t, testF14PortsAreShared) }

func testF14PortsAreShared(t *testing.T) {
	var port uint16
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) (err error) {
		cerr := c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_LOCAL_PORT_RANGE, int(port)<<16|int(port))
		})
		if err == nil {
			err = cerr
		}
		return err
	}}
	var conn net.Conn
	to := backend(t, lbcore.IPAddr(netip.MustParseAddrPort("127.0.0.1:0")), hold)
	for conn == nil { // the first port that nobody has
		port = 32768 + uint16(rand.IntN(28000)) // the option narrows the range of the system
		var err error
		if conn, err = connect(t.Context(), &d, to); err != nil && !errors.Is(err, syscall.EADDRNOTAVAIL) && !errors.Is(err, syscall.EADDRINUSE) {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = conn.Close() })
	for _, host := range []string{"127.0.0.2:0", "127.0.0.3:0"} {
		to := backend(t, lbcore.IPAddr(netip.MustParseAddrPort(host)), hold)
		more, err := connect(t.Context(), &d, to)
		if err != nil {
			t.Fatalf("to %s: %v", to, err)
		}
		t.Cleanup(func() { _ = more.Close() })
		if got := more.LocalAddr().(*net.TCPAddr).Port; got != int(port) {
			t.Errorf("to %s from port %d, want %d", to, got, port)
		}
	}
}
