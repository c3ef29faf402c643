package loop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/experimental/stats"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/serviceconfig"
)

// Conn is a client connection without a client: it keeps the picker that a
// balancer gives it, and its subconnections are ready at once.
type Conn struct {
	balancer.ClientConn // nil; it must be embedded
	State               balancer.State
}

type subConn struct {
	balancer.SubConn // nil
	listen           func(balancer.SubConnState)
}

// NewSubConn implements balancer.ClientConn, like what follows.
func (c *Conn) NewSubConn(_ []resolver.Address, o balancer.NewSubConnOptions) (balancer.SubConn, error) {
	return &subConn{listen: o.StateListener}, nil
}

func (c *Conn) UpdateState(s balancer.State)           { c.State = s }
func (c *Conn) RemoveSubConn(balancer.SubConn)         {}
func (c *Conn) ResolveNow(resolver.ResolveNowOptions)  {}
func (c *Conn) Target() string                         { return "bench" }
func (c *Conn) MetricsRecorder() stats.MetricsRecorder { return nothing{} }

type nothing struct{ stats.MetricsRecorder }

func (nothing) RecordInt64Count(*stats.Int64CountHandle, int64, ...string)             {}
func (nothing) RecordFloat64Count(*stats.Float64CountHandle, float64, ...string)       {}
func (nothing) RecordInt64Histo(*stats.Int64HistoHandle, int64, ...string)             {}
func (nothing) RecordFloat64Histo(*stats.Float64HistoHandle, float64, ...string)       {}
func (nothing) RecordInt64Gauge(*stats.Int64GaugeHandle, int64, ...string)             {}
func (nothing) RecordInt64UpDownCount(*stats.Int64UpDownCountHandle, int64, ...string) {}

func (s *subConn) Shutdown() {}

// Connect is for balancers that connect by themselves, as those on base do.
func (s *subConn) Connect() {
	if s.listen != nil {
		s.listen(balancer.SubConnState{ConnectivityState: connectivity.Ready})
	}
}

// Balancer is a policy of grpc's registry on a Conn.
type Balancer struct {
	balancer.Balancer
	Conn  *Conn
	state balancer.ClientConnState
}

// Start builds the policy of that name over n endpoints, with a configuration
// if it is not empty.
func Start(name, config string, n int) (*Balancer, error) {
	b := balancer.Get(name)
	if b == nil {
		return nil, fmt.Errorf("no policy %q is registered", name)
	}
	conn := new(Conn)
	s := &Balancer{Balancer: b.Build(conn, balancer.BuildOptions{}), Conn: conn}
	for i := range n {
		a := resolver.Address{Addr: Addr(i)}
		s.state.ResolverState.Addresses = append(s.state.ResolverState.Addresses, a)
		s.state.ResolverState.Endpoints = append(s.state.ResolverState.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{a}})
	}
	if config != "" {
		p, ok := b.(balancer.ConfigParser)
		if !ok {
			return nil, fmt.Errorf("policy %q takes no configuration", name)
		}
		var err error
		if s.state.BalancerConfig, err = p.ParseConfig(json.RawMessage(config)); err != nil {
			return nil, err
		}
	}
	return s, s.Update()
}

// Update gives the policy its endpoints again.
func (b *Balancer) Update() error {
	err := b.UpdateClientConnState(b.state)
	if err == nil && b.Conn.State.Picker == nil {
		err = errors.New("the policy gave no picker")
	}
	return err
}

// Pick makes picks of the present picker, each with its done.
func (b *Balancer) Pick(ctxs []context.Context) Picker {
	p := b.Conn.State.Picker
	return func(core int) func(int) error {
		i := core * len(ctxs) / 2
		return func(picks int) error {
			for range picks {
				if i++; i >= len(ctxs) {
					i = 0
				}
				r, err := p.Pick(balancer.PickInfo{Ctx: ctxs[i]})
				if err != nil {
					return err
				}
				if r.Done != nil {
					r.Done(balancer.DoneInfo{})
				}
			}
			return nil
		}
	}
}

// Leaf stands in for pick_first below grpc's policies: the real one needs a
// client. It is ready from the first update on, or silent while Mute is set.
type Leaf struct{ Mute bool }

// Name implements balancer.Builder, like what follows.
func (l *Leaf) Name() string { return "pick_first" }

func (l *Leaf) Build(cc balancer.ClientConn, _ balancer.BuildOptions) balancer.Balancer {
	return &leaf{Leaf: l, cc: cc}
}

// ParseConfig takes any.
func (l *Leaf) ParseConfig(json.RawMessage) (serviceconfig.LoadBalancingConfig, error) {
	return nil, nil
}

type leaf struct {
	*Leaf
	cc balancer.ClientConn
	sc balancer.SubConn
}

func (l *leaf) UpdateClientConnState(s balancer.ClientConnState) (err error) {
	if l.Mute {
		return nil
	}
	if l.sc == nil {
		if l.sc, err = l.cc.NewSubConn(s.ResolverState.Endpoints[0].Addresses, balancer.NewSubConnOptions{StateListener: func(balancer.SubConnState) {}}); err != nil {
			return err
		}
	}
	l.cc.UpdateState(balancer.State{ConnectivityState: connectivity.Ready, Picker: picked{balancer.PickResult{SubConn: l.sc}}})
	return nil
}

func (l *leaf) ResolverError(error)                                        {}
func (l *leaf) UpdateSubConnState(balancer.SubConn, balancer.SubConnState) {}
func (l *leaf) Close()                                                     {}
func (l *leaf) ExitIdle()                                                  {}

type picked struct{ r balancer.PickResult }

func (p picked) Pick(balancer.PickInfo) (balancer.PickResult, error) { return p.r, nil }

// None is the context of picks without a key.
func None() []context.Context { return []context.Context{context.Background()} }
