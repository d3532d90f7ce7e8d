package moe

import (
	"fmt"
	"math"
)

// Drop is the cache-aware drop policy: a routed expert that is in no memory level and whose weight is below Frac of the
// uniform share 1/k is skipped instead of read. A resident expert costs no read and is never dropped, so quality is spent
// only where it buys I/O.
//
// The rule, over the T rows of a call and their k = Router.NUsed slots, with the weights as routed:
//
//  1. Slot j of row t would fall if its expert is a miss (Resident 0), float64(w) < Frac*(1.0/k), and j is not the row's
//     top-weighted slot, the first maximum of w in slot order. (With a selection bias that need not be slot 0.) No slot of
//     an exempt row (Call.Exempt) would: it needs all of its experts.
//  2. An expert falls if it is a miss and every slot of the call that selected it would fall: while one row needs the
//     read, the other rows have it for nothing. Slots of a fallen expert are dropped. So an expert that an exempt row
//     selected never falls, in no row.
//  3. With Renorm, a row that lost slots is rescaled to its mass before: before = sum of all its w, kept = sum of the
//     surviving w, both in slot order in float32; if kept > 0, w becomes w * (before/kept).
//
// A row always keeps its top-weighted slot, so no row loses everything. Frac 0 drops nothing.
type Drop struct {
	Frac   float64 // threshold as a fraction of 1/k, 0 to 1
	Renorm bool    // rescale the survivors of a row to its mass before the drop
}

// Validate says whether the policy can be used with nUsed experts a token. A threshold above 0 that cannot drop anything
// is refused: it would look like a setting that has an effect.
func (d Drop) Validate(nUsed int) error {
	if err := d.validFrac(); err != nil {
		return err
	}
	if nUsed < 1 {
		return fmt.Errorf("moe: drop: %d experts used, want at least 1", nUsed)
	}
	if d.Frac > 0 && nUsed == 1 {
		return fmt.Errorf("moe: drop: fraction %v can drop nothing: 1 expert used, and the top-weighted one is never dropped", d.Frac)
	}
	return nil
}

func (d Drop) validFrac() error {
	if !(d.Frac >= 0 && d.Frac <= 1) { // written so that NaN fails
		return fmt.Errorf("moe: drop: fraction %v, want 0 to 1", d.Frac)
	}
	return nil
}

// Share is the threshold of the comparison, Frac*(1.0/k): a weight w falls below it if float64(w) < Share(k).
func (d Drop) Share(k int) float64 {
	return d.Frac * (1.0 / float64(k))
}

// Threshold is the smallest float32 that is not below Share(k). For every float32 w, w < Threshold(k) decides exactly
// what float64(w) < Share(k) decides: a w below the share is below any bound of it, and a w below the least float32 bound
// is no bound, so it is below the share. A device compares with it and needs no float64.
func (d Drop) Threshold(k int) float32 {
	share := d.Share(k)
	t := float32(share)
	if float64(t) < share {
		t = math.Nextafter32(t, float32(math.Inf(1)))
	}
	return t
}

// MarkRow is step 1 of Drop for one row: it sets fall[j] for the slots that would fall, and returns how many. weight: the
// row's weights in slot order, float32 in a live run or float64 where a recording was parsed; miss[j]: the expert of slot
// j is in no memory level; share: Drop.Share of the run's k. No weight may be NaN: a recording's unknown weights are
// left out before. A replay of single rows is done with this; a batch goes on
// with step 2. It allocates nothing.
func MarkRow[W float32 | float64](share float64, weight []W, miss, fall []bool) int {
	top := 0
	for j, w := range weight {
		if w > weight[top] {
			top = j
		}
	}
	n := 0
	for j, w := range weight {
		fall[j] = j != top && miss[j] && float64(w) < share
		if fall[j] {
			n++
		}
	}
	return n
}

// apply is the whole policy in plain steps: it sets s.Dropped and writes the weights as applied (T x K). resident: NExpert,
// nil for everything resident. exempt: T, nil for no exempt row. miss: K of scratch; needed: NExpert of scratch.
func (d Drop) apply(s *Selection, resident []uint8, exempt []bool, applied []float32, miss, needed []bool) {
	copy(applied, s.Weight)
	clear(s.Dropped)
	if resident == nil {
		return
	}
	share := d.Share(s.K)
	for i := 0; i < len(s.Expert); i += s.K {
		if exempt != nil && exempt[i/s.K] {
			continue
		}
		for j, e := range s.Expert[i : i+s.K] {
			miss[j] = resident[e] == Miss
		}
		MarkRow(share, s.Weight[i:i+s.K], miss, s.Dropped[i:i+s.K])
	}
	clear(needed)
	for i, e := range s.Expert {
		if !s.Dropped[i] {
			needed[e] = true
		}
	}
	for i, e := range s.Expert {
		if needed[e] {
			s.Dropped[i] = false
		}
	}
	if !d.Renorm {
		return
	}
	for i := 0; i < len(s.Expert); i += s.K {
		rescale(applied[i:i+s.K], s.Dropped[i:i+s.K])
	}
}

// rescale brings the surviving weights of one row to the row's mass before the drop.
func rescale(weight []float32, dropped []bool) {
	var before, kept float32
	any := false
	for j, w := range weight {
		before += w
		if dropped[j] {
			any = true
		} else {
			kept += w
		}
	}
	// kept is 0 when every weight underflowed; there is nothing to rescale then.
	if !any || !(kept > 0) {
		return
	}
	f := before / kept
	for j, w := range weight {
		weight[j] = float32(w * f)
	}
}
