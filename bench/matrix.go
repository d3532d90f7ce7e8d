package bench

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"sluice/engine"
	"sluice/engine/model"
)

// Variant is one setting of the options that change a run.
type Variant struct {
	CacheMB   string  `json:"cache_mb"` // "auto" or a number of MiB, 0 for no cache
	Drop      float64 `json:"drop_cold_experts"`
	Arm       string  `json:"arm"`
	IOThreads int     `json:"io_threads"`        // 0: the default, or no cache
	Threads   int     `json:"threads,omitempty"` // 0: the default, or none: a device computes
	// NExpertUsed is experts per token; 0: the model's.
	NExpertUsed int `json:"n_expert_used"`
	// Prefetch is what the setting reads ahead, one of engine.PrefetchModes; "": there is no cache, or it is not settled yet.
	Prefetch string `json:"prefetch,omitempty"`
}

// Axes are the lists that a matrix is made of; none is empty but NExpertUsed, which may be.
type Axes struct {
	CacheMB   []string
	Drop      []float64
	Arm       []string
	IOThreads []int
	Threads   []int
	// NExpertUsed: the thresholds of Drop go with the first of them; the others are what dropping is held against, and drop
	// nothing.
	NExpertUsed []int
}

// Variants is the product of the lists, the last axis running fastest, but for NExpertUsed. Combinations that mean nothing
// are left out, with a note: dropping without a cache, and lanes without one, where lists ask for both. Settings with a
// cache come first.
func (a Axes) Variants() (vs []Variant, notes []string) {
	type choice struct {
		drop float64
		used int
	}
	used := a.NExpertUsed
	if len(used) == 0 {
		used = []int{0}
	}
	var choices []choice
	for _, drop := range a.Drop {
		choices = append(choices, choice{drop, used[0]})
	}
	for _, n := range used[1:] {
		choices = append(choices, choice{0, n})
	}
	seen := map[Variant]bool{}
	for _, mb := range a.CacheMB {
		for _, c := range choices {
			if mb == "0" && c.drop > 0 && (len(a.CacheMB) > 1 || len(a.Drop) > 1) {
				notes = append(notes, fmt.Sprintf("left out: drop threshold %g without an expert cache drops nothing", c.drop))
				continue
			}
			for _, arm := range a.Arm {
				for _, lanes := range a.IOThreads {
					if mb == "0" && len(a.CacheMB) > 1 {
						lanes = 0
					}
					for _, threads := range a.Threads {
						v := Variant{CacheMB: mb, Drop: c.drop, Arm: arm, IOThreads: lanes, Threads: threads, NExpertUsed: c.used}
						if !seen[v] {
							seen[v] = true
							vs = append(vs, v)
						}
					}
				}
			}
		}
	}
	slices.SortStableFunc(vs, func(a, b Variant) int { return btoi(a.CacheMB == "0") - btoi(b.CacheMB == "0") })
	return vs, slices.Compact(notes)
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// String is the variant in the words of the flags.
func (v Variant) String() string {
	var parts []string
	for _, k := range v.keys() {
		if k[1] != "" {
			parts = append(parts, k[0]+" "+k[1])
		}
	}
	return strings.Join(parts, ", ")
}

// keys are the names and values of a variant, as flags have them; "" for the threads of a device, and for a prefetch without a cache.
func (v Variant) keys() [][2]string {
	threads := ""
	if v.Threads > 0 {
		threads = strconv.Itoa(v.Threads)
	}
	return [][2]string{
		{"cache-mb", v.CacheMB},
		{"drop-cold-experts", strconv.FormatFloat(v.Drop, 'g', -1, 64)},
		{"arm", v.Arm},
		{"io-threads", strconv.Itoa(v.IOThreads)},
		{"threads", threads},
		{"n-expert-used", strconv.Itoa(v.NExpertUsed)},
		{"prefetch", v.Prefetch},
	}
}

// SessionBytes is the memory that a session of its own needs: expert cache or a copy of all experts, and keys and values.
func SessionBytes(m *model.Model, source engine.SourceConfig, cfg engine.Config) int64 {
	n := engine.KVBytes(m, cfg)
	switch {
	case source.BudgetBytes > 0:
		n += source.BudgetBytes
	case source.IO == "resident":
		n += m.ExpertBytes()
	}
	return n
}
