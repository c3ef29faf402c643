//go:build !linux

package forwarder

import (
	"runtime"
	"testing"

	"gatehouse.internal/lbcore"
)

func leakCheck(t testing.TB) func() {
	g := runtime.NumGoroutine()
	return func() {
		eventually(t, "as many goroutines as before", func() bool { return runtime.NumGoroutine() <= g })
	}
}

func bulkChecks(testing.TB, Stats) {}

func child() int { return 1 }

const haveLoops = false

func loopsFor(testing.TB) *Loops { return nil }

func noPorts(*Listener, lbcore.Addr) {}
