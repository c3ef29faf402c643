package lbcore_test

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"pgregory.net/rapid"

	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/leastweight"
	"gatehouse.internal/lbcore/ringhash"
	"gatehouse.internal/lbcore/roundrobin"
)

func TestClassSize(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 1<<31).Draw(t, "bytes")
		size := lbcore.ClassSize(n)
		switch {
		case size < n || size%8 != 0:
			t.Errorf("%d bytes for %d", size, n)
		case n > 256 && size-n > n/32+8:
			t.Errorf("%d bytes for %d: too much", size, n)
		case n >= 256<<10 && size%4096 != 0:
			t.Errorf("%d bytes for %d: part of a page", size, n)
		case lbcore.ClassSize(size) != size || lbcore.ClassSize(size+1) > size+size/32+8:
			t.Errorf("%d is no class, or far from the next", size)
		}
	})
}

// slow is a policy whose selector waits in the midst of a walk.
type slow struct {
	order
	words int
	in    chan<- struct{}
	on    <-chan struct{}
	found chan<- uint64
	once  *sync.Once
}

func (b slow) Shape(lbcore.Input) (u64, u32 int, err error) { return b.words, 0, nil }

func (b slow) Build(in lbcore.Input, st *lbcore.Storage, _ func() error) (lbcore.Selector, error) {
	stamp := stamps.Add(1)
	for i := range st.U64 {
		st.U64[i] = stamp
	}
	return slowSelector{ordered(len(in.Members)), b, st.U64, stamp}, nil
}

type slowSelector struct {
	ordered
	slow
	words []uint64
	stamp uint64
}

func (s slowSelector) First(k lbcore.Key) uint64 { return s.ordered.First(k) }
func (s slowSelector) Steps() (int, bool)        { return s.ordered.Steps() }
func (s slowSelector) Next(k lbcore.Key, at uint64) (int, uint64) {
	if k.Hash == 7 {
		s.once.Do(func() {
			s.in <- struct{}{}
			<-s.on
			wrong := uint64(0)
			for _, w := range s.words {
				if w != s.stamp {
					wrong++
				}
			}
			s.found <- wrong
		})
	}
	return s.ordered.Next(k, at)
}

// A reader in the midst of a walk keeps its selector's storage as it is, however
// many rebuilds come. The same walk without the protection of a pin, which is
// taken away while it is under way, finds other data there.
func TestReaderKeepsStorage(t *testing.T) {
	for _, words := range []int{100, largeWords} { // one for each lane
		for _, pinned := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				in, on, found := make(chan struct{}), make(chan struct{}), make(chan uint64, 1)
				c := start(t, slow{words: words, in: in, on: on, found: found, once: new(sync.Once)})
				c.settle(set(1))
				r := c.gate.NewReader("loop")
				done := make(chan struct{})
				go func() {
					defer close(done)
					r.Pin()
					c.slot(0).Pick(r, hashKey(7), 1)
					r.Unpin()
				}()
				<-in
				if !pinned {
					r.Unpin()
				}
				for i := range 4 {
					c.update(set(2 + i))
					pass(20 * time.Second) // also for readers that count as stuck
				}
				close(on)
				wrong := <-found
				<-done
				if served := c.group.Served(); served != 5 {
					t.Errorf("%d words: generation %d is served", words, served)
				}
				if pinned && wrong > 0 {
					t.Errorf("%d words: %d were overwritten under a reader", words, wrong)
				}
				if !pinned && wrong == 0 {
					t.Errorf("%d words: none was overwritten, so this test shows nothing", words)
				}
			})
		}
	}
}

// The storage that a selector leaves serves the next one of its class.
func TestStorageIsReused(t *testing.T) {
	for _, words := range []int{100, largeWords} {
		synctest.Test(t, func(t *testing.T) {
			l := &lab{words: words}
			c := start(t, l)
			for i := range 10 {
				c.settle(set(i))
			}
			// The second needs another, as the first is still in service.
			if st := c.stats()[0]; st.Reused != 8 {
				t.Errorf("%d words: %+v", words, st)
			}
			want := lbcore.GateStats{}
			if words == largeWords {
				size := int64(lbcore.ClassSize(8 * words))
				want = lbcore.GateStats{Storage: 2 * size, Spare: size}
			}
			if st := c.gate.Stats(); st != want {
				t.Errorf("%d words: %+v, want %+v", words, st, want)
			}
			// Another class: what doesn't fit must not add up with what is built.
			l.words *= 2
			c.settle(set(11))
			if st := c.stats()[0]; st.Reused != 8 {
				t.Errorf("%d words: %+v", words, st)
			}
			if st := c.gate.Stats(); words == largeWords && st.Storage != int64(lbcore.ClassSize(8*words)+lbcore.ClassSize(16*words)) {
				t.Errorf("%+v", st)
			}
			// Of clusters that have nobody the storage of one build is left, for a while.
			c.settle(lbcore.Set{})
			if st := c.gate.Stats(); words == largeWords && (st.Storage != st.Spare || st.Spare != int64(lbcore.ClassSize(16*words))) {
				t.Errorf("%+v", st)
			}
			pass(10 * time.Second)
			if st := c.gate.Stats(); st.Storage != 0 {
				t.Errorf("10 s later: %+v", st)
			}
		})
	}
}

// A build that fails or is cancelled gives its storage back.
func TestStorageOfFailedBuild(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := lbcore.NewGate(lbcore.GateConfig{})
		l := &lab{words: largeWords}
		c := (&cluster{gate: gate, builders: []lbcore.Builder{l}}).start(t)
		c.settle(set(1))
		l.build = func(n int64, yield func() error) error {
			if n < 5 {
				return errBuild
			}
			for {
				if err := yield(); err != nil {
					return err
				}
				<-time.After(time.Millisecond)
			}
		}
		c.update(set(2))
		pass(time.Minute)
		size := int64(lbcore.ClassSize(8 * largeWords))
		if st := gate.Stats(); st != (lbcore.GateStats{Storage: 2 * size}) {
			t.Errorf("while it is built: %+v", st)
		}
		c.stop()
		if st := gate.Stats(); st != (lbcore.GateStats{Storage: 2 * size, Spare: size}) {
			t.Errorf("cancelled: %+v", st)
		}
	})
}

// With many large selectors a few builds go on though a reader holds what they
// replace, as far as that is 1/64 of all.
func TestManyLargeSelectors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := lbcore.NewGate(lbcore.GateConfig{StuckAfter: time.Hour})
		var cs []*cluster
		for range 200 {
			c := (&cluster{gate: gate, builders: []lbcore.Builder{&lab{words: largeWords}}}).start(t)
			c.settle(set(1))
			cs = append(cs, c)
		}
		r := gate.NewReader("loop")
		r.Pin()
		for _, c := range cs {
			c.update(set(2))
		}
		pass(time.Minute)
		rebuilt := 0
		for _, c := range cs {
			rebuilt += int(c.group.Served()) - 1
		}
		// Three are held, of 203: one more may be built, and is.
		if rebuilt != 4 {
			t.Errorf("%d were rebuilt", rebuilt)
		}
		r.Unpin()
		for _, c := range cs {
			c.wait(2)
		}
		size := int64(lbcore.ClassSize(8 * largeWords))
		if st := gate.Stats(); st.Storage > 205*size || st.Retired != 0 {
			t.Errorf("%+v: %d regions", st, st.Storage/size)
		}
	})
}

// The storage of a Group that has ended serves others once it is closed, and its
// slots pick nobody.
func TestStorageOfClosedGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := lbcore.NewGate(lbcore.GateConfig{})
		size := int64(lbcore.ClassSize(8 * largeWords))
		for range 5 {
			c := (&cluster{gate: gate, builders: []lbcore.Builder{&lab{words: largeWords}}}).start(t)
			c.settle(set(1))
			r := gate.NewReader("loop")
			r.Pin()
			held := c.slot(0).Pick(r, lbcore.Key{}, 1)
			c.stop()
			c.group.Close()
			c.group.Close()
			if st := gate.Stats(); st != (lbcore.GateStats{Storage: size, Retired: size}) {
				t.Errorf("closed under a reader: %+v", st)
			}
			if p := c.slot(0).Pick(r, lbcore.Key{}, 1); p.Len() > 0 || held.Next() == nil {
				t.Error("it picks, or what was picked is no good any more")
			}
			r.Unpin()
			if st := gate.Stats(); st != (lbcore.GateStats{Storage: size, Spare: size}) || c.stats()[0].Bytes != 0 {
				t.Errorf("closed: %+v, %+v", st, c.stats()[0])
			}
		}
	})
}

// Whoever waits for a generation that is not served any more is told.
func TestWaitGenerationOfEndedGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, &lab{})
		c.settle(set(1))
		errs := make(chan error, 1)
		go func() { errs <- c.group.WaitGeneration(t.Context(), 2) }()
		synctest.Wait()
		c.stop()
		if err := <-errs; err != lbcore.ErrEnded {
			t.Error(err)
		}
		if err := c.group.WaitGeneration(t.Context(), 1); err != nil {
			t.Error(err)
		}
	})
}

// A reader that is stuck holds up no small build, but is named; and what it may
// hold is bounded beside Go's heap.
func TestSmallLaneUnderAStuckReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []lbcore.Stuck
		gate := lbcore.NewGate(lbcore.GateConfig{OnStuck: func(s lbcore.Stuck) { told = append(told, s) }})
		c := (&cluster{gate: gate, builders: []lbcore.Builder{&lab{words: 8 << 10}}}).start(t)
		c.settle(set(0))
		r := gate.NewReader("loop")
		for range 2 {
			r.Pin()
			told = nil
			for i := range 300 {
				c.settle(set(i, i+1))
				pass(100 * time.Millisecond)
			}
			// Of the 600 that are built there are some 35 each time, until the
			// collector comes.
			if n := gate.Stats().Storage / int64(lbcore.ClassSize(64<<10)); n > 80 {
				t.Errorf("%d regions", n)
			}
			if len(told) != 1 || told[0].Slot != "c/a" || told[0].Bytes != lbcore.ClassSize(64<<10) || !slices.Equal(told[0].Readers, []string{"loop"}) {
				t.Errorf("told %+v", told)
			}
			r.Unpin()
			c.settle(set(500))
		}
	})
}

// A selector that the small lane has left to the collector stays as it is as long
// as somebody walks in it.
func TestWalkKeepsADroppedSelector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, on, found := make(chan struct{}), make(chan struct{}), make(chan uint64, 1)
		c := start(t, slow{words: 16 << 10, in: in, on: on, found: found, once: new(sync.Once)})
		c.settle(set(1))
		go func() {
			r := c.gate.Pin()
			defer r.Unpin()
			c.slot(0).Pick(r, hashKey(7), 1)
		}()
		<-in
		for i := range 200 {
			c.settle(set(i, i+1))
		}
		for range 3 {
			runtime.GC()
		}
		close(on)
		if wrong := <-found; wrong > 0 {
			t.Errorf("%d words were overwritten", wrong)
		}
	})
}

// The storage of a Group that has ended is found by the collector.
func TestStorageOfEndedGroup(t *testing.T) {
	gate := lbcore.NewGate(lbcore.GateConfig{})
	func() {
		c := (&cluster{gate: gate, builders: []lbcore.Builder{ringhash.Config{MinimumSize: 100_000}}}).start(t)
		c.settle(set(1, 2))
		if gate.Stats().Storage < 1<<20 {
			t.Errorf("%+v", gate.Stats())
		}
		c.stop()
		c.forget()
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for gate.Stats().Storage > 0 {
		runtime.GC()
		if ctx.Err() != nil {
			t.Fatalf("%+v", gate.Stats())
		}
	}
}

// What is published holds neither the Snapshot it was built from nor what was
// published before it: with many clusters they would be in memory twice.
func TestPublishedHoldsNoSet(t *testing.T) {
	c := start(t, roundrobin.Config{}, ringhash.Config{}, leastweight.Config{})
	first := weak.Make(c.settle(set(1, 2)))
	second := weak.Make(c.settle(span(0, 5, 1, 2)))
	c.view.Update(span(0, 6)) // which no selector is built from
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for first.Value() != nil || second.Value() != nil {
		runtime.GC()
		if ctx.Err() != nil {
			t.Fatalf("held: %v, %v", first.Value() != nil, second.Value() != nil)
		}
	}
}

// Fresh storage is not used again, and not counted.
func TestFreshStorage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := (&cluster{gate: lbcore.NewGate(lbcore.GateConfig{Fresh: true}), builders: []lbcore.Builder{&lab{words: largeWords}}}).start(t)
		for i := range 5 {
			c.settle(set(i))
		}
		if st := c.stats()[0]; st.Reused != 0 || c.gate.Stats() != (lbcore.GateStats{}) {
			t.Errorf("%+v, %+v", st, c.gate.Stats())
		}
	})
}
