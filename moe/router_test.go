package moe

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"testing"
)

func inf32(sign int) float32 { return float32(math.Inf(sign)) }

func nan32() float32 { return float32(math.NaN()) }

// logs returns the logarithms of x: logits whose softmax is x over its sum.
func logs(x ...float64) []float32 {
	l := make([]float32, len(x))
	for i, v := range x {
		l[i] = float32(math.Log(v))
	}
	return l
}

// logOdds returns logits whose sigmoids are p.
func logOdds(p ...float64) []float32 {
	l := make([]float32, len(p))
	for i, v := range p {
		l[i] = float32(math.Log(v / (1 - v)))
	}
	return l
}

func arms(nExpert, nUsed, maxT int) []Arm {
	return []Arm{NewHostArm(nExpert, nUsed, maxT), NewTableArm(nExpert, nUsed, maxT)}
}

// routeOne routes rows through an arm with a tap armed and no drop.
func routeAll(t *testing.T, a Arm, r *Router, logits []float32) *Selection {
	t.Helper()
	if err := r.Validate(); err != nil {
		t.Fatal(err)
	}
	n := len(logits) / r.NExpert
	c := Call{T: n, Router: r, Logits: logits, Sel: NewSelection(r.NUsed, n), Table: NewTable(r.NExpert, r.NUsed, n)}
	if err := a.Route(&c); err != nil {
		t.Fatalf("%s: %v", a.Name(), err)
	}
	return c.Sel
}

func near(got float32, want float64) bool {
	return math.Abs(float64(got)-want) <= 2e-6*math.Abs(want)
}

func TestRouteGolden(t *testing.T) {
	equal := make([]float32, 384)
	tests := []struct {
		name   string
		r      Router
		logits []float32
		expert []int32
		weight []float64
	}{
		{"softmax", Router{NExpert: 4, NUsed: 2, Scale: 1}, logs(1, 4, 2, 3), []int32{1, 3}, []float64{0.4, 0.3}},
		{"softmax norm", Router{NExpert: 4, NUsed: 2, Norm: true, Scale: 1}, logs(1, 4, 2, 3), []int32{1, 3}, []float64{4.0 / 7, 3.0 / 7}},
		{"softmax norm scale", Router{NExpert: 4, NUsed: 2, Norm: true, Scale: 2.5}, logs(1, 4, 2, 3), []int32{1, 3}, []float64{10.0 / 7, 7.5 / 7}},
		{"softmax bias selects only", Router{NExpert: 4, NUsed: 2, Scale: 1, Bias: []float32{1, 0, 0, 0}}, logs(1, 4, 2, 3), []int32{0, 1}, []float64{0.1, 0.4}},
		{"softmax k=1", Router{NExpert: 4, NUsed: 1, Scale: 1}, logs(1, 4, 2, 3), []int32{1}, []float64{0.4}},
		{"softmax k=n", Router{NExpert: 4, NUsed: 4, Scale: 1}, logs(1, 4, 2, 3), []int32{1, 3, 2, 0}, []float64{0.4, 0.3, 0.2, 0.1}},
		{"softmax -Inf", Router{NExpert: 4, NUsed: 3, Scale: 1}, []float32{inf32(-1), 0, inf32(-1), 0}, []int32{1, 3, 0}, []float64{0.5, 0.5, 0}},
		{"softmax huge logits", Router{NExpert: 3, NUsed: 2, Scale: 1}, []float32{3e38, -3e38, 3e38}, []int32{0, 2}, []float64{0.5, 0.5}},

		{"topk", Router{NExpert: 4, NUsed: 2, Gating: GatingSoftmaxTopK, Scale: 1}, logs(1, 4, 2, 3), []int32{1, 3}, []float64{4.0 / 7, 3.0 / 7}},
		{"topk scale", Router{NExpert: 4, NUsed: 3, Gating: GatingSoftmaxTopK, Scale: 2}, logs(1, 4, 2, 3), []int32{1, 3, 2}, []float64{8.0 / 9, 6.0 / 9, 4.0 / 9}},
		{"topk k=1", Router{NExpert: 4, NUsed: 1, Gating: GatingSoftmaxTopK, Scale: 1}, logs(1, 4, 2, 3), []int32{1}, []float64{1}},
		{"topk -Inf", Router{NExpert: 3, NUsed: 2, Gating: GatingSoftmaxTopK, Scale: 1}, []float32{inf32(-1), inf32(-1), 5}, []int32{2, 0}, []float64{1, 0}},
		{"topk signed zero", Router{NExpert: 3, NUsed: 2, Gating: GatingSoftmaxTopK, Scale: 1}, []float32{float32(math.Copysign(0, -1)), 0, -1}, []int32{0, 1}, []float64{0.5, 0.5}},

		{"sigmoid", Router{NExpert: 4, NUsed: 2, Gating: GatingSigmoid, Scale: 1}, logOdds(0.1, 0.8, 0.3, 0.6), []int32{1, 3}, []float64{0.8, 0.6}},
		{"sigmoid norm scale", Router{NExpert: 4, NUsed: 2, Gating: GatingSigmoid, Norm: true, Scale: 2.5}, logOdds(0.1, 0.8, 0.3, 0.6), []int32{1, 3}, []float64{2.5 * 0.8 / 1.4, 2.5 * 0.6 / 1.4}},
		// Slot order is that of the biased scores; the weights then do not descend.
		{"sigmoid bias", Router{NExpert: 4, NUsed: 2, Gating: GatingSigmoid, Norm: true, Scale: 1, Bias: []float32{1, 0, 0, 0}}, logOdds(0.1, 0.8, 0.3, 0.6), []int32{0, 1}, []float64{1.0 / 9, 8.0 / 9}},
		// 1e-8 is lost in 1e-8 + 12: a weight taken back from the score would be 0.
		{"sigmoid tiny under large bias", Router{NExpert: 4, NUsed: 2, Gating: GatingSigmoid, Scale: 1, Bias: []float32{0, 12, 0, 12}}, logOdds(0.5, 1e-8, 0.5, 3e-8), []int32{1, 3}, []float64{1e-8, 3e-8}},
		{"sigmoid tiny norm clamps", Router{NExpert: 4, NUsed: 2, Gating: GatingSigmoid, Norm: true, Scale: 1, Bias: []float32{0, 12, 0, 12}}, logOdds(0.5, 1e-8, 0.5, 3e-8), []int32{1, 3}, []float64{1e-8 / MinWeightSum, 3e-8 / MinWeightSum}},
		{"sigmoid underflow norm", Router{NExpert: 2, NUsed: 2, Gating: GatingSigmoid, Norm: true, Scale: 1}, []float32{-1e4, -1e4}, []int32{0, 1}, []float64{0, 0}},
		{"sigmoid k=n", Router{NExpert: 3, NUsed: 3, Gating: GatingSigmoid, Scale: 1}, logOdds(0.2, 0.7, 0.4), []int32{1, 2, 0}, []float64{0.7, 0.4, 0.2}},

		// Groups {0,1} {2,3} {4,5}. With a bias the sum of two decides (0.9+0.1 < 0.6+0.5), without it the best (0.9).
		{"groups top-2 sum with bias", Router{NExpert: 6, NUsed: 2, Gating: GatingSigmoid, Scale: 1, Bias: make([]float32, 6), NGroup: 3, NGroupUsed: 1}, logOdds(0.9, 0.1, 0.6, 0.5, 0.2, 0.3), []int32{2, 3}, []float64{0.6, 0.5}},
		{"groups best without bias", Router{NExpert: 6, NUsed: 2, Gating: GatingSoftmax, Scale: 1, NGroup: 3, NGroupUsed: 1}, logs(9, 1, 6, 5, 2, 3), []int32{0, 1}, []float64{9.0 / 26, 1.0 / 26}},
		// All biased scores are negative; a mask of 0 would let the masked groups win.
		{"groups negative bias", Router{NExpert: 6, NUsed: 2, Gating: GatingSigmoid, Scale: 1, Bias: []float32{-5, -5, -5, -5, -5, -5}, NGroup: 3, NGroupUsed: 1}, logOdds(0.9, 0.1, 0.6, 0.5, 0.2, 0.3), []int32{2, 3}, []float64{0.6, 0.5}},
		{"groups of one", Router{NExpert: 3, NUsed: 2, Gating: GatingSigmoid, Scale: 1, Bias: []float32{0, 0, 0}, NGroup: 3, NGroupUsed: 2}, logOdds(0.2, 0.4, 0.3), []int32{1, 2}, []float64{0.4, 0.3}},
		{"groups tie to lower", Router{NExpert: 6, NUsed: 2, Gating: GatingSigmoid, Scale: 1, NGroup: 3, NGroupUsed: 1}, make([]float32, 6), []int32{0, 1}, []float64{0.5, 0.5}},
		{"groups all used", Router{NExpert: 4, NUsed: 2, Gating: GatingSigmoid, Scale: 1, NGroup: 2, NGroupUsed: 2}, logOdds(0.1, 0.8, 0.3, 0.6), []int32{1, 3}, []float64{0.8, 0.6}},

		{"all equal softmax", Router{NExpert: 384, NUsed: 3, Norm: true, Scale: 1}, equal, []int32{0, 1, 2}, []float64{1.0 / 3, 1.0 / 3, 1.0 / 3}},
		{"all equal topk", Router{NExpert: 384, NUsed: 2, Gating: GatingSoftmaxTopK, Scale: 1}, equal, []int32{0, 1}, []float64{0.5, 0.5}},
		{"all equal sigmoid", Router{NExpert: 384, NUsed: 2, Gating: GatingSigmoid, Scale: 1}, equal, []int32{0, 1}, []float64{0.5, 0.5}},
		{"one expert", Router{NExpert: 1, NUsed: 1, Norm: true, Scale: 1}, []float32{-7}, []int32{0}, []float64{1}},
	}
	for _, tt := range tests {
		for _, a := range arms(384, 4, 1) {
			t.Run(tt.name+"/"+a.Name(), func(t *testing.T) {
				s := routeAll(t, a, &tt.r, tt.logits)
				if !slices.Equal(s.Expert, tt.expert) {
					t.Fatalf("experts %v, want %v", s.Expert, tt.expert)
				}
				for j, w := range s.Weight {
					if !near(w, tt.weight[j]) {
						t.Errorf("weights %v, want %v", s.Weight, tt.weight)
						break
					}
				}
			})
		}
	}
}

// referenceRow is the routing in float64, as the models' own code states it: sort everything, take the first k. margin is
// the least gap between neighbours in any order that decided; a small one may fall the other way in float32.
func referenceRow(r *Router, logits []float32) (expert []int, weight []float64, margin float64) {
	margin = math.Inf(1)
	order := func(v []float64) []int {
		ids := make([]int, len(v))
		for i := range ids {
			ids[i] = i
		}
		sort.SliceStable(ids, func(a, b int) bool { return v[ids[a]] > v[ids[b]] })
		return ids
	}
	gap := func(v []float64, ids []int, k int) {
		for j := 0; j < k && j+1 < len(ids); j++ {
			margin = min(margin, v[ids[j]]-v[ids[j+1]])
		}
	}
	n := r.NExpert
	p := make([]float64, n)
	var sum float64
	for i, l := range logits {
		switch r.Gating {
		case GatingSoftmax:
			p[i] = math.Exp(float64(l))
			sum += p[i]
		case GatingSoftmaxTopK:
			p[i] = float64(l)
		case GatingSigmoid:
			p[i] = 1 / (1 + math.Exp(-float64(l)))
		case GatingSqrtSoftplus:
			p[i] = math.Sqrt(math.Log1p(math.Exp(float64(l))))
		}
	}
	s := make([]float64, n)
	for i := range p {
		if r.Gating == GatingSoftmax {
			p[i] /= sum
		}
		s[i] = p[i]
		if r.Bias != nil {
			s[i] += float64(r.Bias[i])
		}
	}
	if r.NGroup > 1 {
		size := n / r.NGroup
		gs := make([]float64, r.NGroup)
		for g := range gs {
			in := slices.Clone(s[g*size : g*size+size])
			slices.Sort(in)
			gs[g] = in[size-1]
			if r.Bias != nil && size > 1 {
				gs[g] += in[size-2]
			}
		}
		ids := order(gs)
		gap(gs, ids, r.NGroupUsed)
		for _, g := range ids[r.NGroupUsed:] {
			for i := g * size; i < g*size+size; i++ {
				s[i] = math.Inf(-1)
			}
		}
	}
	ids := order(s)
	gap(s, ids, r.NUsed)
	expert = ids[:r.NUsed]
	sum = 0
	for _, e := range expert {
		w := p[e]
		if r.Gating == GatingSoftmaxTopK {
			w = math.Exp(w)
		}
		weight = append(weight, w)
		sum += w
	}
	for j := range weight {
		if r.Norm || r.Gating == GatingSoftmaxTopK {
			weight[j] /= sum
		}
		weight[j] *= float64(r.Scale)
	}
	return expert, weight, margin
}

// randomRouter draws a valid router of any kind.
func randomRouter(rng *rand.Rand, maxExpert int) Router {
	r := Router{NExpert: 1 + rng.IntN(maxExpert), Gating: Gating(rng.IntN(4)), Norm: rng.IntN(2) == 0, Scale: 1}
	if rng.IntN(2) == 0 {
		r.Scale = 0.25 + 3*rng.Float32()
	}
	reach := r.NExpert
	if r.Gating != GatingSoftmaxTopK {
		if rng.IntN(2) == 0 {
			r.Bias = make([]float32, r.NExpert)
			for i := range r.Bias {
				r.Bias[i] = 2*rng.Float32() - 1.5
			}
		}
		if rng.IntN(2) == 0 {
			r.NGroup = 2 + rng.IntN(7)
			size := 1 + r.NExpert/r.NGroup
			r.NExpert = size * r.NGroup
			r.NGroupUsed = 1 + rng.IntN(r.NGroup)
			reach = size * r.NGroupUsed
			if r.Bias != nil {
				r.Bias = append(r.Bias, make([]float32, r.NExpert)...)[:r.NExpert]
			}
		}
	}
	r.NUsed = 1 + rng.IntN(reach)
	return r
}

func TestRouteAgainstReference(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	compared := 0
	for range 2000 {
		r := randomRouter(rng, 60)
		logits := make([]float32, r.NExpert)
		for i := range logits {
			logits[i] = float32(2 * rng.NormFloat64())
		}
		expert, weight, margin := referenceRow(&r, logits)
		if margin < 1e-5 {
			continue
		}
		compared++
		for _, a := range arms(r.NExpert, r.NUsed, 1) {
			s := routeAll(t, a, &r, logits)
			for j, e := range expert {
				if int(s.Expert[j]) != e || math.Abs(float64(s.Weight[j])-weight[j]) > 1e-5*weight[j]+1e-9 {
					t.Fatalf("%s: %+v\nlogits %v\ngot  %v %v\nwant %v %v", a.Name(), r, logits, s.Expert, s.Weight, expert, weight)
				}
			}
		}
	}
	if compared < 250 {
		t.Errorf("only %d rows had a clear order", compared)
	}
}

// TestRouteEveryK routes a batch with every k: no row may read the slots of another, whatever the strides.
func TestRouteEveryK(t *testing.T) {
	const n, rows = 16, 3
	rng := rand.New(rand.NewPCG(3, 4))
	logits := make([]float32, rows*n)
	for i := range logits {
		logits[i] = float32(rng.NormFloat64())
	}
	for g := GatingSoftmax; g <= GatingSqrtSoftplus; g++ {
		for k := 1; k <= n; k++ {
			r := &Router{NExpert: n, NUsed: k, Gating: g, Norm: true, Scale: 1}
			for _, a := range arms(n, n, rows) {
				batch := routeAll(t, a, r, logits)
				for row := range rows {
					one := routeAll(t, a, r, logits[row*n:row*n+n])
					if !slices.Equal(one.Expert, batch.Expert[row*k:row*k+k]) || !slices.Equal(one.Weight, batch.Weight[row*k:row*k+k]) {
						t.Fatalf("%s: %s k=%d row %d: alone %v %v, in batch %v %v", a.Name(), g, k, row,
							one.Expert, one.Weight, batch.Expert[row*k:row*k+k], batch.Weight[row*k:row*k+k])
					}
				}
			}
		}
	}
}

func TestRouteMaxExperts(t *testing.T) {
	for _, n := range []int{1024, MaxExperts} {
		for _, k := range []int{1, 8, 1024} {
			logits := make([]float32, n)
			for i := range logits {
				logits[i] = float32(i%7) / 4
			}
			r := &Router{NExpert: n, NUsed: k, Norm: true, Scale: 1}
			var host *Selection
			for _, a := range arms(n, k, 1) {
				s := routeAll(t, a, r, logits)
				if s.Expert[0] != 6 {
					t.Errorf("%s n=%d k=%d: first expert %d, want 6", a.Name(), n, k, s.Expert[0])
				}
				if host == nil {
					host = s
				} else if !slices.Equal(s.Expert, host.Expert) || !slices.Equal(s.Weight, host.Weight) {
					t.Errorf("n=%d k=%d: arms differ", n, k)
				}
			}
		}
	}
}

func TestRouterValidate(t *testing.T) {
	ok := Router{NExpert: 8, NUsed: 2, Gating: GatingSigmoid, Scale: 1}
	tests := []struct {
		edit func(r *Router)
		want string // "" valid
	}{
		{func(r *Router) {}, ""},
		{func(r *Router) { r.NGroup, r.NGroupUsed = 1, 1 }, ""},
		{func(r *Router) { r.NGroup, r.NGroupUsed = 4, 4 }, ""},
		{func(r *Router) { r.Scale = 1e-45 }, ""},
		{func(r *Router) { r.NExpert = 0 }, "0 experts, want 1 to 4096"},
		{func(r *Router) { r.NExpert = MaxExperts + 1 }, "4097 experts, want 1 to 4096"},
		{func(r *Router) { r.NUsed = 0 }, "0 experts used, want 1 to 8"},
		{func(r *Router) { r.NUsed = 9 }, "9 experts used, want 1 to 8"},
		{func(r *Router) { r.Gating = 4 }, "unknown gating 4, want softmax, softmax-topk, sigmoid or sqrt-softplus"},
		{func(r *Router) { r.Scale = 0 }, "weight scale 0"},
		{func(r *Router) { r.Scale = -1 }, "weight scale -1"},
		{func(r *Router) { r.Scale = nan32() }, "weight scale NaN"},
		{func(r *Router) { r.Scale = inf32(1) }, "weight scale +Inf"},
		{func(r *Router) { r.Bias = make([]float32, 7) }, "bias of 7 values, want 8"},
		{func(r *Router) { r.Bias = make([]float32, 8); r.Bias[5] = nan32() }, "bias of expert 5 is NaN"},
		{func(r *Router) { r.Bias = make([]float32, 8); r.Bias[0] = inf32(-1) }, "bias of expert 0 is -Inf"},
		{func(r *Router) { r.Gating = GatingSoftmaxTopK; r.Bias = make([]float32, 8) }, "selection bias with gating softmax-topk"},
		{func(r *Router) { r.Gating = GatingSoftmaxTopK; r.NGroup, r.NGroupUsed = 2, 1 }, "2 expert groups with gating softmax-topk"},
		{func(r *Router) { r.NGroup = -1 }, "no negative count"},
		{func(r *Router) { r.NGroupUsed = 2 }, "2 expert groups used of 0"},
		{func(r *Router) { r.NGroup, r.NGroupUsed = 3, 1 }, "8 experts do not divide into 3 groups"},
		{func(r *Router) { r.NGroup, r.NGroupUsed = 4, 0 }, "0 expert groups used, want 1 to 4"},
		{func(r *Router) { r.NGroup, r.NGroupUsed = 4, 5 }, "5 expert groups used, want 1 to 4"},
		{func(r *Router) { r.NUsed, r.NGroup, r.NGroupUsed = 5, 4, 2 }, "5 experts used, but 2 groups of 2 hold only 4"},
	}
	for i, tt := range tests {
		r := ok
		tt.edit(&r)
		err := r.Validate()
		if got := fmt.Sprint(err); (tt.want == "") != (err == nil) || err != nil && !strings.Contains(got, tt.want) {
			t.Errorf("%d: error %q, want %q", i, got, tt.want)
		}
	}
}
