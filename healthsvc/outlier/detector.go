package outlier

import (
	"math"
	"math/rand/v2"
	"time"
)

// Detector decides for one cluster.
type Detector struct {
	cfg     Config
	rand    func(n uint64) uint64
	stats   Stats
	listed  int       // hosts that discovery lists
	ejected int       // of them
	swept   time.Time // the last sweep
}

// Stats are a Detector's counters, under Envoy's words.
type Stats struct {
	// Active is how many listed endpoints are ejected now.
	Active int
	// Detected counts the finds of each rule, Enforced those that led to an
	// ejection, and Overflow those that didn't because of max_ejection_percent.
	Detected, Enforced [Rules]uint64
	Overflow           uint64
	// Average is the mean of the success rates that were compared in the last
	// sweep, in percent, and Threshold that below which an endpoint was an
	// outlier. Both are -1 if nothing was compared.
	Average, Threshold float64
}

// History is what is known of an endpoint's ejections. The zero value is that
// there was none.
type History struct {
	Ejected bool
	// Since is when it was ejected last, by Rule; Times counts.
	Since time.Time
	Rule  Rule
	Times uint32
	// Multiplier is by how many BaseEjectionTimes it stays, or stayed, out. It
	// grows by one with each ejection and falls by one with each interval after.
	Multiplier uint32
	// Jitter is added to the time of the last ejection.
	Jitter time.Duration
	// Returned is when an ejection ended last.
	Returned time.Time
}

// Host is an endpoint of the cluster.
type Host struct {
	History
	// Successes and Failures are the totals of the connects to the endpoint. The
	// owner brings them up to date before Sweep.
	Successes, Failures uint64
	// Rate is the success rate of the last interval, in percent, or -1 if there
	// were not enough connects.
	Rate float64

	successes, failures uint64 // at the last sweep
	listed              bool
}

// New returns a Detector without hosts. rand returns a number in [0, n) for
// n > 0; nil means math/rand/v2.
func New(cfg Config, random func(n uint64) uint64) *Detector {
	if random == nil {
		random = rand.Uint64N
	}
	return &Detector{cfg: cfg.normal(), rand: random, stats: Stats{Average: -1, Threshold: -1}}
}

// Add returns a Host that is not listed yet and has the given past.
func (d *Detector) Add(past History) *Host { return &Host{History: past, Rate: -1} }

// List tells whether discovery lists h. One that it doesn't list neither counts
// nor is ejected, but an ejection goes on.
func (d *Detector) List(h *Host, listed bool) {
	if h.listed == listed {
		return
	}
	h.listed = listed
	by := 1
	if !listed {
		by = -1
	}
	d.listed += by
	if h.Ejected {
		d.ejected += by
	}
}

// Inherit gives h another past.
func (d *Detector) Inherit(h *Host, past History) {
	listed := h.listed
	d.List(h, false)
	h.History = past
	d.List(h, listed)
}

// Stats returns the counters.
func (d *Detector) Stats() Stats {
	s := d.stats
	s.Active = d.ejected
	return s
}

// Until returns when h, which is ejected, may come back: with the next sweep
// then or after.
func (d *Detector) Until(h *Host) time.Time {
	return h.Since.Add(min(time.Duration(h.Multiplier)*d.cfg.BaseEjectionTime, d.cfg.MaxEjectionTime) + h.Jitter)
}

// Trip tells that a rule about failures in a row has found h.
func (d *Detector) Trip(h *Host, r Rule, now time.Time) {
	if h.listed && !h.Ejected {
		d.find(h, r, now)
	}
}

// Passed tells that an active check of h has passed while none fails. It
// reports whether that ended an ejection.
func (d *Detector) Passed(h *Host, now time.Time) bool {
	if !h.Ejected || !d.cfg.SuccessfulActiveHealthCheckUnejectHost {
		return false
	}
	d.uneject(h, now)
	return true
}

// Sweep does what is due each interval: it ends ejections whose time is over,
// and judges the connects since the last sweep. It is given all hosts.
func (d *Detector) Sweep(now time.Time, hosts []*Host) {
	for _, h := range hosts {
		h.Rate = -1
		if h.Ejected && !d.Until(h).After(now) {
			d.uneject(h, now)
		}
	}
	d.judge(now, hosts)
	for _, h := range hosts {
		h.successes, h.failures = h.Successes, h.Failures
		// Whole intervals count that it was not ejected in.
		if !h.Ejected && h.Multiplier > 0 && !h.Returned.After(d.swept) {
			h.Multiplier--
		}
	}
	d.swept = now
}

// judge compares the hosts by the last interval.
func (d *Detector) judge(now time.Time, hosts []*Host) {
	c := &d.cfg
	rate, share := SuccessRate, FailurePercentage
	if c.SplitExternalLocalOriginErrors {
		rate, share = LocalOriginSuccessRate, LocalOriginFailurePercentage
	}
	d.stats.Average, d.stats.Threshold = -1, -1
	if d.listed < int(c.SuccessRateMinimumHosts) && d.listed < int(c.FailurePercentageMinimumHosts) {
		return
	}
	var byRate, byShare []*Host
	sum := 0.0
	for _, h := range hosts {
		successes, failures := h.Successes-h.successes, h.Failures-h.failures
		volume := successes + failures
		if !h.listed || h.Ejected || volume == 0 {
			continue
		}
		r := float64(successes) * 100 / float64(volume)
		if volume >= uint64(min(c.SuccessRateRequestVolume, c.FailurePercentageRequestVolume)) {
			h.Rate = r
		}
		if volume >= uint64(c.SuccessRateRequestVolume) {
			byRate = append(byRate, h)
			sum += r
		}
		if volume >= uint64(c.FailurePercentageRequestVolume) {
			byShare = append(byShare, h)
		}
	}
	if n := len(byRate); n > 0 && n >= int(c.SuccessRateMinimumHosts) {
		d.stats.Average = sum / float64(n)
		variance := 0.0
		for _, h := range byRate {
			variance += (h.Rate - d.stats.Average) * (h.Rate - d.stats.Average)
		}
		d.stats.Threshold = d.stats.Average - float64(c.SuccessRateStdevFactor)/1000*math.Sqrt(variance/float64(n))
		for _, h := range byRate {
			if h.Rate < d.stats.Threshold {
				d.find(h, rate, now)
			}
		}
	}
	if n := len(byShare); n > 0 && n >= int(c.FailurePercentageMinimumHosts) {
		for _, h := range byShare {
			if !h.Ejected && 100-h.Rate >= float64(c.FailurePercentageThreshold) {
				d.find(h, share, now)
			}
		}
	}
}

// find takes note that h, which is listed and not ejected, is an outlier, and
// ejects it if that is allowed.
func (d *Detector) find(h *Host, r Rule, now time.Time) {
	c := &d.cfg
	d.stats.Detected[r]++
	first := c.AlwaysEjectOneHost && d.ejected == 0
	if !first && 100*uint64(d.ejected+1) > uint64(min(c.MaxEjectionPercent, 100))*uint64(d.listed) {
		d.stats.Overflow++
		return
	}
	if p := uint64(c.enforcing(r)); p < 100 && (p == 0 || d.rand(100) >= p) {
		return
	}
	d.stats.Enforced[r]++
	d.ejected++
	h.Ejected, h.Since, h.Rule = true, now, r
	h.Times++
	h.Jitter = time.Duration(d.rand(uint64(c.MaxEjectionTimeJitter) + 1))
	if time.Duration(h.Multiplier)*c.BaseEjectionTime < c.MaxEjectionTime+c.BaseEjectionTime {
		h.Multiplier++
	}
}

func (d *Detector) uneject(h *Host, now time.Time) {
	h.Ejected, h.Returned = false, now
	if h.listed {
		d.ejected--
	}
}
