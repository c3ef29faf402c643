package forwarder

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"

	"gatehouse.internal/lbcore"
)

// A listening socket that another one takes over by its descriptor: both accept from the
// same queue, and who connects notices neither the end of the first nor that of f.
func TestTakenListener(t *testing.T) {
	sides(t, func(t *testing.T, listen, _ lbcore.Addr) {
		old, err := PlainListen(t.Context(), listen)
		if err != nil {
			t.Fatal(err)
		}
		defer old.Close()
		f, err := SocketFile(old)
		if err != nil {
			t.Fatal(err)
		}
		removes := RemovesFile(old)
		if removes != (listen.Path() != "") {
			t.Errorf("of %s: removes its file is %v", listen, removes)
		}
		taken, err := TakenListener(f, removes)
		if err != nil {
			t.Fatal(err)
		}
		defer taken.Close()
		if err := f.Close(); err != nil { // it is the caller's
			t.Error(err)
		}
		if taken.Addr().String() != old.Addr().String() || RemovesFile(taken) != removes {
			t.Errorf("%s became %s, and removes its file is %v", old.Addr(), taken.Addr(), RemovesFile(taken))
		}
		KeepFile(old, true)
		waiting := client(t, addrOf(taken)) // for either of them
		if err := old.Close(); err != nil {
			t.Fatal(err)
		}
		late := client(t, addrOf(taken))
		for _, c := range []net.Conn{waiting, late} {
			got, err := taken.Accept()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := got.Write([]byte("x")); err != nil {
				t.Error(err)
			}
			_ = got.Close()
			if n, err := c.Read(make([]byte, 2)); n != 1 {
				t.Errorf("read %d, %v", n, err)
			}
		}
	})
}

// The file of a unix socket goes with the last one who is to remove it, and with nobody
// else; what somebody has put in its place stays.
func TestTakenSocketFile(t *testing.T) {
	for name, c := range map[string]struct {
		keep, back bool // KeepFile of the old one, and its end
		removes    bool // what TakenListener is told
		keepTaken  bool
		other      bool // another file is at the path by then
		stays      [2]bool
	}{
		"handed over":             {keep: true, removes: true, stays: [2]bool{true, false}},
		"taken back":              {keep: true, back: true, removes: true, keepTaken: true, stays: [2]bool{false, false}},
		"of who opened it":        {keep: true, stays: [2]bool{true, true}},
		"of the next one in turn": {keep: true, removes: true, keepTaken: true, stays: [2]bool{true, true}},
		"another's":               {keep: true, removes: true, other: true, stays: [2]bool{true, true}},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "s")
			old, err := PlainListen(t.Context(), lbcore.UnixAddr(path))
			if err != nil {
				t.Fatal(err)
			}
			defer old.Close()
			f, err := SocketFile(old)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			taken, err := TakenListener(f, c.removes)
			if err != nil {
				t.Fatal(err)
			}
			defer taken.Close()
			KeepFile(old, c.keep)
			if c.back {
				KeepFile(old, false)
			}
			KeepFile(taken, c.keepTaken)
			if got, want := RemovesFile(old), !c.keep || c.back; got != want {
				t.Errorf("the old one removes it: %v, want %v", got, want)
			}
			if got, want := RemovesFile(taken), c.removes && !c.keepTaken; got != want {
				t.Errorf("the taken one removes it: %v, want %v", got, want)
			}
			if c.other {
				if err := errors.Join(os.Rename(path, path+"-moved"), os.WriteFile(path, nil, 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			for i, ln := range []net.Listener{old, taken} {
				if err := ln.Close(); err != nil {
					t.Error(err)
				}
				if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) == c.stays[i] {
					t.Errorf("after %d of them were closed: %v", i+1, err)
				}
			}
		})
	}
}

// A Listener gives a descriptor of its socket while it runs, for as long as that is
// open, and leaves the file to who has taken it.
func TestListenerGivesItsSocket(t *testing.T) { onEach(t, testListenerGivesItsSocket) }

func testListenerGivesItsSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	up := newCluster(t, backend(t, anyPort, echo))
	r := start(t, Config{Addr: lbcore.UnixAddr(path), Upstream: up})
	f, removes, err := r.File()
	if err != nil || f == nil || !removes {
		t.Fatalf("%v, removes %v, %v", f, removes, err)
	}
	defer f.Close()
	r.KeepFile()
	next := start(t, Config{Addr: r.Addr(), Upstream: up, Listen: func(context.Context, lbcore.Addr) (net.Listener, error) {
		return TakenListener(f, removes)
	}, Loops: loopsFor(t)})
	r.Drain(t.Context())
	exchange(t, client(t, next.Addr()), "who comes later")
	if s := next.Stats(); s.Accepted != 1 {
		t.Errorf("%+v", s)
	}
	if f, _, err := r.File(); f != nil || err != nil {
		t.Errorf("after its end: %v, %v", f, err)
	}
	next.Stop()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file is left: %v", err)
	}
}

// What is no socket of the system's own has no descriptor, and no file.
func TestNoSocketToTake(t *testing.T) {
	ln := newHandedOnly(anyPort)
	if f, err := SocketFile(ln); f != nil || err == nil {
		t.Errorf("%v, %v", f, err)
	}
	if KeepFile(ln, true); RemovesFile(ln) || RemovesFile(nil) {
		t.Error("it removes a file")
	}
	r := start(t, Config{NoBind: true, Upstream: newCluster(t)})
	if f, removes, err := r.File(); f != nil || removes || err != nil {
		t.Errorf("%v, %v, %v", f, removes, err)
	}
	plain, err := os.Create(filepath.Join(t.TempDir(), "plain"))
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if ln, err := TakenListener(plain, true); err == nil {
		t.Errorf("a plain file became %T", ln)
	}
}
