package gen

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"sluice/dump"
)

// DumpConfig describes a selection dump. Every token belongs to one of Clusters equal shares of the experts; HotPicks of
// its experts come from the Hot first ids, the others from its cluster's share of the rest. Clusters 1 and HotPicks 0 is
// uniform.
type DumpConfig struct {
	Layers, Experts, Used   int
	Hot, HotPicks, Clusters int
	Batch                   int   // tokens of one call; 0: 1
	Bytes                   int64 // size to reach
	Seed                    uint64
}

// DefaultDump is two clusters and a hot set over 288 experts, top-8.
func DefaultDump(bytes int64) DumpConfig {
	return DumpConfig{Layers: 32, Experts: 288, Used: 8, Hot: 16, HotPicks: 2, Clusters: 2, Batch: 64, Bytes: bytes, Seed: 1}
}

// WriteDump appends a selection dump to path (a new file, as a rule) and returns the number of its records. Clusters take
// their experts by id modulo Clusters.
func WriteDump(path string, c DumpConfig) (records uint64, err error) {
	batch := max(c.Batch, 1)
	if c.Layers < 1 || c.Used < 1 || c.Clusters < 1 || c.HotPicks > c.Used || c.HotPicks > c.Hot || c.Bytes < 1 ||
		(c.Experts-c.Hot)/c.Clusters < c.Used-c.HotPicks {
		return 0, fmt.Errorf("gen: dump of %+v: want layers, a length, and enough experts in each share", c)
	}
	w, err := dump.OpenSel(path, dump.SelMeta{Model: "synthetic.gguf", Arch: "qwen3moe", NLayer: c.Layers, NExpert: c.Experts, NUsed: c.Used})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	rng := rand.New(rand.NewPCG(c.Seed, 2))
	size := int64(2 + 6*c.Used)
	expert, weight := make([]int32, batch*c.Used), make([]float32, batch*c.Used)
	cluster := make([]int, batch)
	seen := make([]uint64, c.Experts)
	token := uint64(0)
	share := (c.Experts - c.Hot) / c.Clusters
	for int64(w.Records())*size < c.Bytes {
		for i := range cluster {
			cluster[i] = rng.IntN(c.Clusters)
		}
		for il := range c.Layers {
			for t := range batch {
				token++
				left := float32(1)
				for j := range c.Used {
					e := rng.IntN(max(c.Hot, 1))
					if j >= c.HotPicks {
						e = c.Hot + rng.IntN(share)*c.Clusters + cluster[t]
					}
					for ; seen[e] == token; e = next(e, &c, cluster[t], share, j < c.HotPicks) {
					}
					seen[e] = token
					expert[t*c.Used+j] = int32(e)
					weight[t*c.Used+j] = left / 2
					left /= 2
				}
			}
			if err := w.Record(il, batch, c.Used, expert, weight); err != nil {
				return 0, err
			}
		}
	}
	return w.Records(), nil
}

// next is the expert after e in the set it was drawn from.
func next(e int, c *DumpConfig, cluster, share int, hot bool) int {
	if hot {
		return (e + 1) % c.Hot
	}
	if e += c.Clusters; e >= c.Hot+share*c.Clusters {
		return c.Hot + cluster
	}
	return e
}
