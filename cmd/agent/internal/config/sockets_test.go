package config

import (
	"errors"
	"testing"
)

// Who can't mark sockets is told so where the mark stands, once a cluster asks
// for one.
func TestSocketMark(t *testing.T) {
	asked := 0
	opts := func(mark string) Options {
		dir := files(t, "a.hcl", `
cluster "web" {
  discovery "static" { endpoints = [] }
  `+mark+`
}
`)
		return Options{Paths: []string{dir + "/a.hcl"}, Hostname: "h", SocketMark: func() error { asked++; return errors.New("no CAP_NET_ADMIN") }}
	}
	mustLoad(t, opts(""))
	mustLoad(t, opts("socket_mark = 0"))
	if asked != 0 {
		t.Errorf("asked %d times without a mark", asked)
	}
	o := opts("socket_mark = 7")
	got := mistakes(t, o, o.Paths[0][:len(o.Paths[0])-len("/a.hcl")])
	if want := "a.hcl:4:17: socket_mark can't be used: no CAP_NET_ADMIN (give the agent CAP_NET_ADMIN, or leave it out)"; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}
