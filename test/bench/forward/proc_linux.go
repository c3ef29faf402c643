package forward

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// procs are the processes of one program, with those that it has started.
type procs []int

// family returns a process and its children.
func family(pid int) (procs, error) {
	ps := procs{pid}
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		for _, s := range strings.Fields(string(b)) {
			child, err := strconv.Atoi(s)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", f, err)
			}
			ps = append(ps, child)
		}
	}
	return ps, nil
}

// cpu returns the time that all threads have run.
func (ps procs) cpu() (sum time.Duration, err error) {
	for _, pid := range ps {
		files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
		if err != nil {
			return 0, err
		}
		if len(files) == 0 {
			return 0, fmt.Errorf("process %d has ended", pid)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if errors.Is(err, os.ErrNotExist) {
				continue // a thread that just ended
			}
			if err != nil {
				return 0, err
			}
			d, err := runTime(b)
			if err != nil {
				return 0, fmt.Errorf("%s: %w", f, err)
			}
			sum += d
		}
	}
	return sum, nil
}

// runTime reads a schedstat: its first number is nanoseconds on a CPU.
func runTime(b []byte) (time.Duration, error) {
	first, _, _ := bytes.Cut(b, []byte(" "))
	n, err := strconv.ParseInt(string(first), 10, 64)
	return time.Duration(n), err
}

// resident returns bytes of memory.
func (ps procs) resident() (sum int, err error) {
	for _, pid := range ps {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			return 0, err
		}
		n, err := rss(b)
		if err != nil {
			return 0, fmt.Errorf("process %d: %w", pid, err)
		}
		sum += n
	}
	return sum, nil
}

// rss reads the Rss of a smaps_rollup, in bytes.
func rss(b []byte) (int, error) {
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "Rss:" && f[2] == "kB" {
			n, err := strconv.Atoi(f[1])
			return n << 10, err
		}
	}
	return 0, errors.New("smaps_rollup has no Rss")
}

// fds is what descriptors there are.
type fds struct {
	all, pipes int
	sockets    []int // in each epoll set but the first of its process
}

// looped returns the descriptors in epoll sets but the first.
func (f fds) looped() (n int) {
	for _, k := range f.sockets {
		n += k
	}
	return n
}

// fds looks at all descriptors.
func (ps procs) fds() (f fds, err error) {
	for _, pid := range ps {
		dir := fmt.Sprintf("/proc/%d/fd", pid)
		names, err := os.ReadDir(dir)
		if err != nil {
			return f, err
		}
		f.all += len(names)
		first := -1
		var sets []int
		for _, n := range names {
			to, err := os.Readlink(filepath.Join(dir, n.Name()))
			switch fd, _ := strconv.Atoi(n.Name()); {
			case err != nil: // closed meanwhile
				f.all--
			case strings.HasPrefix(to, "pipe:"):
				f.pipes++
			case to == "anon_inode:[eventpoll]":
				if first < 0 || fd < first {
					first = fd
				}
				sets = append(sets, fd)
			}
		}
		for _, fd := range sets {
			if fd == first {
				continue
			}
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", pid, fd))
			if err != nil {
				return f, err
			}
			f.sockets = append(f.sockets, bytes.Count(b, []byte("tfd:")))
		}
	}
	return f, nil
}

// countPipes returns how many descriptors are pipes. It is quicker than fds, as
// it is asked while bytes move.
func (ps procs) countPipes() int {
	n := 0
	for _, pid := range ps {
		links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid)) // the pattern is right
		for _, l := range links {
			if to, err := os.Readlink(l); err == nil && strings.HasPrefix(to, "pipe:") {
				n++
			}
		}
	}
	return n
}
