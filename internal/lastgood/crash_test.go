package lastgood

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// sealed returns b with its checksum.
func sealed(b []byte) []byte {
	sum := sha256.Sum256(b)
	return append(hex.AppendEncode(append(b, '\n'), sum[:]), '\n')
}

var errCrashed = errors.New("crashed")

// crashing is a directory of a machine that loses power after so many steps, a byte
// or a call each. Then what was not synced is there in part, or not at all.
type crashing struct {
	directory
	steps  int
	synced map[string]int // bytes that are safe, of the files that were made
	undo   []func()       // of renames and removals since the directory was synced
}

func (c *crashing) step() bool { c.steps--; return c.steps >= 0 }

type crashingFile struct {
	c    *crashing
	name string
	file
	len int
}

func (c *crashing) create(name string) (file, error) {
	if !c.step() {
		return nil, errCrashed
	}
	f, err := c.directory.create(name)
	c.synced[name] = 0
	return &crashingFile{c: c, name: name, file: f}, err
}

func (f *crashingFile) Write(b []byte) (int, error) {
	n := min(len(b), max(f.c.steps, 0))
	f.c.steps -= len(b)
	n, err := f.file.Write(b[:n])
	f.len += n
	if err == nil && n < len(b) {
		err = errCrashed
	}
	return n, err
}

func (f *crashingFile) Sync() error {
	if !f.c.step() {
		return errCrashed
	}
	f.c.synced[f.name] = f.len
	return nil
}

func (c *crashing) rename(from, to string) error {
	if !c.step() {
		return errCrashed
	}
	was, err := os.ReadFile(c.path(to))
	had := err == nil
	if err := c.directory.rename(from, to); err != nil {
		return err
	}
	n, made := c.synced[from]
	delete(c.synced, from)
	safe, wasMade := c.synced[to]
	delete(c.synced, to)
	if made {
		c.synced[to] = n
	}
	c.undo = append(c.undo, func() {
		os.Rename(c.path(to), c.path(from))
		delete(c.synced, to)
		if made {
			c.synced[from] = n
		}
		if had {
			os.WriteFile(c.path(to), was, 0o600)
			if wasMade {
				c.synced[to] = safe
			}
		}
	})
	return nil
}

func (c *crashing) remove(name string) error {
	if !c.step() {
		return errCrashed
	}
	was, err := os.ReadFile(c.path(name))
	if err := errors.Join(err, c.directory.remove(name)); err != nil {
		return err
	}
	c.undo = append(c.undo, func() { os.WriteFile(c.path(name), was, 0o600) })
	return nil
}

func (c *crashing) sync() error {
	if !c.step() {
		return errCrashed
	}
	c.undo = nil
	return nil
}

// powerOff leaves what a disk may have then.
func (c *crashing) powerOff(t *rapid.T) {
	undo := rapid.IntRange(0, len(c.undo)).Draw(t, "renames undone")
	for i := range undo {
		c.undo[len(c.undo)-1-i]()
	}
	for name, safe := range c.synced {
		if info, err := os.Stat(c.path(name)); err == nil && int(info.Size()) > safe {
			os.Truncate(c.path(name), int64(rapid.IntRange(safe, int(info.Size())).Draw(t, "left of "+name)))
		}
	}
}

// Wherever writing is interrupted, each item is the old one or the new one.
func TestCrash(t *testing.T) {
	root := t.TempDir()
	runs := 0
	rapid.Check(t, func(t *rapid.T) {
		runs++
		dir := filepath.Join(root, fmt.Sprint(runs))
		defer os.RemoveAll(dir)
		disk := make(map[Key]string)   // what a crash may leave of each
		before := make(map[Key]string) // or that
		has := func(k Key) string {
			if text, ok := disk[k]; ok {
				return text
			}
			return "-"
		}
		for range rapid.IntRange(1, 4).Draw(t, "lives") {
			c := &crashing{directory: directory(dir), steps: 1 << 30, synced: make(map[string]int)}
			s, err := Open(Config{Dir: dir, files: c})
			if err != nil {
				t.Fatal(err)
			}
			for n := range 3 {
				k := Key{"set", fmt.Sprint(n)}
				got := loads2(s, k)
				if now := has(k); got != now && got != before[k] {
					t.Fatalf("%s is %q, want %q or %q", k.Name, got, now, before[k])
				}
				disk[k], before[k] = got, got
			}
			if n := s.Stats().Damaged; n > 0 {
				t.Fatalf("%d files are damaged", n)
			}
			c.steps = rapid.IntRange(0, 3000).Draw(t, "steps")
			for range rapid.IntRange(1, 4).Draw(t, "passes") {
				for n := range 3 {
					k := Key{"set", fmt.Sprint(n)}
					switch rapid.IntRange(0, 3).Draw(t, "what") {
					case 0:
						s.Item(k).Remove()
						disk[k] = "-"
					case 1, 2:
						text := rapid.StringN(0, 200, -1).Draw(t, "payload")
						s.Item(k).Put(fixed(text))
						disk[k] = text
					}
				}
				s.writer.pass(context.Background(), rapid.Bool().Draw(t, "all"))
				if c.steps < 0 {
					break
				}
				for k, text := range disk { // synced
					before[k] = text
				}
			}
			s.Close()
			c.powerOff(t)
		}
	})
}

func loads2(s *Store, k Key) string {
	r, ok := s.Item(k).Load()
	if !ok {
		return "-"
	}
	return string(r.Payload)
}

// FuzzDecode: no bytes but those of encode are taken for a file.
func FuzzDecode(f *testing.F) {
	for _, payload := range []string{"", "x", "\n", `{"a":1}` + "\n"} {
		b, err := encode(web, time.Unix(1e9, 5), []byte(payload))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(b[:len(b)-1])
		f.Add(sealed([]byte(payload)))
	}
	f.Add(sealed([]byte(`{"version":1,"kind":"set","name":"api"}` + "\nx")))
	f.Add(sealed([]byte(`{"version":2}` + "\nx")))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, b := range [][]byte{b, sealed(append([]byte(nil), b...))} { // past the checksum too
			payload, at, err := decode(web, b)
			if err != nil {
				continue
			}
			again, err := encode(web, at, payload)
			if err != nil {
				t.Fatal(err)
			}
			if p, when, err := decode(web, again); err != nil || string(p) != string(payload) || !when.Equal(at) {
				t.Fatalf("%q, %v, %v of %q, %v", p, when, err, payload, at)
			}
		}
	})
}

// FuzzConfirmed: whatever the file says, no item is right until a time to come, and what
// is no list of times is damaged.
func FuzzConfirmed(f *testing.F) {
	for _, text := range []string{
		`{"set-x.state":"2001-09-09T01:46:40Z"}`, `{"set-x.state":"2999-01-01T00:00:00Z","":"0001-01-01T00:00:00Z"}`, `{}`, `null`, `[]`, `{"a":1}`, `{"a":"soon"}`, `{"a":null}`, ``,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		at, err := decodeConfirmed(b)
		if (at == nil) != (err != nil) {
			t.Fatalf("%q: %v, %v", b, at, err)
		}
		now := time.Unix(1e9, 0)
		for name, when := range at {
			if got := latest(now, now.Add(-time.Hour), when); got.After(now) || got.Before(now.Add(-time.Hour)) {
				t.Fatalf("%q is right until %v, of %v", name, got, when)
			}
		}
		again, err := json.Marshal(at)
		if err != nil {
			t.Fatalf("%q: %v", b, err)
		}
		if x, err := decodeConfirmed(again); at != nil && (err != nil || !maps.EqualFunc(x, at, time.Time.Equal)) {
			t.Fatalf("%q: %v, and again %v, %v", b, at, x, err)
		}
	})
}
