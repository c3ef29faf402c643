package forward

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is a program that runs until stop.
type process struct {
	cmd    *exec.Cmd
	stderr head
	done   chan struct{} // closed when it has ended
}

// start runs a command. It ends with this process, too, however that ends: as
// long as the thread lives, to which the calling goroutine must be locked.
func start(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, done: make(chan struct{})}
	cmd.Stderr = p.writer(cmd.Stderr)
	// A group of its own: an interrupt at the terminal is for the parent, that stops it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", cmd.Path, err)
	}
	go func() {
		defer close(p.done)
		cmd.Wait()
	}()
	return p, nil
}

// writer is where the process writes its errors to: what is to be kept, and who
// else wants them, if that is not nil.
func (p *process) writer(also io.Writer) io.Writer {
	if also == nil {
		return &p.stderr
	}
	return io.MultiWriter(&p.stderr, also)
}

// stop kills the process and all of its group.
func (p *process) stop() {
	syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.done
}

// ended returns what the process said when it ended, nil while it runs.
func (p *process) ended() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s has ended: %s", filepath.Base(p.cmd.Path), p.stderr.lines())
	default:
		return nil
	}
}

// until asks ready every 10 ms until it says nil, and no longer than 30 s or
// until the process has ended.
func (p *process) until(ctx context.Context, ready func() error) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ready()
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return p.ended()
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w", filepath.Base(p.cmd.Path), err)
		case <-tick.C:
		}
	}
}

// head keeps the beginning of what is written to it: what went wrong first.
type head struct {
	mu sync.Mutex
	b  []byte
}

func (h *head) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.b = append(h.b, p[:min(len(p), 4096-len(h.b))]...)
	return len(p), nil
}

// lines returns the first lines in one.
func (h *head) lines() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	words := strings.Join(strings.Fields(string(h.b)), " ")
	return words[:min(len(words), 200)]
}

// startBackend runs the command of Backend and returns its port.
func startBackend(ctx context.Context, args []string) (*process, int, error) {
	if len(args) == 0 {
		return nil, 0, errors.New("no command for the backend")
	}
	cmd := exec.Command(args[0], args[1:]...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, 0, err
	}
	p, err := start(cmd)
	if err != nil {
		return nil, 0, err
	}
	line := make(chan string, 1)
	go func() {
		s, _ := bufio.NewReader(out).ReadString('\n')
		line <- s
	}()
	select {
	case s := <-line:
		port, err := strconv.Atoi(strings.TrimSpace(s))
		if err != nil {
			p.stop()
			return nil, 0, fmt.Errorf("the backend's port: %w: %s", err, p.stderr.lines())
		}
		return p, port, nil
	case <-ctx.Done():
		p.stop()
		return nil, 0, ctx.Err()
	}
}

// freePort returns a port of 127.0.0.1 that nobody listens on.
func freePort() (int, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// scrape reads the metrics of a Gatehouse, by their names with labels.
func scrape(ctx context.Context, port int) (map[string]float64, error) {
	req, err := http.NewRequestWithContext(ctx, "GET", fmt.Sprintf("http://127.0.0.1:%d/stats/prometheus", port), nil)
	if err != nil {
		return nil, err
	}
	req.Close = true // no connection of ours is among what is counted
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("metrics: %s", resp.Status)
	}
	return metrics(b), nil
}

// metrics reads Prometheus' text format; lines that are no samples are left out.
func metrics(b []byte) map[string]float64 {
	m := make(map[string]float64)
	for line := range bytes.Lines(b) {
		line = bytes.TrimSpace(line)
		i := bytes.LastIndexByte(line, ' ')
		if i < 0 || line[0] == '#' {
			continue
		}
		if v, err := strconv.ParseFloat(string(line[i+1:]), 64); err == nil {
			m[string(line[:i])] = v
		}
	}
	return m
}
