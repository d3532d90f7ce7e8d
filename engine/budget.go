package engine

import (
	"fmt"
	"math"

	"sluice/engine/model"
	"sluice/moe/store"
)

// An automatic budget leaves a sixteenth of what is available free: the page cache lives off it, and
// what a run needs beside weights and context (the binary, the vocabulary, scratch memory of a prompt
// chunk: 40 to 70 MiB). On a small machine that share would be too small, on a large one a waste.
const (
	minFloor = 160 << 20
	maxFloor = 4 << 30
)

// floor is what an automatic decision leaves of the memory available.
func (c *SourceConfig) floor() int64 { return min(max(c.Available/16, minFloor), maxFloor) }

// fits says whether an automatic budget comes to no cache: all experts fit.
func (c *SourceConfig) fits(m *model.Model) bool {
	if c.CeilBytes > 0 && c.CeilBytes < m.ExpertBytes() {
		return false
	}
	return c.Available == 0 || c.IO == "mmap" || c.IO == "resident" || c.Available-c.Reserved-c.floor() >= m.ExpertBytes()
}

// autoBudget chooses no cache when everything fits, else what is left after everything else.
func autoBudget(m *model.Model, c *SourceConfig, p *SourcePlan) error {
	if c.fits(m) {
		if c.Available == 0 {
			p.Notes = append(p.Notes, "available memory unknown: no expert cache")
		}
		c.BudgetBytes = 0
		return nil
	}
	if c.IO == "mmap" || c.IO == "resident" {
		return model.Settingf("a ceiling of %d MiB for the expert cache with I/O %q: there is no cache then", c.CeilBytes>>20, c.IO)
	}
	budget, why := int64(math.MaxInt64), "the ceiling"
	if c.Available > 0 {
		budget = c.Available - c.Reserved - c.floor()
		why = fmt.Sprintf("%d MiB of memory available, less %d for dense weights and context and %d left free", c.Available>>20, c.Reserved>>20, c.floor()>>20)
	}
	if c.CeilBytes > 0 && c.CeilBytes < budget {
		budget, why = c.CeilBytes, why+", cut to the ceiling"
	}
	if budget < p.WorkingSet && !(c.Force && budget > 0) {
		return model.Settingf("expert cache of %d MiB (%s): one token's experts need %d MiB, and below that expect hardly a hit (force it, or name a budget)",
			max(0, budget)>>20, why, mebibytes(p.WorkingSet))
	}
	c.BudgetBytes = budget
	p.Notes = append(p.Notes, fmt.Sprintf("cache budget chosen: %d MiB: %s", budget>>20, why))
	return nil
}

// checkBudget refuses a named budget that one token's experts do not fit in, and one that does not fit in memory.
func checkBudget(m *model.Model, c *SourceConfig, p *SourcePlan) error {
	if c.Force {
		return nil
	}
	if p.BudgetBytes < p.WorkingSet {
		return model.Settingf("expert cache of %d MiB: one token's experts need %d MiB, and below that expect hardly a hit (a smaller one must be forced)",
			p.BudgetBytes>>20, mebibytes(p.WorkingSet))
	}
	// Slots are mapped when they are needed: a budget above all experts takes no more than those.
	take := min(p.BudgetBytes, store.WorkingSet(m.Layout, m.NExpert))
	if left := c.Available - c.Reserved; c.Available > 0 && take > left {
		return model.Settingf("expert cache of %d MiB: %d MiB of memory are available, %d MiB of them needed for dense weights and context, which leaves %d MiB (a larger one must be forced)",
			take>>20, c.Available>>20, c.Reserved>>20, max(0, left)>>20)
	}
	return nil
}

// fill sets what the plan says of the budget.
func (p *SourcePlan) fill(m *model.Model, k int) {
	layers := 0
	for _, experts := range m.Layout.Experts {
		p.Experts += len(experts)
		layers += min(1, len(experts))
	}
	p.PerToken = k * layers
	all := store.WorkingSet(m.Layout, m.NExpert)
	share := min(1, float64(p.BudgetBytes)/float64(max(1, all)))
	p.Fit = int(share * float64(p.Experts))
	if p.BudgetBytes >= p.WorkingSet {
		p.EvenHits = share
	}
}

// mebibytes rounds up.
func mebibytes(n int64) int64 { return (n + 1<<20 - 1) >> 20 }
