package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"gatehouse.internal/test/bench/forward"
)

// agent is a Gatehouse with one listener, for the first cluster.
type agent struct {
	*forward.Program
	dir     string
	listen  int
	admin   int
	trace   *trace
	started time.Time
}

// startAgent starts the agent of a Spec.
func startAgent(ctx context.Context, s Spec, server netip.AddrPort) (*agent, error) {
	a := &agent{trace: new(trace)}
	for _, p := range []*int{&a.listen, &a.admin} {
		var err error
		if *p, err = forward.FreePort(); err != nil {
			return nil, err
		}
	}
	text := fmt.Sprintf(`node { id = %q }
admin { address = "127.0.0.1:%d" }
log { level = "warn" }
xds {
  protocol   = %q
  server_uri = "%s"
  clusters   = true
}
listener "hot" {
  address = "127.0.0.1:%d"
  cluster = %q
}
`, node, a.admin, s.Variant, server, a.listen, clusterName(0))
	if s.Case == Memory && s.Clusters > 0 {
		if err := pause(ctx, untilStep(time.Now())); err != nil {
			return nil, err
		}
	}
	var err error
	if a.dir, err = os.MkdirTemp("", "gatehouse-bench-"); err != nil {
		return nil, err
	}
	path := filepath.Join(a.dir, "gatehouse.hcl")
	cmd := exec.Command(s.Exe, "run", "-config-file", path)
	cmd.Dir = a.dir
	if s.Case == Memory {
		// What lives is the same, and collections come soon.
		cmd.Env = append(os.Environ(), "GODEBUG=gctrace=1", "GOGC=5")
		cmd.Stderr = a.trace
	}
	a.started = time.Now()
	if err = os.WriteFile(path, []byte(text), 0o600); err == nil {
		a.Program, err = forward.Start(cmd)
	}
	if err != nil {
		os.RemoveAll(a.dir)
		return nil, err
	}
	return a, nil
}

func (a *agent) program() process { return a.Program }

func (a *agent) stop() {
	a.Stop()
	os.RemoveAll(a.dir)
}

// ask asks for a page of the admin address.
func (a *agent) ask(ctx context.Context, path string) error {
	req, err := http.NewRequestWithContext(ctx, "GET", fmt.Sprintf("http://127.0.0.1:%d%s", a.admin, path), nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

func (a *agent) ready(ctx context.Context) error {
	return a.Until(ctx, func() error { return a.ask(ctx, "/ready") })
}

// pick opens connections, one after the other. One that fails is followed by the next.
func (a *agent) pick(ctx context.Context, _ netip.AddrPort) error {
	d := net.Dialer{Timeout: time.Second}
	for ctx.Err() == nil {
		c, err := d.DialContext(ctx, "tcp4", fmt.Sprintf("127.0.0.1:%d", a.listen))
		if err != nil {
			continue
		}
		c.SetReadDeadline(time.Now().Add(time.Second))
		c.Read(make([]byte, 1)) // until it is closed
		abort(c)
	}
	return nil
}

// taken reads the metrics. A set that equals the one before is not counted.
func (a *agent) taken(ctx context.Context) (sets, builds float64, err error) {
	m, err := forward.Scrape(ctx, a.admin)
	for name, v := range m {
		switch {
		case strings.HasPrefix(name, "gatehouse_source_updates{"):
			sets += v
		case strings.HasPrefix(name, "gatehouse_selector_rebuilds{"):
			builds += v
		}
	}
	return sets, builds, err
}

// step is how long the metrics of the last minute are gathered for.
const step = 10 * time.Second

// untilStep returns how long to wait for the begin of a step, if this one is too far
// gone to begin in it.
func untilStep(now time.Time) time.Duration {
	if since := now.Sub(now.Truncate(step)); since > 3*step/10 {
		return step - since
	}
	return 0
}

// steps returns how many there were since the start.
func (a *agent) steps() int {
	return int(time.Now().Truncate(step).Sub(a.started.Truncate(step))/step) + 1
}

// collections is how many the least heap is taken over.
const collections = 3

// heap has collections made by asking for pages, until enough were in one step. All
// metrics are there once they were asked for.
func (a *agent) heap(ctx context.Context, steps int) (h heap, err error) {
	ctx, cancel := context.WithTimeout(ctx, 20*step)
	defer cancel()
	m, err := forward.Scrape(ctx, a.admin)
	if err != nil {
		return h, err
	}
	for name, v := range m {
		if strings.HasPrefix(name, "gatehouse_selector_storage{") {
			h.storage += v
		}
	}
	if more := steps - a.steps(); more > 0 {
		begin := time.Now().Truncate(step).Add(time.Duration(more) * step)
		if err := pause(ctx, time.Until(begin)); err != nil {
			return h, err
		}
	}
	from := a.trace.count() + 2 // the first ones still find what the start and that have left
	for {
		if err := a.ask(ctx, "/ready"); err != nil {
			return h, err
		}
		h.steps = a.steps()
		live := a.trace.since(from, time.Now().Truncate(step))
		if len(live) >= collections {
			h.live = slices.Min(live)
			return h, nil
		}
	}
}

// trace reads the lines of GODEBUG=gctrace=1.
type trace struct {
	mu   sync.Mutex
	rest []byte
	all  []collection
}

// collection says what one has left.
type collection struct {
	at   time.Time
	live float64 // bytes
}

// Write implements io.Writer.
func (t *trace) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rest = append(t.rest, p...)
	for {
		line, rest, whole := bytes.Cut(t.rest, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		if mb, ok := marked(string(line)); ok {
			t.all = append(t.all, collection{time.Now(), mb * (1 << 20)})
		}
		t.rest = rest
	}
}

// marked reads how many MB a collection has left: "gc 5 @0.1s 2%: …, 4->5->3 MB, …".
func marked(line string) (mb float64, ok bool) {
	if !strings.HasPrefix(line, "gc ") {
		return 0, false
	}
	sizes, _, ok := strings.Cut(line, " MB,")
	if !ok {
		return 0, false
	}
	mb, err := strconv.ParseFloat(sizes[strings.LastIndexByte(sizes, '>')+1:], 64)
	return mb, err == nil
}

func (t *trace) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.all)
}

// since returns what collections have left from one on and from a time on.
func (t *trace) since(from int, begin time.Time) (live []float64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.all[min(from, len(t.all)):] {
		if !c.at.Before(begin) {
			live = append(live, c.live)
		}
	}
	return live
}
