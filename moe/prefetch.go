package moe

// Prefetch says which experts are read before they are demanded.
type Prefetch string

// The modes.
const (
	PrefetchOff       Prefetch = "off"
	PrefetchNextLayer Prefetch = "next-layer" // what the next layer's router says of this layer's input
	PrefetchLastToken Prefetch = "last-token" // what the next layer's router chose for the sequence's token before, decode only
)

// Prefetches are the modes, the default first.
func Prefetches() []Prefetch { return []Prefetch{PrefetchOff, PrefetchNextLayer, PrefetchLastToken} }

// PrefetchNames are the modes as text.
func PrefetchNames() (names []string) {
	for _, p := range Prefetches() {
		names = append(names, string(p))
	}
	return names
}

// PrefetchBound is how many bytes a layer call of so many rows may ask for ahead: asked, or without a word on it as many
// experts of slot bytes as there are rows, and at most a quarter of the cache's budget. Most of a row's prediction is right
// for its first expert and less so for each further one, and a wrong one costs a read.
func PrefetchBound(asked, slot, budget int64, rows int) int64 {
	if asked > 0 {
		return asked
	}
	return min(slot*int64(rows), budget/4)
}
