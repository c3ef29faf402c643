package main

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"
)

// Our client has all figures, also of the time when the best nameserver is dead.
func TestTakeDNS(t *testing.T) {
	vs, err := takeDNS(t.Context(), spec{Kind: "dns", Subject: ours, EachMS: 100})
	if err != nil {
		t.Fatal(err)
	}
	for _, phase := range dnsPhases {
		for _, key := range []string{" p50", " p99", " share"} {
			if vs[phase+key] <= 0 {
				t.Errorf("%s: %v", phase+key, vs[phase+key])
			}
		}
		if vs[phase+" p50"] > vs[phase+" p99"] {
			t.Errorf("%s: the median is above p99: %v", phase, vs)
		}
	}
}

// The others are asked as they are meant to be: the first nameserver, and after the
// error of one the next.
func TestOtherDNSClients(t *testing.T) {
	conn, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &nameserver{conn: conn, delay: time.Millisecond}
	done := make(chan struct{})
	go func() { defer close(done); n.serve() }()
	defer func() { conn.Close(); <-done }()
	for _, subject := range []string{goResolver, fixedOrder} {
		lookup, _, err := dnsClient(subject, []netip.AddrPort{n.addr()})
		if err != nil {
			t.Fatal(err)
		}
		took, err := lookups(t.Context(), lookup, 20*time.Millisecond)
		if err != nil || len(took) < dnsWorkers {
			t.Errorf("%s: %d look-ups, %v", subject, len(took), err)
		}
	}
	if _, _, err := dnsClient("nobody", nil); err == nil {
		t.Error("an unknown client is no error")
	}
	broken := errors.New("broken")
	if _, err := lookups(t.Context(), func(context.Context, string) error { return broken }, time.Hour); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}
