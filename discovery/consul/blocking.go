package consul

import (
	"cmp"
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/hashicorp/consul/api"
)

// pace bounds how often one query asks: each request takes a token of both
// buckets. Two at once, one a second, and under lasting churn, when the second
// bucket is empty, what Consul asks of its clients: one in 15 s.
var pace = [...]struct {
	size  float64 // tokens
	every time.Duration
}{{2, time.Second}, {30, 15 * time.Second}}

// pacer is the state of the pace of one query. The zero pacer is full.
type pacer struct {
	tokens [len(pace)]float64
	at     time.Time // when tokens was counted; zero means never
	// shared has only the first bucket count: in a catalog of many services
	// something changes all the time.
	shared bool
}

// buckets are those that count.
func (p *pacer) buckets() int {
	if p.shared {
		return 1
	}
	return len(pace)
}

// take takes the tokens and returns how long to wait until they are there.
func (p *pacer) take(now time.Time) (wait time.Duration) {
	for i, b := range pace[:p.buckets()] {
		if p.at.IsZero() {
			p.tokens[i] = b.size
		}
		p.tokens[i] = min(p.tokens[i]+float64(now.Sub(p.at))/float64(b.every), b.size)
		if lack := 1 - p.tokens[i]; lack > 0 {
			wait = max(wait, time.Duration(lack*float64(b.every)))
		}
	}
	p.at = now.Add(wait)
	for i, b := range pace[:p.buckets()] {
		p.tokens[i] = min(p.tokens[i]+float64(wait)/float64(b.every), b.size) - 1
	}
	return wait
}

// The waits after failures in a row: doubled from the first to the last, with
// 40 % of jitter either way, so that a fleet does not come back as one.
const (
	backoffMin = 500 * time.Millisecond
	backoffMax = 15 * time.Second
)

// backoff is the state of waiting after failures. The zero backoff has seen
// none.
type backoff struct{ next time.Duration }

// fail returns how long to wait after one more failure.
func (b *backoff) fail() time.Duration {
	d := max(b.next, backoffMin)
	b.next = min(2*d, backoffMax)
	return time.Duration(float64(d) * (0.6 + 0.8*rand.Float64()))
}

func (b *backoff) reset() { b.next = 0 }

// blocking asks one query again and again, each time until the answer changes.
// The index is the query's own: nothing else may be asked through it.
// Source: Consul's documentation of blocking queries.
type blocking struct {
	c       *Client
	opts    api.QueryOptions // without index and token
	wait    time.Duration    // for a change; zero means Config.WaitTime
	polls   bool             // something else sets the pace
	pace    pacer
	backoff backoff
	index   uint64 // 0: the next request does not block
	token   string // of the request that gave index

	// Anybody may say that index is worth nothing: see restart.
	restarted atomic.Bool
	cancel    atomic.Pointer[context.CancelFunc]
}

// restart ends a wait, and has the next request not block. It may be called
// from anywhere.
func (b *blocking) restart() {
	b.restarted.Store(true)
	if cancel := b.cancel.Load(); cancel != nil {
		(*cancel)()
	}
}

// once makes one request; unless block is false, and if there is an index, it
// blocks until there is news. same reports that there is none by the index. After
// a failure the caller reports it and calls rest; after an answer that it can
// use it resets the back-off.
func (b *blocking) once(ctx context.Context, block bool, ask func(*api.QueryOptions) (*api.QueryMeta, error)) (meta *api.QueryMeta, same bool, err error) {
	if !b.polls {
		if err := pause(ctx, b.pace.take(time.Now())); err != nil {
			return nil, false, err
		}
	}
	token, err := b.c.token()
	if err != nil {
		b.index = 0
		b.c.failures.Add(1)
		return nil, false, b.c.fail(err)
	}
	if token != b.token { // what it may see is something else
		b.token, b.index = token, 0
	}
	opts := b.opts
	opts.Token = token
	asking, cancel := context.WithCancel(ctx)
	defer cancel()
	b.cancel.Store(&cancel)
	if b.restarted.Swap(false) {
		b.index = 0
	}
	before, began, wait := b.index, time.Now(), time.Duration(0)
	if before == 0 || !block {
		before = 0
		meta, err = b.c.lookup(asking, opts, ask)
	} else {
		wait = cmp.Or(b.wait, b.c.cfg.WaitTime)
		opts.WaitIndex, opts.WaitTime = before, wait
		meta, err = b.c.ask(asking, wait+wait/16+lookupTimeout, opts, ask) // servers add up to a sixteenth
	}
	if err != nil && asking.Err() != nil && ctx.Err() == nil {
		b.index = 0
		return b.once(ctx, block, ask)
	}
	if err != nil {
		b.index = 0 // what is asked next may not know it
		return nil, false, err
	}
	switch {
	case meta.LastIndex < before:
		// A restored snapshot or a new server: what was waited for may never come.
		b.index = 0
		b.c.resets.Add(1)
		return b.once(ctx, block, ask)
	case before != 0 && meta.LastIndex == before:
		if time.Since(began) < wait {
			// A restored snapshot ends a wait with what was before it.
			b.index = 0
		}
		return meta, true, nil
	}
	b.index = max(meta.LastIndex, 1)
	return meta, false, nil
}

// rest waits after a failure.
func (b *blocking) rest(ctx context.Context) error { return pause(ctx, b.backoff.fail()) }

// pause waits for d. It returns ctx's error if that ends.
func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return ctx.Err()
}

// poke fills a one-slot channel; a value that is there already will do.
func poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
