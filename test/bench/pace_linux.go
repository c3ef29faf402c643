package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// clock is a source of intended times that waits like an event loop, in a
// system call: Go's own timers may be a millisecond late on an idle process.
// The goroutine should be locked to its thread.
type clock struct{}

// punctual makes the kernel wake this thread on time.
func (clock) punctual() {
	unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) // without it 50 us late
}

// now returns nanoseconds of a clock that never jumps.
func (clock) now() int64 {
	var ts unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // no error for this clock
	return ts.Nano()
}

// until returns at a time of now, or a bit later.
func (clock) until(at int64) {
	ts := unix.NsecToTimespec(at)
	for unix.ClockNanosleep(unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, &ts, nil) == unix.EINTR {
	}
}

// resident returns the process's resident memory and its peak since the last
// forgetPeak.
func resident() (rss, peak int, err error) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, 0, err
	}
	return field(b, "VmRSS:"), field(b, "VmHWM:"), nil
}

// forgetPeak makes the present size the peak.
func forgetPeak() error {
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
		return fmt.Errorf("the peak of the start can't be left out: %w", err)
	}
	return nil
}

// available returns the bytes that the machine can give, 0 if that is not
// known.
func available() int {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	return field(b, "MemAvailable:")
}

// field returns what a file of /proc says in kB, in bytes.
func field(b []byte, name string) int {
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		if rest, ok := strings.CutPrefix(s.Text(), name); ok {
			n, _ := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(rest), " kB")) // 0 says unknown
			return n << 10
		}
	}
	return 0
}
