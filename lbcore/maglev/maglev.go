// Package maglev is Envoy's Maglev table: an endpoint owns slots of a table in
// proportion to its weight, and a key belongs to the slot that its hash names.
// A pick costs one division and one load, whatever the number of endpoints;
// shares are more even than those of a ring; when endpoints come or go, a few
// keys of others move too.
//
// # Usage
//
// A Config is an [lbcore.Builder]; put it into a slot of an [lbcore.Group].
// Keys are xxHash64 values, as [lbcore.StringKey] makes them. A table should
// have a hundred slots an endpoint, or more.
//
// # Concurrency
//
// A table is not written after its build. Retries hash the key anew, as Envoy
// does.
//
// # Limitations
//
// Envoy builds the table from healthy hosts and builds it anew when health
// changes; here the table holds every host, and picks go on past the unready.
// Keys of ready hosts stay in place either way. With more endpoints than slots
// some have none, as in Envoy: they are picked only where nobody else is ready.
// Whoever can choose the hash keys of many endpoints by their hashes can make a
// build take as many steps as there are endpoints times slots; others need about
// twelve steps a slot.
package maglev

import (
	"fmt"

	"gatehouse.internal/lbcore"
)

// The default and the largest size of a table.
// Source: Cluster.MaglevLbConfig.table_size.
const (
	DefaultTableSize = 65537
	LimitTableSize   = 5000011
)

// Config is the policy's settings. The zero value has Envoy's defaults.
type Config struct {
	// TableSize is the number of slots, a prime up to LimitTableSize; 0 means
	// DefaultTableSize.
	TableSize uint64
}

// Validate reports a size that is above LimitTableSize or not prime.
func (c Config) Validate() error {
	switch size := c.size(); {
	case size > LimitTableSize:
		return fmt.Errorf("table_size (%d) > %d", size, LimitTableSize)
	case !prime(size):
		return fmt.Errorf("table_size (%d) is not prime", size)
	}
	return nil
}

func (c Config) size() uint64 {
	if c.TableSize == 0 {
		return DefaultTableSize
	}
	return c.TableSize
}

func prime(n uint64) bool {
	for d := uint64(2); d*d <= n; d++ {
		if n%d == 0 {
			return false
		}
	}
	return n > 1
}

// Keyed implements [lbcore.Keyed].
func (Config) Keyed() bool { return true }

// Shape implements [lbcore.Builder].
func (c Config) Shape(in lbcore.Input) (u64, u32 int, err error) {
	if err := c.Validate(); err != nil {
		return 0, 0, fmt.Errorf("maglev: %w", err)
	}
	t := newTable(c.size(), len(in.Members))
	u64, u32 = scratch(c.size(), in)
	return u64, t.length() + u32, nil
}

// Build implements [lbcore.Builder].
func (c Config) Build(in lbcore.Input, st *lbcore.Storage, yield func() error) (lbcore.Selector, error) {
	t := newTable(c.size(), len(in.Members))
	n := t.length()
	t.words = st.U32[:n:n]
	p := &lbcore.Pacer{Yield: yield}
	if err := p.Clear32(t.words); err != nil {
		return nil, err
	}
	f := filler{in: in, size: uint32(c.size()), pace: p}
	if err := f.fill(t, st.U64, st.U32[n:]); err != nil {
		return nil, err
	}
	return t, nil
}

// table is the built selector. Members are held in as few bits as their number
// allows, so that a table of 65,537 slots stays in a processor's second cache.
type table struct {
	size  uint64
	words []uint32
	log   uint32 // 1<<log slots share a word
	width uint32 // bits of a slot
	mask  uint32
}

func newTable(size uint64, members int) *table {
	t := &table{size: size, width: 32}
	switch {
	case members <= 1<<8:
		t.log, t.width = 2, 8
	case members <= 1<<16:
		t.log, t.width = 1, 16
	}
	t.mask = uint32(1<<t.width - 1)
	return t
}

// length returns how many words the table has.
func (t *table) length() int { return int((t.size-1)>>t.log + 1) }

// place returns the word of a slot and where in it the slot begins.
func (t *table) place(slot uint64) (word uint64, bit uint32) {
	return slot >> (t.log & 31), uint32(slot) & (1<<(t.log&31) - 1) * t.width
}

// set fills a slot, which must be 0.
func (t *table) set(slot uint64, member uint32) {
	word, bit := t.place(slot)
	t.words[word] |= member << bit
}

func (t *table) get(slot uint64) int {
	word, bit := t.place(slot)
	return int(t.words[word] >> (bit & 31) & t.mask)
}

// First implements [lbcore.Selector]; a position is the number of an attempt.
func (t *table) First(lbcore.Key) uint64 { return 0 }

// Next implements [lbcore.Selector].
func (t *table) Next(k lbcore.Key, attempt uint64) (int, uint64) {
	return t.get(rehash(k, attempt) % t.size), attempt + 1
}

// rehash returns the hash of an attempt.
func rehash(k lbcore.Key, attempt uint64) uint64 {
	h := k.Hash
	if attempt > 0 {
		h ^= -attempt
	}
	return h
}

// Site implements [lbcore.Sited].
func (t *table) Site(k lbcore.Key, attempt uint64) lbcore.Site {
	h := rehash(k, attempt)
	return lbcore.Site{Place: h % t.size, Of: t.size, Hash: h}
}

// Steps implements [lbcore.Selector].
func (t *table) Steps() (int, bool) { return 32, false }
