package node

import (
	"fmt"
	"os"

	"gatehouse.internal/lbcore"
)

// Socket is the listening socket of a listener, for a process that is to take over.
type Socket struct {
	Listener string
	Address  lbcore.Addr // as configured: the port may be 0
	Removes  bool        // closing it removes the file of a unix socket
	File     *os.File    // one more descriptor
}

// Sockets returns one more descriptor of each socket that is listened at, which the
// caller closes. On an error there is none. It may be called from anywhere.
func (n *Node) Sockets() (all []Socket, err error) {
	for _, l := range n.table.Load().listeners {
		if l.draining.Load() {
			continue
		}
		f, removes, err := l.fwd.File()
		if err != nil {
			for _, s := range all {
				_ = s.File.Close()
			}
			return nil, fmt.Errorf("listener %q: %w", l.fwd.Name(), err)
		}
		if f != nil {
			all = append(all, Socket{l.fwd.Name(), l.shown.Load().Address, removes, f})
		}
	}
	return all, nil
}

// KeepFiles has the files of unix sockets stay when the listeners close them: another
// process listens there. It may be called from anywhere.
func (n *Node) KeepFiles() {
	for _, l := range n.table.Load().listeners {
		l.fwd.KeepFile()
	}
}
