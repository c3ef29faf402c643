package lbcore

import (
	"errors"
	"fmt"
	"iter"
	"unique"
)

// MaxAdditional bounds the addresses that an endpoint has beside Addr.
const MaxAdditional = 15

// Addrs is a list of addresses. It takes one word, is comparable (lists of the
// same addresses in the same order are equal), and the zero Addrs is empty.
type Addrs struct{ first unique.Handle[link] }

// link is an address of a list and what comes after it.
type link struct {
	addr Addr
	rest Addrs
}

// AddrsOf returns the list of addrs.
func AddrsOf(addrs ...Addr) (list Addrs) {
	for i := len(addrs) - 1; i >= 0; i-- {
		list = Addrs{unique.Make(link{addrs[i], list})}
	}
	return list
}

// All yields the addresses in order. It allocates nothing.
func (l Addrs) All() iter.Seq[Addr] {
	return func(yield func(Addr) bool) {
		for l != (Addrs{}) {
			v := l.first.Value()
			if !yield(v.addr) {
				return
			}
			l = v.rest
		}
	}
}

// Len returns the number of addresses.
func (l Addrs) Len() (n int) {
	for range l.All() {
		n++
	}
	return n
}

// Equal reports whether l and m are the same list, as == does; packages like
// go-cmp ask for it.
func (l Addrs) Equal(m Addrs) bool { return l == m }

// check reports what keeps l from being the additional addresses of an endpoint
// at a.
func (l Addrs) check(a Addr) error {
	if l == (Addrs{}) {
		return nil
	}
	if a.Path() != "" {
		return errors.New("a unix socket has no additional addresses")
	}
	if n := l.Len(); n > MaxAdditional {
		return fmt.Errorf("%d additional addresses: want at most %d", n, MaxAdditional)
	}
	for more := range l.All() {
		if err := more.check(); err != nil {
			return fmt.Errorf("additional address %s: %w", more, err)
		}
		if more.Path() != "" {
			return fmt.Errorf("additional address %s: want an IP address", more)
		}
	}
	return nil
}
