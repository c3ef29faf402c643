package forwarder

import "math"

// The descriptors that ConnectionsFor sets aside: this many, or a tenth.
const (
	leastReserve = 256
	reserveShare = 10
)

// ConnectionsFor returns how many connections a process with so many
// descriptors may have open, for Config.MaxOpen: each takes two, and
// max(256, descriptors/10) are left for probes, control planes, listeners, files,
// and the pipes of bulk connections, which do without where there are none:
//
//	(descriptors - max(256, descriptors/10)) / 2
//
// It is 1 at least, and 0, which is no limit, for descriptors of 0.
func ConnectionsFor(descriptors uint64) int {
	if descriptors == 0 {
		return 0
	}
	reserve := max(leastReserve, descriptors/reserveShare)
	if descriptors < reserve+2 {
		return 1
	}
	return int(min((descriptors-reserve)/2, math.MaxInt))
}
