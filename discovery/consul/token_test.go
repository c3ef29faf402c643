package consul

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// tokenRig returns a rig whose client reads its token from the file, which is
// not there yet, of a Consul that knows the tokens.
func tokenRig(t *testing.T, tokens ...string) (r *rig, file string) {
	file = filepath.Join(t.TempDir(), "token")
	r = newRig(t, addWeb, func(c *Config) {
		c.Token, c.TokenFile = "", file
	})
	r.s.tokens = map[string]bool{}
	for _, token := range tokens {
		r.s.tokens[token] = true
	}
	return r, file
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// With a token file no request goes without a token, whatever the file holds.
func TestTokenFileComesLater(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, file := tokenRig(t, "token-one")
		web := r.web()
		web.want(t, "failing")
		web.wantFail(t, "token file: stat "+file, "no such file", "no request is made without a token")
		for _, bad := range []struct{ text, want string }{
			{"", "is empty; no request is made without a token"},
			{" \n\t\n", "is empty; no request is made without a token"},
			{"two words", "does not hold a token"},
			{"token\x00one", "is not printable ASCII"},
			{"töken", "is not printable ASCII"},
			{strings.Repeat("x", 70_000), "is larger than"},
			{strings.Repeat(" ", 70_000) + "x", "token file"},
		} {
			write(t, file, bad.text)
			r.pass(21 * time.Second)
			web.want(t, "failing")
			web.wantFail(t, bad.want)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(file, 0o700); err != nil {
			t.Fatal(err)
		}
		r.pass(21 * time.Second)
		web.wantFail(t, "token file")
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		if n := r.s.count(); n != 0 {
			t.Errorf("%d requests without a token: %v", n, r.s.since(0, ""))
		}
		write(t, file, "\n token-one \n")
		r.pass(21 * time.Second)
		web.want(t, "fresh 1 2")
	})
}

// A token that changes under a blocking query begins with an index of its own.
func TestTokenChangesUnderABlockingQuery(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, file := tokenRig(t, "token-one", "token-two")
		write(t, file, "token-one")
		web := r.web()
		r.pass(30 * time.Second)
		write(t, file, "token-two")
		before := r.s.count()
		r.change(func(c *catalog) { c.add("web", 3) })
		web.want(t, "fresh 1 2 3")
		calls := r.s.since(before, "")
		if len(calls) != 2 || calls[0].token != "token-two" || calls[0].index() != "" || calls[1].token != "token-two" || calls[1].index() == "" {
			t.Errorf("after the change: got %v with tokens, want one that does not block and one that does, by the new token", calls)
		}
	})
}

// A file that goes away keeps what is known; it does not lead to requests
// without a token, and its return ends the trouble.
func TestTokenFileGoesAway(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, file := tokenRig(t, "token-one")
		write(t, file, "token-one")
		web := r.web()
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		r.change(func(c *catalog) { c.add("web", 3) })
		r.pass(time.Second)
		web.want(t, "stale 1 2 3")
		web.wantFail(t, "no such file")
		r.change(func(c *catalog) { c.add("web", 4) })
		write(t, file, "token-one")
		r.pass(2 * time.Second)
		web.want(t, "fresh 1 2 3 4")
		for _, c := range r.s.since(0, "") {
			if c.token != "token-one" {
				t.Errorf("%v with the token %q", c, c.token)
			}
		}
	})
}

// "-" is a token as any other, and not the word for none.
func TestTokenIsNotTheWordForNone(t *testing.T) {
	for _, odd := range []string{"-", noToken} {
		bubble(t, func(t *testing.T) {
			r, file := tokenRig(t)
			write(t, file, odd)
			r.web()
			r.pass(time.Minute)
			for _, c := range r.s.since(0, "") {
				if c.token != odd {
					t.Errorf("%v with the token %q, want %q", c, c.token, odd)
				}
			}
		})
	}
}

// Without any token there is no header for one, and Consul's hints are told.
func TestNoToken(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, addWeb, func(c *Config) { c.Token = "" })
		web := r.web()
		web.want(t, "fresh 1 2")
		r.change(func(*catalog) { r.s.hook = func(call) *reply { return answers(403, "Permission denied") } })
		r.change(func(c *catalog) { c.add("web", 3) })
		r.pass(2 * time.Second)
		web.wantFail(t, `a request without a token is refused (403 "Permission denied"): set token_file or token`)
		for _, c := range r.s.since(0, "") {
			if c.token != "" {
				t.Errorf("%v with the token %q", c, c.token)
			}
		}
	})
}

// The process's environment and its variables for Consul's tools do not reach
// the requests.
func TestEnvironmentIsNotRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	write(t, file, "token-of-the-environment")
	for k, v := range map[string]string{
		"CONSUL_HTTP_ADDR": "evil.example:1", "CONSUL_HTTP_TOKEN": "token-of-the-environment", "CONSUL_HTTP_TOKEN_FILE": file,
		"CONSUL_HTTP_AUTH": "evil:word", "CONSUL_HTTP_SSL": "true", "CONSUL_HTTP_SSL_VERIFY": "false",
		"CONSUL_CACERT": "/nowhere", "CONSUL_CAPATH": "/nowhere", "CONSUL_CLIENT_CERT": "/nowhere", "CONSUL_CLIENT_KEY": "/nowhere",
		"CONSUL_TLS_SERVER_NAME": "evil",
	} {
		t.Setenv(k, v)
	}
	bubble(t, func(t *testing.T) {
		r := newRig(t, addWeb, func(c *Config) { c.Token, c.HTTPAuth = "", "" })
		r.web().want(t, "fresh 1 2")
		for _, c := range r.s.since(0, "") {
			if c.host != "127.0.0.1:8500" || c.token != "" || c.auth != "" {
				t.Errorf("%v: to %q with the token %q and the authorization %q", c, c.host, c.token, c.auth)
			}
		}
	})
}

// A server that says back what it was sent does not get it into our errors.
func TestEchoedSecretsAreNotTold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, addWeb, nil)
		r.s.hook = func(c call) *reply {
			return answers(500, "you said X-Consul-Token: "+c.token+" and Authorization: "+c.auth+" with "+secretPassword)
		}
		web := r.web()
		web.wantFail(t, "you said X-Consul-Token: <secret>")
		r.run(func(ctx context.Context) { r.c.WatchListeners(ctx, func(l Listeners) { r.told(l.Err) }) })
		r.run(func(ctx context.Context) { r.c.Register(ctx, agentService) })
		r.pass(time.Minute)
		r.change(func(*catalog) {
			r.s.hook = func(c call) *reply {
				return answers(200, `[{"Checks":[{"Definition":{"Interval":"`+c.token+`"}}]}]`)
			}
		})
		r.pass(time.Minute)
		web.want(t, "failing")
		web.wantFail(t, "<secret>")
	})
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil, nil)
		r.web()
		for _, c := range r.s.since(0, "") {
			if c.auth == "" {
				t.Errorf("%v: no authorization, although http_auth is set", c)
			}
		}
	})
}
