package test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/lbtest"
	"gatehouse.internal/lbcore/ringhash"
)

// nginxStream is where Debian keeps the module for TCP.
const nginxStream = "/usr/lib/nginx/modules/ngx_stream_module.so"

// startNginx runs nginx with this stream configuration until the test ends, and
// waits until it listens on these unix sockets.
func startNginx(t *testing.T, stream string, sockets ...string) {
	t.Helper()
	needsServer(t)
	path, err := exec.LookPath("nginx")
	if err != nil {
		if path, err = exec.LookPath("/usr/sbin/nginx"); err != nil {
			t.Fatal("there is no nginx: install the Debian package nginx")
		}
	}
	if _, err := os.Stat(nginxStream); errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("there is no %s: install the Debian package libnginx-mod-stream", nginxStream)
	}
	dir := t.TempDir()
	conf := filepath.Join(dir, "nginx.conf")
	write(t, conf, fmt.Sprintf(`
load_module %s;
daemon off;
master_process off;
pid %s/pid;
lock_file %[2]s/lock;
error_log stderr warn;
events { worker_connections 256; }
stream {
%s}
`, nginxStream, dir, stream))
	var stderr bytes.Buffer // to be read when nginx has ended
	cmd := exec.Command(path, "-e", "stderr", "-p", dir, "-c", conf)
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		cmd.Wait()
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-done
		if t.Failed() {
			t.Logf("nginx says:\n%s", &stderr)
		}
	})
	for _, socket := range sockets {
		eventually(t, "nginx listens on "+socket, func() bool {
			select {
			case <-done:
				t.Fatal("nginx has ended")
			default:
			}
			c, err := net.Dial("unix", socket)
			if err == nil {
				c.Close()
			}
			return err == nil
		})
	}
}

// A ketama ring gives each key to the server that nginx gives it to: with nine
// servers of different weights, and with some of them down. Keys are client
// addresses, which nginx is told of by the PROXY protocol.
func TestKetamaRingEqualsNginx(t *testing.T) {
	needsServer(t)
	dir := t.TempDir()
	var backends []*backend
	for i := range 8 {
		backends = append(backends, startBackendOn(t, "tcp", fmt.Sprintf("127.0.0.%d:0", 1+i%3)))
	}
	backends = append(backends, startBackendOn(t, "unix", filepath.Join(dir, "backend.sock")))
	weights := []uint32{4, 1, 7, 2, 9, 3, 8, 5, 6, 4}
	if ln, err := net.Listen("tcp", "[::1]:0"); err == nil {
		ln.Close()
		backends = append(backends, startBackendOn(t, "tcp", "[::1]:0"))
	} else {
		t.Logf("without a server on IPv6: %v", err)
	}

	// What nginx is told, last one first: the order does not matter.
	var servers, withDown string
	var eps []lbcore.Endpoint
	down := make(map[lbcore.Addr]bool) // in withDown
	for i := len(backends) - 1; i >= 0; i-- {
		e := lbcore.Endpoint{Weight: weights[i]}
		name := backends[i].addr
		if strings.HasPrefix(name, "/") {
			e.Addr, name = lbcore.UnixAddr(name), "unix:"+name
		} else if e.Addr = addr(t, name); strings.HasPrefix(name, "[") {
			e.HashKey = name // nginx hashes the brackets too
		}
		eps = append(eps, e)
		line := fmt.Sprintf("server %s weight=%d", name, e.Weight)
		servers += line + ";\n"
		if i%4 == 0 {
			down[e.Addr] = true
			line += " down"
		}
		withDown += line + ";\n"
	}

	sockets := []string{filepath.Join(dir, "all.sock"), filepath.Join(dir, "down.sock")}
	var stream strings.Builder
	for i, list := range []string{servers, withDown} {
		fmt.Fprintf(&stream, "upstream u%d {\nhash $proxy_protocol_addr consistent;\n%s}\n", i, list)
		fmt.Fprintf(&stream, "server {\nlisten unix:%s proxy_protocol;\nproxy_pass u%d;\n}\n", sockets[i], i)
	}
	startNginx(t, stream.String(), sockets...)

	in := lbtest.InputOf(t, eps...)
	ring := lbtest.Build(t, ringhash.Config{Function: ringhash.Ketama}, in)
	compare := func(socket string, down map[lbcore.Addr]bool) {
		const keys = 1000
		wrong, shares := 0, make(map[string]int)
		for i := range keys {
			key, proto := fmt.Sprintf("203.0.%d.%d", i>>8, i&0xff), "TCP4"
			if i%3 == 2 {
				key, proto = fmt.Sprintf("2001:db8::%x", i), "TCP6"
			}
			k := lbcore.StringKey(key)
			m, at := ring.Next(k, ring.First(k))
			for down[in.Endpoints[m].Addr] {
				m, at = ring.Next(k, at)
			}
			want := in.Endpoints[m].Addr.Dial()
			shares[want]++
			if got := askNginx(t, socket, proto, key); got != want {
				wrong++
				t.Logf("%s: nginx chooses %s, the ring %s", key, got, want)
			}
		}
		if wrong > 0 || len(shares) != len(eps)-len(down) {
			t.Errorf("%s: %d of %d keys go elsewhere; the ring gives %v", filepath.Base(socket), wrong, keys, shares)
		}
	}
	compare(sockets[0], nil)
	compare(sockets[1], down)
}

func addr(t *testing.T, s string) lbcore.Addr {
	t.Helper()
	a, err := lbcore.ParseAddr(s)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// askNginx connects as a client of this address and returns who answered.
func askNginx(t *testing.T, socket, proto, client string) string {
	t.Helper()
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	self := map[string]string{"TCP4": "127.0.0.1", "TCP6": "::1"}[proto]
	fmt.Fprintf(c, "PROXY %s %s %s 4000 80\r\n", proto, client, self)
	who, err := askOn(c)
	if err != nil {
		t.Fatalf("%s: %v", client, err)
	}
	return who
}
