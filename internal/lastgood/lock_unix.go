//go:build unix

package lastgood

import (
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// lock locks a file, which it makes. If another process has it, held is what that
// wrote into it, its process id.
func lock(path string) (f *os.File, held string, err error) {
	f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, "", err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		b, _ := io.ReadAll(io.LimitReader(f, 32))
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, strings.TrimSpace(string(b)), errLocked
		}
		return nil, "", err
	}
	if f.Truncate(0) == nil { // for whom it helps; a full disk is no reason to fail
		f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return f, "", nil
}
