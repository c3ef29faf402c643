package forward

import (
	"context"
	"os/exec"
	"time"
)

// Program is a process that another benchmark measures. It ends with this process,
// however that ends, as long as the thread lives to which the goroutine must be
// locked that calls Start.
type Program struct {
	p *process
	procs
}

// Start starts cmd. What it writes to stderr goes to cmd.Stderr too, if that is set.
func Start(cmd *exec.Cmd) (*Program, error) {
	p, err := start(cmd)
	if err != nil {
		return nil, err
	}
	return &Program{p, procs{cmd.Process.Pid}}, nil
}

// Stop kills the process.
func (p *Program) Stop() { p.p.stop() }

// Ended returns what the process said when it ended, nil while it runs.
func (p *Program) Ended() error { return p.p.ended() }

// Until asks ready every 10 ms until it says nil, and no longer than 30 s or until
// the process has ended.
func (p *Program) Until(ctx context.Context, ready func() error) error { return p.p.until(ctx, ready) }

// CPU returns the time that all threads have run.
func (p *Program) CPU() (time.Duration, error) { return p.cpu() }

// Resident returns its Rss in bytes.
func (p *Program) Resident() (int, error) { return p.resident() }

// FreePort returns a port of 127.0.0.1 that nobody listens on.
func FreePort() (int, error) { return freePort() }

// Scrape reads the metrics of a Gatehouse from its admin port, by their names with
// labels.
func Scrape(ctx context.Context, port int) (map[string]float64, error) { return scrape(ctx, port) }
