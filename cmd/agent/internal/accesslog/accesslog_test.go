package accesslog

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"go.uber.org/goleak"

	"gatehouse.internal/forwarder"
	"gatehouse.internal/internal/logfile"
	"gatehouse.internal/lbcore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func addr(s string) lbcore.Addr { return lbcore.IPAddr(netip.MustParseAddrPort(s)) }

var full = forwarder.Record{
	Listener: "web", Cluster: "pages", Client: netip.MustParseAddrPort("192.0.2.1:4711"), Local: addr("127.0.0.1:8080"),
	Endpoint: addr("[2001:db8::1]:80"), Generation: 3, Attempts: 2,
	Start:   time.Date(2026, 1, 2, 3, 4, 5, 678912345, time.FixedZone("", 3600)),
	Connect: 1250 * time.Microsecond, Duration: 12345 * time.Microsecond, BytesIn: 5, BytesOut: 7,
	Flag: forwarder.FlagUC, Err: os.NewSyscallError("read", syscall.ECONNRESET), PeerName: "spiffe://example.org/client", ServerName: "web.internal",
}

func mustParse(t testing.TB, s string) *Format {
	t.Helper()
	f, _, err := Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestFormat(t *testing.T) {
	empty := forwarder.Record{Start: full.Start}
	unix := forwarder.Record{Local: lbcore.UnixAddr("/run/a b.sock"), Endpoint: lbcore.UnixAddr("/run/\"x\".sock"), Start: full.Start, PeerName: "db.internal"}
	redirected := full
	redirected.Destination = netip.MustParseAddrPort("203.0.113.7:443")
	eyes := full // that found another address of the endpoint
	eyes.Address = addr("203.0.113.9:8080")
	failed := full
	failed.Flag, failed.Err = forwarder.FlagUF, errors.New("tls handshake: \"x\"\nforged")
	for _, tt := range []struct {
		format string
		rec    *forwarder.Record
		want   string
	}{
		{"text", &full, `[2026-01-02T02:04:05.678Z] UC 5 7 12 192.0.2.1:4711 web pages [2001:db8::1]:80 2 1250 "read: connection reset by peer"`},
		{"text", &empty, `[2026-01-02T02:04:05.678Z] - 0 0 0 - - - - 0 - "-"`},
		{"%RESPONSE_FLAGS%|%RESPONSE_FLAGS_LONG%\n", &full, "UC|UpstreamConnectionTermination"},
		{"%RESPONSE_FLAGS%|%RESPONSE_FLAGS_LONG%", &empty, "-|-"},
		{"%START_TIME(%Y/%m/%d %H-%M-%S.%3f %F %T %s %f %%)%", &full, "2026/01/02 02-04-05.678 2026-01-02 02:04:05 1767319445 678912345 %"},
		{"100%% %DURATION%%BYTES_SENT%%%", &full, "100% 127%"},
		{"%DOWNSTREAM_REMOTE_ADDRESS% %DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT% %DOWNSTREAM_REMOTE_PORT%", &full, "192.0.2.1:4711 192.0.2.1 4711"},
		{"%DOWNSTREAM_REMOTE_ADDRESS% %DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT% %DOWNSTREAM_REMOTE_PORT%", &unix, "- - -"},
		{"%DOWNSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT% %DOWNSTREAM_LOCAL_PORT%", &full, "127.0.0.1:8080 127.0.0.1 8080"},
		{"%DOWNSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT% %DOWNSTREAM_LOCAL_PORT%", &redirected, "203.0.113.7:443 203.0.113.7 443"},
		{"%DOWNSTREAM_LOCAL_ADDRESS%|%DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT%|%DOWNSTREAM_LOCAL_PORT%|%UPSTREAM_HOST%", &unix, `/run/a b.sock|/run/a b.sock|-|/run/\"x\".sock`},
		{"%UPSTREAM_REMOTE_ADDRESS% %UPSTREAM_REMOTE_ADDRESS_WITHOUT_PORT% %UPSTREAM_REMOTE_PORT%", &full, "[2001:db8::1]:80 2001:db8::1 80"},
		{"%UPSTREAM_HOST% %UPSTREAM_REMOTE_ADDRESS% %UPSTREAM_REMOTE_ADDRESS_WITHOUT_PORT% %UPSTREAM_REMOTE_PORT%", &eyes, "[2001:db8::1]:80 203.0.113.9:8080 203.0.113.9 8080"},
		{"json", &eyes, `{"start_time":"2026-01-02T02:04:05.678Z","listener_name":"web","downstream_remote_address":"192.0.2.1:4711",` +
			`"downstream_local_address":"127.0.0.1:8080","upstream_cluster":"pages","upstream_host":"[2001:db8::1]:80","upstream_remote_address":"203.0.113.9:8080","selector_generation":3,` +
			`"upstream_request_attempt_count":2,"connect_duration":1.25,"duration":12,"bytes_received":5,"bytes_sent":7,"response_flags":"UC",` +
			`"connection_termination_details":"read: connection reset by peer","downstream_peer_name":"spiffe://example.org/client","requested_server_name":"web.internal"}`},
		{"%UPSTREAM_CLUSTER% %UPSTREAM_CLUSTER_RAW:3% %LISTENER_NAME% %SELECTOR_GENERATION% %UPSTREAM_REQUEST_ATTEMPT_COUNT%", &full, "pages pag web 3 2"},
		{"%UPSTREAM_CONNECTION_POOL_READY_DURATION%", &full, "1250"},
		{"%UPSTREAM_CONNECTION_POOL_READY_DURATION%", &empty, "-"},
		{"%DOWNSTREAM_PEER_URI_SAN% %DOWNSTREAM_PEER_DNS_SAN%", &full, "spiffe://example.org/client -"},
		{"%DOWNSTREAM_PEER_URI_SAN% %DOWNSTREAM_PEER_DNS_SAN%", &unix, "- db.internal"},
		{"%UPSTREAM_TRANSPORT_FAILURE_REASON%", &full, "-"},
		{"%UPSTREAM_TRANSPORT_FAILURE_REASON% %CONNECTION_TERMINATION_DETAILS:18%", &failed, `tls handshake: \"x\"\u000aforged tls handshake: \"x`},
		{"%CONNECTION_TERMINATION_DETAILS:24%", &failed, `tls handshake: \"x\"`}, // not within an escape
		{"%REQ(:AUTHORITY)% %PROTOCOL%", &full, "- -"},
		{"json", &full, `{"start_time":"2026-01-02T02:04:05.678Z","listener_name":"web","downstream_remote_address":"192.0.2.1:4711",` +
			`"downstream_local_address":"127.0.0.1:8080","upstream_cluster":"pages","upstream_host":"[2001:db8::1]:80","upstream_remote_address":"[2001:db8::1]:80","selector_generation":3,` +
			`"upstream_request_attempt_count":2,"connect_duration":1.25,"duration":12,"bytes_received":5,"bytes_sent":7,"response_flags":"UC",` +
			`"connection_termination_details":"read: connection reset by peer","downstream_peer_name":"spiffe://example.org/client","requested_server_name":"web.internal"}`},
		{"%REQUESTED_SERVER_NAME%", &full, "web.internal"},
		{"%REQUESTED_SERVER_NAME%", &empty, "-"},
		{"json", &empty, `{"start_time":"2026-01-02T02:04:05.678Z","selector_generation":0,"upstream_request_attempt_count":0,"duration":0,` +
			`"bytes_received":0,"bytes_sent":0,"response_flags":"-"}`},
	} {
		if got := string(mustParse(t, tt.format).Append(nil, tt.rec)); got != tt.want {
			t.Errorf("%s:\n got %s\nwant %s", tt.format, got, tt.want)
		}
	}
	if name, err := os.Hostname(); err != nil || string(mustParse(t, "%HOSTNAME%").Append(nil, &full)) != name {
		t.Error(name, err)
	}
}

func TestParseErrors(t *testing.T) {
	for format, want := range map[string]string{
		"":                        "the format is empty",
		"jsno 100%%":              `"jsno 100%%" has no operator`,
		strings.Repeat("x", 5000): "longer than 4096 bytes",
		"a\nb":                    "a line break",
		"a %":                     "at byte 2: no operator after %",
		"%duration%":              "at byte 0: no operator after %",
		"%DURATION":               "%DURATION: no closing %",
		"%START_TIME(%Y%":         "%START_TIME(: no closing parenthesis",
		"%START_TIME(%j)%":        "%j is not known: want",
		"%START_TIME(%3S)%":       "a digit is for %f only",
		"%START_TIME(%)%":         "nothing after the last %",
		"%DURATION(x)%":           "%DURATION takes no argument",
		"%DURATION:x%":            `%DURATION: "x" is no length`,
		"%DURATION:0%":            "is no length",
		"%DURATION:5":             "no closing %",
	} {
		if f, _, err := Parse(format); f != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: %v, want %s", format, err, want)
		}
	}
	_, unknown, err := Parse("%REQ(X?:Y):10% %RESPONSE_CODE% %REQ(Z)% %DURATION% %NONSENSE%")
	if err != nil || !reflect.DeepEqual(unknown, []string{"REQ", "RESPONSE_CODE", "NONSENSE"}) {
		t.Errorf("unknown %q, %v", unknown, err)
	}
}

// Whatever is in a record and a format, a record is one line of valid text, of
// bounded length, and in JSON it is one object.
func FuzzFormat(f *testing.F) {
	f.Add("text", "web", "spiffe://x/y", "read: connection reset by peer")
	f.Add("json", "a\"b\\c", "\x00\x7f\u202e\U000e0001\xff\xc3", "x\ny\r\nz")
	f.Add("%START_TIME(%s.%3f)% %UPSTREAM_CLUSTER:3% %REQ(X)% %%", "ünï", "", strings.Repeat("\x01", 3000))
	f.Add("%CONNECTION_TERMINATION_DETAILS:7%\n", "x", "y", "\u00e4\u00e4\u00e4\u00e4")
	f.Fuzz(func(t *testing.T, format, cluster, peer, problem string) {
		r := full
		r.Cluster, r.PeerName, r.ServerName, r.Err = cluster, peer, peer, errors.New(problem)
		line := mustParse(t, FormatJSON).Append(nil, &r)
		var got struct {
			Cluster string `json:"upstream_cluster"`
			Details string `json:"connection_termination_details"`
		}
		if err := json.Unmarshal(line, &got); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if utf8.ValidString(cluster) && len(cluster) < 100 && got.Cluster != cluster && !strings.ContainsFunc(cluster, func(r rune) bool { return r > 0xffff || r == utf8.RuneError }) {
			t.Errorf("cluster %q is %q", cluster, got.Cluster)
		}
		p, _, err := Parse(format)
		if err != nil {
			return
		}
		for _, line := range [][]byte{line, p.Append(nil, &r)} {
			if bytes.ContainsAny(line, "\n\r") || len(line) > maxFormat*maxValue/4 || utf8.ValidString(format) && !utf8.Valid(line) {
				t.Errorf("%q", line)
			}
		}
	})
}

// Two listeners in one file, one of them also with another format elsewhere.
func TestLogs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access.log")
	var stdout bytes.Buffer
	files := &logfile.Files{Stdout: &stdout}
	a, err := Open(files, Config{Path: path, Format: "%LISTENER_NAME% %DURATION%", Sample: 1}, Config{Path: "stdout", Format: "json", Sample: 1})
	if err != nil {
		t.Fatal(err)
	}
	b, err := Open(files, Config{Path: path, Format: "b %DURATION%", Sample: 1})
	if err != nil {
		t.Fatal(err)
	}
	none, err := Open(files)
	if err != nil {
		t.Fatal(err)
	}
	if l, err := Open(files, Config{Path: path, Format: "text"}, Config{Path: path + "/x", Format: "text"}); l != nil || !errors.Is(err, syscall.ENOTDIR) {
		t.Error(err)
	}
	a.Write(&full)
	b.Write(&full)
	none.Write(&full)
	for _, l := range []*Logs{a, b, none} {
		l.Close()
	}
	if err := files.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "web 12\nb 12\n" {
		t.Errorf("%q, %v", got, err)
	}
	if !json.Valid(stdout.Bytes()) || strings.Count(stdout.String(), "\n") != 1 {
		t.Errorf("%q", &stdout)
	}
}

// Which connections get a line. Of many a sample has its share, and failures are in it
// or beside it.
func TestSample(t *testing.T) {
	rec := func(flag forwarder.Flag, d time.Duration) *forwarder.Record {
		return &forwarder.Record{Flag: flag, Duration: d}
	}
	well, failed, refused := rec(forwarder.FlagNone, 250*time.Millisecond), rec(forwarder.FlagUF, time.Second), rec(forwarder.FlagUH, 0)
	for _, tt := range []struct {
		cfg                   Config
		well, failed, refused float64
	}{
		{Config{Sample: 1}, 1, 1, 1},
		{Config{Sample: 1, SampleFailures: true}, 1, 1, 1},
		{Config{}, 0, 1, 1},
		{Config{SampleFailures: true}, 0, 0, 0},
		{Config{Sample: .25}, .25, 1, 1},
		{Config{Sample: .25, SampleFailures: true}, .25, .25, .25},
		{Config{Sample: 1, Flagged: true}, 0, 1, 1},
		{Config{Sample: 1, Flagged: true, Flags: "UF,NR,NFCF"}, 0, 1, 0},
		{Config{Sample: 1, Flagged: true, Flags: "-"}, 0, 0, 0},
		{Config{Sample: 1, DurationOp: ">=", DurationMillis: 250}, 1, 1, 0},
		{Config{Sample: 1, DurationOp: "<=", DurationMillis: 250}, 1, 0, 1},
		{Config{Sample: 1, DurationOp: "=", DurationMillis: 250}, 1, 0, 0},
		{Config{Sample: 1, DurationOp: "!=", DurationMillis: 250}, 0, 1, 1},
		{Config{Sample: 1, DurationOp: ">="}, 1, 1, 1},
	} {
		o := open{cfg: tt.cfg, flags: flagsOf(tt.cfg.Flags)}
		for what, share := range map[*forwarder.Record]float64{well: tt.well, failed: tt.failed, refused: tt.refused} {
			n := 0
			for range 10_000 {
				if o.wants(what) {
					n++
				}
			}
			if got := float64(n) / 10_000; got != share && (share == 0 || share == 1 || math.Abs(got-share) > .05) { // eleven times the deviation
				t.Errorf("%+v: %v of %s that took %v, want %v", tt.cfg, got, what.Flag, what.Duration, share)
			}
		}
	}
	// And so in a file.
	var stdout bytes.Buffer
	files := &logfile.Files{Stdout: &stdout}
	l, err := Open(files, Config{Path: "stdout", Format: "%RESPONSE_FLAGS%"})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		l.Write(well)
		l.Write(failed)
	}
	l.Close()
	if err := files.Close(t.Context()); err != nil || stdout.String() != "UF\nUF\nUF\n" {
		t.Errorf("%q, %v", &stdout, err)
	}
}

// A line takes no allocation: event loops write it.
func TestWriteAllocatesNothing(t *testing.T) {
	r := full
	r.Err = nil // which may format itself
	files := &logfile.Files{Stdout: io.Discard}
	l, err := Open(files, Config{Path: "stdout", Format: "text"}, Config{Path: "stdout", Format: "json"})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range l.all {
		var b []byte
		if n := testing.AllocsPerRun(100, func() { b = o.format.Append(b[:0], &r) }); n != 0 {
			t.Errorf("%v allocations", n)
		}
	}
	l.Close()
	if err := files.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}
