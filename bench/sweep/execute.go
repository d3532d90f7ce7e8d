package sweep

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"sluice/kernels"
)

// Problem is the values that the cases of a configuration share, with the attention of all of it in one place to compare
// with. It is read-only.
type Problem struct {
	Config Config
	q      []float32 // TQ x KVHeads*Group x HeadDim
	k, v   []uint16  // SKV x KVHeads x HeadDim, half precision
	want   []float32 // TQ x KVHeads*Group x HeadDim
}

// NewProblem draws normal values from the seed and computes the unpartitioned attention with the kernels.
func NewProblem(ctx context.Context, c Config) (*Problem, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	kv, q := c.SKV*c.kvRow(), c.TQ*c.qRow()
	if need := 4*int64(kv) + 8*int64(q); c.Limit > 0 && need > c.Limit {
		return nil, fmt.Errorf("sweep: S_kv %d, T_q %d: the problem takes %d bytes, %d may be held", c.SKV, c.TQ, need, c.Limit)
	}
	p := &Problem{Config: c, q: make([]float32, q), k: make([]uint16, kv), v: make([]uint16, kv), want: make([]float32, q)}
	rng := rand.New(rand.NewPCG(c.Seed, 0))
	for i := range p.q {
		spread := 1 + 0.5*float64(i/c.HeadDim%2) // every second head weighs a few positions above the rest
		p.q[i] = float32(rng.NormFloat64() * spread)
	}
	for i := range p.k {
		p.k[i] = kernels.F32ToF16(float32(rng.NormFloat64()))
		p.v[i] = kernels.F32ToF16(float32(rng.NormFloat64()))
	}
	return p, p.reference(ctx)
}

// reference computes want: each query head of each row over all positions at once.
func (p *Problem) reference(ctx context.Context) error {
	c := &p.Config
	group, d := c.Group*c.HeadDim, c.HeadDim
	var next atomic.Int64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1 // (row, key/value head)
				if i >= c.TQ*c.KVHeads {
					return
				}
				kv := i % c.KVHeads
				kernels.AttendF16(p.want[i*group:(i+1)*group], p.q[i*group:(i+1)*group], p.k[kv*d:], p.v[kv*d:], d, c.kvRow(), c.SKV, c.scale())
			}
		})
	}
	wg.Wait()
	return ctx.Err()
}

// Counts is what went through the counted channels.
type Counts struct {
	Copies int64 `json:"ipcq_copy_count"` // messages from rank to rank: blocks of keys and values, partial softmaxes
	Reads  int64 `json:"dma_read_count"`  // reads from a rank's memory: its queries, each tile of keys and of values
	Writes int64 `json:"dma_write_count"` // finished rows of a rank
}

// Run is what an execution did.
type Run struct {
	Counts    Counts
	CopyBytes int64         // of Counts.Copies
	Pairs     int64         // pairs of query and position that were attended
	Active    int           // ranks that attended
	KVBytes   int64         // largest shard of keys and values that a rank owned
	Elapsed   time.Duration // from the common start to the last rank's end
	MaxError  float64       // largest difference from the unpartitioned attention, over all copies of the output
}

// message is what one rank sends another.
type message struct {
	k, v    []uint16
	partial *partial
}

// link is a counted channel from one rank to another. A rank sends at most one message ahead of what its peer took.
type link chan message

type pair struct{ from, to int }

// rank is one running rank.
type rank struct {
	id, positions int
	plan          *rankPlan
	problem       *Problem
	links         map[pair]link
	q             []float32
	k, v          []uint16 // the block at hand: at first its own shard
	acc           *partial
	out           []float32 // the copy of the output that it writes to
	counts        Counts
	copyBytes     int64
}

// Execute runs the schedule on a problem of the same configuration, one goroutine a rank, and compares the outputs. Ranks
// share nothing but channels and disjoint rows of the output. A cancelled context is its error.
func (s *Schedule) Execute(ctx context.Context, p *Problem) (*Run, error) {
	if p.Config != s.Config {
		return nil, fmt.Errorf("sweep: the schedule is for %+v, the problem is %+v", s.Config, p.Config)
	}
	c := &s.Config
	if need := s.memory(); c.Limit > 0 && need > c.Limit {
		return nil, fmt.Errorf("sweep: case %s: takes %d bytes, %d may be held", s.Case.Name, need, c.Limit)
	}
	links := map[pair]link{}
	for i := range s.ranks {
		for _, o := range s.ranks[i].ops {
			if o.kind == opSendKV || o.kind == opSendPartial {
				links[pair{i, o.peer}] = make(link, 1)
			}
		}
	}
	outs := make([][]float32, s.copies)
	for i := range outs {
		outs[i] = make([]float32, len(p.want))
		for j := range outs[i] {
			outs[i][j] = float32(math.NaN()) // a row that no rank writes must not pass
		}
	}
	run := &Run{}
	var ranks []*rank
	for i := range s.ranks {
		plan := &s.ranks[i]
		if len(plan.ops) == 0 {
			continue
		}
		kv, qw := c.kvRow(), c.qRow()
		r := &rank{id: i, plan: plan, problem: p, links: links, positions: plan.k1 - plan.k0, out: outs[plan.copyOf],
			q:   append([]float32(nil), p.q[plan.q0*qw:plan.q1*qw]...),
			k:   append([]uint16(nil), p.k[plan.k0*kv:plan.k1*kv]...),
			v:   append([]uint16(nil), p.v[plan.k0*kv:plan.k1*kv]...),
			acc: newPartial(plan.q1-plan.q0, c.qHeads(), c.HeadDim)}
		run.KVBytes = max(run.KVBytes, 2*int64(len(r.k)+len(r.v)))
		ranks = append(ranks, r)
	}
	errs := make([]error, len(ranks))
	var wg sync.WaitGroup
	start := time.Now()
	for i, r := range ranks {
		wg.Go(func() { errs[i] = r.run(ctx) })
	}
	wg.Wait()
	run.Elapsed = time.Since(start)
	for i, r := range ranks {
		if errs[i] != nil {
			return nil, errs[i]
		}
		run.Counts.Copies += r.counts.Copies
		run.Counts.Reads += r.counts.Reads
		run.Counts.Writes += r.counts.Writes
		run.CopyBytes += r.copyBytes
		run.Pairs += r.acc.pairs
		if r.acc.pairs > 0 {
			run.Active++
		}
	}
	for _, out := range outs {
		run.MaxError = max(run.MaxError, maxError(out, p.want))
	}
	return run, nil
}

// maxError is the largest difference, +Inf where a value is not a number.
func maxError(got, want []float32) float64 {
	worst := 0.0
	for i := range want {
		e := math.Abs(float64(got[i]) - float64(want[i]))
		if math.IsNaN(e) {
			return math.Inf(1)
		}
		worst = max(worst, e)
	}
	return worst
}

func (r *rank) run(ctx context.Context) error {
	c := &r.problem.Config
	for i := range r.plan.ops {
		o := &r.plan.ops[i]
		switch o.kind {
		case opReadQ:
			r.counts.Reads++
		case opAttend:
			if err := r.acc.attend(c, r.q, r.k, r.v, r.positions, func() { r.counts.Reads++ }, ctx.Err); err != nil {
				return err
			}
		case opSendKV:
			// A copy, since this rank reads the block while it travels.
			if err := r.send(ctx, o, message{k: append([]uint16(nil), r.k...), v: append([]uint16(nil), r.v...)}); err != nil {
				return err
			}
		case opRecvKV:
			m, err := r.recv(ctx, o)
			if err != nil {
				return err
			}
			r.k, r.v = m.k, m.v
		case opSendPartial:
			if err := r.send(ctx, o, message{partial: r.acc}); err != nil {
				return err
			}
		case opRecvPartial:
			m, err := r.recv(ctx, o)
			if err != nil {
				return err
			}
			r.acc.merge(m.partial)
		case opWrite:
			w := c.qRow()
			r.acc.finish(r.out[r.plan.q0*w : r.plan.q1*w])
			r.counts.Writes++
		}
	}
	return nil
}

func (r *rank) send(ctx context.Context, o *op, m message) error {
	select {
	case r.links[pair{r.id, o.peer}] <- m:
		r.counts.Copies++
		r.copyBytes += m.bytes()
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r *rank) recv(ctx context.Context, o *op) (message, error) {
	select {
	case m := <-r.links[pair{o.peer, r.id}]:
		return m, nil
	case <-ctx.Done():
		return message{}, ctx.Err()
	}
}

func (m message) bytes() int64 {
	n := 2 * int64(len(m.k)+len(m.v))
	if m.partial != nil {
		n += 4 * int64(len(m.partial.max)+len(m.partial.sum)+len(m.partial.out))
	}
	return n
}
