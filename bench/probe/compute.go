package probe

import (
	"context"
	"fmt"
	"math"
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
			p, err := newProduct(t, computeCols, computeActs)
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

// ProductSeconds is how long one core takes for one row of weights of a type, cols long, by n rows of activations, with the
// weights in its cache: the least of several tries. exact: activations in float32 whatever the type.
func ProductSeconds(ctx context.Context, t kernels.Type, cols, n int, exact bool) (float64, error) {
	p, err := newProductOf(t, cols, n, exact)
	if err != nil {
		return 0, fmt.Errorf("probe: %w", err)
	}
	best := math.Inf(1)
	for range 7 {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		sec := timeThreads(1, func(int) uint64 { return p.run(2 * time.Millisecond) })
		best = min(best, sec/float64(p.calls*computeRows))
	}
	return best, nil
}

// product is one thread's matrix and activations.
type product struct {
	mat   kernels.Mat
	acts  *kernels.Acts
	n     int       // rows of activations
	dst   []float32 // n x computeRows
	calls int       // of the last run
}

func newProduct(t kernels.Type, cols, n int) (*product, error) {
	return newProductOf(t, cols, n, false)
}

func newProductOf(t kernels.Type, cols, n int, exact bool) (*product, error) {
	x := make([]float32, max(computeRows, n)*cols)
	for i := range x {
		x[i] = float32(i%17-8) / 16
	}
	data := make([]byte, computeRows*t.RowBytes(cols))
	kernels.Quantize(t, data, x[:computeRows*cols])
	m, err := kernels.NewMat(t, computeRows, cols, data)
	if err != nil {
		return nil, err
	}
	kind := t.ActKind()
	if exact {
		kind = kernels.ActF32
	}
	p := &product{mat: m, acts: kernels.NewActs(kind, cols, n), n: n, dst: make([]float32, n*computeRows)}
	for i := range n {
		p.acts.SetRow(i, x[i*cols:(i+1)*cols])
	}
	return p, nil
}

// run multiplies for about the given time and counts the calls.
func (p *product) run(d time.Duration) uint64 {
	p.calls = 0
	for end := time.Now().Add(d); ; {
		kernels.MulRows(p.dst, computeRows, &p.mat, 0, computeRows, p.acts, nil, p.n)
		p.calls++
		if !time.Now().Before(end) {
			return uint64(p.calls)
		}
	}
}
