package healthsvc

import (
	"context"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"gatehouse.internal/lbcore"
)

// Probes of each kind come from the source address of the endpoint's family.
func TestSource(t *testing.T) {
	from := make(chan net.Addr, 1)
	handle := anything(t)
	seen := func(ctx context.Context, c net.Conn) {
		from <- c.RemoteAddr()
		handle(ctx, c)
	}
	for _, tt := range []struct {
		tr   Transport
		want string
	}{
		{Transport{Source4: netip.MustParseAddr("127.0.0.9")}, "127.0.0.9"},
		{Transport{Source6: netip.MustParseAddr("::1")}, "127.0.0.1"},
	} {
		b := serve(t, "tcp", seen)
		for _, p := range kinds(tt.tr) {
			wantError(t, probeOnce(t, p, b.addr), "")
			if got := (<-from).(*net.TCPAddr).IP.String(); got != tt.want {
				t.Errorf("%s: from %s, want %s", p.Kind(), got, tt.want)
			}
		}
	}
	// Unix sockets have no use for one.
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	wantError(t, probeOnce(t, TCP{Transport: Transport{Source4: netip.MustParseAddr("127.0.0.9")}}, lbcore.UnixAddr(path)), "")
}

// A source address that the node does not have is no endpoint's fault.
func TestSourceMissing(t *testing.T) {
	b := serve(t, "tcp", anything(t))
	for _, p := range kinds(Transport{Source4: netip.MustParseAddr("192.0.2.77")}) {
		if err := probeOnce(t, p, b.addr); err == nil || !isLocal(err) {
			t.Errorf("%s: %v: local %t", p.Kind(), err, err != nil && isLocal(err))
		}
	}
}

func TestMark(t *testing.T) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	var raw syscall.RawConn
	if raw, err = f.SyscallConn(); err != nil {
		t.Fatal(err)
	}
	if err := (Transport{Mark: 7}).control("", "", raw); err != nil {
		t.Fatalf("this test needs CAP_NET_ADMIN: %v", err)
	}
	if got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK); got != 7 || err != nil {
		t.Errorf("mark %d, %v, want 7", got, err)
	}
	b := serve(t, "tcp", anything(t))
	wantError(t, probeOnce(t, TCP{Transport: Transport{Mark: 7}}, b.addr), "")

	// Those of a probe that only connects are marked too.
	a := fullBacklog(t)
	before := descriptors(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- TCP{Transport: Transport{Mark: 7}}.Probe(ctx, a) }()
	if got, err := unix.GetsockoptInt(connects(t, before), unix.SOL_SOCKET, unix.SO_MARK); got != 7 || err != nil {
		t.Errorf("mark %d, %v of a probe that connects, want 7", got, err)
	}
	cancel()
	<-ended
}
