package forward

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The test's own binary is the backend, and what burns CPU.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "burn" {
		if err := Burn(context.Background(), os.Stdin); err != nil {
			os.Stderr.WriteString(err.Error())
			os.Exit(1)
		}
		return
	}
	if len(os.Args) == 2 && os.Args[1] == "backend" {
		if err := Backend(context.Background(), os.Stdout); err != nil {
			os.Stderr.WriteString(err.Error())
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// Without a relay every figure of plain connections can be had.
func TestDirect(t *testing.T) {
	vs, err := Take(t.Context(), Spec{Relay: Direct, Case: Plain, Backend: []string{os.Args[0], "backend"}, Each: 30 * time.Millisecond, Servers: 10})
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range []string{Connect, Trips1, Trips64, Fixed, Bulk1, Bulk8} {
		for _, k := range []Key{Rate, All} {
			if v := vs[group+string(k)]; v <= 0 {
				t.Errorf("%s%s = %v", group, k, v)
			}
		}
		if v, ok := vs[group+string(CPU)]; !ok || v != 0 {
			t.Errorf("%s: without a relay its CPU is %v, %v", group, v, ok)
		}
		if p50, p99 := vs[group+string(P50)], vs[group+string(P99)]; !strings.HasPrefix(group, "bulk") && (p50 <= 0 || p99 < p50) {
			t.Errorf("%s: p50 %v, p99 %v", group, p50, p99)
		}
	}
}

// Burn takes CPU, of one thread.
func TestBurn(t *testing.T) {
	runtime.LockOSThread()
	p, err := burning([]string{os.Args[0], "burn"}, 0.5)
	if err != nil {
		t.Fatal(err)
	}
	defer p.stop()
	if err := p.until(t.Context(), func() error {
		took, err := procs{p.cmd.Process.Pid}.cpu()
		if err == nil && took < 3*burnEvery/2 {
			err = fmt.Errorf("it has taken %v", took)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	if err := Burn(t.Context(), strings.NewReader("half")); err == nil || !strings.Contains(err.Error(), "the share") {
		t.Errorf("of a share that is no number: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Burn(ctx, strings.NewReader("0.5")); err != nil {
		t.Error(err)
	}
}

func TestTakeFails(t *testing.T) {
	backend := []string{os.Args[0], "backend"}
	for _, tt := range []struct {
		s    Spec
		want string
	}{
		{Spec{Relay: "nobody", Case: Plain, Backend: backend, Servers: 1}, "not a relay"},
		{Spec{Relay: Direct, Case: "nothing", Backend: backend, Servers: 1}, "no case"},
		{Spec{Relay: Direct, Case: Ring, Backend: backend, Servers: 1}, "not a relay"},
		{Spec{Relay: Direct, Case: Plain, Backend: backend}, "0 servers"},
		{Spec{Relay: Direct, Case: Plain, Servers: 1}, "no command"},
		{Spec{Relay: Direct, Case: Plain, Backend: []string{"/nowhere"}, Servers: 1}, "nowhere"},
		{Spec{Relay: TCPProxy, Exe: "/bin/false", Case: Plain, Backend: backend, Servers: 1}, "has ended"},
	} {
		if _, err := Take(t.Context(), tt.s); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: error %v, want %q", tt.s, err, tt.want)
		}
	}
}

// A backend that dies is an error and no hang.
func TestLoadFails(t *testing.T) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	w := &world{Spec: Spec{Relay: Nginx}, listen: ln.Addr().(*net.TCPAddr).Port}
	l, err := newLoad(w.to)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	free := func() (costs, error) { return costs{}, nil }
	if _, err := l.connect(t.Context(), 2, time.Minute, free); err == nil {
		t.Error("connections that are closed at once count")
	}
	if _, err := l.established(t.Context(), 2); err == nil {
		t.Error("connections that are closed at once are established")
	}
	if _, err := l.bulk(t.Context(), Bulk1, 1, time.Minute, free, nil); err == nil {
		t.Error("connections that are closed at once take bulk")
	}
	ln.Close()
	<-done
}

// What a backend sends back is what came, also when it can't be sent at once;
// and it tells how much came after the end of the stream.
func TestBackend(t *testing.T) {
	p, port, err := startBackend(t.Context(), []string{os.Args[0], "backend"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.stop()
	for _, kind := range []byte{echoes, counts} {
		c, err := net.Dial("tcp4", "127.1.2.3:"+strconv.Itoa(port))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(20 * time.Second))
		sent := bytes.Repeat([]byte{kind, 1, 2, 3, 4, 5, 6, 7}, 2<<20)
		wrote := make(chan error, 1)
		go func() {
			_, err := c.Write(sent)
			if err == nil {
				err = c.(*net.TCPConn).CloseWrite()
			}
			wrote <- err
		}()
		got, err := io.ReadAll(c)
		if err != nil {
			t.Fatal(err)
		}
		if err := <-wrote; err != nil {
			t.Fatal(err)
		}
		want := sent
		if kind == counts {
			want = []byte{0, 0, 0, 0, 1, 0, 0, 0} // 16 MiB
		}
		if !bytes.Equal(got, want) {
			t.Errorf("kind %c: %d bytes came back, want %d", kind, len(got), len(want))
		}
	}
}

// This process has what it has opened.
func TestProc(t *testing.T) {
	ps, err := family(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	ps = ps[:1]
	if ps[0] != os.Getpid() {
		t.Fatalf("family of %d: %v", os.Getpid(), ps)
	}
	ln, err := net.Listen("tcp4", "127.0.0.1:0") // so that Go's epoll set is the first
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	before, err := ps.fds()
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	p, err := newPoller()
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	fd, err := socket()
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll([]int{fd})
	if err := p.add(fd, edges); err != nil {
		t.Fatal(err)
	}
	after, err := ps.fds()
	if err != nil {
		t.Fatal(err)
	}
	if after.all < before.all+4 || after.pipes != before.pipes+2 || after.looped() != before.looped()+1 {
		t.Errorf("descriptors %+v, before %+v; want a pipe and a socket in an epoll set more", after, before)
	}
	if n := ps.countPipes(); n != after.pipes {
		t.Errorf("%d pipes, want %d", n, after.pipes)
	}
	if d, err := ps.cpu(); err != nil || d <= 0 {
		t.Errorf("CPU %v, error %v", d, err)
	}
	if n, err := ps.resident(); err != nil || n < 1<<20 {
		t.Errorf("%d bytes resident, error %v", n, err)
	}
	if _, err := (procs{1 << 30}).cpu(); err == nil {
		t.Error("a process that is not there has used CPU")
	}
}

func TestParse(t *testing.T) {
	if d, err := runTime([]byte("1234567 89 10\n")); err != nil || d != 1234567 {
		t.Errorf("schedstat: %v, %v", d, err)
	}
	if _, err := runTime([]byte("x 1 2")); err == nil {
		t.Error("a schedstat without a number")
	}
	if n, err := rss([]byte("00400000-7ff [rollup]\nRss:                3456 kB\nPss: 1 kB\n")); err != nil || n != 3456<<10 {
		t.Errorf("smaps_rollup: %v, %v", n, err)
	}
	if _, err := rss([]byte("Pss: 1 kB\n")); err == nil {
		t.Error("a smaps_rollup without Rss")
	}
	m := metrics([]byte("# HELP x y\n\ngo_goroutines 12\na{b=\"c d\"} 1.5e+06\nbad line\n"))
	if len(m) != 2 || m["go_goroutines"] != 12 || m[`a{b="c d"}`] != 1.5e6 {
		t.Errorf("metrics: %v", m)
	}
}

func FuzzMetrics(f *testing.F) {
	f.Add([]byte("# x\n \na 1\n"))
	f.Fuzz(func(t *testing.T, b []byte) { metrics(b) })
}

func TestFigures(t *testing.T) {
	latency := make([]int64, 200)
	for i := range latency {
		latency[i] = int64(200-i) * 1000
	}
	vs := figures("g", 2*time.Second, 200, latency, costs{time.Millisecond, 2 * time.Millisecond}, costs{2 * time.Millisecond, 4 * time.Millisecond})
	for k, want := range map[Key]float64{Rate: 100, P50: 100, P99: 198, CPU: 5, All: 10} {
		if got := vs["g"+string(k)]; got != want {
			t.Errorf("%s = %v, want %v", k, got, want)
		}
	}
	vs = bulkFigures("b", 2*time.Second, 4e9, costs{}, costs{time.Second, 2 * time.Second})
	for k, want := range map[Key]float64{Rate: 2, CPU: 0.25, All: 0.5} {
		if got := vs["b"+string(k)]; got != want {
			t.Errorf("%s = %v, want %v", k, got, want)
		}
	}
	if got := middle([]float64{9, 1, 2, 3}); got != 2.5 {
		t.Errorf("middle = %v", got)
	}
}

// Sources differ, so that no port is wanted twice.
func TestSource(t *testing.T) {
	seen := make(map[[4]byte]bool)
	for i := range 4096 {
		seen[source(i).Addr] = true
	}
	if len(seen) != 4096 {
		t.Errorf("%d sources", len(seen))
	}
}
