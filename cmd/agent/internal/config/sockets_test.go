package config

import (
	"errors"
	"os"
	"strings"
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

// An owner of a socket's file who does not exist is told of where the name stands.
func TestSocketOwner(t *testing.T) {
	dir := files(t, "a.hcl", `
cluster "web" {
  discovery "static" { endpoints = [] }
}
listener "l" {
  address = "unix:///run/l.sock"
  cluster = "web"
  unix {
    user  = "nobody"
    group = "nogroup"
  }
}
listener "m" {
  address = "unix:///run/m.sock"
  cluster = "web"
  unix {
    user  = "ghost"
    group = "ghosts"
  }
}
`)
	opts := Options{Paths: []string{dir + "/a.hcl"}, Hostname: "h", SocketOwner: func(user, group string) error {
		if strings.HasPrefix(user, "ghost") || strings.HasPrefix(group, "ghost") {
			return errors.New("group: unknown " + user + group)
		}
		return nil
	}}
	want := `a.hcl:17:13: user: group: unknown ghost (make it, name another, or leave it out)
a.hcl:18:13: group: unknown ghosts (make it, name another, or leave it out)`
	if got := mistakes(t, opts, dir); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// A log that can't be opened where it is to be is told of.
func TestLogFiles(t *testing.T) {
	dir := files(t, "a.hcl", `
cluster "web" {
  discovery "static" { endpoints = [] }
}
listener "l" {
  address = "127.0.0.1:1"
  cluster = "web"
  access_log { path = "stdout" }
  access_log { path = "/dev/null" }
  access_log { path = "DIR/new.log" }
  access_log { path = "DIR" }
  access_log { path = "DIR/missing/new.log" }
  access_log { path = "DIR/a.hcl/new.log" }
}
`)
	text, err := os.ReadFile(dir + "/a.hcl")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/a.hcl", []byte(strings.ReplaceAll(string(text), "DIR", dir)), 0o600); err != nil {
		t.Fatal(err)
	}
	opts := Options{Paths: []string{dir + "/a.hcl"}, Hostname: "h"}
	mustLoad(t, opts)
	opts.LogFiles = true
	want := `a.hcl:11:23: path: "DIR" is a directory (name a file in it)
a.hcl:12:23: path: there is no directory "DIR/missing" (make it, or name another path)
a.hcl:13:23: path: there is no directory "DIR/a.hcl" (make it, or name another path)`
	want = strings.ReplaceAll(strings.ReplaceAll(want, "DIR/", ""), "DIR", dir) // as mistakes does
	if got := mistakes(t, opts, dir); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
