package replay

import (
	"errors"
	"fmt"
	"math"
)

// never is the next use of what is not used again.
const never = math.MaxUint32

// lookahead is the number of the batch in which each lookup's expert is looked up next: 4 bytes a lookup, in chunks, so
// that growing never holds it twice.
type lookahead struct {
	chunks [][]uint32
	n      int
	last   []int64 // by id: its last lookup so far, -1 for none
	read   int     // lookups given out
}

const lookaheadChunk = 1 << 16

func newLookahead(ids int) *lookahead {
	l := &lookahead{last: make([]int64, ids)}
	for i := range l.last {
		l.last[i] = -1
	}
	return l
}

// add is the first pass.
func (l *lookahead) add(b *block) error {
	if b.first+uint64(len(b.spans)) >= never {
		return fmt.Errorf("more than %d batches: too many for belady", uint32(never))
	}
	for i, s := range b.spans {
		for _, id := range b.ids[s.from:s.to] {
			if p := l.last[id]; p >= 0 {
				l.chunks[p/lookaheadChunk][p%lookaheadChunk] = uint32(b.first) + uint32(i)
			}
			if l.n%lookaheadChunk == 0 {
				l.chunks = append(l.chunks, make([]uint32, lookaheadChunk))
			}
			l.last[id] = int64(l.n)
			l.chunks[l.n/lookaheadChunk][l.n%lookaheadChunk] = never
			l.n++
		}
	}
	return nil
}

// fill is the second pass: it sets b.next.
func (l *lookahead) fill(b *block) error {
	if l.read+len(b.ids) > l.n {
		return errors.New("the trace grew between the two passes that belady needs")
	}
	for range b.ids {
		b.next = append(b.next, l.chunks[l.read/lookaheadChunk][l.read%lookaheadChunk])
		l.read++
	}
	return nil
}
