package replay

import (
	"fmt"
	"slices"

	"sluice/dump"
	"sluice/moe/store"
)

// Start is a cache state for a replay to begin with, as the run did (engine run --cache-load).
type Start struct {
	Name  string // of the file, for messages
	Model string // what dump.FactTensorTable has of the model that it belongs to
	Sum   string // its checksum, as dump.FactStateSum has it
	State store.CacheState
}

// check refuses the state of another model than the trace's. note says what could not be checked.
func (s *Start) check(m *dump.TraceMeta) (note string, err error) {
	switch table := m.Fact(dump.FactTensorTable); table {
	case s.Model:
		return "", nil
	case "":
		return fmt.Sprintf("the preamble states no %s: %s is taken to be a state of this model", dump.FactTensorTable, s.Name), nil
	default:
		return "", fmt.Errorf("%s is the cache state of another model: its tensor table is %.16s..., the run's is %.16s...", s.Name, s.Model, table)
	}
}

// begin puts a new cache into the state; nil: it stays empty.
func (s *Start) begin(c *store.Cache) error {
	if s == nil {
		return nil
	}
	if _, err := c.Start(s.State); err != nil {
		return fmt.Errorf("%s: %w", s.Name, err)
	}
	return nil
}

// notTheRun says why a replay with the run's own budget and policy would not do exactly what the run did; "" if it would.
func notTheRun(g *geometry, m *dump.TraceMeta, cols columns, a *prefetch, s *Start) string {
	file, sum := m.Fact(dump.FactCacheLoad), m.Fact(dump.FactStateSum)
	layers := slices.DeleteFunc(slices.Clone(g.size), func(n int64) bool { return n == 0 })
	switch {
	case !g.slotsKnown:
		return "the preamble states no " + dump.FactSlotBytes
	case a.why != "":
		return a.why
	case a.left != "":
		return fmt.Sprintf("the run read ahead (%s), the replay does not", a.left)
	case file != "" && s == nil:
		return fmt.Sprintf("the run began with a loaded cache (cache_load=%s), the replay with an empty one: name the file with --cache-state", file)
	case file == "" && s != nil:
		return fmt.Sprintf("the run began with an empty cache, the replay with %s", s.Name)
	case s != nil && sum != s.Sum:
		return fmt.Sprintf("the run began with another cache state (%s %.8s), %s has %s", dump.FactStateSum, sum, s.Name, s.Sum)
	case len(layers) == 1 && !cols.seqs:
		return "where a prompt's chunks begin cannot be seen with one layer"
	}
	return ""
}
