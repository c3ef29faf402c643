// Package lastgood keeps on disk what was learnt, so that a process that starts
// while nobody can tell it anything begins with what the last one knew.
//
// # Usage
//
//	store, err := lastgood.Open(lastgood.Config{Dir: "/var/lib/gatehouse"})
//	defer store.Close()
//	wg.Go(func() { store.Run(ctx) })
//
//	item := store.Item(lastgood.Key{Kind: "set", Name: "web"})
//	defer item.Release()
//	if r, ok := item.Load(); ok {
//		use(r.Payload, r.Confirmed)
//	}
//	item.Put(func() ([]byte, error) { return encode(set) })
//	item.Fresh(true)
//
// A nil *Store, and the nil *Item that it gives, do nothing and know nothing, so
// that who uses them need not ask whether there is a directory.
//
// # Files
//
// Each item is a file of its own with mode 0600. It begins with a line of JSON that
// says the version of the format, what the item is, and until when it was right; the
// payload follows, and a last line with the SHA-256 of all before. A file is written
// beside the old one, synced and renamed, so that after a crash or a loss of power
// there is the old one or the new one. The file "confirmed" says of all items until
// when they are known to have been right: it is written every Tick, so that they
// need not be.
//
// A file that is cut off, altered, too large, of another version, of another user
// (neither the process's own nor root), or no file at all (a link, a directory) is told of in one log line and counts as not there; Run
// renames it to a name with ".damaged-" in it. The newest 8 of those
// are kept, and none that is larger than MaxFile.
//
// What no item has claimed is removed by Prune, also what does not fit MaxTotal.
//
// # One process
//
// Open locks the directory (flock): a *LockedError says that another process has
// it. A directory that can't be locked because it can't be written to is used
// all the same, for reading; from time to time it is tried again. Suspend gives the
// directory to another process, which begins with all that was put by then.
//
// # What fails
//
// A full disk or a read-only file system costs what was to be written and nothing
// else: it is counted, told of at most once a minute, shown in Stats, and tried
// again after 1 s, then later each time, up to a minute.
//
// # Concurrency
//
// All methods may be called from anywhere. Put, Fresh and Release take one short
// lock and touch no file: Run's goroutine is the only one that writes. It calls
// the functions given to Put. Load reads a file in the goroutine that calls it.
//
// # Limitations
//
// What was put less than Delay before a crash is lost. A disk that hangs holds up
// Run, also at its end, since no system call on a file can be interrupted. Without
// flock, as on Windows, a second process is not noticed.
package lastgood
