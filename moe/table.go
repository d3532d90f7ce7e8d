package moe

// Table is the work of a layer call, grouped by expert: which rows go through which expert, with which weight. Expert e
// has the entries Offsets[e] to Offsets[e+1]-1. Only kept slots are in it; the tokens of one expert ascend.
type Table struct {
	Offsets []int32   // NExpert+1, from 0 to the number of kept slots
	Token   []int32   // kept slots: row of the call, 0 to T-1
	Weight  []float32 // kept slots: weight as applied, after the drop's rescaling
}

// NewTable returns an empty table with room for maxT rows of nUsed slots over nExpert experts. The caller owns it; the
// arms write into it and allocate nothing.
func NewTable(nExpert, nUsed, maxT int) *Table {
	return &Table{
		Offsets: make([]int32, nExpert+1),
		Token:   make([]int32, 0, nUsed*maxT),
		Weight:  make([]float32, 0, nUsed*maxT),
	}
}

// Rows returns the rows of the call that go through expert e, ascending, and their weights: views into the table.
func (t *Table) Rows(e int) (token []int32, weight []float32) {
	lo, hi := t.Offsets[e], t.Offsets[e+1]
	return t.Token[lo:hi], t.Weight[lo:hi]
}

// fits says whether n entries over nExpert experts have room.
func (t *Table) fits(nExpert, n int) bool {
	return nExpert+1 <= cap(t.Offsets) && n <= cap(t.Token) && n <= cap(t.Weight)
}

// group fills the table from a selection and its weights as applied (T x K). fill: NExpert of scratch.
func (t *Table) group(s *Selection, applied []float32, nExpert int, fill []int32) {
	clear(fill)
	kept := 0
	for i, e := range s.Expert {
		if !s.Dropped[i] {
			fill[e]++
			kept++
		}
	}
	t.Offsets = t.Offsets[:nExpert+1]
	t.Offsets[0] = 0
	for e, n := range fill {
		t.Offsets[e+1] = t.Offsets[e] + n
		fill[e] = t.Offsets[e]
	}
	t.Token, t.Weight = t.Token[:kept], t.Weight[:kept]
	for i, e := range s.Expert { // rows ascend, so the tokens of an expert do
		if !s.Dropped[i] {
			t.Token[fill[e]] = int32(i / s.K)
			t.Weight[fill[e]] = applied[i]
			fill[e]++
		}
	}
}
