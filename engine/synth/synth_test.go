package synth

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice/engine/gguf"
	"sluice/kernels"
)

func mustBuild(t testing.TB, c Config) *gguf.File {
	t.Helper()
	data, err := Build(c)
	if err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Parse("synth.gguf", data)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestBuildOpens(t *testing.T) {
	for _, arch := range Archs() {
		t.Run("arch="+arch, func(t *testing.T) {
			c := Config{Arch: arch, Type: "q4_k_m", Seed: 3}
			f := mustBuild(t, c)
			in, err := Describe(c)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := f.NeedString("general.architecture"); err != nil || got != arch {
				t.Errorf("general.architecture %q, %v", got, err)
			}
			for key, want := range map[string]int{
				"block_count": in.Geometry.Layers, "embedding_length": in.Geometry.Embd, "expert_count": in.Geometry.Experts,
				"expert_used_count": in.Geometry.Used, "attention.head_count_kv": in.Geometry.KVHeads,
			} {
				if got, err := f.NeedUint(arch + "." + key); err != nil || got != uint64(want) {
					t.Errorf("%s: %d, %v, want %d", key, got, err, want)
				}
			}
			if tokens, err := f.Strings("tokenizer.ggml.tokens"); err != nil || len(tokens) != in.Geometry.Vocab {
				t.Errorf("%d tokens, %v, want %d", len(tokens), err, in.Geometry.Vocab)
			}
			var weights, params int64
			for _, x := range f.Tensors() {
				n := int64(1)
				for _, d := range x.Dims {
					n *= int64(d)
				}
				params += n
				weights += x.Size
			}
			if len(f.Tensors()) != in.Tensors || params != in.Params || weights != in.WeightBytes {
				t.Errorf("file has %d tensors, %d parameters, %d bytes; Describe says %+v", len(f.Tensors()), params, weights, in)
			}
		})
	}
}

func TestSameBytes(t *testing.T) {
	c := Config{Arch: "qwen2moe", Type: "q5_k_m", Seed: 7}
	a, err := Build(c)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "m.gguf")
	in, err := Write(path, c)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a, b) {
		t.Error("Build and Write of one configuration differ")
	}
	if in.WeightBytes <= 0 || in.WeightBytes > int64(len(b)) || in.ActiveBytes >= in.WeightBytes {
		t.Errorf("%+v for a file of %d bytes", in, len(b))
	}
	c.Seed++
	if b, err = Build(c); err != nil || bytes.Equal(a, b) {
		t.Errorf("another seed gives the same bytes (%v)", err)
	}
}

// Two experts, two layers and two projections of one shape have nothing in common, and no two rows of one are equal.
func TestTensorsDiffer(t *testing.T) {
	f := mustBuild(t, Config{Type: "q8_0", Seed: 1})
	seen := map[string]string{}
	for _, x := range f.Tensors() {
		if x.Type == kernels.F32 {
			continue
		}
		data, row := x.Data(), x.Type.RowBytes(int(x.Dims[0]))
		perPart := int(x.Dims[1])
		for r := 0; r*row < len(data); r++ {
			where := fmt.Sprintf("%s part %d", x.Name, r/perPart)
			key := string(data[r*row:][:row])
			if prev, ok := seen[key]; ok && prev == where {
				t.Fatalf("%s: row %d stands in it twice", where, r)
			}
			seen[key] = where
		}
		for r := range min(perPart, 4) {
			for other := 1; other*perPart*row < len(data); other++ {
				if bytes.Equal(data[r*row:][:row], data[(other*perPart+r)*row:][:row]) {
					t.Errorf("%s: row %d of experts 0 and %d is the same", x.Name, r, other)
				}
			}
		}
	}
}

func TestPerExpertHoldsTheSameWeights(t *testing.T) {
	c := Config{Arch: "llama", Type: "q4_k_m", Seed: 5}
	merged := mustBuild(t, c)
	c.PerExpert = true
	single := mustBuild(t, c)
	for _, x := range merged.Tensors() {
		if len(x.Dims) < 3 {
			y, ok := single.Tensor(x.Name)
			if !ok || !bytes.Equal(x.Data(), y.Data()) {
				t.Errorf("%s differs", x.Name)
			}
			continue
		}
		n := int(x.Dims[2])
		part := len(x.Data()) / n
		for e := range n {
			name := strings.Replace(x.Name, "_exps.", fmt.Sprintf(".%d.", e), 1)
			y, ok := single.Tensor(name)
			if !ok {
				t.Fatalf("no tensor %s", name)
			}
			if !bytes.Equal(x.Data()[e*part:][:part], y.Data()) {
				t.Errorf("%s is not part %d of %s", name, e, x.Name)
			}
		}
	}
}

func TestSpread(t *testing.T) {
	for _, typ := range Types() {
		t.Run("type="+typ, func(t *testing.T) {
			f := mustBuild(t, Config{Arch: "qwen2moe", Type: typ, Seed: 2})
			for _, x := range f.Tensors() {
				n := 1
				for _, d := range x.Dims {
					n *= int(d)
				}
				w := make([]float32, n)
				kernels.Dequantize(x.Type, w, x.Data())
				want := 1 / math.Sqrt(float64(x.Dims[0]))
				tolerance := 0.05
				switch {
				case strings.HasSuffix(x.Name, "norm.weight"):
					for _, v := range w {
						if v != 1 {
							t.Fatalf("%s: %v, want ones", x.Name, v)
						}
					}
					continue
				case x.Name == "token_embd.weight":
					want = 1
				case strings.HasSuffix(x.Name, ".bias"):
					want = biasSpread
				}
				if n < 4096 { // five standard errors of a spread measured on n weights
					tolerance = 5 / math.Sqrt(2*float64(n))
				}
				sum := 0.0
				for _, v := range w {
					sum += float64(v)
				}
				mean := sum / float64(n)
				if got := rootMeanSquare(w); !(math.Abs(got/want-1) < tolerance) {
					t.Errorf("%s: spread %.4f, want %.4f", x.Name, got, want)
				}
				if limit := 5/math.Sqrt(float64(n)) + 0.02; !(math.Abs(mean/want) < limit) {
					t.Errorf("%s: mean %.5f of the spread, want 0 within %.5f", x.Name, mean/want, limit)
				}
			}
		})
	}
}

func TestPresets(t *testing.T) {
	for _, name := range Presets() {
		in, err := Describe(Config{Preset: name, Type: "q8_0"})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		t.Logf("%-20s %-9s %6.2f G parameters, %7.1f MB, %7.1f MB per token", name, in.Arch, float64(in.Params)/1e9,
			float64(in.WeightBytes)/1e6, float64(in.ActiveBytes)/1e6)
	}
	// Counted from the published sizes by hand: 2 x 50304 x 2048 + 16 x (4 x 2048^2 + 4 x 2048 + 2048 x 64 +
	// 64 x 3 x 2048 x 1024) + 2048.
	in, err := Describe(Config{Preset: "olmoe-1b-7b", Type: "q4_k_m"})
	if err != nil || in.Params != 6919161856 {
		t.Errorf("olmoe-1b-7b: %d parameters, %v, want 6919161856", in.Params, err)
	}
}

func TestOverrides(t *testing.T) {
	want := Geometry{Layers: 3, Embd: 512, Heads: 8, KVHeads: 8, HeadDim: 64, Experts: 5, Used: 3, FF: 256, SharedFF: 768,
		DenseFF: 64, Vocab: 301, Context: 99}
	in, err := Describe(Config{Preset: "olmoe-1b-7b", Arch: "qwen2moe", Geometry: want, Type: "Q4_K"})
	if err != nil {
		t.Fatal(err)
	}
	if in.Geometry != want {
		t.Errorf("got %+v, want %+v", in.Geometry, want)
	}
}

func TestRefused(t *testing.T) {
	cases := []struct {
		name string
		c    Config
		want string
	}{
		{"row", Config{Type: "q4_k", Geometry: Geometry{FF: 160}},
			`tensor "blk.0.ffn_down_exps.weight": row length 160 is no multiple of Q4_K's block of 256`},
		{"row of 32", Config{Type: "q8_0", Geometry: Geometry{Embd: 100}},
			`tensor "token_embd.weight": row length 100 is no multiple of Q8_0's block of 32`},
		{"mix", Config{Type: "q4_k_m", Geometry: Geometry{FF: 128}}, `blk.0.ffn_down_exps.weight": row length 128 is no multiple of Q6_K's`},
		{"preset", Config{Preset: "huge", Type: "f16"}, `preset "huge": want one of tiny, small,`},
		{"type", Config{Type: "q9"}, `type "q9": want one of f32, f16,`},
		{"no type", Config{}, `type ""`},
		{"arch", Config{Arch: "gpt5", Type: "f16"}, `architecture "gpt5": want one of qwen3moe,`},
		{"olmoe width", Config{Arch: "olmoe", Type: "f16", Geometry: Geometry{HeadDim: 128}}, "heads x head dim = 4 x 128 = 512, want embd 256"},
		{"olmoe kv", Config{Arch: "olmoe", Type: "f16", Geometry: Geometry{KVHeads: 2}}, "2 kv heads, want as many as heads, 4"},
		{"heads", Config{Type: "f16", Geometry: Geometry{KVHeads: 3}}, "4 heads are no multiple of 3 kv heads"},
		{"head dim", Config{Type: "f16", Geometry: Geometry{HeadDim: 63}}, "head dim 63 is odd"},
		{"used", Config{Type: "f16", Geometry: Geometry{Used: 9}}, "used 9: want 1 to 8"},
		{"experts", Config{Type: "f16", Geometry: Geometry{Experts: 1000}}, "experts 1000: want 2 to 512"},
		{"vocab", Config{Type: "f16", Geometry: Geometry{Vocab: 299}}, "vocab 299: want 300"},
		{"negative", Config{Type: "f16", Geometry: Geometry{Layers: -1}}, "layers -1: want 1 to 512"},
		{"too large", Config{Type: "f16", Geometry: Geometry{FF: 1 << 20, Embd: 1 << 20, Experts: 512, Layers: 512}}, "parameters, at most 1e+13"},
		{"shared", Config{Type: "f16", Geometry: Geometry{SharedFF: 256}}, "qwen3moe has no shared expert, only qwen2moe"},
		{"per expert", Config{Type: "f16", PerExpert: true}, "qwen3moe files never had one tensor per expert, only llama"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "m.gguf")
			_, err := Write(path, c.c)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if _, err := os.Stat(path); err == nil {
				t.Error("a file was left behind")
			}
		})
	}
}

// An expert that does not end on a whole run is cut at the end of its last block, merged or not.
func TestOddSizes(t *testing.T) {
	g := Geometry{Embd: 96, HeadDim: 24, FF: 32, Experts: 3, Layers: 1, Vocab: 301}
	f := mustBuild(t, Config{Arch: "llama", Type: "q5_1", Geometry: g, Seed: 4})
	x, ok := f.Tensor("blk.0.ffn_up_exps.weight")
	if !ok || x.Size != 3*32*72 {
		t.Fatalf("%+v, want 3 experts of 32 rows of 72 bytes", x)
	}
}

// Any small geometry is either refused or gives a file that opens and is as large as Describe says.
func FuzzBuild(f *testing.F) {
	f.Add(uint8(0), uint8(1), uint8(8), uint8(4), uint8(2), uint8(32), uint8(4), uint8(2), uint8(8), uint8(0), false)
	f.Add(uint8(3), uint8(2), uint8(6), uint8(3), uint8(1), uint8(8), uint8(5), uint8(1), uint8(7), uint8(3), true)
	f.Add(uint8(2), uint8(1), uint8(8), uint8(2), uint8(2), uint8(128), uint8(3), uint8(3), uint8(8), uint8(16), false)
	f.Fuzz(func(t *testing.T, arch, layers, embd, heads, kv, headDim, experts, used, ff, typ uint8, perExpert bool) {
		c := Config{Arch: Archs()[int(arch)%len(Archs())], Type: Types()[int(typ)%len(Types())], PerExpert: perExpert}
		c.Geometry = Geometry{Layers: int(layers) % 4, Embd: int(embd) % 17 * 32, Heads: int(heads) % 9, KVHeads: int(kv) % 9,
			HeadDim: int(headDim), Experts: int(experts) % 9, Used: int(used) % 9, FF: int(ff) % 17 * 32}
		in, err := Describe(c)
		if err != nil {
			if _, again := Build(c); again == nil || again.Error() != err.Error() {
				t.Fatalf("Describe: %v; Build: %v", err, again)
			}
			return
		}
		weights := int64(0)
		for _, x := range mustBuild(t, c).Tensors() {
			weights += x.Size
		}
		if weights != in.WeightBytes {
			t.Fatalf("%d bytes of weights, Describe says %d", weights, in.WeightBytes)
		}
	})
}

func TestVocab(t *testing.T) {
	for _, size := range []int{minVocab, 320, 4096} {
		v := newVocab(size)
		if len(v.tokens) != size || len(v.kinds) != size {
			t.Fatalf("%d tokens, %d kinds, want %d", len(v.tokens), len(v.kinds), size)
		}
		seen := map[string]bool{}
		for _, tok := range v.tokens {
			if seen[tok] {
				t.Errorf("token %q twice", tok)
			}
			seen[tok] = true
		}
		for _, m := range v.merges {
			left, right, ok := strings.Cut(m, " ")
			if !ok || !seen[left] || !seen[right] || !seen[left+right] {
				t.Errorf("merge %q: a part or the whole is no token", m)
			}
		}
		if v.tokens[size-1] != "<|endoftext|>" || v.kinds[size-1] != tokenControl {
			t.Errorf("last token %q of kind %d", v.tokens[size-1], v.kinds[size-1])
		}
	}
	// The first code points of the bytes that are not printable: NUL, space and the soft hyphen.
	r := byteRunes()
	if r[0] != 'Ā' || r[' '] != 'Ġ' || r[0xad] != 'Ń' || r['a'] != 'a' || r[0xff] != 'ÿ' {
		t.Errorf("byte characters %q", string(r[:]))
	}
}

func BenchmarkWrite(b *testing.B) {
	for _, typ := range []string{"f16", "q8_0", "q4_k_m"} {
		b.Run("type="+typ, func(b *testing.B) {
			c := Config{Preset: "small", Type: typ}
			in, err := Describe(c)
			if err != nil {
				b.Fatal(err)
			}
			path := filepath.Join(b.TempDir(), "m.gguf")
			b.SetBytes(in.WeightBytes)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Write(path, c); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
