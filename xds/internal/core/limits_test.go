package core

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// send returns the request of the last Send among the effects.
func send(t *testing.T, c *Core) Request {
	t.Helper()
	c.Flush()
	effects := c.Take()
	for _, e := range slices.Backward(effects) {
		if s, ok := e.(Send); ok {
			return s.Request
		}
	}
	t.Fatalf("no request among %v", effects)
	return Request{}
}

// What is in force and what was refused is there for dumps, within a limit of its own.
func TestDump(t *testing.T) {
	c := New(1, testTypes()...)
	c.maxRefused = 10
	c.SubscribeAll("cds")
	c.Connected(0, StateOfTheWorld)
	respond := func(n int, bodies ...string) (dump []ResourceState) {
		r := Response{Type: "cds", Version: fmt.Sprint("v", n), Nonce: "n", Mark: int64(n)}
		for _, b := range bodies {
			r.Resources = append(r.Resources, Resource{Type: "cds", Body: []byte(b)})
		}
		c.Response(0, r)
		return c.Dump()[0].Resources
	}
	check := func(got []ResourceState, want ...ResourceState) {
		t.Helper()
		for i := range want {
			want[i].Subscribed = true
		}
		if !slices.Equal(got, want) {
			t.Errorf("dump\n%+v, want\n%+v", got, want)
		}
	}
	check(respond(1, "a=1", "b=!odd"),
		ResourceState{Name: "a", State: "acked", Version: "v1", Body: "a=1"},
		ResourceState{Name: "b", State: "nacked", Error: "odd", Refused: "b=!odd", Nack: Nack{"v1", "odd", 1}})
	// Another one is refused, for which there is no room; then there is.
	check(respond(2, "a=!no", "b=!odd"),
		ResourceState{Name: "a", State: "nacked", Version: "v1", Body: "a=1", Error: "no", Nack: Nack{"v2", "no", 2}},
		ResourceState{Name: "b", State: "nacked", Error: "odd", Refused: "b=!odd", Nack: Nack{"v2", "odd", 2}})
	check(respond(3, "a=!no", "b=2"),
		ResourceState{Name: "a", State: "nacked", Version: "v1", Body: "a=1", Error: "no", Nack: Nack{"v3", "no", 3}},
		ResourceState{Name: "b", State: "acked", Version: "v3", Body: "b=2", Nack: Nack{"v2", "odd", 2}})
	check(respond(4, "a=!no", "b=2"),
		ResourceState{Name: "a", State: "nacked", Version: "v1", Body: "a=1", Error: "no", Refused: "a=!no", Nack: Nack{"v4", "no", 4}},
		ResourceState{Name: "b", State: "acked", Version: "v4", Body: "b=2", Nack: Nack{"v2", "odd", 2}})
	check(respond(5))
	if n := c.types[0].badBytes; n != 0 {
		t.Errorf("%d bytes of what was refused are held for nobody", n)
	}
}

// What is held has a limit in number and in bytes. What is over it is refused by
// name as far as that costs nothing, and what is held stays.
func TestHeldIsBounded(t *testing.T) {
	for _, variant := range []Variant{StateOfTheWorld, Delta} {
		c := New(1, testTypes()...)
		c.maxResources, c.maxBytes = 3, 37
		c.SubscribeAll("cds")
		c.Connected(0, variant)
		send(t, c)
		c.Sent(0)
		respond := func(bodies ...string) string {
			r := Response{Type: "cds", Version: "v", Nonce: "n"}
			for _, b := range bodies {
				name, _, _ := strings.Cut(b, "=")
				r.Resources = append(r.Resources, Resource{Type: "cds", Name: name, Version: "1", Body: []byte(b)})
			}
			c.Response(0, r)
			detail := send(t, c).Error
			c.Sent(0)
			return detail
		}
		if got := respond("a=1", "b=1", "c=1"); got != "" {
			t.Errorf("%v: three: %q", variant, got)
		}
		if got := respond("a=1", "b=1", "c=1", "d=1", "e=1"); got != "cds more than 3 resources; more than 3 resources" {
			t.Errorf("%v: five: %q", variant, got)
		}
		if got := respond("a=1", "b="+strings.Repeat("1", 24), "c=1"); got != `cds "b": more than 37 bytes of resources` {
			t.Errorf("%v: too long: %q", variant, got)
		}
		if got := respond("a="+strings.Repeat("1", 22), "b=1", "c=1"); got != "" {
			t.Errorf("%v: as long as may be: %q", variant, got)
		}
		if n := len(c.types[0].res); n != 3 || c.types[0].bytes != 36 {
			t.Errorf("%v: %d resources of %d bytes", variant, n, c.types[0].bytes)
		}
	}
}

// What else a server can make long counts too: names, versions of what is held and
// of what is refused, and what is kept of a refused body. Names have a limit of
// their own.
func TestAllThatIsKeptIsBounded(t *testing.T) {
	const limit = 100_000
	partial := func(body []byte) (string, any, error) {
		name, value, _ := strings.Cut(string(body), "=")
		if strings.HasPrefix(value, "!") {
			return name, value, errors.New("bad")
		}
		return name, value, nil
	}
	long := strings.Repeat("x", 3000)
	for what, resource := range map[string]func(i int) Resource{
		"names": func(i int) Resource {
			name := fmt.Sprint(i, long)
			return Resource{Name: name, Version: "1", Body: []byte(name + "=!")}
		},
		"versions": func(i int) Resource {
			return Resource{Name: fmt.Sprint(i), Version: fmt.Sprint(i, long), Body: fmt.Append(nil, i, "=1")}
		},
		"refused versions": func(i int) Resource {
			return Resource{Name: fmt.Sprint(i), Version: fmt.Sprint(i, long), Body: fmt.Append(nil, i, "=!")}
		},
		"parts": func(i int) Resource {
			return Resource{Name: fmt.Sprint(i), Version: "1", Body: fmt.Append(nil, i, "=!", long)}
		},
	} {
		c := New(1, Type{"cds", true, partial})
		c.maxBytes = limit
		c.SubscribeAll("cds")
		c.Connected(0, Delta)
		for i := range 200 {
			r := resource(i)
			r.Type = "cds"
			c.Response(0, Response{Type: "cds", Nonce: "n", Resources: []Resource{r}})
		}
		kept := 0
		for _, r := range c.types[0].res {
			kept += len(r.name) + len(r.body) + len(r.version) + len(r.refused.version)
			if r.part != nil {
				kept += len(r.part.(string))
			}
		}
		if kept > limit || kept < limit/2 {
			t.Errorf("%s: %d bytes are kept of 600,000, want at most %d", what, kept, limit)
		}
	}
}

// A name that is too long is none: the resource is refused by its place, nothing of
// it is kept, and since it may be any, nothing is deleted.
func TestLongName(t *testing.T) {
	for _, variant := range []Variant{StateOfTheWorld, Delta} {
		c := New(1, testTypes()...)
		c.SubscribeAll("cds")
		c.Connected(0, variant)
		send(t, c)
		c.Sent(0)
		respond := func(names ...string) string {
			r := Response{Type: "cds", Version: "v", Nonce: "n"}
			for _, name := range names {
				r.Resources = append(r.Resources, Resource{Type: "cds", Name: name, Version: "1", Body: []byte(name + "=1")})
			}
			c.Response(0, r)
			detail := send(t, c).Error
			c.Sent(0)
			return detail
		}
		longest := strings.Repeat("n", MaxName)
		if got := respond("a", longest); got != "" {
			t.Errorf("%v: the longest name: %s", variant, got)
		}
		if got := respond("b", longest+"n"); got != "cds resource 1 has a name of 4097 bytes: want at most 4096" {
			t.Errorf("%v: a longer one: %s", variant, got)
		}
		if n := len(c.types[0].res); n != 3 {
			t.Errorf("%v: %d resources are kept, want 3", variant, n)
		}
	}
}

// A version that is long is not copied for every resource that is refused in it.
func TestLongVersionOfManyRefused(t *testing.T) {
	c := New(1, testTypes()...)
	c.SubscribeAll("cds")
	c.Connected(0, StateOfTheWorld)
	r := Response{Type: "cds", Version: strings.Repeat("v", 1<<20), Nonce: "n"}
	for i := range 1000 {
		r.Resources = append(r.Resources, Resource{Type: "cds", Body: fmt.Append(nil, i, "=!bad")})
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	c.Response(0, r)
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 32<<20 {
		t.Errorf("%d bytes for a version of 1 MiB", n)
	}
	for _, e := range c.Take() {
		if j, ok := e.(Judged); ok && len(j.Version) > 2*maxReason {
			t.Errorf("%d bytes of version are told", len(j.Version))
		}
	}
}

// Whatever a server says, what is told of it is short: reasons, errors, types.
func TestWordsAreBounded(t *testing.T) {
	long := strings.Repeat("ä", 1<<20)
	for _, variant := range []Variant{StateOfTheWorld, Delta} {
		c := New(1, testTypes()...)
		c.Subscribe("eds", "a")
		c.Subscribe("eds", "b")
		c.Connected(0, variant)
		c.Flush()
		c.Sent(0)
		c.Response(0, Response{Type: "eds", Version: "1", Nonce: "1",
			Resources: []Resource{
				{Type: "eds", Name: "a", Version: "1", Body: []byte("a=!" + long)},
				{Type: "eds", Name: long, Version: "1", Body: []byte(long + "=1")},
				{Type: "eds", Name: "a" + long, Version: "1", Bare: true, TTL: 1},
			},
			Errors: []ResourceError{{"b", 5, long}},
		})
		c.Response(0, Response{Type: long, Version: "1", Nonce: "1"})
		c.Flush()
		told := 0
		for _, e := range c.Take() {
			told++
			if n := len(fmt.Sprint(e)); n > 10_000 {
				t.Errorf("%v: %T has %d bytes", variant, e, n)
			}
		}
		dump := c.Dump()
		for _, ty := range dump {
			for i := range ty.Resources {
				ty.Resources[i].Refused = "" // the resource itself, which has a bound of its own
			}
		}
		if n := len(fmt.Sprint(dump)) + len(fmt.Sprint(c.unknown)); n > 10_000 || told < 5 {
			t.Errorf("%v: %d bytes are kept", variant, n)
		}
	}
}

// A server that floods and does not read is owed a bounded number of answers,
// the newest, whatever its nonces are.
func TestAnswersAreBounded(t *testing.T) {
	for _, nonce := range []int{1, maxNonces / 3} {
		c := New(1, testTypes()...)
		c.SubscribeAll("cds")
		c.Connected(0, Delta)
		c.Flush() // is never sent
		var last string
		for i := range 10 * maxAnswers {
			last = fmt.Sprint(i, strings.Repeat("x", nonce))
			c.Response(0, Response{Type: "cds", Nonce: last})
			c.Flush()
		}
		s := c.links[0].subs[0]
		bytes := 0
		for _, a := range s.answers {
			bytes += len(a.nonce)
		}
		if len(s.answers) > maxAnswers || bytes > maxNonces || s.answers[len(s.answers)-1].nonce != last {
			t.Errorf("%d answers of %d bytes", len(s.answers), bytes)
		}
	}
}

// The answer to one resource of many takes no look at the names of the others.
func TestAnswerTakesNoList(t *testing.T) {
	c := New(1, testTypes()...)
	for i := range 1000 {
		c.Subscribe("eds", fmt.Sprint(i))
	}
	c.Connected(0, Delta)
	send(t, c)
	c.Sent(0)
	c.Take()
	list := c.types[1].list
	n := 0
	allocs := testing.AllocsPerRun(100, func() {
		n++
		c.Response(0, Response{Type: "eds", Nonce: "n", Resources: []Resource{{Type: "eds", Name: "7", Version: "v", Body: fmt.Append(nil, "7=", n)}}})
		c.Flush()
		c.Sent(0)
		c.Take()
	})
	if allocs > 40 {
		t.Errorf("%v allocations for one of 1000", allocs)
	}
	if &list[0] != &c.types[1].list[0] {
		t.Error("the list of names was made anew")
	}
}

// FuzzResponse: any responses leave the core in one piece: every answer has a
// nonce that came, and what was told is what is held.
func FuzzResponse(f *testing.F) {
	f.Add(true, "cds v1 n1 a@1=1 b@2~9=2\ncds v2 n2 -a b@2~9")
	f.Add(true, "cds v1 n1 a@1=!bad -a -b -b\ncds v1 n2 a@1=!bad")
	f.Add(false, "cds v1 n1 a=1 b=1 a=2 ?junk\neds v1 n2 a=1 !b:5:gone\nsds v1 n3 x=1")
	f.Add(false, "cds v1 n1 a@~9 =x eds/a=1\ncds v1 n1\ncds v2 n2 a@7=>?")
	f.Fuzz(func(t *testing.T, delta bool, script string) {
		variant := StateOfTheWorld
		if delta {
			variant = Delta
		}
		c := New(1, testTypes()...)
		c.SubscribeAll("cds")
		c.Subscribe("eds", "a")
		c.Subscribe("eds", "b")
		c.Connected(0, variant)
		nonces := map[string]bool{"": true}
		view := map[string]any{}
		for line := range strings.Lines(script) {
			f := strings.Fields(line)
			if len(f) < 3 {
				continue
			}
			f = slices.DeleteFunc(f, func(w string) bool { // what the scenarios' language can't say
				e := strings.SplitN(w, ":", 3)
				return w[0] == '!' && (len(e) < 3 || strings.Trim(e[1], "0123456789") != "" || e[1] == "" || len(e[1]) > 9)
			})
			if len(f) < 3 {
				continue
			}
			r := parseResponse(t, f)
			nonces[r.Nonce] = true
			c.Response(0, r)
			c.Flush()
			c.Sent(0)
			for _, e := range c.Take() {
				switch e := e.(type) {
				case Send:
					if !nonces[e.Request.Nonce] {
						t.Errorf("nonce %q never came", e.Request.Nonce)
					}
					if len(e.Request.Error) > maxReasons*(maxReason+10)+100 {
						t.Errorf("a NACK of %d bytes", len(e.Request.Error))
					}
				case Changed:
					view[e.Type+"/"+e.Name] = e.Value
				case Gone:
					delete(view, e.Type+"/"+e.Name)
				}
			}
		}
		for _, ts := range c.types {
			bytes := 0
			for name, r := range ts.res {
				bytes += r.size()
				if r.held && ts.wants(r) && view[ts.URL+"/"+name] != r.value {
					t.Errorf("%s %q: held %v, told %v", ts.URL, name, r.value, view[ts.URL+"/"+name])
				}
				if r.held != (ts.byBody[r.body] == r) {
					t.Errorf("%s %q: held %v, known by its body %v", ts.URL, name, r.held, !r.held)
				}
			}
			if bytes != ts.bytes {
				t.Errorf("%s: %d bytes are held, %d counted", ts.URL, bytes, ts.bytes)
			}
		}
		c.Dump()
	})
}
