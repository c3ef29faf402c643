package consul

import (
	"encoding/base64"
	"testing"
	"time"
)

// A token that is set anew is for the requests from then on, and who failed by the
// old one tries at once. Nothing that is known is forgotten.
func TestSetAccess(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, _ := tokenRig(t, "token-one", "token-two")
		access := r.c.cfg
		set := func(token, auth string) {
			t.Helper()
			access.TokenFile, access.Token, access.HTTPAuth = "", token, auth
			if err := r.c.SetAccess(access); err != nil {
				t.Fatal(err)
			}
			r.pass(16 * time.Second) // the pace of one that has just failed
		}
		web := r.web()
		web.want(t, "failing")
		set("token-one", "")
		web.want(t, "fresh 1 2")
		r.pass(time.Minute)
		waits := r.s.count()
		access.HTTPAuth = "user:x"
		if err := r.c.SetAccess(access); err != nil { // a query that waits begins anew
			t.Fatal(err)
		}
		r.pass(time.Second)
		if r.s.count() == waits {
			t.Error("who waits waits on by what was in force before")
		}
		r.set(func(s *scripted) { s.tokens = map[string]bool{"token-two": true} })
		r.change(func(c *catalog) { c.add("web", 3) })
		r.pass(16 * time.Second)
		web.wantFail(t, "the token is refused")
		before := r.s.count()
		set("token-two", "user:"+secretPassword)
		web.want(t, "fresh 1 2 3")
		for _, c := range r.s.since(before, "") {
			if want := "Basic " + base64.StdEncoding.EncodeToString([]byte("user:"+secretPassword)); c.token != "token-two" || c.auth != want {
				t.Errorf("%v: token %q, authorization %q", c, c.token, c.auth)
			}
		}
		r.secret = append(r.secret, base64.StdEncoding.EncodeToString([]byte("user:"+secretPassword)))

		bad := access
		bad.Token = "two words"
		if err := r.c.SetAccess(bad); err == nil {
			t.Error("a token with a blank is set")
		}
		r.change(func(c *catalog) { c.add("web", 4) })
		web.want(t, "fresh 1 2 3 4")
	})
}

func TestSameButAccess(t *testing.T) {
	base := Config{Address: "a:1", Token: "x", WaitTime: time.Second}
	for i, change := range []func(*Config){
		func(c *Config) { c.Token = "y" }, func(c *Config) { c.TokenFile = "/y" }, func(c *Config) { c.HTTPAuth = "y" },
		func(c *Config) { c.CAFile = "/y" }, func(c *Config) { c.CAPath = "/y" }, func(c *Config) { c.CertFile = "/y" },
		func(c *Config) { c.KeyFile = "/y" }, func(c *Config) { c.TLSServerName = "y" }, func(c *Config) { c.InsecureSkipVerify = true },
		func(*Config) {},
	} {
		next := base
		change(&next)
		if !base.SameButAccess(next) || !next.SameButAccess(base) {
			t.Errorf("change %d is more than access", i)
		}
	}
	for i, change := range []func(*Config){
		func(c *Config) { c.Address = "b:1" }, func(c *Config) { c.SSL = true }, func(c *Config) { c.Datacenter = "y" },
		func(c *Config) { c.Namespace = "y" }, func(c *Config) { c.WaitTime = 2 * time.Second }, func(c *Config) { c.MaxStale = 1 },
	} {
		next := base
		change(&next)
		if base.SameButAccess(next) {
			t.Errorf("change %d is access only", i)
		}
	}
}
