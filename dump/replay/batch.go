package replay

import (
	"cmp"
	"slices"

	"sluice/dump"
)

// block is a run of batches, so that every cache can go through it in turn or in parallel. All slices but spans are by
// lookup.
type block struct {
	first uint64 // number of the block's first batch
	spans []span
	ids   []int32  // distinct within a batch, in order of first occurrence
	last  []int32  // the batch's ids once more, in order of last occurrence
	next  []uint32 // number of the batch that looks the id up next; never: there is none
	freq  []uint32 // of the id so far, this lookup included
	stamp []uint64 // of the id's last occurrence in the batch
}

// span is one batch's lookups [from, to) of the block.
type span struct {
	from, to int32
	layer    int32
	phase    int8
}

// blockLookups is what a block holds before it is run: large beside the cost of a hand-over, small beside a CPU's cache.
const blockLookups = 1 << 14

// batcher turns cells into batches: a prompt's cells, whatever chunks they came in, become one batch per layer, in the
// order of layers; a decoded token's become one each. Where the trace says which rows were one call, several sequences
// share it, and each call becomes a batch, of decoding if it has a decoded row.
type batcher struct {
	g     *geometry
	seqs  bool
	blk   block
	n     uint64   // batches so far, those in blk included
	clock uint64   // rows
	freq  []uint32 // by id
	stamp []uint64 // by id
	mark  []uint64 // by id: number+1 of the batch that has it
	run   func(*block) error

	turn   int
	prompt [][]int32 // by layer: ids of the prompt so far in order of first occurrence
	inPre  []bool    // by id: in prompt
	filled bool      // prompt has something

	open  bool // seqs: the call from from on is
	from  int
	layer int
	phase int
}

func newBatcher(g *geometry, seqs bool, run func(*block) error) *batcher {
	return &batcher{g: g, seqs: seqs, freq: make([]uint32, g.ids), stamp: make([]uint64, g.ids), mark: make([]uint64, g.ids),
		prompt: make([][]int32, len(g.size)), inPre: make([]bool, g.ids), run: run}
}

func (b *batcher) cell(c *cell) error {
	if b.seqs {
		return b.row(c)
	}
	if b.filled && (c.phase != dump.Prefill || c.turn != b.turn) {
		if err := b.endPrompt(); err != nil {
			return err
		}
	}
	base := b.g.base[c.layer]
	if c.phase == dump.Prefill {
		b.turn, b.filled = c.turn, true
		for _, e := range c.expert {
			id := base + e
			b.clock++
			b.stamp[id] = b.clock
			if !b.inPre[id] {
				b.inPre[id] = true
				b.prompt[c.layer] = append(b.prompt[c.layer], id)
			}
		}
		return nil
	}
	from := len(b.blk.ids)
	b.lookups(c)
	return b.endBatch(from, c.layer, dump.Decode)
}

// lookups adds the cell's to the batch that is being made.
func (b *batcher) lookups(c *cell) {
	base := b.g.base[c.layer]
	for _, e := range c.expert {
		id := base + e
		b.clock++
		b.stamp[id] = b.clock
		if b.mark[id] != b.n+1 {
			b.mark[id] = b.n + 1
			b.blk.ids = append(b.blk.ids, id)
		}
	}
}

// row takes a cell of a call that the trace tells apart from the others.
func (b *batcher) row(c *cell) error {
	if c.newCall {
		if err := b.endCall(); err != nil {
			return err
		}
		b.open, b.from, b.layer, b.phase = true, len(b.blk.ids), c.layer, dump.Prefill
	}
	if c.phase == dump.Decode {
		b.phase = dump.Decode
	}
	b.lookups(c)
	return nil
}

func (b *batcher) endCall() error {
	if !b.open {
		return nil
	}
	b.open = false
	return b.endBatch(b.from, b.layer, b.phase)
}

// endPrompt makes batches of the prompt collected.
func (b *batcher) endPrompt() error {
	b.filled = false
	for layer, ids := range b.prompt {
		if len(ids) == 0 {
			continue
		}
		from := len(b.blk.ids)
		b.blk.ids = append(b.blk.ids, ids...)
		for _, id := range ids {
			b.inPre[id] = false
		}
		b.prompt[layer] = ids[:0]
		if err := b.endBatch(from, layer, dump.Prefill); err != nil {
			return err
		}
	}
	return nil
}

// endBatch completes the batch whose ids begin at from in the block.
func (b *batcher) endBatch(from, layer, phase int) error {
	k := &b.blk
	ids := k.ids[from:]
	k.last = append(k.last, ids...)
	last := k.last[from:]
	byLast := func(x, y int32) int { return cmp.Compare(b.stamp[x], b.stamp[y]) }
	if !slices.IsSortedFunc(last, byLast) {
		slices.SortFunc(last, byLast)
	}
	// Stamped anew: a prompt's layers follow each other, whatever chunks their rows came in.
	for _, id := range last {
		b.clock++
		b.stamp[id] = b.clock
	}
	for _, id := range ids {
		b.freq[id]++
		k.freq = append(k.freq, b.freq[id])
		k.stamp = append(k.stamp, b.stamp[id])
	}
	k.spans = append(k.spans, span{int32(from), int32(len(k.ids)), int32(layer), int8(phase)})
	b.n++
	if len(k.ids) < blockLookups {
		return nil
	}
	return b.flush()
}

// flush runs the block and empties it.
func (b *batcher) flush() error {
	k := &b.blk
	if len(k.spans) == 0 {
		return nil
	}
	err := b.run(k)
	k.first = b.n
	k.spans, k.ids, k.last, k.freq, k.stamp, k.next = k.spans[:0], k.ids[:0], k.last[:0], k.freq[:0], k.stamp[:0], k.next[:0]
	return err
}

// finish completes what is open at the end of the trace.
func (b *batcher) finish() error {
	if err := b.endCall(); err != nil {
		return err
	}
	if b.filled {
		if err := b.endPrompt(); err != nil {
			return err
		}
	}
	return b.flush()
}
