//go:build unix && !race

package lbcore

import (
	"syscall"
	"unsafe"
)

// mapWords returns memory that is all 0, and how to give it back.
func mapWords(n int) ([]uint64, func()) {
	b, err := syscall.Mmap(-1, 0, 8*n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil { // as under a limit on mappings; the heap may have room
		return make([]uint64, n), nil
	}
	return unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(b))), n), func() { syscall.Munmap(b) }
}
