// Command tcpproxy is a relay by inetaf/tcpproxy, as a peer of the forwarder. It
// takes the server by the hash of the source address.
//
// # Usage
//
//	tcpproxy LISTEN PORT SERVERS
//
// listens on LISTEN and relays to as many servers on 127.1.0.0 and above, all
// of that port.
//
// # Limitations
//
// Servers are not checked: the library has no checks.
package main

import (
	"fmt"
	"hash/fnv"
	"log"
	"net"
	"os"
	"strconv"

	"github.com/inetaf/tcpproxy"
)

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: tcpproxy LISTEN PORT SERVERS")
	}
	n, err := strconv.Atoi(os.Args[3])
	if err != nil || n < 1 || n > 60000 {
		log.Fatalf("%q servers: want 1 to 60000", os.Args[3])
	}
	var t hashed
	for i := range n {
		t = append(t, tcpproxy.To(fmt.Sprintf("127.1.%d.%d:%s", i>>8, i&255, os.Args[2])))
	}
	var p tcpproxy.Proxy
	p.AddRoute(os.Args[1], t)
	log.Fatal(p.Run())
}

// hashed are targets of which the source chooses.
type hashed []*tcpproxy.DialProxy

func (t hashed) HandleConn(c net.Conn) {
	h := fnv.New32a()
	h.Write(c.RemoteAddr().(*net.TCPAddr).IP)
	t[h.Sum32()%uint32(len(t))].HandleConn(c)
}
