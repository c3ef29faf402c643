//go:build unix

package lastgood

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// owned returns an error if what info is of belongs to a user who is neither the one
// of this process nor root: what is there is that user's word.
func owned(info fs.FileInfo) error {
	own := uint32(os.Geteuid())
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != own && st.Uid != 0 {
		return fmt.Errorf("it belongs to user %d, neither to the agent's own (%d) nor to root", st.Uid, own)
	}
	return nil
}
