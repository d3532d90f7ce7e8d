//go:build cuda

package kernels_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	dev "sluice/cuda/kernels"
	"sluice/kernels"
)

// ropeCase is a shape of queries, keys and values.
type ropeCase struct {
	nHead, nKV, headDim, nRot int
	neox, bias                bool
	norm                      dev.QKNorm
}

// ropeReference is the CPU's placeJob for one row. mag holds for each value the sum of the magnitudes that its rotation
// adds up.
func ropeReference(c ropeCase, x, bias, w []float32, cos, sin []float32, eps float32) (out, mag []float32) {
	out = slices.Clone(x)
	if bias != nil {
		kernels.Add(out, bias)
	}
	if c.norm == dev.QKNormRow && w != nil {
		kernels.RMSNorm(out, out, w, eps)
	}
	mag = make([]float32, len(x))
	for o := 0; o < len(x); o += c.headDim {
		head := out[o:][:c.headDim]
		if c.norm == dev.QKNormHead && w != nil {
			kernels.RMSNorm(head, head, w, eps)
		}
		m := mag[o:][:c.headDim]
		for i, v := range head {
			m[i] = float32(math.Abs(float64(v)))
		}
		for j := range cos {
			a, b := 2*j, 2*j+1
			if c.neox {
				a, b = j, j+len(cos)
			}
			m[a], m[b] = m[a]+m[b], m[a]+m[b]
		}
		kernels.Rope(head, cos, sin, c.neox)
	}
	return out, mag
}

func TestCUDAQKNormRopeKV(t *testing.T) {
	const ctx, eps = 300, 1e-6
	for ci, c := range []ropeCase{
		{1, 1, 8, 8, true, false, dev.QKNormNone},
		{3, 1, 16, 0, false, true, dev.QKNormHead}, // nothing turned
		{4, 2, 32, 32, true, false, dev.QKNormHead},
		{6, 2, 40, 24, false, true, dev.QKNormNone}, // turned in part, heads that do not fill a warp
		{32, 4, 128, 128, true, false, dev.QKNormHead},
		{16, 16, 128, 128, true, true, dev.QKNormNone},
		{16, 16, 128, 128, true, false, dev.QKNormRow},
		{9, 3, 80, 80, false, true, dev.QKNormRow},
		{2, 1, 256, 64, true, true, dev.QKNormHead},
	} {
		table := kernels.NewRopeTable(kernels.RopeConfig{NRot: c.nRot, Base: 10000}, ctx)
		angles := make([]byte, dev.AnglesBytes(c.nRot, ctx))
		dev.PutAngles(angles, table, 0, ctx)
		pa := upload(t, angles)
		nQ, nKV := c.nHead*c.headDim, c.nKV*c.headDim
		for _, at := range []struct{ pos, rows int }{{0, 1}, {7, 1}, {253, 5}, {ctx - 1, 1}, {ctx - 3, 3}, {ctx - 2, 4}, {-1, 2}, {ctx, 1}} {
			r := denseRand(uint64(ci))
			magnitude := []float32{1, 1e-3, 300}[ci%3]
			q, k, v := denseHurtful(r, at.rows*nQ, magnitude), denseHurtful(r, at.rows*nKV, magnitude), denseNormals(r, at.rows*nKV, magnitude)
			var bq, bk, bv, wq, wk []float32
			fault, read := faultWord(t)
			cache := slices.Repeat([]uint16{0x1234}, ctx*nKV)
			// Two sequences, of which each row is one's or the other's.
			pool := newTilePool(r, c.nKV, c.headDim, 2*dev.TableLen(ctx))
			var tables [2]int
			for i := range tables {
				tables[i] = pool.add(ctx, ctx)
				pool.set(tables[i], cache, cache)
			}
			var of []dev.Row
			for i := range at.rows {
				of = append(of, dev.Row{Pos: at.pos + i, Table: tables[r.IntN(2)]})
			}
			a := dev.QKV{Q: upload(t, q), K: upload(t, k), V: upload(t, v), Norm: c.norm, Eps: eps, Angles: pa, NRot: c.nRot, Neox: c.neox,
				Cache: pool.upload(t), Rows: upload(t, putRows(of)), Fault: fault, Layer: 2,
				N: at.rows, NHead: c.nHead, NKVHead: c.nKV, HeadDim: c.headDim, Ctx: ctx}
			if c.bias {
				bq, bk, bv = denseNormals(r, nQ, magnitude), denseNormals(r, nKV, magnitude), denseNormals(r, nKV, magnitude)
				a.BQ, a.BK, a.BV = upload(t, bq), upload(t, bk), upload(t, bv)
			}
			switch c.norm {
			case dev.QKNormHead:
				wq, wk = denseNormals(r, c.headDim, 1), denseNormals(r, c.headDim, 1)
			case dev.QKNormRow:
				wq, wk = denseNormals(r, nQ, 1), denseNormals(r, nKV, 1)
			}
			if wq != nil {
				a.NormQ, a.NormK = upload(t, wq), upload(t, wk)
			}
			run(t, dev.QKNormRopeKV(a))

			what := fmt.Sprintf("%+v pos=%d rows=%d", c, at.pos, at.rows)
			gotQ := download[float32](t, a.Q, len(q))
			gotK, gotV := download[uint16](t, a.Cache.Keys, len(pool.k)), download[uint16](t, a.Cache.Values, len(pool.v))
			wantK, wantV := pool.k, pool.v
			firstBad := -1
			exact := c.norm == dev.QKNormNone
			for row := range at.rows {
				p := at.pos + row
				rq, rk, rv := q[row*nQ:][:nQ], k[row*nKV:][:nKV], slices.Clone(v[row*nKV:][:nKV])
				if p < 0 || p >= ctx {
					if firstBad < 0 {
						firstBad = row
					}
					wantFloats(t, what+": queries of a row without a place", gotQ[row*nQ:][:nQ], rq)
					continue
				}
				cos, sin := table.Cos(p), table.Sin(p)
				refQ, magQ := ropeReference(c, rq, bq, wq, cos, sin, eps)
				refK, magK := ropeReference(c, rk, bk, wk, cos, sin, eps)
				if bv != nil {
					kernels.Add(rv, bv)
				}
				for h := range c.nKV {
					to, from := pool.at(of[row].Table, p, h), h*c.headDim
					kernels.RowToF16(wantV[to:][:c.headDim], rv[from:][:c.headDim])
					kernels.RowToF16(wantK[to:][:c.headDim], refK[from:][:c.headDim])
				}
				if exact {
					wantFloats(t, what+": queries", gotQ[row*nQ:][:nQ], refQ)
					continue
				}
				// The root may differ from the reference's by a unit in its last place (2 eps32), which the roundings after it carry on.
				for i, got := range gotQ[row*nQ:][:nQ] {
					if bound := 4 * eps32 * float64(magQ[i]); !(math.Abs(float64(got)-float64(refQ[i])) <= bound+0x1p-140) {
						t.Fatalf("%s: query %d is %v, want %v within %v", what, i, got, refQ[i], bound)
					}
				}
				for i := range nKV {
					to := pool.at(of[row].Table, p, i/c.headDim) + i%c.headDim
					bound := 4*eps32*float64(magK[i]) + 0x1p-11*math.Abs(float64(refK[i])) + 0x1p-25
					if back := kernels.F16ToF32(gotK[to]); !(math.Abs(float64(back)-float64(refK[i])) <= bound) {
						t.Fatalf("%s: key %d is %v, want %v within %v", what, i, back, refK[i], bound)
					}
					wantK[to] = gotK[to]
				}
			}
			if i, same := sameHalves(gotK, wantK); !same {
				t.Fatalf("%s: keys at %d: %#x, want %#x", what, i, gotK[i], wantK[i])
			}
			if i, same := sameHalves(gotV, wantV); !same {
				t.Fatalf("%s: values at %d: %#x, want %#x", what, i, gotV[i], wantV[i])
			}
			f, bad := read()
			if bad != (firstBad >= 0) || bad && f != (dev.Fault{Layer: 2, Where: dev.WherePosition, Row: firstBad}) {
				t.Fatalf("%s: fault %+v, want row %d", what, f, firstBad)
			}
		}
	}
}

// sameHalves compares bits, but for NaN.
func sameHalves(a, b []uint16) (at int, same bool) {
	for i := range a {
		if a[i] != b[i] && (a[i]&0x7fff <= 0x7c00 || b[i]&0x7fff <= 0x7c00) {
			return i, false
		}
	}
	return 0, true
}

// What is not finite stays so, and in its own head.
func TestCUDAQKNormRopeKVNotFinite(t *testing.T) {
	const ctx, headDim, nHead, nKV = 4, 32, 5, 1
	table := kernels.NewRopeTable(kernels.RopeConfig{NRot: headDim, Base: 10000}, ctx)
	angles := make([]byte, dev.AnglesBytes(headDim, ctx))
	dev.PutAngles(angles, table, 0, ctx)
	r := denseRand(1)
	w := denseNormals(r, headDim, 1)
	pool := newTilePool(r, nKV, headDim, 1)
	pool.add(ctx, ctx)
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1)), 1e38} {
		q, kv := denseNormals(r, nHead*headDim, 1), denseNormals(r, nKV*headDim, 1)
		q[2*headDim+3], kv[5] = bad, bad
		a := dev.QKV{Q: upload(t, q), K: upload(t, kv), V: upload(t, kv), Norm: dev.QKNormHead, NormQ: upload(t, w), NormK: upload(t, w),
			Eps: 1e-5, Angles: upload(t, angles), NRot: headDim, Neox: true, Cache: pool.upload(t),
			Rows: upload(t, putRows([]dev.Row{{}})), N: 1, NHead: nHead, NKVHead: nKV, HeadDim: headDim, Ctx: ctx}
		run(t, dev.QKNormRopeKV(a))
		c := ropeCase{nHead: nHead, nKV: nKV, headDim: headDim, nRot: headDim, neox: true, norm: dev.QKNormHead}
		want, mag := ropeReference(c, q, nil, w, table.Cos(0), table.Sin(0), 1e-5)
		for i, got := range download[float32](t, a.Q, len(q)) {
			if (got != got) != (want[i] != want[i]) || math.Abs(float64(got)-float64(want[i])) > 4*eps32*float64(mag[i]) {
				t.Fatalf("%v: query %d is %v, want %v", bad, i, got, want[i])
			}
		}
		half := make([]uint16, headDim)
		kernels.RowToF16(half, kv)
		if i, same := sameHalves(download[uint16](t, a.Cache.Values, headDim), half); !same {
			t.Fatalf("%v: value %d differs", bad, i)
		}
	}
}
