package consul

import (
	"testing"
	"time"

	"gatehouse.internal/lbcore"
)

// What an earlier run knew is lost as it would have been in that run: what the
// leader confirms at once, what nobody can confirm after the hold.
func TestKnownBeforeTheRestart(t *testing.T) {
	before := lbcore.MustSet(endpoint(1), endpoint(2), endpoint(3))
	for name, c := range map[string]struct {
		lists      []int
		leaderless bool
		first      string // what the first answers come to; that of before is in force otherwise
		later      string // after the hold
	}{
		"confirmed":     {[]int{1}, false, "fresh 1", "fresh 1"},
		"none":          {nil, false, "fresh", "fresh"},
		"a few less":    {[]int{1, 2}, true, "failing", "fresh 1 2"},
		"not confirmed": {[]int{1}, true, "failing", "fresh 1"},
		"more":          {[]int{1, 2, 3, 4}, true, "fresh 1 2 3 4", "fresh 1 2 3 4"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, func(cat *catalog) { cat.add("api", 9); cat.add("web", c.lists...) }, func(c *Config) { c.EmptyHold = 2 * time.Minute })
				r.resumes = &before
				if c.leaderless {
					r.leader(func(call) *reply { return answers(500, "No cluster leader") })
				}
				web := r.web()
				web.want(t, c.first)
				if c.first == "failing" {
					r.held(web, len(c.lists), 3)
				}
				r.pass(2*time.Minute + 22*time.Second)
				web.want(t, c.later)
			})
		})
	}
}

func TestListenersKnownBeforeTheRestart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, func(c *catalog) { c.tag("api", 3, "127.0.0.1:8080") }, nil)
		a, err := parseListen(wish{service: "api", value: ":8080"})
		if err != nil {
			t.Fatal(err)
		}
		b, err := parseListen(wish{service: "web", value: ":8081"})
		if err != nil {
			t.Fatal(err)
		}
		r.c.ResumeListeners([]Listener{{"api", a}, {"web", b}})
		r.set(func(s *scripted) { s.hook = func(call) *reply { return answers(500, "No cluster leader") } })
		d := r.listen()
		d.want(t, "No cluster leader", "api 127.0.0.1:8080", "web 127.0.0.1:8081")
		r.set(func(s *scripted) { s.hook = nil })
		r.pass(2 * time.Minute)
		// One of two is gone, which is a small loss: the server is believed.
		d.want(t, "", "api 127.0.0.1:8080")
	})
}
