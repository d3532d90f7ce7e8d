package replay

import (
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sluice/bench/gen"
	"sluice/dump"
	"sluice/dump/dumptest"
	"sluice/dump/scripttest"
	"sluice/moe/store"
)

var update = flag.Bool("update", false, "renew the golden files instead of comparing with them")

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func readFile(t testing.TB, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	return string(data)
}

func dropFile(t testing.TB, path string, c DropConfig) *DropReport {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	r, err := Drop(filepath.Base(path), f, c)
	must(t, err)
	return r
}

func dropText(t testing.TB, r *DropReport) string {
	t.Helper()
	var b strings.Builder
	must(t, r.WriteText(&b))
	_, err := json.Marshal(r)
	must(t, err)
	return b.String()
}

// writeTrace writes a small synthetic trace.
func writeTrace(t testing.TB, c gen.TraceConfig) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "route.csv")
	_, err := gen.WriteTrace(path, c)
	must(t, err)
	return path
}

func smallTrace(seed uint64) gen.TraceConfig {
	return gen.TraceConfig{Layers: 4, Experts: 24, Used: 4, ExpertBytes: 4000, Prompt: 10, Decode: 40, Turns: 3, BudgetBytes: 40 * 4000,
		Policy: "lru", State: true, Seed: seed}
}

// The figures of the format's own script stand, byte for byte, at the head of the output.
func TestDropGolden(t *testing.T) {
	for _, name := range []string{"qwen", "qwen-dropped"} {
		got := dropText(t, dropFile(t, dumptest.File(t, name+".route.csv"), DropConfig{}))
		want := readFile(t, "testdata/"+name+".drop-replay.txt")
		if !strings.HasPrefix(got, want) {
			t.Errorf("%s: got\n%s\nwant the head\n%s", name, got, want)
		}
		tail := "testdata/" + name + ".beyond.txt"
		got = dropText(t, dropFile(t, dumptest.File(t, name+".route.csv"), DropConfig{Budgets: []int64{4000 << 20}}))[len(want):]
		if *update {
			must(t, os.WriteFile(tail, []byte(got), 0o644))
		}
		if want := readFile(t, tail); got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", tail, got, want)
		}
	}
}

// A run recorded with dropping: the static replay of its rows finds what it dropped, row for row.
func TestDropRecorded(t *testing.T) {
	r := dropFile(t, dumptest.File(t, "qwen-dropped.route.csv"), DropConfig{})
	d := &r.Decode
	if f := d.Fracs[2]; d.Dropped != 2675 || f.Both != 2675 || f.Dropped != 2675 || r.Unknown != 43 || r.Rows != 44766 {
		t.Errorf("dropped %d, static %+v, %d rows, %d unknown", d.Dropped, f, r.Rows, r.Unknown)
	}
	// The other way round: the bytes that were not read, taken from the sizes, are those that the undropped trace has.
	plain := dropFile(t, dumptest.File(t, "qwen.route.csv"), DropConfig{})
	saved := ratio(float64(d.DroppedBytes), float64(d.DroppedBytes+d.MissBytes))
	if want := plain.Decode.IOSaved(&plain.Decode.Fracs[2]); math.Abs(saved-want) > 0.002 {
		t.Errorf("not read: %.4f of the bytes, the undropped trace says %.4f", saved, want)
	}
}

// The static replay against a plain reading of the rule, on random traces.
func TestDropSums(t *testing.T) {
	for seed := range uint64(6) {
		c := smallTrace(seed)
		c.Unequal = seed%2 == 0
		c.Frac = []float64{0, 0.8}[seed/2%2]
		path := writeTrace(t, c)
		r := dropFile(t, path, DropConfig{Fracs: []float64{0, 0.3, 0.8, 1}})
		tokens := int64(c.Turns * c.Decode * c.Layers)
		p := &r.Decode
		if p.Cells != tokens || p.Routed != tokens*int64(c.Used) || r.Prefill.Routed != int64(c.Turns*c.Prompt*c.Layers*c.Used) ||
			r.Rows != uint64(p.Routed+r.Prefill.Routed) || r.ShortCells != 0 {
			t.Fatalf("seed %d: %d cells of %d rows", seed, p.Cells, p.Routed)
		}
		if math.Abs(p.Mass-float64(tokens)) > 1e-3*float64(tokens) {
			t.Errorf("seed %d: mass %v of %d cells", seed, p.Mass, tokens)
		}
		last := int64(0)
		for i, f := range p.Fracs {
			cells, kept := int64(0), int64(0)
			for n, v := range f.Survivors {
				cells += v
				kept += int64(n) * v
			}
			if cells != p.Cells || kept != p.Routed-f.Dropped || f.Dropped < last || f.Survivors[0] != 0 || f.Bytes > p.MissBytes || i == 0 && f.Dropped != 0 {
				t.Errorf("seed %d: %+v", seed, f)
			}
			last = f.Dropped
		}
		for i := 1; i < len(p.StaticK); i++ {
			if a, b := p.StaticK[i-1], p.StaticK[i]; a.Keep != b.Keep+1 || a.Mass > b.Mass || a.Bytes > b.Bytes {
				t.Errorf("seed %d: %+v before %+v", seed, a, b)
			}
		}
		if f := p.Fracs[2]; c.Frac > 0 && (p.Dropped == 0 || abs(f.Both-p.Dropped) > f.Near || abs(f.Dropped-f.Both) > f.Near) {
			t.Errorf("seed %d: the run dropped %d, static %d, both %d, near %d", seed, p.Dropped, f.Dropped, f.Both, f.Near)
		}
	}
}

func abs(n int64) int64 { return max(n, -n) }

// The dynamic replay of a run's own routing, at its own threshold and cache, is that run.
func TestDynamicIsTheRun(t *testing.T) {
	for seed := range uint64(8) {
		c := smallTrace(seed)
		c.Unequal, c.Chunk = seed%2 == 0, []int{0, 3}[seed/2%2]
		c.Policy = store.Policies()[seed/4%2]
		c.Frac = 0.8
		if seed == 3 {
			c.Frac = 0
		}
		r := dropFile(t, writeTrace(t, c), DropConfig{})
		if len(r.Dynamic) != 1 || r.Dynamic[0].Check == nil {
			t.Fatalf("seed %d: %+v %v", seed, r.Dynamic, r.Notes)
		}
		d := r.Dynamic[0]
		k := d.Check
		if c.Policy != d.Policy || k.Predicted.Frac != c.Frac || !k.SameRouting || k.Decode.Misses == 0 {
			t.Fatalf("seed %d: %+v", seed, d)
		}
		for ph := range 2 {
			got, want := k.Predicted.phase(ph), &k.Prefill
			if ph == dump.Decode {
				want = &k.Decode
			}
			if got.Hits != want.Hits || got.Misses != want.Misses || got.BytesRead != want.BytesRead || got.Dropped != want.Dropped {
				t.Errorf("seed %d, phase %d: predicted %+v, recorded %+v", seed, ph, *got, *want)
			}
		}
		if k.DecodeErr != 0 || k.PrefillErr != 0 {
			t.Errorf("seed %d: errors %v %v", seed, k.DecodeErr, k.PrefillErr)
		}
		if s := dropText(t, r); !strings.Contains(s, "error in bytes +0.00%") {
			t.Errorf("seed %d:\n%s", seed, s)
		}
	}
}

// Against another run: here the same routing, so that the prediction is exact.
func TestDynamicAgainst(t *testing.T) {
	c := smallTrace(5)
	plain := writeTrace(t, c)
	c.Frac = 0.75
	dropped := writeTrace(t, c)
	f, err := os.Open(dropped)
	must(t, err)
	defer f.Close()
	rec, err := ReadRecorded("dropped.csv", f)
	must(t, err)
	r := dropFile(t, plain, DropConfig{Against: rec})
	k := r.Dynamic[0].Check
	if k == nil || k.SameRouting || k.File != "dropped.csv" || k.DecodeErr != 0 || k.Predicted.Decode.Dropped != rec.Decode.Dropped || rec.Decode.Dropped == 0 {
		t.Errorf("%+v", r.Dynamic[0])
	}
	r = dropFile(t, plain, DropConfig{Against: rec, Budgets: []int64{77 * 4000}})
	if r.Dynamic[0].Check != nil || !strings.Contains(r.Dynamic[0].NoCheck, "cache was another") {
		t.Errorf("%+v", r.Dynamic[0])
	}
}

const (
	preamble = "# route_trace v1\n# model=m arch=a n_layer=2 n_expert=8 n_expert_used=2\n# layer=0 expert_bytes=100 dense_bytes=1\n# layer=1 expert_bytes=100 dense_bytes=1\n"
	header   = "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes,dropped\n"
)

// An expert of a prompt falls only if no row needs it, as in a run.
func TestDynamicWholeCall(t *testing.T) {
	trace := preamble + header +
		"0,0,0,0,0,1,0.9,0,100,0\n0,0,0,0,1,2,0.1,0,100,0\n" + // 2 would fall here,
		"0,0,1,0,0,2,0.6,0,0,0\n0,0,1,0,1,3,0.4,0,100,0\n" // but this row needs it; 3 falls
	r, err := Drop("x", strings.NewReader(trace), DropConfig{Fracs: []float64{1}, Budgets: []int64{800}, InPrefill: true})
	must(t, err)
	if p := r.Dynamic[0].Rows[1].Prefill; p.Misses != 2 || p.Dropped != 1 || p.BytesRead != 200 || math.Abs(p.MassLost-0.2) > 1e-9 {
		t.Errorf("%+v", p)
	}
	if p := r.Prefill.Fracs[0]; p.Dropped != 2 { // the static replay is row by row, as the format's script is
		t.Errorf("%+v", p)
	}
	r, err = Drop("x", strings.NewReader(trace), DropConfig{Fracs: []float64{1}, Budgets: []int64{800}})
	must(t, err)
	if p := r.Dynamic[0].Rows[1].Prefill; p.Misses != 3 || p.Dropped != 0 {
		t.Errorf("%+v", p)
	}
}

func TestDropCounts(t *testing.T) {
	trace := preamble + header +
		"0,1,0,0,0,1,0.7499995,1,0,0\n0,1,0,0,1,2,0.2500005,0,100,0\n" + // within 1e-6 of 0.25 from above
		"0,1,0,1,0,1,nan,0,100,0\n0,1,0,1,1,2,inf,0,0,0\n" + // a cell of which nothing is known
		"0,1,1,0,0,3,0.9,0,100,0\n" // a row is missing
	r, err := Drop("x", strings.NewReader(trace), DropConfig{Fracs: []float64{0.5}})
	must(t, err)
	if d := r.Decode; r.Rows != 5 || r.Unknown != 2 || r.ShortCells != 1 || d.Cells != 2 || d.Routed != 3 || d.Fracs[0].Near != 1 || d.Fracs[0].Dropped != 0 {
		t.Errorf("%+v", r)
	}
	s := dropText(t, r)
	for _, want := range []string{"[PREFILL] no rows", "2 with an unknown weight", "short cells: 1", "0.50: 1 decode, 0 prefill", "no dynamic replay"} {
		if !strings.Contains(s, want) {
			t.Errorf("no %q in\n%s", want, s)
		}
	}
}

func TestDropBadInput(t *testing.T) {
	row := "0,1,0,0,0,1,0.5,0,100,0\n"
	noK := strings.Replace(preamble, "n_expert_used=2", "", 1)
	noSizes := "# route_trace v1\n# n_layer=2 n_expert=8 n_expert_used=2\n"
	budget := DropConfig{Budgets: []int64{800}}
	for _, c := range []struct {
		name, trace string
		cfg         DropConfig
		want        []string
	}{
		{"empty", "", DropConfig{}, []string{"x.csv", "no header line in 0 bytes"}},
		{"no k", noK + header + row, DropConfig{}, []string{"x.csv", "no n_expert_used in the preamble"}},
		{"k of a madman", "# n_expert_used=60000\n" + header, DropConfig{}, []string{"n_expert_used 60000", "at most 4096"}},
		{"no sizes, static", noSizes + header + row, DropConfig{}, nil},
		{"no sizes, dynamic", noSizes + header + row, budget, []string{"no layer sizes", "fiction"}},
		{"one size missing", strings.Replace(preamble, "layer=0", "layer=1", 1) + header + row, budget, []string{"line 6", "layer 0 has rows, but no expert_bytes"}},
		{"slot beyond k", preamble + header + "0,1,0,0,2,1,0.5,0,100,0\n", DropConfig{}, []string{"line 6: slot 2", "n_expert_used is 2"}},
		{"columns missing", preamble + "turn,phase,step,layer,slot,expert,weight\n", DropConfig{}, []string{"lacks columns: residency, expert_bytes"}},
		{"columns in another order, CRLF", strings.ReplaceAll(preamble, "\n", "\r\n") + "dropped,expert_bytes,residency,weight,expert,slot,layer,step,phase,turn\r\n0,100,0,0.5,1,0,0,0,1,0\r\n", DropConfig{}, nil},
		{"text", "The quick brown fox\njumps\n", DropConfig{}, []string{"lacks columns"}},
		{"policy", preamble + header, DropConfig{Budgets: []int64{800}, Policies: []string{"lur"}}, []string{`unknown cache policy "lur"`, "lru, slru"}},
		{"budget", preamble + header + row, DropConfig{Budgets: []int64{99}}, []string{"one expert's slot needs"}},
		{"threshold", preamble + header, DropConfig{Fracs: []float64{math.NaN()}}, []string{"threshold NaN"}},
		{"slot bytes", preamble + "# slot_bytes=10,20\n" + header, budget, []string{"slot_bytes: layer 0"}},
	} {
		r, err := Drop("x.csv", strings.NewReader(c.trace), c.cfg)
		if c.want == nil {
			if err != nil || r.Decode.Routed != 1 {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("%s: error %v lacks %q", c.name, err, want)
			}
		}
	}
	r, err := Drop("x.csv", strings.NewReader(preamble+header+row+"0,1,0"), DropConfig{})
	if err != nil || r.Torn == nil || r.Torn.Records != 1 || !strings.Contains(dropText(t, r), "torn: the figures are of the 1 whole rows") {
		t.Errorf("torn: %+v %v", r, err)
	}
}

// The format's own script and this package print the same of a trace that neither has seen.
func TestDropEqualsScript(t *testing.T) {
	python, script := scripttest.Script(t, "000", "route-drop-replay.py")
	dir := t.TempDir()
	scripttest.Write(t, dir, map[string]string{"replay.py": script, "trace_io.py": scripttest.TraceIO})
	for seed, frac := range []float64{0, 0.6} {
		c := smallTrace(uint64(seed))
		c.Frac, c.Chunk, c.Unequal = frac, 4, true
		path := writeTrace(t, c)
		want, err := exec.Command(python, filepath.Join(dir, "replay.py"), path).Output()
		must(t, err)
		if !strings.Contains(string(want), "[DECODE] 480 routing cells") {
			t.Fatalf("the script printed\n%s", want)
		}
		if got := dropText(t, dropFile(t, path, DropConfig{})); !strings.HasPrefix(got, string(want)) {
			t.Errorf("got\n%s\nwant the head\n%s", got, want)
		}
	}
}
