package dns

import (
	"net/netip"
	"slices"
	"time"

	"gatehouse.internal/discovery"
)

// memory is what a source knows of one question.
type memory struct {
	q        *Query
	question question

	answered bool // there was a result of some kind
	answers  int  // results that are answers, of records or of none
	firstAt  time.Time
	good     bool // records were found, and not given up since
	empty    bool // that there are none is believed
	lost     bool // records were given up because of failures
	addrs    map[netip.Addr]int
	srvs     map[srv]int // the values are how many answers have lacked the record
	hints    map[string][]netip.Addr
	first    netip.Addr // of addrs, in the order of the last answer with any
	left     []string

	// A run is results of one class, other than found, without another between
	// them. NXDOMAIN and NODATA are one: both says that it has had each of them.
	class class
	both  bool
	run   int
	since time.Time
	err   error

	flying  bool
	again   bool      // flying, and to be asked for anew after that
	due     time.Time // when to ask again
	backoff time.Duration
}

func newMemory(q *Query, qu question) *memory { return &memory{q: q, question: qu} }

// doubts reports whether an answer without records would be news.
func (m *memory) doubts() bool { return !m.empty && (m.good || m.run == 0 || m.class.failed()) }

// take remembers the result of a look-up, and reports whether it is another than
// before. Random is from 0 to less than 1.
func (m *memory) take(a answer, now time.Time, random float64) (news bool) {
	news = !m.answered || m.class != a.class || a.class != found || !slices.Equal(m.left, a.left)
	m.answered, m.left = true, a.left
	if !a.class.failed() {
		if m.answers++; m.answers == 1 {
			m.firstAt = now
		}
	}
	if a.class == found {
		m.good, m.empty, m.lost, m.run, m.err, m.class, m.backoff = true, false, false, 0, nil, found, 0
		missing, other := keep(&m.addrs, a.addrs, m.q.Misses)
		news = news || other
		if a.srvs != nil {
			missing, other = keep(&m.srvs, a.srvs, m.q.Misses)
			news = news || other
		}
		m.hints, m.first = a.hints, a.first
		wait := m.q.Refresh
		if a.hasTTL && a.ttl > 0 {
			wait = min(max(a.ttl, m.q.MinTTL), m.q.MaxTTL)
		}
		if missing { // whether they are gone is to be known soon
			wait = min(wait, missingCheck)
		}
		if m.q.Jitter > 0 {
			m.due = now.Add(wait + time.Duration(float64(m.q.Jitter)*random))
		} else {
			m.due = now.Add(jitter(wait, random))
		}
		return news
	}
	switch negative := !a.class.failed() && !m.class.failed(); {
	case m.run == 0 || a.class != m.class && !negative:
		m.both, m.run, m.since = false, 0, now
	case a.class != m.class:
		m.both = true
	}
	m.class = a.class
	m.run++
	m.err = a.err
	hold := m.hold()
	if m.over(now, hold) {
		m.empty = !a.class.failed()
		m.lost = !m.empty && (m.good || m.lost)
		m.addrs, m.srvs, m.hints, m.good = nil, nil, nil, false
	}
	m.backoff = min(max(2*m.backoff, m.q.MinBackoff), m.q.MaxBackoff)
	wait := m.backoff
	if a.hasTTL && !a.class.failed() {
		wait = max(wait, min(a.ttl, m.q.MaxTTL))
	}
	wait = jitter(wait, random)
	// The answer that ends a hold is asked for when it is over.
	if end := m.since.Add(hold); !m.over(now, hold) && hold > 0 && end.After(now) && !m.empty {
		wait = min(wait, max(end.Sub(now), m.q.MinBackoff))
	}
	m.due = now.Add(wait)
	return news
}

// missingCheck is after what time at most it is looked again for a record that
// the last answer lacked.
const missingCheck = 30 * time.Second

// jitter returns d, give or take 15 %.
func jitter(d time.Duration, random float64) time.Duration {
	return time.Duration(float64(d) * (0.85 + 0.3*random))
}

// keep brings records up to what an answer lists. Missing says that it lacks some
// that stay, other that the records are not those of before.
func keep[R comparable](records *map[R]int, listed []R, misses int) (missing, other bool) {
	next := make(map[R]int, len(listed))
	for r, missed := range *records {
		if missed++; missed < misses {
			next[r] = missed
		}
	}
	for _, r := range listed {
		next[r] = 0
	}
	other = len(next) != len(*records)
	for r := range next {
		if _, was := (*records)[r]; !was {
			other = true
		}
	}
	*records = next
	return len(next) > len(listed), other
}

// hold returns how long the last good records stay in the present run; 0 is for
// ever.
func (m *memory) hold() time.Duration {
	if h := m.q.Hold; m.both { // the longer one
		if min(h.NXDomain, h.NoData) == 0 {
			return 0
		}
		return max(h.NXDomain, h.NoData)
	}
	switch m.class {
	case nodata:
		return m.q.Hold.NoData
	case nxdomain:
		return m.q.Hold.NXDomain
	case refused:
		return m.q.Hold.Refused
	}
	return m.q.Hold.Timeout
}

// over reports whether the run has lasted long enough to be believed.
func (m *memory) over(now time.Time, hold time.Duration) bool {
	return hold > 0 && m.run >= 2 && now.Sub(m.since) >= hold
}

// doubt says why the records are not what DNS says at present, or is nil. Known
// is how many endpoints would be lost.
func (m *memory) doubt(known int) error {
	switch {
	case m.err == nil || m.empty:
		return nil
	case m.class.failed() || !m.good && m.hold() == 0:
		return m.err
	}
	if hold := m.hold(); hold > 0 && m.good {
		return &discovery.HeldError{Known: known, Until: m.since.Add(hold), Reason: m.err}
	}
	return m.err
}

// sorted returns the records in order.
func (m *memory) sortedSRVs() []srv {
	var all []srv
	for s := range m.srvs {
		all = append(all, s)
	}
	slices.SortFunc(all, compareSRV)
	return all
}

func (m *memory) sortedAddrs() []netip.Addr {
	var all []netip.Addr
	for a := range m.addrs {
		all = append(all, a)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}
