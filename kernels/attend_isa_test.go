package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// attendCase is one block of tokens over one KV head, in every form in which the cache can be kept.
type attendCase struct {
	headDim, stride, pos0, nTok, group, qStride int
	q                                           []float32
	k, v                                        []float32 // exact in float16
	k16, v16                                    []uint16
	k8, v8                                      Q8
	kd, vd                                      []float32 // the values of k8 and v8
	scale                                       float32
}

func newAttendCase(r *rand.Rand, headDim, pos0, nTok, group int) *attendCase {
	c := &attendCase{headDim: headDim, stride: headDim + r.IntN(2)*32, pos0: pos0, nTok: nTok, group: group,
		qStride: group*headDim + r.IntN(2)*7, scale: float32(1 / math.Sqrt(float64(headDim)))}
	c.q = normals(r, (nTok-1)*c.qStride+group*headDim)
	n := (pos0+nTok-1)*c.stride + headDim
	c.k, c.v = normals(r, n), normals(r, n)
	if r.IntN(3) == 0 {
		for range 3 {
			c.q[r.IntN(len(c.q))] = awkward[r.IntN(len(awkward))]
			c.k[r.IntN(n)] = awkward[r.IntN(len(awkward))]
			c.v[r.IntN(n)] = awkward[r.IntN(len(awkward))]
		}
	}
	c.k16, c.k = halves(c.k)
	c.v16, c.v = halves(c.v)
	if headDim%32 == 0 {
		quant := func(x []float32) (Q8, []float32) {
			n := (len(x) + 31) &^ 31
			a := Q8{Q: make([]int8, n), D: make([]float32, n/32)}
			full := make([]float32, n)
			copy(full, x)
			a.Set(0, full)
			for i := range full {
				full[i] = a.D[i/32] * float32(a.Q[i])
			}
			return a, full
		}
		c.k8, c.kd = quant(c.k)
		c.v8, c.vd = quant(c.v)
	}
	return c
}

// check compares the block functions on the current instruction set with one portable call for each token.
func (c *attendCase) check(t *testing.T, r *rand.Rand) {
	t.Helper()
	what := fmt.Sprintf("headDim=%d stride=%d pos0=%d nTok=%d group=%d", c.headDim, c.stride, c.pos0, c.nTok, c.group)
	compare := func(form string, k, v []float32, block func(out []float32)) {
		t.Helper()
		want, check := guarded(len(c.q), r.IntN(17))
		got, checkGot := guarded(len(c.q), r.IntN(17))
		for i := range got { // also between the heads of two tokens
			want[i], got[i] = 77, 77
		}
		onGeneric(t, func() {
			for i := range c.nTok {
				at := i * c.qStride
				to := at + c.group*c.headDim
				AttendF32(want[at:to], c.q[at:to], k, v, c.headDim, c.stride, c.pos0+i+1, c.scale)
			}
		})
		block(got)
		if i := firstUnequal(got, want); i >= 0 {
			t.Fatalf("%s %s: value %d of token %d is %v, want %v", form, what, i%c.qStride, i/c.qStride, got[i], want[i])
		}
		check(t, what)
		checkGot(t, what)
	}
	compare("f32", c.k, c.v, func(out []float32) {
		attendBlockF32(out, c.q, c.nTok, c.qStride, c.k, c.v, c.headDim, c.stride, c.pos0, c.group, c.scale)
	})
	compare("f16", c.k, c.v, func(out []float32) {
		attendBlockF16(out, c.q, c.nTok, c.qStride, c.k16, c.v16, c.headDim, c.stride, c.pos0, c.group, c.scale)
	})
	if c.kd != nil {
		compare("q8", c.kd, c.vd, func(out []float32) {
			attendBlockQ8(out, c.q, c.nTok, c.qStride, c.k8, c.v8, c.headDim, c.stride, c.pos0, c.group, c.scale)
		})
	}
	to := c.group * c.headDim
	n := c.pos0 + 1
	one, want := make([]float32, to), make([]float32, to)
	onGeneric(t, func() { AttendF32(want, c.q[:to], c.k, c.v, c.headDim, c.stride, n, c.scale) })
	AttendF16(one, c.q[:to], c.k16, c.v16, c.headDim, c.stride, n, c.scale)
	if i := firstUnequal(one, want); i >= 0 {
		t.Fatalf("AttendF16 %s: value %d is %v, want %v", what, i, one[i], want[i])
	}
	if c.kd != nil {
		onGeneric(t, func() { AttendF32(want, c.q[:to], c.kd, c.vd, c.headDim, c.stride, n, c.scale) })
		AttendQ8(one, c.q[:to], c.k8, c.v8, c.headDim, c.stride, n, c.scale)
		if i := firstUnequal(one, want); i >= 0 {
			t.Fatalf("AttendQ8 %s: value %d is %v, want %v", what, i, one[i], want[i])
		}
	}
}

func TestAttendEqualsGeneric(t *testing.T) {
	test := func(t *testing.T) {
		r := rand.New(rand.NewPCG(26, 1))
		for _, headDim := range []int{1, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 256, MaxHeadDim} {
			for _, pos0 := range []int{0, 1, 14, 15, 31, 47, KVTile - 1, KVTile, 2*KVTile - 5} {
				nTok, group := 1+r.IntN(20), 1+r.IntN(9)
				if pos0 == 1 || pos0 == 47 || pos0 == 2*KVTile-5 { // a row alone, for which there is another path
					newAttendCase(r, headDim, pos0, 1, 1).check(t, r)
				}
				if pos0 == 31 {
					group = attendRows + 1 + r.IntN(3)
					nTok = 3
				}
				if pos0 == 0 {
					nTok = KVTile + 1 + r.IntN(9)
				}
				if headDim > 128 {
					nTok, group = 1+nTok%4, 1+group%4
				}
				newAttendCase(r, headDim, pos0, nTok, group).check(t, r)
			}
		}
	}
	t.Run("isa=generic", func(t *testing.T) { onGeneric(t, func() { test(t) }) })
	onEachISA(t, test)
}

func FuzzAttend(f *testing.F) {
	f.Add(uint64(1), uint16(64), uint8(70), uint8(3), uint8(4))
	f.Fuzz(func(t *testing.T, seed uint64, headDim uint16, pos0, nTok, group uint8) {
		for _, name := range []string{"avx2", "avx512"} {
			if restore, ok := takeISA(t, name); ok {
				r := rand.New(rand.NewPCG(seed, 3))
				newAttendCase(r, 1+int(headDim)%300, int(pos0), 1+int(nTok)%12, 1+int(group)%10).check(t, r)
				restore()
			}
		}
	})
}

// Tokens of one block may not see what lies behind their own position, however bad it is.
func TestAttendBlockIsCausal(t *testing.T) {
	test := func(t *testing.T) {
		r := rand.New(rand.NewPCG(27, 1))
		c := newAttendCase(r, 64, 3, 6, 2)
		want, got := make([]float32, len(c.q)), make([]float32, len(c.q))
		block := func(out []float32) {
			attendBlockF32(out, c.q, c.nTok, c.qStride, c.k, c.v, c.headDim, c.stride, c.pos0, c.group, c.scale)
		}
		block(want)
		for p := range c.nTok {
			at := (c.pos0 + p) * c.stride
			bad := awkward[2+p%3]
			oldK, oldV := c.k[at], c.v[at]
			c.k[at], c.v[at] = bad, bad
			block(got)
			if !sameBits(got[:p*c.qStride], want[:p*c.qStride]) {
				t.Fatalf("position %d changes tokens before it", c.pos0+p)
			}
			c.k[at], c.v[at] = oldK, oldV
		}
	}
	t.Run("isa=generic", func(t *testing.T) { onGeneric(t, func() { test(t) }) })
	onEachISA(t, test)
}

func TestAttendBlockArgumentsChecked(t *testing.T) {
	x := make([]float32, 256)
	q8 := Q8{Q: make([]int8, 256), D: make([]float32, 7)}
	for name, f := range map[string]func(){
		"negative position": func() { attendBlockF32(x, x, 1, 64, x, x, 8, 8, -1, 1, 1) },
		"overlapping rows":  func() { attendBlockF32(x, x, 2, 8, x, x, 8, 8, 0, 2, 1) },
		"queries":           func() { attendBlockF32(x, x[:15], 2, 8, x, x, 8, 8, 0, 1, 1) },
		"output":            func() { attendBlockF32(x[:15], x, 2, 8, x, x, 8, 8, 0, 1, 1) },
		"keys":              func() { attendBlockF32(x, x, 2, 8, x[:15], x, 8, 8, 0, 1, 1) },
		"part of a block":   func() { AttendQ8(x[:16], x[:16], q8, q8, 16, 32, 1, 1) },
		"scales":            func() { AttendQ8(x[:32], x[:32], q8, q8, 32, 32, 8, 1) },
		"set in a block":    func() { q8.Set(16, x[:32]) },
	} {
		wantPanic(t, name, f)
	}
	attendBlockF32(nil, nil, 0, 0, nil, nil, 8, 8, 0, 1, 1) // no tokens
}

func TestAttendBlockDoesNotAllocate(t *testing.T) {
	c := newAttendCase(rand.New(rand.NewPCG(28, 1)), 128, 60, 9, 4)
	out := make([]float32, len(c.q))
	test := func(t *testing.T) {
		if got := testing.AllocsPerRun(3, func() {
			attendBlockF32(out, c.q, c.nTok, c.qStride, c.k, c.v, c.headDim, c.stride, c.pos0, c.group, c.scale)
			attendBlockF16(out, c.q, c.nTok, c.qStride, c.k16, c.v16, c.headDim, c.stride, c.pos0, c.group, c.scale)
			attendBlockQ8(out, c.q, c.nTok, c.qStride, c.k8, c.v8, c.headDim, c.stride, c.pos0, c.group, c.scale)
			AttendQ8(out[:512], c.q[:512], c.k8, c.v8, c.headDim, c.stride, c.pos0, c.scale)
			c.k8.Set(32, out[:64])
		}); got != 0 {
			t.Errorf("%v allocations, want 0", got)
		}
	}
	t.Run("isa=generic", func(t *testing.T) { onGeneric(t, func() { test(t) }) })
	onEachISA(t, test)
}

// BenchmarkAttendTiles counts the bytes of keys and values once a call, and the products of both steps.
func BenchmarkAttendTiles(b *testing.B) {
	const headDim = 128
	r := rand.New(rand.NewPCG(1, 2))
	for _, group := range []int{1, 8} {
		for _, nTok := range []int{1, 32} {
			for _, n := range []int{64, 512, 2048} {
				q, out := normals(r, nTok*group*headDim), make([]float32, nTok*group*headDim)
				size := (n + nTok) * headDim
				kv := TiledKV{Step: KVTile * headDim}
				for t := range (n + nTok + KVTile - 1) / KVTile {
					kv.Tiles = append(kv.Tiles, int32(t))
				}
				room := len(kv.Tiles) * kv.Step
				kv16, kv8 := kv, kv
				kv16.K16, _ = halves(normals(r, room))
				kv16.V16, _ = halves(normals(r, room))
				kv8.K8 = Q8{Q: make([]int8, room), D: make([]float32, room/32)}
				kv8.V8 = kv8.K8
				for _, form := range []string{"f16", "q8_0"} {
					bytes, kv := 4*size, &kv16
					if form == "q8_0" {
						bytes, kv = 2*(size+size/8), &kv8
					}
					benchEachISA(b, fmt.Sprintf("kv=%s/heads=%d/headdim=%d/tokens=%d/n=%d", form, group, headDim, nTok, n), func(b *testing.B) {
						b.ReportAllocs()
						b.SetBytes(int64(bytes))
						for b.Loop() {
							AttendTiles(out, q, nTok, group*headDim, kv, headDim, n, group, 0, 0.088)
						}
						b.ReportMetric(2*float64(headDim*group*nTok*(n+nTok/2))*float64(b.N)/b.Elapsed().Seconds()/1e9, "GMAC/s")
					})
				}
			}
		}
	}
}

// attendBlockF32 is AttendTiles over keys and values that lie in one run, row p at p*stride.
func attendBlockF32(out, q []float32, nTok, qStride int, k, v []float32, headDim, stride, pos0, groupHeads int, scale float32) {
	attendBlock(out, q, nTok, qStride, &keyValues{k32: k, v32: v, stride: stride}, headDim, pos0, groupHeads, 0, scale)
}

// attendBlockF16 is attendBlockF32 on the keys and values of AttendF16.
func attendBlockF16(out, q []float32, nTok, qStride int, k, v []uint16, headDim, stride, pos0, groupHeads int, scale float32) {
	attendBlock(out, q, nTok, qStride, &keyValues{k16: k, v16: v, stride: stride}, headDim, pos0, groupHeads, 0, scale)
}

// attendBlockQ8 is attendBlockF32 on the keys and values of AttendQ8.
func attendBlockQ8(out, q []float32, nTok, qStride int, k, v Q8, headDim, stride, pos0, groupHeads int, scale float32) {
	attendBlock(out, q, nTok, qStride, &keyValues{k8: k, v8: v, stride: stride}, headDim, pos0, groupHeads, 0, scale)
}
