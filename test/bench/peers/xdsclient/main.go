// Command xdsclient is grpc-go as the client of a control plane. It has one channel,
// with a route to each cluster: channels of several names would each have a stream.
//
// # Usage
//
// test/bench builds and starts it, with the bootstrap in the environment. It does what lines of its input say, and answers each
// with a line.
//
// # Limitations
//
// Only of a ring it connects to what is picked, and not to all endpoints.
package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/xds"
	"google.golang.org/protobuf/types/known/emptypb"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	var dialled sync.Map // addresses, since the last pick
	dial := func(ctx context.Context, addr string) (net.Conn, error) {
		dialled.Store(addr, true)
		return new(net.Dialer).DialContext(ctx, "tcp", addr)
	}
	opts := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(dial)}
	var conn *grpc.ClientConn
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		what, arg, _ := strings.Cut(lines.Text(), " ")
		switch what {
		case "connect":
			var err error
			if conn, err = grpc.NewClient("xds:///all", opts...); err != nil {
				return err
			}
			defer conn.Close()
			conn.Connect()
			fmt.Println("connecting")
		case "pick":
			fmt.Println(pick(conn, arg, &dialled))
		case "heap":
			runtime.GC()
			runtime.GC() // what finalizers held
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			fmt.Println(m.HeapAlloc)
		default:
			fmt.Println("error: what?")
		}
	}
	return nil
}

// pick makes RPCs until the address was dialled.
func pick(conn *grpc.ClientConn, addr string, dialled *sync.Map) string {
	defer dialled.Clear()
	for began := time.Now(); time.Since(began) < 20*time.Second; {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		conn.Invoke(ctx, "/c0/Pick", new(emptypb.Empty), new(emptypb.Empty)) // it fails: nobody answers it
		cancel()
		if _, ok := dialled.Load(addr); ok {
			return "picked"
		}
	}
	return "error: not picked in 20 s"
}
