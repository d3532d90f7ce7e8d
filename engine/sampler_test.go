package engine_test

import (
	"cmp"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"sluice/engine"
	"sluice/engine/model"
)

// logs are logits of the given probabilities.
func logs(p ...float64) []float32 {
	l := make([]float32, len(p))
	for i, v := range p {
		l[i] = float32(math.Log(v))
	}
	return l
}

// plain draws from all tokens by their probabilities.
var plain = engine.SamplerConfig{Temp: 1, TopP: 1, RepeatPenalty: 1}

func with(c engine.SamplerConfig, edit func(*engine.SamplerConfig)) engine.SamplerConfig {
	edit(&c)
	return c
}

func newSampler(t testing.TB, c engine.SamplerConfig, nVocab int) *engine.Sampler {
	t.Helper()
	s, err := engine.NewSampler(c, nVocab)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// drawn counts n draws from one sampler.
func drawn(t *testing.T, s *engine.Sampler, logits []float32, n int) []int {
	t.Helper()
	counts := make([]int, len(logits))
	work := make([]float32, len(logits))
	for range n {
		copy(work, logits)
		id, err := s.Sample(work)
		if err != nil {
			t.Fatal(err)
		}
		counts[id]++
	}
	return counts
}

// TestSamplerCuts: which tokens may come, step by step and where the order of the steps shows.
func TestSamplerCuts(t *testing.T) {
	four := logs(0.4, 0.3, 0.2, 0.1)
	for _, c := range []struct {
		name   string
		c      func(*engine.SamplerConfig)
		logits []float32
		recent []int32
		want   []int32
	}{
		{"all", func(*engine.SamplerConfig) {}, four, nil, []int32{0, 1, 2, 3}},
		{"top-k 2", func(c *engine.SamplerConfig) { c.TopK = 2 }, four, nil, []int32{0, 1}},
		{"top-k 1", func(c *engine.SamplerConfig) { c.TopK = 1 }, four, nil, []int32{0}},
		{"top-k of all", func(c *engine.SamplerConfig) { c.TopK = 4 }, four, nil, []int32{0, 1, 2, 3}},
		{"top-k above all", func(c *engine.SamplerConfig) { c.TopK = 99 }, four, nil, []int32{0, 1, 2, 3}},
		{"top-k, a tie at the edge goes to the lower id", func(c *engine.SamplerConfig) { c.TopK = 2 }, logs(0.1, 0.3, 0.3, 0.3), nil, []int32{1, 2}},
		{"top-p takes the token that reaches it", func(c *engine.SamplerConfig) { c.TopP = 0.5 }, four, nil, []int32{0, 1}},
		{"top-p just reached", func(c *engine.SamplerConfig) { c.TopP = 0.39 }, four, nil, []int32{0}},
		{"top-p tiny", func(c *engine.SamplerConfig) { c.TopP = 1e-9 }, four, nil, []int32{0}},
		{"min-p", func(c *engine.SamplerConfig) { c.MinP = 0.6 }, four, nil, []int32{0, 1}},
		{"min-p 1", func(c *engine.SamplerConfig) { c.MinP = 1 }, logs(0.4, 0.4, 0.2), nil, []int32{0, 1}},
		// Over all four tokens 0.5 needs two; over the two of top-k the first has 0.57 already.
		{"top-k before top-p", func(c *engine.SamplerConfig) { c.TopK, c.TopP = 2, 0.5 }, four, nil, []int32{0}},
		// At temperature 100 all four are equal, so both cuts would keep all of them.
		{"top-p before temperature", func(c *engine.SamplerConfig) { c.TopP, c.Temp = 0.5, 100 }, four, nil, []int32{0, 1}},
		{"min-p before temperature", func(c *engine.SamplerConfig) { c.MinP, c.Temp = 0.6, 100 }, four, nil, []int32{0, 1}},
		// The penalty doubles the negative logits of tokens 0 and 1: 0.16 and 0.09 against 0.2 and 0.1.
		{"penalty before top-k", func(c *engine.SamplerConfig) { c.RepeatPenalty, c.RepeatLastN, c.TopK = 2, 8, 2 }, four, []int32{0, 1}, []int32{0, 2}},
		{"penalty once per token", func(c *engine.SamplerConfig) { c.RepeatPenalty, c.RepeatLastN, c.TopK = 2, 8, 2 }, four, []int32{0, 0, 0, 1, 0, 1}, []int32{0, 2}},
		{"penalty divides positive logits", func(c *engine.SamplerConfig) { c.RepeatPenalty, c.RepeatLastN, c.TopK = 2, 8, 1 }, []float32{4, 3, 1}, []int32{0}, []int32{1}},
		{"penalty forgets", func(c *engine.SamplerConfig) { c.RepeatPenalty, c.RepeatLastN, c.TopK = 2, 2, 1 }, []float32{4, 3, 1}, []int32{0, 2, 2}, []int32{0}},
		{"penalty without a window", func(c *engine.SamplerConfig) { c.RepeatPenalty, c.TopK = 2, 1 }, []float32{4, 3, 1}, []int32{0}, []int32{0}},
		{"penalty under greedy", func(c *engine.SamplerConfig) { c.RepeatPenalty, c.RepeatLastN, c.Temp = 2, 8, 0 }, []float32{4, 3, 1}, []int32{0}, []int32{1}},
		{"low temperature", func(c *engine.SamplerConfig) { c.Temp = 1e-300 }, four, nil, []int32{0}},
		{"impossible tokens", func(*engine.SamplerConfig) {}, []float32{float32(math.Inf(-1)), 1, float32(math.Inf(-1)), 1}, nil, []int32{1, 3}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSampler(t, with(plain, c.c), len(c.logits))
			for _, id := range c.recent {
				s.Accept(id)
			}
			var got []int32
			for id, n := range drawn(t, s, c.logits, 500) {
				if n > 0 {
					got = append(got, int32(id))
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("drawn %v, want %v", got, c.want)
			}
		})
	}
}

// TestSamplerFrequencies: draws follow softmax(logits/temperature) over what is left.
func TestSamplerFrequencies(t *testing.T) {
	p := []float64{0.5, 0.25, 0.15, 0.1}
	for _, c := range []struct {
		temp float64
		topK int
	}{{1, 0}, {0.5, 0}, {2, 0}, {1, 3}} {
		want := make([]float64, len(p))
		var sum float64
		for i, v := range p {
			if c.topK == 0 || i < c.topK {
				want[i] = math.Pow(v, 1/c.temp)
				sum += want[i]
			}
		}
		const n = 20000
		s := newSampler(t, with(plain, func(x *engine.SamplerConfig) { x.Temp, x.TopK, x.Seed = c.temp, c.topK, 3 }), len(p))
		for i, got := range drawn(t, s, logs(p...), n) {
			q := want[i] / sum
			if limit := 5 * math.Sqrt(q*(1-q)*n); math.Abs(float64(got)-q*n) > limit {
				t.Errorf("temperature %v, top-k %d: token %d drawn %d times of %d, want %.0f within %.0f", c.temp, c.topK, i, got, n, q*n, limit)
			}
		}
	}
}

// TestSamplerSeed: one seed, one sequence; another seed, another sequence.
func TestSamplerSeed(t *testing.T) {
	logits := make([]float32, 200)
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range logits {
		logits[i] = rng.Float32()
	}
	sequence := func(seed uint64) (ids []int32) {
		s := newSampler(t, with(plain, func(c *engine.SamplerConfig) { c.Seed = seed }), len(logits))
		for range 50 {
			id, err := s.Sample(logits)
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, id)
		}
		return ids
	}
	if !slices.Equal(sequence(5), sequence(5)) {
		t.Error("two sequences of one seed differ")
	}
	if slices.Equal(sequence(5), sequence(6)) {
		t.Error("two seeds give one sequence")
	}
}

// TestSamplerGreedy: temperature 0 is the first maximum.
func TestSamplerGreedy(t *testing.T) {
	s := newSampler(t, engine.SamplerConfig{TopP: 1, RepeatPenalty: 1}, 5)
	for _, c := range []struct {
		logits []float32
		want   int32
	}{
		{[]float32{1, 5, 5, 2, 5}, 1},
		{[]float32{0, 0, 0, 0, 0}, 0},
		{[]float32{-3, -2, -2, -9, float32(math.Inf(-1))}, 1},
	} {
		if got, err := s.Sample(c.logits); err != nil || got != c.want {
			t.Errorf("%v: %d, %v, want %d", c.logits, got, err, c.want)
		}
	}
}

// TestSamplerNotFinite: logits that no token can be drawn from are an error, greedy or not.
func TestSamplerNotFinite(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, temp := range []float64{0, 1} {
		for _, l := range [][]float32{{nan, 1, 2}, {1, nan, 2}, {1, 2, nan}, {nan, nan, nan}, {1, inf, 2}, {-inf, -inf, -inf}} {
			s := newSampler(t, with(plain, func(c *engine.SamplerConfig) { c.Temp = temp }), 3)
			if id, err := s.Sample(slices.Clone(l)); err == nil || !strings.Contains(err.Error(), "not finite") {
				t.Errorf("temperature %v, %v: token %d, error %v", temp, l, id, err)
			}
		}
	}
}

// TestSamplerSettings: values out of range are refused by name; NaN is out of every range.
func TestSamplerSettings(t *testing.T) {
	nan := math.NaN()
	for _, c := range []struct {
		edit func(*engine.SamplerConfig)
		want string
	}{
		{func(c *engine.SamplerConfig) { c.Temp = -1 }, "temperature -1: want 0..100"},
		{func(c *engine.SamplerConfig) { c.Temp = nan }, "temperature NaN: want 0..100"},
		{func(c *engine.SamplerConfig) { c.Temp = math.Inf(1) }, "temperature +Inf: want 0..100"},
		{func(c *engine.SamplerConfig) { c.TopK = -1 }, "top-k -1: want 0 (all) or more"},
		{func(c *engine.SamplerConfig) { c.TopP = 0 }, "top-p 0: want above 0, at most 1"},
		{func(c *engine.SamplerConfig) { c.TopP = 1.5 }, "top-p 1.5: want above 0, at most 1"},
		{func(c *engine.SamplerConfig) { c.TopP = nan }, "top-p NaN: want above 0, at most 1"},
		{func(c *engine.SamplerConfig) { c.MinP = -0.5 }, "min-p -0.5: want 0..1"},
		{func(c *engine.SamplerConfig) { c.MinP = nan }, "min-p NaN: want 0..1"},
		{func(c *engine.SamplerConfig) { c.RepeatPenalty = 0 }, "repeat penalty 0: want above 0, at most 100"},
		{func(c *engine.SamplerConfig) { c.RepeatPenalty = nan }, "repeat penalty NaN: want above 0, at most 100"},
		{func(c *engine.SamplerConfig) { c.RepeatLastN = -1 }, "repeat window -1: want 0 or more"},
	} {
		_, err := engine.NewSampler(with(plain, c.edit), 10)
		var setting *model.SettingError
		if err == nil || err.Error() != c.want || !errors.As(err, &setting) {
			t.Errorf("got %v, want a SettingError %q", err, c.want)
		}
	}
}

func TestSamplerAllocatesNothing(t *testing.T) {
	logits := make([]float32, 500)
	for i := range logits {
		logits[i] = float32(i*7919%500) / 100
	}
	for name, c := range map[string]engine.SamplerConfig{
		"default": engine.DefaultSampler(), "greedy": with(plain, func(c *engine.SamplerConfig) { c.Temp = 0 }),
		"penalty": with(plain, func(c *engine.SamplerConfig) { c.RepeatPenalty, c.RepeatLastN = 1.1, 64 }),
	} {
		s := newSampler(t, c, len(logits))
		if n := testing.AllocsPerRun(100, func() {
			id, err := s.Sample(logits)
			if err != nil {
				t.Fatal(err)
			}
			s.Accept(id)
		}); n != 0 {
			t.Errorf("%s: %v allocations a token, want 0", name, n)
		}
	}
}

// allowed is what the configuration lets through, by sorting: the slow and plain way.
func allowed(c engine.SamplerConfig, logits []float32, recent []int32) map[int32]bool {
	l := slices.Clone(logits)
	seen := map[int32]bool{}
	for _, id := range recent[max(0, len(recent)-c.RepeatLastN):] {
		if c.RepeatPenalty == 1 || seen[id] {
			continue
		}
		seen[id] = true
		if l[id] > 0 {
			l[id] /= float32(c.RepeatPenalty)
		} else {
			l[id] *= float32(c.RepeatPenalty)
		}
	}
	ids := make([]int32, len(l))
	for i := range ids {
		ids[i] = int32(i)
	}
	slices.SortStableFunc(ids, func(a, b int32) int { return cmp.Compare(l[b], l[a]) })
	if c.Temp == 0 {
		return map[int32]bool{ids[0]: !math.IsInf(float64(l[ids[0]]), 0)}
	}
	if c.TopK > 0 {
		ids = ids[:min(c.TopK, len(ids))]
	}
	p := make([]float64, len(ids))
	var sum, acc float64
	for i, id := range ids {
		p[i] = math.Exp(float64(l[id]) - float64(l[ids[0]]))
		sum += p[i]
	}
	out := map[int32]bool{}
	for i, id := range ids {
		if p[i] >= c.MinP && p[i] > 0 {
			out[id] = true
		}
		if acc += p[i]; c.TopP < 1 && acc >= c.TopP*sum {
			break
		}
	}
	return out
}

// FuzzSampler: whatever the logits and the settings, a sampler gives a token that the plain rule allows,
// or an error, and does not panic.
func FuzzSampler(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, 0.8, uint16(2), 0.9, 0.05, 1.1, uint8(3), uint64(1))
	f.Add([]byte{0, 0, 0xc0, 0x7f, 0, 0, 0, 0}, 0.0, uint16(0), 1.0, 0.0, 1.0, uint8(0), uint64(2))
	f.Add([]byte{0, 0, 0x80, 0xff, 0, 0, 0x80, 0xff, 0, 0, 0x80, 0x3f}, 1e-320, uint16(3), 1e-300, 1.0, 100.0, uint8(255), uint64(3))
	f.Fuzz(func(t *testing.T, raw []byte, temp float64, topK uint16, topP, minP, penalty float64, lastN uint8, seed uint64) {
		c := engine.SamplerConfig{Temp: temp, TopK: int(topK), TopP: topP, MinP: minP, RepeatPenalty: penalty, RepeatLastN: int(lastN), Seed: seed}
		var logits []float32
		for len(raw) >= 4 && len(logits) < 64 {
			logits = append(logits, math.Float32frombits(binary.LittleEndian.Uint32(raw)))
			raw = raw[4:]
		}
		if len(logits) == 0 {
			return
		}
		s, err := engine.NewSampler(c, len(logits))
		if err != nil {
			return
		}
		var recent []int32
		for range 4 {
			ok := allowed(c, logits, recent)
			id, err := s.Sample(slices.Clone(logits))
			if err != nil {
				if !slices.ContainsFunc(logits, func(l float32) bool { return !(math.Abs(float64(l)) < math.MaxFloat32/100) }) {
					t.Fatalf("%+v: %v of the logits %v", c, err, logits)
				}
				return
			}
			if !ok[id] {
				t.Fatalf("%+v: token %d of the logits %v after %v, allowed are %v", c, id, logits, recent, ok)
			}
			s.Accept(id)
			recent = append(recent, id)
		}
	})
}
