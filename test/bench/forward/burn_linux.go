package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// burnEvery is how often Burn begins to compute: about as often as a large ring can be
// built.
const burnEvery = 100 * time.Millisecond

// Burn computes for a share of the time, of one core, that it reads from in, until ctx
// ends. It must be called in a process of its own: its goroutine stays locked to its
// thread.
func Burn(ctx context.Context, in io.Reader) error {
	var share float64
	if _, err := fmt.Fscan(in, &share); err != nil {
		return fmt.Errorf("burn: the share: %w", err)
	}
	runtime.LockOSThread()
	spent := func() time.Duration {
		var t unix.Timespec
		_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) // fails for unknown clocks only
		return time.Duration(t.Nano())
	}
	work := time.Duration(share * float64(burnEvery))
	tick := time.NewTicker(burnEvery)
	defer tick.Stop()
	for {
		for began := spent(); spent()-began < work && ctx.Err() == nil; {
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// burning runs the command of Burn until its stop is called.
func burning(args []string, share float64) (p *process, err error) {
	if len(args) == 0 {
		return nil, errors.New("no command to burn CPU")
	}
	cmd := exec.Command(args[0], args[1:]...)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if p, err = start(cmd); err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintln(in, share); err != nil {
		p.stop()
		return nil, err
	}
	return p, nil
}
