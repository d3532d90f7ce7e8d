package gen

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"

	"sluice/dump"
	"sluice/moe"
	"sluice/moe/store"
)

// TraceConfig describes a route trace.
type TraceConfig struct {
	Layers, Experts, Used int
	ExpertBytes           int64 // of layer 0; the upper half of the layers has an eighth less when Unequal
	Unequal               bool
	Prompt, Decode        int   // tokens of one turn
	Chunk                 int   // tokens of one prompt call; 0: all at once
	Turns                 int   // 0: as many as Bytes needs
	Bytes                 int64 // with Turns 0: stop after the turn in which the file reaches this size

	BudgetBytes int64   // of the cache that the recorded run had
	Policy      string  // of store.Policies()
	Frac        float64 // drop threshold of the recorded run, in decode
	State       bool    // state the cache and the threshold in the preamble
	Seed        uint64
}

// DefaultTrace is a trace in the shape of a 30B model with a cache for a quarter of its experts.
func DefaultTrace(bytes int64) TraceConfig {
	return TraceConfig{Layers: 48, Experts: 128, Used: 8, ExpertBytes: 3059712, Unequal: true, Prompt: 64, Decode: 256, Bytes: bytes,
		BudgetBytes: 4000 << 20, Policy: "lru", Seed: 1}
}

// WriteTrace writes a route trace to path and returns its number of rows. The routing: an expert of a layer is chosen with
// a probability that falls with its rank (a Zipf law), a decoded token keeps each expert of the one before with
// probability 0.4, and weights are exponential, sorted and normalised. Residency, reads and drops are those of store.Cache
// and moe.Drop.
func WriteTrace(path string, c TraceConfig) (rows uint64, err error) {
	if c.Layers < 1 || c.Used < 1 || c.Used > c.Experts || c.ExpertBytes < 1 || c.Prompt < 0 || c.Decode < 0 || c.Prompt+c.Decode < 1 ||
		c.Turns <= 0 && c.Bytes <= 0 {
		return 0, fmt.Errorf("gen: trace of %+v: want layers, experts, tokens and a length", c)
	}
	g := &tracer{c: c, rng: rand.New(rand.NewPCG(c.Seed, 1)), resident: make([]uint8, c.Experts), read: make([]int64, c.Experts)}
	meta := dump.TraceMeta{Model: "synthetic.gguf", Arch: "qwen3moe", NLayer: c.Layers, NExpert: c.Experts, NUsed: c.Used}
	var layers []store.CacheLayer
	for il := range c.Layers {
		size := c.ExpertBytes
		if c.Unequal && il >= c.Layers/2 {
			size -= size / 8
		}
		meta.Layers = append(meta.Layers, dump.TraceLayer{Layer: il, ExpertBytes: size, DenseBytes: 4 * size})
		layers = append(layers, store.CacheLayer{Experts: c.Experts, SlotBytes: size})
		g.perm = append(g.perm, g.rng.Perm(c.Experts))
	}
	if c.State {
		meta.Extra = [][2]string{{"cache_bytes", fmt.Sprint(c.BudgetBytes)}, {"cache_policy", c.Policy}, {"drop_frac", fmt.Sprint(c.Frac)}}
	}
	policy, err := store.NewPolicy(c.Policy, c.Layers*c.Experts, c.BudgetBytes)
	if err != nil {
		return 0, err
	}
	g.meta = &meta
	if g.cache, err = store.NewCache(policy, c.BudgetBytes, layers); err != nil {
		return 0, err
	}
	if g.w, err = dump.CreateTrace(path, meta); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, g.w.Close()) }()
	for turn := 0; ; turn++ {
		if err := g.turn(turn); err != nil {
			return 0, err
		}
		if turn+1 == c.Turns {
			return g.w.Rows(), nil
		}
		if c.Turns > 0 {
			continue
		}
		if err := g.w.Flush(); err != nil {
			return 0, err
		}
		st, err := os.Stat(path)
		if err != nil {
			return 0, err
		}
		if st.Size() >= c.Bytes {
			return g.w.Rows(), nil
		}
	}
}

// tracer is the state of a synthetic run.
type tracer struct {
	c        TraceConfig
	meta     *dump.TraceMeta
	w        *dump.TraceWriter
	rng      *rand.Rand
	cache    *store.Cache
	perm     [][]int   // by layer: expert by rank
	before   [][]int32 // by layer: experts of the token before
	resident []uint8
	read     []int64
}

func (g *tracer) turn(turn int) error {
	g.before = make([][]int32, g.c.Layers)
	chunk := g.c.Chunk
	if chunk <= 0 {
		chunk = max(g.c.Prompt, 1)
	}
	for pos := 0; pos < g.c.Prompt; pos += chunk {
		if err := g.pass(turn, dump.Prefill, pos, min(chunk, g.c.Prompt-pos)); err != nil {
			return err
		}
	}
	for i := range g.c.Decode {
		if err := g.pass(turn, dump.Decode, g.c.Prompt+i, 1); err != nil {
			return err
		}
	}
	return nil
}

// pass is one forward pass over t tokens.
func (g *tracer) pass(turn, phase, pos, t int) error {
	k := g.c.Used
	for il := range g.c.Layers {
		call := dump.TraceCall{Turn: turn, Phase: phase, Pos0: pos, Layer: il, T: t, K: k, Resident: g.resident, ReadBytes: g.read,
			Dropped: make([]bool, t*k)}
		for range t {
			g.before[il] = g.choose(il, g.before[il])
			call.Expert = append(call.Expert, g.before[il]...)
			call.Weight = append(call.Weight, g.weights()...)
		}
		g.cache.Residency(il, g.resident)
		clear(g.read)
		if phase == dump.Decode && g.c.Frac > 0 {
			miss := make([]bool, k)
			for j, e := range call.Expert {
				miss[j] = g.resident[e] == 0
			}
			moe.MarkRow(moe.Drop{Frac: g.c.Frac}.Share(k), call.Weight, miss, call.Dropped)
		}
		var ids []int32
		for j, e := range call.Expert {
			if !call.Dropped[j] {
				ids = append(ids, e)
			}
		}
		slices.Sort(ids)
		ids = slices.Compact(ids)
		for len(ids) > 0 {
			n, err := g.cache.Demand(il, ids)
			if err != nil {
				return err
			}
			for j, missed := range g.cache.Missed() {
				if missed {
					g.read[ids[j]] = g.meta.Layers[il].ExpertBytes
				}
			}
			g.cache.Release()
			ids = ids[n:]
		}
		if err := g.w.Call(&call); err != nil {
			return err
		}
	}
	return nil
}

// choose returns the distinct experts of a token.
func (g *tracer) choose(il int, before []int32) []int32 {
	out := make([]int32, 0, g.c.Used)
	for _, e := range before {
		if g.rng.Float64() < 0.4 {
			out = append(out, e)
		}
	}
	n := float64(g.c.Experts)
	for len(out) < g.c.Used {
		// Squaring a uniform draw prefers low ranks: rank r has probability near 1/(2*sqrt(r*n)).
		u := g.rng.Float64()
		e := int32(g.perm[il][int(u*u*n)])
		if !slices.Contains(out, e) {
			out = append(out, e)
		}
	}
	return out
}

func (g *tracer) weights() []float32 {
	w := make([]float32, g.c.Used)
	sum := float32(0)
	for i := range w {
		w[i] = float32(g.rng.ExpFloat64()) + 0.05
		sum += w[i]
	}
	slices.SortFunc(w, func(a, b float32) int { return cmp.Compare(b, a) })
	for i := range w {
		w[i] /= sum
	}
	return w
}
