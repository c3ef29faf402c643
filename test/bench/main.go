package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"
)

// size says how much is measured: what -quick and the tests cut down.
type size struct {
	rounds int           // medians are over as many at most
	budget time.Duration // no further round of a measurement begins that would exceed it; 0 is no bound
	each   time.Duration // what one figure of a pick is measured for
	full   bool          // the cases that -quick leaves out
	peers  bool

	ns    []int // endpoints, of lb
	sort  int   // points of the ring against an obvious build
	wide  int   // endpoints of the ring with more than 65,536
	rings []int // of memory
	// sizes are those of memory's rings, in points.
	points []int
	most   int           // bytes of all rings of a case together
	watch  time.Duration // how long picks are timed at a time
	pairs  int           // of such times, idle and rebuilding
	crowd  int           // clusters of memory's crowd at the gate
	crowds []crowd       // their rings
	limit  time.Duration // how long the crowd is waited for

	relays relaySize // of forward

	lookups time.Duration // of dns, each of three times
	probes  healthSize

	control controlSize // of xds
}

var (
	full = size{rounds: 5, budget: 30 * time.Minute, each: 100 * time.Millisecond, full: true, peers: true,
		ns: []int{10, 100, 1000, 10000}, sort: 1_600_000, wide: 70_000,
		rings: []int{1, 8, 64, 256}, points: memoryPoints, most: 4 << 30,
		watch: 500 * time.Millisecond, pairs: 7, crowd: 1000, crowds: crowdRings, limit: time.Minute,
		relays:  relaySize{each: 2 * time.Second, servers: 1000, idle: 9500, churn: 100_000, points: 1_160_000, pairs: 5, rests: 3},
		probes:  healthSize{targets: []int{100, 1000, 10_000}, shared: 500, clusters: 200, interval: 10 * time.Second},
		lookups: 10 * time.Second,
		control: controlSize{clusters: []int{10, 1000}, endpoints: 50, timed: 100, each: 5800 * time.Millisecond}}
	quick = size{rounds: 3, budget: 150 * time.Second, each: 10 * time.Millisecond, peers: true,
		ns: []int{10, 100, 1000, 10000}, sort: 1_600_000, wide: 70_000,
		rings: []int{1, 8, 64, 256}, points: memoryPoints, most: 1 << 30,
		watch: 200 * time.Millisecond, pairs: 3, crowd: 1000, crowds: crowdRings, limit: 10 * time.Second,
		relays:  relaySize{each: 500 * time.Millisecond, servers: 1000, idle: 9500, churn: 100_000, points: 1_160_000, pairs: 3, rests: 1},
		probes:  healthSize{targets: []int{100, 1000, 10_000}, shared: 500, clusters: 200, interval: 10 * time.Second},
		lookups: 3 * time.Second,
		control: controlSize{clusters: []int{10, 1000}, endpoints: 50, timed: 30, each: 1800 * time.Millisecond}}
)

// memoryPoints make rings of about 0.13, 1.3 and 12.8 MB.
var memoryPoints = []int{12_000, 121_000, 1_160_000}

// crowd is a ring of many, and the lane of the gate that it is for.
type crowd struct {
	points int
	large  bool
}

// crowdRings are for the small lane, and just large enough for the large one.
var crowdRings = []crowd{{1000, false}, {26_000, true}}

// benches are what NAME can be, in the order of all.
var benches = []struct {
	name string
	run  func(context.Context, *runner) []row
}{
	{"lb", benchLB},
	{"memory", benchMemory},
	{"health", benchHealth},
	{"xds", benchXDS},
	{"forward", benchForward},
	{"dns", benchDNS},
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	if len(args) == 2 && args[0] == childFlag {
		return child(args[1], stdout, stderr)
	}
	var names []string
	for _, b := range benches {
		names = append(names, b.name)
	}
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() {
		fmt.Fprintf(stderr, "usage: go run ./test/bench [-quick] [-json] %s|all\n", strings.Join(names, "|"))
		fs.PrintDefaults()
	}
	small := fs.Bool("quick", false, "end within three minutes a benchmark: fewer rounds, shorter, without the largest cases")
	asJSON := fs.Bool("json", false, "print one JSON object")
	// Flags may stand behind the name too.
	var name string
	for rest := args; ; {
		if err := fs.Parse(rest); err != nil {
			return 2
		}
		if rest = fs.Args(); len(rest) == 0 {
			break
		}
		if name != "" {
			fs.Usage()
			return 2
		}
		name, rest = rest[0], rest[1:]
	}
	if name != "all" && !slices.Contains(names, name) {
		fs.Usage()
		return 2
	}
	sz := full
	if *small {
		sz = quick
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	return measure(ctx, name, sz, *asJSON, stdout, stderr)
}

// measure runs the benchmark of that name, or all, and prints what it found.
func measure(ctx context.Context, name string, sz size, asJSON bool, stdout, stderr io.Writer) int {
	exe, err := os.Executable()
	if err != nil {
		fmt.Fprintln(stderr, "bench: own binary:", err)
		return 1
	}
	rep := report{Bench: name, Machine: thisMachine()}
	failed := 0
	for _, b := range benches {
		if name != "all" && name != b.name {
			continue
		}
		r := &runner{size: sz, self: exe, log: stderr}
		rep.Rows = append(rep.Rows, b.run(ctx, r)...)
		failed += r.failed
	}
	if asJSON {
		enc := json.NewEncoder(stdout)
		enc.SetEscapeHTML(false)
		err = enc.Encode(rep)
	} else {
		err = rep.table(stdout)
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return 1
	}
	if failed > 0 {
		fmt.Fprintf(stderr, "bench: %d measurements failed\n", failed)
		return 1
	}
	return 0
}
