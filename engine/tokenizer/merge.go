package tokenizer

// merger joins neighbouring symbols of a text, the best pair first, until no pair joins. It is the core of both kinds of
// vocabulary and is O(n log n) in the number of symbols: pairs wait in a heap, and one that a join has made stale is
// recognised when it comes up, by the ends of its two symbols.
type merger struct {
	join func(left, right int32) (rank uint32, sym int32, ok bool)

	// Symbols by index. A symbol covers bytes start..end of the text; one that was joined to its left has end 0.
	start, end []int32
	next, prev []int32 // -1 past the ends
	sym        []int32 // the vocabulary's id for the symbol, by the meaning that join gives it
	heap       []pair
}

// pair is a candidate: the symbol with index key&(1<<32-1) and its right neighbour.
type pair struct {
	key      uint64 // rank above index: the lower rank first, on a tie the left one
	mid, end int32  // the ends of the two symbols
	sym      int32  // what they become
}

func (m *merger) reset() {
	m.start, m.end, m.next, m.prev = m.start[:0], m.end[:0], m.next[:0], m.prev[:0]
	m.sym, m.heap = m.sym[:0], m.heap[:0]
}

// add appends a symbol of n bytes.
func (m *merger) add(n int, sym int32) {
	i := int32(len(m.sym))
	start := int32(0)
	if i > 0 {
		start = m.end[i-1]
		m.next[i-1] = i
	}
	m.start, m.end = append(m.start, start), append(m.end, start+int32(n))
	m.prev, m.next = append(m.prev, i-1), append(m.next, -1)
	m.sym = append(m.sym, sym)
}

// run does the joins. The result is the chain of next from symbol 0.
func (m *merger) run() {
	for i := 1; i < len(m.sym); i++ {
		m.consider(int32(i-1), int32(i))
	}
	for len(m.heap) > 0 {
		p := m.pop()
		left := int32(uint32(p.key))
		right := m.next[left]
		if m.end[left] != p.mid || right < 0 || m.end[right] != p.end {
			continue
		}
		m.end[left], m.sym[left] = p.end, p.sym
		m.end[right] = 0
		after := m.next[right]
		m.next[left] = after
		if after >= 0 {
			m.prev[after] = left
		}
		m.consider(m.prev[left], left)
		m.consider(left, after)
	}
}

func (m *merger) consider(left, right int32) {
	if left < 0 || right < 0 {
		return
	}
	if rank, sym, ok := m.join(left, right); ok {
		m.push(pair{key: uint64(rank)<<32 | uint64(left), mid: m.end[left], end: m.end[right], sym: sym})
	}
}

func (m *merger) push(p pair) {
	m.heap = append(m.heap, p)
	h, i := m.heap, len(m.heap)-1
	for i > 0 {
		up := (i - 1) / 2
		if h[up].key <= p.key {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = p
}

func (m *merger) pop() pair {
	h := m.heap
	top, p := h[0], h[len(h)-1]
	h = h[:len(h)-1]
	m.heap = h
	for i := 0; len(h) > 0; {
		down := 2*i + 1
		if down+1 < len(h) && h[down+1].key < h[down].key {
			down++
		}
		if down >= len(h) || p.key <= h[down].key {
			h[i] = p
			break
		}
		h[i] = h[down]
		i = down
	}
	return top
}
