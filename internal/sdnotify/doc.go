// Package sdnotify speaks the protocol of sd_notify(3), with the descriptors that go with
// it, at both ends: a process gives its service manager listening sockets to keep over a
// crash, and a Receiver is the end of such a manager.
//
// # Usage
//
// The process has the address of the manager's socket in NOTIFY_SOCKET:
//
//	err := sdnotify.Send(addr, "READY=1", nil)
//	err = sdnotify.Send(addr, "FDSTORE=1\nFDNAME=web", socket)
//	err = sdnotify.Send(addr, "FDSTOREREMOVE=1\nFDNAME=web", nil)
//	err = sdnotify.Barrier(addr, time.Second) // the manager has done all that
//
// The manager:
//
//	r, err := sdnotify.Listen(path, func(m sdnotify.Message) { … })
//	defer r.Close()
//	go r.Run()
//
// # Concurrency
//
// Send and Barrier may be called from anywhere. So may the methods of a Receiver, which
// calls its function for one message at a time, in their order.
//
// # Limitations
//
// A message has one descriptor at most where it is sent. Receivers are for Linux only,
// as is the protocol; the addresses of managers that are not on this host (vsock) are not
// known.
package sdnotify
