package kernels

import (
	"fmt"
	"math"
)

// ActKind is the form in which a row of activations is kept for the dot product.
type ActKind uint8

// The forms of activations; see Type.ActKind for the one that fits a weight type.
const (
	ActF32  ActKind = iota // float32 as given, for any weight type
	ActQ8_0                // int8 with one float32 scale per 32
	ActQ8_K                // int8 with one float32 scale per 256
)

// String returns "f32", "q8_0" or "q8_k".
func (k ActKind) String() string {
	switch k {
	case ActF32:
		return "f32"
	case ActQ8_0:
		return "q8_0"
	case ActQ8_K:
		return "q8_k"
	}
	return fmt.Sprintf("actkind(%d)", uint8(k))
}

// block returns the number of activations that share one scale, 0 for ActF32.
func (k ActKind) block() int {
	switch k {
	case ActQ8_0:
		return 32
	case ActQ8_K:
		return 256
	}
	return 0
}

// Acts holds Cap rows of N activations in the form that a weight type's dot product reads. NewActs allocates it once,
// SetRow overwrites rows. Reading is safe from many goroutines; writing different rows is too.
type Acts struct {
	Kind ActKind
	N    int       // activations per row, whole blocks of the kind
	Cap  int       // rows
	F    []float32 // Cap x N, ActF32 only
	Q    []int8    // Cap x N codes in -127..127, the other kinds; activation = D * Q
	D    []float32 // Cap x N/32 or N/256 scales, one per block; NaN where the block had a NaN or Inf
	Sums []int16   // Cap x N/16 sums of 16 neighbouring codes: the part of a dot product that a weight's minimum multiplies
}

// NewActs allocates capRows rows of n activations, all zero. It panics unless n is whole blocks of the kind (0, 32 or
// 256), which holds whenever n is the Cols of a Mat and kind is its type's ActKind.
func NewActs(kind ActKind, n, capRows int) *Acts {
	blk := kind.block()
	if kind > ActQ8_K || n < 0 || capRows < 0 || blk != 0 && n%blk != 0 {
		panic(fmt.Sprintf("kernels: activations %v: %d rows of %d values", kind, capRows, n))
	}
	a := &Acts{Kind: kind, N: n, Cap: capRows}
	if blk == 0 {
		a.F = make([]float32, capRows*n)
		return a
	}
	a.Q = make([]int8, capRows*n)
	a.D = make([]float32, capRows*n/blk)
	a.Sums = make([]int16, capRows*n/16)
	return a
}

// SetRow copies or quantises x (N values) into row i (0 <= i < Cap). It allocates nothing and keeps no reference to x.
//
// The scales follow ggml's quantize_row_q8_0_ref and quantize_row_q8_K_ref (ggml-quants.c) but stay float32: per 32 the
// largest magnitude becomes 127, halves away from zero; per 256 the value of largest magnitude becomes -127, halves to
// even. Two blocks need care. One with a NaN or Inf gets a NaN scale and zero codes, so that every dot product over it is
// NaN. One whose inverse scale would overflow (magnitudes below about 4e-37) is taken as zero.
func (a *Acts) SetRow(i int, x []float32) {
	if i < 0 || i >= a.Cap || len(x) != a.N {
		panicSetRow(a, i, len(x))
	}
	lo, hi := i*a.N, (i+1)*a.N
	switch a.Kind {
	case ActF32:
		copy(a.F[lo:hi], x)
	case ActQ8_0:
		quantise(a.Q[lo:hi], a.D[lo/32:hi/32], a.Sums[lo/16:hi/16], x, 32)
	case ActQ8_K:
		quantise(a.Q[lo:hi], a.D[lo/256:hi/256], a.Sums[lo/16:hi/16], x, 256)
	}
}

func panicSetRow(a *Acts, i, n int) {
	panic(fmt.Sprintf("kernels: activations: row %d of %d set with %d values, want %d", i, a.Cap, n, a.N))
}

// quantiseGeneric is SetRow for len(d) blocks of blk (32 or 256) values; sums may be nil.
func quantiseGeneric(q []int8, d []float32, sums []int16, x []float32, blk int) {
	for b := range d {
		xb, qb := x[b*blk:(b+1)*blk], q[b*blk:(b+1)*blk]
		peak, finite := peak(xb)
		var scale, inv float32
		if blk == 32 {
			scale = float32(math.Abs(float64(peak))) / 127
			inv = 1 / scale
		} else {
			inv = -127 / peak
			scale = 1 / inv
		}
		switch {
		case !finite:
			d[b] = float32(math.NaN())
			clear(qb)
		case peak == 0 || inv-inv != 0: // Inf - Inf is NaN
			d[b] = 0
			clear(qb)
		case blk == 32:
			d[b] = scale
			roundAway(qb, xb, inv)
		default:
			d[b] = scale
			roundEven(qb, xb, inv)
		}
	}
	for g := range sums {
		var s int16
		for _, v := range q[g*16 : g*16+16] {
			s += int16(v)
		}
		sums[g] = s
	}
}

// peak returns the first value of largest magnitude, and whether all values are finite.
func peak(x []float32) (peak float32, finite bool) {
	var top uint32
	for _, v := range x {
		if m := math.Float32bits(v) & 0x7fffffff; m > top { // magnitudes order as integers do, NaN above Inf
			top, peak = m, v
		}
	}
	return peak, top < 0x7f800000
}

// roundAway stores x*inv, a half away from zero; |x*inv| <= 127.5. The sum in float64 is exact, in float32 it would
// round 0.49999997 up.
func roundAway(q []int8, x []float32, inv float32) {
	for i, v := range x {
		h := 0.5
		if v = float32(v * inv); v < 0 {
			h = -0.5
		}
		q[i] = int8(float64(v) + h)
	}
}

// roundEven stores x*inv, a half to the even neighbour; |x*inv| < 127.5. Adding 1.5*2^23 leaves the rounded integer in
// the low bits.
func roundEven(q []int8, x []float32, inv float32) {
	for i, v := range x {
		q[i] = int8(math.Float32bits(float32(v*inv) + 12582912))
	}
}
