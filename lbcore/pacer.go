package lbcore

// Pacer calls a build's yield every few thousand steps, some tens of
// microseconds. It belongs to one goroutine. The zero Pacer never yields.
type Pacer struct {
	// Yield is what Build was given.
	Yield func() error
	steps int
}

// PacerSteps is how many steps lie between two yields.
const PacerSteps = 4096

// Did counts steps, of which one call has at most PacerSteps, and returns the
// error with which yield ended the build.
func (p *Pacer) Did(steps int) error {
	if p.steps += steps; p.steps < PacerSteps || p.Yield == nil {
		return nil
	}
	p.steps = 0
	return p.Yield()
}

// Clear zeroes words.
func (p *Pacer) Clear(words []uint64) error { return clearWords(p, words) }

// Clear32 is Clear for smaller ones.
func (p *Pacer) Clear32(words []uint32) error { return clearWords(p, words) }

func clearWords[W uint32 | uint64](p *Pacer, words []W) error {
	for len(words) > 0 { // a word is cleared in a small part of a step
		n := min(len(words), 16*PacerSteps)
		clear(words[:n])
		words = words[n:]
		if err := p.Did(n / 16); err != nil {
			return err
		}
	}
	return nil
}
