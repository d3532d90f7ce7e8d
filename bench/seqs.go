package bench

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"sluice/bench/probe"
	"sluice/engine"
	"sluice/engine/model"
	"sluice/kernels"
)

// SeqsConfig says what to time of several sequences that decode in step.
type SeqsConfig struct {
	Seqs   []int // numbers of sequences, each at most the engine's
	Tokens int   // decoded of each sequence a round
	Depth  int   // tokens that each has before
	Repeat int   // timed rounds, 1 or more
	WarmUp int   // rounds before them that are not counted
	Seed   uint64
}

// SeqsSpeed is the result for one number of sequences.
type SeqsSpeed struct {
	Seqs    int       `json:"seqs"`
	Tokens  int       `json:"tokens"` // of each sequence, per round
	Depth   int       `json:"depth"`
	TPS     float64   `json:"tps"` // median tokens per second of all sequences together
	MinTPS  float64   `json:"min_tps"`
	MaxTPS  float64   `json:"max_tps"`
	PerSeq  float64   `json:"tps_per_sequence"`
	Spread  float64   `json:"spread_percent"`
	Seconds []float64 `json:"seconds"` // per round

	WeightBytes float64 `json:"weight_bytes_per_token"` // read by the kernels: dense weights once a pass, experts once a layer call
	ReadBytes   float64 `json:"read_bytes_per_token"`   // of experts from storage, padding included
	Experts     float64 `json:"experts_per_layer_call"` // mean size of the union that the sequences need

	Limit *SeqsLimit `json:"limit"` // nil: the machine was not measured
}

// SeqsLimit is what the machine would allow: the bytes that a pass must read at the fastest memory read measured, and the
// time of its products at that many rows with their weights in cache.
type SeqsLimit struct {
	Bandwidth  float64       `json:"bytes_per_second"`
	MemoryTPS  float64       `json:"memory_tps"`
	ComputeTPS float64       `json:"compute_tps"`
	Bound      string        `json:"bound"` // the lower of the two: "memory" or "compute"
	Fraction   float64       `json:"fraction"`
	Products   []SeqsProduct `json:"products"`
}

// SeqsProduct is what products with one type of weights come to in a pass.
type SeqsProduct struct {
	Type    string  `json:"type"`
	Rows    int     `json:"rows"`            // of activations
	Seconds float64 `json:"seconds"`         // of a pass, by all threads together
	MACs    float64 `json:"macs_per_second"` // of one core: multiplications with additions
}

// MeasureSeqs times decoding of several sequences in step on random token ids, for each number of sequences; rounds
// interleave them. The expert cache stays warm. progress, if not nil, is told of each finished round.
func MeasureSeqs(ctx context.Context, e *engine.Engine, c SeqsConfig, progress func(round, of int)) ([]SeqsSpeed, error) {
	if c.Repeat < 1 || c.WarmUp < 0 || c.Tokens < 1 || c.Depth < 0 || len(c.Seqs) == 0 {
		return nil, fmt.Errorf("bench: sequences %v, %d tokens at depth %d, %d rounds, %d to warm up: nothing to time", c.Seqs, c.Tokens, c.Depth, c.Repeat, c.WarmUp)
	}
	conf := e.Config()
	if c.Depth+c.Tokens > conf.Ctx {
		return nil, fmt.Errorf("bench: %d tokens, the context has %d", c.Depth+c.Tokens, conf.Ctx)
	}
	out := make([]SeqsSpeed, len(c.Seqs))
	for i, n := range c.Seqs {
		if n < 1 || n > conf.Seqs {
			return nil, fmt.Errorf("bench: %d sequences: want 1..%d", n, conf.Seqs)
		}
		out[i] = SeqsSpeed{Seqs: n, Tokens: c.Tokens, Depth: c.Depth}
	}
	rounds := c.Repeat + c.WarmUp
	for round := range rounds {
		for i := range out {
			if err := out[i].time(ctx, e, c, round); err != nil {
				return nil, err
			}
		}
		if progress != nil {
			progress(round+1, rounds)
		}
	}
	for i := range out {
		out[i].summarise(e, c.Repeat)
	}
	return out, nil
}

// time runs one round.
func (r *SeqsSpeed) time(ctx context.Context, e *engine.Engine, c SeqsConfig, round int) (err error) {
	nVocab := e.Model().NVocab
	work := make([]engine.Work, r.Seqs)
	ids := make([][]int32, r.Seqs)
	for i := range work {
		seq, err := e.NewSeq()
		if err != nil {
			return err
		}
		defer seq.Close()
		stream := uint64(round+1)<<32 | uint64(r.Seqs)<<16 | uint64(i)
		ids[i] = tokens(c.Seed, stream, c.Depth+c.Tokens, nVocab)
		for at, batch := 0, e.Config().Batch; at < c.Depth; at += batch {
			if err := e.Pass(ctx, []engine.Work{{Seq: seq, IDs: ids[i][at:min(at+batch, c.Depth)]}}); err != nil {
				return err
			}
		}
		work[i] = engine.Work{Seq: seq, Decode: true, Head: model.HeadLogits}
	}
	weights, read := e.WeightBytes(), e.SourceStats().BytesRead
	start := time.Now()
	for t := range c.Tokens {
		for i := range work {
			at := c.Depth + t
			work[i].IDs = ids[i][at : at+1]
		}
		if err := e.Pass(ctx, work); err != nil {
			return err
		}
	}
	sec := time.Since(start).Seconds()
	if round < c.WarmUp {
		return nil
	}
	r.Seconds = append(r.Seconds, sec)
	r.WeightBytes += float64(e.WeightBytes() - weights)
	r.ReadBytes += float64(e.SourceStats().BytesRead - read)
	return nil
}

func (r *SeqsSpeed) summarise(e *engine.Engine, rounds int) {
	const tick = 1e-9
	sec := slices.Sorted(slices.Values(r.Seconds))
	lo, mid, hi := max(sec[0], tick), max(median(sec), tick), max(sec[len(sec)-1], tick)
	n := float64(r.Seqs * r.Tokens)
	r.TPS, r.MinTPS, r.MaxTPS, r.PerSeq = n/mid, n/hi, n/lo, n/mid/float64(r.Seqs)
	r.Spread = 100 * (hi - lo) / mid
	r.WeightBytes /= n * float64(rounds)
	r.ReadBytes /= n * float64(rounds)
	m := e.Model()
	dense, expert, layers := denseOfPass(m, r.Seqs), 0.0, 0.0
	for il := range m.Layers {
		if m.Layers[il].Experts() != nil {
			expert += float64(m.Layout.ExpertBytes(il))
			layers++
		}
	}
	if expert > 0 { // layers may differ in size: an expert counts as the mean one
		r.Experts = (r.WeightBytes*float64(r.Seqs) - dense) / expert
	}
}

// denseOfPass is the bytes of dense weights that a pass of n single rows reads.
func denseOfPass(m *model.Model, n int) (bytes float64) {
	for _, s := range m.Slots {
		if s.Experts() == nil && s.Role != model.RoleEmbedding {
			bytes += float64(s.Bytes)
		}
	}
	if m.Tied() {
		bytes += float64(len(m.Output.Data))
	}
	return bytes + float64(n*m.TokEmbd.Type.RowBytes(m.NEmbd))
}

// SetSeqsLimits measures this machine's products and fills in the limits: bandwidth is the fastest memory read measured
// with the engine's threads.
func SetSeqsLimits(ctx context.Context, results []SeqsSpeed, e *engine.Engine, bandwidth float64) error {
	m, conf := e.Model(), e.Config()
	if !(bandwidth > 0) {
		return nil
	}
	type product struct {
		typ  kernels.Type
		cols int
		rows int
	}
	known := map[product]float64{}
	for i := range results {
		r := &results[i]
		l := &SeqsLimit{Bandwidth: bandwidth}
		type sum struct {
			typ  kernels.Type
			rows int
		}
		sums, macs := map[sum]*SeqsProduct{}, map[sum]float64{}
		add := func(t kernels.Type, rows, cols, n int, times float64, exact bool) error {
			p := product{t, cols, n}
			if _, ok := known[p]; !ok {
				sec, err := probe.ProductSeconds(ctx, t, cols, n, exact)
				if err != nil {
					return err
				}
				known[p] = sec
			}
			at := sum{t, n}
			if sums[at] == nil {
				sums[at] = &SeqsProduct{Type: t.String(), Rows: n}
			}
			sums[at].Seconds += times * float64(rows) * known[p]
			macs[at] += times * float64(rows*cols*n)
			return nil
		}
		for _, s := range m.Slots {
			var err error
			switch {
			case s.Bytes == 0 || s.Vector() != nil || s.Role == model.RoleEmbedding && !m.Tied():
			case s.Experts() != nil:
				x, pairs := s.Experts(), float64(r.Seqs*conf.NExpertUsed)
				lo := int(pairs / r.Experts) // the union's experts have so many rows each, or one more
				more := pairs - float64(lo)*r.Experts
				if err = add(x.Type, x.Rows, x.Cols, max(1, lo), r.Experts-more, conf.ExactActs); err == nil && more > 0 {
					err = add(x.Type, x.Rows, x.Cols, lo+1, more, conf.ExactActs)
				}
			default:
				w := s.Matrix()
				err = add(w.Type, w.Rows, w.Cols, r.Seqs, 1, conf.ExactActs || s.Role == model.RoleRouter)
			}
			if err != nil {
				return err
			}
		}
		var compute float64
		for at, s := range sums {
			s.MACs = macs[at] / s.Seconds
			s.Seconds /= float64(conf.Threads)
			compute += s.Seconds
			l.Products = append(l.Products, *s)
		}
		slices.SortFunc(l.Products, func(a, b SeqsProduct) int { return int(1e9 * (b.Seconds - a.Seconds)) })
		kv := float64(m.StateBytes(conf.KV, 1)) * (float64(r.Depth) + float64(r.Tokens+1)/2)
		l.MemoryTPS, l.ComputeTPS = bandwidth/(r.WeightBytes+kv), float64(r.Seqs)/compute
		l.Bound, l.Fraction = "memory", r.TPS/l.MemoryTPS
		if l.ComputeTPS < l.MemoryTPS {
			l.Bound, l.Fraction = "compute", r.TPS/l.ComputeTPS
		}
		r.Limit = l
	}
	return nil
}

// WriteSeqsTable writes results for a person.
func WriteSeqsTable(to io.Writer, results []SeqsSpeed) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	head := []string{"sequences", "tokens/s", "min", "max", "spread %", "each", "MB/token", "experts/layer"}
	streams := slices.ContainsFunc(results, func(r SeqsSpeed) bool { return r.ReadBytes > 0 })
	limits := slices.ContainsFunc(results, func(r SeqsSpeed) bool { return r.Limit != nil })
	if streams {
		head = append(head, "storage MB/token")
	}
	if limits {
		head = append(head, "memory tokens/s", "compute tokens/s", "of limit %", "bound")
	}
	fmt.Fprintln(w, strings.Join(head, "\t"))
	for i := range results {
		r := &results[i]
		row := []string{strconv.Itoa(r.Seqs), fixed(r.TPS, 2), fixed(r.MinTPS, 2), fixed(r.MaxTPS, 2), fixed(r.Spread, 1), fixed(r.PerSeq, 2),
			fixed(r.WeightBytes/1e6, 3), fixed(r.Experts, 2)}
		if streams {
			row = append(row, fixed(r.ReadBytes/1e6, 3))
		}
		if l := r.Limit; l != nil {
			row = append(row, fixed(l.MemoryTPS, 2), fixed(l.ComputeTPS, 2), fixed(100*l.Fraction, 1), l.Bound)
		}
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	if limits {
		fmt.Fprintln(w)
		fmt.Fprintln(w, strings.Join([]string{"sequences", "products", "rows", "ms a step", "GMAC/s a core"}, "\t"))
		for i := range results {
			if results[i].Limit == nil {
				continue
			}
			for _, p := range results[i].Limit.Products {
				fmt.Fprintln(w, strings.Join([]string{strconv.Itoa(results[i].Seqs), p.Type, strconv.Itoa(p.Rows), fixed(1e3*p.Seconds, 3), fixed(p.MACs/1e9, 1)}, "\t"))
			}
		}
	}
	return w.Flush()
}
