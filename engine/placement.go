package engine

import (
	"fmt"
	"slices"
	"sluice/engine/model"
	"strings"
)

// autoAnon is the size from which weights are copied into memory of our own without being asked: below
// it a decode step's weights fit a last-level cache or nearly, and the copy buys nothing.
const autoAnon = 64 << 20

// The places for weights that no expert cache streams.
const (
	DenseMmap = "mmap" // the file's mapping, read as it is used
	DenseWarm = "warm" // the file's mapping, read once now, and locked as far as the system allows
	DenseAnon = "anon" // memory of our own, in large pages where the system gives them, read once past the page cache
	DenseAuto = "auto" // anon where it pays and fits, else mmap
)

// DenseModes are the modes of PlaceWeights, the default first.
func DenseModes() []string { return []string{DenseAuto, DenseMmap, DenseWarm, DenseAnon} }

// Placement says where weights that no cache streams are held.
type Placement struct {
	Mode  string // DenseMmap, DenseWarm or DenseAnon
	Why   string // the reason, for the start line
	Notes []string
}

// PlaceWeights settles where weights are held, and moves or reads the dense ones accordingly. mode is one
// of DenseModes; cache is the expert cache's configuration. Its Available, Reserved and budget bound what
// DenseAuto may take; a mode that is asked for and does not fit in Available is an error with the
// arithmetic. Where there is no expert cache the experts go with the dense weights, unless cache.IO says
// that they stay in the mapping: with DenseAnon cache.IO then becomes "resident", and OpenSource copies
// them.
func PlaceWeights(m *model.Model, mode string, cache *SourceConfig) (Placement, error) {
	uncached := cache.BudgetBytes == 0 || cache.BudgetBytes < 0 && cache.fits(m)
	experts := uncached && cache.IO != "mmap" // go with the dense weights
	p := Placement{Mode: mode, Why: "asked for"}
	switch {
	case !slices.Contains(DenseModes(), mode):
		return p, model.Settingf("dense weights %q: want one of %s", mode, strings.Join(DenseModes(), ", "))
	case mode == DenseAuto:
		p.Mode, p.Why = autoPlace(m, cache, uncached)
	case mode != DenseMmap:
		need, what := m.DenseBytes(), "dense weights"
		if experts {
			need, what = need+m.ExpertBytes(), "all weights"
		}
		if context := cache.Reserved - m.DenseBytes(); cache.Available > 0 && need+context > cache.Available {
			return p, model.Settingf("%s kept in memory (%s) take %d MiB and the context %d MiB, %d MiB of memory are available: try dense weights mmap",
				what, mode, mebibytes(need), mebibytes(context), cache.Available>>20)
		}
	}
	switch p.Mode {
	case DenseWarm:
		read, locked, err := m.Warm(experts)
		if err != nil {
			return p, err
		}
		p.Notes = append(p.Notes, model.WarmNote(read, locked))
	case DenseAnon:
		if experts {
			cache.BudgetBytes, cache.IO = 0, "resident"
		}
		if err := m.MoveDense(); err != nil {
			return p, err
		}
		p.Notes = m.MemoryNotes()
	}
	return p, nil
}

// autoPlace chooses anon or mmap.
func autoPlace(m *model.Model, cache *SourceConfig, uncached bool) (mode, why string) {
	need, free := m.DenseBytes(), cache.Available
	switch {
	case uncached:
		need += m.ExpertBytes()
		free -= cache.floor()
	case cache.BudgetBytes > 0:
		need += cache.BudgetBytes
	}
	switch {
	case cache.IO == "mmap":
		return DenseMmap, "the experts are in the mapping"
	case need < autoAnon:
		return DenseMmap, "a small model"
	case cache.Available == 0:
		return DenseMmap, "available memory unknown"
	case need > free:
		return DenseMmap, fmt.Sprintf("a copy of %d MiB does not fit %d MiB", need>>20, max(0, free)>>20)
	case uncached:
		return DenseAnon, "it fits in memory"
	}
	return DenseAnon, "experts are streamed: the page cache cannot lose what every token needs"
}
