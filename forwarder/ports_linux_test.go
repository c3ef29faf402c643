package forwarder

import (
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
func TestF14PortsAreShared(t *testing.T) {
	port := refused(t).AddrPort().Port() // free a moment ago
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) (err error) {
		cerr := c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_LOCAL_PORT_RANGE, int(port)<<16|int(port))
		})
		if err == nil {
			err = cerr
		}
		return err
	}}
	for _, to := range []string{"127.0.0.1:0", "127.0.0.2:0", "127.0.0.3:0"} {
		addr := backend(t, lbcore.IPAddr(netip.MustParseAddrPort(to)), hold)
		conn, err := connect(t.Context(), &d, addr)
		if err != nil {
			t.Fatalf("to %s: %v", addr, err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if got := conn.LocalAddr().(*net.TCPAddr).Port; got != int(port) {
			t.Errorf("to %s from port %d, want %d", addr, got, port)
		}
	}
}
