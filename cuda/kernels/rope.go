package kernels

import (
	"encoding/binary"
	"fmt"
	"math"

	"sluice/kernels"
)

// QKNorm says over what queries and keys are normalised before the rotary embedding.
type QKNorm uint8

const (
	QKNormNone QKNorm = iota
	QKNormHead        // each head by itself, weights of headDim
	QKNormRow         // all heads of a row together, weights of heads x headDim
)

// MaxHeadDim is the largest head that QKNormRopeKV and attention take.
const MaxHeadDim = 256

// HeadFits reports whether the kernels take heads of this many values: a multiple of 8, so that a head of the cache is whole
// loads of 16 bytes, up to MaxHeadDim.
func HeadFits(headDim int) bool { return headDim >= 8 && headDim <= MaxHeadDim && headDim%8 == 0 }

// QKV describes one call of QKNormRopeKV.
type QKV struct {
	Q, K, V    Ptr    // float32: N x NHead*HeadDim, and twice N x NKVHead*HeadDim
	BQ, BK, BV Ptr    // float32 biases of a row each, 0: none
	Norm       QKNorm // NormQ and NormK are its float32 weights
	NormQ      Ptr
	NormK      Ptr
	Eps        float32

	Angles Ptr  // Ctx positions as PutAngles lays them out
	NRot   int  // values turned per head, even
	Neox   bool // pairs (i, i+NRot/2), else (2i, 2i+1)

	Cache Cache // with a tile of the row's sequence for each row's position
	Rows  Ptr   // Row, N of them
	Fault Ptr   // raised, WherePosition, for a row whose position is outside 0..Ctx-1, which is left alone; 0: not
	Layer int   // for Fault

	N, NHead, NKVHead, HeadDim, Ctx int
}

// QKNormRopeKV adds the biases, normalises queries and keys, turns them by the angles of their positions, leaves the queries
// in Q, and puts keys and values into the cache as f16. K and V are only read.
func QKNormRopeKV(a QKV) Launch {
	checkRows("QKNormRopeKV", a.N, a.Rows)
	if a.NHead < 1 || a.NKVHead < 1 || !HeadFits(a.HeadDim) || a.NRot < 0 || a.NRot > a.HeadDim || a.NRot%2 != 0 || a.Ctx < 1 {
		panic(fmt.Sprintf("kernels: QKNormRopeKV: %d rows of %d and %d heads of %d, %d turned, context %d",
			a.N, a.NHead, a.NKVHead, a.HeadDim, a.NRot, a.Ctx))
	}
	if (a.Norm == QKNormNone) != (a.NormQ == 0) || (a.Norm == QKNormNone) != (a.NormK == 0) {
		panic(fmt.Sprintf("kernels: QKNormRopeKV: norm %d with weights %#x and %#x", a.Norm, uint64(a.NormQ), uint64(a.NormK)))
	}
	neox := 0
	if a.Neox {
		neox = 1
	}
	const headWarps, rowWarps = 4, 8
	l := Launch{
		Func:  "rope_heads",
		Grid:  grid(ceil(a.NHead+2*a.NKVHead, headWarps), a.N),
		Block: [3]uint32{32 * headWarps, 1, 1},
		Args: append([]uint64{a.Q.Cell(), a.K.Cell(), a.V.Cell(), a.BQ.Cell(), a.BK.Cell(), a.BV.Cell(), a.NormQ.Cell(), a.NormK.Cell(),
			a.Angles.Cell(), a.Cache.Keys.Cell(), a.Cache.Values.Cell(), a.Rows.Cell(), a.Cache.Tables.Cell(), I32(a.NHead), I32(a.NKVHead), I32(a.HeadDim),
			I32(a.NRot / 2), I32(neox), F32(a.Eps), I32(a.Ctx)}, Guard{Word: a.Fault, Layer: a.Layer, Where: WherePosition}.cells()...),
	}
	if a.Norm == QKNormRow {
		l.Func, l.Grid, l.Block = "rope_rows", grid(3, a.N), [3]uint32{32 * rowWarps, 1, 1}
	}
	return l
}

// AnglesBytes is the size of the angles of ctx positions.
func AnglesBytes(nRot, ctx int) int64 { return 4 * int64(nRot) * int64(ctx) }

// PutAngles writes the angles of positions pos to pos+n-1 to dst (AnglesBytes(nRot, n)) as the device reads them: for each
// position the nRot/2 cosines, then the sines.
func PutAngles(dst []byte, t *kernels.RopeTable, pos, n int) {
	for p := pos; p < pos+n; p++ {
		for _, row := range [2][]float32{t.Cos(p), t.Sin(p)} {
			for _, v := range row {
				binary.LittleEndian.PutUint32(dst, math.Float32bits(v))
				dst = dst[4:]
			}
		}
	}
}
