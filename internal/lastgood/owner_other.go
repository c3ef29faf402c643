//go:build !unix

package lastgood

import "io/fs"

// owned knows of no owners here.
func owned(fs.FileInfo) error { return nil }
