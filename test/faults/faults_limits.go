//go:build linux

package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// disk is a small file system with the agent's state and access log.
func (w *world) disk() (dir string) {
	dir = filepath.Join(w.dir, "disk")
	w.check(os.Mkdir(dir, 0o755))
	w.command("mount", "-t", "tmpfs", "-o", "size=1m,mode=0755", "tmpfs", dir)
	w.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	w.check(os.Mkdir(filepath.Join(dir, "log"), 0o755))
	return dir
}

// onDisk starts an agent that keeps its state and its access log on the disk, and has
// its endpoints from a file.
func (w *world) onDisk(dir string) (list string, a, b, c *child) {
	a, b, c = w.three()
	list = filepath.Join(w.dir, "web.hcl")
	w.listed(list, a, b)
	w.start(fmt.Sprintf("state_dir = %q\n", filepath.Join(dir, "state")) +
		strings.Replace(web(fmt.Sprintf("  discovery \"file\" { path = %q }", list), checked),
			"cluster = \"web\"\n}", fmt.Sprintf("cluster = \"web\"\n  access_log { path = %q }\n}", filepath.Join(dir, "log", "web.log")), 1))
	w.until("both endpoints are ready", func() bool { return w.agent.serves(a, b) })
	w.until("the state is written", func() bool { return w.agent.metric("gatehouse_state_written") > 0 })
	return list, a, b, c
}

// listed writes the file of endpoints.
func (w *world) listed(file string, backends ...*child) {
	var lines []string
	for _, b := range backends {
		lines = append(lines, fmt.Sprintf("%q", b.addr))
	}
	w.check(os.WriteFile(file+".new", []byte("endpoints = ["+strings.Join(lines, ", ")+"]\n"), 0o600))
	w.check(os.Rename(file+".new", file))
}

// logMetric is the name of one of the access log's metrics.
func (w *world) logMetric(dir, what string) string {
	return fmt.Sprintf("gatehouse_access_log_%s{path=%q}", what, filepath.Join(dir, "log", "web.log"))
}

func diskFull(w *world) {
	dir := w.disk()
	file, a, b, c := w.onDisk(dir)
	filler := filepath.Join(dir, "filler")
	w.begin(func() {
		f, err := os.Create(filler)
		w.check(err)
		for { // to the last byte, which takes what the log has left of its page, too
			if _, err := f.Write(make([]byte, 4096)); err != nil {
				break
			}
		}
		f.Close()
		w.listed(file, a, b, c)
	})
	w.seen("the failure is counted", func() bool {
		m := w.agent.metrics()
		return m["gatehouse_state_failing"] == 1 && m[w.logMetric(dir, "lost")] > 0
	})
	w.hold(w.pick(5*time.Second, time.Second))
	w.expect(w.agent.serves(a, b, c), "what is listed is not in force")
	w.recovers(dir, func() { w.check(os.Remove(filler)) })
	w.note("%.0f lines of the access log were lost", w.agent.metric(w.logMetric(dir, "lost")))
}

// recovers has the disk take bytes again.
func (w *world) recovers(dir string, how func()) {
	var lines float64
	w.over(func() { how(); lines = w.agent.metric(w.logMetric(dir, "lines")) }, "state and log are written again", func() bool {
		m := w.agent.metrics()
		return m["gatehouse_state_failing"] == 0 && m[w.logMetric(dir, "lines")] > lines
	})
	n := w.agent.lines("state_dir can't be written")
	w.expect(n >= 1 && n <= 3, "%d lines of the log tell that the state can't be written, want one a minute", n)
}

// diskReadOnly covers the disk by one that is read-only: the kernel does not turn one
// read-only that has a file open for writing. The access log has moved, as for
// rotation, and can't be opened where it was.
func diskReadOnly(w *world) {
	dir := w.disk()
	file, a, b, c := w.onDisk(dir)
	w.begin(func() {
		w.command("mount", "-t", "tmpfs", "-o", "ro,size=64k", "tmpfs", filepath.Join(dir, "state"))
		w.command("mount", "-t", "tmpfs", "-o", "ro,size=64k", "tmpfs", filepath.Join(dir, "log"))
		w.listed(file, a, b, c)
		w.check(w.agent.cmd.Process.Signal(syscall.SIGHUP))
	})
	w.seen("the failure is counted", func() bool { return w.agent.metric("gatehouse_state_failing") == 1 })
	before := w.agent.metric(w.logMetric(dir, "lines"))
	w.hold(w.pick(5*time.Second, time.Second))
	w.until("lines go on into the file that was open", func() bool { return w.agent.metric(w.logMetric(dir, "lines")) > before })
	w.expect(w.agent.metric(w.logMetric(dir, "lost")) == 0, "lines of the access log were lost")
	w.expect(w.agent.serves(a, b, c), "what is listed is not in force")
	w.recovers(dir, func() {
		w.check(syscall.Unmount(filepath.Join(dir, "state"), 0))
		w.check(syscall.Unmount(filepath.Join(dir, "log"), 0))
	})
}

// tooManyFiles takes all descriptors away from the agent that it has not yet.
func tooManyFiles(w *world) {
	w.backed()
	pid := w.agent.cmd.Process.Pid
	var was unix.Rlimit
	w.check(unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &was))
	cpu, err := w.agent.p.CPU()
	w.check(err)
	lines := w.agent.lines("")
	// The limit is for the number of a new one. Those below it are there for good: a
	// free one would take a connection that has none to be dialled with, a reset.
	const low = 8
	w.begin(func() {
		w.check(unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: low, Max: was.Max}, nil))
	})
	w.told("can't accept, will try again")
	w.hold(w.pick(3*time.Second, time.Second)) // the admin interface has no descriptor either
	took := time.Since(w.began)
	w.over(func() { w.check(unix.Prlimit(pid, unix.RLIMIT_NOFILE, &was, nil)) }, "all endpoints are ready", func() bool {
		return len(w.agent.cluster("web").ready) == 3
	})
	now, err := w.agent.p.CPU()
	w.check(err)
	m := w.agent.metrics()
	failed := m[`gatehouse_listener_accept_errors{listener="web"}`]
	w.expect(failed > 0, "no accept has failed: it was no fault")
	w.expect(w.agent.lines("")-lines <= 40, "%d lines were logged", w.agent.lines("")-lines)
	share := 100 * (now - cpu).Seconds() / took.Seconds()
	w.note("%.0f accepts failed, %d lines were logged, %.0f %% of a core was taken", failed, w.agent.lines("")-lines, share)
	w.expect(!w.spec.Timed || share < 50, "it took %.0f %% of a core", share)
}

// oneFile leaves the agent one free descriptor: enough to accept a connection, and too
// few to dial for it.
func oneFile(w *world) {
	w.backed()
	pid := w.agent.cmd.Process.Pid
	var was unix.Rlimit
	w.check(unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &was))
	var stays map[string]bool // numbers that are in use all the time
	for range 50 {
		fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		w.check(err)
		now := make(map[string]bool)
		for _, fd := range fds {
			now[fd.Name()] = stays == nil || stays[fd.Name()]
		}
		stays = now
		w.hold(10 * time.Millisecond)
	}
	lines, limit := w.agent.lines(""), 0
	for free := 0; ; limit++ {
		if !stays[fmt.Sprint(limit)] {
			if free++; free > 1 {
				break
			}
		}
	}
	w.begin(func() {
		w.check(unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(limit), Max: was.Max}, nil))
	})
	w.told("no endpoint for a connection")
	w.hold(w.pick(3*time.Second, time.Second))
	w.over(func() { w.check(unix.Prlimit(pid, unix.RLIMIT_NOFILE, &was, nil)) }, "all endpoints are ready", func() bool {
		return len(w.agent.cluster("web").ready) == 3
	})
	w.note("%.0f accepts failed, %d lines were logged", w.agent.metric(`gatehouse_listener_accept_errors{listener="web"}`), w.agent.lines("")-lines)
}

func agentStopped(w *world) {
	w.rate = 50
	a, b, c := w.backed()
	verdicts := w.agent.lines("probe verdict changed")
	w.begin(func() { w.check(w.agent.cmd.Process.Signal(syscall.SIGSTOP)) })
	w.seen("/ready gives no answer within a second", func() bool {
		ctx, cancel := context.WithTimeout(w.ctx, time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, "GET", fmt.Sprintf("http://127.0.0.1:%d/ready", w.agent.admin), nil)
		w.check(err)
		r, err := w.agent.client.Do(req)
		if err == nil {
			r.Body.Close()
		}
		return err != nil
	})
	w.hold(time.Until(w.began.Add(w.pick(30*time.Second, 5*time.Second))))
	w.over(func() { w.check(w.agent.cmd.Process.Signal(syscall.SIGCONT)) }, "all endpoints are ready", func() bool { return w.agent.serves(a, b, c) })
	w.expect(w.agent.lines("probe verdict changed") == verdicts, "a verdict has changed")
	w.note("%d verdicts of checks have changed", w.agent.lines("probe verdict changed")-verdicts)
}

// memoryLimit has the agent learn more than Go's heap may take.
func memoryLimit(w *world) {
	const many, limit = 40_000, 28 << 20
	a, b, c := w.three()
	wide := filepath.Join(w.dir, "wide.hcl")
	list := func(n int) {
		var s strings.Builder
		s.WriteString("endpoints = [\n")
		for i := range n {
			fmt.Fprintf(&s, "  \"127.1.%d.%d:9\",\n", i/250, 1+i%250)
		}
		s.WriteString("]\n")
		w.check(os.WriteFile(wide+".new", []byte(s.String()), 0o600))
		w.check(os.Rename(wide+".new", wide))
	}
	list(1)
	w.start(web(static(a, b, c), checked)+fmt.Sprintf(`
cluster "wide" {
  discovery "file" { path = %q }
}
`, wide), fmt.Sprintf("GOMEMLIMIT=%d", limit))
	w.until("all endpoints are ready", func() bool { return w.agent.serves(a, b, c) })
	cpu, err := w.agent.p.CPU()
	w.check(err)
	used := func() float64 {
		m := w.agent.metrics()
		return m["go_memstats_sys_bytes"] - m["go_memstats_heap_released_bytes"]
	}
	before := used()
	w.begin(func() { list(many) })
	w.seen("Go's memory, by go_memstats_*, is within a tenth of its limit", func() bool { return used() >= 0.9*limit })
	w.expect(before < 0.9*limit, "it was so before: %.0f bytes", before)
	w.note("Go had %.0f MB before", before/(1<<20))
	all := w.until("all are there", func() bool { return w.agent.metric(`gatehouse_cluster_endpoints{cluster="wide"}`) == many }).Sub(w.began)
	w.expect(all <= 20*time.Second || !w.spec.Timed, "they were there after %s", all)
	w.hold(w.pick(8*time.Second, 2*time.Second))
	now, err := w.agent.p.CPU()
	w.check(err)
	m := w.agent.metrics()
	w.note("%d endpoints more, there after %.1f s: %d MB at most, %.0f MB of heap in use with a limit of %d, %.0f %% of a core", many, all.Seconds(), w.peak>>20,
		m["go_memstats_heap_inuse_bytes"]/(1<<20), limit>>20, 100*(now-cpu).Seconds()/time.Since(w.began).Seconds())
	w.over(func() { list(1) }, "all are gone", func() bool { return w.agent.metric(`gatehouse_cluster_endpoints{cluster="wide"}`) == 1 })
}

// held opens connections that stay, and asks on each. It returns those that were
// answered, and how many ended in which way.
func (w *world) held(network, addr string, n int) (open []net.Conn, ended map[string]int) {
	ended = make(map[string]int)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			c, err := net.DialTimeout(network, addr, w.patience+10*time.Second)
			if err == nil {
				c.SetDeadline(time.Now().Add(patience))
				err = question(c, uint64(i))
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				ended[kindOf(err)]++
				if c != nil {
					c.Close()
				}
				return
			}
			open = append(open, c)
		})
	}
	wg.Wait()
	return open, ended
}

// again asks on each connection once more, and returns how many were answered.
func again(open []net.Conn) int {
	var right atomic.Int64
	var wg sync.WaitGroup
	for i, c := range open {
		wg.Go(func() {
			if question(c, uint64(i)) == nil {
				right.Add(1)
			}
		})
	}
	wg.Wait()
	return int(right.Load())
}

func shut(open []net.Conn) {
	for _, c := range open {
		c.Close()
	}
}

// crowd is 9,500 connections at once, as many as 20,000 descriptors allow.
func crowd(w *world) {
	a, b, c := w.three()
	n := int(w.pick(9500, 1500))
	w.rate = 20
	w.start("limits { max_connections = 9700 }\nhealth { workers = 16 }\n" + web(static(a, b, c), checked))
	var open []net.Conn
	var ended map[string]int
	w.begin(func() { open, ended = w.held("tcp", w.agent.listener("web"), n) })
	w.note("all were answered after %.1f s", time.Since(w.began).Seconds())
	w.expect(len(open) == n, "%d of %d were served, and of the others %v", len(open), n, ended)
	w.hold(w.pick(3*time.Second, 500*time.Millisecond))
	u := w.agent.usage()
	w.note("with them: %s", u)
	w.nothing("they are fewer than max_connections")
	right := again(open)
	w.expect(right == len(open), "of %d open ones %d were answered again", len(open), right)
	w.over(func() { shut(open) }, "they are gone", func() bool { return int(w.agent.metric("gatehouse_agent_connections")) < 50 })
}

// portsExhausted leaves the agent a hundred ports to each endpoint. Its clients come
// by a unix socket, which takes none.
func portsExhausted(w *world) {
	a, b, c := w.three()
	path := filepath.Join(w.dir, "web.sock")
	hcl := strings.Replace(web(static(a, b), checked+"\n  outlier_detection {}\n"), `"127.0.0.1:0"`, fmt.Sprintf("%q", "unix://"+path), 1) +
		"cluster \"other\" {\n" + static(c) + "\n}\nlistener \"other\" {\n  address = \"unix://" + path + ".other\"\n  cluster = \"other\"\n}\n"
	w.check(os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("30000 30099"), 0))
	w.agent = w.runAgent(hcl)
	w.until("both endpoints are ready", func() bool { return w.agent.serves(a, b) })
	w.rate, w.streams = 10, 4
	w.startLoad("unix", path+".other")
	var open []net.Conn
	var ended map[string]int
	w.begin(func() { open, ended = w.held("unix", path, 400) })
	w.told("no endpoint for a connection")
	w.note("of 400 connections at once %d got a port, and %d were reset", len(open), ended["reset"])
	w.expect(len(open) >= 150 && len(open) <= 200, "%d of 400 got a port, want nearly 200", len(open))
	w.expect(ended["reset"] == 400-len(open), "the others were %v, want them reset", ended)
	w.hold(w.pick(4*time.Second, time.Second))
	w.expect(w.agent.serves(a, b), "endpoints are out for want of ports")
	m := w.agent.metrics()
	w.expect(m[`gatehouse_outlier_detection_ejections_enforced_total{cluster="web"}`] == 0, "endpoints were ejected for want of ports")
	right := again(open)
	w.expect(right == len(open), "of %d open ones %d were answered again", len(open), right)
	w.over(func() { shut(open) }, "a connection is made", func() bool {
		conn, err := net.Dial("unix", path)
		if err != nil {
			return false
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(time.Second))
		return question(conn, 1) == nil
	})
}

// clockSteps has the agent's wall clock go wrong by hours while all else goes on.
func clockSteps(w *world, steps ...time.Duration) {
	clk := w.clock()
	a, b, c := w.three()
	cp := w.control("good", "127.0.0.21:0")
	cp.wants = list(a, b)
	cp.start()
	w.start(fmt.Sprintf("state_dir = %q\n", filepath.Join(w.dir, "state"))+eds(cp.addr)+`
cluster "none" {
  required = false
  discovery "static" { endpoints = ["127.0.0.99:9"] }
  health_check "tcp" { interval = "1s" }
}
listener "none" {
  address = "127.0.0.1:0"
  cluster = "none"
}
`, clk.env)
	w.until("both endpoints are ready", func() bool { return w.agent.serves(a, b) })
	verdicts := w.agent.lines("probe verdict changed")
	const probes, warned = `gatehouse_health_probes{kind="tcp",result="passed"}`, "no endpoint for a connection"
	w.nothing("nothing that the agent waits for goes by that clock")
	w.began = time.Now()
	for _, step := range steps {
		clk.set(step)
		from, told := w.agent.metric(probes), w.agent.lines(warned)
		began := time.Now()
		w.until(fmt.Sprintf("with the clock off by %s a line tells that connections get no endpoint", step), func() bool {
			if conn, err := net.Dial("tcp", w.agent.listener("none")); err == nil {
				conn.SetDeadline(time.Now().Add(patience))
				conn.Read(make([]byte, 1))
				conn.Close()
			}
			return w.agent.lines(warned) > told
		})
		w.hold(w.pick(5*time.Second, 0))
		w.until(fmt.Sprintf("with the clock off by %s probes go on", step), func() bool { return w.agent.metric(probes) >= from+4 })
		n, took := w.agent.metric(probes)-from, time.Since(began)
		w.expect(!w.spec.Timed || n <= 4*took.Seconds()+8, "with the clock off by %s %.0f probes passed within %s", step, n, took)
		_, body, err := w.agent.ask("/clusters")
		w.check(err)
		w.expect(!strings.Contains(string(body), "=-"), "an age is negative:\n%s", body)
	}
	w.expect(w.agent.serves(a, b), "the endpoints were not kept")
	w.expect(w.agent.lines("probe verdict changed") == verdicts, "a verdict has changed")
	w.over(func() { clk.set(0); cp.say(list(b, c)) }, "the news of the control plane is in force", func() bool { return w.agent.serves(b, c) })
}

func clockForward(w *world) { clockSteps(w, time.Hour, 400*24*time.Hour) }
func clockBack(w *world)    { clockSteps(w, -time.Hour, -400*24*time.Hour) }
