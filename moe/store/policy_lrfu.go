package store

import (
	"math"
	"slices"
)

// lrfuHalfLife is after how many uses, per expert that the cache could hold in all, a use counts half: some 16 tokens of
// a model that uses 8 of 64 experts. Replays of recorded runs gave the fewest misses between one and four.
const lrfuHalfLife = 2

// lrfuRescale bounds the scores: where a new use counts more, all are divided by it. It is a power of two, so that nothing
// is rounded but what is next to nothing.
const lrfuRescale = 1 << 60

// lrfu evicts the expert with the lowest score, the sum over its uses of 2^-(age/half-life), age counted in uses of any
// expert (Lee et al.: LRFU, a spectrum of policies that subsumes the least recently used and least frequently used
// policies, 2001). What was used often and lately stays; one pass over many experts, as a prompt makes, counts as one use
// each. Scores outlive eviction, so that an expert which comes back again and again gains a place. Equal scores: the
// lower id goes first.
//
// Instead of ageing all scores at every use, a use counts more than the one before it; their order is the same.
//
// The order is kept only as far as somebody looks at it: a hit costs an addition, and an expert takes its new place when
// the next one to evict is asked for. In a cache that holds everything nobody ever asks.
type lrfu struct {
	score  []float64 // by id
	use    float64   // what the next use counts
	growth float64
	order  []int32   // resident ids by key, the lowest first
	key    []float64 // by id: the score that its place in order was chosen by
	moved  []int32   // residents whose score has grown since
	at     []int32   // by id: its place in moved and 1 more; 0: not there
}

func newLRFU(ids int) *lrfu {
	const ln2 = 0.6931471805599453
	// 2^(1/half-life), to first order and from operations that every machine rounds alike.
	growth := 1 + ln2/float64(lrfuHalfLife*max(1, ids))
	return &lrfu{score: make([]float64, ids), use: 1, growth: growth, order: make([]int32, 0, ids),
		key: make([]float64, ids), moved: make([]int32, 0, ids), at: make([]int32, ids)}
}

func (p *lrfu) count(id int32) {
	p.score[id] += p.use
	if p.use *= p.growth; p.use < lrfuRescale {
		return
	}
	for i := range p.score {
		p.score[i] /= lrfuRescale
	}
	p.use /= lrfuRescale
	p.sort() // two that were next to nothing may have become equal
}

// compare orders by key.
func (p *lrfu) compare(a, b int32) int {
	switch ka, kb := p.key[a], p.key[b]; {
	case ka < kb:
		return -1
	case ka > kb:
		return 1
	}
	return int(a) - int(b)
}

// place is where an id stands in the order by its key, or where it would.
func (p *lrfu) place(id int32) int {
	lo, hi := 0, len(p.order)
	for lo < hi {
		if mid := int(uint(lo+hi) / 2); p.compare(p.order[mid], id) < 0 {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// enter gives an id that is not in the order its place by its score.
func (p *lrfu) enter(id int32) {
	p.key[id] = p.score[id]
	p.order = slices.Insert(p.order, p.place(id), id)
}

// leave takes an id out of the order.
func (p *lrfu) leave(id int32) {
	i := p.place(id)
	p.order = slices.Delete(p.order, i, i+1)
}

// settle gives every id its place by its score.
func (p *lrfu) settle() {
	switch n := len(p.moved); {
	case n == 0:
		return
	case n > 8 && n > len(p.order)/8: // two searches and moves each would cost more
		p.sort()
		return
	}
	for _, id := range p.moved {
		p.at[id] = 0
		p.leave(id)
		p.enter(id)
	}
	p.moved = p.moved[:0]
}

// sort is settle for many.
func (p *lrfu) sort() {
	for _, id := range p.moved {
		p.at[id] = 0
	}
	p.moved = p.moved[:0]
	for _, id := range p.order {
		p.key[id] = p.score[id]
	}
	slices.SortFunc(p.order, p.compare)
}

func (p *lrfu) Insert(id int32, _ int64) {
	p.count(id)
	p.enter(id)
}

func (p *lrfu) Touch(id int32) {
	if p.at[id] == 0 {
		p.moved = append(p.moved, id)
		p.at[id] = int32(len(p.moved))
	}
	p.count(id)
}

func (p *lrfu) Remove(id int32) {
	if i := p.at[id]; i > 0 {
		last := p.moved[len(p.moved)-1]
		p.moved[i-1], p.at[last] = last, i
		p.moved, p.at[id] = p.moved[:len(p.moved)-1], 0
	}
	p.leave(id)
}

func (p *lrfu) First() int32 {
	p.settle()
	return p.nth(0)
}

func (p *lrfu) Next(id int32) int32 {
	p.settle()
	return p.nth(p.place(id) + 1)
}

func (p *lrfu) nth(i int) int32 {
	if i < len(p.order) {
		return p.order[i]
	}
	return -1
}

// adopt makes ids, the next to be evicted first, what is resident, with the highest scores that their order and uses
// allow: a score is at most the number of uses, its own and that of each one above it. When the uses were is not known,
// nor those of experts that are not among the ids.
func (p *lrfu) adopt(ids []int32, uses []uint32) {
	clear(p.score)
	p.use, p.order = 1, append(p.order[:0], ids...)
	least := uint32(math.MaxUint32)
	for i := len(ids) - 1; i >= 0; i-- {
		least = min(least, max(1, uses[i]))
		p.score[ids[i]] = float64(least) * (1 + float64(i)/(1<<40)) // ascending among equals too
	}
	p.sort()
}

// scores returns what the next use counts, and the score of every id; it is the policy's own memory.
func (p *lrfu) scores() (use float64, score []float64) { return p.use, p.score }

// restore goes on from scores: ids are resident.
func (p *lrfu) restore(ids []int32, use float64, score []float64) {
	p.use, p.order = use, append(p.order[:0], ids...)
	copy(p.score, score)
	p.sort()
}
