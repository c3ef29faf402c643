//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

// The test's own binary is the processes of the faults that run in it.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == childFlag || os.Args[1] == roleFlag) {
		main()
	}
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// Those that cost no client anything, however slow the machine is, with an agent that
// the race detector watches. Times are not judged.
func TestQuickFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("left out by -short: it builds and runs the agent")
	}
	var picked []fault
	for _, f := range faults {
		if f.quick {
			picked = append(picked, f)
		}
	}
	var log bytes.Buffer
	rep, err := suffer(t.Context(), picked, options{quick: true, race: true, untime: true}, &log)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range rep.Faults {
		if !o.OK || o.Asks.OK == 0 || o.SettledMS == nil {
			t.Errorf("%s: %+v", o.Fault, o)
		}
	}
	if len(rep.Faults) < 3 {
		t.Errorf("%d faults", len(rep.Faults))
	}
	if t.Failed() {
		t.Log(log.String())
	}
}

// good is an outcome that any fault may have.
func good() outcome {
	return outcome{Fault: "x", What: "something", OK: true, Asks: asks{OK: 1}, SeenAs: "it is out", DetectMS: new(int64(1)), RecoverMS: new(int64(2)), Base: usage{Goroutines: 1}}
}

// Each way to be other than wanted is found.
func TestJudge(t *testing.T) {
	w := want{refused: 1, reset: 1, timedOut: 1, ended: 1, cut: 1, detect: time.Second, recover: time.Second, memory: 1 << 20}
	edge := good()
	edge.Asks = asks{OK: 1, Refused: 1, Reset: 1, TimedOut: 1, Ended: 1}
	edge.Streams = streams{Cut: 1, Ended: 1}
	edge.DetectMS, edge.RecoverMS = new(int64(1000)), new(int64(1000))
	if bad := w.judge(&edge, true); bad != nil {
		t.Errorf("at the limits: %q", bad)
	}
	for word, spoil := range map[string]func(*outcome){
		"2 asks refused":     func(o *outcome) { o.Asks.Refused = 2 },
		"2 asks reset":       func(o *outcome) { o.Asks.Reset = 2 },
		"2 asks timed out":   func(o *outcome) { o.Asks.TimedOut = 2 },
		"2 asks ended":       func(o *outcome) { o.Asks.Ended = 2 },
		"1 asks answered":    func(o *outcome) { o.Asks.Wrong = 1 },
		"no ask":             func(o *outcome) { o.Asks.OK = 0 },
		"2 streams cut":      func(o *outcome) { o.Streams.Cut = 2 },
		"2 streams ended":    func(o *outcome) { o.Streams.Ended = 2 },
		"1 streams with":     func(o *outcome) { o.Streams.Wrong = 1 },
		"seen after 1001 ms": func(o *outcome) { o.DetectMS = new(int64(1001)) },
		"over after 1001 ms": func(o *outcome) { o.RecoverMS = new(int64(1001)) },
		"seen: it was not":   func(o *outcome) { o.DetectMS = nil },
		"over: it was not":   func(o *outcome) { o.RecoverMS = nil },
		"seen: nothing says": func(o *outcome) { o.SeenAs = "" },
	} {
		o := edge
		spoil(&o)
		bad := w.judge(&o, true)
		if len(bad) != 1 || !strings.HasPrefix(bad[0], word) {
			t.Errorf("%s: %q", word, bad)
		}
		if late := strings.Contains(word, "after"); late == (w.judge(&o, false) != nil) {
			t.Errorf("%s, without times: %q", word, w.judge(&o, false))
		}
	}
	if got, want := w.String(), "≤ 1 refused, ≤ 1 reset, ≤ 1 timed out, ≤ 1 ended early, ≤ 1 streams cut, seen ≤ 1s, over ≤ 1s, ≤ 1 MB and 10 % of memory more"; got != want {
		t.Errorf("in words: %q, want %q", got, want)
	}
	if got, want := (want{}).String(), "no ask fails, no stream cut"; got != want {
		t.Errorf("in words: %q, want %q", got, want)
	}
}

func TestSettled(t *testing.T) {
	base := usage{Goroutines: 40, Descriptors: 30, Resident: 40 << 20}
	for _, tt := range []struct {
		u    usage
		want bool
	}{
		{base, true},
		{usage{48, 46, 52 << 20}, true},
		{usage{49, 30, 40 << 20}, false},
		{usage{40, 47, 40 << 20}, false},
		{usage{40, 30, 53 << 20}, false},
	} {
		if got := tt.u.settled(base, 0, true); got != tt.want {
			t.Errorf("%s after %s: %t", tt.u, base, got)
		}
	}
	if !(usage{40, 30, 64 << 20}).settled(base, 20<<20, true) || (usage{40, 30, 65 << 20}).settled(base, 20<<20, true) {
		t.Error("more memory is not what is allowed")
	}
	if !(usage{48, 46, 1 << 30}).settled(base, 0, false) {
		t.Error("memory counts where it is not to")
	}
}

func TestKindOf(t *testing.T) {
	for want, err := range map[string]error{
		"refused":   &net.OpError{Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)},
		"reset":     &net.OpError{Err: os.NewSyscallError("read", syscall.ECONNRESET)},
		"timed out": fmt.Errorf("dial: %w", context.DeadlineExceeded),
		"ended":     fmt.Errorf("%w after %q", errEnded, ""),
		"wrong":     errWrong("x"),
		"odd":       errors.New("odd"),
	} {
		if got := kindOf(err); got != want {
			t.Errorf("%v is %q, want %q", err, got, want)
		}
	}
}

// The table says when a fault was seen, or why it was not: never nothing.
func TestSeen(t *testing.T) {
	for want, o := range map[string]outcome{
		"1.5 s":          {SeenAs: "a line", DetectMS: new(int64(1500))},
		"< 0.1 s":        {SeenAs: "a line", DetectMS: new(int64(3))},
		"nothing to see": {SeenAs: "nothing is wrong"},
		"not in 10.0 s":  {SeenAs: "the state", UnseenMS: new(int64(10000))},
		"-":              {}, // which judge finds
	} {
		if got := o.seen(); got != want {
			t.Errorf("%+v: %q, want %q", o, got, want)
		}
	}
}

// A line tells of a fault at the moment at which it comes, and none from before does.
func TestTold(t *testing.T) {
	a := new(agent)
	line := func(level, msg string) { fmt.Fprintf(a, "{\"level\":%q,\"msg\":%q}\n", level, msg) }
	line("WARN", "it fails")
	began := time.Now()
	line("INFO", "nothing special")
	for _, msg := range []string{"it fails", ""} {
		if at := a.told(msg, began); !at.IsZero() {
			t.Errorf("%q was told at %s", msg, at)
		}
	}
	line("WARN", "it fails")
	after := time.Now()
	line("WARN", "it fails")
	for _, msg := range []string{"it fails", ""} {
		if at := a.told(msg, began); at.Before(began) || at.After(after) {
			t.Errorf("%q was told at %s, want between %s and %s", msg, at, began, after)
		}
	}
}

// A backend is asked over a real connection, and wrong bytes are found.
func TestBackend(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := ln.Accept()
		if err == nil {
			serve(c.(*net.TCPConn), "me")
		}
	}()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := question(c, 7); err != nil {
		t.Error(err)
	}
	fmt.Fprintf(c, "sink 70000\n")
	io.Copy(c, io.LimitReader(new(pattern), 70000))
	b := make([]byte, 5)
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "true\n" {
		t.Errorf("sink: %q, %v", b, err)
	}
	fmt.Fprintf(c, "sink 3\nxyz")
	if b = make([]byte, 6); true {
		if _, err := io.ReadFull(c, b); err != nil || string(b) != "false\n" {
			t.Errorf("sink of other bytes: %q, %v", b, err)
		}
	}
	fmt.Fprintf(c, "flood 100000\n")
	if n, right := new(pattern).matches(c); n != 100000 || !right {
		t.Errorf("flood: %d bytes, %t", n, right)
	}
	<-done
	if n, right := new(pattern).matches(strings.NewReader("abc")); n != 3 || right {
		t.Errorf("other bytes: %d, %t", n, right)
	}
}

func TestPick(t *testing.T) {
	if got, err := pick([]string{"clock", "clock-back"}); err != nil || len(got) != 2 {
		t.Errorf("%d, %v", len(got), err)
	}
	for _, name := range []string{"", "no-such"} {
		if _, err := pick([]string{name}); err == nil {
			t.Errorf("%q is a fault", name)
		}
	}
	var out, errs bytes.Buffer
	for _, args := range [][]string{{"-only", "no-such"}, {"x"}, {"-no"}, {"-only", "clock", "-write", "x"}} {
		if code := run(args, &out, &errs); code != 2 {
			t.Errorf("%q: exit code %d", args, code)
		}
	}
	if code := run([]string{"-list"}, &out, &errs); code != 0 || strings.Count(out.String(), "\n") != len(faults)+1 {
		t.Errorf("-list: %d\n%s", code, &out)
	}
}

// A fault that is not as expected makes the exit code 1, and the table says so.
func TestReport(t *testing.T) {
	bad := good()
	bad.Fault, bad.OK, bad.Failures = "y", false, []string{"5 asks reset, want at most 0"}
	rep := report{Machine: machine{2, "go1.26", "0.50"}, Faults: []outcome{good(), bad}}
	if none := (&outcome{Fault: "z"}).cells(); len(none) != len(columns) || none[1] != "-" || none[len(none)-1] != "NO" {
		t.Errorf("a fault that was not made: %q", none)
	}
	page := filepath.Join(t.TempDir(), "faults.md")
	if err := os.WriteFile(page, []byte("before\n"+tableBegin+"old\n"+tableEnd+"after\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	if code := rep.print(options{write: page}, &out, &errs); code != 1 || !strings.Contains(errs.String(), "1 of 2 are not as expected: y") {
		t.Errorf("exit code %d: %s", code, &errs)
	}
	if text := out.String(); !strings.Contains(text, "y: NOT AS EXPECTED: 5 asks reset") || !strings.Contains(text, "1 of 2 faults are as expected") {
		t.Errorf("the text:\n%s", text)
	}
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if text := string(got); !strings.HasPrefix(text, "before\n"+tableBegin) || !strings.HasSuffix(text, tableEnd+"after\n") || strings.Contains(text, "old") || !strings.Contains(text, "| y | 1 | 0 |") {
		t.Errorf("the page:\n%s", text)
	}
	if err := os.WriteFile(page, []byte("no marks\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	rep.Faults = rep.Faults[:1]
	if code := rep.print(options{}, &out, &errs); code != 0 {
		t.Errorf("all well: exit code %d", code)
	}
	if code := rep.print(options{write: page}, &out, &errs); code != 1 {
		t.Errorf("a page without marks: exit code %d", code)
	}
}

// The page tells of each fault, in the order of the list, and of no other.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/faults.md")
	if err != nil {
		t.Fatal(err)
	}
	var told, want []string
	for line := range strings.Lines(string(page)) {
		if name, ok := strings.CutPrefix(line, "### "); ok {
			told = append(told, strings.TrimSpace(name))
		}
	}
	for _, f := range faults {
		want = append(want, f.name)
	}
	if diff := cmp.Diff(want, told); diff != "" {
		t.Errorf("docs/faults.md (-want +got):\n%s", diff)
	}
	for _, mark := range []string{tableBegin, tableEnd} {
		if !strings.Contains(string(page), mark) {
			t.Errorf("docs/faults.md lacks %q", mark)
		}
	}
}

// A program that is built with our package time has the wall clock that a file says,
// and its timers and durations go on.
func TestSkew(t *testing.T) {
	if testing.Short() {
		t.Skip("left out by -short: it builds a part of the standard library")
	}
	dir := t.TempDir()
	overlay, err := skewOverlay(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	source := filepath.Join(dir, "main.go")
	if err := os.WriteFile(source, []byte(`package main

import (
	"os"
	"time"
)

func main() {
	from := time.Now()
	os.Stdout.WriteString(from.Format(time.RFC3339) + "\n")
	os.Stdin.Read(make([]byte, 1)) // until the clock is another
	now := time.Now()
	os.Stdout.WriteString(now.Format(time.RFC3339) + "\n" + now.Round(0).Sub(from.Round(0)).Truncate(time.Hour).String() + "\n" + now.Sub(from).Truncate(time.Hour).String() + "\n")
}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "program")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-overlay", overlay, "-o", path, source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	w := &world{dir: dir}
	clk := w.clock()
	clk.set(-100 * time.Hour)
	cmd := exec.CommandContext(t.Context(), path)
	cmd.Env = append(os.Environ(), clk.env)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	line := func() string { lines.Scan(); return lines.Text() }
	wrong := func(text string) time.Duration {
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Error(err)
		}
		return time.Until(at).Round(time.Hour)
	}
	if d := wrong(line()); d != -100*time.Hour {
		t.Errorf("its clock is off by %s, want -100h", d)
	}
	clk.set(50 * time.Hour)
	in.Write([]byte{0})
	if d := wrong(line()); d != 50*time.Hour {
		t.Errorf("its clock is off by %s, want 50h", d)
	}
	if wall, passed := line(), line(); wall != "150h0m0s" || passed != "0s" {
		t.Errorf("by its wall clock %s passed, and %s by the other", wall, passed)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
