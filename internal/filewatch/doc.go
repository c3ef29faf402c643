// Package filewatch tells that files may have changed, for those who then look
// for themselves. What is in the files, and when to look besides, is theirs.
//
// The directories of the files are watched, and those of every symbolic link on
// the way to them, so that it doesn't matter how a file is replaced: by renaming
// another over it, by switching a link (Kubernetes' ConfigMaps and secrets, a
// release's directory), or by writing into it. What happens to other files there
// costs one look at most each Settle.
//
// # Usage
//
//	w := filewatch.New(filewatch.Config{What: "tls files", Paths: paths, Interval: interval, Logger: log})
//	var wg sync.WaitGroup
//	wg.Go(w.Run)
//	defer wg.Wait()
//	defer w.Close()
//	for {
//		w.Follow() // before the look: a change after it must not go unseen
//		data, err := filewatch.Read(path, limit)
//		...
//		select {
//		case <-w.Changed():
//		case <-timer.C: // Interval, in case that nothing can be watched
//		case <-ctx.Done():
//			return ctx.Err()
//		}
//	}
//
// # Concurrency
//
// Changed's channel may be received from anywhere. Follow and Close belong to one
// goroutine, Run to another.
//
// # Limitations
//
// Each Watcher takes one inotify instance. Where there are no more, and on network
// file systems that tell of nothing, only the caller's own interval helps: the
// first case is logged.
package filewatch
