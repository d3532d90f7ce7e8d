package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
)

func TestRope(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 1))
	for _, c := range []struct{ nRot, headDim int }{{0, 4}, {2, 2}, {2, 5}, {6, 6}, {64, 64}, {64, 128}, {128, 128}, {96, 80 + 16}} {
		table := NewRopeTable(RopeConfig{NRot: c.nRot, Base: 10000}, 5000)
		for _, pos := range []int{0, 1, 2, 255, 256, 4999} {
			for _, neox := range []bool{false, true} {
				x, check := guarded(c.headDim, pos%4)
				copy(x, normals(r, c.headDim))
				in := append([]float32(nil), x...)
				Rope(x, table.Cos(pos), table.Sin(pos), neox)
				check(t, "x")
				half := c.nRot / 2
				for j := range half {
					a, b := 2*j, 2*j+1
					if neox {
						a, b = j, j+half
					}
					angle := float64(pos) / math.Pow(10000, float64(2*j)/float64(c.nRot))
					sin, cos := math.Sincos(angle)
					u, v := float64(in[a]), float64(in[b])
					// Table entry, product, sum: three roundings of numbers no larger than |u|+|v|.
					bound := 3.01 * eps32 * (math.Abs(u) + math.Abs(v))
					for i, want := range map[int]float64{a: u*cos - v*sin, b: u*sin + v*cos} {
						if !(math.Abs(float64(x[i])-want) <= bound) {
							t.Fatalf("nRot=%d pos=%d neox=%v: x[%d] = %v, want %v within %v", c.nRot, pos, neox, i, x[i], want, bound)
						}
					}
				}
				if !sameBits(x[c.nRot:], in[c.nRot:]) {
					t.Fatalf("nRot=%d: values after the rotated ones changed", c.nRot)
				}
			}
		}
	}
}

// yarnReference is the published computation, step by step as in the authors' code: two frequency vectors, a mask between
// the correction dimensions, a blend.
func yarnReference(dim int, base, factor float64, origCtx int, betaFast, betaSlow, ext float64, freqFactors []float32) (invFreq []float64, mscale float64) {
	correction := func(rotations float64) float64 {
		return float64(dim) * math.Log(float64(origCtx)/(rotations*2*math.Pi)) / (2 * math.Log(base))
	}
	low := math.Max(math.Floor(correction(betaFast)), 0)
	high := math.Min(math.Ceil(correction(betaSlow)), float64(dim-1))
	if low == high {
		high += 0.001
	}
	for i := 0; i < dim; i += 2 {
		posFreq := math.Pow(base, float64(i)/float64(dim))
		if freqFactors != nil {
			posFreq *= float64(freqFactors[i/2])
		}
		extrapolation, interpolation := 1/posFreq, 1/(factor*posFreq)
		ramp := (float64(i/2) - low) / (high - low)
		if ramp < 0 {
			ramp = 0
		} else if ramp > 1 {
			ramp = 1
		}
		mask := (1 - ramp) * ext
		invFreq = append(invFreq, interpolation*(1-mask)+extrapolation*mask)
	}
	return invFreq, 0.1*math.Log(factor) + 1
}

func TestRopeYarn(t *testing.T) {
	factors := make([]float32, 64)
	for i := range factors {
		factors[i] = 1 + float32(i)/16
	}
	for name, c := range map[string]RopeConfig{
		"qwen3 x4":         {NRot: 128, Base: 1e6, Factor: 4, OrigCtx: 32768, ExtFactor: -1},
		"deepseek x40":     {NRot: 64, Base: 10000, Factor: 40, OrigCtx: 4096, ExtFactor: 1, BetaFast: 32, BetaSlow: 1, AttnFactor: 1},
		"x64 of 4096":      {NRot: 128, Base: 10000, Factor: 64, OrigCtx: 4096, ExtFactor: -1},
		"gpt-oss x32":      {NRot: 64, Base: 150000, Factor: 32, OrigCtx: 4096, ExtFactor: -1, BetaFast: 32, BetaSlow: 1},
		"half mixed":       {NRot: 128, Base: 10000, Factor: 8, OrigCtx: 4096, ExtFactor: 0.5, AttnFactor: 0.75},
		"other betas":      {NRot: 80, Base: 10000, Factor: 8, OrigCtx: 2048, ExtFactor: 1, BetaFast: 16, BetaSlow: 2},
		"short context":    {NRot: 64, Base: 1e7, Factor: 2, OrigCtx: 8, ExtFactor: 1}, // the lower end cut to 0
		"frequency factor": {NRot: 128, Base: 10000, Factor: 16, OrigCtx: 4096, ExtFactor: 1, FreqFactors: factors},
	} {
		c.ScalingType = "yarn"
		fast, slow, ext, attn := c.BetaFast, c.BetaSlow, c.ExtFactor, c.AttnFactor
		if fast == 0 {
			fast, slow = 32, 1
		}
		if ext < 0 {
			ext = 1
		}
		if attn == 0 {
			attn = 1
		}
		freq, mscale := yarnReference(c.NRot, c.Base, c.Factor, c.OrigCtx, fast, slow, ext, c.FreqFactors)
		checkTable(t, name, c, freq, mscale*attn)
	}
}

func TestRopeScaling(t *testing.T) {
	plain := func(div float64, factors []float32) (freq []float64) {
		for j := range 32 {
			f := math.Pow(500000, -float64(2*j)/64) / div
			if factors != nil {
				f /= float64(factors[j])
			}
			freq = append(freq, f)
		}
		return freq
	}
	factors := make([]float32, 32)
	for i := range factors {
		factors[i] = 1 + float32(i%9)
	}
	base := RopeConfig{NRot: 64, Base: 500000}
	for _, c := range []struct {
		name   string
		edit   func(*RopeConfig)
		freq   []float64
		mscale float64
	}{
		{"unset", func(c *RopeConfig) {}, plain(1, nil), 1},
		{"none ignores the factor", func(c *RopeConfig) { c.ScalingType, c.Factor = "none", 8 }, plain(1, nil), 1},
		{"linear", func(c *RopeConfig) { c.ScalingType, c.Factor = "linear", 8 }, plain(8, nil), 1},
		{"linear ignores ext", func(c *RopeConfig) { c.ScalingType, c.Factor, c.ExtFactor = "linear", 8, 1 }, plain(8, nil), 1},
		{"factors", func(c *RopeConfig) { c.FreqFactors = factors }, plain(1, factors), 1},
		{"longrope", func(c *RopeConfig) { c.FreqFactors, c.AttnFactor = factors, 1.19 }, plain(1, factors), 1.19},
		{"yarn without extrapolation", func(c *RopeConfig) {
			c.ScalingType, c.Factor, c.OrigCtx, c.ExtFactor = "yarn", 8, 4096, 0
		}, plain(8, nil), 1},
	} {
		cfg := base
		c.edit(&cfg)
		checkTable(t, c.name, cfg, c.freq, c.mscale)
	}
}

// checkTable compares some positions of the table, the last one far out, with cosines and sines of pos*freq.
func checkTable(t *testing.T, name string, c RopeConfig, freq []float64, mscale float64) {
	t.Helper()
	const nCtx = 262144
	table := NewRopeTable(c, nCtx)
	for _, pos := range []int{0, 1, 17, 255, 256, 4095, 4096, 100003, nCtx - 1} {
		cos, sin := table.Cos(pos), table.Sin(pos)
		if len(cos) != len(freq) || len(sin) != len(freq) {
			t.Fatalf("%s: %d cosines, %d sines, want %d", name, len(cos), len(sin), len(freq))
		}
		for j, f := range freq {
			angle := float64(pos) * f
			// One rounding to float32; the two ways to the angle differ by some float64 roundings.
			bound := mscale * (1.01*eps32 + 0x1p-50*angle)
			if d := math.Abs(float64(cos[j]) - mscale*math.Cos(angle)); !(d <= bound) {
				t.Fatalf("%s: cos of pair %d at %d is %v, want %v", name, j, pos, cos[j], mscale*math.Cos(angle))
			}
			if d := math.Abs(float64(sin[j]) - mscale*math.Sin(angle)); !(d <= bound) {
				t.Fatalf("%s: sin of pair %d at %d is %v, want %v", name, j, pos, sin[j], mscale*math.Sin(angle))
			}
		}
	}
}

func TestYarnMagnitude(t *testing.T) {
	for _, c := range []struct{ factor, mscale, want float64 }{
		{40, 0.707, 0.1*0.707*math.Log(40) + 1},
		{40, 1, 0.1*math.Log(40) + 1},
		{1, 1, 1},
		{0.5, 1, 1},
	} {
		if got := YarnMagnitude(c.factor, c.mscale); math.Abs(got-c.want) > 1e-15 {
			t.Errorf("YarnMagnitude(%v, %v) = %v, want %v", c.factor, c.mscale, got, c.want)
		}
	}
}

func TestRopeConfigRefused(t *testing.T) {
	good := RopeConfig{NRot: 64, Base: 10000, ScalingType: "yarn", Factor: 4, OrigCtx: 4096, ExtFactor: -1}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	nan, inf := math.NaN(), math.Inf(1)
	for _, c := range []struct {
		edit func(*RopeConfig)
		want string
	}{
		{func(c *RopeConfig) { c.NRot = 63 }, "63 rotated dimensions"},
		{func(c *RopeConfig) { c.NRot = -2 }, "-2 rotated dimensions"},
		{func(c *RopeConfig) { c.Base = 0 }, "frequency base is 0"},
		{func(c *RopeConfig) { c.Base = nan }, "frequency base is NaN"},
		{func(c *RopeConfig) { c.Base = 1 }, "frequency base of 1"},
		{func(c *RopeConfig) { c.Factor = 0 }, "scaling factor is 0"},
		{func(c *RopeConfig) { c.Factor = nan }, "scaling factor is NaN"},
		{func(c *RopeConfig) { c.Factor = inf }, "scaling factor is +Inf"},
		{func(c *RopeConfig) { c.ScalingType, c.Factor = "linear", -1 }, "scaling factor is -1"},
		{func(c *RopeConfig) { c.ScalingType = "longrope" }, `"longrope", want one of none, linear, yarn`},
		{func(c *RopeConfig) { c.OrigCtx = 0 }, "original context of 0"},
		{func(c *RopeConfig) { c.ExtFactor = nan }, "extrapolation factor is NaN"},
		{func(c *RopeConfig) { c.AttnFactor = nan }, "attention factor is NaN"},
		{func(c *RopeConfig) { c.AttnFactor = -1 }, "attention factor is -1"},
		{func(c *RopeConfig) { c.BetaFast = nan }, "beta_fast is NaN"},
		{func(c *RopeConfig) { c.BetaSlow = -3 }, "beta_slow is -3"},
		{func(c *RopeConfig) { c.FreqFactors = make([]float32, 31) }, "31 frequency factors for 64 rotated dimensions, want 32"},
		{func(c *RopeConfig) { c.FreqFactors = make([]float32, 32) }, "frequency factor 0 is 0"},
	} {
		cfg := good
		c.edit(&cfg)
		err := cfg.Validate()
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Validate: %v, want %q", err, c.want)
		}
		wantPanic(t, c.want, func() { NewRopeTable(cfg, 10) })
	}
}

func TestRopeTableBounds(t *testing.T) {
	table := NewRopeTable(RopeConfig{NRot: 4, Base: 10000}, 300)
	for _, pos := range []int{-1, -256, 300, 511, 512, math.MinInt, math.MaxInt} {
		wantPanic(t, fmt.Sprint("Cos ", pos), func() { table.Cos(pos) })
		wantPanic(t, fmt.Sprint("Sin ", pos), func() { table.Sin(pos) })
	}
	table.Reserve(1000)
	if n := testing.AllocsPerRun(5, func() { table.Cos(299); table.Sin(0) }); n != 0 {
		t.Errorf("%v allocations after Reserve, want 0", n)
	}
	NewRopeTable(RopeConfig{NRot: 4, Base: 10000}, 0).Reserve(10)
}

func TestRopeTableConcurrent(t *testing.T) {
	c := RopeConfig{NRot: 64, Base: 10000}
	shared, alone := NewRopeTable(c, 2048), NewRopeTable(c, 2048)
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for pos := w; pos < 2048; pos += 31 {
				if !sameBits(shared.Cos(pos), alone.Cos(pos)) || !sameBits(shared.Sin(pos), alone.Sin(pos)) {
					t.Errorf("position %d differs", pos)
				}
			}
		})
	}
	wg.Wait()
}
