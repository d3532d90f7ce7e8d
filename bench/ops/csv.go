package ops

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"sluice/bench/profile"
	"sluice/engine/model"
	"sluice/internal/whole"
	"sluice/kernels"
)

const (
	cpu      = "cpu" // in the device log; DEVICE ARCH stays empty, because tt-perf-report ends on one it does not know
	clockMHz = 1000  // a cycle is a nanosecond
	traceID  = "1"
	rowMajor = "ROW_MAJOR"

	// tt-perf-report takes memory apart at its underscores: device, buffer, layout.
	memoryForm = "DEV_0_%s_INTERLEAVED"
)

// Save writes the CSV and, beside it, the device log with the clock, each under a temporary name first. A device log of
// another device that is already there is refused: the frequency in it belongs to its own CSV.
func (p *Profile) Save(path string) error {
	log := filepath.Join(filepath.Dir(path), profile.DeviceLogName)
	line := profile.DeviceLogLine(cmp.Or(p.Arch, cpu), clockMHz) + "\n"
	if have, err := os.ReadFile(log); err == nil && string(have) != line {
		return fmt.Errorf("ops: %s: a device log of something else is there; write the ops CSV to another folder", log)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("ops: %w", err)
	}
	if err := whole.WriteFile(log, func(w io.Writer) error { _, err := io.WriteString(w, line); return err }); err != nil {
		return err
	}
	return whole.WriteFile(path, p.Write)
}

// writer holds one row at a time.
type writer struct {
	w     *bufio.Writer
	cols  []string
	at    map[string]int
	cells []string
	call  int // GLOBAL CALL COUNT
	team  int
	arm   string
}

// Write writes the CSV.
func (p *Profile) Write(to io.Writer) error {
	w := &writer{w: bufio.NewWriter(to), cols: profile.Columns(), at: map[string]int{}, team: p.Team, arm: p.Arm}
	for i, c := range w.cols {
		w.at[c] = i
	}
	w.cells = make([]string, len(w.cols))
	copy(w.cells, w.cols)
	w.flush()
	w.section(profile.SectionEager, p.Eager, 0)
	w.section(profile.SectionTrace, p.Trace, p.Replay)
	return w.w.Flush()
}

func (w *writer) set(col, value string) { w.cells[w.at[col]] = value }

func (w *writer) num(col string, v int64) { w.set(col, strconv.FormatInt(v, 10)) }

// flush ends the row. No cell holds what CSV would have to quote: attributes are separated by semicolons, as in the files
// of tt-metal.
func (w *writer) flush() {
	w.w.WriteString(strings.Join(w.cells, ","))
	w.w.WriteByte('\n')
	clear(w.cells)
}

// signpost marks a place in the order of the rows. at is its host time, so that a reader which sorts by it keeps the order.
func (w *writer) signpost(name string, at int64) {
	w.set(profile.ColOpCode, name)
	w.set(profile.ColOpType, profile.TypeSignpost)
	w.num(profile.ColHostStart, at)
	w.flush()
}

// section writes the rows with their signposts. replay 0: not a trace.
func (w *writer) section(name string, rows []Row, replay int) {
	if len(rows) == 0 {
		w.signpost(name, 0)
		w.signpost(name+profile.SectionEnd, 0)
		return
	}
	w.signpost(name, rows[0].Start-3)
	block, layer := "", ""
	for i := range rows {
		r := &rows[i]
		b, l := labels(r)
		if b != block {
			w.signpost(profile.BlockPrefix+b, r.Start-2)
			block = b
		}
		if l != layer {
			w.signpost(profile.LayerPrefix+l, r.Start-1)
			layer = l
		}
		w.op(r, l, replay)
	}
	w.signpost(name+profile.SectionEnd, rows[len(rows)-1].End)
}

// labels are the block and the layer key of a row.
func labels(r *Row) (block, layer string) {
	key, post := label(r.Kind)
	block, layer = key, key
	if r.Layer >= 0 {
		block = fmt.Sprintf("blk.%d", r.Layer)
		layer = block + "." + key
	}
	if post {
		layer += profile.PostSuffix
	}
	return block, layer
}

func (w *writer) op(r *Row, layer string, replay int) {
	w.call++
	w.set(profile.ColOpCode, Code(r.Kind, r.Decode))
	w.set(profile.ColOpType, profile.TypeDeviceOp)
	w.num(profile.ColCallCount, int64(w.call))
	w.set(profile.ColDevice, "0")
	w.set(profile.ColAttributes, w.attributes(r, layer))
	w.num(profile.ColCores, int64(r.Workers))
	w.num(profile.ColWorkerCores, int64(w.team))
	w.num(profile.ColHostStart, r.Start)
	w.num(profile.ColHostEnd, r.End)
	w.num(profile.ColHostNS, r.End-r.Start)
	w.num(profile.ColFWStart, r.Start)
	w.num(profile.ColFWEnd, r.End)
	w.num(profile.ColGapNS, r.Gap)
	w.num(profile.ColFWNS, r.Kernel)
	w.num(profile.ColKernelNS, r.Kernel)
	if len(r.Info.Types) > 0 {
		w.set(profile.ColFidelity, Fidelity(r.Info.Types))
	} else {
		w.set(profile.ColFidelity, "HiFi4") // norms, rotary embedding, attention, routing: float32
	}
	for i, o := range operands(r) {
		col := func(what string) string {
			if i == 0 {
				return profile.OutputColumn(what)
			}
			return profile.InputColumn(i-1, what)
		}
		for d, what := range []string{profile.OperandW, profile.OperandZ, profile.OperandY, profile.OperandX} {
			w.set(col(what), profile.Dim(o.dim[d], o.dim[d]))
		}
		w.set(col(profile.OperandLayout), rowMajor)
		w.set(col(profile.OperandDatatype), o.typ)
		w.set(col(profile.OperandMemory), fmt.Sprintf(memoryForm, o.mem))
	}
	if replay > 0 {
		w.set(profile.ColTraceID, traceID)
		w.num(profile.ColSessionID, int64(replay))
	}
	w.flush()
}

// attributes are facts of the op without a column, in the notation of tt-metal.
func (w *writer) attributes(r *Row, layer string) string {
	var b strings.Builder
	add := func(key string, value any) {
		if b.Len() > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "'%s': '%v'", key, value)
	}
	add("op", r.Kind)
	add("layer", layer)
	if r.Layer >= 0 {
		add("layer_index", r.Layer)
	}
	add("rows", r.Tokens)
	add("position", r.Pos)
	add("passes", r.Passes)
	if len(r.Info.Types) > 0 {
		names := make([]string, len(r.Info.Types))
		for i, t := range r.Info.Types {
			names[i] = t.String()
		}
		add("weights", strings.Join(names, " "))
	}
	if isProduct(r.Kind) {
		add("activations", r.Info.Acts)
	}
	if r.Bytes > 0 {
		add("weight_bytes", r.Bytes)
	}
	switch k := r.Kind; {
	case k == model.OpRoute:
		add("arm", w.arm)
		add("experts_total", r.Info.Cols)
	case k >= model.OpFetch && k <= model.OpDown:
		add("experts", r.Experts)
		add("experts_read", r.Read)
	}
	return "{" + b.String() + "}"
}

// operand is one tensor of an op.
type operand struct {
	dim      [4]int // W, Z, Y, X
	typ, mem string
}

// operands returns the output, then the inputs.
func operands(r *Row) []operand {
	const f32, dram = "FLOAT32", "DRAM"
	d, n := &r.Info, int(r.Tokens)
	rows := func(typ string, n, width int) operand { return operand{[4]int{1, 1, n, width}, typ, dram} }
	in := actType(d.Acts)
	switch r.Kind {
	case model.OpEmbed:
		return []operand{rows(f32, n, d.Cols), {[4]int{1, 1, 1, n}, "INT32", dram},
			{[4]int{1, 1, d.Rows, d.Cols}, datatype(d.Types[0]), dram}}
	case model.OpRoute:
		return []operand{rows(f32, n, d.Cols), rows(f32, n, d.Cols)}
	case model.OpRotary:
		x := operand{[4]int{1, d.Rows, n, d.Cols}, f32, dram}
		return []operand{x, x}
	case model.OpAttend:
		x := operand{[4]int{1, d.Rows, n, d.Cols}, f32, dram}
		return []operand{x, x}
	case model.OpFetch:
		mem := r.Memory.String()
		to := mem
		if r.Memory == model.OpFlash {
			to = model.OpCache.String()
		}
		shape := [4]int{1, 1, 1, int(r.Bytes)}
		return []operand{{shape, "UINT8", to}, {shape, "UINT8", mem}}
	case model.OpAttnActs, model.OpHidden, model.OpSharedHidden:
		return []operand{rows(in, n, d.Cols), rows(f32, n, d.Cols)}
	}
	if !isProduct(r.Kind) {
		return []operand{rows(f32, n, d.Cols), rows(f32, n, d.Cols), {[4]int{1, 1, 1, d.Cols}, f32, dram}}
	}
	out := rows(f32, n, d.Rows)
	if k := r.Kind; k == model.OpGateUp || k == model.OpSharedGateUp {
		out.dim[3] /= 2 // silu(gate)*up
	}
	act, weight := rows(in, n, d.Cols), operand{[4]int{1, 1, d.Cols, d.Rows}, weightType(d.Types), dram}
	if r.Kind == model.OpGateUp || r.Kind == model.OpDown {
		// A batch of products: experts in Z, and in Y the rows of one, on average and rounded up. ATTRIBUTES has the sum.
		e := int(r.Experts)
		per := (n + max(1, e) - 1) / max(1, e)
		act.dim, out.dim = [4]int{1, e, per, act.dim[3]}, [4]int{1, e, per, out.dim[3]}
		weight.dim[1], weight.mem = e, r.Memory.String()
	}
	return []operand{out, act, weight}
}

func weightType(types []kernels.Type) string { return datatype(widest(types)) }
