// Package logfile writes lines to files, terminals and pipes without ever making
// wait who has something to log: a full disk or a pipe that nobody reads costs
// lines, which are counted, and no connection.
//
// # Usage
//
//	log := logfile.NewWriter(logfile.Config{Name: "stderr", Out: os.Stderr})
//	wg.Go(func() { log.Run(ctx) })
//	slog.New(slog.NewTextHandler(log, nil))
//
// Files keeps the files that several have in common:
//
//	files := &logfile.Files{Stderr: log}
//	w, err := files.Use("/var/log/access.log")
//	w.Write(line)
//	…
//	files.Release("/var/log/access.log")
//	files.Close(bounded)
//
// # Concurrency
//
// Everything may be called from anywhere. Write copies the line into a bounded
// queue; the lock that it takes is held for such copies only. One goroutine a
// Writer, its Run, takes whatever is in the queue and writes it by one call. Run
// may hang for as long as the system call does, and nobody waits for it for
// longer than they say.
//
// # Files
//
// A file is made with mode 0640 and appended to. It is opened again by Reopen,
// and by itself when another file, or none, is at its path: this is looked at
// with the first lines after each second. A file that can't be written, as for
// want of space, is tried again with the next lines. A named pipe needs its reader
// first, and is not waited for.
//
// # Limitations
//
// What was not written to the end, as on a full disk, is ended with a newline
// when writing goes on. Lines in the queue are lost when the process is killed. A
// write to a descriptor that blocks, as stdout may be, can't be interrupted: the
// goroutine of such a Writer stays behind in the system call.
package logfile
