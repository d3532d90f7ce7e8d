package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// tiledCase is an attendCase whose keys and values lie in tiles of a pool, in no order and with another head beside them.
// What is not theirs is NaN.
type tiledCase struct {
	*attendCase
	window        int
	kv16, kv32    TiledKV
	kv8           TiledKV // where heads are whole blocks
	firstPosition int     // of the first tile that is there
}

func newTiledCase(r *rand.Rand, headDim, pos0, nTok, group, window int) *tiledCase {
	c := &tiledCase{attendCase: newAttendCase(r, headDim, pos0, nTok, group), window: window}
	last := pos0 + nTok
	first := seesFrom(pos0+1, window) / KVTile
	if first > 0 {
		first -= r.IntN(2) // one that is still there
	}
	c.firstPosition = first * KVTile
	for _, x := range [][]float32{c.v, c.vd} {
		for i := range x { // a position below the window may hold anything finite
			if i/c.stride < seesFrom(pos0+nTok, window) && x[i]-x[i] != 0 {
				x[i] = 1
			}
		}
	}
	c.v16, c.v = halves(c.v)
	n := (last+KVTile-1)/KVTile - first
	tile := KVTile * headDim
	step, base, places := 2*tile, tile*r.IntN(2), n+2
	kv := TiledKV{Tiles: make([]int32, n), Step: step, Base: base, First: first}
	for i, p := range r.Perm(places)[:n] {
		kv.Tiles[i] = int32(p)
	}
	fill := func(row func(p int, k, v []float32)) (k, v []float32) {
		k, v = make([]float32, places*step), make([]float32, places*step)
		for i := range k {
			k[i], v[i] = float32(math.NaN()), float32(math.NaN())
		}
		for p := first * KVTile; p < last; p++ {
			at := base + int(kv.Tiles[p/KVTile-first])*step + p%KVTile*headDim
			row(p, k[at:at+headDim], v[at:at+headDim])
		}
		return k, v
	}
	k, v := fill(func(p int, k, v []float32) {
		copy(k, c.k[p*c.stride:])
		copy(v, c.v[p*c.stride:])
	})
	c.kv32, c.kv16, c.kv8 = kv, kv, kv
	c.kv32.K32, c.kv32.V32 = k, v
	c.kv16.K16, _ = halves(k)
	c.kv16.V16, _ = halves(v)
	if c.kd != nil {
		quant := func() Q8 {
			a := Q8{Q: make([]int8, places*step), D: make([]float32, places*step/32)}
			for i := range a.D {
				a.D[i] = float32(math.NaN())
			}
			return a
		}
		c.kv8.K8, c.kv8.V8 = quant(), quant()
		fill(func(p int, _, _ []float32) {
			at, from := base+int(kv.Tiles[p/KVTile-first])*step+p%KVTile*headDim, p*c.stride
			for _, x := range []struct{ to, from Q8 }{{c.kv8.K8, c.k8}, {c.kv8.V8, c.v8}} {
				copy(x.to.Q[at:], x.from.Q[from:from+headDim])
				copy(x.to.D[at/32:], x.from.D[from/32:(from+headDim)/32])
			}
		})
		for i, x := range c.v8.D {
			if 32*i/c.stride < seesFrom(pos0+nTok, window) && x-x != 0 {
				t := 32 * i / c.stride
				c.v8.D[i] = 1
				if at := 32 * i % c.stride; t >= c.firstPosition && t < last && at < headDim {
					c.kv8.V8.D[(base+int(kv.Tiles[t/KVTile-first])*step+t%KVTile*headDim+at)/32] = 1
				}
			}
		}
		for i := range c.vd {
			c.vd[i] = c.v8.D[i/32] * float32(c.v8.Q[i])
		}
	}
	return c
}

// attendMasked is attention of one head over positions 0 to n-1, of which those below from have no weight: the scores
// of every tile that holds one of the others, -Inf in place of the masked, and one step of the online softmax.
func attendMasked(out, q, k, v []float32, stride, from, n int, scale float32) {
	top, sum := float32(math.Inf(-1)), float32(0)
	clear(out)
	for p0 := from / KVTile * KVTile; p0 < n; p0 += KVTile {
		var w [KVTile]float32
		m := top
		for p := p0; p < min(p0+KVTile, n); p++ {
			w[p-p0] = Dot(q, k[p*stride:][:len(q)]) * scale
			if p < from {
				w[p-p0] = float32(math.Inf(-1))
			}
			m = max32(m, w[p-p0])
		}
		base := m
		if math.IsInf(float64(m), -1) {
			base = 0
		}
		shrink := Exp(top - base)
		for i := range out {
			out[i] *= shrink
		}
		var lanes [dotLanes]float32
		for p := p0; p < min(p0+KVTile, n); p++ {
			e := Exp(w[p-p0] - base)
			lanes[p%dotLanes] += e
			for i := range out {
				out[i] += float32(e * v[p*stride+i])
			}
		}
		top, sum = m, float32(sum*shrink)+fold(&lanes)
	}
	for i := range out {
		out[i] *= 1 / sum
	}
}

func (c *tiledCase) check(t *testing.T, r *rand.Rand) {
	t.Helper()
	what := fmt.Sprintf("headDim=%d pos0=%d nTok=%d group=%d window=%d", c.headDim, c.pos0, c.nTok, c.group, c.window)
	compare := func(form string, kv *TiledKV, k, v []float32) {
		t.Helper()
		want, got := make([]float32, len(c.q)), make([]float32, len(c.q))
		for i := range got { // also between the heads of two tokens
			want[i], got[i] = 77, 77
		}
		onGeneric(t, func() {
			for i := range c.nTok {
				n := c.pos0 + i + 1
				for h := range c.group {
					at := i*c.qStride + h*c.headDim
					head, q := want[at:at+c.headDim], c.q[at:at+c.headDim]
					if c.window == 0 {
						AttendF32(head, q, k, v, c.headDim, c.stride, n, c.scale)
					} else {
						attendMasked(head, q, k, v, c.stride, max(0, n-c.window), n, c.scale)
					}
				}
			}
		})
		AttendTiles(got, c.q, c.nTok, c.qStride, kv, c.headDim, c.pos0, c.group, c.window, c.scale)
		if i := firstUnequal(got, want); i >= 0 {
			t.Fatalf("%s %s: value %d of token %d is %v, want %v", form, what, i%c.qStride, i/c.qStride, got[i], want[i])
		}
		// One head of one token alone.
		i, h := r.IntN(c.nTok), r.IntN(c.group)
		at := i*c.qStride + h*c.headDim
		one := make([]float32, c.headDim)
		AttendTiles(one, c.q[at:at+c.headDim], 1, 0, kv, c.headDim, c.pos0+i, 1, c.window, c.scale)
		if d := firstUnequal(one, got[at:at+c.headDim]); d >= 0 {
			t.Fatalf("%s %s: head %d of token %d alone has %v at %d, want %v", form, what, h, i, one[d], d, got[at+d])
		}
	}
	compare("f32", &c.kv32, c.k, c.v)
	compare("f16", &c.kv16, c.k, c.v)
	if c.kd != nil {
		compare("q8", &c.kv8, c.kd, c.vd)
	}
}

func TestAttendTilesEqualsGeneric(t *testing.T) {
	test := func(t *testing.T) {
		r := rand.New(rand.NewPCG(29, 1))
		for _, headDim := range []int{1, 16, 24, 64, 96, 128, 256, MaxHeadDim} {
			for _, pos0 := range []int{0, 15, KVTile - 1, KVTile, 2*KVTile - 5, 3*KVTile + 7} {
				for _, window := range []int{0, 1, 15, KVTile, KVTile + 9, 2 * KVTile, 1000} {
					nTok, group := 1+r.IntN(6), 1+r.IntN(3)
					switch {
					case headDim == 64 && window == KVTile+9:
						nTok = KVTile + 1 + r.IntN(9)
					case headDim == 16 && window == 15:
						group = attendRows + 1 + r.IntN(3)
					case r.IntN(4) == 0:
						nTok, group = 1, 1
					}
					newTiledCase(r, headDim, pos0, nTok, group, window).check(t, r)
				}
			}
		}
	}
	t.Run("isa=generic", func(t *testing.T) { onGeneric(t, func() { test(t) }) })
	onEachISA(t, test)
}

func FuzzAttendTiles(f *testing.F) {
	f.Add(uint64(1), uint16(64), uint8(70), uint8(3), uint8(4), uint8(9))
	f.Fuzz(func(t *testing.T, seed uint64, headDim uint16, pos0, nTok, group, window uint8) {
		for _, name := range []string{"avx2", "avx512"} {
			if restore, ok := takeISA(t, name); ok {
				r := rand.New(rand.NewPCG(seed, 4))
				newTiledCase(r, 1+int(headDim)%300, int(pos0), 1+int(nTok)%12, 1+int(group)%10, int(window)).check(t, r)
				restore()
			}
		}
	})
}

// TestAttendTilesWindow compares with attention over the window alone, in float64.
func TestAttendTilesWindow(t *testing.T) {
	r := rand.New(rand.NewPCG(30, 1))
	const headDim, end = 32, 3*KVTile + 5
	kv := TiledKV{K32: normals(r, 4*KVTile*headDim), V32: normals(r, 4*KVTile*headDim), Tiles: []int32{0, 1, 2, 3}, Step: KVTile * headDim}
	q, out := normals(r, headDim), make([]float32, headDim)
	for window := 1; window < end+3; window++ {
		AttendTiles(out, q, 1, 0, &kv, headDim, end-1, 1, window, 0.2)
		from := max(0, end-window)
		want, bound := attendReference(q, kv.K32[from*headDim:], kv.V32[from*headDim:], headDim, headDim, end-from, 0.2)
		for i := range want {
			if !(math.Abs(float64(out[i])-want[i]) <= bound[i]) {
				t.Fatalf("window %d: value %d is %v, want %v within %v", window, i, out[i], want[i], bound[i])
			}
		}
	}
}

func TestAttendTilesArgumentsChecked(t *testing.T) {
	const headDim = 32
	x := make([]float32, KVTile*headDim)
	call := func(pos0, nTok, window int, change func(kv *TiledKV)) func() {
		kv := TiledKV{K32: make([]float32, 3*KVTile*headDim), V32: make([]float32, 3*KVTile*headDim), Tiles: []int32{2, 0}, Step: KVTile * headDim, First: 1}
		change(&kv)
		return func() { AttendTiles(x, x, nTok, headDim, &kv, headDim, pos0, 1, window, 1) }
	}
	same := func(*TiledKV) {}
	call(2*KVTile, 2, KVTile+1, same)() // what the rest changes
	call(3*KVTile, 0, KVTile, func(kv *TiledKV) { kv.Tiles = nil })()
	short := func(kv *TiledKV) { kv.V32 = kv.V32[:3*KVTile*headDim-1] }
	call(KVTile, KVTile-1, 1, short)() // the last tile need not be whole
	for name, f := range map[string]func(){
		"tile below":      call(2*KVTile, 2, KVTile+2, same),
		"no window":       call(2*KVTile, 2, 0, same),
		"tile behind":     call(3*KVTile, 1, KVTile, same),
		"negative window": call(2*KVTile, 1, -1, same),
		"no tiles":        call(2*KVTile, 1, KVTile, func(kv *TiledKV) { kv.Tiles = nil }),
		"place":           call(2*KVTile, 1, KVTile, func(kv *TiledKV) { kv.Tiles[1] = 3 }),
		"negative place":  call(2*KVTile, 1, KVTile, func(kv *TiledKV) { kv.Tiles[1] = -1 }),
		"base":            call(2*KVTile, 1, KVTile, func(kv *TiledKV) { kv.Base = 1 + 2*KVTile*headDim }),
		"short keys":      call(2*KVTile, 1, KVTile+1, func(kv *TiledKV) { kv.K32 = kv.K32[:2*KVTile*headDim] }),
		"short values":    call(KVTile, KVTile, 1, short),
		"nothing set":     call(2*KVTile, 1, KVTile, func(kv *TiledKV) { kv.K32 = nil }),
		"part of a block": call(2*KVTile, 1, KVTile, func(kv *TiledKV) {
			n := 3 * KVTile * headDim
			*kv = TiledKV{K8: Q8{make([]int8, n), make([]float32, n/32)}, V8: Q8{make([]int8, n), make([]float32, n/32)}, Tiles: kv.Tiles, First: 1, Step: 16}
		}),
	} {
		wantPanic(t, name, f)
	}
}

func TestAttendTilesDoesNotAllocate(t *testing.T) {
	c := newTiledCase(rand.New(rand.NewPCG(31, 1)), 128, 160, 9, 4, 70)
	out := make([]float32, len(c.q))
	test := func(t *testing.T) {
		if got := testing.AllocsPerRun(3, func() {
			kv := c.kv16 // as a caller builds it for one head
			kv.Base += 0
			AttendTiles(out, c.q, c.nTok, c.qStride, &kv, c.headDim, c.pos0, c.group, c.window, c.scale)
			AttendTiles(out, c.q, c.nTok, c.qStride, &c.kv8, c.headDim, c.pos0, c.group, c.window, c.scale)
		}); got != 0 {
			t.Errorf("%v allocations, want 0", got)
		}
	}
	t.Run("isa=generic", func(t *testing.T) { onGeneric(t, func() { test(t) }) })
	onEachISA(t, test)
}
