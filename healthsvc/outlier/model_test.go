package outlier

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// modelHost is an endpoint as Envoy's documentation tells of it.
type modelHost struct {
	listed, ejected     bool
	since, returned     int // seconds
	times, multiplier   int
	rule                Rule
	successes, failures int // of this interval
}

// model keeps no count: it looks at everything each time.
type model struct {
	cfg                Config
	hosts              []*modelHost
	detected, enforced [Rules]int
	overflow           int
}

func (m *model) eject(h *modelHost, r Rule, enforcing uint32, now int) {
	m.detected[r]++
	ejected, listed := 0, 0
	for _, x := range m.hosts {
		if x.listed {
			listed++
			if x.ejected {
				ejected++
			}
		}
	}
	allowed := float64(ejected+1)*100/float64(listed) <= float64(m.cfg.MaxEjectionPercent)
	if !allowed && (!m.cfg.AlwaysEjectOneHost || ejected > 0) {
		m.overflow++
		return
	}
	if enforcing == 0 {
		return
	}
	m.enforced[r]++
	h.ejected, h.since, h.rule = true, now, r
	h.times++
	if h.multiplier*seconds(m.cfg.BaseEjectionTime) < seconds(m.cfg.MaxEjectionTime)+seconds(m.cfg.BaseEjectionTime) {
		h.multiplier++
	}
}

func seconds(d time.Duration) int { return int(d / time.Second) }

func (m *model) sweep(now, last int) {
	for _, h := range m.hosts {
		if h.ejected && now-h.since >= min(h.multiplier*seconds(m.cfg.BaseEjectionTime), seconds(m.cfg.MaxEjectionTime)) {
			h.ejected, h.returned = false, now
		}
	}
	rate := func(h *modelHost) float64 { return 100 * float64(h.successes) / float64(h.successes+h.failures) }
	judged := func(volume uint32) (hs []*modelHost) {
		for _, h := range m.hosts {
			if h.listed && !h.ejected && h.successes+h.failures >= max(int(volume), 1) {
				hs = append(hs, h)
			}
		}
		return hs
	}
	byRate, byShare := judged(m.cfg.SuccessRateRequestVolume), judged(m.cfg.FailurePercentageRequestVolume)
	if n := len(byRate); n > 0 && n >= int(m.cfg.SuccessRateMinimumHosts) {
		mean, variance := 0.0, 0.0
		for _, h := range byRate {
			mean += rate(h)
		}
		mean /= float64(n)
		for _, h := range byRate {
			variance += math.Pow(rate(h)-mean, 2)
		}
		threshold := mean - float64(m.cfg.SuccessRateStdevFactor)/1000*math.Sqrt(variance/float64(n))
		for _, h := range byRate {
			if rate(h) < threshold {
				m.eject(h, SuccessRate, m.cfg.EnforcingSuccessRate, now)
			}
		}
	}
	if n := len(byShare); n > 0 && n >= int(m.cfg.FailurePercentageMinimumHosts) {
		for _, h := range byShare {
			if !h.ejected && 100-rate(h) >= float64(m.cfg.FailurePercentageThreshold) {
				m.eject(h, FailurePercentage, m.cfg.EnforcingFailurePercentage, now)
			}
		}
	}
	for _, h := range m.hosts {
		if !h.ejected && h.multiplier > 0 && h.returned <= last {
			h.multiplier--
		}
		h.successes, h.failures = 0, 0
	}
}

// TestAgainstModel does what comes to a cluster, and compares with the model
// after each step.
func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := Default()
		percent := rapid.SampledFrom([]uint32{0, 100})
		cfg.BaseEjectionTime = time.Duration(rapid.IntRange(1, 20).Draw(t, "base")) * time.Second
		cfg.MaxEjectionTime = cfg.BaseEjectionTime + time.Duration(rapid.IntRange(0, 60).Draw(t, "more"))*time.Second
		cfg.MaxEjectionPercent = rapid.SampledFrom([]uint32{0, 10, 34, 50, 67, 99, 100}).Draw(t, "max")
		cfg.AlwaysEjectOneHost = rapid.Bool().Draw(t, "always one")
		cfg.SuccessRateMinimumHosts = uint32(rapid.IntRange(0, 4).Draw(t, "rate hosts"))
		cfg.FailurePercentageMinimumHosts = uint32(rapid.IntRange(0, 4).Draw(t, "share hosts"))
		cfg.SuccessRateRequestVolume = uint32(rapid.IntRange(0, 20).Draw(t, "rate volume"))
		cfg.FailurePercentageRequestVolume = uint32(rapid.IntRange(0, 20).Draw(t, "share volume"))
		cfg.SuccessRateStdevFactor = uint32(rapid.IntRange(0, 2500).Draw(t, "factor"))
		cfg.FailurePercentageThreshold = uint32(rapid.IntRange(0, 100).Draw(t, "threshold"))
		cfg.EnforcingConsecutive5xx, cfg.EnforcingConsecutiveGatewayFailure = percent.Draw(t, "5xx"), percent.Draw(t, "gateway")
		cfg.EnforcingSuccessRate, cfg.EnforcingFailurePercentage = percent.Draw(t, "rate"), percent.Draw(t, "share")
		d, m := New(cfg, func(uint64) uint64 { return 0 }), &model{cfg: cfg}
		var hosts []*Host
		for range rapid.IntRange(1, 6).Draw(t, "hosts") {
			h := d.Add(History{})
			d.List(h, true)
			hosts = append(hosts, h)
			m.hosts = append(m.hosts, &modelHost{listed: true, returned: -1})
		}
		now, last := 0, -1 // there was no sweep yet
		one := func(t *rapid.T) int { return rapid.IntRange(0, len(hosts)-1).Draw(t, "host") }
		t.Repeat(map[string]func(*rapid.T){
			"trip": func(t *rapid.T) {
				i := one(t)
				r, enforcing := Consecutive5xx, cfg.EnforcingConsecutive5xx
				if rapid.Bool().Draw(t, "gateway") {
					r, enforcing = ConsecutiveGatewayFailure, cfg.EnforcingConsecutiveGatewayFailure
				}
				d.Trip(hosts[i], r, at(float64(now)))
				if m.hosts[i].listed && !m.hosts[i].ejected {
					m.eject(m.hosts[i], r, enforcing, now)
				}
			},
			"connects": func(t *rapid.T) {
				i := one(t)
				s, f := rapid.IntRange(0, 30).Draw(t, "successes"), rapid.IntRange(0, 30).Draw(t, "failures")
				hosts[i].Successes += uint64(s)
				hosts[i].Failures += uint64(f)
				m.hosts[i].successes += s
				m.hosts[i].failures += f
			},
			"list": func(t *rapid.T) {
				i, on := one(t), rapid.Bool().Draw(t, "on")
				d.List(hosts[i], on)
				m.hosts[i].listed = on
			},
			"pass": func(t *rapid.T) {
				i := one(t)
				d.Passed(hosts[i], at(float64(now)))
				if m.hosts[i].ejected {
					m.hosts[i].ejected, m.hosts[i].returned = false, now
				}
			},
			"time": func(t *rapid.T) { now += rapid.IntRange(1, 9).Draw(t, "seconds") },
			"sweep": func(t *rapid.T) {
				d.Sweep(at(float64(now)), hosts)
				m.sweep(now, last)
				last = now
			},
			"": func(t *rapid.T) {
				active := 0
				for i, h := range hosts {
					x := m.hosts[i]
					if h.Ejected != x.ejected || int(h.Times) != x.times || int(h.Multiplier) != x.multiplier || h.Ejected && h.Rule != x.rule {
						t.Fatalf("host %d is %+v, want %+v", i, h, x)
					}
					if x.ejected && x.listed {
						active++
					}
				}
				s := d.Stats()
				want := func(got [Rules]uint64, want [Rules]int) bool {
					return slices.EqualFunc(got[:], want[:], func(a uint64, b int) bool { return a == uint64(b) })
				}
				if s.Active != active || s.Overflow != uint64(m.overflow) || !want(s.Detected, m.detected) || !want(s.Enforced, m.enforced) {
					t.Fatalf("%+v, want %d active, %d overflow, %v, %v", s, active, m.overflow, m.detected, m.enforced)
				}
			},
		})
	})
}
