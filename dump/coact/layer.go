package coact

// layer holds all that is counted of one layer.
type layer struct {
	index  int    // in the model
	at     int    // in analysis.layers
	n, k   int    // experts, top-k
	tokens uint64 // of the dump
	fit    uint64 // the first so many are the fit tokens
	next   uint64 // tokens read by the pass in progress

	pairs    []uint32 // n x n: tokens that picked both experts; on the diagonal, tokens that picked the expert
	fitPairs []uint32 // the same over the fit tokens

	cands  []candidate
	scorer scorer
}

// fitTokens is how many tokens of a layer the split is fitted to: 70 %, rounded down.
func fitTokens(tokens uint64) uint64 { return tokens * 7 / 10 }

// count adds a batch to the pair counts, above or below the diagonal as the slots come. The fit tokens are the first
// ones, so their counts are those of the moment when the last of them was added.
func (l *layer) count(b *batch) {
	t := b.first
	for ids := b.ids; len(ids) > 0; ids = ids[l.k:] {
		if t == l.fit {
			copy(l.fitPairs, l.pairs)
		}
		t++
		tok := ids[:l.k]
		for i, e := range tok {
			row := l.pairs[int(e)*l.n : (int(e)+1)*l.n]
			for _, f := range tok[i:] {
				row[f]++
			}
		}
	}
}

// settle makes the counts symmetric once all tokens are in.
func (l *layer) settle() {
	for _, m := range [][]uint32{l.pairs, l.fitPairs} {
		for a := range l.n {
			for b := range a {
				s := m[a*l.n+b] + m[b*l.n+a]
				m[a*l.n+b], m[b*l.n+a] = s, s
			}
		}
	}
}

// picks returns how many tokens picked each expert, over the fit tokens or over all.
func (l *layer) picks(fit bool) []uint64 {
	m := l.pairs
	if fit {
		m = l.fitPairs
	}
	c := make([]uint64, l.n)
	for e := range c {
		c[e] = uint64(m[e*l.n+e])
	}
	return c
}
