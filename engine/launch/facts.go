package launch

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"sluice/dump"
	"sluice/engine"
	"sluice/moe"
)

// record opens the selection dump and the route trace, with what they say of the run.
func (r *Run) record(l *Model, cfg *engine.Config) (err error) {
	if r.o.SelDump == "" && r.o.Trace == "" {
		return nil
	}
	facts, err := r.facts(l, cfg)
	if err != nil {
		return err
	}
	k := cfg.NExpertUsed
	if k == 0 {
		k = l.NExpertUsed
	}
	if r.o.SelDump != "" {
		r.Sel, err = dump.OpenSel(r.o.SelDump, dump.SelMeta{Model: l.Name, Arch: l.Arch, NLayer: l.NLayer, NExpert: l.NExpert, NUsed: k, Config: facts.Config(), Rows: cfg.Seqs > 1})
		if err != nil {
			return err
		}
		cfg.SelDump = r.Sel
	}
	if r.o.Trace != "" {
		meta := dump.TraceMeta{Model: l.Name, Arch: l.Arch, NLayer: l.NLayer, NExpert: l.NExpert, NUsed: k, Extra: facts.Preamble(), Seqs: cfg.Seqs > 1}
		for il := range l.NLayer {
			meta.Layers = append(meta.Layers, dump.TraceLayer{Layer: il, ExpertBytes: l.Layout.ExpertBytes(il), DenseBytes: l.LayerDenseBytes(il)})
		}
		meta.Ahead = cfg.Prefetch != moe.PrefetchOff
		if r.Trace, err = dump.CreateTrace(r.o.Trace, meta); err != nil {
			return errors.Join(err, r.Sel.Close())
		}
		cfg.Trace = r.Trace
	}
	return nil
}

// facts are what recordings say of the run.
func (r *Run) facts(l *Model, cfg *engine.Config) (dump.RunFacts, error) {
	f := dump.RunFacts{Version: r.o.Version, Arm: string(cfg.Arm), Threads: cfg.Threads, Device: r.o.Device, OnDevice: cfg.Device != nil,
		CacheBytes: r.Plan.BudgetBytes, CachePolicy: r.Plan.Policy, IO: r.Plan.IO, SlotBytes: l.SlotBytes(),
		DropFrac: cfg.Drop.Frac, DropRenorm: cfg.Drop.Renorm, DropInPrefill: cfg.DropInPrefill, TensorTable: fmt.Sprintf("%x", l.Identity())}
	if cfg.Prefetch != moe.PrefetchOff {
		f.Prefetch, f.PrefetchBytes = string(cfg.Prefetch), cfg.PrefetchBytes
	}
	if r.Plan.BudgetBytes > 0 && r.o.CacheLoad != "" {
		st, err := engine.ReadCacheState(r.o.CacheLoad)
		if err != nil {
			return f, err
		}
		f.CacheLoad = strings.Join(strings.Fields(filepath.Base(r.o.CacheLoad)), "_")
		f.StateSum = fmt.Sprintf("%08x", st.Sum)
	}
	return f, nil
}

// stepFacts are the first lines of a log of the steps.
func (r *Run) stepFacts(l *Model, cfg *engine.Config) [][2]string {
	return [][2]string{{"version", r.o.Version}, {"model", l.Name}, {"arch", l.Arch}, {"arm", string(cfg.Arm)}, {"threads", strconv.Itoa(cfg.Threads)},
		{"cache_bytes", strconv.FormatInt(r.Plan.BudgetBytes, 10)}, {"cache_policy", r.Plan.Policy}, {"io", r.Plan.IO}, {"io_threads", strconv.Itoa(r.Plan.Lanes)},
		{"drop_frac", strconv.FormatFloat(cfg.Drop.Frac, 'g', -1, 64)}, {"drop_renorm", strconv.FormatBool(cfg.Drop.Renorm)}, {"cache_load", r.o.CacheLoad}}
}
