package moe

// Prefetch is a rule for what a layer call asks to be read ahead for the next layer. Whatever the rule, what is asked for
// follows from tokens and configuration alone, so that residency, and with it dropping, stays deterministic.
type Prefetch string

const (
	PrefetchOff Prefetch = "off"
	// PrefetchNextLayer asks for what the next layer's router says of this layer's input.
	PrefetchNextLayer Prefetch = "next-layer"
	// PrefetchLastToken asks, in decode, for what the next layer's router chose for the sequence's token before. In a call
	// of several sequences: for each span of decode rows, in row order, what its sequence's last token chose, in slot
	// order, an expert that is named twice where it is named first.
	PrefetchLastToken Prefetch = "last-token"
)

// PrefetchModes are the rules, the default first.
func PrefetchModes() []Prefetch { return []Prefetch{PrefetchOff, PrefetchNextLayer, PrefetchLastToken} }

// PrefetchBound is how many bytes of the expert cache's budget one layer call may ask for ahead. maxBytes: what the user
// set, 0 for as many experts as rows ask, at most a quarter of the budget: most of a row's prediction is right for its
// first expert and less so for each further one, and a wrong one costs a read. slotBytes: what an expert of the layer that
// is asked for takes of the budget. rows: the rows that ask, of PrefetchLastToken the call's decode rows, else all.
func PrefetchBound(maxBytes, slotBytes, budgetBytes int64, rows int) int64 {
	if maxBytes > 0 {
		return maxBytes
	}
	return min(slotBytes*int64(rows), budgetBytes/4)
}

// PrefetchNames are the rules as text.
func PrefetchNames() (names []string) {
	for _, p := range PrefetchModes() {
		names = append(names, string(p))
	}
	return names
}
