package lastgood

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"
)

// Item is one thing that is kept. A nil Item keeps nothing.
type Item struct {
	s        *Store
	e        *entry
	released bool
}

// Record is what an item had.
type Record struct {
	Payload []byte
	// Confirmed is until when it is known to have been right, by the wall clock. It
	// is not after the time of Load, though the clock may have been set: see Age.
	Confirmed time.Time
}

// Age returns how long ago t was, by the wall clock. It is never negative, even
// where the clock was set back.
func Age(t time.Time) time.Duration { return max(time.Since(t.Round(0)), 0) }

// Load returns what was put last, in this run or an earlier one. A file that is
// damaged is set aside and counts as not there. Load an item before it is put.
func (i *Item) Load() (Record, bool) {
	if i == nil {
		return Record{}, false
	}
	s := i.s
	s.mu.Lock()
	encode, removed, file, key := i.e.encode, i.e.dirty && i.e.encode == nil, i.e.file, i.e.key
	s.mu.Unlock()
	if removed {
		return Record{}, false
	}
	if encode != nil { // newer than the file, or the same
		b, err := encode()
		return Record{b, i.confirmed()}, err == nil
	}
	b, confirmed, ok := s.load(key, file)
	if !ok {
		return Record{}, false
	}
	confirmed = latest(time.Now(), confirmed, s.confirmed[file])
	s.mu.Lock()
	if i.e.until.Before(confirmed) {
		i.e.until = confirmed
	}
	i.e.sum = sha256.Sum256(b) // the same again is not written
	s.mu.Unlock()
	return Record{b, confirmed}, true
}

// latest returns the later of two times by the wall clock, of those that are not to
// come: one of a clock that was ahead says nothing. If both are, it is now.
func latest(now, a, b time.Time) time.Time {
	switch {
	case a.After(now) && (b.IsZero() || b.After(now)):
		return now
	case a.After(now) || b.After(a) && !b.After(now):
		return b
	}
	return a
}

// load reads a file.
func (s *Store) load(k Key, name string) (payload []byte, confirmed time.Time, ok bool) {
	s.mu.Lock()
	_, aside := s.asides[name]
	s.mu.Unlock()
	if aside {
		return nil, confirmed, false
	}
	b, err := s.dir.read(name, s.cfg.MaxFile)
	if err == nil {
		if payload, confirmed, err = decode(k, b); err == nil {
			return payload, confirmed, true
		}
		err = fmt.Errorf("%w: %w", errDamaged, err)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case errors.Is(err, errDamaged):
		s.setAside(name, err)
	default:
		s.log.Error("a file of state_dir can't be read, the agent goes on without it", "file", s.dir.path(name), "err", err)
	}
	return nil, confirmed, false
}

// Put has what encode returns written within Delay. It is called by Run, later and
// perhaps several times: what it reads must not change. Of several Puts the last
// counts.
func (i *Item) Put(encode func() ([]byte, error)) {
	i.put(encode, false)
}

// PutOften is Put every Tick, and at the end of Run, without being asked again. It
// is for what changes often: encode is called each time, and may return what holds
// then; what is the same as before is not written.
func (i *Item) PutOften(encode func() ([]byte, error)) {
	i.put(encode, true)
}

// Remove has the file removed.
func (i *Item) Remove() { i.put(nil, false) }

func (i *Item) put(encode func() ([]byte, error), often bool) {
	if i == nil {
		return
	}
	i.s.mu.Lock()
	i.e.encode, i.e.often, i.e.dirty = encode, often, true
	i.s.mu.Unlock()
	i.s.poke()
}

// Fresh says whether what was put is right at present: the moment at which it ceases
// to be is kept too.
func (i *Item) Fresh(is bool) {
	if i == nil {
		return
	}
	i.s.mu.Lock()
	defer i.s.mu.Unlock()
	if i.e.fresh && !is {
		i.e.until = time.Now()
	}
	i.e.fresh = is
}

// Damaged says that the payload can't be read: the file is set aside, as one is
// whose checksum is wrong. It is called before the item is put.
func (i *Item) Damaged(why error) {
	if i != nil {
		i.s.setAside(i.e.file, why)
	}
}

// Release ends the claim. Later calls do nothing.
func (i *Item) Release() {
	if i == nil {
		return
	}
	i.s.mu.Lock()
	defer i.s.mu.Unlock()
	if !i.released {
		i.released = true
		i.e.claims--
	}
}

func (i *Item) confirmed() time.Time {
	i.s.mu.Lock()
	defer i.s.mu.Unlock()
	return i.e.confirmed(time.Now())
}

// confirmed returns until when e is known to be right. The lock is held.
func (e *entry) confirmed(now time.Time) time.Time {
	if e.fresh {
		return now
	}
	return e.until
}

// loadConfirmed reads until when the items were right.
func (s *Store) loadConfirmed() map[string]time.Time {
	b, _, ok := s.load(confirmedKey, confirmedKey.fileName())
	if !ok {
		return nil
	}
	at, err := decodeConfirmed(b)
	if err != nil {
		s.setAside(confirmedKey.fileName(), err)
	}
	return at
}

// decodeConfirmed reads the payload of confirmedKey; nil with an error.
func decodeConfirmed(b []byte) (at map[string]time.Time, err error) {
	if err := json.Unmarshal(b, &at); err != nil {
		return nil, err
	}
	if at == nil {
		return nil, errors.New("it has no times")
	}
	return at, nil
}
