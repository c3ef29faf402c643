package sdnotify

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

// sendWithin bounds the wait for a manager that does not read what it was sent.
const sendWithin = 2 * time.Second

// MaxName is how many bytes the name of a descriptor (FDNAME) has at most.
const MaxName = 255

// ValidName reports whether a manager takes name for a descriptor: ASCII without control
// characters and colons, 1 to MaxName bytes.
// Source: sd_pid_notify_with_fds(3), FDNAME.
func ValidName(name string) bool {
	for i := range len(name) {
		if c := name[i]; c < ' ' || c >= 0x7f || c == ':' {
			return false
		}
	}
	return name != "" && len(name) <= MaxName
}

// Send sends a message, lines that are assignments, to the manager whose socket has that
// address: a path, or with @ before it a name of Linux' abstract ones. The manager gets
// file too, unless that is nil, and the caller keeps it. Send waits for at most 2 s.
func Send(addr, state string, file *os.File) error {
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: addr, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetWriteDeadline(time.Now().Add(sendWithin)); err != nil {
		return err
	}
	if file == nil {
		_, err = conn.Write([]byte(state))
		return err
	}
	to, err := conn.SyscallConn() // package net sends no descriptors from a connected datagram socket
	if err != nil {
		return err
	}
	raw, err := file.SyscallConn() // Fd would have it block, for everybody who has it
	if err != nil {
		return err
	}
	var werr, serr error
	if err := raw.Control(func(fd uintptr) {
		rights := syscall.UnixRights(int(fd))
		werr = to.Write(func(sock uintptr) bool {
			serr = syscall.Sendmsg(int(sock), []byte(state), rights, nil, 0)
			return serr != syscall.EAGAIN && serr != syscall.EINTR
		})
	}); err != nil {
		return err
	}
	return cmp.Or(werr, os.NewSyscallError("sendmsg", serr))
}

// Barrier waits until the manager has handled all that was sent before, which takes it
// to close a descriptor that it gets. The error says that it has not within that time.
// Source: sd_notify_barrier(3).
func Barrier(addr string, within time.Duration) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	err = Send(addr, "BARRIER=1", w)
	w.Close()
	if err != nil {
		return err
	}
	if err := r.SetReadDeadline(time.Now().Add(within)); err != nil {
		return err
	}
	if _, err = r.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		return fmt.Errorf("the service manager has not handled what it was sent: %w", err)
	}
	return nil
}
