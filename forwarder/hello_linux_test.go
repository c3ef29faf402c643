package forwarder

import (
	"io"
	"net"
	"testing"
	"time"
)

// A hello has its own time, which bytes do not lengthen; then the client is
// served without it, and what it has sent gets through.
func TestLoopHelloDeadline(t *testing.T) {
	up := newCluster(t, backend(t, anyPort, func(c net.Conn) {
		_, _ = io.WriteString(c, "220 hello")
		echo(c)
	}))
	r := loopRig(t, Config{Upstream: up, Settings: Settings{HashOn: HashSNI}})
	c := client(t, r.Addr())
	eventually(t, "it is accepted", func() bool { return r.Stats().HelloPending == 1 })
	for _, b := range "\x16\x03\x01\x01" {
		write(t, c, string(b))
		r.cfg.Loops.skip(time.Second)
	}
	if s := r.Stats(); s.HelloPending != 1 || s.Dials != 0 {
		t.Fatalf("%+v", s)
	}
	r.cfg.Loops.skip(2 * time.Second)
	got := make([]byte, 13)
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "220 hello\x16\x03\x01\x01" {
		t.Fatalf("%q, %v", got, err)
	}
	r.cfg.Loops.skip(time.Hour) // the deadline was the hello's
	exchange(t, c, "still here")
	if s := r.Stats(); s.TLSNotFound != 1 || s.HelloPending != 0 {
		t.Errorf("%+v", s)
	}

	if err := r.Set(Settings{HashOn: HashSNI, HelloTimeout: time.Hour, MaxDuration: time.Minute}); err != nil {
		t.Fatal(err)
	}
	c = client(t, r.Addr())
	eventually(t, "it is accepted", func() bool { return r.Stats().HelloPending == 1 })
	r.cfg.Loops.skip(2 * time.Minute)
	wantReset(t, c)
	if rec := r.record(t); rec.Flag != FlagDT || r.Stats().HelloPending != 0 {
		t.Errorf("record %+v", rec)
	}
}
