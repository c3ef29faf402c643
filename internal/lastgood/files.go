package lastgood

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// files is what a Store does to the directory when it writes. A test has its own,
// which fails or stops half-way.
type files interface {
	create(name string) (file, error) // with mode 0600; it must not be there
	rename(from, to string) error
	remove(name string) error
	sync() error // the directory
}

type file interface {
	io.WriteCloser
	Sync() error
}

// directory is the files of a directory on disk.
type directory string

func (d directory) path(name string) string { return filepath.Join(string(d), name) }

func (d directory) create(name string) (file, error) {
	f, err := os.OpenFile(d.path(name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err // not a nil *os.File in a file
	}
	return f, nil
}

func (d directory) rename(from, to string) error { return os.Rename(d.path(from), d.path(to)) }

func (d directory) remove(name string) error { return os.Remove(d.path(name)) }

func (d directory) sync() error {
	f, err := os.Open(string(d))
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// replace puts data in the place of the file of that name, whole or not at all.
// The directory is still to be synced.
func replace(d files, name string, data []byte) error {
	tmp := tmpPrefix + name
	f, err := d.create(tmp)
	if errors.Is(err, fs.ErrExist) { // of a former attempt
		if err = d.remove(tmp); err == nil {
			f, err = d.create(tmp)
		}
	}
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = d.rename(tmp, name)
	}
	if err != nil {
		d.remove(tmp) // it takes room
	}
	return err
}

// read returns the content of a regular file of at most limit bytes. That there
// is none is fs.ErrNotExist; an error that wraps errDamaged is about the file.
func (d directory) read(name string, limit int64) ([]byte, error) {
	path := d.path(name)
	before, err := os.Lstat(path) // before it is opened: a pipe would hang
	if err != nil {
		return nil, err
	}
	if !before.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: it is no regular file (%s)", errDamaged, before.Mode().Type())
	}
	if err := owned(before); err != nil {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	if before.Size() > limit {
		return nil, fmt.Errorf("%w: it has %d bytes, more than %d", errDamaged, before.Size(), limit)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if now, err := f.Stat(); err != nil || !os.SameFile(before, now) {
		return nil, errors.Join(errors.New("it was replaced while it was opened"), err)
	}
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("%w: it has more than %d bytes", errDamaged, limit)
	}
	return b, nil
}

// errDamaged marks the errors of a file that is to be set aside.
var errDamaged = errors.New("damaged")

// Check says what is wrong with dir as the directory of a Store: it is relative, no
// directory, or others may write to it. One that is not there is fine. Whose it is only
// Open asks, since another user may check a configuration.
func Check(dir string) error {
	if !filepath.IsAbs(dir) {
		return fmt.Errorf("%q is no absolute path", dir)
	}
	info, err := os.Stat(dir)
	switch {
	case err != nil: // it may come to be, and if not the agent runs without
		return nil
	case !info.IsDir():
		return fmt.Errorf("%s is no directory", dir)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("%s can be written to by others (mode %#o): what they write there would be believed", dir, info.Mode().Perm())
	}
	return nil
}
