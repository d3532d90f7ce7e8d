package roofline

import (
	"bytes"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"sluice/dump/dumptest"
)

// The closed form against its meaning: exact at the ends, and a simulation in between.
func TestUniformDistinct(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, c := range []struct{ experts, used int }{{1, 1}, {8, 2}, {128, 8}, {288, 8}, {16, 16}} {
		u := Uniform{c.experts, c.used}
		for _, batch := range []int{1, 2, 3, 10, 100, 100000} {
			got, ok := u.Distinct(0, float64(batch))
			if !ok || got > float64(c.experts) || got < float64(c.used)*(1-1e-12) {
				t.Errorf("%+v batch %d: %v", c, batch, got)
			}
			switch {
			case batch == 1:
				same(t, "one token", got, float64(c.used))
			case batch == 2:
				e, k := float64(c.experts), float64(c.used)
				same(t, "two tokens", got, 2*k-k*k/e)
			case batch == 100000:
				if math.Abs(got-float64(c.experts)) > 1e-6 {
					t.Errorf("%+v: %v of all experts", c, got)
				}
			default:
				const rounds = 400
				sum := 0
				for range rounds {
					seen := map[int]bool{}
					for range batch {
						for _, e := range rng.Perm(c.experts)[:c.used] {
							seen[e] = true
						}
					}
					sum += len(seen)
				}
				// The mean of 400 rounds of a count whose deviation is below sqrt(E)/2: five deviations of it.
				if mean := float64(sum) / rounds; math.Abs(mean-got) > 5*math.Sqrt(float64(c.experts))/2/20+1e-9 {
					t.Errorf("%+v batch %d: closed form %v, simulation %v", c, batch, got, mean)
				}
			}
		}
	}
}

// A tiny share of a batch must not vanish in 1-(1-x)^B.
func TestUniformDistinctIsExactForManyExperts(t *testing.T) {
	got, _ := Uniform{1 << 30, 1}.Distinct(0, 3)
	same(t, "three tokens", got, 3-3.0/(1<<30)+1.0/(1<<60))
}

func testDump(t *testing.T, name, order string, w *Weights) *MeasuredRouting {
	t.Helper()
	f, err := os.Open(dumptest.File(t, name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := ReadRouting(f, name, order, w)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func weights288() *Weights {
	_, w := NewMoE(Model{Hidden: 64, QHeads: 4, KVHeads: 2, HeadDim: 16, Layers: 2, BytesPerElem: 2}, 0, 288, 8, 32)
	return w
}

// Uniform picks give the closed form to the sampling error, clustered ones fewer experts.
func TestMeasuredRouting(t *testing.T) {
	w := weights288()
	for _, order := range []string{Spread, Consecutive} {
		uniform, clustered := testDump(t, "uniform-288.sel.bin", order, w), testDump(t, "clustered-288.sel.bin", order, w)
		if uniform.MaxBatch() != 1500 || !strings.Contains(uniform.Name(), order) || len(uniform.Notes) != 0 {
			t.Errorf("%s: largest batch %d, name %q, notes %q", order, uniform.MaxBatch(), uniform.Name(), uniform.Notes)
		}
		for layer := range 2 {
			for _, b := range []float64{1, 2, 8, 64, 500} {
				want, _ := Uniform{288, 8}.Distinct(layer, b)
				u, ok1 := uniform.Distinct(layer, b)
				c, ok2 := clustered.Distinct(layer, b)
				if !ok1 || !ok2 || math.Abs(u-want) > 0.02*want || c > u+1e-9 || ((b == 8 || b == 64) && c > 0.97*want) || (b == 1 && c != 8) {
					t.Errorf("%s layer %d batch %g: closed form %.3f, uniform dump %.3f, clustered dump %.3f", order, layer, b, want, u, c)
				}
			}
			if _, ok := uniform.Distinct(layer, 1501); ok {
				t.Error("a batch of more tokens than the dump has")
			}
		}
		if _, ok := uniform.Distinct(2, 1); ok {
			t.Error("a layer that the dump does not have")
		}
	}
}

// selBytes makes a dump of one expert per token, all of weight 1.
func selBytes(layers []int, experts []int32) []byte {
	var b bytes.Buffer
	for i, e := range experts {
		b.Write([]byte{byte(layers[i]), 1, byte(e), byte(e >> 8), 0, 0, 128, 63})
	}
	return b.Bytes()
}

func TestMeasuredRoutingByHand(t *testing.T) {
	_, w := NewMoE(testModel, 0, 4, 1, 8)
	w.Layers = w.Layers[:1]
	data := selBytes(make([]int, 6), []int32{0, 0, 1, 1, 2, 2})
	for _, c := range []struct {
		order string
		batch float64
		want  float64
	}{{Consecutive, 2, 1}, {Spread, 2, 2}, {Consecutive, 3, 2}, {Spread, 3, 3}, {Consecutive, 4, 2}, {Spread, 6, 3}} {
		r, err := ReadRouting(bytes.NewReader(data), "x", c.order, w)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := r.Distinct(0, c.batch); got != c.want {
			t.Errorf("%s batch %g: %g, want %g", c.order, c.batch, got, c.want)
		}
	}
	for _, c := range []struct {
		name, order, want string
		data              []byte
	}{
		{"expert out of range", Spread, "chose expert 4, the model has 4", selBytes([]int{0, 0}, []int32{1, 4})},
		{"unknown layer", Spread, "record 1 is of layer 7", selBytes([]int{0, 7}, []int32{1, 1})},
		{"empty", Spread, "no record of layer 0", nil},
		{"not a dump", Spread, "n_sel 0", []byte{0, 0, 0}},
		{"unknown order", "sorted", `"sorted" tokens`, data},
	} {
		if _, err := ReadRouting(bytes.NewReader(c.data), "x", c.order, w); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q in it", c.name, err, c.want)
		}
	}
	r, err := ReadRouting(bytes.NewReader(data[:len(data)-3]), "x", Spread, w)
	if err != nil || r.MaxBatch() != 5 || len(r.Notes) != 1 {
		t.Errorf("torn: %v, %+v", err, r)
	}
}

// With every expert used the mixture is the dense formula; the missed share of the experts' bytes is streamed.
func TestMoEAgreesWithDense(t *testing.T) {
	m, w := NewMoE(testModel, 100, 6, 6, 50)
	in := Input{Machine: testMachine, Model: m, Sparsity: 1, Context: 300, Batches: []int{0, 1, 7, 500}, Weights: w}
	r, err := New(in)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range r.MoE.Curve {
		d := r.Curve[i]
		same(t, "weight", p.Weight, d.Weight)
		same(t, "compute", p.Compute, d.Compute)
		same(t, "kv", p.KV, d.KV)
		same(t, "total", p.Total, d.Total)
		if p.Regime != d.Regime || p.Distinct != 6 {
			t.Errorf("%+v, want %+v", p, d)
		}
	}
	near := func(what string, got *float64, want float64) {
		if got == nil || math.Abs(*got-want) > 1e-6*want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	near("critical batch", r.MoE.CriticalBatch, r.CriticalBatch)
	near("knee", r.MoE.KneeBatch, *r.KneeBatch)

	in.Machine.Stream, in.MissRate = testMachine.Bandwidth/1000, 0.25
	s, err := New(in)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range s.MoE.Curve {
		experts := 6 * w.Layers[0].Bytes * float64(len(w.Layers))
		same(t, "streamed", p.StreamBytes, experts/4)
		same(t, "stream seconds", p.Stream, p.StreamBytes/in.Machine.Stream/max(1, float64(p.Batch)))
		same(t, "sum", p.Total, r.MoE.Curve[i].Total+p.Stream)
	}
	if s.MoE.Curve[1].Regime != StreamBound {
		t.Errorf("regime %s", s.MoE.Curve[1].Regime)
	}
	in.Context = 1 << 30
	if s, err = New(in); err != nil || s.MoE.KneeBatch != nil {
		t.Errorf("past L*: knee %v, %v", s.MoE.KneeBatch, err)
	}
}

// Weights by routing are never less than the dense estimate and never more than all of them; at B* practically all experts
// are touched, so it is the dense formula's with its sparsity.
func TestMoEBetweenDenseAndAll(t *testing.T) {
	m, w := NewMoE(testModel, 0, 128, 8, 768)
	r, err := New(Input{Machine: testMachine, Model: m, Sparsity: w.TotalParams() / w.ActiveParams(), Context: 0,
		Batches: []int{1, 2, 4, 16, 256, 4096}, Weights: w})
	if err != nil {
		t.Fatal(err)
	}
	all := w.TotalParams() * m.BytesPerElem
	for i, p := range r.MoE.Curve {
		if p.Weight < r.Curve[i].Weight*(1-1e-12) || p.WeightBytes > all*(1+1e-12) {
			t.Errorf("batch %d: %v s a token, dense estimate %v; %v bytes of %v", p.Batch, p.Weight, r.Curve[i].Weight, p.WeightBytes, all)
		}
	}
	b := r.MoE.CriticalBatch
	if b == nil || *b > r.CriticalBatch*(1+1e-9) || *b < r.CriticalBatch*0.99 {
		t.Errorf("critical batch %v; with all experts touched it is B* = %v", b, r.CriticalBatch)
	}
}

// A dump answers for batches it has tokens for; others are left out and said.
func TestMoEMeasured(t *testing.T) {
	w := weights288()
	m, _ := NewMoE(Model{Hidden: 64, QHeads: 4, KVHeads: 2, HeadDim: 16, Layers: 2, BytesPerElem: 2}, 0, 288, 8, 32)
	r, err := New(Input{Machine: testMachine, Model: m, Sparsity: 1, Context: 1, Batches: []int{1, 64, 4096}, Weights: w,
		Routing: testDump(t, "clustered-288.sel.bin", Spread, w)})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.MoE.Curve) != 2 || len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "batch 4096") || !strings.Contains(r.Notes[0], "up to 1500") {
		t.Errorf("%d points, notes %q", len(r.MoE.Curve), r.Notes)
	}
	if p := r.MoE.Curve[1]; !(p.Distinct < p.Uniform) {
		t.Errorf("%+v", p)
	}
	b := r.MoE.CriticalBatch
	if b == nil || *b != math.Floor(*b) {
		t.Fatalf("critical batch %v, want a whole number", b)
	}
	mm := &moeModel{in: Input{Machine: testMachine, Model: m}, w: w, routing: testDump(t, "clustered-288.sel.bin", Spread, w)}
	at, _ := mm.point(int(*b))
	before, _ := mm.point(int(*b) - 1)
	if !(at.Weight <= r.MoE.Curve[0].Compute && before.Weight > r.MoE.Curve[0].Compute) {
		t.Errorf("critical batch %v: weights take %v there, %v before, arithmetic %v", *b, at.Weight, before.Weight, r.MoE.Curve[0].Compute)
	}
}
