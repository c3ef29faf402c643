package sdnotify

import (
	"errors"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// The bounds of a message; systemd's are the same and larger, respectively.
const (
	maxMessage = 4096 // bytes
	maxFiles   = 253  // descriptors, the kernel's SCM_MAX_FD
)

// Message is what a process has sent.
type Message struct {
	// PID is the sender's process id, from the kernel; 0 if it is of no process of this
	// namespace.
	PID int
	// Fields are the assignments, by name. Of several with a name the last one counts.
	Fields map[string]string
	// Files are descriptors, closed on exec, which whoever gets the message closes.
	Files []int
}

// CloseFiles closes the descriptors.
func (m Message) CloseFiles() {
	for _, fd := range m.Files {
		_ = unix.Close(fd)
	}
}

// Receiver is the socket of a manager.
type Receiver struct {
	conn   *net.UnixConn
	raw    syscall.RawConn
	handle func(Message)
	mu     sync.Mutex // a message is read and handled before the next one
}

// Listen opens the socket at path, which whoever can write to the file can send to: keep
// it in a directory of the process' own, and look at Message.PID. handle is called for each
// message, must not block, and must not call the Receiver.
func Listen(path string, handle func(Message)) (*Receiver, error) {
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil, err
	}
	raw, err := conn.SyscallConn()
	if err == nil {
		cerr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1) })
		err = errors.Join(cerr, os.NewSyscallError("setsockopt", err))
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &Receiver{conn: conn, raw: raw, handle: handle}, nil
}

// Run handles messages until Close.
func (r *Receiver) Run() error {
	err := r.raw.Read(func(fd uintptr) bool {
		r.pending(int(fd))
		return false // wait for more
	})
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Pending handles the messages that have come, and waits for none. A process that has
// ended has nothing to say any more once it returns.
func (r *Receiver) Pending() {
	_ = r.raw.Control(func(fd uintptr) { r.pending(int(fd)) }) // a closed one has none
}

// Close ends Run, and leaves the file.
func (r *Receiver) Close() error { return r.conn.Close() }

func (r *Receiver) pending(fd int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		m, ok, err := receive(fd)
		switch {
		case ok:
			r.handle(m)
		case errors.Is(err, unix.EINTR), err == nil:
		default: // none is there, or none ever will be
			return
		}
	}
}

// receive reads a message; ok says that it is one that counts.
func receive(fd int) (m Message, ok bool, err error) {
	buf := make([]byte, maxMessage)
	oob := make([]byte, unix.CmsgSpace(unix.SizeofUcred)+unix.CmsgSpace(4*maxFiles))
	n, oobn, flags, _, err := unix.Recvmsg(fd, buf, oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return m, false, err
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return m, false, nil
	}
	for i := range msgs {
		if cred, err := unix.ParseUnixCredentials(&msgs[i]); err == nil {
			m.PID = int(cred.Pid)
		} else if fds, err := unix.ParseUnixRights(&msgs[i]); err == nil {
			m.Files = append(m.Files, fds...)
		}
	}
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 { // more than there may be, or more than there are free descriptors
		m.CloseFiles()
		return Message{}, false, nil
	}
	m.Fields = fields(string(buf[:n]))
	return m, true, nil
}

// fields returns the assignments of a message; lines that are none are passed over.
func fields(text string) map[string]string {
	all := make(map[string]string)
	for line := range strings.SplitSeq(text, "\n") {
		if name, value, ok := strings.Cut(line, "="); ok && name != "" {
			all[name] = value
		}
	}
	return all
}
