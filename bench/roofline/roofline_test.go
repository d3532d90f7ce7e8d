package roofline

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
)

// golden is one case of testdata/cases.json.
type golden struct {
	Name     string
	Machine  Machine
	Model    Model
	Sparsity float64
	Context  int `json:"s_kv"`
	Expected struct {
		ArithmeticIntensity float64            `json:"arithmetic_intensity"`
		ActiveParams        float64            `json:"total_active_params"`
		KVBytesPerToken     float64            `json:"kv_bytes_per_token"`
		CriticalBatch       float64            `json:"critical_batch"`
		BalanceContext      float64            `json:"balance_context"`
		KneeBatch           *float64           `json:"knee_batch"`
		Weight              map[string]float64 `json:"t_mem_short"`
		KV                  float64            `json:"t_mem_long"`
		Compute             float64            `json:"t_com"`
		Utilization         float64            `json:"utilization"`
		GoodBatch           float64            `json:"good_batch"`
		GoodContext         float64            `json:"good_context"`
		Curve               []Point            `json:"curve"`
	}
}

func TestGoldenCases(t *testing.T) {
	b, err := os.ReadFile("testdata/cases.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []golden
	if err := json.Unmarshal(b, &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases) < 2 {
		t.Fatalf("%d cases", len(cases))
	}
	for _, c := range cases {
		t.Run(strings.ReplaceAll(c.Name, "/", " "), func(t *testing.T) {
			e := c.Expected
			var batches []int
			for _, p := range e.Curve {
				batches = append(batches, p.Batch)
			}
			r, err := New(Input{Machine: c.Machine, Model: c.Model, Sparsity: c.Sparsity, Context: c.Context, Batches: batches})
			if err != nil {
				t.Fatal(err)
			}
			same(t, "arithmetic intensity", r.ArithmeticIntensity, e.ArithmeticIntensity)
			same(t, "active params", r.ActiveParams, e.ActiveParams)
			same(t, "kv bytes", r.KVBytesPerToken, e.KVBytesPerToken)
			same(t, "critical batch", r.CriticalBatch, e.CriticalBatch)
			same(t, "balance context", r.BalanceContext, e.BalanceContext)
			same(t, "t_mem_long", r.KVSeconds, e.KV)
			same(t, "t_com", r.ComputeSeconds, e.Compute)
			same(t, "utilization", r.Utilization, e.Utilization)
			same(t, "good batch", r.GoodBatch.Effective, e.GoodBatch)
			same(t, "good context", r.GoodContext.MaxEfficient, e.GoodContext)
			if (r.KneeBatch == nil) != (e.KneeBatch == nil) {
				t.Errorf("knee %v, want %v", r.KneeBatch, e.KneeBatch)
			} else if r.KneeBatch != nil {
				same(t, "knee", *r.KneeBatch, *e.KneeBatch)
			}
			for key, want := range e.Weight {
				batch, err := strconv.Atoi(key)
				if err != nil {
					t.Fatal(err)
				}
				same(t, "t_mem_short "+key, WeightSeconds(c.Machine, c.Model, batch), want)
			}
			for i, want := range e.Curve {
				got := r.Curve[i]
				same(t, "weight", got.Weight, want.Weight)
				same(t, "compute", got.Compute, want.Compute)
				same(t, "kv", got.KV, want.KV)
				same(t, "total", got.Total, want.Total)
				if got.Regime != want.Regime {
					t.Errorf("batch %d: %s, want %s", want.Batch, got.Regime, want.Regime)
				}
			}
		})
	}
}

func same(t *testing.T, what string, got, want float64) {
	t.Helper()
	if !(math.Abs(got-want) <= 1e-12*math.Abs(want)) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

var (
	testMachine = Machine{Name: "m", PeakFlops: 8e12, Bandwidth: 256e9}
	testModel   = Model{Hidden: 2048, QHeads: 32, KVHeads: 4, HeadDim: 128, FFNDim: 6144, Layers: 48, BytesPerElem: 2}
)

// Past L* there is no knee: null in JSON, at L* itself too, and what is a number stays below it.
func TestKneeEndsAtBalanceContext(t *testing.T) {
	l := BalanceContext(testMachine, testModel)
	for _, c := range []struct {
		context int
		exists  bool
	}{{0, true}, {int(l), true}, {int(math.Ceil(l)), false}, {int(10 * l), false}} {
		r, err := New(Input{Machine: testMachine, Model: testModel, Sparsity: 1, Context: c.context, Batches: []int{1}})
		if err != nil {
			t.Fatal(err)
		}
		doc, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if (r.KneeBatch != nil) != c.exists || strings.Contains(string(doc), `"knee_batch":null`) == c.exists {
			t.Errorf("context %d: knee %v in %s", c.context, r.KneeBatch, doc)
		}
	}
	// L* a whole number: the knee is missing exactly there.
	whole := Machine{PeakFlops: 1000, Bandwidth: 1000}
	d := Model{Hidden: 1, QHeads: 1, KVHeads: 1, HeadDim: 1, FFNDim: 4, Layers: 1, BytesPerElem: 1}
	if l := BalanceContext(whole, d); l != 16 {
		t.Fatalf("L* = %v, want 16", l)
	}
	if _, ok := KneeBatch(whole, d, 16); ok {
		t.Error("a knee at L*")
	}
	if b, ok := KneeBatch(whole, d, 15); !ok || b != 8 {
		t.Errorf("knee at 15: %v %v, want 8", b, ok)
	}
}

// At B* the two times meet, at L* the other two, at the knee the reads together meet the arithmetic.
func TestTermsMeet(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		m := Machine{PeakFlops: math.Exp(rng.Float64() * 40), Bandwidth: math.Exp(rng.Float64() * 30)}
		d := Model{Hidden: 1 + rng.IntN(10000), QHeads: 1 + rng.IntN(100), KVHeads: 1 + rng.IntN(100), HeadDim: 1 + rng.IntN(256),
			FFNDim: 1 + rng.IntN(30000), Layers: 1 + rng.IntN(100), BytesPerElem: 0.5 + rng.Float64()*4, KVBytesPerElem: rng.Float64() * 4}
		compute := ComputeSeconds(m, d)
		same := func(what string, got, want float64) {
			if math.Abs(got-want) > 1e-9*want {
				t.Errorf("%+v %+v: %s %v, want %v", m, d, what, got, want)
			}
		}
		weight := func(b float64) float64 { return WeightSeconds(m, d, 1) / b }
		same("weights at B*", weight(CriticalBatch(m, d, 1)), compute)
		l := BalanceContext(m, d)
		same("kv at L*", l*d.KVBytesPerToken()/m.Bandwidth, compute)
		if s := int(l / 2); s > 0 && l < 1e12 {
			b, ok := KneeBatch(m, d, s)
			if !ok {
				t.Fatal("no knee below L*")
			}
			same("reads at the knee", weight(b)+KVSeconds(m, d, s), compute)
		}
		if u := Utilization(int(min(l, 1e15)), math.Floor(min(l, 1e15))); l >= 1 && u != 0.5 {
			t.Errorf("utilization at L* %v", u)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	good := Input{Machine: testMachine, Model: testModel, Sparsity: 1, Context: 10, Batches: []int{1}}
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	_, w := NewMoE(testModel, 0, 8, 2, 64)
	for _, c := range []struct {
		name, want string
		edit       func(*Input)
	}{
		{"zero bandwidth", "bw_hbm is 0", func(i *Input) { i.Machine.Bandwidth = 0 }},
		{"negative bandwidth", "bw_hbm is -1", func(i *Input) { i.Machine.Bandwidth = -1 }},
		{"NaN bandwidth", "bw_hbm is NaN", func(i *Input) { i.Machine.Bandwidth = math.NaN() }},
		{"zero peak", "peak_flops is 0", func(i *Input) { i.Machine.PeakFlops = 0 }},
		{"infinite peak", "peak_flops is +Inf", func(i *Input) { i.Machine.PeakFlops = math.Inf(1) }},
		{"negative stream", "bw_stream is -2", func(i *Input) { i.Machine.Stream = -2 }},
		{"zero hidden", "hidden is 0", func(i *Input) { i.Model.Hidden = 0 }},
		{"negative heads", "h_q is -3", func(i *Input) { i.Model.QHeads = -3 }},
		{"zero kv heads", "h_kv is 0", func(i *Input) { i.Model.KVHeads = 0 }},
		{"negative head", "d_head is -1", func(i *Input) { i.Model.HeadDim = -1 }},
		{"zero ffn", "ffn_dim is 0", func(i *Input) { i.Model.FFNDim = 0 }},
		{"negative layers", "layers is -1", func(i *Input) { i.Model.Layers = -1 }},
		{"zero bytes", "bytes_per_elem is 0", func(i *Input) { i.Model.BytesPerElem = 0 }},
		{"negative kv bytes", "kv_bytes_per_elem is -2", func(i *Input) { i.Model.KVBytesPerElem = -2 }},
		{"sparsity below 1", "sparsity 0.5", func(i *Input) { i.Sparsity = 0.5 }},
		{"negative context", "context of -1", func(i *Input) { i.Context = -1 }},
		{"no batch", "no batch", func(i *Input) { i.Batches = nil }},
		{"negative batch", "batch of -4", func(i *Input) { i.Batches = []int{1, -4} }},
		{"miss rate above 1", "miss rate 1.5", func(i *Input) { i.MissRate = 1.5 }},
		{"misses without experts", "needs a model with experts", func(i *Input) { i.MissRate = 0.5; i.Machine.Stream = 1e9 }},
		{"misses without a level", "needs a model with experts", func(i *Input) { i.MissRate = 0.5; i.Weights = w }},
		{"more used than there are", "9 of 8 experts", func(i *Input) { x := *w; x.Used = 9; i.Weights = &x }},
		{"expert without bytes", "layer 0: an expert of 0 bytes", func(i *Input) { x := *w; x.Layers = []ExpertLayer{{}}; i.Weights = &x }},
		{"no expert layer", "no layer with experts", func(i *Input) { x := *w; x.Layers = nil; i.Weights = &x }},
	} {
		in := good
		c.edit(&in)
		if _, err := New(in); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q in it", c.name, err, c.want)
		}
	}
}
