package xds

import (
	"context"
	"io"
	"sync"

	"gatehouse.internal/xds/internal/adsgrpc"
	"gatehouse.internal/xds/internal/core"
)

// A stream is one ADS stream in the core's terms: see adsgrpc.Stream. Send and Recv
// may be called at the same time by one goroutine each; both end when the context
// does that the stream was opened with.
type stream interface {
	Variant() core.Variant
	Send(core.Request) error
	Recv() (core.Response, error)
	Close()
}

// transport opens the streams to one server: see adsgrpc.Transport.
type transport interface {
	Run(context.Context) error
	Open(context.Context) (stream, error)
	End(err error, heard bool) (reason string, how core.Ending)
}

type adsTransport struct{ *adsgrpc.Transport }

func (t adsTransport) Open(ctx context.Context) (stream, error) {
	s, err := t.Transport.Open(ctx)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// event is what a session reports.
type event struct {
	session *session
	// One of them says what happened.
	opened, sent, closed bool
	response             *core.Response

	variant core.Variant // of opened
	reason  string       // of closed, as are the next two
	how     core.Ending
	heard   bool
}

// session is one stream to a server from the attempt to open it until its end.
type session struct {
	server    int
	transport transport
	out       chan core.Request // one slot; the core has no more than one request on its way
	end       context.CancelFunc
	before    *session      // the last one to the server, or nil
	done      chan struct{} // closed when its goroutines have ended
}

// serve runs a session. It reports to whoever reads events, which is unbuffered:
// no message is read before the one before it was taken in. It returns when its
// goroutines have ended, which they do when ctx does.
func (s *session) serve(ctx context.Context, events chan<- event) {
	defer close(s.done)
	if s.before != nil {
		<-s.before.done
		s.before = nil
	}
	emit := func(ctx context.Context, e event) {
		e.session = s
		select {
		case events <- e:
		case <-ctx.Done():
		}
	}
	heard, err := s.converse(ctx, emit)
	reason, how := s.transport.End(err, heard)
	emit(ctx, event{closed: true, reason: reason, how: how, heard: heard})
}

// converse opens a stream and reads from it until it ends, while a goroutine
// sends: a server that doesn't read must not keep the client from reading. It
// reports whether there was a response.
func (s *session) converse(ctx context.Context, emit func(context.Context, event)) (heard bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	st, err := s.transport.Open(ctx)
	if err != nil {
		return false, err
	}
	defer st.Close()
	emit(ctx, event{opened: true, variant: st.Variant()})
	var sender sync.WaitGroup
	sender.Go(func() {
		for {
			select {
			case r := <-s.out:
				if err := st.Send(r); err == io.EOF {
					return // the stream is over, and Recv says why
				} else if err != nil {
					cancel(err)
					return
				}
				emit(ctx, event{sent: true})
			case <-ctx.Done():
				return
			}
		}
	})
	defer func() {
		cancel(nil)
		sender.Wait()
	}()
	for {
		r, err := st.Recv()
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			return heard, err
		}
		heard = true
		emit(ctx, event{response: &r})
	}
}
