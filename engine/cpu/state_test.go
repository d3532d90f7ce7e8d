package cpu

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"sluice/engine/model"
	"sluice/kernels"
)

// kinds are layers of every kind of state.
func kinds() []model.Layer {
	attention := func(window int) model.Mixer {
		return &model.Attention{Heads: 4, KVHeads: 2, KeyLen: 32, ValueLen: 32, Window: window}
	}
	return []model.Layer{
		{Mixer: attention(0)}, {Mixer: attention(70)}, {Mixer: attention(1)}, {Mixer: attention(64)}, {Mixer: attention(0)},
		{Mixer: &model.Latent{Heads: 2, Rank: 32, RotLen: 32}},
		{Mixer: &model.DeltaNet{KeyHeads: 1, ValueHeads: 2, KeyLen: 4, ValueLen: 4, Conv: 4}},
	}
}

// of picks layers.
func of(all []model.Layer, at ...int) (some []model.Layer) {
	for _, i := range at {
		some = append(some, all[i])
	}
	return some
}

// write stands for a pass of n rows: every position's keys and values follow from the layer, the position and the tokens
// before, every recurrence from what it was.
func write(t *testing.T, s *state, n int, token func(pos int) float32) {
	t.Helper()
	if err := s.grow(n); err != nil {
		t.Fatal(err)
	}
	for pos := s.n; pos < s.n+n; pos++ {
		for il := range s.p.layers {
			l := &s.p.layers[il]
			if l.class < 0 {
				continue
			}
			k, v := make([]float32, l.heads*l.keyLen), make([]float32, l.heads*l.valLen)
			for i := range k {
				k[i] = token(pos) + float32(il) + float32(i)/64
			}
			for i := range v {
				v[i] = token(pos) - float32(il) - float32(i)/64
			}
			s.put(il, pos, k, v)
		}
		for _, r := range s.recur {
			for i := range r {
				r[i] = r[i]*0.5 + token(pos) + float32(i)
			}
		}
	}
	s.advance(n)
}

// seen is every byte that a row at the sequence's end could read.
func seen(s *state) []byte {
	var b []byte
	le := binary.LittleEndian
	for il := range s.p.layers {
		l := &s.p.layers[il]
		if l.class < 0 {
			continue
		}
		from := 0
		if w := s.p.classes[l.class].window; w > 0 {
			from = max(0, s.n-w+1)
		}
		for head := range l.heads {
			kv := s.head(il, head)
			for pos := from; pos < s.n; pos++ {
				tile, row := int(kv.Tiles[pos/kernels.KVTile-kv.First]), pos%kernels.KVTile
				at, vt := tile*kv.Step+kv.Base+row*l.keyLen, tile*l.valStep+head*kernels.KVTile*l.valLen+row*l.valLen
				for i := range l.keyLen {
					switch {
					case kv.K16 != nil:
						b = le.AppendUint16(b, kv.K16[at+i])
					case kv.K32 != nil:
						b = le.AppendUint32(b, math.Float32bits(kv.K32[at+i]))
					default:
						b = le.AppendUint32(append(b, byte(kv.K8.Q[at+i])), math.Float32bits(kv.K8.D[(at+i)/32]))
					}
				}
				for i := range l.valLen {
					switch {
					case kv.K16 != nil:
						b = le.AppendUint16(b, kv.V16[vt+i])
					case kv.K32 != nil:
						b = le.AppendUint32(b, math.Float32bits(kv.V32[vt+i]))
					default:
						b = le.AppendUint32(append(b, byte(kv.V8.Q[vt+i])), math.Float32bits(kv.V8.D[(vt+i)/32]))
					}
				}
			}
		}
	}
	for _, r := range s.recur {
		for _, v := range r {
			b = le.AppendUint32(b, math.Float32bits(v))
		}
	}
	return b
}

// TestState: for each kind of state, at every position of a run: cut there as far as it can go back, or restored there from
// a snapshot behind other tokens, and gone on, it holds the bytes of a fresh run.
func TestState(t *testing.T) {
	run := 300
	if testing.Short() {
		run = 140 // over two ends of tiles, and past every window
	}
	token := func(pos int) float32 { return float32(pos*37%101) / 8 }
	other := func(pos int) float32 { return float32(pos*53%97) / 4 }
	all := kinds()
	for name, c := range map[string]struct {
		layers []model.Layer
		back   bool // to every position
	}{
		"full":      {of(all, 0, 4), true},
		"window 70": {of(all, 1), false},
		"window 1":  {of(all, 2), false},
		"mixed":     {of(all, 0, 3, 1), false},
		"latent":    {of(all, 5), true},
		"recurrent": {of(all, 6), false},
		"all kinds": {all, false},
	} {
		for _, kv := range []model.KV{model.KVF16, model.KVF32, model.KVQ8} {
			t.Run(fmt.Sprintf("%s/%s", name, kv), func(t *testing.T) {
				p := newPool(&model.Config{Model: &model.Model{Layers: c.layers}, Ctx: 320, Seqs: 2, Batch: 40, KV: kv})
				rng := rand.New(rand.NewPCG(1, 2))
				open := func() *state {
					st, err := p.take()
					if err != nil {
						t.Fatal(err)
					}
					return st.(*state)
				}
				fresh := open()
				want := [][]byte{seen(fresh)}
				for range run {
					write(t, fresh, 1, token)
					want = append(want, seen(fresh))
				}
				fresh.Close()
				on := func(s *state, to int, token func(int) float32) {
					for s.n < to {
						write(t, s, min(1+rng.IntN(40), to-s.n), token)
					}
				}
				s := open()
				var snaps []model.Snapshot
				for n := 0; n <= run; n++ {
					on(s, n, token)
					if !bytes.Equal(seen(s), want[n]) {
						t.Fatalf("position %d: the bytes differ from those of single steps", n)
					}
					x := s.Snapshot()
					if x.Len() != n {
						t.Fatalf("a snapshot of %d positions says %d", n, x.Len())
					}
					on(s, min(run, n+1+rng.IntN(90)), other)
					if err := s.Restore(x); err != nil {
						t.Fatal(err)
					}
					if s.n != n || !bytes.Equal(seen(s), want[n]) {
						t.Fatalf("restored at %d: %d positions, the bytes differ", n, s.n)
					}
					if n%50 == 0 {
						snaps = append(snaps, x)
					}
					on(s, min(run, n+1+rng.IntN(70)), other)
					kept := s.Truncate(n)
					if c.back && kept != n || kept > n {
						t.Fatalf("cut at %d: %d kept", n, kept)
					}
					if kept != s.n {
						t.Fatalf("cut at %d: %d kept, %d positions", n, kept, s.n)
					}
					if !bytes.Equal(seen(s), want[kept]) {
						t.Fatalf("cut at %d, %d kept: the bytes differ", n, kept)
					}
				}
				on(s, run, token)
				if got := s.Bytes(); got <= 0 {
					t.Errorf("%d bytes", got)
				}
				for i, x := range snaps {
					// Whatever was shorter meanwhile has lost what the snapshot stands on.
					err := s.Restore(x)
					if (err == nil) != (c.back && i == 0) && err == nil && !bytes.Equal(seen(s), want[x.Len()]) {
						t.Errorf("snapshot of %d: restored to other bytes", x.Len())
					}
					if err != nil && !errors.Is(err, model.ErrSnapshot) {
						t.Error(err)
					}
				}
				s.Close()
				a, b := open(), open()
				on(a, run, token)
				on(b, 200, other)
				if _, err := p.take(); err == nil {
					t.Error("a third sequence found room for two")
				}
				if !bytes.Equal(seen(a), want[run]) {
					t.Error("two sequences: the bytes of one differ")
				}
				if err := b.Restore(a.Snapshot()); !errors.Is(err, model.ErrSnapshot) {
					t.Errorf("another's snapshot: %v", err)
				}
				a.Truncate(0)
				none := a.Snapshot()
				a.Close()
				b.Close()
				again := open()
				if err := again.Restore(none); !errors.Is(err, model.ErrSnapshot) {
					t.Errorf("the snapshot of a sequence that has left, in the next one: %v", err)
				}
				again.Close()
				for i := range p.classes {
					if k := &p.classes[i]; len(k.free) != k.perSeq*2 {
						t.Errorf("class %d: %d of %d tiles came back", i, len(k.free), k.perSeq*2)
					}
				}
			})
		}
	}
}

// TestWindowTiles: a window holds whole tiles, and no more than its reach and a pass can touch.
func TestWindowTiles(t *testing.T) {
	layers := of(kinds(), 1)
	p := newPool(&model.Config{Model: &model.Model{Layers: layers}, Ctx: 4096, Seqs: 1, Batch: 40, KV: model.KVF16})
	st, err := p.take()
	if err != nil {
		t.Fatal(err)
	}
	s := st.(*state)
	// 69 positions behind and 40 of a pass touch at most three tiles of 64.
	if p.classes[0].perSeq != 3 {
		t.Errorf("%d tiles a sequence, want 3", p.classes[0].perSeq)
	}
	token := func(pos int) float32 { return float32(pos % 7) }
	for s.n+40 <= 4096 {
		write(t, s, 40, token)
	}
	if want := int64(3) * 2 * 2 * 64 * 2 * 32; s.Bytes() > want {
		t.Errorf("%d bytes, want at most %d", s.Bytes(), want)
	}
}
