package lbcore

// Input is what a selector is built from: one tier of one Snapshot, or one
// locality of a tier. It is never empty and never written.
type Input struct {
	// Members are those that may be picked, in the order of their addresses;
	// endpoints of weight 0 are left out.
	Members []*Member
	// Endpoints are their attributes in this Snapshot, parallel to Members.
	Endpoints []*Endpoint
	// Shares are the parts of the load that they are to get, parallel to
	// Members, each above 0, their sum 1.
	Shares []float64
	// Prev is the selector that the new one replaces, or nil. It is for what
	// outlives a rebuild, like a cursor; its storage must not be read.
	Prev Selector
}

// Equal reports whether all shares are the same.
func (in Input) Equal() bool {
	for _, s := range in.Shares {
		if s != in.Shares[0] {
			return false
		}
	}
	return true
}

// Builder is a policy: it builds selectors. Both methods depend on nothing but
// their arguments and the Builder's own settings, start no goroutine and look
// at no clock. They may be called from several goroutines at once.
type Builder interface {
	// Shape returns how many elements of each kind Build needs. An error says
	// that this Input can't be built; it is not tried again until the
	// membership changes.
	Shape(in Input) (u64, u32 int, err error)
	// Build returns the selector of in, built in st. It calls yield at least
	// every few thousand steps and gives up with its error.
	Build(in Input, st *Storage, yield func() error) (Selector, error)
}

// Keyed is a Builder whose selectors lead a key to the endpoint that is its own,
// as those of the hash policies. A key has no say in the picks of other
// Builders, not even in the choice of a priority.
type Keyed interface {
	Builder
	// Keyed reports whether it is so; a Builder around another passes it on.
	Keyed() bool
}

func isKeyed(b Builder) bool {
	k, ok := b.(Keyed)
	return ok && k.Keyed()
}

// Selector is the built data that picks among the members of its Input. Any
// number of goroutines use it at once; its methods take no lock and allocate
// nothing.
//
// It yields an endless walk of candidates, which may repeat: the caller passes
// over those that are not ready or that it has already.
type Selector interface {
	// First returns the position of the first candidate for k, whose Hash is
	// random if the caller has no key or the Builder isn't Keyed.
	First(k Key) uint64
	// Next returns the candidate at a position, as an index into
	// Input.Members, and the position after it.
	Next(k Key, at uint64) (member int, next uint64)
	// Steps returns how many candidates are worth looking at before the caller
	// turns to a permutation of all members, and whether that many have been
	// every member already.
	Steps() (n int, all bool)
}

// Taker is a Selector that wants to know where a walk ended if its first
// candidate was not taken: at the position after the first one that was, next,
// or where it began, next == first, if nobody was. It keeps its own order, so that a Key which isn't Set may
// come to it without a random Hash.
type Taker interface {
	Took(first, next uint64)
}
