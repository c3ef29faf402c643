package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	tea "github.com/charmbracelet/bubbletea"
	"github.com/creack/pty"
)

// topSample is what an agent says so many seconds after the first time.
func topSample(t *testing.T, seconds int) topAnswer {
	t.Helper()
	a := topAnswer{at: time.Date(2026, 3, 1, 12, 0, seconds, 0, time.UTC)}
	host := func(n int, opened, failed, active int, more string) string {
		return fmt.Sprintf(`{"address": {"socket_address": {"address": "10.0.0.%d", "port_value": 80}}, "stats": [{"name": "cx_total", "value": "%d"},
			{"name": "cx_connect_fail", "value": "%d"}, {"name": "cx_active", "value": "%d"}], "gatehouse": {%s}}`, n, opened, failed, active, more)
	}
	cluster := func(name string, total, failed, active, ready, rebuilds int, source string, hosts ...string) string {
		return fmt.Sprintf(`{"name": %q, "host_statuses": [%s], "gatehouse": {"origin": "file", "ready": %d, "cx_active": %d, "cx_total": %d, "cx_connect_fail": %d,
			"connect_time": {"buckets": [0, 5, %d, 0, %d]}, "selectors": [{"rebuilds": %d, "failed": 1}, {"rebuilds": 1}], "source": %s}}`, name, strings.Join(hosts, ","), ready, active, total, failed, total*9/10, total/10, rebuilds, source)
	}
	err := json.Unmarshal([]byte(`{"cluster_statuses": [`+
		cluster("api", 100+7*seconds, 3, 2, 0, 4, `{"state": "stale", "confirmed": "2026-03-01T11:50:00Z", "blocks": [{"kind": "consul"}]}`,
			host(1, 100+7*seconds, 3, 2, `"ready": false, "state": "failed", "why": "its tcp check fails:\u001b[2J refused"`))+","+
		cluster("web", 1000+50*seconds, 10*seconds, 9, 2, 2, `{"state": "fresh", "confirmed": "2026-03-01T12:00:00Z", "blocks": [{"kind": "static"}]}`,
			host(2, 400+40*seconds, 0, 3, `"ready": true, "state": "ready", "adaptive_weight": 8388.608`),
			host(3, 600+10*seconds, 10*seconds, 6, `"ready": true, "state": "ready", "adaptive_weight": 2796.2`))+`]}`), &a.state)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// press has m take keys: those of one rune, and by name.
func press(m tea.Model, keys ...string) (tea.Model, tea.Cmd) {
	var cmd tea.Cmd
	for _, k := range keys {
		msg := tea.KeyMsg{Type: tea.KeyRunes, Runes: []rune(k)}
		for _, named := range []tea.KeyType{tea.KeyTab, tea.KeyEnter, tea.KeyEsc, tea.KeyBackspace, tea.KeyDown, tea.KeyPgUp, tea.KeyCtrlC} {
			if named.String() == k {
				msg = tea.KeyMsg{Type: named}
			}
		}
		m, cmd = m.Update(msg)
	}
	return m, cmd
}

// What is seen, as a function of what was said and typed.
func TestTopViews(t *testing.T) {
	asked := 0
	var m tea.Model = newTopModel("127.0.0.1:9901", time.Second, func() tea.Msg {
		asked++
		return topSample(t, 0)
	})
	m, _ = m.Update(tea.WindowSizeMsg{Width: 120, Height: 10})
	var all strings.Builder
	show := func(what string) { fmt.Fprintf(&all, "== %s\n%s\n", what, m.View()) }
	m, cmd := m.Update(topSample(t, 0))
	if cmd != nil || m.Init() == nil {
		t.Error("the first answer begins a second clock")
	}
	show("at first")
	if m, cmd = m.Update(topTick{}); cmd == nil || cmd() == nil || asked != 1 {
		t.Errorf("it is time, and asked %d times", asked)
	}
	if m, cmd = m.Update(topSample(t, 2)); cmd == nil {
		t.Error("after an answer no clock goes")
	}
	show("two seconds later")
	m, _ = press(m, "s")
	show("sorted by connections a second")
	m, _ = press(m, "r")
	show("the other way round")
	m, _ = press(m, "tab", "s", "s")
	show("endpoints by connections a second")
	m, _ = press(m, "/", "w", "E", "x", "backspace", "b")
	show("a filter is typed")
	m, _ = press(m, "enter")
	show("and kept")
	m, _ = press(m, "esc", "p")
	m, cmd = m.Update(topTick{})
	if cmd == nil {
		t.Error("while paused no clock goes")
	}
	m, _ = m.Update(topSample(t, 4))
	show("paused: what is said then is not shown")
	if asked != 1 {
		t.Errorf("asked %d times while paused", asked)
	}
	m, _ = press(m, "p")
	m, _ = m.Update(topAnswer{err: errors.New("no agent\nanswers")})
	show("an agent that has gone")
	m, _ = m.Update(topSample(t, 4))
	m, _ = m.Update(tea.WindowSizeMsg{Width: 40, Height: 6})
	m, _ = press(m, "down", "down", "down")
	show("small, and scrolled to the end")
	m, _ = press(m, "pgup", "pgup")
	show("and back")
	golden(t, "top.txt", all.String())
	for _, key := range []string{"q", "ctrl+c"} {
		if _, cmd := press(m, key); cmd == nil || cmd() != tea.Quit() {
			t.Errorf("%s does not quit", key)
		}
	}
	if _, cmd := press(m, "/", "q"); cmd != nil {
		t.Error("q in a filter quits")
	}
	for _, h := range []int{0, 1, 3} { // a window that is too small is no reason to fail
		m, _ := m.Update(tea.WindowSizeMsg{Width: h, Height: h})
		m, _ = press(m, "down")
		m.View()
	}
}

// In a terminal, against an agent that runs.
func TestTopInATerminal(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "gatehouse.hcl")
	if err := os.WriteFile(file, []byte(`cluster "web" {
  discovery "static" { endpoints = [{ address = "10.0.0.1:80" }] }
}`), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv(envAdmin, "unix://"+filepath.Join(dir, "admin.sock"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	agent := exec.CommandContext(ctx, "gatehouse", "run", "-config-file", file)
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		agent.Process.Signal(os.Interrupt)
		agent.Wait()
	}()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for code := -1; code != exitOK; <-tick.C {
		if code, _, _ = program("health"); ctx.Err() != nil {
			t.Fatal("the agent is not ready")
		}
	}

	top := exec.CommandContext(ctx, "gatehouse", "top", "-interval", "100ms")
	top.Env = append(os.Environ(), "TERM=xterm")
	term, err := pty.StartWithSize(top, &pty.Winsize{Rows: 20, Cols: 100})
	if err != nil {
		t.Fatal(err)
	}
	defer term.Close()
	seen := ""
	see := func(want string) {
		t.Helper()
		buf := make([]byte, 4096)
		for !strings.Contains(seen, want) {
			n, err := term.Read(buf)
			seen += string(buf[:n])
			if err != nil {
				t.Fatalf("%q is not seen: %v: %q", want, err, seen)
			}
		}
		seen = ""
	}
	see("static fresh")
	fmt.Fprint(term, "\t")
	see("10.0.0.1:80")
	if code, _, errs := program("disable", "web", "10.0.0.1:80"); code != exitOK {
		t.Fatal(errs)
	}
	see("disabled by the operator")
	fmt.Fprint(term, "q")
	for { // what it has left to say
		if _, err := term.Read(make([]byte, 4096)); err != nil {
			break
		}
	}
	if err := top.Wait(); err != nil {
		t.Errorf("top: %v", err)
	}
}

// Other commands leave the terminal alone.
func TestTerminalIsLeftAlone(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "gatehouse", "version")
	cmd.Env = append(os.Environ(), "TERM=xterm")
	term, err := pty.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	defer term.Close()
	out, _ := io.ReadAll(term) // it ends with an error, as terminals do
	if err := cmd.Wait(); err != nil || !strings.HasPrefix(string(out), "gatehouse ") || strings.Contains(string(out), "\x1b") {
		t.Errorf("%q, %v", out, err)
	}
}

func TestTopNeedsATerminal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admin.sock")
	dumpServer(t, listenOn(t, "unix", path))
	if code, out, errs := program("top", "-http-addr", "unix://"+path); code != exitRuntime || out != "" || !strings.Contains(errs, "top needs a terminal") {
		t.Errorf("exit code %d, %s%s", code, out, errs)
	}
	if code, _, errs := program("top", "-http-addr", "unix://"+path+"x"); code != exitRuntime || !strings.Contains(errs, "no agent answers at unix://"+path+"x") {
		t.Errorf("exit code %d, %s", code, errs)
	}
	if code, _, errs := program("top", "-interval", "1ms"); code != exitConfig || !strings.Contains(errs, "want 100ms to 1m") || !strings.Contains(errs, "Usage: gatehouse top") {
		t.Errorf("exit code %d, %s", code, errs)
	}
	if code, _, errs := program("top", "now"); code != exitConfig || !strings.Contains(errs, "Usage: gatehouse top") {
		t.Errorf("exit code %d, %s", code, errs)
	}
}
