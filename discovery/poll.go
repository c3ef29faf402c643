package discovery

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"gatehouse.internal/lbcore"
)

// Poll is the Source of a mechanism that has to be asked: it asks, reports,
// and asks again when the answer has run out. Only Lookup is required. Poll is
// a plain value; with Wake nil it may be watched by several at a time.
type Poll struct {
	// Lookup asks once and says for how long the answer holds. It must end
	// when its context does, and runs in the goroutine of Watch.
	Lookup func(context.Context) (set lbcore.Set, ttl time.Duration, err error)
	// Timeout is the total deadline of one Lookup. Zero means 10 s.
	Timeout time.Duration
	// MinTTL and MaxTTL bound the time from an answer to the next Lookup.
	// Zero means 1 s and 1 h.
	MinTTL, MaxTTL time.Duration
	// MinBackoff is the wait after a first failure. It doubles with each
	// further one up to MaxBackoff; then 20 % of jitter is added or taken
	// away. Zero means 1 s and 30 s.
	MinBackoff, MaxBackoff time.Duration
	// Wake, if not nil, ends any wait at once. One slot is enough: a wake
	// during a Lookup is followed by another Lookup.
	Wake <-chan struct{}
	// Rand returns the jitter's random numbers, from 0 to less than 1. Nil
	// means math/rand/v2.
	Rand func() float64
}

func (p Poll) withDefaults() (Poll, error) {
	orDefault := func(d *time.Duration, def time.Duration) {
		if *d == 0 {
			*d = def
		}
	}
	orDefault(&p.Timeout, 10*time.Second)
	orDefault(&p.MinTTL, time.Second)
	orDefault(&p.MaxTTL, max(time.Hour, p.MinTTL))
	orDefault(&p.MinBackoff, time.Second)
	orDefault(&p.MaxBackoff, max(30*time.Second, p.MinBackoff))
	if p.Rand == nil {
		p.Rand = rand.Float64
	}
	switch {
	case p.Lookup == nil:
		return p, errors.New("poll: no lookup function")
	case p.Timeout < 0:
		return p, fmt.Errorf("poll: timeout %v: must not be negative", p.Timeout)
	case p.MinTTL < 0 || p.MaxTTL < p.MinTTL:
		return p, fmt.Errorf("poll: ttl from %v to %v: want a range of positive times", p.MinTTL, p.MaxTTL)
	case p.MinBackoff < 0 || p.MaxBackoff < p.MinBackoff:
		return p, fmt.Errorf("poll: back-off from %v to %v: want a range of positive times", p.MinBackoff, p.MaxBackoff)
	}
	return p, nil
}

// Watch implements Source.
func (p Poll) Watch(ctx context.Context, sink Sink) error {
	p, err := p.withDefaults()
	if err != nil {
		return err
	}
	backoff := p.MinBackoff
	for ctx.Err() == nil {
		set, wait, err := p.once(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			sink.Fail(err)
			wait = time.Duration(float64(backoff) * (0.8 + 0.4*p.Rand()))
			backoff = min(2*backoff, p.MaxBackoff)
		default:
			sink.Replace(set)
			wait = min(max(wait, p.MinTTL), p.MaxTTL)
			backoff = p.MinBackoff
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-p.Wake:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	return ctx.Err()
}

func (p Poll) once(ctx context.Context) (lbcore.Set, time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	set, ttl, err := p.Lookup(ctx)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("no answer within %v: %w", p.Timeout, err)
	}
	return set, ttl, err
}
