//go:build unix

package lastgood

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// What is put is there for the next run, with the time until when it was right.
func TestKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := Config{Dir: filepath.Join(t.TempDir(), "state")}
		s := open(t, cfg)
		end := run(t, s)
		i := s.Item(web)
		if _, ok := i.Load(); ok {
			t.Error("there is something before anything was put")
		}
		i.Put(fixed("one"))
		i.Fresh(true)
		if got := loads(t, s, web); got != "one" {
			t.Errorf("before it is written it is %q", got)
		}
		time.Sleep(time.Hour) // and was right all the time
		i.Fresh(false)
		until := time.Now()
		time.Sleep(time.Hour)
		end()

		s = again(t, s, cfg)
		r, ok := s.Item(web).Load()
		if !ok || string(r.Payload) != "one" {
			t.Errorf("after the restart it is %q, %v", r.Payload, ok)
		}
		if d := until.Sub(r.Confirmed); d < 0 || d > time.Second {
			t.Errorf("it was right until %s, want %s", r.Confirmed, until)
		}
		if age := Age(r.Confirmed); age < time.Hour || age > time.Hour+2*time.Second {
			t.Errorf("its age is %s", age)
		}
		// Nobody says anything in this run: the age must go on.
		end = run(t, s)
		time.Sleep(time.Hour)
		end()
		s = again(t, s, cfg)
		if r, _ := s.Item(web).Load(); Age(r.Confirmed) < 2*time.Hour {
			t.Errorf("after two restarts its age is %s", Age(r.Confirmed))
		}
		i = s.Item(web)
		i.Remove()
		if got := loads(t, s, web); got != "-" {
			t.Errorf("removed, it is %q", got)
		}
		run(t, s)()
		if got := loads(t, again(t, s, cfg), web); got != "-" {
			t.Errorf("removed and restarted, it is %q", got)
		}
	})
}

func TestAgeIsNeverNegative(t *testing.T) {
	if age := Age(time.Now().Add(time.Hour)); age != 0 {
		t.Errorf("of what is to come the age is %s", age)
	}
}

// A clock that was ahead does not make what it wrote young for ever.
func TestClockWasAhead(t *testing.T) {
	now := time.Now()
	for _, c := range []struct{ a, b, want time.Duration }{
		{-2, -1, -1}, {-1, -2, -1}, {1, -2, -2}, {-2, 1, -2}, {1, 2, 0},
	} {
		at := func(d time.Duration) time.Time { return now.Add(d * time.Hour) }
		if got := latest(now, at(c.a), at(c.b)); !got.Equal(at(c.want)) {
			t.Errorf("of %v and %v hours it is %v", c.a, c.b, got.Sub(now))
		}
	}
	if got := latest(now, now.Add(time.Hour), time.Time{}); !got.Equal(now) {
		t.Errorf("with one only it is %v", got)
	}
	synctest.Test(t, func(t *testing.T) {
		cfg := Config{Dir: filepath.Join(t.TempDir(), "state")}
		s := open(t, cfg)
		b, err := encode(web, time.Now().Add(time.Hour), []byte("x"))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path(s, web), b, 0o600); err != nil {
			t.Fatal(err)
		}
		r, ok := s.Item(web).Load()
		if !ok || !r.Confirmed.Equal(time.Now()) || Age(r.Confirmed) != 0 {
			t.Errorf("%v, right until %s", ok, r.Confirmed)
		}
	})
}

// Whatever is put in a burst is written once, soon after its beginning.
func TestDebounce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		os.Chmod(dir, 0o700)
		b := &broken{directory: directory(dir)}
		s := open(t, Config{Dir: dir, files: b})
		run(t, s)
		i := s.Item(web)
		begin := time.Now()
		for n := range 100 {
			i.Put(fixed(fmt.Sprint(n)))
			time.Sleep(5 * time.Millisecond)
		}
		time.Sleep(2 * time.Second)
		if got := b.times(); len(got) != 1 || got[0].Sub(begin) != DefaultDelay {
			t.Errorf("files were written at %v, want once, 1s after %s", got, begin)
		}
		if got := loads(t, s, web); got != "99" {
			t.Errorf("the last is %s", got)
		}
		// What never ends must not be put off for ever.
		for n := range 600 {
			i.Put(fixed(fmt.Sprint("more", n)))
			time.Sleep(100 * time.Millisecond)
		}
		if got := len(b.times()); got < 30 || got > 70 {
			t.Errorf("in a minute of changes it was written %d times", got)
		}
		// The same again is no reason to write.
		time.Sleep(2 * time.Second)
		before := len(b.times())
		i.Put(fixed("more599"))
		time.Sleep(2 * time.Second)
		if got := len(b.times()); got != before {
			t.Error("the same was written again")
		}
	})
}

// PutOften looks again by itself, also at the end.
func TestPutOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := Config{Dir: filepath.Join(t.TempDir(), "state"), Tick: 15 * time.Second}
		s := open(t, cfg)
		end := run(t, s)
		n := 0
		s.Item(web).PutOften(func() ([]byte, error) { n++; return fmt.Append(nil, "count ", n), nil })
		time.Sleep(31 * time.Second)
		synctest.Wait()
		if n != 3 {
			t.Errorf("looked %d times in 31s, want 3", n)
		}
		end()
		if got := loads(t, again(t, s, cfg), web); got != "count 4" {
			t.Errorf("at the end it is %q", got)
		}
	})
}

func TestLock(t *testing.T) {
	cfg := Config{Dir: filepath.Join(t.TempDir(), "state")}
	s := open(t, cfg)
	_, err := Open(cfg)
	locked, ok := errors.AsType[*LockedError](err)
	if !ok {
		t.Fatalf("a second one gets %v", err)
	}
	for _, want := range []string{cfg.Dir, fmt.Sprint("process ", os.Getpid())} {
		if !strings.Contains(locked.Error(), want) {
			t.Errorf("%q does not say %q", locked, want)
		}
	}
	again(t, s, cfg)
}

func TestModes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "state")
	s := open(t, Config{Dir: dir})
	end := run(t, s)
	s.Item(web).Put(fixed("x"))
	end()
	for name, want := range map[string]os.FileMode{dir: 0o700, path(s, web): 0o600, filepath.Join(dir, lockName): 0o600} {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want %v", name, info.Mode(), err, want)
		}
	}
}

func TestCheck(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	open := filepath.Join(dir, "open")
	if err := os.Mkdir(open, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{
		"state": "no absolute path", file: "no directory", open: "written to by others", filepath.Join(dir, "none"): "",
	} {
		err := Check(dir)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", dir, err, want)
		}
		if _, err := Open(Config{Dir: dir}); want != "" && err == nil {
			t.Errorf("%s was opened", dir)
		}
	}
}

// chown gives path to another user.
func chown(t *testing.T, path string) {
	t.Helper()
	if os.Geteuid() != 0 && testing.Short() {
		t.Skip("a file is given to another user, which takes root")
	}
	if err := os.Chown(path, 65534, 65534); err != nil {
		t.Fatalf("a file is given to another user, which takes root (or -short): %v", err)
	}
}

// A directory of another user is that one's word, whatever its mode.
func TestOwner(t *testing.T) {
	cfg := Config{Dir: filepath.Join(t.TempDir(), "state")}
	s := open(t, cfg)
	end := run(t, s)
	s.Item(web).Put(fixed("x"))
	end()
	s.Close()
	chown(t, cfg.Dir)
	if _, err := Open(cfg); err == nil || !strings.Contains(err.Error(), "belongs to user 65534") {
		t.Errorf("it was opened: %v", err)
	}
	if err := Check(cfg.Dir); err != nil {
		t.Errorf("another user can't check the configuration of an agent: %v", err)
	}
}

// What can't be used is set aside, told of once, and costs nothing else.
func TestDamaged(t *testing.T) {
	good := func(t *testing.T, s *Store) []byte {
		b, err := os.ReadFile(path(s, web))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	replace := func(t *testing.T, s *Store, b []byte) {
		if err := os.WriteFile(path(s, web), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	instead := func(t *testing.T, s *Store, f func(name string) error) {
		if err := errors.Join(os.Remove(path(s, web)), f(path(s, web))); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		spoil func(*testing.T, *Store)
		want  string
	}{
		"empty":     {func(t *testing.T, s *Store) { replace(t, s, nil) }, "cut off"},
		"cut off":   {func(t *testing.T, s *Store) { b := good(t, s); replace(t, s, b[:len(b)-1]) }, "checksum"},
		"short":     {func(t *testing.T, s *Store) { b := good(t, s); replace(t, s, b[:len(b)/2]) }, "checksum"},
		"one bit":   {func(t *testing.T, s *Store) { b := good(t, s); b[len(b)/3] ^= 4; replace(t, s, b) }, "checksum"},
		"longer":    {func(t *testing.T, s *Store) { replace(t, s, append(good(t, s), '\n')) }, "checksum"},
		"too large": {func(t *testing.T, s *Store) { replace(t, s, make([]byte, 2000)) }, "2000 bytes"},
		"link": {func(t *testing.T, s *Store) {
			b := good(t, s)
			other := filepath.Join(t.TempDir(), "other")
			if err := os.WriteFile(other, b, 0o600); err != nil {
				t.Fatal(err)
			}
			instead(t, s, func(name string) error { return os.Symlink(other, name) })
		}, "no regular file"},
		"directory": {func(t *testing.T, s *Store) {
			instead(t, s, func(name string) error { return os.Mkdir(name, 0o700) })
		}, "no regular file"},
		"pipe": {func(t *testing.T, s *Store) {
			instead(t, s, func(name string) error { return syscall.Mkfifo(name, 0o600) })
		}, "no regular file"},
		"another user's": {func(t *testing.T, s *Store) { chown(t, path(s, web)) }, "belongs to user 65534"},
		"another's": {func(t *testing.T, s *Store) {
			b, _ := encode(Key{"set", "api"}, time.Now(), []byte("x"))
			replace(t, s, b)
		}, "it is of set "},
		"another version": {func(t *testing.T, s *Store) {
			replace(t, s, []byte(strings.Replace(string(good(t, s)), `"version":1`, `"version":2`, 1)))
		}, "checksum"},
	} {
		t.Run(name, func(t *testing.T) {
			log := new(lines)
			cfg := Config{Dir: filepath.Join(t.TempDir(), "state"), MaxFile: 1000, Logger: log.logger()}
			s := open(t, cfg)
			end := run(t, s)
			s.Item(web).Put(fixed("one"))
			s.Item(Key{"set", "api"}).Put(fixed("two"))
			end()
			c.spoil(t, s)
			s = again(t, s, cfg)
			for range 2 {
				if got := loads(t, s, web); got != "-" {
					t.Errorf("it is %q", got)
				}
			}
			if got := loads(t, s, Key{"set", "api"}); got != "two" {
				t.Errorf("the other is %q", got)
			}
			if n := log.count(c.want); n != 1 || s.Stats().Damaged != 1 {
				t.Errorf("%d lines with %q, %d damaged:\n%s", n, c.want, s.Stats().Damaged, log.buf.String())
			}
			if got := names(t, cfg.Dir, damagedTag); len(got) != 0 {
				t.Errorf("before it may write it has set aside %q", got)
			}
			end = run(t, s)
			s.Item(web).Put(fixed("three"))
			end()
			kept := 1
			if name == "too large" {
				kept = 0
			}
			if got := names(t, cfg.Dir, damagedTag); len(got) != kept {
				t.Errorf("set aside are %q", got)
			}
			if got := loads(t, again(t, s, cfg), web); got != "three" {
				t.Errorf("afterwards it is %q", got)
			}
		})
	}
}

// A file of another version of the format is not read, whatever is in it.
func TestVersion(t *testing.T) {
	b, err := encode(web, time.Now(), []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := decode(web, b); err != nil {
		t.Fatal(err)
	}
	b = b[:len(b)-sumLen]
	b = sealed([]byte(strings.Replace(string(b), `"version":1`, `"version":2`, 1)))
	if _, _, err := decode(web, b); err == nil || !strings.Contains(err.Error(), "version 2") {
		t.Errorf("got %v", err)
	}
}

func TestDamagedAreBounded(t *testing.T) {
	cfg := Config{Dir: filepath.Join(t.TempDir(), "state")}
	s := open(t, cfg)
	for n := range 3 * maxDamaged {
		k := Key{"set", fmt.Sprint(n)}
		if err := os.WriteFile(path(s, k), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		loads(t, s, k)
	}
	run(t, s)()
	if got := names(t, cfg.Dir, damagedTag); len(got) != maxDamaged {
		t.Errorf("%d files are set aside, want %d", len(got), maxDamaged)
	}
	if got := s.Stats().Damaged; got != 3*maxDamaged {
		t.Errorf("%d are counted", got)
	}
}

// What is set aside takes no more room than what is kept: a file that is larger than one
// may be is removed, also one of before, and that is told.
func TestDamagedAreBoundedBySize(t *testing.T) {
	log := new(lines)
	cfg := Config{Dir: filepath.Join(t.TempDir(), "state"), MaxFile: 1000, Logger: log.logger()}
	s := open(t, cfg)
	const before = "set-x.state" + damagedTag + "20200101T000000.000000000"
	for name, size := range map[string]int64{path(s, web): 5 << 30, filepath.Join(cfg.Dir, before): 1001, path(s, Key{"set", "api"}): 1000} {
		if err := errors.Join(os.WriteFile(name, nil, 0o600), os.Truncate(name, size)); err != nil {
			t.Fatal(err)
		}
	}
	for _, k := range []Key{web, {"set", "api"}} {
		if got := loads(t, s, k); got != "-" {
			t.Errorf("%v is %q", k, got)
		}
	}
	run(t, s)()
	got := names(t, cfg.Dir, damagedTag)
	if len(got) != 1 || !strings.HasPrefix(got[0], Key{"set", "api"}.fileName()) {
		t.Errorf("set aside are %q", got)
	}
	if n := log.count("too large to be kept"); n != 2 {
		t.Errorf("%d lines:\n%s", n, log.buf.String())
	}
}

// A disk that is full or read-only costs what can't be written, and one log line a
// minute; what was put is written when there is room again.
func TestWriteFails(t *testing.T) {
	for _, fault := range []error{syscall.ENOSPC, syscall.EROFS} {
		t.Run(fault.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := t.TempDir()
				os.Chmod(dir, 0o700)
				b := &broken{directory: directory(dir), err: fault}
				log := new(lines)
				s := open(t, Config{Dir: dir, Logger: log.logger(), files: b})
				run(t, s)
				i := s.Item(web)
				begin := time.Now()
				for n := range 600 {
					i.Put(fixed(fmt.Sprint(n)))
					time.Sleep(time.Second)
				}
				st := s.Stats()
				if !strings.Contains(st.Err, fault.Error()) || st.Since.Sub(begin) > 2*time.Second || st.Written != 0 {
					t.Errorf("stats: %+v", st)
				}
				if st.Failures < 5 || st.Failures > 60 {
					t.Errorf("%d attempts in ten minutes", st.Failures)
				}
				if n := log.count("can't be written"); n < 1 || n > 11 {
					t.Errorf("%d lines in ten minutes:\n%s", n, log.buf.String())
				}
				b.set(nil)
				time.Sleep(2 * maxBackoff)
				if st := s.Stats(); st.Err != "" || st.Written == 0 {
					t.Errorf("with room again: %+v", st)
				}
				if log.count("written again") != 1 {
					t.Error("no line says that it is written again")
				}
				if got := loads(t, s, web); got != "599" {
					t.Errorf("it is %q", got)
				}
			})
		})
	}
}

// A directory that can't be made is no reason not to start.
func TestNoDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(file, "state") // below a file
		s := open(t, Config{Dir: dir})
		run(t, s)
		s.Item(web).Put(fixed("x"))
		time.Sleep(time.Minute)
		if st := s.Stats(); st.Err == "" || st.Failures < 3 {
			t.Errorf("stats: %+v", st)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * maxBackoff)
		if st := s.Stats(); st.Err != "" || st.Files == 0 {
			t.Errorf("once it can be made: %+v", st)
		}
	})
}

func TestLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(lines)
		cfg := Config{Dir: filepath.Join(t.TempDir(), "state"), MaxFile: 1000, MaxTotal: 2500, Logger: log.logger()}
		s := open(t, cfg)
		end := run(t, s)
		i := s.Item(web)
		i.Put(fixed("small"))
		time.Sleep(2 * time.Second)
		i.Put(fixed(strings.Repeat("x", 1000)))
		time.Sleep(2 * time.Second)
		if st := s.Stats(); !strings.Contains(st.Err, "of one file") || st.Failures != 1 || st.Files != 0 {
			t.Errorf("one that is too large: %+v", st) // and what it replaces is old
		}
		i.Put(fixed("small again"))
		time.Sleep(2 * time.Second)
		if st := s.Stats(); st.Err != "" || st.Files != 1 {
			t.Errorf("one that fits again: %+v", st)
		}
		for n := range 4 {
			s.Item(Key{"set", fmt.Sprint(n)}).Put(fixed(strings.Repeat("x", 700)))
		}
		time.Sleep(2 * time.Second)
		st := s.Stats()
		if !strings.Contains(st.Err, "of all files") || st.Bytes > cfg.MaxTotal || st.Failures == 1 {
			t.Errorf("more than fit: %+v", st)
		}
		end()
		if got := again(t, s, cfg).Stats(); got.Bytes > cfg.MaxTotal || got.Files < st.Files {
			t.Errorf("after the restart: %+v", got)
		}
	})
}

// What nobody claims goes, but not because everything ends.
func TestPrune(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := Config{Dir: filepath.Join(t.TempDir(), "state")}
		s := open(t, cfg)
		end := run(t, s)
		var items []*Item
		for n := range 3 {
			i := s.Item(Key{"set", fmt.Sprint(n)})
			i.Put(fixed("x"))
			items = append(items, i)
		}
		twice := s.Item(Key{"set", "0"})
		time.Sleep(2 * time.Second)
		items[0].Release()
		items[0].Release() // does nothing
		items[1].Release()
		s.Prune()
		time.Sleep(2 * time.Second)
		if st := s.Stats(); st.Pruned != 1 {
			t.Errorf("stats: %+v", st)
		}
		s.Prune()
		twice.Release()
		items[2].Release()
		end()
		s = again(t, s, cfg)
		for n, want := range []string{"x", "-", "x"} {
			if got := loads(t, s, Key{"set", fmt.Sprint(n)}); got != want {
				t.Errorf("%d: %q, want %q", n, got, want)
			}
		}
	})
}

// Without a directory nothing is kept, and nobody has to ask.
func TestNothing(t *testing.T) {
	var s *Store
	i := s.Item(web)
	i.Put(fixed("x"))
	i.PutOften(fixed("x"))
	i.Fresh(true)
	i.Damaged(errors.New("x"))
	i.Remove()
	i.Release()
	s.Prune()
	s.Close()
	if _, ok := i.Load(); ok || s.Stats() != (Stats{}) {
		t.Error("something is kept")
	}
}

// A store that is suspended gives its directory to another one, which begins with
// all that was put; what is put meanwhile is written when the other one is gone.
func TestSuspend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := Config{Dir: filepath.Join(t.TempDir(), "state")}
		s := open(t, cfg)
		end := run(t, s)
		i := s.Item(web)
		i.Put(fixed("one"))
		if err := s.Suspend(t.Context()); err != nil {
			t.Fatal(err)
		}
		next, err := Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if r, ok := next.Item(web).Load(); !ok || string(r.Payload) != "one" {
			t.Errorf("the next one has %q, %v", r.Payload, ok)
		}
		i.Put(fixed("two"))
		time.Sleep(2 * DefaultTick)
		if r, _ := next.Item(web).Load(); string(r.Payload) != "one" {
			t.Errorf("while it is suspended it has written %q", r.Payload)
		}
		if n := s.Stats().Failures; n != 0 {
			t.Errorf("%d failures", n)
		}
		if err := s.Resume(t.Context()); err != nil { // too early, which is made good
			t.Fatal(err)
		}
		time.Sleep(minBackoff)
		next.Close()
		time.Sleep(2 * maxBackoff)
		if got := loads(t, s, web); got != "two" {
			t.Errorf("after it goes on it has %q", got)
		}
		if err := s.Suspend(t.Context()); err != nil {
			t.Fatal(err)
		}
		if next, err = Open(cfg); err != nil {
			t.Fatal(err)
		}
		i.Put(fixed("three"))
		end() // and the end writes nothing
		if r, _ := next.Item(web).Load(); string(r.Payload) != "two" {
			t.Errorf("at its end it has written %q", r.Payload)
		}
		next.Close()
	})
}
