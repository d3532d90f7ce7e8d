package coact

import (
	"fmt"
	"slices"
)

const (
	// MaxCards is the largest number of cards that a split is made for.
	MaxCards = 16
	// MaxExperts is how many ids the dump's u16 can hold.
	MaxExperts = 1 << 16

	maxPairBytes = 320 << 20 // of pair counts; with everything else the process stays under 512 MiB
)

// Options say what is asked of a dump.
type Options struct {
	Experts   int   // routed experts per layer of the model; ids at or above are refused
	NLayer    int   // layers of the model; a record of a layer at or above is refused. 0: unknown
	Layers    []int // the layers to analyse; nil: all that the dump has
	Cards     int   // 2..MaxCards
	Replicate []int // budgets: how many experts of each layer stand on every card, 0..Experts each
	Threads   int   // goroutines that count and split; 0: one per processor. Results do not depend on it
}

// Validate reports the first option outside its range.
func (o *Options) Validate() error {
	switch {
	case o.Experts < 1 || o.Experts > MaxExperts:
		return fmt.Errorf("coact: %d experts, want 1..%d", o.Experts, MaxExperts)
	case o.Cards < 2 || o.Cards > MaxCards:
		return fmt.Errorf("coact: %d cards, want 2..%d", o.Cards, MaxCards)
	case o.Cards > o.Experts:
		return fmt.Errorf("coact: %d cards for %d experts", o.Cards, o.Experts)
	case o.NLayer < 0:
		return fmt.Errorf("coact: %d layers, want 0 or more", o.NLayer)
	case o.Threads < 0:
		return fmt.Errorf("coact: %d threads, want 0 or more", o.Threads)
	case len(o.Replicate) == 0:
		return fmt.Errorf("coact: no replication budget, want at least one (0 for none replicated)")
	}
	for i, r := range o.Replicate {
		if r < 0 || r > o.Experts {
			return fmt.Errorf("coact: replicate %d of %d experts, want 0..%d", r, o.Experts, o.Experts)
		}
		if slices.Contains(o.Replicate[:i], r) {
			return fmt.Errorf("coact: replicate %d twice", r)
		}
	}
	for i, l := range o.Layers {
		if l < 0 || l > 255 {
			return fmt.Errorf("coact: layer %d, want 0..255", l)
		}
		if slices.Contains(o.Layers[:i], l) {
			return fmt.Errorf("coact: layer %d twice", l)
		}
	}
	return nil
}
