package forwarder

import "math"

// The descriptors that ConnectionsFor sets aside: this many, or a tenth.
const (
	leastReserve = 256
	reserveShare = 10
)

// Of these, what ExtraFor gives to connections: a quarter, and no more than
// this many, as each pipe may hold a megabyte of the kernel's memory.
const (
	extraShare = 4
	mostExtra  = 1024
)

// Probes have an eighth of the descriptors beside that, and no more than this
// many: healthsvc.MaxWorkers.
const (
	probesShare = 8
	mostProbes  = 65536
)

func reserve(descriptors uint64) uint64 { return max(leastReserve, descriptors/reserveShare) }

// ConnectionsFor returns how many connections a process with so many
// descriptors may have open, for Config.MaxOpen: each takes two, an eighth is
// left for probes, see ProbesFor, and max(256, descriptors/10) for control planes,
// listeners and files, a quarter of them for what ExtraFor is about:
//
//	(descriptors - max(256, descriptors/10) - min(descriptors/8, 65536)) / 2
//
// It is 1 at least, and 0, which is no limit, for descriptors of 0.
func ConnectionsFor(descriptors uint64) int {
	if descriptors == 0 {
		return 0
	}
	if taken := reserve(descriptors) + probes(descriptors); descriptors >= taken+2 {
		return int(min((descriptors-taken)/2, math.MaxInt))
	}
	return 1
}

func probes(descriptors uint64) uint64 { return min(descriptors/probesShare, mostProbes) }

// ProbesFor returns how many health checks may be in flight at once, one
// descriptor each, in a process with so many descriptors that bounds its
// connections: an eighth, or what the connections and the reserve of
// ConnectionsFor leave if that is more, and 65,536 at most.
//
// It is 1 at least, and 0, which is no limit, for descriptors of 0. For
// connections of 0, which are not bounded, it is the eighth.
func ProbesFor(descriptors uint64, connections int) int {
	if descriptors == 0 {
		return 0
	}
	n := max(probes(descriptors), 1)
	if taken := reserve(descriptors); connections > 0 && descriptors > taken && uint64(connections) < (descriptors-taken)/2 {
		n = max(n, descriptors-taken-2*uint64(connections))
	}
	return int(min(n, mostProbes))
}

// ExtraFor returns how many descriptors the connections of a process with so
// many may have beyond two each, for Config.MaxExtra: a quarter of what
// ConnectionsFor leaves, and 1024 at most.
//
//	min(max(256, descriptors/10) / 4, 1024)
//
// It is never 0.
func ExtraFor(descriptors uint64) int {
	return int(min(reserve(descriptors)/extraShare, mostExtra))
}

// extra is the share of the descriptors that connections may have beyond two
// each: two for each pipe, spare ones too, and one for each address of an
// endpoint that is dialled beside another.
type extra struct {
	open *Count
	most int
}

// take takes n descriptors from the share, if they are left.
func (x extra) take(n int) bool { return x.open.takeSome(n, x.most) }

// give gives n back.
func (x extra) give(n int) { x.open.releaseSome(n) }

// scarce reports that half of it is taken: nothing is kept for later then, so
// that who needs it finds some.
func (x extra) scarce() bool { return 2*x.open.Open() > int64(x.most) }
