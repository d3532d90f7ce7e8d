package synth

import (
	"hash/fnv"
	"io"
	"math"
	"math/rand/v2"

	"sluice/kernels"
)

const (
	// runLen is the number of weights in one run: the longest block of any type, so that every type's runs are whole
	// blocks and a run is long enough for copying it to cost more than choosing it.
	runLen = 256
	// deckRuns bounds a deck to half a million weights: small enough for the cache of a core, and enough runs for the
	// rows of a tensor to differ.
	deckRuns = 2048
	// calibrationRuns are quantised first, to learn what rounding does to the spread.
	calibrationRuns = 64
	// chunkBytes is the size of the buffer between a deck and the file.
	chunkBytes = 1 << 20
)

// deck holds quantised runs of one type and one spread.
type deck struct {
	runs  []byte // runBytes each
	order []uint16
}

type deckKey struct {
	typ    kernels.Type
	spread float64
	mean   float64
}

// dealer fills tensors. Decks are made when a tensor first asks for one and hold nothing that depends on the order in
// which tensors are written. Not safe for concurrent use.
type dealer struct {
	seed  uint64
	decks map[deckKey]*deck
	sizes map[deckKey]int // runs
	buf   []byte
}

func newDealer(seed uint64, list []tensor) *dealer {
	d := &dealer{seed: seed, decks: map[deckKey]*deck{}, sizes: map[deckKey]int{}, buf: make([]byte, 0, chunkBytes)}
	for i := range list {
		// A small model needs no full deck. The sum over the model does not depend on how experts are stored.
		t := &list[i]
		key := deckKey{t.typ, t.spread, t.mean}
		runs := t.parts * ((t.elements()/t.parts + runLen - 1) / runLen)
		d.sizes[key] = min(deckRuns, d.sizes[key]+runs)
	}
	return d
}

// rng is the source of one named sequence of numbers: PCG, the same on every machine.
func rng(seed uint64, name string, part uint64) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(name))
	return rand.New(rand.NewPCG(seed, h.Sum64()+part*0x9e3779b97f4a7c15))
}

// normal draws x from nearly a normal distribution of the given spread: sums of eight uniform numbers, in integers, so
// that no machine's math library has a say in the result.
func normal(r *rand.Rand, x []float32, spread float64) {
	const terms = 8
	unit := spread / math.Sqrt(terms*(65536.0*65536.0-1)/12)
	for i := range x {
		sum := 0
		for range terms / 4 {
			v := r.Uint64()
			sum += int(v&0xffff) + int(v>>16&0xffff) + int(v>>32&0xffff) + int(v>>48)
		}
		x[i] = float32((float64(sum) - terms*65535/2.0) * unit)
	}
}

// deck returns the runs of t's type and spread.
func (d *dealer) deck(t *tensor) *deck {
	key := deckKey{t.typ, t.spread, t.mean}
	if k, ok := d.decks[key]; ok {
		return k
	}
	n := d.sizes[key]
	k := &deck{runs: make([]byte, n*t.typ.RowBytes(runLen)), order: make([]uint16, n)}
	x := make([]float32, n*runLen)
	normal(rng(d.seed, "deck "+t.typ.String(), math.Float64bits(t.spread)), x, 1)
	scale := calibrate(t.typ, x[:min(n, calibrationRuns)*runLen], t.spread)
	for i := range x {
		x[i] = float32(x[i]*scale) + float32(t.mean) // rounded in between on every machine
	}
	kernels.Quantize(t.typ, k.runs, x)
	d.decks[key] = k
	return k
}

// calibrate returns the factor that gives x, of spread about 1, the wanted spread after it went through typ and back.
// Coarse types need it: rounding to two bits adds a spread of its own.
func calibrate(typ kernels.Type, x []float32, spread float64) float32 {
	scaled := make([]float32, len(x))
	block := make([]byte, typ.RowBytes(len(x)))
	scale := spread
	for range 3 {
		for i, v := range x {
			scaled[i] = v * float32(scale)
		}
		kernels.Quantize(typ, block, scaled)
		kernels.Dequantize(typ, scaled, block)
		if rms := rootMeanSquare(scaled); rms > 0 {
			scale *= spread / rms
		}
	}
	return float32(scale)
}

func rootMeanSquare(x []float32) float64 {
	sum := 0.0
	for _, v := range x {
		sum += float64(v) * float64(v)
	}
	return math.Sqrt(sum / float64(len(x)))
}

// write writes t's data.
func (d *dealer) write(w io.Writer, t *tensor) error {
	if t.spread == 0 {
		return writeOnes(w, t.elements())
	}
	if t.rows != nil {
		return d.writeShifted(w, t)
	}
	k := d.deck(t)
	for i := range t.parts {
		n := t.bytes() / int64(t.parts)
		if err := d.deal(w, k, t.typ.RowBytes(runLen), n, rng(d.seed, t.source, uint64(t.first+i))); err != nil {
			return err
		}
	}
	return nil
}

// deal writes n bytes of runs. No run comes twice before the deck is through; the last one is cut where the part ends,
// which is the end of a block.
func (d *dealer) deal(w io.Writer, k *deck, runBytes int, n int64, r *rand.Rand) error {
	for i := range k.order {
		k.order[i] = uint16(i)
	}
	buf := d.buf[:0]
	for i := 0; n > 0; i++ {
		// One step of a shuffle: the cards before at are dealt, the next is any of the others.
		at := i % len(k.order)
		pick := at + int(r.Uint64N(uint64(len(k.order)-at)))
		k.order[at], k.order[pick] = k.order[pick], k.order[at]
		run := k.runs[int(k.order[at])*runBytes:][:min(int64(runBytes), n)]
		buf = append(buf, run...)
		n -= int64(len(run))
		if len(buf)+runBytes > cap(buf) || n == 0 {
			if _, err := w.Write(buf); err != nil {
				return err
			}
			buf = buf[:0]
		}
	}
	return nil
}

func writeOnes(w io.Writer, n int) error {
	x := make([]float32, n)
	for i := range x {
		x[i] = 1
	}
	data := make([]byte, kernels.F32.RowBytes(n))
	kernels.Quantize(kernels.F32, data, x)
	_, err := w.Write(data)
	return err
}
