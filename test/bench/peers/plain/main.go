// Command plain measures the selectors of grpc-go and of buraksezer/consistent.
//
// # Usage
//
// test/bench builds and starts it.
//
// # Limitations
//
// The policies of grpc-go are built through its registry on a connection that
// is no client, with a leaf in place of pick_first. Its ring_hash takes hashes
// from the metadata of a call, which costs an allocation or more; a hash of the
// route is only for its own xDS client. Without metadata it draws one.
package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/buraksezer/consistent"
	"github.com/cespare/xxhash/v2"
	xdsorca "github.com/cncf/xds/go/xds/data/orca/v3"
	"google.golang.org/grpc/balancer"
	_ "google.golang.org/grpc/balancer/leastrequest"
	_ "google.golang.org/grpc/balancer/ringhash"
	_ "google.golang.org/grpc/balancer/roundrobin"
	_ "google.golang.org/grpc/balancer/weightedroundrobin"
	"google.golang.org/grpc/metadata"

	"gatehouse.internal/test/bench/peers/internal/loop"
)

func main() {
	leaf := new(loop.Leaf)
	balancer.Register(leaf)
	loop.Main(map[string]loop.Measure{
		"grpc round_robin":          plain("round_robin", ""),
		"grpc least_request":        plain("least_request_experimental", "{}"),
		"grpc weighted_round_robin": weighted,
		"grpc ring_hash random":     func(n int) (loop.Picker, error) { return ring(leaf, n, loop.None()) },
		"grpc ring_hash header":     func(n int) (loop.Picker, error) { return ring(leaf, n, headers()) },
		"consistent":                bounded,
	})
}

func plain(name, config string) loop.Measure {
	return func(n int) (loop.Picker, error) {
		b, err := loop.Start(name, config, n)
		if err != nil {
			return nil, err
		}
		return b.Pick(loop.None()), nil
	}
}

// weighted has each endpoint report a load, which makes weights of 1 to 4.
func weighted(n int) (loop.Picker, error) {
	b, err := loop.Start("weighted_round_robin", `{"blackoutPeriod": "0s", "weightUpdatePeriod": "0.1s"}`, n)
	if err != nil {
		return nil, err
	}
	p := b.Conn.State.Picker
	for i := range n {
		// Without weights it goes round.
		r, err := p.Pick(balancer.PickInfo{Ctx: context.Background()})
		if err != nil {
			return nil, err
		}
		r.Done(balancer.DoneInfo{ServerLoad: &xdsorca.OrcaLoadReport{RpsFractional: 100 * float64(1+i%4), ApplicationUtilization: 0.5}})
	}
	<-time.After(300 * time.Millisecond) // until it has looked at them
	return b.Pick(loop.None()), nil
}

// header is where ring_hash finds the key.
const header = "key"

// headers are contexts of calls from 1,024 addresses.
func headers() (ctxs []context.Context) {
	text := []byte(loop.AnyAddr)
	for i := range uint64(1024) {
		loop.Write(text, i*0x9e3779b97f4a7c15)
		ctxs = append(ctxs, metadata.NewOutgoingContext(context.Background(), metadata.Pairs(header, string(text))))
	}
	return ctxs
}

// ring has the ring of the default size for n endpoints, all ready.
//
// Endpoints connect when they are picked first, and each that has connected
// costs a new picker. So they are picked while the leaf says nothing, and are
// all ready with the next update.
func ring(leaf *loop.Leaf, n int, ctxs []context.Context) (loop.Picker, error) {
	leaf.Mute = true
	b, err := loop.Start("ring_hash_experimental", fmt.Sprintf(`{"minRingSize": 1024, "maxRingSize": 4096, "requestHashHeader": %q}`, header), n)
	if err != nil {
		return nil, err
	}
	p := b.Conn.State.Picker
	for i := range 100_000 {
		ctx := metadata.NewOutgoingContext(context.Background(), metadata.Pairs(header, fmt.Sprint(i)))
		if _, err := p.Pick(balancer.PickInfo{Ctx: ctx}); err != nil && !errors.Is(err, balancer.ErrNoSubConnAvailable) {
			return nil, err
		}
	}
	for _, ctx := range ctxs { // some keys are in arcs that none of those hit
		if _, err := p.Pick(balancer.PickInfo{Ctx: ctx}); err != nil && !errors.Is(err, balancer.ErrNoSubConnAvailable) {
			return nil, err
		}
	}
	for runtime.NumGoroutine() > 1 { // until all have left idleness
		runtime.Gosched()
	}
	leaf.Mute = false
	if err := b.Update(); err != nil {
		return nil, err
	}
	return b.Pick(ctxs), nil
}

type member string

func (m member) String() string { return string(m) }

type hasher struct{}

func (hasher) Sum64(b []byte) uint64 { return xxhash.Sum64(b) }

// bounded is the ring with bounded loads of buraksezer/consistent.
func bounded(n int) (loop.Picker, error) {
	ms := make([]consistent.Member, n)
	for i := range ms {
		ms[i] = member(loop.Addr(i))
	}
	c := consistent.New(ms, consistent.Config{PartitionCount: 10_007, ReplicationFactor: 20, Load: 1.25, Hasher: hasher{}})
	return func(core int) func(int) error {
		text, h := []byte(loop.AnyAddr), uint64(core)<<60
		return func(picks int) error {
			for range picks {
				h += 0x9e3779b97f4a7c15
				loop.Write(text, h)
				if c.LocateKey(text) == nil {
					return errors.New("nobody owns a key")
				}
			}
			return nil
		}
	}, nil
}
