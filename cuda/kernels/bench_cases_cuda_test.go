//go:build cuda

package kernels_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"sluice/cuda/driver"
	dev "sluice/cuda/kernels"
	"sluice/kernels"
	"sluice/moe"
)

// benchShapes are the sizes of a model.
type benchShapes struct {
	embd, ff, nExpert, nUsed, vocab int
	ff2                             int // width of another model's experts
	heads, kvHeads, headDim         int
	ctx                             int
	depths                          []int // positions before a decoded token
	prompt                          int   // rows of a prompt's chunk
}

var (
	// Qwen3 30B-A3B; the other width is OLMoE 1B-7B's.
	publishedShapes = benchShapes{embd: 2048, ff: 768, ff2: 1024, nExpert: 128, nUsed: 8, vocab: 151936, heads: 32, kvHeads: 4, headDim: 128,
		ctx: 32768, depths: []int{512, 4096, 32767}, prompt: 512}
	tinyShapes = benchShapes{embd: 256, ff: 256, ff2: 512, nExpert: 8, nUsed: 2, vocab: 500, heads: 8, kvHeads: 1, headDim: 32,
		ctx: 600, depths: []int{40, 599}, prompt: 12}
)

func shapesForBench() benchShapes {
	if tiny() {
		return tinyShapes
	}
	return publishedShapes
}

// benchName is the name of a case: the kernel and then key and value by turns.
func benchName(kernel string, parts ...any) string {
	name := "kernel=" + kernel
	for i := 0; i < len(parts); i += 2 {
		name += fmt.Sprintf("/%v=%v", parts[i], parts[i+1])
	}
	return strings.ToLower(name)
}

// benchCases are all of them: each kernel on the shapes of s.
func benchCases(s benchShapes) (cases []benchCase) {
	add := func(name string, bytes, flops int64, setup func(testing.TB) dev.Launch) {
		cases = append(cases, benchCase{name, bytes, flops, setup})
	}
	// What a launch costs that does nothing: no other figure of microseconds is below it.
	add("kernel=nothing", 0, 0, func(t testing.TB) dev.Launch { return dev.Probe(reserve(t, 4), 1) })
	s.products(add)
	s.experts(add)
	s.attention(add)
	s.routing(add)
	s.rows(add)
	return cases
}

type adder = func(name string, bytes, flops int64, setup func(testing.TB) dev.Launch)

func (s *benchShapes) products(add adder) {
	product := func(typ kernels.Type, rows, k, n int) {
		add(benchName("product", "type", typ, "rows", rows, "cols", k, "n", n),
			dev.DeviceBytes(typ, rows, k)+int64(n)*(dev.ActBytes(typ, k)+4*int64(rows)), 2*int64(rows)*int64(k)*int64(n),
			func(t testing.TB) dev.Launch {
				return dev.Product(typ, reserve(t, 4*int64(rows)*int64(n)), noise(t, dev.DeviceBytes(typ, rows, k)),
					noise(t, dev.ActBytes(typ, k)*int64(n)), rows, k, n, dev.Out{})
			})
	}
	for _, typ := range productTypes {
		for _, n := range []int{1, 2, 4, 8, s.prompt} {
			product(typ, s.heads*s.headDim, s.embd, n) // the queries
		}
		if typ != kernels.F32 {
			product(typ, s.vocab, s.embd, 1) // the output
		}
	}
	product(kernels.F32, s.nExpert, s.embd, 1) // the router
	for _, typ := range productTypes {
		if dev.NeedsRepack(typ) {
			n := dev.DeviceBytes(typ, s.vocab, s.embd)
			add(benchName("repack", "type", typ, "rows", s.vocab, "cols", s.embd), 2*n, 0, func(t testing.TB) dev.Launch {
				return dev.Repack(typ, reserve(t, n), noise(t, n), s.vocab, s.embd)
			})
		}
	}
}

func (s *benchShapes) experts(add adder) {
	both := func(typ kernels.Type, ff, rows int, form dev.Form) {
		parts := []any{"form", [...]string{dev.ByEntry: "entries", dev.ByTile: "tiles"}[form], "type", typ, "width", ff, "experts", s.nExpert, "n", rows}
		up, down := dev.DeviceBytes(typ, ff, s.embd), dev.DeviceBytes(typ, s.embd, ff)
		entries := int64(rows) * int64(s.nUsed)
		read := min(entries, int64(s.nExpert)) // experts; those of a prompt are all in use
		macs := entries * int64(ff) * int64(s.embd)
		add(benchName("gate_up", parts...), 2*read*up+int64(rows)*dev.ActBytes(typ, s.embd)+4*entries*int64(ff), 4*macs, func(t testing.TB) dev.Launch {
			return s.table(t, rows).ExpertGateUp(typ, reserve(t, 4*entries*int64(ff)), s.pointers(t, up, down),
				noise(t, int64(rows)*dev.ActBytes(typ, s.embd)), ff, s.embd, rows, form)
		})
		add(benchName("down", parts...), read*down+entries*(dev.ActBytes(typ, ff)+4*int64(s.embd)), 2*macs, func(t testing.TB) dev.Launch {
			return s.table(t, rows).ExpertDown(typ, reserve(t, 4*entries*int64(s.embd)), s.pointers(t, up, down),
				noise(t, entries*dev.ActBytes(typ, ff)), s.embd, ff, rows, form)
		})
	}
	for _, typ := range productTypes {
		both(typ, s.ff, 1, dev.ByEntry)
		both(typ, s.ff, s.prompt, dev.ByTile)
	}
	for _, typ := range []kernels.Type{kernels.F16, kernels.Q8_0, kernels.Q4_K} {
		both(typ, s.ff2, 1, dev.ByEntry)
	}
}

// table returns a work table of rows that chose their experts evenly, nothing dropped.
func (s *benchShapes) table(t testing.TB, rows int) dev.Table {
	t.Helper()
	tab := dev.NewTable(reserve(t, dev.TableBytes(s.nExpert, s.nUsed, rows)), s.nExpert, s.nUsed, rows)
	store(t, tab.Sums, make([]byte, dev.SumsBytes))
	store(t, tab.Err, make([]byte, dev.RouteErrorBytes))
	ids, weights := s.choices(t, rows)
	run(t, tab.DropTable(ids, weights, 0, nil, 0, rows))
	return tab
}

func (s *benchShapes) choices(t testing.TB, rows int) (ids, weights dev.Ptr) {
	t.Helper()
	r := rand.New(rand.NewPCG(2, uint64(rows)))
	var id []int32
	var w []float32
	for range rows {
		for _, e := range r.Perm(s.nExpert)[:s.nUsed] {
			id, w = append(id, int32(e)), append(w, 1/float32(s.nUsed))
		}
	}
	return upload(t, id), upload(t, w)
}

// pointers returns the table of addresses of a layer's experts, whose gate and up take up bytes and down takes down.
func (s *benchShapes) pointers(t testing.TB, up, down int64) dev.Ptr {
	t.Helper()
	at := noise(t, int64(s.nExpert)*(2*up+down))
	var ptrs []dev.Ptr
	for range s.nExpert {
		ptrs = append(ptrs, at, at.At(up), at.At(2*up))
		at = at.At(2*up + down)
	}
	return upload(t, ptrs)
}

func (s *benchShapes) attention(add adder) {
	cache := func(a dev.Attention) int64 { return 2 * int64(a.NKVHead*a.HeadDim) } // bytes of a position's keys, and of its values
	// rows of one sequence from a position on, or one each of several at that position.
	place := func(t testing.TB, a dev.Attention, pos, rows, seqs int) dev.Attention {
		q := 4 * int64(rows*seqs*a.NHead*a.HeadDim)
		a.Out, a.Q, a.N = reserve(t, q), noise(t, q), rows*seqs
		a.Cache = s.cache(t, a.NKVHead, a.HeadDim, seqs)
		var of []dev.Row
		for i := range rows * seqs {
			of = append(of, dev.Row{Pos: pos + i%rows, Table: i / rows * dev.TableLen(s.ctx)})
		}
		a.Rows = upload(t, putRows(of))
		a.Scratch = reserve(t, dev.AttendScratch(a.N, a.NHead, a.HeadDim, a.Ctx))
		return a
	}
	// All query heads on few of keys and values, two on each, one on each.
	for _, heads := range [][2]int{{s.heads, s.kvHeads}, {2 * s.kvHeads, s.kvHeads}, {s.heads, s.heads}} {
		for _, depth := range s.depths {
			a := dev.Attention{NHead: heads[0], NKVHead: heads[1], HeadDim: s.headDim, Ctx: s.ctx}
			parts := []any{"heads", fmt.Sprintf("%dx%d", heads[0], heads[1]), "head", s.headDim, "depth", depth}
			add(benchName("attend_decode", parts...), 2*cache(a)*int64(depth+1), 4*int64(a.NHead*a.HeadDim)*int64(depth+1),
				func(t testing.TB) dev.Launch { return dev.AttendDecode(place(t, a, depth, 1, 1)) })
			if heads[1] == s.kvHeads && heads[0] == s.heads {
				add(benchName("attend_combine", parts...), dev.AttendScratch(1, a.NHead, a.HeadDim, depth+1), 0, func(t testing.TB) dev.Launch {
					a := place(t, a, depth, 1, 1)
					run(t, dev.AttendDecode(a))
					return dev.AttendCombine(a)
				})
			}
		}
	}
	for _, head := range []int{s.headDim, dev.MaxHeadDim} {
		a := dev.Attention{NHead: s.heads, NKVHead: s.kvHeads, HeadDim: head, Ctx: s.ctx}
		for _, pos := range []int{0, s.ctx/8 - s.prompt} {
			pairs := int64(s.prompt) * int64(2*pos+s.prompt+1) / 2
			add(benchName("attend_prefill", "heads", fmt.Sprintf("%dx%d", a.NHead, a.NKVHead), "head", head, "depth", pos, "n", s.prompt),
				2*cache(a)*int64(pos+s.prompt)+8*int64(s.prompt*a.NHead*head), 4*int64(a.NHead*head)*pairs,
				func(t testing.TB) dev.Launch {
					a := place(t, a, pos, s.prompt, 1)
					pieces := piecesOf(0, s.prompt, dev.PieceRows(a.NHead, a.NKVHead, a.HeadDim))
					a.List, a.N = upload(t, pieces), len(pieces)/dev.PieceBytes
					return dev.AttendPrefill(a)
				})
		}
	}
	for _, seqs := range []int{2, 8} {
		a, depth := dev.Attention{NHead: s.heads, NKVHead: s.kvHeads, HeadDim: s.headDim, Ctx: s.ctx}, s.depths[1]
		add(benchName("attend_decode", "heads", fmt.Sprintf("%dx%d", a.NHead, a.NKVHead), "head", a.HeadDim, "depth", depth, "n", seqs),
			2*cache(a)*int64(seqs*(depth+1)), 4*int64(seqs*a.NHead*a.HeadDim)*int64(depth+1),
			func(t testing.TB) dev.Launch { return dev.AttendDecode(place(t, a, depth, 1, seqs)) })
	}
}

// cache returns keys and values of sequences whose tiles lie anywhere.
func (s *benchShapes) cache(t testing.TB, nKV, headDim, seqs int) dev.Cache {
	t.Helper()
	tiles := seqs * dev.TableLen(s.ctx)
	var tables []int32
	for _, at := range rand.New(rand.NewPCG(3, uint64(seqs))).Perm(tiles) {
		tables = append(tables, int32(at))
	}
	n := int64(tiles) * dev.TileBytes(nKV, headDim)
	return dev.Cache{Keys: noise(t, n), Values: noise(t, n), Tables: upload(t, tables)}
}

func (s *benchShapes) routing(add adder) {
	k := int64(s.nUsed)
	for _, rows := range []int{1, s.prompt} {
		n := int64(rows)
		parts := []any{"experts", s.nExpert, "used", s.nUsed, "n", rows}
		add(benchName("route", parts...), n*(4*int64(s.nExpert)+8*k), 0, func(t testing.TB) dev.Launch {
			r := &moe.Router{NExpert: s.nExpert, NUsed: s.nUsed, Norm: true, Scale: 1}
			return dev.Route(r, reserve(t, 4*n*k), reserve(t, 4*n*k), upload(t, []uint64{0}), noise(t, 4*n*int64(s.nExpert)), 0, 0, rows)
		})
		add(benchName("table", parts...), 0, 0, func(t testing.TB) dev.Launch {
			ids, weights := s.choices(t, rows)
			return s.table(t, rows).DropTable(ids, weights, upload(t, make([]byte, s.nExpert)), &moe.Drop{Frac: 0.5, Renorm: true}, 0, rows)
		})
		add(benchName("combine", append([]any{"width", s.embd}, parts[2:]...)...), n*(k+2)*4*int64(s.embd), 0, func(t testing.TB) dev.Launch {
			return s.table(t, rows).Combine(noise(t, 4*n*int64(s.embd)), noise(t, 4*n*k*int64(s.embd)), 0, 0, rows, s.embd)
		})
	}
	add(benchName("post", "experts", s.nExpert), 0, 0, func(t testing.TB) dev.Launch {
		var message *driver.Pinned
		on(t, func() (err error) {
			message, err = device.Pin(dev.PostBytes(s.nExpert), t.Name())
			return err
		})
		t.Cleanup(func() { on(t, message.Free) })
		return s.table(t, 1).Post(message.Ptr, 1)
	})
	add("kernel=publish", 0, 0, func(t testing.TB) dev.Launch { return dev.Publish(reserve(t, 24), 1, 2, 3) })
	add(benchName("release", "experts", s.nExpert), 0, 0, func(t testing.TB) dev.Launch {
		return s.table(t, 1).Release(upload(t, []uint32{0}), s.pointers(t, 256, 256), 1)
	})
	add(benchName("tally", "experts", s.nExpert), 0, 0, func(t testing.TB) dev.Launch { return s.table(t, 1).Tally(upload(t, []int64{0}), 1) })
}

// rows are the operations on one row after another.
func (s *benchShapes) rows(add adder) {
	for _, typ := range productTypes {
		size := int64(typ.RowBytes(s.embd))
		add(benchName("embed", "type", typ, "width", s.embd, "n", s.prompt), int64(s.prompt)*(size+4*int64(s.embd)), 0, func(t testing.TB) dev.Launch {
			ids := make([]int32, s.prompt)
			for i := range ids {
				ids[i] = int32(rand.N(s.vocab))
			}
			return dev.Embed(typ, reserve(t, 4*int64(s.prompt*s.embd)), noise(t, size*int64(s.vocab)), tokens(t, ids), 0, s.prompt, s.embd, s.vocab)
		})
	}
	for _, rows := range []int{1, s.prompt} {
		n := int64(rows) * int64(s.embd) // values
		parts := []any{"width", s.embd, "n", rows}
		add(benchName("norm", parts...), 8*n, 0, func(t testing.TB) dev.Launch {
			return dev.RMSNorm(reserve(t, 4*n), noise(t, 4*n), noise(t, 4*int64(s.embd)), rows, s.embd, 1e-6, dev.Guard{})
		})
		add(benchName("add_norm", parts...), 16*n, 0, func(t testing.TB) dev.Launch {
			return dev.AddRMSNorm(reserve(t, 4*n), noise(t, 4*n), noise(t, 4*n), noise(t, 4*int64(s.embd)), rows, s.embd, 1e-6, dev.Guard{})
		})
		add(benchName("finite", parts...), 4*n, 0, func(t testing.TB) dev.Launch {
			return dev.Finite(noise(t, 4*n), rows, s.embd, dev.Guard{Word: upload(t, []uint64{0})})
		})
		add(benchName("quantize", parts...), 4*n+dev.Q8Bytes(rows, s.embd), 0, func(t testing.TB) dev.Launch {
			return dev.Quantize(reserve(t, dev.Q8Bytes(rows, s.embd)), noise(t, 4*n), rows, s.embd, 0)
		})
		add(benchName("gate", parts...), 4*n, 0, func(t testing.TB) dev.Launch {
			return dev.SharedGate(reserve(t, 4*int64(rows)), noise(t, 4*n), noise(t, 4*int64(s.embd)), rows, s.embd)
		})
		hidden, m := rows*s.nUsed, int64(rows*s.nUsed)*int64(s.ff)
		parts = []any{"width", s.ff, "n", hidden}
		add(benchName("silu_mul", parts...), 12*m, 0, func(t testing.TB) dev.Launch {
			return dev.SiluMul(reserve(t, 4*m), noise(t, 4*m), noise(t, 4*m), hidden, s.ff)
		})
		add(benchName("silu_mul_quantize", parts...), 8*m+dev.Q8Bytes(hidden, s.ff), 0, func(t testing.TB) dev.Launch {
			return dev.SiluMulQuantize(reserve(t, dev.Q8Bytes(hidden, s.ff)), noise(t, 4*m), noise(t, 4*m), hidden, s.ff)
		})
		for _, norm := range []dev.QKNorm{dev.QKNormHead, dev.QKNormRow} {
			s.rope(add, rows, norm)
		}
	}
	for _, rows := range []int{1, 8} {
		n, parts := int64(rows)*int64(s.vocab), []any{"width", s.vocab, "n", rows}
		add(benchName("argmax_part", parts...), 4*n, 0, func(t testing.TB) dev.Launch {
			return dev.ArgMaxPart(reserve(t, int64(rows)*dev.ArgMaxScratch), noise(t, 4*n), rows, s.vocab)
		})
		add(benchName("argmax_step", parts...), 0, 0, func(t testing.TB) dev.Launch {
			scratch := reserve(t, int64(rows)*dev.ArgMaxScratch)
			run(t, dev.ArgMaxPart(scratch, noise(t, 4*n), rows, s.vocab))
			return dev.ArgMaxStep(scratch, reserve(t, 4*int64(rows)), upload(t, make([]byte, rows*dev.RowBytes)), rows, s.vocab)
		})
	}
	add("kernel=choice_check", 0, 0, func(t testing.TB) dev.Launch {
		return dev.ChoiceCheck(noise(t, 4*int64(s.vocab)), upload(t, []int32{0}), upload(t, make([]byte, dev.RowBytes)), 1, s.vocab)
	})
}

func (s *benchShapes) rope(add adder, rows int, norm dev.QKNorm) {
	q, kv, n := int64(s.heads*s.headDim), int64(s.kvHeads*s.headDim), int64(rows)
	w := map[dev.QKNorm][2]int64{dev.QKNormHead: {int64(s.headDim), int64(s.headDim)}, dev.QKNormRow: {q, kv}}[norm]
	add(benchName("rope", "norm", [...]string{dev.QKNormHead: "head", dev.QKNormRow: "row"}[norm], "heads", fmt.Sprintf("%dx%d", s.heads, s.kvHeads), "head", s.headDim, "n", rows),
		n*(8*q+12*kv), 0, func(t testing.TB) dev.Launch {
			return dev.QKNormRopeKV(dev.QKV{Q: noise(t, 4*n*q), K: noise(t, 4*n*kv), V: noise(t, 4*n*kv),
				Norm: norm, NormQ: noise(t, 4*w[0]), NormK: noise(t, 4*w[1]), Eps: 1e-6,
				Angles: noise(t, dev.AnglesBytes(s.headDim, s.ctx)), NRot: s.headDim, Neox: true,
				Cache: s.cache(t, s.kvHeads, s.headDim, 1), Rows: upload(t, putRows(make([]dev.Row, rows))),
				N: rows, NHead: s.heads, NKVHead: s.kvHeads, HeadDim: s.headDim, Ctx: s.ctx})
		})
}
