package tlsconf

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse.internal/internal/filewatch"
)

const (
	// interval is the time between two looks at the files when nothing seems to
	// happen.
	interval = 30 * time.Second
	// retryEvery is the time between two looks at files that can't be used, and
	// grace is how long that goes on before it counts as an error: files of a pair
	// that change at different moments don't fit each other meanwhile.
	retryEvery = 250 * time.Millisecond
	grace      = 2 * time.Second
	// retryLater is the time between two looks after that.
	retryLater = 5 * time.Second
	// soon is how long before NotAfter it is warned of, at most: what is good for
	// a short time is so once a quarter of that is left.
	soon = 24 * time.Hour
)

// Status says what a Client or a Server has in force.
type Status struct {
	// Generation is 1 for the files that it was made with, and one more for each
	// rotation.
	Generation uint64
	// LoadedAt is when that generation was loaded.
	LoadedAt time.Time
	// NotAfter is when it ends to work: a certificate expires, or the last of
	// its authorities, whichever is first. Zero if it has neither.
	NotAfter time.Time
	// Certificates are its own. It is not to be written to.
	Certificates []Certificate
	// Exposed are the paths of the key files that other users could read or write when
	// they were loaded. It is not to be written to.
	Exposed []string
	// Err is why newer files are not in force. Nil if there are none.
	Err error
	// Failures counts the errors that there were, one that stays the same once.
	Failures uint64
}

// Certificate describes a certificate by text that is fit to be printed.
type Certificate struct {
	Subject  string
	Names    []string // see Names
	NotAfter time.Time
}

// published is what a rotation has in force. It is never written again.
type published struct {
	config *tls.Config
	status Status
	digest [sha256.Size]byte
}

// rotation makes a configuration of files, and another when they change.
type rotation struct {
	what  string
	files files
	now   func() time.Time
	log   *slog.Logger
	build func(material) *tls.Config

	current atomic.Pointer[published]
	looks   chan chan struct{} // who asks for a look, and waits for its end

	open   filewatch.Open // a test's, or nil
	ending string         // what was said last of NotAfter; of run only
}

// first loads the first generation.
func (r *rotation) first() error {
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	next, err := r.load(nil)
	if err != nil {
		return fmt.Errorf("%s: %w", r.what, err)
	}
	r.current.Store(next)
	r.looks = make(chan chan struct{})
	return nil
}

// look has run look at the files now, and returns when it has.
func (r *rotation) look(ctx context.Context) error {
	if len(r.files.paths()) == 0 {
		return nil
	}
	done := make(chan struct{})
	select {
	case r.looks <- done:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// load reads the files. It returns old, without an error, if they are the same.
func (r *rotation) load(old *published) (*published, error) {
	c, err := r.files.read()
	if err != nil {
		return nil, err
	}
	digest := c.digest()
	if old != nil && old.digest == digest {
		if old.status.Err == nil {
			return old, nil
		}
		same := *old // a bad file was put back
		same.status.Err = nil
		return &same, nil
	}
	now := r.now()
	m, err := r.files.parse(c, now)
	if err != nil {
		return nil, err
	}
	next := &published{config: r.build(m), digest: digest, status: Status{Generation: 1, LoadedAt: now, NotAfter: m.notAfter}}
	for _, c := range m.certs {
		next.status.Certificates = append(next.status.Certificates, Certificate{clean(c.Leaf.Subject.String()), Names(c.Leaf), c.Leaf.NotAfter})
	}
	for _, p := range r.files.Pairs {
		if p.Key == "" && filewatch.Exposed(p.KeyFile) {
			next.status.Exposed = append(next.status.Exposed, p.KeyFile)
		}
	}
	if old != nil {
		next.status.Generation, next.status.Failures = old.status.Generation+1, old.status.Failures
	}
	return next, nil
}

func (r *rotation) run(ctx context.Context) error {
	if len(r.files.paths()) == 0 { // it still expires
		look := time.NewTicker(interval)
		defer look.Stop()
		for {
			r.expires(r.current.Load())
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-look.C:
			}
		}
	}
	w := filewatch.New(filewatch.Config{What: "tls files", Paths: r.files.paths(), Interval: interval, Logger: r.log, Open: r.open})
	var wg sync.WaitGroup
	wg.Go(w.Run)
	defer wg.Wait()
	defer w.Close()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var failing time.Time // since then; zero: it isn't
	for {
		var done chan struct{} // somebody waits
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.Changed():
		case <-timer.C:
		case done = <-r.looks:
		}
		// Watch first: a change after the look must not go unseen.
		w.Follow()
		old := r.current.Load()
		next, err := r.load(old)
		switch {
		case err == nil:
			failing = time.Time{}
			timer.Reset(interval)
			if next.status.Generation != old.status.Generation {
				r.log.Info("tls files rotated", "source", r.source(), "generation", next.status.Generation, "not_after", next.status.NotAfter)
				if len(next.status.Exposed) > 0 && !slices.Equal(next.status.Exposed, old.status.Exposed) {
					LogExposed(r.log, next.status)
				}
			}
			r.current.Store(next)
			r.expires(next)
		case failing.IsZero():
			failing = time.Now()
			timer.Reset(retryEvery)
		case time.Since(failing) < grace:
			timer.Reset(retryEvery)
		default:
			timer.Reset(retryLater)
			r.fail(old, fmt.Errorf("%s: %w", r.what, err))
		}
		if done != nil {
			close(done)
		}
	}
}

// LogExposed warns of key files that other users can read or write. Who makes a Client
// or a Server of files that nobody has looked at calls it once; Run goes on with it.
func LogExposed(log *slog.Logger, st Status) {
	if len(st.Exposed) > 0 {
		log.Warn("other users can read or write key files, who has read a key may use it", "files", st.Exposed)
	}
}

// fail keeps what is in force, and says once why.
func (r *rotation) fail(old *published, err error) {
	if old.status.Err != nil && old.status.Err.Error() == err.Error() {
		return
	}
	r.log.Warn("new tls files can't be used, the last good ones stay in force", "source", r.source(), "generation", old.status.Generation, "not_after", old.status.NotAfter, "err", err)
	same := *old
	same.status.Err = err
	same.status.Failures++
	r.current.Store(&same)
}

// expires says once that what is in force is about to expire, and once that it
// has.
func (r *rotation) expires(p *published) {
	ending := ""
	switch left := p.status.NotAfter.Sub(r.now()); {
	case p.status.NotAfter.IsZero() || left > min(soon, p.status.NotAfter.Sub(p.status.LoadedAt)/4):
	case left > 0:
		ending = "tls files expire soon, and no newer ones are there"
	default:
		ending = "tls files have expired, and no newer ones are there: peers refuse what they are used for"
	}
	if ending != "" && ending != r.ending {
		r.log.Warn(ending, "source", r.source(), "generation", p.status.Generation, "not_after", p.status.NotAfter)
	}
	r.ending = ending
}

func (r *rotation) source() string {
	var names []string
	for _, p := range r.files.parts() {
		names = append(names, p.path)
	}
	return strings.Join(names, " ")
}
