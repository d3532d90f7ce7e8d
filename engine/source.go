package engine

import (
	"fmt"
	"slices"
	"strings"

	"sluice/engine/model"
	"sluice/moe/store"
)

// SourceConfig says where the routed experts are held.
type SourceConfig struct {
	// BudgetBytes of the expert cache. 0: no cache, experts stay in the file's mapping or, with IO
	// "resident", in memory. Below 0: as large as Available allows, none at all when all experts fit.
	BudgetBytes int64
	Policy      string         // of the cache; default DefaultPolicy
	Lanes       int            // reader threads of the cache; default DefaultLanes
	IO          string         // with a cache "direct" or "buffered" (default direct); without "mmap" (default) or "resident"
	Force       bool           // take a budget below one token's working set, or above the memory available
	Observer    store.Observer // told of the cache's reads and decisions; nil: nobody

	CeilBytes int64 // an automatic budget goes no higher; 0: no ceiling
	Available int64 // memory the process may take, for an automatic budget; 0: unknown
	Reserved  int64 // of that, needed by everything else (dense weights, KV cache)
}

// DefaultPolicy is the expert cache's policy when none is asked for: of those there are, the one with the fewest misses
// on every recorded run that was tried (docs/design/expert-cache.md).
const DefaultPolicy = "lrfu"

// DefaultLanes is the number of reader threads when none is asked for.
const DefaultLanes = 4

// SourcePlan says what was decided, for the start line of a run.
type SourcePlan struct {
	IO          string // mmap, resident, direct or buffered
	BudgetBytes int64  // 0: no cache
	Policy      string
	Lanes       int
	WorkingSet  int64 // slot bytes one token needs over all layers, at most
	Experts     int   // of the model
	Fit         int   // of those, about how many the budget holds: layers may differ in size
	PerToken    int   // that one token uses
	// EvenHits is the hit rate to expect of a router that favours no expert: the share of the experts that fits, and none
	// below a working set, where each token evicts what the next one's layers come back for. Real routers do better; a
	// recorded run tells by how much (package dump/replay).
	EvenHits float64
	Notes    []string
}

// String is one line in a user's words.
func (p SourcePlan) String() string {
	if p.BudgetBytes == 0 {
		return "no cache, experts " + map[string]string{"mmap": "in the file's mapping", "resident": "read into memory"}[p.IO]
	}
	below := ""
	if p.BudgetBytes < p.WorkingSet {
		below = "more than fit, so "
	}
	return fmt.Sprintf("%d MiB, %s, %s reads over %d lanes: room for %d of %d experts, one token's are %d (%d MiB), %seven routing would hit %.0f %%",
		p.BudgetBytes>>20, p.Policy, p.IO, p.Lanes, p.Fit, p.Experts, p.PerToken, mebibytes(p.WorkingSet), below, 100*p.EvenHits)
}

// OpenSource opens the model's expert source for a session with k experts per token. The session
// that gets it closes it. A setting that cannot take effect is an error that says why.
func OpenSource(m *model.Model, c SourceConfig, k int) (store.Source, SourcePlan, error) {
	p := SourcePlan{WorkingSet: store.WorkingSet(m.Layout, k)}
	auto := c.BudgetBytes < 0
	if auto {
		if err := autoBudget(m, &c, &p); err != nil {
			return nil, p, err
		}
	}
	if c.BudgetBytes == 0 {
		return openUncached(m, c, p, auto)
	}
	p.BudgetBytes, p.Policy, p.Lanes, p.IO = c.BudgetBytes, c.Policy, c.Lanes, c.IO
	if p.Policy == "" {
		p.Policy = DefaultPolicy
	}
	if p.Lanes == 0 {
		p.Lanes = DefaultLanes
	}
	if !slices.Contains(store.Policies(), p.Policy) {
		return nil, p, model.Settingf("cache policy %q: want one of %s", p.Policy, strings.Join(store.Policies(), ", "))
	}
	if p.Lanes < 1 || p.Lanes > 256 {
		return nil, p, model.Settingf("%d reader lanes: want 1..256", p.Lanes)
	}
	if err := checkBudget(m, &c, &p); err != nil {
		return nil, p, err
	}
	p.fill(m, k)
	direct := false
	switch p.IO {
	case "", "direct":
		direct = true
		for _, f := range m.Layout.Files {
			if f.Path == "" && p.IO == "direct" {
				return nil, p, model.Settingf("%s is in memory: direct reads need a file", f.Name)
			}
		}
	case "buffered":
	default:
		return nil, p, model.Settingf("I/O %q with an expert cache: want direct or buffered", p.IO)
	}
	src, err := store.NewCached(m.Layout, store.CacheConfig{BudgetBytes: p.BudgetBytes, Policy: p.Policy, Lanes: p.Lanes,
		Direct: direct, Force: c.Force, MinBytes: p.WorkingSet, Observer: c.Observer})
	if err != nil {
		return nil, p, err
	}
	p.Notes = append(p.Notes, src.Notes()...)
	p.IO = "buffered"
	if src.Stats().Direct {
		p.IO = "direct"
	}
	return src, p, nil
}

func openUncached(m *model.Model, c SourceConfig, p SourcePlan, auto bool) (store.Source, SourcePlan, error) {
	if !auto {
		switch {
		case c.Policy != "":
			return nil, p, model.Settingf("cache policy %s without an expert cache", c.Policy)
		case c.Lanes != 0:
			return nil, p, model.Settingf("%d reader lanes without an expert cache", c.Lanes)
		case c.Force:
			return nil, p, model.Settingf("a forced budget without an expert cache")
		}
	}
	p.IO = c.IO
	switch p.IO {
	case "", "mmap":
		p.IO = "mmap"
		src, err := store.NewMapped(m.Layout)
		return src, p, err
	case "resident":
		src, err := store.NewResident(m.Layout)
		if err == nil {
			p.Notes = append(p.Notes, src.Notes()...)
		}
		return src, p, err
	}
	if auto {
		p.Notes = append(p.Notes, fmt.Sprintf("all experts fit in memory: no cache, so no %s reads", p.IO))
		p.IO = "mmap"
		src, err := store.NewMapped(m.Layout)
		return src, p, err
	}
	return nil, p, model.Settingf("I/O %q without an expert cache: want mmap or resident", p.IO)
}
