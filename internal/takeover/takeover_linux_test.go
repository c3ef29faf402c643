package takeover

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long a test waits for what must happen.
const patience = 20 * time.Second

// place is where a giver listens.
type place struct {
	*net.UnixListener
	path string
}

func newPlace(t testing.TB) place {
	t.Helper()
	path := filepath.Join(t.TempDir(), "takeover.sock")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return place{ln, path}
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// give has f be the giver of the next conversation, and returns what waits for it.
func (p place) give(t *testing.T, f func(ctx context.Context, conn *net.UnixConn) error) (wait func() error) {
	t.Helper()
	ctx, done := within(t), make(chan error, 1)
	go func() {
		conn, err := p.AcceptUnix()
		if err == nil {
			err = f(ctx, conn)
		}
		done <- err
	}()
	return func() error { return <-done }
}

// sockets returns n listening sockets and where they are.
func sockets(t *testing.T, n int, name string) (all []Socket) {
	t.Helper()
	for i := range n {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		f, err := ln.(*net.TCPListener).File()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ln.Close(); f.Close() })
		all = append(all, Socket{Kind: KindListener, Name: fmt.Sprint(name, i), Address: ln.Addr().String(), Given: i%2 == 0, File: f})
	}
	return all
}

// open returns how many descriptors the process has.
func open(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(fds)
}

// Sockets arrive in order with what is said of them, also where it takes several
// messages, and nobody has any of them twice afterwards.
func TestTakeOver(t *testing.T) {
	for name, long := range map[string]string{"short": "a", "long": strings.Repeat("name", 500)} {
		t.Run(name, func(t *testing.T) {
			p, all := newPlace(t), sockets(t, 3*maxBatch+5, long)
			before := open(t)
			wait := p.give(t, func(ctx context.Context, conn *net.UnixConn) error {
				g, hello, err := Accept(ctx, conn)
				if err != nil {
					return err
				}
				defer g.Close()
				if want := (Hello{Build: "v1", StateDir: "/state", PID: os.Getpid()}); hello != want {
					t.Errorf("it says %+v, want %+v", hello, want)
				}
				return errors.Join(g.Give(ctx, all), g.AwaitReady(ctx), g.Commit(ctx, nil))
			})
			ctx := within(t)
			taker, err := Dial(ctx, p.path, Hello{Build: "v1", StateDir: "/state"})
			if err != nil {
				t.Fatal(err, wait())
			}
			if len(taker.Sockets) != len(all) {
				t.Fatalf("%d sockets came, want %d", len(taker.Sockets), len(all))
			}
			for i, s := range taker.Sockets {
				ln, err := net.FileListener(s.File)
				if err != nil {
					t.Fatal(err)
				}
				if at := ln.Addr().String(); at != all[i].Address || s.Address != at || s.Name != all[i].Name || s.Given != all[i].Given {
					t.Errorf("socket %d is at %s, and is said to be %+v", i, at, s)
				}
				ln.Close()
			}
			if err := errors.Join(taker.Ready(ctx), taker.Accepting(ctx), wait()); err != nil {
				t.Error(err)
			}
			taker.CloseSockets()
			taker.Close()
			if now := open(t); now != before {
				t.Errorf("%d descriptors are open, %d were", now, before)
			}
		})
	}
}

// A socket that was handed over goes on not to block whoever accepts from it.
func TestStaysNonblocking(t *testing.T) {
	p, all := newPlace(t), sockets(t, 1, "a")
	wait := p.give(t, func(ctx context.Context, conn *net.UnixConn) error {
		g, _, err := Accept(ctx, conn)
		if err != nil {
			return err
		}
		defer g.Close()
		return g.Give(ctx, all)
	})
	taker, err := Dial(within(t), p.path, Hello{})
	if err = errors.Join(err, wait()); err != nil {
		t.Fatal(err)
	}
	defer taker.Close()
	defer taker.CloseSockets()
	raw, err := taker.Sockets[0].File.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) {
		flags, err := unix.FcntlInt(fd, unix.F_GETFL, 0)
		if err != nil || flags&unix.O_NONBLOCK == 0 {
			t.Errorf("flags %x, %v", flags, err)
		}
		if flags, err = unix.FcntlInt(fd, unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("a child of the process would have it: %x, %v", flags, err)
		}
	})
}

func TestNobody(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none.sock")
	if _, err := Dial(within(t), path, Hello{}); !errors.Is(err, ErrNobody) {
		t.Errorf("no file: %v", err)
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	ln.SetUnlinkOnClose(false)
	ln.Close()
	if _, err := Dial(within(t), path, Hello{}); !errors.Is(err, ErrNobody) {
		t.Errorf("a file that was left behind: %v", err)
	}
}

// Each side learns when the other one ends or refuses, whatever was said before, and
// which it was.
func TestEnds(t *testing.T) {
	no := errors.New("not now")
	type giver func(ctx context.Context, g *Giver) error
	for name, c := range map[string]struct {
		give      giver
		take      func(ctx context.Context, t *Taker) error
		wantTaker string
		wantGiver string
	}{
		"giver refuses at once": {func(ctx context.Context, g *Giver) error { g.Refuse(ctx, no); return nil }, nil, "refused: not now", ""},
		"giver ends at once":    {func(_ context.Context, g *Giver) error { return g.Close() }, nil, ErrGone.Error(), ""},
		"giver refuses later": {func(ctx context.Context, g *Giver) error {
			err := g.Give(ctx, nil)
			g.Refuse(ctx, no)
			return err
		}, func(ctx context.Context, t *Taker) error { return t.Ready(ctx) }, "refused: not now", ""},
		"giver ends later": {func(ctx context.Context, g *Giver) error { return errors.Join(g.Give(ctx, nil), g.Close()) },
			func(ctx context.Context, t *Taker) error { return t.Ready(ctx) }, ErrGone.Error(), ""},
		"giver ends while the taker gets ready": {func(ctx context.Context, g *Giver) error { return errors.Join(g.Give(ctx, nil), g.Close()) },
			func(ctx context.Context, t *Taker) error { return t.AwaitEnd(ctx) }, ErrGone.Error(), ""},
		"giver refuses while the taker gets ready": {func(ctx context.Context, g *Giver) error {
			err := g.Give(ctx, nil)
			g.Refuse(ctx, no)
			return err
		}, func(ctx context.Context, t *Taker) error { return t.AwaitEnd(ctx) }, "refused: not now", ""},
		"nobody ends while the taker gets ready": {func(ctx context.Context, g *Giver) error {
			return errors.Join(g.Give(ctx, nil), g.AwaitReady(ctx), g.Commit(ctx, nil))
		}, func(ctx context.Context, t *Taker) error {
			watching, stop := context.WithCancelCause(ctx)
			stop(no)
			if err := t.AwaitEnd(watching); !errors.Is(err, no) {
				return fmt.Errorf("the watch has ended with %w", err)
			}
			return errors.Join(t.Ready(ctx), t.Accepting(ctx))
		}, "", ""},
		"taker refuses": {func(ctx context.Context, g *Giver) error { return errors.Join(g.Give(ctx, nil), g.AwaitReady(ctx)) },
			func(ctx context.Context, t *Taker) error { t.Refuse(ctx, no); return nil }, "", "refused: not now"},
		"taker ends": {func(ctx context.Context, g *Giver) error { return errors.Join(g.Give(ctx, nil), g.AwaitReady(ctx)) },
			func(_ context.Context, t *Taker) error { return t.Close() }, "", ErrGone.Error()},
		"taker ends before it accepts": {func(ctx context.Context, g *Giver) error {
			return errors.Join(g.Give(ctx, nil), g.AwaitReady(ctx), g.Commit(ctx, nil))
		}, func(ctx context.Context, t *Taker) error { return errors.Join(t.Ready(ctx), t.Close()) }, "", ErrGone.Error()},
		"taker is out of turn": {func(ctx context.Context, g *Giver) error { return errors.Join(g.Give(ctx, nil), g.AwaitReady(ctx)) },
			func(ctx context.Context, t *Taker) error { return t.Accepting(ctx) }, ErrGone.Error(), `type "accepting", want "ready"`},
		"giver refuses in the end": {func(ctx context.Context, g *Giver) error {
			err := errors.Join(g.Give(ctx, nil), g.AwaitReady(ctx), g.say(ctx, message{Type: typeGo}))
			g.Refuse(ctx, no)
			return err
		}, func(ctx context.Context, t *Taker) error { return errors.Join(t.Ready(ctx), t.Accepting(ctx)) }, "refused: not now", ""},
		"giver ends in the end": {func(ctx context.Context, g *Giver) error {
			return errors.Join(g.Give(ctx, nil), g.AwaitReady(ctx), g.say(ctx, message{Type: typeGo}), g.Close())
		}, func(ctx context.Context, t *Taker) error { return errors.Join(t.Ready(ctx), t.Accepting(ctx)) }, ErrGone.Error(), ""},
		"taker ends when it accepts": {func(ctx context.Context, g *Giver) error {
			return errors.Join(g.Give(ctx, nil), g.AwaitReady(ctx), g.Commit(ctx, nil))
		}, func(ctx context.Context, t *Taker) error {
			// It is not there any more to hear of it.
			return errors.Join(t.Ready(ctx), t.conn.CloseRead(), t.say(ctx, message{Type: typeAccepting}))
		}, "", ErrGone.Error()},
		"giver gives up waiting": {func(ctx context.Context, g *Giver) error {
			err := g.Give(ctx, nil)
			over, cancel := context.WithCancelCause(ctx)
			cancel(no)
			return errors.Join(err, g.AwaitReady(over))
		}, func(context.Context, *Taker) error { return nil }, "", "not now"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			wait := p.give(t, func(ctx context.Context, conn *net.UnixConn) error {
				g, _, err := Accept(ctx, conn)
				if err != nil {
					return err
				}
				defer g.Close()
				return c.give(ctx, g)
			})
			taker, err := Dial(within(t), p.path, Hello{})
			if err == nil {
				defer taker.Close()
				if c.take != nil {
					err = c.take(within(t), taker)
				}
			}
			for who, x := range map[string]struct {
				err  error
				want string
			}{"taker": {err, c.wantTaker}, "giver": {wait(), c.wantGiver}} {
				if x.want == "" && x.err != nil || x.want != "" && (x.err == nil || !strings.Contains(x.err.Error(), x.want)) {
					t.Errorf("%s: %v, want %q", who, x.err, x.want)
				}
			}
		})
	}
}

// A taker that accepts does not give up where the giver takes its time, as one that was
// stopped: that may accept no more as soon as it goes on.
func TestSlowGiver(t *testing.T) {
	t.Parallel() // it takes its time
	p := newPlace(t)
	wait := p.give(t, func(ctx context.Context, conn *net.UnixConn) error {
		g, _, err := Accept(ctx, conn)
		if err != nil {
			return err
		}
		defer g.Close()
		if err := errors.Join(g.Give(ctx, nil), g.AwaitReady(ctx), g.say(ctx, message{Type: typeGo})); err != nil {
			return err
		}
		if _, err := g.expect(ctx, typeAccepting, 0); err != nil {
			return err
		}
		select {
		case <-time.After(stepWithin + 500*time.Millisecond):
		case <-ctx.Done():
		}
		return g.say(ctx, message{Type: typeDone})
	})
	taker, err := Dial(within(t), p.path, Hello{})
	if err != nil {
		t.Fatal(err)
	}
	defer taker.Close()
	if err := errors.Join(taker.Ready(within(t)), taker.Accepting(within(t)), wait()); err != nil {
		t.Error(err)
	}
}

// Who speaks another version learns it.
func TestVersion(t *testing.T) {
	p := newPlace(t)
	wait := p.give(t, func(ctx context.Context, conn *net.UnixConn) error {
		_, _, err := Accept(ctx, conn)
		return err
	})
	conn, err := net.Dial("unix", p.path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintln(conn, `{"type":"hello","version":99,"new":"field"}`)
	answer := make([]byte, 1024)
	n, _ := conn.Read(answer)
	if err := wait(); err == nil || !strings.Contains(err.Error(), "version 99") || !strings.Contains(string(answer[:n]), "version 99") {
		t.Errorf("%v, and it was told %q", err, answer[:n])
	}
}

// Descriptors that a taker sends go nowhere, and a giver that sends fewer than it
// says is found out.
func TestStrayDescriptors(t *testing.T) {
	p, all := newPlace(t), sockets(t, 1, "a")
	before := open(t)
	wait := p.give(t, func(ctx context.Context, conn *net.UnixConn) error {
		g, _, err := Accept(ctx, conn)
		if err != nil {
			return err
		}
		defer g.Close()
		line, _ := encode(message{Type: typeSockets, Sockets: []Socket{all[0], all[0]}})
		return g.send(ctx, line, all)
	})
	conn, err := net.Dial("unix", p.path)
	if err != nil {
		t.Fatal(err)
	}
	l := link{conn: conn.(*net.UnixConn), takes: true}
	line, _ := encode(message{Type: typeHello, Version: Version})
	if err := l.send(within(t), line, all); err != nil {
		t.Fatal(err)
	}
	if err := wait(); err != nil {
		t.Error(err)
	}
	if m, err := l.expect(within(t), typeSockets, 0); err != nil || len(m.Sockets) != 2 || len(l.files) != 1 {
		t.Errorf("%+v, %v, %d descriptors", m, err, len(l.files))
	}
	l.Close()
	if now := open(t); now != before {
		t.Errorf("%d descriptors are open, %d were", now, before)
	}
}

func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		`{"type":"hello","version":1,"build":"v1.2.3","state_dir":"/var/lib/gatehouse"}`,
		`{"type":"sockets","sockets":[{"kind":"listener","name":"web","address":"127.0.0.1:80","remove":true}],"more":true}`,
		`{"type":"sockets"}`, `{"type":"ready"}`, `{"type":"go"}`, `{"type":"accepting"}`, `{"type":"done"}`, `{"type":"refused","text":"no"}`, `{}`, `[`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		m, err := decode(line)
		if err != nil {
			return
		}
		if len(m.Sockets) > maxBatch || len(m.Text) > maxText {
			t.Errorf("%d sockets, a text of %d bytes", len(m.Sockets), len(m.Text))
		}
		if b, err := encode(m); err == nil {
			if _, err := decode(b); err != nil {
				t.Errorf("%s, written again, is refused: %v", b, err)
			}
		}
	})
}

// Whatever somebody writes there, the giver comes to an end with it.
func FuzzAccept(f *testing.F) {
	f.Add([]byte("{\"type\":\"hello\",\"version\":1}\n{\"type\":\"ready\"}\n{\"type\":\"accepting\"}\n"))
	f.Add([]byte("{\"type\":\"hello\",\"version\":1}\n\n"))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Add(make([]byte, maxMessage+1))
	p := newPlace(f)
	f.Fuzz(func(t *testing.T, in []byte) {
		conn, err := net.Dial("unix", p.path)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			conn.SetDeadline(time.Now().Add(patience))
			conn.Write(in)
			conn.(*net.UnixConn).CloseWrite()
		}()
		defer conn.Close()
		served, err := p.AcceptUnix()
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		g, _, err := Accept(ctx, served)
		if err != nil {
			return
		}
		defer g.Close()
		if g.Give(ctx, nil) == nil && g.AwaitReady(ctx) == nil {
			_ = g.Commit(ctx, nil)
		}
	})
}
