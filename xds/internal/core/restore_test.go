package core

import "testing"

// What the scenarios of restored resources leave out.
func TestRestore(t *testing.T) {
	c := New(2, testTypes()...)
	if err := c.Restore("none", "web", "7", []byte("web=1")); err == nil {
		t.Error("of an unknown type it is taken")
	}
	c.maxResources = 2
	for name, want := range map[string]bool{"a": true} {
		if err := c.Restore("eds", name, "7", []byte(name+"=1")); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := c.Restore("eds", "a", "8", []byte("a=2")); err != nil { // what is known stays
		t.Error(err)
	}
	if h, ok := c.Held("eds", "a"); !ok || h != (HeldResource{"7", "a=1", true, false}) {
		t.Errorf("held: %+v, %v", h, ok)
	}
	if err := c.Restore("eds", "b", "7", []byte("b=1")); err != nil {
		t.Error(err)
	}
	if err := c.Restore("eds", "c", "7", []byte("c=1")); err == nil {
		t.Error("more than the limit are taken")
	}
	if _, ok := c.Held("eds", "c"); ok {
		t.Error("what was refused is held")
	}

	// What was restored does not keep the next server from being asked.
	c.Subscribe("eds", "a")
	c.Start()
	c.Closed(0, "down", Lost)
	c.Flush()
	active := 0
	for _, e := range c.Take() {
		if a, ok := e.(Active); ok {
			active = a.Server
		}
	}
	if active != 1 {
		t.Error("the second server is not asked while the first is away")
	}
}
