package test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gatehouse.internal/forwarder"
)

// fenced is a fenced block of a page. The words behind its language say how it is
// tested; docs/development.md has all of them.
type fenced struct {
	page string // its path from the root of the repository
	line int
	lang string
	how  []string
	text string

	indent string // before each line, in a list
}

func (b fenced) String() string { return fmt.Sprintf("%s:%d", b.page, b.line) }

// is reports whether a block is tested in a way.
func (b fenced) is(lang, how string) bool { return b.lang == lang && slices.Contains(b.how, how) }

// as returns what is behind as=, the name of the file that the block is.
func (b fenced) as() string {
	for _, w := range b.how {
		if name, ok := strings.CutPrefix(w, "as="); ok {
			return name
		}
	}
	return ""
}

// pages returns the fenced blocks of README.md and of docs, by page.
func pages(t *testing.T) map[string][]fenced {
	t.Helper()
	files, err := filepath.Glob("../docs/*.md")
	if err != nil || len(files) < 5 {
		t.Fatalf("%d pages, %v", len(files), err)
	}
	all := map[string][]fenced{}
	for _, file := range append(files, "../README.md") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		page := strings.TrimPrefix(file, "../")
		all[page] = nil
		var open *fenced
		for i, line := range strings.Split(string(text), "\n") {
			inside := strings.TrimLeft(line, " ")
			indent := line[:len(line)-len(inside)]
			info, isFence := strings.CutPrefix(inside, "```")
			switch {
			case isFence && open == nil:
				words := strings.Fields(info)
				if len(words) == 0 {
					t.Fatalf("%s:%d: say in which language the block is", page, i+1)
				}
				open = &fenced{page: page, line: i + 1, lang: words[0], how: words[1:], indent: indent}
			case isFence:
				all[page] = append(all[page], *open)
				open = nil
			case open != nil:
				open.text += strings.TrimPrefix(line, open.indent) + "\n"
			}
		}
		if open != nil {
			t.Fatalf("%v: the block does not end", open)
		}
	}
	return all
}

// Each block says how it is tested, and is.
func TestDocsBlocks(t *testing.T) {
	for page, blocks := range pages(t) {
		ran := false
		for i, b := range blocks {
			ok := false
			switch b.lang {
			case "hcl", "json": // by TestDocsPages of package config, or as a file of a page that is run
				ok = true
			case "sh":
				ok = len(b.how) == 1 && (b.how[0] == "run" || b.how[0] == "start" || b.how[0] == "check")
				ran = ran || ok && b.how[0] != "check"
			case "console": // by TestDocsCommands
				ok = len(b.how) == 0 && strings.HasPrefix(b.text, "$ ")
			case "text":
				ok = len(b.how) == 0 || b.as() != "" || b.how[0] == "output" && i > 0 && blocks[i-1].is("sh", "run")
			}
			if !ok {
				t.Errorf("%v: %q %q is not a way to test a block: see docs/development.md", b, b.lang, b.how)
			}
		}
		if ran && !slices.Contains(walked, page) {
			t.Errorf("%s has commands to run, and is not in walked", page)
		}
	}
}

// Each command of gatehouse that a page names exists, with the flags that it is given;
// and so do the packages and functions that go test is told to run.
func TestDocsCommands(t *testing.T) {
	agent := program(t, binary)
	help := sync.OnceValue(func() string {
		out, _ := exec.Command(agent, "-help").CombinedOutput()
		return string(out)
	})
	helps := map[string]string{}
	flag := regexp.MustCompile(`^-[a-z][a-z0-9-]*$`)
	checked := 0
	for page, blocks := range pages(t) {
		text, err := os.ReadFile("../" + page)
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		for _, b := range blocks {
			if b.lang == "sh" || b.lang == "console" {
				lines = append(lines, strings.Split(strings.ReplaceAll(b.text, "\\\n", " "), "\n")...)
			}
		}
		for _, m := range regexp.MustCompile("`((?:\\./)?gatehouse [^`]+)`").FindAllStringSubmatch(string(text), -1) {
			lines = append(lines, strings.ReplaceAll(m[1], "\n", " "))
		}
		for _, m := range regexp.MustCompile("`(go (?:test|run) [^`\n]+)`").FindAllStringSubmatch(string(text), -1) {
			lines = append(lines, m[1])
		}
		for _, m := range regexp.MustCompile(`(?m)^    (go .*)$`).FindAllStringSubmatch(string(text), -1) {
			lines = append(lines, m[1])
		}
		for _, line := range lines {
			words := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "$ "))
			at := slices.IndexFunc(words, func(w string) bool { return w == "gatehouse" || w == "./gatehouse" })
			if i := slices.Index(words, "./cmd/agent"); i > 0 && words[0] == "go" && words[1] == "run" {
				at = i
			}
			if at < 0 || at+1 >= len(words) || strings.HasPrefix(words[at+1], "{") {
				checkGo(t, page, words)
				continue
			}
			name := words[at+1]
			if !regexp.MustCompile(`^[a-z-]+$`).MatchString(name) || name == "service" {
				continue
			}
			if !strings.Contains(help(), "    "+name+" ") {
				if at > 0 && words[at-1] != "exec" { // an argument of another program, as of systemctl
					continue
				}
				t.Errorf("%s: there is no command gatehouse %s: %s", page, name, line)
				continue
			}
			checked++
			if helps[name] == "" {
				out, err := exec.Command(agent, name, "-help").CombinedOutput()
				if err != nil && len(out) == 0 {
					t.Fatal(err)
				}
				helps[name] = string(out)
			}
			for _, w := range words[at+2:] {
				w, _, _ = strings.Cut(w, "=")
				if strings.ContainsAny(w, "|;&#") {
					break
				}
				if flag.MatchString(w) && !regexp.MustCompile(`(?m)^  `+w+`\b`).MatchString(helps[name]) {
					t.Errorf("%s: gatehouse %s has no flag %s: %s", page, name, w, line)
				}
			}
		}
	}
	if checked < 30 {
		t.Errorf("only %d commands were found", checked)
	}
	for _, m := range regexp.MustCompile(`(?m)^    ([a-z-]+) {2,}\S`).FindAllStringSubmatch(help(), -1) {
		for _, page := range []string{"README.md", "docs/commands.md"} {
			if text, err := os.ReadFile("../" + page); err != nil || !strings.Contains(string(text), "`"+m[1]+"`") {
				t.Errorf("%s does not name the command %s (%v)", page, m[1], err)
			}
		}
	}
}

// checkGo looks for what go test is told to run: its package, and its function; and for
// the benchmarks of test/bench.
func checkGo(t *testing.T, page string, words []string) {
	if i := slices.Index(words, "./test/bench"); i > 0 && words[1] == "run" {
		name := words[len(words)-1]
		src, err := os.ReadFile("bench/main.go")
		if err != nil || name != "all" && !strings.Contains(string(src), `"`+name+`"`) {
			t.Errorf("%s: %q: there is no such benchmark (%v)", page, words, err)
		}
		return
	}
	if len(words) < 3 || words[0] != "go" || words[1] != "test" {
		return
	}
	pkg := ""
	for _, w := range words {
		if strings.HasPrefix(w, "./") {
			pkg = strings.TrimSuffix(w, "/...")
		}
	}
	if _, err := os.Stat("../" + pkg); pkg == "" || err != nil {
		t.Errorf("%s: %q: no such package: %v", page, words, err)
		return
	}
	for i, w := range words {
		if (w == "-run" || w == "-fuzz") && i+1 < len(words) && words[i+1] != "-" {
			files, _ := filepath.Glob("../" + pkg + "/*_test.go")
			found := slices.ContainsFunc(files, func(f string) bool {
				src, err := os.ReadFile(f)
				return err == nil && regexp.MustCompile(`(?m)^func `+words[i+1]).Match(src)
			})
			if !found {
				t.Errorf("%s: %q: there is no %s in %s", page, words, words[i+1], pkg)
			}
		}
	}
}

// docsLink finds the links of a page.
var docsLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// Links of pages lead to files and headings that there are.
func TestDocsLinks(t *testing.T) {
	headings := func(file string) []string {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(string(text), -1) {
			anchor := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
			all = append(all, strings.ReplaceAll(anchor, " ", "-"))
		}
		return all
	}
	n := 0
	for page := range pages(t) {
		text, err := os.ReadFile("../" + page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range docsLink.FindAllStringSubmatch(string(text), -1) {
			if strings.HasPrefix(m[1], "http") {
				continue
			}
			n++
			name, anchor, _ := strings.Cut(m[1], "#")
			file := filepath.Join("..", filepath.Dir(page), name)
			if name == "" {
				file = "../" + page
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s: %s leads nowhere: %v", page, m[1], err)
			} else if anchor != "" && !slices.Contains(headings(file), anchor) {
				t.Errorf("%s: %s has no heading #%s", page, file, anchor)
			}
		}
	}
	if n < 20 {
		t.Errorf("only %d links were found", n)
	}
}

// The table of descriptors in docs/operations.md is what the agent reckons with.
func TestDocsDescriptors(t *testing.T) {
	text, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile(`(?m)^\| (\d+) \| (\d+) \| (\d+) \|$`).FindAllStringSubmatch(string(text), -1)
	if len(rows) < 4 {
		t.Fatalf("%d rows", len(rows))
	}
	for _, r := range rows {
		fds, err := strconv.ParseUint(r[1], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		conns := forwarder.ConnectionsFor(fds)
		if want := fmt.Sprintf("| %d | %d | %d |", fds, conns, forwarder.ProbesFor(fds, conns)); r[0] != want {
			t.Errorf("%s, want %s", r[0], want)
		}
	}
}

// quoted is what is between backquotes.
var quoted = regexp.MustCompile("`([^`\n]+)`")

// Words that docs/troubleshooting.md has one find in logs, metrics and answers are in
// the code, and its table of flags has each flag of the forwarder.
func TestDocsSymptoms(t *testing.T) {
	const page = "../docs/troubleshooting.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var src bytes.Buffer
	for _, dir := range []string{"../cmd", "../discovery", "../forwarder", "../healthsvc", "../internal", "../lbcore", "../xds"} {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := os.ReadFile(path)
			src.Write(file)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	config, err := os.ReadFile("../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, line := range strings.Split(string(text), "\n") {
		seen, isSeen := strings.CutPrefix(line, "**You see** ")
		for _, m := range quoted.FindAllStringSubmatch(line, -1) {
			word := m[1]
			switch {
			case strings.HasPrefix(word, "gatehouse_"):
				name, _, _ := strings.Cut(word, "{")
				n++
				if !bytes.Contains(metrics, []byte("`"+name+"`")) {
					t.Errorf("there is no metric %s", name)
				}
			case isSeen && strings.Contains(seen, "`"+word+"`"):
				n++
				for _, part := range strings.Split(word, "…") { // names and numbers stand there
					if part = strings.TrimSpace(part); part != "" && !bytes.Contains(src.Bytes(), []byte(part)) && !bytes.Contains(src.Bytes(), []byte(strings.ReplaceAll(part, `"`, `\"`))) {
						t.Errorf("%q of %q is not in the code", part, word)
					}
				}
			case regexp.MustCompile(`^[a-z]+_[a-z0-9_]+$`).MatchString(word):
				n++
				if !bytes.Contains(config, []byte(word)) && !bytes.Contains(src.Bytes(), []byte(word)) {
					t.Errorf("%s is no argument of a configuration", word)
				}
			}
		}
	}
	if n < 40 {
		t.Errorf("only %d words were looked for", n)
	}
	for f := range forwarder.Flag(forwarder.NumFlags) {
		if row := fmt.Sprintf("| `%v` | %s |", f, f.Long()); !bytes.Contains(text, []byte(row)) {
			t.Errorf("no row %s … in the table of flags", row)
		}
	}
}

// walked are the pages whose commands are run, in their order, each in a network
// namespace of its own.
var walked = []string{"README.md", "docs/quickstart-consul.md", "docs/quickstart-xds.md", "docs/quickstart-dns.md"}

// Who does what a page says, in a fresh copy of the repository, gets what it says.
func TestDocsWalk(t *testing.T) {
	if os.Geteuid() != 0 {
		needsServer(t)
		t.Fatal("this needs root: each page is walked in a network namespace")
	}
	all := pages(t)
	for _, page := range walked {
		t.Run(strings.TrimSuffix(filepath.Base(page), ".md"), func(t *testing.T) {
			t.Parallel()
			w := newWalk(t)
			for i, b := range all[page] {
				switch {
				case b.as() != "":
					write(t, filepath.Join(w.dir, b.as()), b.text)
				case b.is("sh", "start"):
					w.start(b)
				case b.is("sh", "run"):
					want := ""
					if i+1 < len(all[page]) && all[page][i+1].is("text", "output") {
						want = all[page][i+1].text
					}
					w.run(b, want)
				}
			}
		})
	}
}

// walk is a place where a page is walked.
type walk struct {
	t   *testing.T
	dir string
	env []string
	ns  string // of the network
}

func newWalk(t *testing.T) *walk {
	agent := program(t, fastBinary)
	w := &walk{t: t, dir: t.TempDir()}
	bin := t.TempDir()
	if err := os.Symlink(agent, filepath.Join(bin, "gatehouse")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(consul(t), filepath.Join(bin, "consul")); err != nil {
		t.Fatal(err)
	}
	w.env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH")+":/usr/sbin")
	w.copy()
	// The namespace lives as long as this process, which ends with its stdin.
	hold := exec.CommandContext(t.Context(), tool(t, "unshare", "util-linux"), "--net", "sh", "-c", "ip link set lo up && echo up && cat")
	in, err := hold.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := hold.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := hold.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		hold.Wait()
	})
	if n, err := out.Read(make([]byte, 3)); n == 0 {
		t.Fatalf("no network namespace: %v (the Debian package iproute2 is needed)", err)
	}
	w.ns = fmt.Sprintf("/proc/%d/ns/net", hold.Process.Pid)
	return w
}

// copy copies what git knows of the repository, and what is new there.
func (w *walk) copy() {
	list := output(w.t, "git", "-C", "..", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	for _, name := range strings.Split(strings.TrimSuffix(list, "\x00"), "\x00") {
		info, err := os.Stat(filepath.Join("..", name))
		if errors.Is(err, fs.ErrNotExist) || err == nil && info.IsDir() {
			continue
		}
		if err != nil {
			w.t.Fatal(err)
		}
		copyFile(w.t, filepath.Join("..", name), filepath.Join(w.dir, name), info.Mode())
	}
}

// consul returns the path of the Consul server, which is built first if need be.
func consul(t *testing.T) string { return strings.TrimSpace(output(t, "./consul/build")) }

func (w *walk) command(ctx context.Context, script string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, tool(w.t, "nsenter", "util-linux"), "--net="+w.ns, "bash", "-euo", "pipefail", "-c", script)
	cmd.Dir, cmd.Env = w.dir, w.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}

// start starts what a block says, which runs until the page ends.
func (w *walk) start(b fenced) {
	ctx, cancel := context.WithCancel(w.t.Context())
	cmd := w.command(ctx, b.text)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		w.t.Fatalf("%v: %v", b, err)
	}
	w.t.Cleanup(func() {
		cancel()
		cmd.Wait()
		if w.t.Failed() {
			w.t.Logf("%v:\n%s", b, &out)
		}
	})
}

// run runs a block until it succeeds and has printed the lines that are wanted: a
// reader too has to wait a moment until what was started is ready. Blanks count as one.
func (w *walk) run(b fenced, want string) {
	blanks := regexp.MustCompile(`[ \t]+`)
	for end := time.Now().Add(2 * time.Minute); ; <-time.After(100 * time.Millisecond) {
		out, err := w.command(w.t.Context(), b.text).CombinedOutput()
		missing := ""
		for _, line := range strings.Split(strings.TrimSpace(want), "\n") {
			if line = strings.TrimSpace(blanks.ReplaceAllString(line, " ")); !strings.Contains(blanks.ReplaceAllString(string(out), " "), line) {
				missing = cmp.Or(missing, line)
			}
		}
		if err == nil && missing == "" {
			return
		}
		if time.Now().After(end) {
			w.t.Fatalf("%v: %v, without %q:\n%s\n%s", b, err, missing, b.text, out)
		}
	}
}
