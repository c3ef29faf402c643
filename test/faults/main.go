//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// childFlag, followed by a spec as JSON, makes this program the process of one
// fault. It is not for people.
const childFlag = "-child"

func main() {
	runtime.LockOSThread() // processes end with the thread that has started them
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// options are what the flags say.
type options struct {
	only   []string
	quick  bool
	json   bool
	write  string
	race   bool // the agent is built with the race detector: by the tests
	untime bool // the times are not judged: by the tests
}

func run(args []string, stdout, stderr io.Writer) int {
	if len(args) > 1 {
		switch args[0] {
		case roleFlag:
			if err := play(args[1:]); err != nil {
				fmt.Fprintln(stderr, "faults:", strings.Join(args, " "), err)
				return 1
			}
			return 0
		case childFlag:
			if err := runChild(args[1], stdout); err != nil {
				fmt.Fprintln(stderr, "faults:", err)
				return 1
			}
			return 0
		}
	}
	var o options
	fs := flag.NewFlagSet("faults", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() {
		fmt.Fprintln(stderr, "usage: go run ./test/faults [-only NAME,…] [-quick] [-json] [-write docs/faults.md]\n       go run ./test/faults -list")
		fs.PrintDefaults()
	}
	only := fs.String("only", "", "run these faults only, by their names with commas between; a part of a name is enough")
	list := fs.Bool("list", false, "list the faults, what each may cost, and what it needs")
	fs.BoolVar(&o.quick, "quick", false, "let faults last less long")
	fs.BoolVar(&o.json, "json", false, "print one JSON object")
	fs.StringVar(&o.write, "write", "", "put the table into this file, between its marks")
	if err := fs.Parse(args); err != nil {
		return 2
	}
	if fs.NArg() > 0 {
		fs.Usage()
		return 2
	}
	if *only != "" {
		o.only = strings.Split(*only, ",")
	}
	picked, err := pick(o.only)
	if err == nil && o.write != "" && len(picked) < len(faults) {
		err = errors.New("-write is for all faults: leave -only out")
	}
	if err != nil {
		fmt.Fprintln(stderr, "faults:", err)
		return 2
	}
	if *list {
		printList(stdout, picked)
		return 0
	}
	ctx, done := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer done()
	rep, err := suffer(ctx, picked, o, stderr)
	if err != nil {
		fmt.Fprintln(stderr, "faults:", err)
		return 1
	}
	return rep.print(o, stdout, stderr)
}

// pick returns the faults of these names, or all.
func pick(names []string) (picked []fault, err error) {
	if names == nil {
		return faults, nil
	}
	for _, name := range names {
		found := false
		for _, f := range faults {
			if name == "" || !strings.Contains(f.name, name) {
				continue
			}
			found = true
			if !slices.ContainsFunc(picked, func(p fault) bool { return p.name == f.name }) {
				picked = append(picked, f)
			}
		}
		if !found {
			return nil, fmt.Errorf("no fault %q: -list shows them", name)
		}
	}
	return picked, nil
}

// suffer makes the faults happen, one after the other.
func suffer(ctx context.Context, picked []fault, o options, stderr io.Writer) (rep report, err error) {
	rep = report{Machine: thisMachine(), Quick: o.quick}
	dir, err := os.MkdirTemp("", "gatehouse-faults-")
	if err != nil {
		return rep, err
	}
	defer os.RemoveAll(dir)
	s := spec{Quick: o.quick, Timed: !o.untime, Agent: filepath.Join(dir, "gatehouse")}
	if err := build(ctx, s.Agent, o.race, ""); err != nil {
		return rep, err
	}
	if slices.ContainsFunc(picked, func(f fault) bool { return f.clock }) {
		s.Skewed = filepath.Join(dir, "gatehouse-skewed")
		overlay, err := skewOverlay(ctx, dir)
		if err == nil {
			err = build(ctx, s.Skewed, o.race, overlay)
		}
		if err != nil {
			return rep, fmt.Errorf("the agent with a wall clock of ours: %w", err)
		}
	}
	for _, f := range picked {
		if err := ctx.Err(); err != nil {
			return rep, err
		}
		out := one(ctx, f, s, dir, stderr)
		fmt.Fprintf(stderr, "%-24s %s\n", f.name, out.line())
		rep.Faults = append(rep.Faults, out)
	}
	rep.Machine.Load = loadAverage()
	return rep, nil
}

// build builds the agent.
func build(ctx context.Context, path string, race bool, overlay string) error {
	args := []string{"build", "-o", path}
	if race {
		args = append(args, "-race")
	}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	if out, err := exec.CommandContext(ctx, "go", append(args, "gatehouse.internal/cmd/agent")...).CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}

// childLimit is how long one fault may take: a hang must not hold up the rest.
const childLimit = 5 * time.Minute

// one makes a fault happen in a process of its own: as root one with namespaces of
// its own for the network, mounts and processes, so that nothing of it is left when
// that process ends. Its files are in dir.
func one(ctx context.Context, f fault, s spec, dir string, stderr io.Writer) outcome {
	failed := func(format string, args ...any) outcome {
		return outcome{Fault: f.name, What: f.what, Expect: f.want.String(), Failures: []string{fmt.Sprintf(format, args...)}}
	}
	if missing := lacks(f); missing != "" {
		return failed("needs %s: -only picks others, and -list says what each needs", missing)
	}
	s.Fault = f.name
	arg, err := json.Marshal(s)
	if err != nil {
		return failed("%v", err)
	}
	ctx, cancel := context.WithTimeout(ctx, childLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", childFlag, string(arg))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID
	}
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	var log, result bytes.Buffer
	cmd.Stdout, cmd.Stderr = &result, &log
	err = cmd.Run()
	var out outcome
	if err == nil {
		err = json.Unmarshal(result.Bytes(), &out)
	}
	if err != nil {
		out = failed("its process: %v", err)
	}
	if !out.OK {
		stderr.Write(log.Bytes())
	}
	return out
}

// lacks names what a fault needs and this machine has not, or is empty.
func lacks(f fault) string {
	var missing []string
	if f.root && os.Geteuid() != 0 {
		missing = append(missing, "root, for namespaces of its own")
	}
	for _, p := range f.programs {
		if _, err := exec.LookPath(p.name); err != nil {
			missing = append(missing, fmt.Sprintf("%s (apt-get install %s)", p.name, p.debian))
		}
	}
	return strings.Join(missing, " and ")
}

// runChild is the whole life of the process of one fault.
func runChild(arg string, stdout io.Writer) error {
	var s spec
	if err := json.Unmarshal([]byte(arg), &s); err != nil {
		return err
	}
	i := slices.IndexFunc(faults, func(f fault) bool { return f.name == s.Fault })
	if i < 0 {
		return fmt.Errorf("no fault %q", s.Fault)
	}
	// consultest and dnstest ask package testing if the run is a short one.
	testing.Init()
	if err := flag.CommandLine.Parse(nil); err != nil {
		return err
	}
	if os.Geteuid() == 0 {
		if err := furnish(); err != nil {
			return err
		}
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	limit.Cur = limit.Max // set anew, it is for children too
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	return json.NewEncoder(stdout).Encode(take(context.Background(), faults[i], s))
}

// furnish prepares the namespaces that this process is in.
func furnish() error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("mounts of its own: %w", err)
	}
	if err := syscall.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("/proc of its own: %w", err)
	}
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return fmt.Errorf("ip link set lo up (apt-get install iproute2): %w: %s", err, out)
	}
	return os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("20000 60999"), 0)
}
