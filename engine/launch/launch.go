// Package launch assembles a run: a model with its weights in place, and engines with expert source, device, recordings and
// logs. What a command line or a server has read comes in as options, what was decided comes out as values; nothing is
// printed here.
package launch

import (
	"path/filepath"

	"sluice/engine"
	"sluice/engine/demo"
	"sluice/engine/gguf"
	"sluice/engine/machine"
	"sluice/engine/model"
)

// Root is where the machine's facts are read.
const root = "/"

// ModelOptions say which model to open and how its weights are held.
type ModelOptions struct {
	Path string // GGUF file, any shard; "": the built-in demo model
	Pre  string // pre-tokeniser in place of the file's

	Dense string              // one of engine.DenseModes
	Cache engine.SourceConfig // of the experts; memory is filled in here
	Ctx   int                 // of the sequences to come, as are the next two: their memory is reserved
	Seqs  int
	KV    model.KV
}

// Model is an open model with what its engines share.
type Model struct {
	*model.Model
	Name      string
	CPUs      machine.CPUs
	Memory    machine.Memory
	Known     bool // Memory is
	Placement engine.Placement
	Cache     engine.SourceConfig // that engines' sources begin with
}

// OpenModel opens the named file, or the built-in demo model when none is named.
func OpenModel(path, pre string) (*model.Model, string, error) {
	if path != "" {
		m, err := model.Open(path, model.OpenOptions{Pre: pre})
		return m, filepath.Base(path), err
	}
	file, err := gguf.Parse(demo.Name, demo.Model())
	if err != nil {
		return nil, "", err
	}
	m, err := model.New(file, model.OpenOptions{Pre: pre})
	return m, demo.Name, err
}

// Place settles where the model's weights are held, by the memory that is free. The model is the caller's to close.
func Place(m *model.Model, name string, o ModelOptions) (*Model, error) {
	l := &Model{Model: m, Name: name, CPUs: machine.ReadCPUs(root), Cache: o.Cache}
	if l.Memory, l.Known = machine.ReadMemory(root); l.Known { // 0 would be: not known
		l.Cache.Available = max(1, l.Memory.Available)
		l.Cache.Reserved = m.DenseBytes() + engine.KVBytes(m, engine.Config{Ctx: o.Ctx, Seqs: o.Seqs, KV: o.KV})
	}
	var err error
	l.Placement, err = engine.PlaceWeights(m, o.Dense, &l.Cache)
	return l, err
}
