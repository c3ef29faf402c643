package telemetry

import (
	"context"
	"net"
	"strconv"
	"strings"
	"time"

	metrics "github.com/armon/go-metrics"
)

const (
	// maxPacket is what a datagram has at most: what an Ethernet frame carries.
	maxPacket = 1432
	// sendWithin bounds the wait for a server.
	sendWithin = time.Second
)

// lineSink is a sink of go-metrics that sends lines to a statsd, dogstatsd or statsite
// server. Those of go-metrics itself drop what a queue of 4096 lines does not take and
// what has not left when they end, and have labels forge lines.
type lineSink struct {
	metrics.BlackholeSink // for the methods that nobody calls
	setting               string
	network, address      string
	tagged                bool   // labels are dogstatsd's tags, not parts of the name
	tags                  string // of all lines

	lines   []byte
	failing string // why, as logged last
}

// newSinks returns the sinks of cfg.
func newSinks(cfg *Config) (sinks []*lineSink) {
	if cfg.StatsdAddress != "" {
		sinks = append(sinks, &lineSink{setting: "statsd_address", network: "udp", address: cfg.StatsdAddress})
	}
	if cfg.StatsiteAddress != "" {
		sinks = append(sinks, &lineSink{setting: "statsite_address", network: "tcp", address: cfg.StatsiteAddress})
	}
	if cfg.DogstatsdAddress != "" {
		s := &lineSink{setting: "dogstatsd_addr", network: "udp", address: cfg.DogstatsdAddress, tagged: true}
		if path, ok := strings.CutPrefix(s.address, "unix://"); ok {
			s.network, s.address = "unixgram", path
		}
		for _, tag := range cfg.DogstatsdTags {
			s.tags += "," + clean(tag, ":")
		}
		sinks = append(sinks, s)
	}
	return sinks
}

// SetGaugeWithLabels implements metrics.MetricSink.
func (s *lineSink) SetGaugeWithLabels(key []string, v float32, labels []metrics.Label) {
	s.line(key, v, "g", labels)
}

// IncrCounterWithLabels implements metrics.MetricSink.
func (s *lineSink) IncrCounterWithLabels(key []string, v float32, labels []metrics.Label) {
	s.line(key, v, "c", labels)
}

func (s *lineSink) line(key []string, v float32, kind string, labels []metrics.Label) {
	b := s.lines
	for i, part := range key {
		if i > 0 {
			b = append(b, '.')
		}
		b = append(b, clean(part, "")...)
	}
	tags := s.tags
	for _, l := range labels {
		if s.tagged {
			tags += "," + clean(l.Name, "") + ":" + clean(l.Value, ":")
		} else {
			b = append(append(b, '.'), clean(l.Value, "")...)
		}
	}
	// statsd takes a gauge with a sign as a change of what it has: 0 comes first.
	if kind == "g" && v < 0 && !s.tagged {
		name := string(b[len(s.lines):])
		b = append(append(b, ":0|g\n"...), name...)
	}
	b = append(b, ':')
	b = strconv.AppendFloat(b, float64(v), 'f', -1, 32)
	b = append(append(b, '|'), kind...)
	if tags != "" {
		b = append(append(b, "|#"...), tags[1:]...)
	}
	s.lines = append(b, '\n')
}

// clean returns s without what has a meaning in a line, but for those of but.
func clean(s, but string) string {
	return strings.Map(func(r rune) rune {
		if r <= ' ' || r == 0x7f || strings.ContainsRune(":|@#,", r) && !strings.ContainsRune(but, r) {
			return '_'
		}
		return r
	}, s)
}

// send sends the lines, or drops them where that fails.
func (s *lineSink) send(ctx context.Context) error {
	lines := s.lines
	s.lines = lines[:0]
	if len(lines) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, sendWithin)
	defer cancel()
	// For each time anew: who has another address now is found.
	conn, err := new(net.Dialer).DialContext(ctx, s.network, s.address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetWriteDeadline(time.Now().Add(sendWithin)); err != nil {
		return err
	}
	for len(lines) > 0 {
		n := len(lines)
		if s.network != "tcp" {
			n = packet(lines)
		}
		if _, err := conn.Write(lines[:n]); err != nil {
			return err
		}
		lines = lines[n:]
	}
	return nil
}

// packet returns how many bytes of lines are a datagram: whole lines.
func packet(lines []byte) int {
	n := 0
	for i := range lines {
		if lines[i] != '\n' {
			continue
		}
		if i+1 > maxPacket && n > 0 {
			break
		}
		if n = i + 1; n > maxPacket { // a long line goes alone
			break
		}
	}
	return n
}

// pushAll hands what has been recorded to go-metrics, and so to the sinks: gauges, and
// what has come to counters.
func (r *Recorder) pushAll(m *metrics.Metrics) {
	for k, s := range r.all {
		if s.seen != r.collection {
			continue // gone
		}
		labels := make([]metrics.Label, len(k.m.labels))
		for i, name := range k.m.labels {
			labels[i] = metrics.Label{Name: name, Value: k.labels[i]}
		}
		switch k.m.kind {
		case Counter:
			if d := increment(s.base+s.last, &s.pushed); d > 0 {
				m.IncrCounterWithLabels(k.m.parts(), d, labels)
			}
		case Gauge:
			m.SetGaugeWithLabels(k.m.parts(), float32(s.value), labels)
		case Histogram:
			total := s.hist.total()
			since := total.Since(&s.hist.pushed)
			s.hist.pushed = total
			if d := increment(total.Count(), &s.pushed); d > 0 {
				m.IncrCounterWithLabels(k.m.parts("count"), d, labels)
			}
			if since.Count() == 0 {
				continue
			}
			for _, q := range quantiles {
				m.SetGaugeWithLabels(k.m.parts(q.name), float32(since.Quantile(q.q).Seconds()), labels)
			}
		}
	}
}

// quantiles are those of a histogram's that are pushed.
var quantiles = []struct {
	name string
	q    float64
}{{"p50", .5}, {"p90", .9}, {"p99", .99}}

// increment returns what has come to a total since pushed, which it brings up to date.
// go-metrics takes it as a float32: what rounding leaves over comes with the next one.
func increment(total uint64, pushed *uint64) float32 {
	d := float32(total - *pushed)
	if float64(d) > float64(total-*pushed) {
		d = float32(float64(d) * (1 - 1.0/(1<<22)))
	}
	*pushed += uint64(d)
	return d
}

// parts returns the name's, and then more, in a slice without room: go-metrics appends.
func (m *Metric) parts(more ...string) []string {
	p := append(strings.Split(m.name, "."), more...)
	return p[:len(p):len(p)]
}
