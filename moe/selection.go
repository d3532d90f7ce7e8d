package moe

// Selection is what the router chose for the T rows of a call, K slots each, slot j of row t at index t*K+j. Slots stand
// in order of descending selection score, the lower expert id first on a tie; with a selection bias that need not be the
// order of the weights. It records the router and, apart from it, the policy: Weight is as routed, whether or not the
// slot was dropped.
type Selection struct {
	T, K    int
	Expert  []int32   // T x K expert ids, distinct within a row
	Weight  []float32 // T x K weights as routed, before any drop or rescaling
	Dropped []bool    // T x K: the policy skipped the slot
}

// NewSelection returns an empty selection with room for maxT rows of nUsed slots. The caller owns it; the arms write into
// it and allocate nothing.
func NewSelection(nUsed, maxT int) *Selection {
	n := nUsed * maxT
	return &Selection{Expert: make([]int32, n), Weight: make([]float32, n), Dropped: make([]bool, n)}
}

// fits says whether n slots have room.
func (s *Selection) fits(n int) bool {
	return n <= cap(s.Expert) && n <= cap(s.Weight) && n <= cap(s.Dropped)
}

func (s *Selection) resize(t, k int) {
	n := t * k
	s.T, s.K = t, k
	s.Expert, s.Weight, s.Dropped = s.Expert[:n], s.Weight[:n], s.Dropped[:n]
}
