//go:build !unix

package forwarder

// MaxDescriptors returns 0: the system has no such limit.
func MaxDescriptors() uint64 { return 0 }
