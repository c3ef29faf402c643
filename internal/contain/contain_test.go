package contain

import (
	"bytes"
	"errors"
	"log/slog"
	"regexp"
	"runtime/debug"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// run panics with x, unless it is nil, in a function that contains it.
func run(p *Panics, x any) (err error) {
	defer p.Recover(Probe, &err)
	if x != nil {
		panic(x)
	}
	return errors.New("no panic")
}

func index(p *Panics, i int) (err error) {
	defer p.Recover(Decoder, &err)
	_ = make([]int, 3)[i]
	return nil
}

// A panic is an error, counted, and told with its stack once for each line of code that
// has panicked, then once a minute.
func TestContain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		p := &Panics{Log: slog.New(slog.NewTextHandler(&log, nil))}
		if err := run(p, nil); err.Error() != "no panic" || p.Count(Probe) != 0 {
			t.Errorf("%v, %d", err, p.Count(Probe))
		}
		for i := range 10 {
			if err := run(p, "secret of the hour "+string(rune('a'+i))); err == nil || !strings.Contains(err.Error(), "panic: secret of the hour") || strings.Contains(err.Error(), "goroutine") {
				t.Errorf("%v", err)
			}
		}
		if err := index(p, 7); err == nil || !strings.Contains(err.Error(), "out of range [7]") {
			t.Errorf("%v", err)
		}
		lines := func() int { return strings.Count(log.String(), "a panic was contained") }
		if lines() != 2 || p.Count(Probe) != 10 || p.Count(Decoder) != 1 {
			t.Errorf("%d probes, %d decoders:\n%s", p.Count(Probe), p.Count(Decoder), &log)
		}
		if !regexp.MustCompile(`in=decoder at=\S+contain_test.go:\d+ .*stack=".*contain\.index`).MatchString(log.String()) {
			t.Errorf("%s", &log)
		}
		time.Sleep(tellEvery)
		run(p, "x")
		if lines() != 3 || !strings.Contains(log.String(), "not_logged=9") {
			t.Errorf("a minute later:\n%s", &log)
		}
		for i := range 3 * maxCauses { // many causes are no flood
			p.Caught(Build, i, []byte("goroutine 1\npanic({1, 2})\n\truntime/panic.go:1\nf()\n\tf.go:"+strings.Repeat("1", i+1)+" +0x1\n"))
		}
		if n := lines(); n != 3+maxCauses-2+1 {
			t.Errorf("%d lines", n)
		}
	})
}

// Without a *Panics nothing is contained.
func TestNotContained(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("it was")
		}
	}()
	_ = run(nil, "x")
}

func TestLocation(t *testing.T) {
	if at := location(debug.Stack()); at != "" {
		t.Errorf("without a panic: %q", at)
	}
	if at := location([]byte("\npanic(x)")); at != "" {
		t.Errorf("cut off: %q", at)
	}
}
