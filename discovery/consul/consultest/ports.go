package consultest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
)

// ports are a server's, eight neighbours. The first is never served on: this
// process listens on it, which is how other processes know that the eight are
// taken, and the kernel gives them back whatever becomes of this process.
type ports struct {
	hold net.Listener
	base int
}

const (
	firstPort = 10000
	lastPort  = 26000
	portBlock = 8
)

func (p ports) http() int   { return p.base + 1 }
func (p ports) https() int  { return p.base + 2 }
func (p ports) serf() int   { return p.base + 3 }
func (p ports) server() int { return p.base + 4 }
func (p ports) grpc() int   { return p.base + 5 }

func (p ports) release() {
	if p.hold != nil {
		p.hold.Close()
	}
}

// reservePorts finds eight free ports and holds them until release.
func reservePorts() (ports, error) {
	var last error
	for range 200 {
		p := ports{base: firstPort + rand.N((lastPort-firstPort)/portBlock)*portBlock}
		if p.hold, last = net.Listen("tcp", loopback(p.base)); last != nil {
			continue
		}
		if last = p.free(); last == nil {
			return p, nil
		}
		p.release()
	}
	return ports{}, fmt.Errorf("no free ports between %d and %d: %w", firstPort, lastPort, last)
}

// free returns an error unless all ports behind the first can be bound.
func (p ports) free() error {
	var errs []error
	for port := p.base + 1; port < p.base+portBlock; port++ {
		l, err := net.Listen("tcp", loopback(port))
		if err == nil {
			err = l.Close()
		}
		u, uerr := net.ListenPacket("udp", loopback(port))
		if uerr == nil {
			uerr = u.Close()
		}
		errs = append(errs, err, uerr)
	}
	return errors.Join(errs...)
}

func loopback(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
