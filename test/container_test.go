package test

import (
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

const dockerfile = "../deploy/container/Dockerfile"

// instruction is one of a Dockerfile: a word, and what follows.
type instruction struct{ word, rest string }

// instructions are those of the Dockerfile, comments left out.
func instructions() (all []instruction, err error) {
	text, err := os.ReadFile(dockerfile)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(strings.ReplaceAll(string(text), "\\\n", " ")) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			word, rest, _ := strings.Cut(line, " ")
			all = append(all, instruction{word, strings.TrimSpace(rest)})
		}
	}
	return all, nil
}

// staticBinary is the agent as the Dockerfile builds it, by its own command.
var staticBinary = sync.OnceValues(func() (string, error) {
	all, err := instructions()
	if err != nil {
		return "", err
	}
	dir, err := binaryDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "gatehouse-static")
	for _, i := range all {
		if i.word == "RUN" && strings.Contains(i.rest, "go build") {
			cmd := exec.Command("/bin/sh", "-c", regexp.MustCompile(`-o \S+`).ReplaceAllLiteralString(i.rest, "-o "+path))
			cmd.Dir = ".."
			if out, err := cmd.CombinedOutput(); err != nil {
				return "", fmt.Errorf("%s: %w\n%s", i.rest, err, out)
			}
			return path, nil
		}
	}
	return "", errors.New("the Dockerfile builds nothing")
})

// isStatic fails the test unless a program needs neither a loader nor a library.
func isStatic(t *testing.T, path string) {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			t.Errorf("%s wants a loader", path)
		}
	}
	if libs, err := f.ImportedLibraries(); err == nil && len(libs) > 0 {
		t.Errorf("%s wants %q", path, libs)
	}
}

// image is what the Dockerfile makes.
type image struct {
	root       string // what it copies into the last stage
	env        []string
	user       string
	entry, cmd []string
	health     []string
	stop, from string
	shell      bool // something is run in the last stage
}

// buildImage follows the Dockerfile as far as it copies. Each source must exist.
func buildImage(t *testing.T) (img image) {
	t.Helper()
	all, err := instructions()
	if err != nil {
		t.Fatal(err)
	}
	img.root = t.TempDir()
	made := map[string]bool{} // by the build stage
	list := func(rest string) (words []string) {
		if err := json.Unmarshal([]byte(rest), &words); err != nil {
			t.Errorf("%q is no JSON, and distroless has no shell to read it", rest)
		}
		return words
	}
	stage := 0
	for _, i := range all {
		words := strings.Fields(i.rest)
		switch i.word {
		case "FROM":
			stage++
			img.from = words[0]
		case "RUN":
			img.shell = img.shell || stage == 2
			for _, w := range words {
				if strings.HasPrefix(w, "/out/") {
					made[w] = true
				}
			}
		case "COPY":
			from := ""
			for len(words) > 0 && strings.HasPrefix(words[0], "--") {
				if of, ok := strings.CutPrefix(words[0], "--from="); ok {
					from = of
				}
				words = words[1:]
			}
			for _, source := range words[:len(words)-1] {
				to := filepath.Join(img.root, words[len(words)-1])
				if from != "" {
					if !made[source] {
						t.Errorf("COPY of %s, which stage %s does not make", source, from)
					} else if filepath.Base(source) == "gatehouse" && strings.Contains(source, "/bin/") {
						copyFile(t, program(t, staticBinary), to, 0o755)
					} else if err := os.MkdirAll(to, 0o777); err != nil {
						t.Fatal(err)
					}
					continue
				}
				fi, err := os.Stat(filepath.Join("..", source))
				if err != nil {
					t.Errorf("COPY of %s, which is not in the repository", source)
				} else if stage == 2 && fi.Mode().IsRegular() {
					copyFile(t, filepath.Join("..", source), to, 0o644)
				}
			}
		case "ENV":
			img.env = append(img.env, i.rest)
		case "USER":
			img.user = i.rest
		case "ENTRYPOINT":
			img.entry = list(i.rest)
		case "CMD":
			img.cmd = list(i.rest)
		case "STOPSIGNAL":
			img.stop = i.rest
		case "HEALTHCHECK":
			_, command, _ := strings.Cut(i.rest, "CMD ")
			img.health = list(command)
		case "WORKDIR", "VOLUME":
		default:
			t.Errorf("%s is not known to this test", i.word)
		}
	}
	return img
}

// The image has what it names and nothing that needs more than that, and its health
// check tells if the agent in it is ready: it is run in the image's files alone, as the
// image's user.
func TestContainer(t *testing.T) {
	needsServer(t)
	img := buildImage(t)
	if img.user != "65532:65532" || img.shell || img.stop != "SIGTERM" || !strings.HasPrefix(img.from, "gcr.io/distroless/static") || !strings.HasSuffix(img.from, ":nonroot") {
		t.Errorf("the image is %+v", img)
	}
	isStatic(t, program(t, staticBinary))
	for _, command := range [][]string{img.entry, img.health} {
		if len(command) == 0 || !filepath.IsAbs(command[0]) {
			t.Fatalf("%q does not begin with a path", command)
		}
		if fi, err := os.Stat(filepath.Join(img.root, command[0])); err != nil || fi.Mode().Perm()&0o111 == 0 {
			t.Fatalf("%q: %v", command, err)
		}
	}
	if dir := img.cmd[slices.Index(img.cmd, "-config-dir")+1]; !exists(filepath.Join(img.root, dir)) {
		t.Errorf("%q: there is no %s", img.cmd, dir)
	}
	if i := slices.Index(img.health, "health"); i != 1 || len(img.env) != 1 || !strings.HasPrefix(img.env[0], "GATEHOUSE_ADMIN_ADDRESS=") {
		t.Errorf("health %q, environment %q", img.health, img.env)
	}

	if os.Getuid() != 0 {
		t.Fatal("to run the agent in the image's files takes root")
	}
	for dir := img.root; dir != "/tmp" && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	state := filepath.Join(img.root, "var/lib/gatehouse")
	if err := os.Chown(state, 65532, 65532); err != nil {
		t.Fatal(err)
	}
	inside := func(command ...string) *exec.Cmd {
		cmd := exec.Command(command[0], command[1:]...)
		cmd.Env = []string{"GATEHOUSE_ADMIN_ADDRESS=unix:///var/lib/gatehouse/admin.sock"} // not a port of this machine
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: img.root, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
		return cmd
	}
	health := func() error { return inside(img.health...).Run() }
	if err := health(); err == nil {
		t.Error("it is healthy without an agent")
	}
	p := startCommand(t, inside(slices.Concat(img.entry, img.cmd)...))
	eventually(t, "it is healthy", func() bool {
		select {
		case <-p.done:
			t.Fatalf("the agent has ended with code %d", p.code)
		default:
		}
		return health() == nil
	})
	if code := p.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if err := health(); err == nil {
		t.Error("it is healthy although the agent has ended")
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
