package main

import (
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"strings"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/lbcore"
)

// given are listening sockets that a service manager has opened (sd_listen_fds(3)),
// by the names of the listeners that they are for. They stay open as long as the
// process, since a listener that a reload takes away may come back. It is not
// written any more once giveSockets has returned it.
type given map[string][]*os.File

// giveSockets returns those of files that listeners of the configuration may have.
// The others are closed, and the log names them.
func giveSockets(files []*os.File, cfg *config.Config, log *slog.Logger) given {
	g := make(given)
	for _, f := range files {
		if slices.ContainsFunc(cfg.Listeners, func(l config.Listener) bool { return l.Name == f.Name() }) {
			g[f.Name()] = append(g[f.Name()], f)
			continue
		}
		log.Warn("a socket of the service manager is for no listener and is closed: FileDescriptorName= of its unit must be the name of a listener of the configuration",
			"name", f.Name())
		_ = f.Close()
	}
	return g
}

// with returns g with one more socket.
func (g given) with(listener string, f *os.File) given {
	all := maps.Clone(g)
	if all == nil {
		all = make(given)
	}
	all[listener] = append(slices.Clip(all[listener]), f)
	return all
}

// take returns a socket for a listener: the one of its name and address, or nil if
// none has its name. One of its name at another address is an error: what connects
// there would wait for ever. It may be called from anywhere.
func (g given) take(listener string, addr lbcore.Addr) (net.Listener, error) {
	var elsewhere []string
	for _, f := range g[listener] {
		ln, err := net.FileListener(f) // a duplicate
		if err != nil {
			return nil, fmt.Errorf("the service manager has given a descriptor that is no listening socket: %w", err)
		}
		at := boundTo(ln)
		if at == addr {
			return ln, nil
		}
		elsewhere = append(elsewhere, at.String())
		_ = ln.Close()
	}
	if elsewhere == nil {
		return nil, nil
	}
	return nil, fmt.Errorf("the service manager has opened %s for it: make ListenStream= of the socket unit and the address of the listener the same",
		strings.Join(elsewhere, ", "))
}

// boundTo returns where a socket listens.
func boundTo(ln net.Listener) lbcore.Addr {
	switch at := ln.Addr().(type) {
	case *net.TCPAddr:
		return lbcore.IPAddr(at.AddrPort())
	case *net.UnixAddr:
		return lbcore.UnixAddr(at.Name)
	}
	return lbcore.Addr{}
}
