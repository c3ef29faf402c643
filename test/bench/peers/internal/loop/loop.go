// Package loop is what the programs of the peers share with test/bench: how a
// measurement is asked for and answered, and how picks are timed.
//
// # Usage
//
//	func main() { loop.Main(map[string]loop.Measure{"p2c": measure}) }
//
// # Limitations
//
// It repeats a part of test/bench, as a program can't be imported.
package loop

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Spec is the part of a child's task that peers need.
type Spec struct {
	Kind   string `json:"kind"`
	N      int    `json:"n"`
	EachMS int    `json:"each_ms"`
}

// Picker picks: what it returns is called on one core and does so many picks.
// It reports the first that failed.
type Picker func(core int) func(picks int) error

// Measure builds a selector of n endpoints. It is timed.
type Measure func(n int) (Picker, error)

// Main answers the task that the arguments give, and ends the program.
func Main(kinds map[string]Measure) {
	if err := answer(kinds); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func answer(kinds map[string]Measure) error {
	var s Spec
	if len(os.Args) != 3 {
		return fmt.Errorf("this program is started by test/bench")
	}
	if err := json.Unmarshal([]byte(os.Args[2]), &s); err != nil {
		return err
	}
	m, ok := kinds[s.Kind]
	if !ok {
		return fmt.Errorf("no peer %q", s.Kind)
	}
	began := time.Now()
	pick, err := m(s.N)
	if err != nil {
		return err
	}
	vs := map[string]float64{"build_ms": time.Since(began).Seconds() * 1e3}
	for cores := 1; cores <= min(2, runtime.NumCPU()); cores++ {
		ns, allocs, err := timed(cores, time.Duration(s.EachMS)*time.Millisecond, pick)
		if err != nil {
			return err
		}
		vs[fmt.Sprintf("ns %d", cores)] = ns
		vs["allocs"] = max(vs["allocs"], allocs)
	}
	return json.NewEncoder(os.Stdout).Encode(vs)
}

// timed is test/bench's, but with the collector on: peers allocate.
func timed(cores int, d time.Duration, pick Picker) (ns, allocs float64, err error) {
	const count = 9
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(cores))
	runtime.GC()
	works := make([]func(int) error, cores)
	for i := range works {
		works[i] = pick(i)
	}
	errs := make([]error, cores)
	slice := func(picks int) time.Duration {
		var wg sync.WaitGroup
		var there atomic.Int64
		began, ended := make([]time.Time, cores), make([]time.Time, cores)
		for i, w := range works {
			wg.Go(func() {
				for there.Add(1); there.Load() < int64(cores); {
				}
				began[i] = time.Now()
				errs[i] = errors.Join(errs[i], w(picks))
				ended[i] = time.Now()
			})
		}
		wg.Wait()
		return slices.MaxFunc(ended, time.Time.Compare).Sub(slices.MinFunc(began, time.Time.Compare))
	}
	picks := 256
	for took := slice(picks); took < d/count && picks < 1<<31; took = slice(picks) {
		grow := float64(d/count) / float64(max(took, 1)) * 1.1
		picks = int(float64(picks)*min(max(grow, 1.2), 16)) + 1
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var took []float64
	for range count {
		took = append(took, float64(slice(picks).Nanoseconds()))
	}
	runtime.ReadMemStats(&after)
	slices.Sort(took)
	total := float64(picks * cores)
	return took[count/2] / total, math.Floor(float64(after.Mallocs-before.Mallocs) / (total * count)), errors.Join(errs...)
}

// Addr returns the address of endpoint i, as test/bench has it.
func Addr(i int) string {
	ip := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
	return netip.AddrPortFrom(ip, 80).String()
}

// AnyAddr is a source address before Write.
const AnyAddr = "100.100.100.100"

// Write makes buf, which holds AnyAddr, the text of an address that 24 bits of
// h give.
func Write(buf []byte, h uint64) {
	for _, i := range [...]int{1, 2, 5, 6, 9, 10, 13, 14} {
		h <<= 3
		buf[i] = '0' + byte(h>>61)
	}
}
