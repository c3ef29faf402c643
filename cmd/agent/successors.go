package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"gatehouse.internal/internal/takeover"
)

// maxAsking is how many processes may ask at once to take over, those included that
// have connected and say nothing.
const maxAsking = 16

var (
	errCrowd = fmt.Errorf("%d others ask to take over, try again", maxAsking)
	errTaken = errors.New("another process has taken over from this one, try again")
)

// asking is a process that has asked to take over, and waits for its turn.
type asking struct {
	giver *takeover.Giver
	hello takeover.Hello
}

// door is where processes ask to take over. Who has connected is listened to beside the
// others, so that one that says nothing holds up nobody.
type door struct {
	ln     net.Listener
	places chan struct{} // filled by all that have connected and are not served yet
	asks   chan asking   // as many
	wg     sync.WaitGroup
}

func newDoor(ln net.Listener) *door {
	return &door{ln: ln, places: make(chan struct{}, maxAsking), asks: make(chan asking, maxAsking)}
}

// deadline is when Accept returns; the zero value is never.
func (d *door) deadline(t time.Time) {
	if s, ok := d.ln.(interface{ SetDeadline(time.Time) error }); ok { // sockets have it
		_ = s.SetDeadline(t)
	}
}

// close refuses who has asked and was not served. ctx, which has ended, says why.
func (d *door) close(ctx context.Context) {
	d.wg.Wait()
	for {
		select {
		case q := <-d.asks:
			q.giver.Refuse(context.WithoutCancel(ctx), context.Cause(ctx))
		default:
			return
		}
	}
}

// nextAsking returns the next process that has asked to take over. Nobody is accepted
// but by this: who comes while another process takes over is answered by whoever is in
// charge afterwards.
func (a *agent) nextAsking(ctx context.Context, d *door) (asking, error) {
	defer context.AfterFunc(ctx, func() { _ = d.ln.Close() })()
	for {
		d.deadline(time.Time{})
		select {
		case q := <-d.asks:
			<-d.places
			return q, nil
		default:
		}
		conn, err := d.ln.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = conn.Close()
			}
			return asking{}, ctx.Err()
		case errors.Is(err, net.ErrClosed): // as run does at its end
			<-ctx.Done()
			return asking{}, ctx.Err()
		case errors.Is(err, os.ErrDeadlineExceeded): // woken
		case err != nil: // out of descriptors, most likely
			a.log.Warn("can't accept a process that is to take over", "err", err)
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		default:
			a.hear(ctx, d, conn)
		}
	}
}

// hear listens to who has connected, and has nextAsking return it.
func (a *agent) hear(ctx context.Context, d *door, conn net.Conn) {
	uc, ok := conn.(*net.UnixConn)
	if !ok {
		_ = conn.Close()
		return
	}
	fails := func(err error) {
		a.failed.Add(1)
		a.log.Warn("a process can't take over", "err", err)
	}
	select {
	case d.places <- struct{}{}:
	default:
		takeover.Refuse(ctx, uc, errCrowd)
		fails(errCrowd)
		return
	}
	d.wg.Go(func() {
		g, hello, err := takeover.Accept(ctx, uc)
		if err != nil {
			<-d.places
			fails(err)
			return
		}
		d.asks <- asking{g, hello}  // has room
		d.deadline(time.Unix(1, 0)) // nextAsking is to look
	})
}

// tryChange is changeListeners for whoever must not wait: while listeners change, or
// another process takes over, it returns false at once.
func (a *agent) tryChange(f func()) bool {
	select {
	case a.changes <- struct{}{}:
	default:
		return false
	}
	defer func() { <-a.changes }()
	f()
	return true
}
