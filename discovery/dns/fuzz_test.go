package dns

import (
	"slices"
	"testing"

	wire "github.com/miekg/dns"
)

// fuzzed are the questions of the fuzz targets.
var fuzzed = []question{
	{"web.test.", wire.TypeA}, {"web.test.", wire.TypeAAAA}, {"_web._tcp.test.", wire.TypeSRV},
}

func packed(f *testing.F, m *wire.Msg) []byte {
	f.Helper()
	m.Id = 0x1234
	b, err := m.Pack()
	if err != nil {
		f.Fatal(err)
	}
	return b
}

// FuzzAnswer takes packets for answers: whatever comes, nothing panics, and what is
// believed is an answer to the question, with records that can be dialled.
func FuzzAnswer(f *testing.F) {
	for i, q := range fuzzed {
		for _, m := range []*wire.Msg{
			message(q, 0, rr("web.test. 60 IN A 192.0.2.1", "web.test. 60 IN AAAA 2001:db8::1", "_web._tcp.test. 60 IN SRV 1 2 80 a.test."), nil,
				rr("a.test. 60 IN A 192.0.2.1")),
			message(q, 0, rr("web.test. 60 IN CNAME a.test.", "a.test. 60 IN CNAME web.test."), nil, nil),
			message(q, 0, rr("web.test. 60 IN CNAME web.test."), nil, nil),
			message(q, wire.RcodeNameError, nil, rr(soa60), nil),
			message(q, wire.RcodeServerFailure, nil, nil, nil),
			message(q, 0, nil, rr("test. 9 IN NS ns.test."), nil),
			message(q, 0, rr("_web._tcp.test. 60 IN SRV 0 0 0 ."), nil, nil),
			message(q, 0, rr("web.test. 60 IN AAAA fe80::1", "web.test. 60 IN A 0.0.0.0"), nil, nil),
		} {
			b := packed(f, m)
			f.Add(uint8(i), b)
			f.Add(uint8(i), b[:len(b)-3]) // cut
			// A name that points to itself, behind the question.
			loop := append(slices.Clone(b[:headerSize+len(q.name)+1+4]), 0xc0, byte(headerSize+len(q.name)+1+4), 0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 1, 2, 3, 4)
			loop[7] = 1
			f.Add(uint8(i), loop)
		}
	}
	f.Add(uint8(0), []byte{0x12, 0x34, 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0, 0xc0, 0x0c, 0, 1, 0, 1}) // the question itself points to itself
	f.Add(uint8(0), []byte{})
	f.Fuzz(func(t *testing.T, n uint8, b []byte) {
		q := fuzzed[int(n)%len(fuzzed)]
		query := []byte{0x12, 0x34}
		if matches(b, query, q) != matching {
			return
		}
		m, err := unpack(b)
		if err != nil {
			return
		}
		a, _ := judge(m, q)
		if (a.class == found) != (len(a.addrs)+len(a.srvs) > 0) || (a.class == found) != (a.err == nil) {
			t.Fatalf("%v with %d records and %v", a.class, len(a.addrs)+len(a.srvs), a.err)
		}
		if a.class != found {
			return
		}
		if !m.Response || m.Opcode != wire.OpcodeQuery || m.Rcode != wire.RcodeSuccess && m.Rcode != wire.RcodeNameError {
			t.Fatalf("taken for an answer: %v", m)
		}
		var targets []target
		for _, s := range a.srvs {
			if s.port == 0 || s.target == "." {
				t.Fatalf("an SRV record that can't be dialled: %v", s)
			}
			targets = append(targets, target{s, a.hints[s.target]})
		}
		for i, ip := range a.addrs {
			if undiallable(ip) != "" || i > 0 && !a.addrs[i-1].Less(ip) {
				t.Fatalf("addresses %v", a.addrs)
			}
		}
		endpoints(targets)
		if a.ttl < 0 || len(a.left) > maxLeft+1 {
			t.Fatalf("ttl %v, %d left out", a.ttl, len(a.left))
		}
	})
}

// FuzzResolvConf reads files: nothing panics, and the limits hold.
func FuzzResolvConf(f *testing.F) {
	f.Add([]byte("nameserver 192.0.2.1\nsearch a.test b.test\noptions ndots:2 timeout:3 attempts:1 use-vc\n"))
	f.Add([]byte("nameserver fe80::1%eth0\nnameserver [::1]:53\ndomain .\noptions ndots:-1 timeout:99999999999999999999"))
	f.Add([]byte("nameserver\x00\n;\n#\nsearch ..\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		rc := parseResolvConf(text)
		if len(rc.servers) > maxServers || len(rc.search) > maxSearch || rc.ndots < 0 || rc.ndots > maxNDots ||
			rc.timeout < 0 || rc.timeout > maxTimeout || rc.attempts < 0 || rc.attempts > maxAttempts || len(rc.refused) > maxServers {
			t.Fatalf("%+v", rc)
		}
		if err := checkServers(rc.servers); err != nil {
			t.Fatal(err)
		}
		for _, s := range rc.search {
			if again, err := absolute(s); err != nil || again != s {
				t.Fatalf("search domain %q: %v", s, err)
			}
		}
	})
}
