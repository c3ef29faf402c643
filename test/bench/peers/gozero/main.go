// Command gozero measures the balancer p2c_ewma of go-zero, through grpc's
// registry on a connection that is no client.
//
// # Usage
//
// test/bench builds and starts it. It is a program of its own because what
// go-zero needs takes minutes to build.
//
// # Limitations
//
// Picks are done at once, so that latencies are next to nothing.
package main

import (
	"github.com/zeromicro/go-zero/core/logx"
	_ "github.com/zeromicro/go-zero/zrpc" // registers it

	"gatehouse.internal/test/bench/peers/internal/loop"
)

func main() {
	logx.Disable() // it would write to the standard output
	loop.Main(map[string]loop.Measure{"go-zero p2c": func(n int) (loop.Picker, error) {
		b, err := loop.Start("p2c_ewma", "", n)
		if err != nil {
			return nil, err
		}
		return b.Pick(loop.None()), nil
	}})
}
