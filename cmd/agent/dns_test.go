package main

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/discovery/dns"
)

// Everything that a file can say reaches the client, and the client has nothing that
// no file can set.
func TestDNSSettings(t *testing.T) {
	cfg, err := loadErr(t, `
dns {
  nameservers = ["192.0.2.53", "[2001:db8::53]:5353"]
  resolv_conf = "/run/resolv.conf"
  search      = ["example.org"]
  ndots       = 2
  stagger     = "100ms"
  timeout     = "1s"
  attempts    = 3
  tcp         = true
}
cluster "web" {
  discovery "dns" {
    name          = "_web._tcp.example.org."
    type          = "srv"
    targets       = "aaaa"
    nameservers   = ["127.0.0.1:8600"]
    tcp           = true
    min_ttl       = "2s"
    max_ttl       = "1m"
    refresh       = "10s"
    refresh_limit = "3s"
    min_backoff   = "4s"
    max_backoff   = "5s"
    misses        = 3
    hold_nxdomain = "1s"
    hold_nodata   = "2s"
    hold_refused  = "3s"
    hold_timeout  = "4s"
  }
  discovery "dns" {
    name = "web"
    type = "a"
    port = 80
  }
}
`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := dnsConfig(cfg.DNS)
	want := dns.Config{
		Nameservers: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.53:53"), netip.MustParseAddrPort("[2001:db8::53]:5353")},
		ResolvConf:  "/run/resolv.conf", Search: []string{"example.org"}, NDots: 2,
		Stagger: 100 * time.Millisecond, Timeout: time.Second, Attempts: 3, TCP: true,
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("Config is %+v, %v; want %+v", got, err, want)
	}
	// What a control plane alone can say.
	control, err := dnsQuery(config.Discovery{PreferFamily: "aaaa", Logical: true, Jitter: time.Second})
	if err != nil || control.Prefer != dns.AAAA || !control.Logical || control.Jitter != time.Second {
		t.Errorf("Query is %+v, %v", control, err)
	}
	set := map[string]bool{"Logger": true, "Panics": true, "Prefer": true, "Logical": true, "Jitter": true}
	nonzero(set, got)
	var queries []dns.Query
	for _, d := range cfg.Clusters[0].Discovery {
		q, err := dnsQuery(d)
		if err != nil {
			t.Fatal(err)
		}
		queries = append(queries, q)
		nonzero(set, q)
	}
	for _, typ := range []reflect.Type{reflect.TypeFor[dns.Config](), reflect.TypeFor[dns.Query]()} {
		for i := range typ.NumField() {
			if !set[typ.Field(i).Name] {
				t.Errorf("%s.%s can't be set", typ.Name(), typ.Field(i).Name)
			}
		}
	}
	wantQueries := []dns.Query{{
		Name: "_web._tcp.example.org.", Type: dns.SRV, Targets: dns.AAAA,
		Nameservers: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:8600")}, TCP: true,
		MinTTL: 2 * time.Second, MaxTTL: time.Minute, Refresh: 10 * time.Second, RefreshLimit: 3 * time.Second,
		MinBackoff: 4 * time.Second, MaxBackoff: 5 * time.Second, Misses: 3,
		Hold: dns.Hold{NXDomain: time.Second, NoData: 2 * time.Second, Refused: 3 * time.Second, Timeout: 4 * time.Second},
	}, {
		Name: "web", Type: dns.A, Port: 80, MinTTL: time.Second, MaxTTL: time.Hour, Refresh: 5 * time.Second, RefreshLimit: 5 * time.Second,
		MinBackoff: time.Second, MaxBackoff: 30 * time.Second, Misses: 2, Hold: dns.DefaultHold(),
	}}
	if !reflect.DeepEqual(queries, wantQueries) {
		t.Errorf("queries are %+v, want %+v", queries, wantQueries)
	}
	if !cfg.UsesDNS() || (&config.Config{}).UsesDNS() {
		t.Error("UsesDNS is wrong")
	}
}

// validate tells the place of each mistake that only the client knows.
func TestDNSMistakes(t *testing.T) {
	_, err := loadErr(t, `
dns {
  nameservers = ["192.0.2.53", "fe80::1%eth0"]
  search      = ["a..b"]
}
cluster "web" {
  discovery "dns" {
    name = "web.example.org"
    type = "a"
  }
  discovery "dns" {
    name    = "192.0.2.1"
    type    = "aaaa"
    port    = 80
    targets = "a"
  }
  discovery "dns" {
    name        = "_web._tcp.bücher.example"
    type        = "srv"
    port        = 80
    min_ttl     = "2h"
    max_backoff = "100ms"
    nameservers = ["ns.example.org"]
  }
}
`)
	if err == nil {
		t.Fatal("no mistakes")
	}
	for _, want := range []string{
		`:3:17: nameservers: nameserver "fe80::1%eth0": an IPv6 zone is not supported`,
		`:4:17: search: "a..b": is no domain name`,
		`:7:13: port: is missing: only type "srv" knows ports`,
		`:12:15: name: 192.0.2.1 is an address`,
		`:15:15: targets: is for type "srv"`,
		`:18:19: name: "_web._tcp.bücher.example": has characters other than visible ASCII ones; write it in punycode`,
		`:20:19: port: is for addresses`,
		`:21:19: min_ttl: from 2h0m0s to 1h0m0s (max_ttl) is no range`,
		`min_backoff: from 1s to 100ms (max_backoff) is no range`,
		`:23:19: nameservers: nameserver "ns.example.org": want an IP address`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not among the mistakes:\n%v", want, err)
		}
	}
}
