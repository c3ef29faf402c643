package telemetry

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gatehouse.internal/forwarder"
)

// sample records some of each kind.
func sample(r *Recorder) {
	r.Counter(ListenerConnections, 7, "web")
	r.Counter(ListenerAcceptErrors, 0, "web")
	r.Gauge(SourceState, 1, "pages", "fresh")
	r.Gauge(ClusterTLSExpiry, -2.5, "pages")
	r.Histogram(ClusterConnect, forwarder.LatencyCounts{Buckets: [...]uint64{1: 4, 16: 0}, Sum: time.Millisecond}, "pages")
	r.Counter(ClusterConnections, 1, "a:b|c@d#e,f\ng h")
}

// runUntil has t run until what has come is enough, and returns what has then.
func runUntil(t *testing.T, tel *Telemetry, collect func(*Recorder), come <-chan string, enough func(all []string) bool) (all []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { tel.Run(ctx, collect) })
	for !enough(all) {
		select {
		case text := <-come:
			all = append(all, text)
		case <-ctx.Done():
			t.Fatalf("what has come is %q", all)
		}
	}
	cancel()
	wg.Wait()
	return all
}

// datagrams returns a socket and what comes to it.
func datagrams(t *testing.T, network, address string) (net.PacketConn, <-chan string) {
	t.Helper()
	pc, err := net.ListenPacket(network, address)
	if err != nil {
		t.Fatal(err)
	}
	come, done := make(chan string, 1000), make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 1<<16)
		for {
			n, _, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			come <- string(buf[:n])
		}
	}()
	t.Cleanup(func() { pc.Close(); <-done })
	return pc, come
}

// theirs leaves out what Telemetry records by itself, and sorts.
func theirs(text string) (lines []string) {
	for line := range strings.Lines(text) {
		if !strings.Contains(line, ".telemetry.") {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return lines
}

func check(t *testing.T, got string, want ...string) {
	t.Helper()
	want = slices.Sorted(slices.Values(want)) // the caller's stay
	for i := range want {
		want[i] += "\n"
	}
	if d := cmp.Diff(want, theirs(got)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

func first(all []string) bool { return len(all) > 0 }

// Real servers, and what is on the wire: of the first Tick, in one datagram.
func TestStatsd(t *testing.T) {
	pc, come := datagrams(t, "udp", "127.0.0.1:0")
	tel, err := New(Config{StatsdAddress: pc.LocalAddr().String(), Prefix: "edge"})
	if err != nil {
		t.Fatal(err)
	}
	got := runUntil(t, tel, sample, come, first)[0]
	check(t, got,
		"edge.listener.connections.web:7|c",
		"edge.source.state.pages.fresh:1|g",
		"edge.cluster.tls_expiry.pages:0|g", "edge.cluster.tls_expiry.pages:-2.5|g", // set, not lowered by that
		"edge.cluster.connect_time.count.pages:4|c",
		"edge.cluster.connect_time.p50.pages:0.000175|g", "edge.cluster.connect_time.p90.pages:0.000235|g", "edge.cluster.connect_time.p99.pages:0.0002485|g",
		"edge.cluster.connections.a_b_c_d_e_f_g_h:1|c")
	if zero, value := strings.Index(got, "tls_expiry.pages:0|g"), strings.Index(got, "tls_expiry.pages:-2.5|g"); zero > value {
		t.Errorf("the value comes before 0: %q", got)
	}
}

func TestDogstatsd(t *testing.T) {
	want := []string{
		"gatehouse.listener.connections:7|c|#env:blue,a:b:c,x_y,listener:web",
		"gatehouse.source.state:1|g|#env:blue,a:b:c,x_y,cluster:pages,state:fresh",
		"gatehouse.cluster.tls_expiry:-2.5|g|#env:blue,a:b:c,x_y,cluster:pages",
		"gatehouse.cluster.connect_time.count:4|c|#env:blue,a:b:c,x_y,cluster:pages",
		"gatehouse.cluster.connect_time.p50:0.000175|g|#env:blue,a:b:c,x_y,cluster:pages",
		"gatehouse.cluster.connect_time.p90:0.000235|g|#env:blue,a:b:c,x_y,cluster:pages",
		"gatehouse.cluster.connect_time.p99:0.0002485|g|#env:blue,a:b:c,x_y,cluster:pages",
		"gatehouse.cluster.connections:1|c|#env:blue,a:b:c,x_y,cluster:a:b_c_d_e_f_g_h",
	}
	for _, network := range []string{"udp", "unixgram"} {
		address, prefix := "127.0.0.1:0", ""
		if network == "unixgram" {
			address, prefix = filepath.Join(t.TempDir(), "s"), "unix://"
		}
		pc, come := datagrams(t, network, address)
		tel, err := New(Config{DogstatsdAddress: prefix + pc.LocalAddr().String(), DogstatsdTags: []string{"env:blue", "a:b:c", "x|y"}})
		if err != nil {
			t.Fatal(err)
		}
		check(t, runUntil(t, tel, sample, come, first)[0], want...)
	}
}

func TestStatsite(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	come, done := make(chan string, 10), make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			b, _ := io.ReadAll(c)
			c.Close()
			come <- string(b)
		}
	}()
	defer func() { ln.Close(); <-done }()
	tel, err := New(Config{StatsiteAddress: ln.Addr().String(), EnableHostname: true, PrefixFilter: []string{"-gatehouse.cluster", "+gatehouse.cluster.connections"}})
	if err != nil {
		t.Fatal(err)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	check(t, runUntil(t, tel, sample, come, first)[0],
		"gatehouse.listener.connections.web:7|c", "gatehouse."+host+".source.state.pages.fresh:1|g", "gatehouse.cluster.connections.a_b_c_d_e_f_g_h:1|c")
}

// prefix_filter holds for all that there is, the page too; the longest prefix counts.
func TestPrefixFilter(t *testing.T) {
	for _, tt := range []struct {
		filter  []string
		block   bool
		has, no string
	}{
		{nil, false, "gatehouse_cluster_connections", ""},
		{[]string{"-gatehouse.cluster"}, false, "gatehouse_listener_connections", "gatehouse_cluster_"},
		{[]string{"+gatehouse.cluster.connect", "-gatehouse.cluster"}, false, "gatehouse_cluster_connect_time_count", "gatehouse_cluster_tls"},
		{[]string{"+gatehouse.source"}, true, "gatehouse_source_state", "gatehouse_listener"},
		{nil, true, "go_goroutines", "gatehouse_"},
	} {
		tel, err := New(Config{PrefixFilter: tt.filter, BlockByDefault: tt.block})
		if err != nil {
			t.Fatal(err)
		}
		tel.collect = sample
		if got := scrape(t, tel); !strings.Contains(got, "\n"+tt.has) || tt.no != "" && strings.Contains(got, "\n"+tt.no) {
			t.Errorf("%q, %t: want %s and not %q:\n%s", tt.filter, tt.block, tt.has, tt.no, got)
		}
	}
}

// Increments add up to the total, exactly, whatever float32 makes of each; the last of
// them come when the agent ends; and much is sent in datagrams that a frame carries.
func TestPushAddsUp(t *testing.T) {
	pc, come := datagrams(t, "udp", "127.0.0.1:0")
	tel, err := New(Config{StatsdAddress: pc.LocalAddr().String()})
	if err != nil {
		t.Fatal(err)
	}
	names := clusterNames(20)
	collections := 0
	all := runUntil(t, tel, func(r *Recorder) {
		collections++
		r.Counter(AgentReloads, uint64(collections), "x")
		for _, name := range names {
			r.Counter(ClusterConnections, 3, name)
			r.Gauge(ClusterReady, 2, name)
		}
	}, come, func(all []string) bool { return strings.Count(strings.Join(all, ""), ".ready.") == len(names) })
	// Run has ended: the last collection is on its way, of which nobody told before.
	for told := 0; told < collections; {
		told = strings.Count(strings.Join(all, ""), "gatehouse.agent.reloads.x:1|c\n")
		if told < collections {
			select {
			case text := <-come:
				all = append(all, text)
			case <-time.After(20 * time.Second):
				t.Fatalf("%d of %d collections are told: %q", told, collections, all)
			}
		}
	}
	if collections < 2 {
		t.Errorf("%d collections", collections)
	}
	for _, d := range all {
		if len(d) > maxPacket || !strings.HasSuffix(d, "\n") {
			t.Errorf("a datagram of %d bytes: %q", len(d), d)
		}
	}
	if len(all) < 2 {
		t.Errorf("%d datagrams", len(all))
	}
	pushed, sum := uint64(0), uint64(0)
	for _, total := range []uint64{1, 16777217, 16777219, 5_000_000_001, 1<<40 + 12345, 1<<40 + 12345, 1<<40 + 12345, 1<<40 + 12345} {
		d := increment(total, &pushed)
		if sum += uint64(d); d < 0 || sum > total || sum != pushed {
			t.Errorf("%d after %v, of %d", sum, d, total)
		}
	}
	if sum != 1<<40+12345 {
		t.Errorf("the increments are %d", sum)
	}
}

func clusterNames(n int) (names []string) {
	for i := range n {
		names = append(names, strings.Repeat(string(rune('a'+i)), 50))
	}
	return names
}

func TestPacket(t *testing.T) {
	long := strings.Repeat("x", maxPacket) + "\n"
	for lines, want := range map[string]int{
		"a\n": 2, "a\nb\n": 4, long + "a\n": len(long), "a\n" + long: 2, long[2:] + "a\n": len(long) - 2, long[3:] + "a\n": len(long) - 1,
	} {
		if got := packet([]byte(lines)); got != want {
			t.Errorf("%.5q…: %d, want %d", lines, got, want)
		}
	}
}

// A server that is away costs nothing but what it does not get, and is told once.
func TestServerAway(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := ln.Addr().String()
	ln.Close()
	var log bytes.Buffer
	tel, err := New(Config{StatsiteAddress: at, StatsdAddress: "name.invalid:1", Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	tel.collect = sample
	for range 3 {
		tel.push(t.Context())
	}
	if n := strings.Count(log.String(), "\n"); n != 2 || !strings.Contains(log.String(), "statsite_address") || !strings.Contains(log.String(), "statsd_address") {
		t.Errorf("the log is %s", &log)
	}
	has(t, tel, `gatehouse_listener_connections{listener="web"} 7`)
	if ln, err = net.Listen("tcp", at); err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	tel.push(t.Context())
	if !strings.Contains(log.String(), "metrics are sent again") {
		t.Errorf("the log is %s", &log)
	}
}
