package engine

import (
	"fmt"
	"slices"
	"strings"

	"sluice/moe"
)

// SourceConfig says where the routed experts are held.
type SourceConfig struct {
	// BudgetBytes of the expert cache. 0: no cache, experts stay in the file's mapping or, with IO
	// "resident", in memory. Below 0: as large as Available allows, none at all when all experts fit.
	BudgetBytes int64
	Policy      string // of the cache; default "lru"
	Lanes       int    // reader threads of the cache; default DefaultLanes
	IO          string // with a cache "direct" or "buffered" (default direct); without "mmap" (default) or "resident"
	Force       bool   // take a budget below one token's working set

	Available int64 // memory the process may take, for an automatic budget; 0: unknown
	Reserved  int64 // of that, needed by everything else (dense weights, KV cache)
}

// DefaultLanes is the number of reader threads when none is asked for.
const DefaultLanes = 4

// autoFloor is left free by an automatic budget, for the page cache and the rest of the machine.
const autoFloor = 512 << 20

// SourcePlan says what was decided, for the start line of a run.
type SourcePlan struct {
	IO          string // mmap, resident, direct or buffered
	BudgetBytes int64  // 0: no cache
	Policy      string
	Lanes       int
	WorkingSet  int64 // slot bytes one token needs over all layers
	Notes       []string
}

// String is one line in a user's words.
func (p SourcePlan) String() string {
	if p.BudgetBytes == 0 {
		return "no cache, experts " + map[string]string{"mmap": "in the file's mapping", "resident": "read into memory"}[p.IO]
	}
	return fmt.Sprintf("%d MiB, %s, %s reads over %d lanes (one token's experts: %d MiB)",
		p.BudgetBytes>>20, p.Policy, p.IO, p.Lanes, (p.WorkingSet+1<<20-1)>>20)
}

// OpenSource opens the model's expert source for a session with k experts per token. The session
// that gets it closes it. A setting that cannot take effect is an error that says why.
func (m *Model) OpenSource(c SourceConfig, k int) (moe.Source, SourcePlan, error) {
	p := SourcePlan{WorkingSet: moe.WorkingSet(m.Layout, k)}
	auto := c.BudgetBytes < 0
	if auto {
		if err := m.autoBudget(&c, &p); err != nil {
			return nil, p, err
		}
	}
	if c.BudgetBytes == 0 {
		return m.openUncached(c, p, auto)
	}
	p.BudgetBytes, p.Policy, p.Lanes, p.IO = c.BudgetBytes, c.Policy, c.Lanes, c.IO
	if p.Policy == "" {
		p.Policy = moe.Policies()[0]
	}
	if p.Lanes == 0 {
		p.Lanes = DefaultLanes
	}
	if !slices.Contains(moe.Policies(), p.Policy) {
		return nil, p, settingf("cache policy %q: want one of %s", p.Policy, strings.Join(moe.Policies(), ", "))
	}
	if p.Lanes < 1 || p.Lanes > 256 {
		return nil, p, settingf("%d reader lanes: want 1..256", p.Lanes)
	}
	if p.BudgetBytes < p.WorkingSet && !c.Force {
		return nil, p, settingf("expert cache of %d MiB: one token's experts need %d MiB (a smaller one must be forced)", p.BudgetBytes>>20, (p.WorkingSet+1<<20-1)>>20)
	}
	direct := false
	switch p.IO {
	case "", "direct":
		direct = true
		for _, f := range m.Layout.Files {
			if f.Path == "" && p.IO == "direct" {
				return nil, p, settingf("%s is in memory: direct reads need a file", f.Name)
			}
		}
	case "buffered":
	default:
		return nil, p, settingf("I/O %q with an expert cache: want direct or buffered", p.IO)
	}
	src, err := moe.NewCached(m.Layout, moe.CacheConfig{BudgetBytes: p.BudgetBytes, Policy: p.Policy, Lanes: p.Lanes,
		Direct: direct, Force: c.Force, MinBytes: p.WorkingSet})
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

func (m *Model) openUncached(c SourceConfig, p SourcePlan, auto bool) (moe.Source, SourcePlan, error) {
	if !auto {
		switch {
		case c.Policy != "":
			return nil, p, settingf("cache policy %s without an expert cache", c.Policy)
		case c.Lanes != 0:
			return nil, p, settingf("%d reader lanes without an expert cache", c.Lanes)
		case c.Force:
			return nil, p, settingf("a forced budget without an expert cache")
		}
	}
	p.IO = c.IO
	switch p.IO {
	case "", "mmap":
		p.IO = "mmap"
		src, err := moe.NewMapped(m.Layout)
		return src, p, err
	case "resident":
		src, err := moe.NewResident(m.Layout)
		if err == nil {
			p.Notes = append(p.Notes, src.Notes()...)
		}
		return src, p, err
	}
	if auto {
		p.Notes = append(p.Notes, fmt.Sprintf("all experts fit in memory: no cache, so no %s reads", p.IO))
		p.IO = "mmap"
		src, err := moe.NewMapped(m.Layout)
		return src, p, err
	}
	return nil, p, settingf("I/O %q without an expert cache: want mmap or resident", p.IO)
}

// autoBudget chooses no cache when everything fits, else what is left after everything else.
func (m *Model) autoBudget(c *SourceConfig, p *SourcePlan) error {
	if c.fits(m) {
		if c.Available == 0 {
			p.Notes = append(p.Notes, "available memory unknown: no expert cache")
		}
		c.BudgetBytes = 0
		return nil
	}
	experts, left := m.ExpertBytes(), c.Available-c.Reserved-autoFloor
	if left < p.WorkingSet {
		return settingf("%d MiB of memory available, less %d MiB for dense weights and context and %d MiB left free, leaves %d MiB for experts: one token needs %d MiB (name a budget to go below)",
			c.Available>>20, c.Reserved>>20, int64(autoFloor)>>20, left>>20, (p.WorkingSet+1<<20-1)>>20)
	}
	c.BudgetBytes = left
	p.Notes = append(p.Notes, fmt.Sprintf("cache budget chosen: %d MiB for %d MiB of experts", left>>20, experts>>20))
	return nil
}
