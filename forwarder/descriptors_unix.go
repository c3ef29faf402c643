//go:build unix

package forwarder

import "golang.org/x/sys/unix"

// MaxDescriptors returns how many descriptors the process may have, or 0 if
// that is not limited or not known. Go has raised the limit as far as it can
// at the start (RLIMIT_NOFILE, soft to hard).
func MaxDescriptors() uint64 {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil || uint64(r.Cur) == unix.RLIM_INFINITY&(1<<64-1) {
		return 0
	}
	return uint64(r.Cur)
}
