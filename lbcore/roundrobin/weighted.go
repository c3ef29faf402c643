package roundrobin

import (
	"math"
	"math/bits"

	"gatehouse.internal/lbcore"
)

// weights are whole numbers in proportion to the shares of an Input.
type weights struct {
	in     lbcore.Input
	common uint64 // divides all weights of the endpoints; 0: see shares
	sum    uint64
}

// newWeights takes the endpoints' own weights if the shares follow them.
func newWeights(in lbcore.Input, p *lbcore.Pacer) (w weights, err error) {
	w.in = in
	total := uint64(0)
	for _, e := range in.Endpoints {
		total += uint64(e.Weight)
		w.common = gcd(uint64(e.Weight), w.common)
		if err := p.Did(1); err != nil {
			return w, err
		}
	}
	w.sum = total / w.common
	for i, e := range in.Endpoints {
		if float64(e.Weight)/float64(total) != in.Shares[i] {
			w.common, w.sum = 0, 0
			break
		}
		if err := p.Did(1); err != nil {
			return w, err
		}
	}
	for i := 0; w.common == 0 && i < len(in.Shares); i++ {
		w.sum += w.of(i)
		if err := p.Did(1); err != nil {
			return w, err
		}
	}
	return w, nil
}

// of returns the weight of member i.
func (w *weights) of(i int) uint64 {
	if w.common == 0 {
		return uint64(max(1, math.Round(w.in.Shares[i]*(1<<32))))
	}
	return uint64(w.in.Endpoints[i].Weight) / w.common
}

// short reports whether a cycle is written down.
func (w *weights) short() bool { return w.sum <= max(4096, 8*uint64(len(w.in.Members))) }

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// golden is the golden section of 2^64. Its multiples are spread evenly, any
// number of them.
const golden = 0x9e3779b97f4a7c15

// schedule is the selector of a short cycle: who has which ticket.
type schedule struct {
	tickets
	who []uint32
}

// scheduleShape returns how much storage newSchedule needs.
func scheduleShape(w weights) (u64, u32 int) {
	n := len(w.in.Members)
	return n, int(w.sum) + 2*n
}

// newSchedule writes a schedule into the beginning of st. Turn k of a member of
// weight w is for a ticket from k/w to (k+1)/w of the cycle, both rounded to
// whole tickets so that there may be one more; among those who may have a ticket
// it goes to the one that has the least time left. That always comes out, and
// nobody is ever a whole turn from its part. It is what Pfair scheduling does
// with one processor.
func newSchedule(t tickets, w weights, st *lbcore.Storage, p *lbcore.Pacer) (lbcore.Selector, error) {
	n := len(w.in.Members)
	// A ticket that is not given out yet has a list of those who may have it and
	// not one before.
	who, next, turn := st.U32[:w.sum:w.sum], st.U32[w.sum:][:n], st.U32[w.sum:][n:2*n]
	const nobody = math.MaxUint32
	for i := range who {
		who[i] = nobody
		if err := p.Did(1); err != nil {
			return nil, err
		}
	}
	for i := range uint32(n) {
		turn[i], next[i], who[0] = 0, who[0], i
		if err := p.Did(1); err != nil {
			return nil, err
		}
	}
	waiting := heap(st.U64[:0:n]) // the end of one's time, and the member
	for ticket := range w.sum {
		for i := who[ticket]; i != nobody; i = next[i] {
			weight := w.of(int(i))
			waiting.push(((uint64(turn[i])+1)*w.sum+weight-1)/weight<<32 | uint64(i))
			if err := p.Did(1); err != nil {
				return nil, err
			}
		}
		i := uint32(waiting.pop())
		who[ticket] = i
		turn[i]++
		if weight := w.of(int(i)); uint64(turn[i]) < weight {
			from := max(ticket+1, uint64(turn[i])*w.sum/weight)
			next[i], who[from] = who[from], i
		}
		if err := p.Did(1); err != nil {
			return nil, err
		}
	}
	return &schedule{t, who}, nil
}

// heap is a binary heap, the least first.
type heap []uint64

func (h *heap) push(x uint64) {
	i := len(*h)
	*h = append(*h, x)
	for ; i > 0 && (*h)[(i-1)/2] > x; i = (i - 1) / 2 {
		(*h)[i] = (*h)[(i-1)/2]
	}
	(*h)[i] = x
}

func (h *heap) pop() uint64 {
	a := *h
	least, x := a[0], a[len(a)-1]
	a = a[:len(a)-1]
	i := 0
	for {
		c := 2*i + 1
		if c+1 < len(a) && a[c+1] < a[c] {
			c++
		}
		if c >= len(a) || a[c] >= x {
			break
		}
		a[i] = a[c]
		i = c
	}
	if len(a) > 0 {
		a[i] = x
	}
	*h = a
	return least
}

// Next implements [lbcore.Selector].
func (s *schedule) Next(_ lbcore.Key, at uint64) (int, uint64) {
	return int(s.who[s.turn(at)]), at + 1
}

// Steps implements [lbcore.Selector].
func (s *schedule) Steps() (int, bool) { return 32, false }

// rotation is the selector of a long cycle. Members lie end to end on a circle,
// each as long as its weight. Ticket t points at t * step, where step is about
// the golden section of the circle: any number of tickets one after the other
// point at places that are spread evenly, and a whole cycle at each place once.
type rotation struct {
	tickets
	step uint64
	ends []uint64 // where each member ends
	// The circle is cut into as many parts as there are members: from[b] is the
	// first member that does not end before part b, and scale / 2^64 how many
	// parts a unit of length is.
	from  []uint32
	scale uint64
}

// newRotation builds a rotation in the beginning of st.
func newRotation(t tickets, w weights, st *lbcore.Storage, p *lbcore.Pacer) (lbcore.Selector, error) {
	n := len(w.in.Members)
	r := &rotation{tickets: t, step: goldenStep(w.sum), ends: st.U64[:n:n], from: st.U32[: n+1 : n+1]}
	r.scale, _ = bits.Div64(uint64(n), 0, w.sum)
	end, part := uint64(0), uint64(0)
	for i := range n {
		end += w.of(i)
		r.ends[i] = end
		for last := r.part(end - 1); part <= last; part++ {
			r.from[part] = uint32(i)
		}
		if err := p.Did(1); err != nil {
			return nil, err
		}
	}
	for ; part <= uint64(n); part++ {
		r.from[part] = uint32(n - 1)
	}
	return r, nil
}

// goldenStep returns a number without a common divisor with the circle whose
// multiples are spread evenly on it. The smaller the terms of a fraction's
// continued fraction, the more evenly.
func goldenStep(circle uint64) (best uint64) {
	step, _ := bits.Mul64(golden, circle)
	least := uint64(math.MaxUint64)
	for tried := 0; tried < 64 || best == 0; tried++ {
		terms, a, b := uint64(0), circle, step
		for b != 0 {
			terms += a / b
			a, b = b, a%b
		}
		if a == 1 && terms < least {
			best, least = step, terms
		}
		step++
	}
	return best
}

func (r *rotation) part(place uint64) uint64 {
	part, _ := bits.Mul64(place, r.scale)
	return part
}

// Next implements [lbcore.Selector].
func (r *rotation) Next(_ lbcore.Key, at uint64) (int, uint64) {
	hi, lo := bits.Mul64(r.turn(at), r.step)
	_, place := bits.Div64(hi, lo, r.cycle)
	part := r.part(place)
	i, last := r.from[part], r.from[part+1]
	for i < last {
		if mid := i + (last-i)/2; r.ends[mid] <= place {
			i = mid + 1
		} else {
			last = mid
		}
	}
	return int(i), at + 1
}

// Steps implements [lbcore.Selector].
func (r *rotation) Steps() (int, bool) { return 32, false }
