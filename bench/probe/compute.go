package probe

import (
	"context"
	"fmt"
	"time"

	"sluice/kernels"
)

// Compute is one measurement of the product kernels.
type Compute struct {
	Type           string  `json:"type"` // of the weights
	ISA            string  `json:"isa"`  // kernels that were used
	Threads        int     `json:"threads"`
	FlopsPerSecond float64 `json:"flops_per_second"` // a multiplication and an addition per weight and row of activations
}

const (
	computeRows = 32 // with computeCols: 256 KiB of F32 weights a thread, within a second-level cache
	computeCols = 2048
	computeActs = 16 // rows of activations: each weight is used this often, as in a prompt
	computeTime = 20 * time.Millisecond
)

// compute measures the types whose products differ: float, 8-bit and 4-bit codes.
func compute(ctx context.Context, r *Result, threads, repeat int) error {
	for _, t := range []kernels.Type{kernels.F32, kernels.Q8_0, kernels.Q4_K} {
		workers := make([]*product, threads)
		for i := range workers {
			p, err := newProduct(t)
			if err != nil {
				return fmt.Errorf("probe: %w", err)
			}
			workers[i] = p
		}
		best := 0.0
		for range repeat + 1 {
			if err := ctx.Err(); err != nil {
				return err
			}
			sec := timeThreads(threads, func(i int) uint64 { return workers[i].run(computeTime) })
			calls := 0
			for _, p := range workers {
				calls += p.calls
			}
			best = max(best, float64(calls)*2*computeRows*computeCols*computeActs/sec)
		}
		r.Compute = append(r.Compute, Compute{Type: t.String(), ISA: kernels.ISA(), Threads: threads, FlopsPerSecond: best})
	}
	return nil
}

// product is one thread's matrix and activations.
type product struct {
	mat   kernels.Mat
	acts  *kernels.Acts
	dst   []float32 // computeActs x computeRows
	calls int       // of the last run
}

func newProduct(t kernels.Type) (*product, error) {
	x := make([]float32, computeRows*computeCols)
	for i := range x {
		x[i] = float32(i%17-8) / 16
	}
	data := make([]byte, computeRows*t.RowBytes(computeCols))
	kernels.Quantize(t, data, x)
	m, err := kernels.NewMat(t, computeRows, computeCols, data)
	if err != nil {
		return nil, err
	}
	p := &product{mat: m, acts: kernels.NewActs(t.ActKind(), computeCols, computeActs), dst: make([]float32, computeActs*computeRows)}
	for i := range computeActs {
		p.acts.SetRow(i, x[i*computeCols:(i+1)*computeCols])
	}
	return p, nil
}

// run multiplies for about the given time and counts the calls.
func (p *product) run(d time.Duration) uint64 {
	p.calls = 0
	for end := time.Now().Add(d); ; {
		kernels.MulRows(p.dst, computeRows, &p.mat, 0, computeRows, p.acts, nil, computeActs)
		p.calls++
		if !time.Now().Before(end) {
			return uint64(p.calls)
		}
	}
}
