package kernels

import (
	"fmt"
	"math"
	"strconv"
	"sync/atomic"
)

// Rope rotates the first 2*len(cos) values of one head, x, in place: pair j turns by the angle whose cosine and sine are
// cos[j] and sin[j]. neox pairs (j, j+len(cos)), otherwise (2j, 2j+1). The rest of x is left alone. len(sin) must equal
// len(cos). It allocates nothing; concurrent calls need distinct x.
//
// Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", section 3.2.2.
func Rope(x, cos, sin []float32, neox bool) {
	h := len(cos)
	if len(sin) != h {
		panicLen("Rope", h, len(sin))
	}
	if len(x) < 2*h {
		panicRope(len(x), 2*h)
	}
	if neox {
		ropeHalves(x[:h], x[h:2*h], cos, sin)
	} else {
		ropePairs(x[:2*h], cos, sin)
	}
}

func ropeHalvesGeneric(a, b, cos, sin []float32) {
	for j, c := range cos {
		s, u, v := sin[j], a[j], b[j]
		a[j] = float32(u*c) - float32(v*s)
		b[j] = float32(u*s) + float32(v*c)
	}
}

func ropePairsGeneric(x, cos, sin []float32) {
	for j, c := range cos {
		s, u, v := sin[j], x[2*j], x[2*j+1]
		x[2*j] = float32(u*c) - float32(v*s)
		x[2*j+1] = float32(u*s) + float32(v*c)
	}
}

//go:noinline
func panicRope(have, want int) {
	panic("kernels: Rope: head of " + strconv.Itoa(have) + " values, table rotates " + strconv.Itoa(want))
}

// RopeConfig says which angles a model turns by. The GGUF key of each field stands behind it, without the architecture's
// prefix. A config is plain data; Validate tells whether NewRopeTable takes it.
type RopeConfig struct {
	NRot int     // values rotated per head, even (rope.dimension_count)
	Base float64 // > 0 (rope.freq_base, 10000 when absent)

	// ScalingType is "none" or "" (angles as trained), "linear" (positions divided by Factor) or "yarn"
	// (rope.scaling.type). For models with per-pair factors ("longrope") it is "linear" or "none" plus FreqFactors.
	ScalingType string
	Factor      float64 // > 0 unless ScalingType is none (rope.scaling.factor, 1 when absent)

	// The following four matter for yarn only, except that AttnFactor always multiplies cosines and sines.
	OrigCtx    int     // context length of training before the extension, > 0 (rope.scaling.original_context_length)
	ExtFactor  float64 // weight of the unscaled angles; negative means not set, which is 1 (rope.scaling.yarn_ext_factor)
	AttnFactor float64 // 0 means not set, which is 1; on top of YarnMagnitude(Factor, 1) (rope.scaling.attn_factor)
	BetaFast   float64 // turns over OrigCtx above which a pair is not scaled; 0 means 32 (rope.scaling.yarn_beta_fast)
	BetaSlow   float64 // turns below which a pair is scaled fully; 0 means 1 (rope.scaling.yarn_beta_slow)

	FreqFactors []float32 // divisors of the frequencies, NRot/2 or nil (tensor rope_freqs.weight)
}

// Validate returns an error that names the field, its value and what was wanted. Conditions are written so that NaN fails.
func (c *RopeConfig) Validate() error {
	positive := func(name string, v float64) error {
		if v > 0 && !math.IsInf(v, 1) {
			return nil
		}
		return fmt.Errorf("kernels: rope: %s is %v, want a positive number", name, v)
	}
	if c.NRot < 0 || c.NRot%2 != 0 {
		return fmt.Errorf("kernels: rope: %d rotated dimensions, want an even number", c.NRot)
	}
	if err := positive("frequency base", c.Base); err != nil {
		return err
	}
	if !(c.AttnFactor >= 0) || math.IsInf(c.AttnFactor, 1) {
		return fmt.Errorf("kernels: rope: attention factor is %v, want a positive number, or 0 for 1", c.AttnFactor)
	}
	if c.FreqFactors != nil && len(c.FreqFactors) != c.NRot/2 {
		return fmt.Errorf("kernels: rope: %d frequency factors for %d rotated dimensions, want %d",
			len(c.FreqFactors), c.NRot, c.NRot/2)
	}
	for j, f := range c.FreqFactors {
		if err := positive("frequency factor "+strconv.Itoa(j), float64(f)); err != nil {
			return err
		}
	}
	switch c.ScalingType {
	case "", "none":
		return nil
	case "linear", "yarn":
	default:
		return fmt.Errorf("kernels: rope: scaling type %q, want one of none, linear, yarn", c.ScalingType)
	}
	if err := positive("scaling factor", c.Factor); err != nil || c.ScalingType == "linear" {
		return err
	}
	if c.OrigCtx <= 0 {
		return fmt.Errorf("kernels: rope: yarn with an original context of %d, want a positive length", c.OrigCtx)
	}
	if c.Base <= 1 {
		return fmt.Errorf("kernels: rope: yarn with a frequency base of %v, want more than 1", c.Base)
	}
	if math.IsNaN(c.ExtFactor) || math.IsInf(c.ExtFactor, 0) {
		return fmt.Errorf("kernels: rope: yarn extrapolation factor is %v, want a number", c.ExtFactor)
	}
	for _, b := range []struct {
		name string
		v    float64
	}{{"yarn beta_fast", c.BetaFast}, {"yarn beta_slow", c.BetaSlow}} {
		if b.v != 0 {
			if err := positive(b.name, b.v); err != nil {
				return err
			}
		}
	}
	return nil
}

// YarnMagnitude returns 0.1*mscale*ln(factor) + 1 for factor > 1, else 1: what YaRN multiplies cosines and sines with
// (mscale 1), and what DeepSeek models square into their softmax scale (mscale_all_dim). Source: Peng et al., "YaRN:
// Efficient Context Window Extension of Large Language Models", section 3.4.
func YarnMagnitude(factor, mscale float64) float64 {
	if factor > 1 {
		return float64(0.1*mscale*math.Log(factor)) + 1
	}
	return 1
}

// frequencies returns the angle per position of each of the NRot/2 pairs, and the factor on cosines and sines.
//
// Linear scaling divides all angles by Factor. YaRN ("NTK-by-parts", section 3.2 of the paper) mixes per pair between the
// divided and the plain angle: pairs that make more than BetaFast turns over OrigCtx stay as trained, those with fewer
// than BetaSlow are divided, and a ramp over the pair's index, with its ends rounded outwards to whole indices and cut to
// [0, NRot-1], lies between. FreqFactors divide the plain angle before either.
func (c *RopeConfig) frequencies() (freq []float64, magnitude float64) {
	n := float64(c.NRot)
	scale, ext := 1.0, 0.0
	magnitude = c.AttnFactor
	if magnitude == 0 {
		magnitude = 1
	}
	if c.ScalingType == "linear" || c.ScalingType == "yarn" {
		scale = 1 / c.Factor
	}
	var low, high float64
	if c.ScalingType == "yarn" {
		ext = c.ExtFactor
		if ext < 0 {
			ext = 1
		}
		fast, slow := c.BetaFast, c.BetaSlow
		if fast == 0 {
			fast = 32
		}
		if slow == 0 {
			slow = 1
		}
		// The (fractional) index of the pair that makes the given number of turns over the original context.
		index := func(turns float64) float64 {
			return n * math.Log(float64(c.OrigCtx)/(turns*2*math.Pi)) / (2 * math.Log(c.Base))
		}
		low = max(0, math.Floor(index(fast)))
		high = min(n-1, math.Ceil(index(slow)))
		if ext != 0 {
			magnitude *= YarnMagnitude(c.Factor, 1)
		}
	}
	freq = make([]float64, c.NRot/2)
	for j := range freq {
		plain := math.Pow(c.Base, -2*float64(j)/n)
		if c.FreqFactors != nil {
			plain /= float64(c.FreqFactors[j])
		}
		// 0.001 as in the paper's code: the ramp of two equal ends is a step, not a division by zero.
		ramp := (float64(j) - low) / max(0.001, high-low)
		mix := (1 - min(1, max(0, ramp))) * ext
		freq[j] = float64(plain*scale*(1-mix)) + float64(plain*mix)
	}
	return freq, magnitude
}

// ropeChunk is the number of positions whose angles are computed together.
const ropeChunk = 256

// RopeTable holds cosines and sines of every position below a limit. Blocks of 256 positions are computed when one of them
// is first asked for: 4*NRot*256 bytes each, so 4*NRot bytes per position reached (a head of 128 at 32768 positions: 16
// MiB). Reserve moves that allocation out of a hot loop. Angles, cosines and sines are float64, rounded once; a table does
// not drift with the position as one that multiplies float32 angles does. Between architectures an entry may differ in its
// last bit, as package math's own results may. Safe for concurrent use.
type RopeTable struct {
	half      int
	nCtx      int
	magnitude float64
	freq      []float64                   // half
	chunks    []atomic.Pointer[[]float32] // per 256 positions: for each, half cosines, then half sines
}

// NewRopeTable returns the table of positions 0..nCtx-1. It panics on a config that Validate refuses: a config that comes
// from a file must be validated where the file can be named. It keeps no reference to c.FreqFactors.
func NewRopeTable(c RopeConfig, nCtx int) *RopeTable {
	if err := c.Validate(); err != nil {
		panic(err.Error())
	}
	nCtx = max(nCtx, 0)
	freq, magnitude := c.frequencies()
	return &RopeTable{
		half:      c.NRot / 2,
		nCtx:      nCtx,
		magnitude: magnitude,
		freq:      freq,
		chunks:    make([]atomic.Pointer[[]float32], (nCtx+ropeChunk-1)/ropeChunk),
	}
}

// Cos returns the NRot/2 cosines of a position, a view that must not be written. It panics unless 0 <= pos < nCtx.
func (t *RopeTable) Cos(pos int) []float32 {
	at := pos % ropeChunk * 2 * t.half
	return t.chunk(pos)[at : at+t.half : at+t.half]
}

// Sin returns the NRot/2 sines of a position, as Cos does.
func (t *RopeTable) Sin(pos int) []float32 {
	at := (pos%ropeChunk*2 + 1) * t.half
	return t.chunk(pos)[at : at+t.half : at+t.half]
}

// Reserve computes whatever is still missing for positions 0..n-1, so that Cos and Sin do not allocate below n.
func (t *RopeTable) Reserve(n int) {
	for pos := 0; pos < min(n, t.nCtx); pos += ropeChunk {
		t.chunk(pos)
	}
}

func (t *RopeTable) chunk(pos int) []float32 {
	if uint(pos) >= uint(t.nCtx) {
		panicPos(pos, t.nCtx)
	}
	if p := t.chunks[pos/ropeChunk].Load(); p != nil {
		return *p
	}
	return t.fill(pos / ropeChunk)
}

// fill computes chunk i. Two callers may do so at once; both get the same values, and one copy stays.
func (t *RopeTable) fill(i int) []float32 {
	v := make([]float32, 2*t.half*ropeChunk)
	for p := range ropeChunk {
		row := v[p*2*t.half:][:2*t.half]
		for j, f := range t.freq {
			sin, cos := math.Sincos(float64(i*ropeChunk+p) * f)
			row[j] = float32(cos * t.magnitude)
			row[t.half+j] = float32(sin * t.magnitude)
		}
	}
	if !t.chunks[i].CompareAndSwap(nil, &v) {
		return *t.chunks[i].Load()
	}
	return v
}

//go:noinline
func panicPos(pos, n int) {
	panic("kernels: RopeTable: position " + strconv.Itoa(pos) + " outside 0.." + strconv.Itoa(n-1))
}
