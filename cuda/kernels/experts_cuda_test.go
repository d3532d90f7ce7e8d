//go:build cuda

package kernels_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	dev "sluice/cuda/kernels"
	"sluice/kernels"
	"sluice/moe"
)

// expertLayer is one layer's experts on the device, and what the dense products say of each.
type expertLayer struct {
	typ, down kernels.Type
	nExpert   int
	embd, ff  int
	ptrs      dev.Ptr
	mats      []dev.Ptr // nExpert x 3
}

func newExpertLayer(t testing.TB, r *rand.Rand, typ, down kernels.Type, nExpert, embd, ff int) *expertLayer {
	t.Helper()
	l := &expertLayer{typ: typ, down: down, nExpert: nExpert, embd: embd, ff: ff}
	shapes := [3]struct {
		typ     kernels.Type
		rows, k int
	}{{typ, ff, embd}, {typ, ff, embd}, {down, embd, ff}}
	var size int64 // of an expert, its three matrices one after the other
	for _, s := range shapes {
		size += dev.DeviceBytes(s.typ, s.rows, s.k)
	}
	raw := make([]byte, size*int64(nExpert))
	src, dst := alloc(t, int64(len(raw))), alloc(t, int64(len(raw)))
	var repack []dev.Launch
	at := int64(0)
	for range nExpert {
		for _, s := range shapes {
			copy(raw[at:], gaussWeights(r, s.typ, s.rows, s.k))
			if m := src.At(at); dev.NeedsRepack(s.typ) {
				l.mats = append(l.mats, dst.At(at))
				repack = append(repack, dev.Repack(s.typ, dst.At(at), m, s.rows, s.k))
			} else {
				l.mats = append(l.mats, m)
			}
			at += dev.DeviceBytes(s.typ, s.rows, s.k)
		}
	}
	store(t, src, raw)
	if len(repack) > 0 {
		run(t, repack...)
	}
	l.ptrs = upload(t, l.mats)
	return l
}

// randomTable routes rows to k of the layer's experts, skewed so that some experts get many rows and some none, and drops
// every eighth slot or so.
func randomTable(r *rand.Rand, nExpert, k, rows int) *moe.Table {
	byExpert := make([][]int32, nExpert)
	for row := range rows {
		for n := 0; n < k; {
			e := int(float64(nExpert) * r.Float64() * r.Float64())
			if !slices.Contains(byExpert[e], int32(row)) {
				byExpert[e] = append(byExpert[e], int32(row))
				n++
			} else if r.IntN(4) == 0 { // every expert can be reached
				e = r.IntN(nExpert)
				if !slices.Contains(byExpert[e], int32(row)) {
					byExpert[e] = append(byExpert[e], int32(row))
					n++
				}
			}
		}
	}
	table := moe.NewTable(nExpert, k, rows)
	for e, rs := range byExpert {
		for _, row := range rs {
			if r.IntN(8) != 0 {
				table.Token, table.Weight = append(table.Token, row), append(table.Weight, r.Float32())
			}
		}
		table.Offsets[e+1] = int32(len(table.Token))
	}
	return table
}

// placeTable uploads a table for calls of up to maxT rows.
func placeTable(t testing.TB, host *moe.Table, nExpert, k, rows, maxT int) dev.Table {
	t.Helper()
	tab := dev.NewTable(alloc(t, dev.TableBytes(nExpert, k, maxT)), nExpert, k, maxT)
	b := make([]byte, tab.EncodedBytes())
	tab.Encode(b, host, rows)
	store(t, tab.Offsets, b)
	return tab
}

// dense is what the experts' launches must give: the dense products of each expert with all rows, of which the table's
// entries are taken, and of its down projection with the rows that they make.
func (l *expertLayer) dense(t testing.TB, host *moe.Table, act dev.Ptr, rows int) (hidden, y []float32) {
	t.Helper()
	n := len(host.Token)
	if n == 0 {
		return nil, nil
	}
	per := rows * l.ff // of one expert
	p := alloc(t, int64(8*per*l.nExpert))
	var ls []dev.Launch
	for e := range l.nExpert {
		if host.Offsets[e] < host.Offsets[e+1] {
			ls = append(ls, dev.Product(l.typ, p.At(int64(8*per*e)), l.mats[3*e], act, l.ff, l.embd, rows, dev.Out{}),
				dev.Product(l.typ, p.At(int64(8*per*e+4*per)), l.mats[3*e+1], act, l.ff, l.embd, rows, dev.Out{}))
		}
	}
	run(t, ls...)
	products := download[float32](t, p, 2*per*l.nExpert)
	hidden = make([]float32, n*l.ff)
	for e := range l.nExpert {
		gate, up := products[2*per*e:][:per], products[2*per*e+per:][:per]
		for i := int(host.Offsets[e]); i < int(host.Offsets[e+1]); i++ {
			at := int(host.Token[i]) * l.ff
			kernels.SiluMul(hidden[i*l.ff:(i+1)*l.ff], gate[at:at+l.ff], up[at:at+l.ff])
		}
	}

	a, out := l.hiddenActs(t, upload(t, hidden), n), alloc(t, int64(4*n*l.embd))
	ls = ls[:0]
	for e := range l.nExpert {
		if i, m := host.Offsets[e], host.Offsets[e+1]-host.Offsets[e]; m > 0 {
			ls = append(ls, dev.Product(l.down, out.At(int64(4*l.embd)*int64(i)), l.mats[3*e+2], a.At(int64(i)*dev.ActBytes(l.down, l.ff)), l.embd, l.ff, int(m), dev.Out{}))
		}
	}
	run(t, ls...)
	return hidden, download[float32](t, out, n*l.embd)
}

func (l *expertLayer) hiddenActs(t testing.TB, hidden dev.Ptr, n int) dev.Ptr {
	if !dev.Quantised(l.down) {
		return hidden
	}
	q := alloc(t, dev.Q8Bytes(n, l.ff))
	run(t, dev.Quantize(q, hidden, n, l.ff, 0))
	return q
}

// launches is a whole pass over the table of a call of up to rows rows; its results go to hidden and y.
func (l *expertLayer) launches(tab dev.Table, act, hidden, q, y dev.Ptr, rows int, form dev.Form) []dev.Launch {
	ls := []dev.Launch{tab.ExpertGateUp(l.typ, hidden, l.ptrs, act, l.ff, l.embd, rows, form)}
	a := hidden
	if dev.Quantised(l.down) {
		a = q
		ls = append(ls, dev.Quantize(q, hidden, rows*tab.K, l.ff, tab.Entries()))
	}
	return append(ls, tab.ExpertDown(l.down, y, l.ptrs, a, l.embd, l.ff, rows, form))
}

// check runs both forms over the table and compares every bit of them with the dense products. The launches are for maxT
// rows although the call has fewer, as in a captured graph; what lies past the last entry must stay as it was.
func (l *expertLayer) check(t testing.TB, what string, host *moe.Table, k, rows, maxT int, x []float32) {
	t.Helper()
	act, _ := activations(t, l.typ, x, l.embd)
	tab := placeTable(t, host, l.nExpert, k, rows, maxT)
	wantHidden, wantY := l.dense(t, host, act, rows)
	slots := maxT * k
	for form, name := range []string{dev.ByEntry: "entries", dev.ByTile: "tiles"} {
		hidden, y := alloc(t, int64(4*slots*l.ff)), alloc(t, int64(4*slots*l.embd))
		q := alloc(t, dev.Q8Bytes(slots, l.ff))
		run(t, l.launches(tab, act, hidden, q, y, maxT, dev.Form(form))...)
		gotHidden, gotY := download[float32](t, hidden, slots*l.ff), download[float32](t, y, slots*l.embd)
		wantFloats(t, what+": hidden by "+name, gotHidden[:len(wantHidden)], wantHidden)
		wantFloats(t, what+": output by "+name, gotY[:len(wantY)], wantY)
		for _, v := range append(gotHidden[len(wantHidden):], gotY[len(wantY):]...) {
			if v == v {
				t.Fatalf("%s: by %s: wrote past the last entry", what, name)
			}
		}
	}
}

// TestCUDAExperts: every type, two experts a row, batches from one row up.
func TestCUDAExperts(t *testing.T) {
	for _, typ := range productTypes {
		t.Run(fmt.Sprintf("type=%v", typ), func(t *testing.T) {
			r := rand.New(rand.NewPCG(11, uint64(typ)))
			ff := 96
			if typ.BlockLen() == 256 {
				ff = 256
			}
			l := newExpertLayer(t, r, typ, typ, 5, 256, ff)
			for _, rows := range []int{1, 7, 20} {
				l.check(t, fmt.Sprintf("%d rows", rows), randomTable(r, l.nExpert, 2, rows), 2, rows, 20, activationRows(r, rows, l.embd))
			}
		})
	}
}

// TestCUDAExpertsMixed: a down projection of another type than gate and up, as published quantisations have it.
func TestCUDAExpertsMixed(t *testing.T) {
	for _, types := range [][2]kernels.Type{{kernels.Q4_K, kernels.Q6_K}, {kernels.Q8_0, kernels.F16}, {kernels.F16, kernels.Q8_0}} {
		r := rand.New(rand.NewPCG(12, uint64(types[0])))
		l := newExpertLayer(t, r, types[0], types[1], 3, 256, 256)
		l.check(t, fmt.Sprint(types), randomTable(r, 3, 2, 6), 2, 6, 6, activationRows(r, 6, 256))
	}
}

// TestCUDAExpertsEveryBatch: each number of rows from 1 to 64; with SLUICE_LONG=1 up to 256, and more types to 64.
func TestCUDAExpertsEveryBatch(t *testing.T) {
	most := map[kernels.Type]int{kernels.Q8_0: 64}
	if long() {
		most = map[kernels.Type]int{kernels.Q8_0: 256, kernels.F16: 64, kernels.Q4_0: 64}
	}
	for typ, most := range most {
		r := rand.New(rand.NewPCG(13, uint64(typ)))
		l := newExpertLayer(t, r, typ, typ, 8, 32, 32)
		for rows := 1; rows <= most; rows++ {
			l.check(t, fmt.Sprintf("%v: %d rows", typ, rows), randomTable(r, 8, 2, rows), 2, rows, rows, activationRows(r, rows, 32))
		}
	}
}

// TestCUDAExpertsSizes: one expert, 512 experts most of which have no row, every expert of a row, no entry at all.
func TestCUDAExpertsSizes(t *testing.T) {
	r := rand.New(rand.NewPCG(14, 0))
	for _, size := range []struct{ nExpert, k, rows int }{{1, 1, 1}, {1, 1, 17}, {512, 8, 1}, {512, 3, 9}, {6, 6, 3}} {
		l := newExpertLayer(t, r, kernels.Q4_0, kernels.F16, size.nExpert, 32, 32)
		l.check(t, fmt.Sprint(size), randomTable(r, size.nExpert, size.k, size.rows), size.k, size.rows, size.rows, activationRows(r, size.rows, 32))
		l.check(t, fmt.Sprint(size, " all dropped"), moe.NewTable(size.nExpert, size.k, size.rows), size.k, size.rows, size.rows, activationRows(r, size.rows, 32))
	}
}

// smallWidth is the least of 64 and what the type takes.
func smallWidth(t kernels.Type) int { return max(64, t.BlockLen()) }

// TestCUDAExpertProduct: gate and up one by one, and then SiluMul, are ExpertGateUp.
func TestCUDAExpertProduct(t *testing.T) {
	const rows, k = 9, 2
	r := rand.New(rand.NewPCG(15, 0))
	for _, typ := range productTypes {
		width := smallWidth(typ)
		l := newExpertLayer(t, r, typ, typ, 4, width, width)
		host := randomTable(r, 4, k, rows)
		act, _ := activations(t, typ, activationRows(r, rows, width), width)
		tab := placeTable(t, host, 4, k, rows, rows)
		for _, form := range []dev.Form{dev.ByEntry, dev.ByTile} {
			size := int64(4 * rows * k * width)
			fused, gate, up := alloc(t, size), alloc(t, size), alloc(t, size)
			run(t, tab.ExpertGateUp(typ, fused, l.ptrs, act, width, width, rows, form),
				tab.ExpertProduct(typ, gate, l.ptrs, dev.Gate, act, width, width, rows, form),
				tab.ExpertProduct(typ, up, l.ptrs, dev.Up, act, width, width, rows, form),
				dev.SiluMul(gate, gate, up, rows*k, width))
			n := len(host.Token) * width
			wantFloats(t, fmt.Sprintf("%v form %d", typ, form), download[float32](t, gate, n), download[float32](t, fused, n))
		}
	}
}

// TestCUDAExpertAbsent: entries of an expert without an address are NaN, the others as they were.
func TestCUDAExpertAbsent(t *testing.T) {
	const rows, k = 7, 2
	r := rand.New(rand.NewPCG(16, 0))
	for _, typ := range []kernels.Type{kernels.F32, kernels.F16, kernels.Q8_0, kernels.Q5_K} {
		width := smallWidth(typ)
		l := newExpertLayer(t, r, typ, typ, 3, width, width)
		host := randomTable(r, 3, k, rows)
		act, _ := activations(t, typ, activationRows(r, rows, width), width)
		tab := placeTable(t, host, 3, k, rows, rows)
		slots := int64(rows * k)
		hidden, q, y := alloc(t, 4*slots*int64(width)), alloc(t, dev.Q8Bytes(rows*k, width)), alloc(t, 4*slots*int64(width))
		for form := range dev.ByTile + 1 {
			n := len(host.Token) * width
			run(t, l.launches(tab, act, hidden, q, y, rows, form)...)
			wantHidden, wantY := download[float32](t, hidden, n), download[float32](t, y, n)
			store(t, l.ptrs.At(3*8), []dev.Ptr{0, l.mats[4], 0})
			run(t, l.launches(tab, act, hidden, q, y, rows, form)...)
			store(t, l.ptrs, l.mats)
			gotHidden, gotY := download[float32](t, hidden, n), download[float32](t, y, n)
			if host.Offsets[1] == host.Offsets[2] {
				t.Fatal("the table has no entry of the absent expert")
			}
			for i := width * int(host.Offsets[1]); i < width*int(host.Offsets[2]); i++ {
				if gotHidden[i] == gotHidden[i] || gotY[i] == gotY[i] {
					t.Fatalf("%v: value %d of an absent expert is %g, %g", typ, i, gotHidden[i], gotY[i])
				}
				gotHidden[i], gotY[i] = wantHidden[i], wantY[i]
			}
			wantFloats(t, fmt.Sprint(typ, " hidden"), gotHidden, wantHidden)
			wantFloats(t, fmt.Sprint(typ, " output"), gotY, wantY)
		}
	}
}

// TestCUDAExpertsRepeat: the same call 100 times, the same bits.
func TestCUDAExpertsRepeat(t *testing.T) {
	const rows, k, times, width = 4, 2, 100, 64
	const slots = rows * k
	for _, typ := range []kernels.Type{kernels.F32, kernels.Q8_0} {
		r := rand.New(rand.NewPCG(17, uint64(typ)))
		l := newExpertLayer(t, r, typ, typ, 3, width, width)
		host := randomTable(r, 3, k, rows)
		act, _ := activations(t, typ, activationRows(r, rows, width), width)
		tab := placeTable(t, host, 3, k, rows, rows)
		hidden, q, y := alloc(t, 4*slots*width), alloc(t, dev.Q8Bytes(slots, width)), alloc(t, 4*slots*width*times)
		var ls []dev.Launch
		for i := range times {
			ls = append(ls, l.launches(tab, act, hidden, q, y.At(int64(4*slots*width*i)), rows, dev.Form(i%2))...)
		}
		run(t, ls...)
		got, n := download[float32](t, y, slots*width*times), len(host.Token)*width
		for i := range times {
			wantFloats(t, fmt.Sprintf("%v: time %d", typ, i), got[slots*width*i:slots*width*i+n], got[:n])
		}
	}
}
