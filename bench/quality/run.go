package quality

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"sluice/engine"
	"sluice/engine/model"
	"sluice/kernels"
	"sluice/moe"
)

// Config says what is measured.
type Config struct {
	Fracs []float64 // drop thresholds as fractions of 1/k, 0 to 1, at the model's top-k; 0 is the undropped run
	Used  []int     // experts per token, 1 to the model's, with nothing dropped; the model's is the undropped run
	Chunk int       // tokens per chunk, each from an empty context

	StoreDir   string // where the undropped run's logits go meanwhile; "": the system's temporary files
	StoreLimit int64  // most bytes of them; 0: DefaultStoreLimit
}

// Open opens a session with a threshold and a number of experts per token. Run closes it.
type Open func(frac float64, used int) (*engine.Session, error)

// Progress is told after each chunk which of how many points is measured, the chunks done, and the values so far.
type Progress func(point, points, chunk, chunks int, p Point)

// Run measures the undropped run of m and every point of c on ids; a tail shorter than a chunk is left out. Thresholds and
// numbers are taken once each, in ascending and descending order. progress may be nil. The logits kept take
// Config.StoreBytes; above the limit nothing is run. A cancelled ctx ends it with ctx.Err.
func Run(ctx context.Context, m *model.Model, ids []int32, open Open, c Config, progress Progress) (r *Report, err error) {
	points, err := c.points(m.NExpertUsed)
	if err != nil {
		return nil, err
	}
	chunks := len(ids) / max(c.Chunk, 1)
	if chunks == 0 {
		return nil, fmt.Errorf("quality: the text has %d tokens, less than one chunk of %d", len(ids), c.Chunk)
	}
	limit := c.StoreLimit
	if limit == 0 {
		limit = DefaultStoreLimit
	}
	if n := c.StoreBytes(len(ids), m.NVocab); n > limit {
		return nil, fmt.Errorf("quality: the undropped run's logits take %d MiB, at most %d MiB are kept: use a shorter text", n>>20, limit>>20)
	}
	kept, err := newStore(c.StoreDir, m.NVocab)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, kept.close()) }()
	r = &Report{Arch: m.Arch, Chunk: c.Chunk, Mode: string(engine.EvalDecode), StoreBytes: c.StoreBytes(len(ids), m.NVocab)}
	for i := range points {
		p := &points[i]
		var tell func(chunk int)
		if progress != nil {
			tell = func(chunk int) { progress(i, len(points), chunk, chunks, p.means()) }
		}
		if err := p.measure(ctx, ids, open, c.Chunk, kept, i == 0, tell); err != nil {
			return nil, err
		}
		*p = p.means()
	}
	r.Tokens, r.Baseline, r.Points = points[0].predictions, points[0], points[1:]
	r.compare()
	return r, nil
}

// StoreBytes is how much room the undropped run's logits take: one row of nVocab float32 for each prediction.
func (c Config) StoreBytes(tokens, nVocab int) int64 {
	return int64(tokens/max(c.Chunk, 1)) * int64(c.Chunk-1) * int64(nVocab) * 4
}

// points lists the undropped run and then the two curves. k is the model's number of experts per token.
func (c Config) points(k int) ([]Point, error) {
	if c.Chunk < 2 {
		return nil, fmt.Errorf("quality: chunk of %d tokens: want 2 or more", c.Chunk)
	}
	points := []Point{{Kind: Undropped, NExpertUsed: k}}
	fracs := slices.Compact(slices.Sorted(slices.Values(c.Fracs)))
	for _, f := range fracs {
		if err := (moe.Drop{Frac: f}).Validate(k); err != nil {
			return nil, fmt.Errorf("quality: %w", err)
		}
		if f > 0 {
			points = append(points, Point{Kind: Threshold, DropFrac: f, NExpertUsed: k})
		}
	}
	used := slices.Compact(slices.Sorted(slices.Values(c.Used)))
	slices.Reverse(used)
	for _, n := range used {
		if n < 1 || n > k {
			return nil, fmt.Errorf("quality: %d experts per token: want 1..%d (the model's)", n, k)
		}
		if n < k {
			points = append(points, Point{Kind: TopK, NExpertUsed: n})
		}
	}
	return points, nil
}

// measure scores the text in decode mode and adds up p's sums. The undropped run writes its logits to kept, the others
// compare with it.
func (p *Point) measure(ctx context.Context, ids []int32, open Open, chunk int, kept *store, undropped bool, tell func(chunk int)) (err error) {
	s, err := open(p.DropFrac, p.NExpertUsed)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if chunk > s.Ctx() {
		return fmt.Errorf("quality: chunk of %d tokens: the context holds %d", chunk, s.Ctx())
	}
	if !undropped {
		if err := kept.rewind(); err != nil {
			return err
		}
	}
	d := divergence{reference: make([]float32, len(kept.row)/4), exp: make([]float64, len(kept.row)/4)}
	for c := range len(ids) / chunk {
		s.Reset()
		if c > 0 {
			s.NextTurn()
		}
		part := ids[c*chunk : (c+1)*chunk]
		for i, id := range part {
			logits, err := s.Decode(ctx, id)
			if err != nil {
				return err
			}
			if i+1 == len(part) {
				break // nothing follows in this chunk; the token ran for the cache's sake, as in every decode-mode score
			}
			nll := kernels.LogSumExp(logits) - float64(logits[part[i+1]])
			if math.IsNaN(nll) || math.IsInf(nll, 0) {
				return fmt.Errorf("quality: log-probability at token %d of chunk %d is not finite (threshold %v, %d experts)", i+1, c, p.DropFrac, p.NExpertUsed)
			}
			p.sumNLL += nll
			p.predictions++
			if undropped {
				p.same++
				if err := kept.add(logits); err != nil {
					return err
				}
				continue
			}
			if err := kept.next(d.reference); err != nil {
				return err
			}
			kl := d.from(logits)
			if math.IsNaN(kl) || math.IsInf(kl, 0) {
				return fmt.Errorf("quality: divergence at token %d of chunk %d is not finite (threshold %v, %d experts)", i+1, c, p.DropFrac, p.NExpertUsed)
			}
			p.sumKL += kl
			if kernels.ArgMax(logits) == kernels.ArgMax(d.reference) {
				p.same++
			}
		}
		if tell != nil {
			tell(c + 1)
		}
	}
	p.count(s)
	return nil
}

// divergence computes KL(P || Q), in nats over the whole vocabulary.
type divergence struct {
	reference []float32 // logits of P, the undropped run
	exp       []float64
}

// from is KL(P || Q) for Q's logits. With x, y the logits and lx, ly the logarithms of their sums of exponentials,
//
//	KL = sum p*((x-lx)-(y-ly)) = sum p*(x-y) + ly - lx,  p = e^(x-lx)
//
// in float64: the difference of two runs that nearly agree is far below float32's error in lx.
func (d *divergence) from(logits []float32) float64 {
	mx, my := float64(slices.Max(d.reference)), float64(slices.Max(logits))
	sx, sy, diff := 0.0, 0.0, 0.0
	for i, x := range d.reference {
		e := math.Exp(float64(x) - mx)
		d.exp[i] = e
		sx += e
		sy += math.Exp(float64(logits[i]) - my)
	}
	for i, e := range d.exp {
		if e > 0 { // 0 times an infinite difference counts nothing
			diff += e * (float64(d.reference[i]) - float64(logits[i]))
		}
	}
	return diff/sx + (my + math.Log(sy)) - (mx + math.Log(sx))
}
