package sweep

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"sluice/kernels"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func problem(t *testing.T, c Config) *Problem {
	t.Helper()
	p, err := NewProblem(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func attendAll(t *testing.T, p *partial, c *Config, pr *Problem, k0, k1 int) {
	t.Helper()
	row := c.kvRow()
	if err := p.attend(c, pr.q, pr.k[k0*row:k1*row], pr.v[k0*row:k1*row], k1-k0, func() {}, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
}

// One partial over all positions is the kernels' portable attention, bit for bit. (The faster ones fuse products and sums.)
func TestPartialIsTheKernel(t *testing.T) {
	restore, err := kernels.SetISA("generic")
	if err != nil {
		t.Fatal(err)
	}
	defer restore()
	for _, c := range []Config{
		{Mode: Prefill, SKV: 1, TQ: 1, KVHeads: 1, HeadDim: 1, Group: 1, C: 1, P: 1},
		{Mode: Prefill, SKV: 64, TQ: 3, KVHeads: 1, HeadDim: 128, Group: 8, C: 1, P: 1, Seed: 1},
		{Mode: Prefill, SKV: 203, TQ: 2, KVHeads: 3, HeadDim: 17, Group: 5, C: 1, P: 1, Seed: 2},
		{Mode: Prefill, SKV: 130, TQ: 1, KVHeads: 2, HeadDim: 64, Group: 11, C: 1, P: 1, Seed: 3},
	} {
		pr := problem(t, c)
		p := newPartial(c.TQ, c.qHeads(), c.HeadDim)
		attendAll(t, p, &c, pr, 0, c.SKV)
		got := make([]float32, len(pr.want))
		p.finish(got)
		for i := range got {
			if math.Float32bits(got[i]) != math.Float32bits(pr.want[i]) {
				t.Fatalf("%+v: output %d is %v, the kernel's %v", c, i, got[i], pr.want[i])
			}
		}
	}
}

// Any cut into parts, merged in any order, gives the whole; an empty part changes nothing.
func TestMergeOfAnyCut(t *testing.T) {
	c := Config{Mode: Prefill, SKV: 500, TQ: 3, KVHeads: 2, HeadDim: 32, Group: 3, C: 1, P: 1, Seed: 4}
	pr := problem(t, c)
	rng := rand.New(rand.NewPCG(1, 1))
	for range 30 {
		parts := []*partial{newPartial(c.TQ, c.qHeads(), c.HeadDim)}
		for k0 := 0; k0 < c.SKV; {
			k1 := min(c.SKV, k0+1+rng.IntN(200))
			p := newPartial(c.TQ, c.qHeads(), c.HeadDim)
			attendAll(t, p, &c, pr, k0, k1)
			parts = append(parts, p)
			k0 = k1
		}
		rng.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
		for _, p := range parts[1:] {
			parts[0].merge(p)
		}
		got := make([]float32, len(pr.want))
		parts[0].finish(got)
		if e := maxError(got, pr.want); e > Tolerance/2 {
			t.Fatalf("%d parts: off by %g", len(parts), e)
		}
	}
}

// A part that sees only -Inf must not spoil the others, as in the kernel.
func TestMergeOfMinusInf(t *testing.T) {
	a, b := newPartial(1, 1, 2), newPartial(1, 1, 2)
	b.max[0], b.sum[0], b.out[0], b.out[1] = 3, 2, 4, 6
	a.merge(b)
	got := make([]float32, 2)
	a.finish(got)
	if got[0] != 2 || got[1] != 3 {
		t.Errorf("%v, want [2 3]", got)
	}
}

// counts are the schedule's messages and accesses, told from the case's description and not from the schedule.
func wantCounts(c *Config, k Case, w Work) Counts {
	tiles := func(n int) int64 { return int64((n+kernels.KVTile-1)/kernels.KVTile) * int64(c.KVHeads) * 2 }
	n, ranks := Counts{}, int64(w.ActivePEs)
	blocks := int64(1)
	if k.CubeSP && c.Mode == Prefill {
		blocks = int64(c.C)
		n.Copies += ranks * (blocks - 1)
	}
	n.Reads = ranks * (1 + blocks*tiles(w.SLocal))
	n.Writes = ranks
	if k.PESP { // each PE but one of a cube hands its part on
		n.Copies += int64(c.C) * int64(c.P-1)
		n.Writes = int64(c.C)
	}
	if k.CubeSP && c.Mode == Decode { // then each cube but one
		n.Copies += int64(c.C - 1)
		n.Writes = 1
	}
	return n
}

func TestExecuteEveryCase(t *testing.T) {
	for _, c := range []Config{
		{SKV: 512, TQ: 64, KVHeads: 1, HeadDim: 32, Group: 4, C: 8, P: 8},
		{SKV: 60, TQ: 30, KVHeads: 2, HeadDim: 16, Group: 3, C: 3, P: 5},
		{SKV: 840, TQ: 42, KVHeads: 3, HeadDim: 9, Group: 1, C: 7, P: 3},
		{SKV: 256, TQ: 8, KVHeads: 1, HeadDim: 32, Group: 2, C: 1, P: 8},
		{SKV: 256, TQ: 8, KVHeads: 1, HeadDim: 32, Group: 2, C: 8, P: 1},
		{SKV: 70, TQ: 2, KVHeads: 1, HeadDim: 128, Group: 4, C: 1, P: 1},
	} {
		for _, mode := range []string{Prefill, Decode} {
			c := c
			c.Mode, c.Seed = mode, 7
			if mode == Decode {
				c.TQ = 1
			}
			pr := problem(t, c)
			for _, k := range Cases() {
				s, err := New(c, k)
				if err != nil {
					t.Fatal(err)
				}
				run, err := s.Execute(t.Context(), pr)
				if err != nil {
					t.Fatal(err)
				}
				if !(run.MaxError <= Tolerance) {
					t.Errorf("%+v %s: off by %g", c, k.Name, run.MaxError)
				}
				if run.Pairs != s.Work.Total || run.Active != s.Work.ActivePEs || run.KVBytes != s.Work.KVBytes || run.Elapsed <= 0 {
					t.Errorf("%+v %s: executed %+v, formulas %+v", c, k.Name, run, s.Work)
				}
				if want := wantCounts(&c, k, s.Work); run.Counts != want {
					t.Errorf("%+v %s: counted %+v, want %+v", c, k.Name, run.Counts, want)
				}
				var sent int64
				for i := range s.ranks {
					for _, o := range s.ranks[i].ops {
						if o.kind == opSendKV || o.kind == opSendPartial {
							sent += o.bytes
						}
					}
				}
				if run.CopyBytes != sent {
					t.Errorf("%+v %s: %d bytes went through the channels, the model is told %d", c, k.Name, run.CopyBytes, sent)
				}
			}
		}
	}
}

// Shards of one copy cover every pair of query and position once.
func TestShardsCoverEverythingOnce(t *testing.T) {
	c := Config{Mode: Prefill, SKV: 24, TQ: 12, KVHeads: 1, HeadDim: 2, Group: 1, C: 2, P: 3}
	for _, k := range Cases() {
		s, err := New(c, k)
		if err != nil {
			t.Fatal(err)
		}
		seen := make([]int, s.copies*c.TQ*c.SKV)
		for i := range s.ranks {
			r := &s.ranks[i]
			if len(r.ops) == 0 {
				continue
			}
			from := i // whose block is at hand
			for _, o := range r.ops {
				switch o.kind {
				case opRecvKV:
					from = (from + (c.C-1)*c.P) % (c.C * c.P)
				case opAttend:
					for q := r.q0; q < r.q1; q++ {
						for p := s.ranks[from].k0; p < s.ranks[from].k1; p++ {
							seen[(r.copyOf*c.TQ+q)*c.SKV+p]++
						}
					}
				}
			}
		}
		for i, n := range seen {
			if n != 1 {
				t.Errorf("%s: pair %d attended %d times", k.Name, i, n)
				break
			}
		}
	}
}

func TestExecuteStops(t *testing.T) {
	c := Config{Mode: Prefill, SKV: 4096, TQ: 64, KVHeads: 1, HeadDim: 64, Group: 8, C: 4, P: 4, Seed: 1}
	pr := problem(t, c)
	for _, k := range Cases() {
		s, err := New(c, k)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := s.Execute(ctx, pr); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", k.Name, err)
		}
		other := s.Config
		other.Seed++
		x := &Problem{Config: other}
		if _, err := s.Execute(t.Context(), x); err == nil || !strings.Contains(err.Error(), "the problem is") {
			t.Errorf("another problem: %v", err)
		}
	}
	c.Limit = 1 << 20
	if _, err := NewProblem(t.Context(), c); err == nil || !strings.Contains(err.Error(), "1048576 may be held") {
		t.Errorf("limit of the problem: %v", err)
	}
	c.Limit = 4 << 20
	s, err := New(c, Cases()[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Execute(t.Context(), problem(t, c)); err == nil || !strings.Contains(err.Error(), "4194304 may be held") {
		t.Errorf("limit of the case: %v", err)
	}
}

func BenchmarkExecute(b *testing.B) {
	c := Config{Mode: Prefill, SKV: 1024, TQ: 64, KVHeads: 1, HeadDim: 128, Group: 8, C: 4, P: 4, Seed: 1}
	p, err := NewProblem(b.Context(), c)
	if err != nil {
		b.Fatal(err)
	}
	for _, k := range Cases() {
		s, err := New(c, k)
		if err != nil {
			b.Fatal(err)
		}
		b.Run("case="+k.Name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Execute(b.Context(), p); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
