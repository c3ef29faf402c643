// Package dnstest runs a real nameserver for tests: dnsmasq, of the Debian package
// dnsmasq-base, on loopback.
//
// # Usage
//
//	d := dnstest.New(t)
//	d.Start("host-record=web.test,192.0.2.1") // asks nobody else
//	... d.Addr ...
//	d.Stop()
//
// # Concurrency
//
// A Dnsmasq belongs to its test's goroutine.
//
// # Limitations
//
// A port that was free when New chose it may be another's when Start takes it: the
// test fails then. -short skips the test.
package dnstest

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Dnsmasq is a nameserver that a test starts and stops.
type Dnsmasq struct {
	// Addr is where it listens, by UDP and TCP, each time that it is started.
	Addr netip.AddrPort

	t    testing.TB
	path string
	dir  string
	cmd  *exec.Cmd
}

// New returns a nameserver that is not started yet. It is stopped at the end of the
// test. Where there is no dnsmasq, the test fails.
func New(t testing.TB) *Dnsmasq {
	t.Helper()
	if testing.Short() {
		t.Skip("left out by -short: it needs dnsmasq")
	}
	path, err := exec.LookPath("dnsmasq")
	if err != nil {
		path = "/usr/sbin/dnsmasq" // which is not in everybody's PATH
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("dnsmasq is missing: install the Debian package dnsmasq-base (%v)", err)
	}
	udp, tcp := Listen(t)
	d := &Dnsmasq{t: t, path: path, dir: t.TempDir(), Addr: udp.LocalAddr().(*net.UDPAddr).AddrPort()}
	udp.Close()
	tcp.Close()
	t.Cleanup(d.Stop)
	return d
}

// Listen returns sockets on a port of 127.0.0.1 that is free for both.
func Listen(t testing.TB) (net.PacketConn, net.Listener) {
	t.Helper()
	for range 20 {
		udp, err := net.ListenPacket("udp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		tcp, err := net.Listen("tcp4", udp.LocalAddr().String())
		if err == nil {
			return udp, tcp
		}
		udp.Close() // another has the port for TCP
	}
	t.Fatal("no port is free for both UDP and TCP")
	return nil, nil
}

// Start begins to answer, with these lines of a configuration. It returns when the
// nameserver listens.
func (d *Dnsmasq) Start(lines ...string) {
	d.t.Helper()
	lines = append(lines, "no-resolv", "no-hosts", "bind-interfaces", "listen-address=127.0.0.1", "local=/test/", "pid-file=",
		fmt.Sprintf("port=%d", d.Addr.Port()))
	if os.Geteuid() == 0 {
		lines = append(lines, "user=root")
	}
	conf := filepath.Join(d.dir, "dnsmasq.conf")
	if err := os.WriteFile(conf, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		d.t.Fatal(err)
	}
	var out bytes.Buffer
	d.cmd = exec.Command(d.path, "--keep-in-foreground", "-C", conf)
	d.cmd.Stderr = &out
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	limit, tick := time.After(20*time.Second), time.NewTicker(10*time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := net.DialTimeout("tcp", d.Addr.String(), time.Second)
		if err == nil {
			conn.Close()
			return
		}
		select {
		case <-tick.C:
		case <-limit:
			d.Stop() // and with it the writes to out
			d.t.Fatalf("dnsmasq does not listen: %v\n%s", err, &out)
		}
	}
}

// Stop ends it at once, if it runs.
func (d *Dnsmasq) Stop() {
	if d.cmd != nil {
		d.cmd.Process.Kill()
		d.cmd.Wait()
		d.cmd = nil
	}
}
