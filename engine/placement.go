package engine

import "fmt"

// autoHuge is the size from which weights are copied into large pages without being asked: below it
// a decode step's weights fit a last-level cache or nearly, and the copy buys nothing.
const autoHuge = 64 << 20

// Placement says where weights that no cache streams are held.
type Placement struct {
	Mode  string // "mmap" or "huge"
	Why   string // the reason, for the start line
	Notes []string
}

// PlaceWeights settles where weights are held, and for "huge" moves the dense ones. mode is "mmap",
// "huge" or "auto"; cache is the expert cache's configuration, whose Available and Reserved bound what
// "auto" may take. With "huge" and no expert cache, cache.IO becomes "resident": the experts are
// copied too, by OpenSource.
func (m *Model) PlaceWeights(mode string, cache *SourceConfig) (Placement, error) {
	p := Placement{Mode: mode}
	need := m.DenseBytes()
	uncached := cache.BudgetBytes == 0 || cache.BudgetBytes < 0 && cache.fits(m)
	if uncached {
		need += m.ExpertBytes()
	} else if cache.BudgetBytes > 0 {
		need += cache.BudgetBytes
	}
	free := cache.Available - autoFloor
	switch mode {
	case "huge":
		p.Why = "asked for"
	case "mmap":
		p.Why = "asked for"
		return p, nil
	case "auto":
		p.Mode = "mmap"
		switch {
		case cache.IO == "mmap":
			p.Why = "the experts are in the mapping"
			return p, nil
		case need < autoHuge:
			p.Why = "a small model"
			return p, nil
		case cache.Available == 0:
			p.Why = "available memory unknown"
			return p, nil
		case need > free:
			p.Why = fmt.Sprintf("a copy of %d MiB does not fit %d MiB", need>>20, max(0, free)>>20)
			return p, nil
		}
		p.Mode, p.Why = "huge", "it fits in memory"
	default:
		return p, settingf("weights %q: want auto, mmap or huge", mode)
	}
	if uncached {
		if cache.IO == "mmap" {
			return p, settingf("weights huge with experts in the mapping: leave one of the two out")
		}
		cache.BudgetBytes, cache.IO = 0, "resident"
	}
	if err := m.MoveDense(); err != nil {
		return p, err
	}
	p.Notes = m.mem.Notes()
	return p, nil
}

// fits says whether an automatic budget comes to no cache: all experts fit.
func (c *SourceConfig) fits(m *Model) bool {
	return c.Available == 0 || c.IO == "mmap" || c.IO == "resident" || c.Available-c.Reserved-autoFloor >= m.ExpertBytes()
}
