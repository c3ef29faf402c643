package takeover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

// stepWithin bounds each step that takes the other side no time.
const stepWithin = 10 * time.Second

// Socket is a listening socket that is handed on.
type Socket struct {
	Kind Kind   `json:"kind"`
	Name string `json:"name,omitempty"` // of a listener
	// Address is where the configuration wants it, as text: its port may be 0.
	Address string `json:"address"`
	// Given says that a service manager has opened it and keeps it too: it stays open
	// as long as the process, and its file is the manager's.
	Given bool `json:"given,omitempty"`
	// Remove says that whoever has it last removes the file of a unix socket.
	Remove bool `json:"remove,omitempty"`
	// File is the socket. Give does not close it; those of Taker.Sockets are the
	// caller's to close.
	File *os.File `json:"-"`
}

// ErrNobody says that nobody listens at the path.
var ErrNobody = errors.New("no process to take over from")

// ErrGone says that the other side has ended without a word.
var ErrGone = errors.New("the other process has ended")

// Giver is the side of the process that runs.
type Giver struct{ link }

// Accept begins a conversation with who has connected, and returns what it says of
// itself. On an error it was told, and the connection is closed.
func Accept(ctx context.Context, conn *net.UnixConn) (*Giver, Hello, error) {
	g := &Giver{link{conn: conn}}
	pid, err := peer(conn)
	if err != nil {
		return nil, Hello{}, g.fail(err)
	}
	m, err := g.expect(ctx, typeHello, stepWithin)
	if err == nil && m.Version != Version {
		err = fmt.Errorf("it speaks version %d of the protocol of takeovers, and this one version %d: restart the agent instead", m.Version, Version)
	}
	if err != nil {
		return nil, Hello{}, g.fail(err)
	}
	return g, Hello{Build: m.Build, StateDir: m.StateDir, PID: pid}, nil
}

// Refuse tells who has connected why there is no conversation, and closes the connection.
func Refuse(ctx context.Context, conn *net.UnixConn, why error) {
	(&link{conn: conn}).Refuse(ctx, why)
}

// Give hands the sockets over, at most MaxSockets.
func (g *Giver) Give(ctx context.Context, sockets []Socket) error {
	if len(sockets) > MaxSockets {
		return fmt.Errorf("%d sockets, at most %d can be handed over", len(sockets), MaxSockets)
	}
	for {
		n := min(len(sockets), maxBatch)
		line, err := encode(message{Type: typeSockets, Sockets: sockets[:n], More: len(sockets) > n})
		for errors.Is(err, errTooLong) && n > 1 { // long names
			n /= 2
			line, err = encode(message{Type: typeSockets, Sockets: sockets[:n], More: true})
		}
		if err != nil {
			return err
		}
		if err := g.send(ctx, line, sockets[:n]); err != nil {
			return err
		}
		if sockets = sockets[n:]; len(sockets) == 0 {
			return nil
		}
	}
}

// AwaitReady waits until the other side is ready. It returns a *Refusal if that has
// given up, and ErrGone if it has ended.
func (g *Giver) AwaitReady(ctx context.Context) error {
	_, err := g.expect(ctx, typeReady, 0)
	return err
}

// Commit has the other side accept, and returns nil once it does. On an error it does
// not, or is to be told so by Refuse: also where it has ended since, as it waits for its
// answer as long as it lives. accepts, if it is not nil, is called once the other side
// accepts, and before that goes on.
func (g *Giver) Commit(ctx context.Context, accepts func()) error {
	if err := g.say(ctx, message{Type: typeGo}); err != nil {
		return err
	}
	if _, err := g.expect(ctx, typeAccepting, stepWithin); err != nil {
		return err
	}
	if accepts != nil {
		accepts()
	}
	return g.say(ctx, message{Type: typeDone})
}

// Taker is the side of the process that replaces the other one.
type Taker struct {
	link
	Sockets []Socket // that the other side has handed over
}

// Dial asks the process that listens at path for its sockets. The error is ErrNobody
// if there is none, and a *Refusal if it does not want to.
func Dial(ctx context.Context, path string, h Hello) (*Taker, error) {
	conn, err := connect(ctx, path)
	if err != nil {
		return nil, err
	}
	t := &Taker{link: link{conn: conn, takes: true}}
	if err = t.say(ctx, message{Type: typeHello, Version: Version, Build: h.Build, StateDir: h.StateDir}); err != nil && !errors.Is(err, ErrGone) {
		return nil, errors.Join(err, t.Close())
	} // else it may have said why
	for more := true; more; {
		m, err := t.expect(ctx, typeSockets, stepWithin)
		if err == nil && len(t.Sockets)+len(m.Sockets) > MaxSockets {
			err = fmt.Errorf("more than %d sockets", MaxSockets)
		}
		if err == nil && len(m.Sockets) > len(t.files) {
			err = fmt.Errorf("%d sockets are described and %d came", len(m.Sockets), len(t.files))
		}
		if err != nil {
			t.CloseSockets()
			return nil, t.fail(err)
		}
		for i := range m.Sockets {
			m.Sockets[i].File = t.files[i]
		}
		t.Sockets = append(t.Sockets, m.Sockets...)
		t.files = t.files[len(m.Sockets):]
		more = m.More
	}
	t.drop() // what nothing describes
	return t, nil
}

// AwaitEnd waits for the end of the other process, or for its refusal: it returns ErrGone
// or a *Refusal then, and else the cause of ctx's end, after which the conversation goes on
// where it was. It is for the time before Ready.
func (t *Taker) AwaitEnd(ctx context.Context) error {
	_, err := t.expect(ctx, "", 0)
	return err
}

// Ready says that everything is ready, and waits until the sockets may be accepted
// from. It returns ErrGone if the other process has ended: then nobody else has the
// sockets.
func (t *Taker) Ready(ctx context.Context) error {
	if err := t.say(ctx, message{Type: typeReady}); err != nil && !errors.Is(err, ErrGone) {
		return err
	} // else it may have said why
	_, err := t.expect(ctx, typeGo, stepWithin)
	return err
}

// Accepting says that the sockets are accepted from, and returns nil when the other
// process accepts no more, or ErrGone if it has ended. It waits as long as ctx lasts: one
// that does not answer may stop accepting at any time, and somebody must. On any other
// error, as a *Refusal, that one goes on, and this one must not.
func (t *Taker) Accepting(ctx context.Context) error {
	if err := t.say(ctx, message{Type: typeAccepting}); err != nil && !errors.Is(err, ErrGone) {
		return err
	} // else it may have said why
	_, err := t.expect(ctx, typeDone, 0)
	return err
}

// CloseSockets closes those that the other side has handed over.
func (t *Taker) CloseSockets() {
	for _, s := range t.Sockets {
		_ = s.File.Close()
	}
	t.Sockets = nil
}

// link is one side's end of the connection.
type link struct {
	conn  *net.UnixConn
	takes bool // sockets
	buf   []byte
	files []*os.File // that came and are not described yet
}

// Refuse tells the other side why nothing comes of it, and closes the connection.
func (l *link) Refuse(ctx context.Context, why error) {
	text := why.Error()
	_ = l.say(ctx, message{Type: typeRefused, Text: text[:min(len(text), maxText)]}) // it may have gone
	_ = l.Close()
}

// Close ends the conversation.
func (l *link) Close() error {
	l.drop()
	return l.conn.Close()
}

// fail is Refuse with an error of this side's own, which it returns.
func (l *link) fail(err error) error {
	if _, refused := errors.AsType[*Refusal](err); refused || errors.Is(err, ErrGone) {
		_ = l.Close()
		return err
	}
	l.Refuse(context.Background(), err)
	return err
}

func (l *link) drop() {
	for _, f := range l.files {
		_ = f.Close()
	}
	l.files = nil
}

// say sends a message without sockets.
func (l *link) say(ctx context.Context, m message) error {
	line, err := encode(m)
	if err != nil {
		return err
	}
	return l.send(ctx, line, nil)
}

// bound has what the connection does end with ctx, or within limit if that is not 0. The
// next call may have other bounds once release has returned.
func (l *link) bound(ctx context.Context, limit time.Duration) (release func()) {
	var until time.Time
	if limit > 0 {
		until = time.Now().Add(limit)
	}
	_ = l.conn.SetDeadline(until) // of a closed one the next call fails
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = l.conn.SetDeadline(time.Unix(1, 0))
		close(done)
	})
	return func() {
		if !stop() {
			<-done
		}
	}
}

// because returns why a call has failed.
func because(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errors.New("the other process does not answer in time")
	case errors.Is(err, io.EOF), broken(err):
		return ErrGone
	}
	return err
}

// expect reads the next message, which is to be of that type. limit is how long that
// may take; 0 is as long as ctx lasts.
func (l *link) expect(ctx context.Context, typ string, limit time.Duration) (message, error) {
	defer l.bound(ctx, limit)()
	line, err := l.line()
	if err != nil {
		return message{}, because(ctx, err)
	}
	m, err := decode(line)
	switch {
	case err != nil:
		return message{}, err
	case m.Type == typeRefused:
		return message{}, &Refusal{m.Text}
	case m.Type != typ:
		return message{}, fmt.Errorf("a message of the type %q, want %q", m.Type, typ)
	}
	return m, nil
}

// line reads to the end of a line, which it returns without.
func (l *link) line() ([]byte, error) {
	for seen := 0; ; {
		for i := seen; i < len(l.buf); i++ {
			if l.buf[i] == '\n' {
				line := l.buf[:i]
				l.buf = l.buf[i+1:]
				return line, nil
			}
		}
		seen = len(l.buf)
		if seen > maxMessage {
			return nil, errTooLong
		}
		if err := l.more(); err != nil {
			return nil, err
		}
	}
}
