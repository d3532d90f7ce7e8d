package ops

import (
	"sluice/engine/model"
)

// Row is one op of a forward pass as the CSV has it: the passes of one model.OpKind in one layer together. Rows of a pass
// follow one another without overlap. Where a layer took several passes its ops alternated; then the passes of an op are put
// together, its times and the gaps before them added up, and only the places on the time axis are not as measured.
type Row struct {
	model.Op              // of its passes: Start of the row, End = Start + Kernel, sums of Tokens, Experts, Read and Bytes
	Info     model.OpInfo // what is the same for all passes
	Passes   int
	Kernel   int64 // ns inside the op
	Gap      int64 // ns before it in which no op ran
}

// Fuse makes rows of the ops of one forward pass, which are in their order of execution. info is Recorder.Info.
func Fuse(ops []model.Op, info func(kind model.OpKind, layer int) model.OpInfo) []Row {
	var rows []Row
	var end int64 // of the op before
	for i := 0; i < len(ops); {
		n := i // the ops of one layer
		for n < len(ops) && ops[n].Layer == ops[i].Layer {
			n++
		}
		first := len(rows)
		for _, o := range ops[i:n] {
			var r *Row
			for j := first; j < len(rows); j++ {
				if rows[j].Kind == o.Kind {
					r = &rows[j]
				}
			}
			if r == nil {
				rows = append(rows, Row{Op: o, Info: info(o.Kind, int(o.Layer))})
				r = &rows[len(rows)-1]
				r.Tokens, r.Experts, r.Read, r.Bytes = 0, 0, 0, 0
			}
			r.Passes++
			r.Kernel += o.End - o.Start
			if end > 0 {
				r.Gap += o.Start - end
			}
			end = o.End
			r.Tokens += o.Tokens
			r.Experts += o.Experts
			r.Read += o.Read
			r.Bytes += o.Bytes
			r.Memory, r.Workers = max(r.Memory, o.Memory), max(r.Workers, o.Workers)
		}
		i = n
	}
	for i := range rows {
		if i > 0 {
			rows[i].Start = rows[i-1].End + rows[i].Gap
		}
		rows[i].End = rows[i].Start + rows[i].Kernel
	}
	return rows
}

// SameSequence tells whether two executions have the same rows, times and memory apart; the first place where they differ
// otherwise.
func SameSequence(a, b []Row) (at int, same bool) {
	for i := range min(len(a), len(b)) {
		if a[i].Kind != b[i].Kind || a[i].Layer != b[i].Layer {
			return i, false
		}
	}
	return min(len(a), len(b)), len(a) == len(b)
}
