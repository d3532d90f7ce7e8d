package quality

import (
	"bytes"
	"context"
	"errors"
	"image/png"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice/engine"
	"sluice/engine/demo"
	"sluice/engine/enginetest"
	"sluice/engine/model"
	"sluice/engine/tokenizer"
	"sluice/moe"
)

func openDemo(t *testing.T) (*model.Model, []int32) {
	t.Helper()
	m := enginetest.ParseModel(t, demo.Name, demo.Model())
	text, err := os.ReadFile(filepath.Join("..", "..", "engine", "testdata", "tinymoe-validation.txt"))
	if err != nil {
		t.Fatal(err)
	}
	return m, m.Tok.Encode(string(text[:700]), tokenizer.EncodeOptions{})
}

// cached opens sessions over a cache that has to evict.
func cached(m *model.Model) Open {
	return func(frac float64, used int) (*engine.Session, error) {
		src, _, err := engine.OpenSource(m, engine.SourceConfig{BudgetBytes: 4 << 20, IO: "buffered"}, used)
		if err != nil {
			return nil, err
		}
		return engine.NewSession(m, engine.Config{Ctx: 64, Source: src, NExpertUsed: used, Drop: moe.Drop{Frac: frac, Renorm: true}})
	}
}

// TestRun: the undropped run is the engine's own score, its divergence from itself is nothing, and the other points'
// divergence is that of two sessions run beside each other.
func TestRun(t *testing.T) {
	m, ids := openDemo(t)
	const chunk = 64
	dir := t.TempDir()
	calls := 0
	r, err := Run(context.Background(), m, ids, cached(m), Config{Fracs: []float64{1, 0, 0.5, 1}, Used: []int{2, 4, 1, 3}, Chunk: chunk, StoreDir: dir},
		func(int, int, int, int, Point) { calls++ })
	if err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	var names []string
	for _, p := range r.Points {
		names = append(names, p.name())
	}
	if got := strings.Join(names, ", "); got != "drop 0.5, drop 1, k 3, k 2, k 1" {
		t.Errorf("points %s", got)
	}
	chunks := len(ids) / chunk
	if calls != 6*chunks || r.Tokens != chunks*(chunk-1) || r.StoreBytes != int64(r.Tokens*m.NVocab*4) {
		t.Errorf("%d progress calls, %d predictions, %d bytes kept of %d chunks", calls, r.Tokens, r.StoreBytes, chunks)
	}

	s, err := cached(m)(0, 4)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	want, err := s.MeasurePerplexity(context.Background(), ids, chunk, engine.EvalDecode, nil)
	if err != nil {
		t.Fatal(err)
	}
	b := r.Baseline
	if b.NLL != want.Mean() || b.Perplexity != want.Value() || b.KL != 0 || b.SameTop != 1 || b.BytesRead != s.SourceStats().BytesRead {
		t.Errorf("undropped: %+v, the engine scores %v and reads %d", b, want.Mean(), s.SourceStats().BytesRead)
	}
	for i, p := range r.Points {
		if !(p.KL > 0 && p.SameTop > 0.3 && p.SameTop < 1 && p.BytesRead < b.BytesRead) {
			t.Errorf("%s: %+v", p.name(), p)
		}
		if (p.Dropped > 0) != (p.Kind == Threshold) || p.Routed != int64(chunks*chunk*m.NLayer*p.NExpertUsed) {
			t.Errorf("%s: %d of %d slots dropped", p.name(), p.Dropped, p.Routed)
		}
		if i > 0 && r.Points[i-1].Kind == p.Kind && (p.BytesRead >= r.Points[i-1].BytesRead || p.KL <= r.Points[i-1].KL) {
			t.Errorf("%s reads %d with divergence %v, %s before it %d and %v", p.name(), p.BytesRead, p.KL, r.Points[i-1].name(), r.Points[i-1].BytesRead, r.Points[i-1].KL)
		}
	}
	if kl := besides(t, m, ids, chunk, 2); math.Abs(kl-r.Points[3].KL) > 1e-9 {
		t.Errorf("k 2: divergence %v, of two sessions beside each other %v", r.Points[3].KL, kl)
	}
}

// besides is the divergence by its definition, from two sessions in step.
func besides(t *testing.T, m *model.Model, ids []int32, chunk, used int) float64 {
	t.Helper()
	var s [2]*engine.Session
	for i, k := range []int{m.NExpertUsed, used} {
		var err error
		if s[i], err = engine.NewSession(m, engine.Config{Ctx: chunk, NExpertUsed: k}); err != nil {
			t.Fatal(err)
		}
		defer s[i].Close()
	}
	sum, n := 0.0, 0
	for c := range len(ids) / chunk {
		for i, id := range ids[c*chunk : (c+1)*chunk] {
			var p [2][]float64
			for j := range s {
				if i == 0 {
					s[j].Reset()
				}
				logits, err := s[j].Decode(context.Background(), id)
				if err != nil {
					t.Fatal(err)
				}
				p[j] = softmax(logits)
			}
			if i+1 < chunk {
				sum += plainKL(p[0], p[1])
				n++
			}
		}
	}
	return sum / float64(n)
}

func softmax(x []float32) []float64 {
	out, sum := make([]float64, len(x)), 0.0
	for i, v := range x {
		out[i] = math.Exp(float64(v))
		sum += out[i]
	}
	for i := range out {
		out[i] /= sum
	}
	return out
}

func plainKL(p, q []float64) (kl float64) {
	for i := range p {
		if p[i] > 0 {
			kl += p[i] * (math.Log(p[i]) - math.Log(q[i]))
		}
	}
	return kl
}

func TestDivergence(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, scale := range []float64{1e-4, 1, 30} {
		x, y := make([]float32, 500), make([]float32, 500)
		for i := range x {
			x[i] = float32(10 * rng.NormFloat64())
			y[i] = x[i] + float32(scale*rng.NormFloat64())
		}
		d := divergence{reference: x, exp: make([]float64, len(x))}
		got, want := d.from(y), plainKL(softmax(x), softmax(y))
		if !(math.Abs(got-want) <= 1e-12+1e-9*want) {
			t.Errorf("scale %v: %v, want %v", scale, got, want)
		}
		if same := d.from(x); same != 0 {
			t.Errorf("from itself: %v", same)
		}
	}
	huge := divergence{reference: []float32{3e38, 0, float32(math.Inf(-1))}, exp: make([]float64, 3)}
	if got := huge.from([]float32{3e38, 5, 5}); got != 0 {
		t.Errorf("certain about the same token: %v", got)
	}
	if got := huge.from([]float32{float32(math.NaN()), 0, 0}); !math.IsNaN(got) {
		t.Errorf("of NaN: %v", got)
	}
}

func TestRefusals(t *testing.T) {
	m, ids := openDemo(t)
	never := func(float64, int) (*engine.Session, error) { t.Fatal("a session was opened"); return nil, nil }
	for _, c := range []struct {
		conf Config
		want string
	}{
		{Config{Chunk: 1}, "chunk of 1 tokens"},
		{Config{Chunk: 100000}, "less than one chunk"},
		{Config{Chunk: 64, Used: []int{5}}, "5 experts per token: want 1..4"},
		{Config{Chunk: 64, Used: []int{0}}, "0 experts per token"},
		{Config{Chunk: 64, Fracs: []float64{math.NaN()}}, "NaN"},
		{Config{Chunk: 64, Fracs: []float64{1.5}}, "1.5"},
		{Config{Chunk: 64, StoreLimit: 1 << 20}, "at most 1 MiB are kept: use a shorter text"},
		{Config{Chunk: 64, StoreDir: filepath.Join(t.TempDir(), "none")}, "no such file"},
	} {
		if _, err := Run(context.Background(), m, ids, never, c.conf, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.conf, err, c.want)
		}
	}
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	_, err := Run(ctx, m, ids, cached(m), Config{Fracs: []float64{1}, Chunk: 64, StoreDir: dir}, func(int, int, int, int, Point) { cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestBetween(t *testing.T) {
	curve := []Point{{BytesRead: 10, NLL: 3, KL: 0.5}, {BytesRead: 20, NLL: 2, KL: 0.1}, {BytesRead: 40, NLL: 1}}
	for _, c := range []struct {
		bytes   int64
		nll, kl float64
	}{{10, 3, 0.5}, {15, 2.5, 0.3}, {20, 2, 0.1}, {30, 1.5, 0.05}, {40, 1, 0}} {
		got := between(curve, c.bytes)
		if got == nil || math.Abs(math.Log(got.Perplexity)-c.nll) > 1e-12 || math.Abs(got.KL-c.kl) > 1e-12 {
			t.Errorf("at %d: %+v, want nll %v kl %v", c.bytes, got, c.nll, c.kl)
		}
	}
	for _, bytes := range []int64{9, 41} {
		if got := between(curve, bytes); got != nil {
			t.Errorf("outside, at %d: %+v", bytes, got)
		}
	}
}

// example is a report with a threshold inside the top-k curve's reads and one outside.
func example() *Report {
	r := &Report{Tokens: 100, Chunk: 51, Baseline: Point{Kind: Undropped, NExpertUsed: 2, NLL: 2, Perplexity: math.Exp(2), SameTop: 1, BytesRead: 100 << 20, Routed: 400, Weight: 200},
		Points: []Point{
			{Kind: Threshold, DropFrac: 0.5, NExpertUsed: 2, NLL: 2.1, Perplexity: math.Exp(2.1), KL: 0.01, SameTop: 0.9, BytesRead: 75 << 20, Routed: 400, Dropped: 40, Weight: 200, WeightDropped: 10},
			{Kind: Threshold, DropFrac: 1, NExpertUsed: 2, NLL: 2.5, Perplexity: math.Exp(2.5), KL: 0.2, SameTop: 0.8, BytesRead: 25 << 20, Routed: 400, Dropped: 200, Weight: 200, WeightDropped: 70},
			{Kind: TopK, NExpertUsed: 1, NLL: 2.4, Perplexity: math.Exp(2.4), KL: 0.3, SameTop: 0.7, BytesRead: 50 << 20, Routed: 200, Weight: 100},
		}}
	r.compare()
	return r
}

func TestText(t *testing.T) {
	var b bytes.Buffer
	if err := example().WriteText(&b); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(b.String(), "\n")
	for i, want := range map[int]string{
		3: "undropped, k 2 100.0 100.0 % 7.3891 0.000000 100.00 % 0.00 % 0.00 % - -",
		4: "drop 0.5 75.0 75.0 % 8.1662 0.010000 90.00 % 10.00 % 5.00 % 9.0250 0.150000",
		5: "drop 1 25.0 25.0 % 12.1825 0.200000 80.00 % 50.00 % 35.00 % outside outside",
		6: "k 1 50.0 50.0 % 11.0232 0.300000 70.00 % 0.00 % 0.00 % - -",
	} {
		if got := strings.Join(strings.Fields(lines[i]), " "); got != want {
			t.Errorf("line %d: %q, want %q", i, got, want)
		}
	}
	if !strings.Contains(b.String(), "lower divergence at 1 of 1 thresholds") {
		t.Error(b.String())
	}
	if v := new(Report).Verdict(); !strings.Contains(v, "nothing to compare") {
		t.Error(v)
	}
}

func TestPlot(t *testing.T) {
	files, err := PlotFiles(filepath.Join(t.TempDir(), "curves"))
	if err != nil || len(files) != 2 {
		t.Fatalf("%v %v", files, err)
	}
	for _, path := range files {
		if err := example().SavePlot(path); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	if img, err := png.DecodeConfig(bytes.NewReader(b)); err != nil || img.Width < 900 {
		t.Errorf("%+v %v", img, err)
	}
	svg, err := os.ReadFile(files[1])
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"read from storage, MiB", "perplexity", "KL divergence", "k=1", ">0.5<", "fewer experts per token"} {
		if !bytes.Contains(svg, []byte(want)) {
			t.Errorf("the SVG lacks %q", want)
		}
	}
	if _, err := PlotFiles("curves.pdf"); err == nil || !strings.Contains(err.Error(), ".png, .svg") {
		t.Errorf("pdf: %v", err)
	}
	// A sweep of the undropped run alone has curves of one point.
	alone := &Report{Baseline: example().Baseline}
	if err := alone.SavePlot(files[0]); err != nil {
		t.Error(err)
	}
}
