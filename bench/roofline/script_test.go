package roofline

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"

	"sluice/dump/scripttest"
)

// What the script imports from its neighbour, by the names it uses, and a driver that calls its functions.
const (
	scriptConfig = `from dataclasses import dataclass
@dataclass
class MachineParams:
    peak_flops: float
    bw_hbm: float
@dataclass
class ModelConfig:
    hidden: int
    h_q: int
    h_kv: int
    d_head: int
    ffn_dim: int
    layers: int
    bytes_per_elem: float
`
	scriptDriver = `import json, sys
from pack.chip_roofline import *
from pack.model_config import *
out = []
for c in json.load(sys.stdin):
    m, d, s = MachineParams(**c["machine"]), ModelConfig(**c["model"]), c["s_kv"]
    g, x = good_batch(m, d, c["sparsity"]), good_context(m, d, s)
    out.append([arithmetic_intensity(m), total_active_params(d), kv_bytes_per_token(d), critical_batch(m, d, c["sparsity"]),
        balance_context(m, d), knee_batch(m, d, s), t_mem_long(m, d, s), t_com(m, d), g.target, g.effective, g.b_star, x.l_star,
        x.max_efficient, x.utilization_at, [[p.weight_s, p.compute_s, p.kv_s, p.total_s] for p in per_token_latency_curve(m, d, c["batches"], s)],
        [bound_regime(m, d, b, s) for b in c["batches"]]])
json.dump(out, sys.stdout)
`
)

type scriptCase struct {
	Machine  map[string]float64 `json:"machine"`
	Model    map[string]float64 `json:"model"`
	Sparsity float64            `json:"sparsity"`
	Context  int                `json:"s_kv"`
	Batches  []int              `json:"batches"`
}

// The script that the formulas come from agrees on random machines and models.
func TestScriptAgrees(t *testing.T) {
	python, script := scripttest.Script(t, "004", "chip_roofline.py")
	dir := t.TempDir()
	scripttest.Write(t, dir, map[string]string{"pack/chip_roofline.py": script, "pack/model_config.py": scriptConfig,
		"pack/__init__.py": "", "driver.py": scriptDriver})
	rng := rand.New(rand.NewPCG(9, 10))
	var cases []scriptCase
	var reports []*Report
	knees := 0
	for range 300 {
		m := Machine{PeakFlops: math.Exp(20 + rng.Float64()*16), Bandwidth: math.Exp(18 + rng.Float64()*12)}
		d := Model{Hidden: 1 + rng.IntN(20000), QHeads: 1 + rng.IntN(128), KVHeads: 1 + rng.IntN(64), HeadDim: 1 + rng.IntN(256),
			FFNDim: 1 + rng.IntN(60000), Layers: 1 + rng.IntN(128), BytesPerElem: float64(1 + rng.IntN(4))}
		c := scriptCase{map[string]float64{"peak_flops": m.PeakFlops, "bw_hbm": m.Bandwidth},
			map[string]float64{"hidden": float64(d.Hidden), "h_q": float64(d.QHeads), "h_kv": float64(d.KVHeads), "d_head": float64(d.HeadDim),
				"ffn_dim": float64(d.FFNDim), "layers": float64(d.Layers), "bytes_per_elem": d.BytesPerElem},
			1 + rng.Float64()*30, rng.IntN(20000), []int{0, 1, 1 + rng.IntN(100), 1 + rng.IntN(100000)}}
		r, err := New(Input{Machine: m, Model: d, Sparsity: c.Sparsity, Context: c.Context, Batches: c.Batches})
		if err != nil {
			t.Fatal(err)
		}
		if r.KneeBatch != nil {
			knees++
		}
		cases, reports = append(cases, c), append(reports, r)
	}
	if knees < 30 || knees > 270 {
		t.Fatalf("%d of 300 cases have a knee: the test is hollow", knees)
	}
	in, err := json.Marshal(cases)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(python, "driver.py")
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(string(in))
	got, err := cmd.Output()
	if ee := (*exec.ExitError)(nil); errors.As(err, &ee) {
		t.Fatalf("%v: %s", err, ee.Stderr)
	}
	if err != nil {
		t.Fatal(err)
	}
	var rows [][]any
	if err := json.Unmarshal(got, &rows); err != nil {
		t.Fatal(err)
	}
	for i, row := range rows {
		r := reports[i]
		var knee any
		if r.KneeBatch != nil {
			knee = *r.KneeBatch
		}
		var curve, regimes []any
		for _, p := range r.Curve {
			curve = append(curve, []any{p.Weight, p.Compute, p.KV, p.Total})
			regimes = append(regimes, p.Regime)
		}
		near(t, fmt.Sprintf("case %d", i), []any{r.ArithmeticIntensity, r.ActiveParams, r.KVBytesPerToken, r.CriticalBatch, r.BalanceContext, knee, r.KVSeconds,
			r.ComputeSeconds, r.GoodBatch.Target, r.GoodBatch.Effective, r.GoodBatch.BStar, r.GoodContext.LStar, r.GoodContext.MaxEfficient, r.GoodContext.UtilizationAt, curve, regimes}, row)
	}
}

// near compares two JSON values, numbers to 1e-12.
func near(t *testing.T, where string, got, want any) {
	t.Helper()
	switch w := want.(type) {
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			t.Fatalf("%s: %v, want %v", where, got, want)
		}
		for i := range w {
			near(t, fmt.Sprintf("%s[%d]", where, i), g[i], w[i])
		}
	case float64:
		g, ok := got.(float64)
		if !ok {
			t.Errorf("%s: %v, want %v", where, got, want)
			return
		}
		same(t, where, g, w)
	default:
		if got != want {
			t.Errorf("%s: %v, want %v", where, got, want)
		}
	}
}
