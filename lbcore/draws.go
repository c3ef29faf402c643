package lbcore

import "math"

// Draws draws members at random in proportion to their shares, for the
// policies that do. A draw reads one word of an alias table, however many
// members there are; where all shares are the same there is no table. It is
// not written after NewDraws. The zero Draws is of no use.
type Draws struct {
	n uint64
	// Slot i is drawn as often as any other. It stands for member i if the
	// random half word is below the upper half of table[i], and else for the
	// member in the lower half.
	table []uint64
}

// DrawsShape returns how many elements of each kind of storage NewDraws needs.
func DrawsShape(in Input) (u64, u32 int) {
	if n := len(in.Shares); !in.Equal() {
		return n, n
	}
	return 0, 0
}

// NewDraws builds the Draws of in in the beginning of st, by Vose's method. It
// gives up with yield's error.
func NewDraws(in Input, st *Storage, yield func() error) (Draws, error) {
	n := len(in.Shares)
	d := Draws{n: uint64(n)}
	if in.Equal() {
		return d, nil
	}
	d.table = st.U64[:n:n]
	p := &Pacer{Yield: yield}
	// A slot that is not done holds the bits of its member's probability, in
	// units of a slot. Two stacks in one hold those slots: below 1 from the
	// front, the rest from the back.
	stack, small, large := st.U32[:n], 0, n
	push := func(i uint32, part float64) {
		d.table[i] = math.Float64bits(part)
		if part < 1 {
			stack[small] = i
			small++
		} else {
			large--
			stack[large] = i
		}
	}
	for i, share := range in.Shares {
		push(uint32(i), share*float64(n))
		if err := p.Did(1); err != nil {
			return Draws{}, err
		}
	}
	for small > 0 && large < n {
		small--
		lack, give := stack[small], stack[large]
		large++
		part := math.Float64frombits(d.table[lack])
		d.table[lack] = drawSlot(part, give)
		push(give, math.Float64frombits(d.table[give])+part-1)
		if err := p.Did(1); err != nil {
			return Draws{}, err
		}
	}
	// What is left has a slot for itself, but for rounding.
	for _, rest := range [][]uint32{stack[:small], stack[large:]} {
		for _, i := range rest {
			d.table[i] = drawSlot(1, i)
			if err := p.Did(1); err != nil {
				return Draws{}, err
			}
		}
	}
	return d, nil
}

// drawSlot returns a slot's word. A member of the smallest share can still be
// drawn.
func drawSlot(p float64, alias uint32) uint64 {
	return uint64(min(max(p*(1<<32), 1), 1<<32-1))<<32 | uint64(alias)
}

// Next draws the member at a position, which is any number, and returns it
// with the position of the next draw. Draws from positions that follow one
// another are independent.
func (d *Draws) Next(at uint64) (member int, next uint64) {
	at += 0x9e3779b97f4a7c15 // splitmix64
	x := (at ^ at>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return d.draw(x ^ x>>31), at
}

// draw returns a member for 64 random bits.
func (d *Draws) draw(x uint64) int {
	i := x >> 32 * d.n >> 32
	if d.table == nil {
		return int(i)
	}
	w := d.table[i]
	if x&(1<<32-1) >= w>>32 {
		i = w & (1<<32 - 1)
	}
	return int(i)
}
