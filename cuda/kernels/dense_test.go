package kernels_test

import (
	"encoding/binary"
	"math"
	"testing"

	dev "sluice/cuda/kernels"
	"sluice/kernels"
)

func mustPanic(t *testing.T, what string, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s: no panic", what)
		}
	}()
	f()
}

// Every head that fits has a launch within what the kernels are compiled for: the threads of __launch_bounds__ and the 48 KiB
// of shared memory that need no permission.
func TestAttentionFitsTheKernels(t *testing.T) {
	static := map[string]uint32{"attend_decode_1": 512, "attend_decode_2": 512, "attend_decode_4": 512, "attend_prefill_4": 512, "attend_prefill_8": 256}
	for headDim := 0; headDim <= dev.MaxHeadDim+8; headDim++ {
		if want := headDim >= 8 && headDim <= 256 && headDim%8 == 0; dev.HeadFits(headDim) != want {
			t.Errorf("head of %d: fits %v", headDim, !want)
		} else if !want {
			continue
		}
		for share := 1; share <= 33; share++ {
			a := dev.Attention{N: 3, List: 8, NHead: 2 * share, NKVHead: 2, HeadDim: headDim, Ctx: 100000}
			for _, l := range []dev.Launch{dev.AttendDecode(a), dev.AttendPrefill(a)} {
				if l.Block[0] > static[l.Func] || l.Block[0] < uint32(2*headDim) || l.Block[0]%32 != 0 || l.Shared > 46<<10 {
					t.Fatalf("head of %d, %d a KV head: %+v", headDim, share, l)
				}
			}
		}
	}
}

// The grid of a captured launch must not change with the position, and covers every query head.
func TestAttentionGrid(t *testing.T) {
	for _, c := range []struct {
		a                dev.Attention
		rows             int // of a piece
		decode, prefill  [3]uint32
		nameDec, namePre string
	}{
		{dev.Attention{N: 1, NHead: 32, NKVHead: 4, HeadDim: 128, Ctx: 4096}, 1, [3]uint32{16, 8, 1}, [3]uint32{1, 4, 1}, "attend_decode_4", "attend_prefill_8"},
		{dev.Attention{N: 1, NHead: 16, NKVHead: 16, HeadDim: 128, Ctx: 257}, 8, [3]uint32{2, 16, 1}, [3]uint32{1, 16, 1}, "attend_decode_1", "attend_prefill_8"},
		{dev.Attention{N: 7, NHead: 6, NKVHead: 2, HeadDim: 256, Ctx: 1}, 4, [3]uint32{1, 2, 7}, [3]uint32{21, 2, 1}, "attend_decode_4", "attend_prefill_4"},
		{dev.Attention{N: 1, NHead: 32, NKVHead: 8, HeadDim: 128, Ctx: 131072}, 2, [3]uint32{128, 8, 1}, [3]uint32{1, 8, 1}, "attend_decode_4", "attend_prefill_8"},
		{dev.Attention{N: 873, NHead: 4, NKVHead: 2, HeadDim: 64, Ctx: 1024}, 4, [3]uint32{1, 2, 873}, [3]uint32{873, 2, 1}, "attend_decode_2", "attend_prefill_8"},
		{dev.Attention{N: 2, NHead: 12, NKVHead: 1, HeadDim: 64, Ctx: 1024}, 2, [3]uint32{4, 3, 2}, [3]uint32{6, 1, 1}, "attend_decode_4", "attend_prefill_8"},
	} {
		if l := dev.AttendDecode(c.a); l.Grid != c.decode || l.Func != c.nameDec {
			t.Errorf("%+v: decode %s %v, want %s %v", c.a, l.Func, l.Grid, c.nameDec, c.decode)
		}
		c.a.List = 256
		if l := dev.AttendPrefill(c.a); l.Grid != c.prefill || l.Func != c.namePre {
			t.Errorf("%+v: prefill %s %v, want %s %v", c.a, l.Func, l.Grid, c.namePre, c.prefill)
		}
		if n := dev.PieceRows(c.a.NHead, c.a.NKVHead, c.a.HeadDim); n != c.rows {
			t.Errorf("%+v: pieces of %d rows, want %d", c.a, n, c.rows)
		}
	}
}

func TestDenseMisuse(t *testing.T) {
	a := dev.Attention{N: 1, List: 256, NHead: 4, NKVHead: 2, HeadDim: 64, Ctx: 10}
	for what, edit := range map[string]func(*dev.Attention){
		"no rows":           func(a *dev.Attention) { a.N = 0 },
		"rows at 8":         func(a *dev.Attention) { a.Rows = 8 },
		"tables at 8":       func(a *dev.Attention) { a.Cache.Tables = 8 },
		"list at 4":         func(a *dev.Attention) { a.List = 4 },
		"heads not divided": func(a *dev.Attention) { a.NHead = 5 },
		"head of 12":        func(a *dev.Attention) { a.HeadDim = 12 },
		"head too large":    func(a *dev.Attention) { a.HeadDim = 264 },
		"no context":        func(a *dev.Attention) { a.Ctx = 0 },
	} {
		b := a
		edit(&b)
		mustPanic(t, what, func() { dev.AttendDecode(b) })
		mustPanic(t, what, func() { dev.AttendPrefill(b) })
	}
	mustPanic(t, "no pieces", func() { b := a; b.List = 0; dev.AttendPrefill(b) })
	q := dev.QKV{N: 1, NHead: 4, NKVHead: 2, HeadDim: 64, NRot: 64, Ctx: 10}
	dev.QKNormRopeKV(q)
	for what, edit := range map[string]func(*dev.QKV){
		"odd rotation":         func(q *dev.QKV) { q.NRot = 3 },
		"rotation of too much": func(q *dev.QKV) { q.NRot = 66 },
		"norm without weights": func(q *dev.QKV) { q.Norm = dev.QKNormHead },
		"weights without norm": func(q *dev.QKV) { q.NormQ = 256 },
	} {
		b := q
		edit(&b)
		mustPanic(t, what, func() { dev.QKNormRopeKV(b) })
	}
	mustPanic(t, "embedding of Q2_K", func() { dev.Embed(kernels.Q2_K, 0, 0, 0, 0, 1, 256, 4) })
	mustPanic(t, "part of a block", func() { dev.Embed(kernels.Q4_K, 0, 0, 0, 0, 1, 128, 4) })
	mustPanic(t, "norm of nothing", func() { dev.RMSNorm(0, 0, 0, 1, 0, 1, dev.Guard{}) })
	mustPanic(t, "sum over itself", func() { dev.AddRMSNorm(256, 256, 512, 0, 1, 8, 1, dev.Guard{}) })
	mustPanic(t, "nowhere to look", func() { dev.Finite(0, 1, 8, dev.Guard{}) })
	mustPanic(t, "no named rows", func() { dev.RMSNormOf(256, 512, 0, 0, 1, 8, 1, dev.Guard{}) })
	mustPanic(t, "choice from no rows", func() { dev.ArgMaxStep(0, 0, 0, 0, 8) })
	mustPanic(t, "rows at 4", func() { dev.ArgMaxStep(0, 0, 4, 1, 8) })
}

// The complement keeps the earliest fault by layer, then step, then row.
func TestReadFault(t *testing.T) {
	if f, ok := dev.ReadFault(0); ok {
		t.Errorf("0 is %+v", f)
	}
	last := uint64(math.MaxUint64)
	for _, f := range []dev.Fault{
		{}, {Row: 1}, {Row: math.MaxInt32}, {Where: dev.WhereEmbedding}, {Where: dev.WhereExperts, Row: 5},
		{Layer: 1}, {Layer: 1, Where: dev.WhereAttention}, {Layer: 4095, Where: dev.WhereExperts, Row: 3},
	} {
		order := dev.RMSNorm(256, 256, 0, 1, 8, 1, dev.Guard{Word: 512, Layer: f.Layer, Where: f.Where}).Args[8]
		word := ^(order<<32 | uint64(f.Row))
		if got, ok := dev.ReadFault(word); !ok || got != f {
			t.Errorf("word %#x is %+v, want %+v", word, got, f)
		}
		if word > last {
			t.Errorf("%+v would cover what comes before it", f)
		}
		last = word
	}
}

func TestPutAngles(t *testing.T) {
	const nRot, ctx = 6, 600
	table := kernels.NewRopeTable(kernels.RopeConfig{NRot: nRot, Base: 10000}, ctx)
	b := make([]byte, dev.AnglesBytes(nRot, 3))
	dev.PutAngles(b, table, 255, 3)
	for p := range 3 {
		for j := range nRot / 2 {
			at := 4 * (p*nRot + j)
			cos, sin := math.Float32frombits(binary.LittleEndian.Uint32(b[at:])), math.Float32frombits(binary.LittleEndian.Uint32(b[at+2*nRot:]))
			if cos != table.Cos(255 + p)[j] || sin != table.Sin(255 + p)[j] {
				t.Errorf("position %d pair %d: %v, %v", 255+p, j, cos, sin)
			}
		}
	}
}

// Row and Piece as rows.h has them.
func TestPutRow(t *testing.T) {
	b := make([]byte, dev.RowBytes+dev.PieceBytes)
	dev.PutRow(b, dev.Row{Pos: 5, Table: 8, Token: -1, Exempt: true})
	dev.PutPiece(b[dev.RowBytes:], dev.Piece{First: 3, Rows: 2})
	var words [6]int32
	if _, err := binary.Decode(b, binary.LittleEndian, &words); err != nil || words != [6]int32{5, 8, -1, 1, 3, 2} {
		t.Errorf("%v, %v", words, err)
	}
	for _, c := range [][2]int{{1, 4}, {64, 4}, {256, 4}, {257, 8}, {4096, 64}} {
		if n := dev.TableLen(c[0]); n != c[1] {
			t.Errorf("a table for %d positions has %d numbers, want %d", c[0], n, c[1])
		}
	}
}

// Few rows over many experts share none; many rows do.
func TestFormOf(t *testing.T) {
	for _, c := range []struct {
		nExpert, k, rows int
		want             dev.Form
	}{
		{128, 8, 1, dev.ByEntry}, {128, 8, 8, dev.ByEntry}, {128, 8, 16, dev.ByEntry}, {128, 8, 32, dev.ByTile}, {128, 8, 512, dev.ByTile},
		{8, 2, 1, dev.ByEntry}, {8, 2, 4, dev.ByEntry}, {8, 2, 8, dev.ByTile}, {1, 1, 1, dev.ByEntry}, {1, 1, 2, dev.ByTile}, {512, 10, 64, dev.ByEntry},
	} {
		if got := dev.NewTable(0, c.nExpert, c.k, c.rows).FormOf(c.rows); got != c.want {
			t.Errorf("%+v: form %d", c, got)
		}
	}
}
