package replay

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sluice/bench/gen"
	"sluice/dump"
	"sluice/dump/dumptest"
)

func cacheFile(t testing.TB, path string, c CacheConfig) *CacheReport {
	t.Helper()
	r, err := Cache(filepath.Base(path), func() (io.ReadCloser, error) { return os.Open(path) }, c)
	must(t, err)
	return r
}

func cacheString(trace string, c CacheConfig) (*CacheReport, error) {
	return Cache("x.csv", func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(trace)), nil }, c)
}

func cacheText(t testing.TB, r *CacheReport) string {
	t.Helper()
	var b strings.Builder
	must(t, r.WriteText(&b))
	_, err := json.Marshal(r)
	must(t, err)
	return b.String()
}

func TestCacheGolden(t *testing.T) {
	c := CacheConfig{Policies: []string{"belady", "lru", "lfu", "layer", "layerlfu"}}
	for _, mb := range []int64{500, 1000, 2000, 3000, 4000} {
		c.Budgets = append(c.Budgets, mb<<20)
	}
	got := cacheText(t, cacheFile(t, dumptest.File(t, "qwen.route.csv"), c))
	want := readFile(t, "testdata/qwen.cache-replay.txt")
	if !strings.HasPrefix(got, want) {
		t.Errorf("got\n%s\nwant the head\n%s", got, want)
	}
	tail := "testdata/qwen.cache-beyond.txt"
	if *update {
		must(t, os.WriteFile(tail, []byte(got[len(want):]), 0o644))
	}
	if want := readFile(t, tail); !strings.HasSuffix(got, want) {
		t.Errorf("got\n%s\nwant the tail\n%s", got, want)
	}
	// The run was recorded with 4000 MiB and lru, and its own hit rate is that cell's.
	r := cacheFile(t, dumptest.File(t, "qwen.route.csv"), CacheConfig{Budgets: []int64{4000 << 20}, Order: OrderLive})
	if a, b := r.Cells[0].Decode.HitRate(), percent(r.Recorded.Decode.Hits, r.Recorded.Decode.Lookups)/100; a-b > 0.001 || b-a > 0.001 {
		t.Errorf("live lru hits %.4f, recorded %.4f", a, b)
	}
}

// What holds of every policy and every trace, and between policies where all experts have one size.
func TestCacheProperties(t *testing.T) {
	for seed := range uint64(6) {
		c := smallTrace(seed)
		c.Unequal = seed%2 == 1
		path := writeTrace(t, c)
		var budgets []int64
		for n := int64(1); n <= 100; n += 9 {
			budgets = append(budgets, n*4000)
		}
		r := cacheFile(t, path, CacheConfig{Budgets: budgets, Seed: seed})
		if len(r.Cells) != len(budgets)*len(CachePolicies()) || r.DecodeBatches != int64(c.Turns*c.Decode*c.Layers) || r.PrefillBatches != int64(c.Turns*c.Layers) {
			t.Fatalf("seed %d: %d cells, %+v", seed, len(r.Cells), r)
		}
		best := make(map[int64]CacheCell)
		before := make(map[string]CacheCell)
		for _, x := range r.Cells {
			n := x.Decode.Lookups + x.Prefill.Lookups
			if x.Decode.Lookups != r.DecodeBatches*int64(c.Used) || n != r.Cells[0].Decode.Lookups+r.Cells[0].Prefill.Lookups {
				t.Errorf("seed %d: %+v: lookups", seed, x)
			}
			if !c.Unequal && x.Decode.BytesRead+x.Prefill.BytesRead != (n-x.Decode.Hits-x.Prefill.Hits)*4000 {
				t.Errorf("seed %d: %+v: bytes", seed, x)
			}
			if x.BudgetBytes >= r.TotalBytes && x.PeakBytes > r.TotalBytes {
				t.Errorf("seed %d: %+v: peak", seed, x)
			}
			// A larger LRU never loses a hit; no other policy of these promises it.
			if p := before[x.Policy]; x.Policy == "lru" && (x.Decode.Hits < p.Decode.Hits || x.Prefill.Hits < p.Prefill.Hits) {
				t.Errorf("seed %d: %+v hits less than %+v", seed, x, p)
			}
			before[x.Policy] = x
			if x.Policy == "belady" {
				best[x.BudgetBytes] = x
			} else if b := best[x.BudgetBytes]; !c.Unequal && x.PeakBytes <= max(x.BudgetBytes, b.PeakBytes) &&
				x.Decode.Hits+x.Prefill.Hits > b.Decode.Hits+b.Prefill.Hits {
				t.Errorf("seed %d: %+v hits more than belady %+v", seed, x, b)
			}
		}
		if s := strings.Join(r.Notes, "\n"); c.Unequal != strings.Contains(s, "near the best hit rate") {
			t.Errorf("seed %d: notes %s", seed, s)
		}
	}
}

// The curve is the lru simulation at every budget.
func TestCurveIsLRU(t *testing.T) {
	for seed := range uint64(6) {
		c := smallTrace(seed)
		c.Unequal = seed%2 == 1
		c.Layers = []int{1, 3, 4}[seed%3]
		c.Chunk = []int{0, 3}[seed/3]
		var budgets []int64
		for b := int64(500); b < int64(c.Layers*c.Experts+2)*4000; b += 2500 {
			budgets = append(budgets, b)
		}
		r := cacheFile(t, writeTrace(t, c), CacheConfig{Budgets: budgets, Policies: []string{"lru"}})
		if !r.Curve.Exact {
			t.Fatal("rounded")
		}
		for _, x := range r.Cells {
			for ph := range 2 {
				if got, want := r.Curve.Hits(ph, x.BudgetBytes), x.phase(ph).Hits; got != want {
					t.Errorf("seed %d, %d bytes, phase %d: %d hits by the curve, %d by simulation", seed, x.BudgetBytes, ph, got, want)
				}
			}
			if b, ok := r.Curve.BudgetFor(dump.Decode, x.Decode.HitRate()); !ok || b > x.BudgetBytes {
				t.Errorf("seed %d: %d bytes for what %d bytes reach", seed, b, x.BudgetBytes)
			}
		}
		p := r.Curve.Points(dump.Decode, 50)
		if len(p) > 51 || !slices.IsSortedFunc(p, func(a, b [2]float64) int { return int(a[0] - b[0]) }) ||
			p[len(p)-1][1] != ratio(float64(r.Curve.Decode.Lookups-r.Curve.Decode.Cold), float64(r.Curve.Decode.Lookups)) {
			t.Errorf("seed %d: points %v", seed, p)
		}
		if k := r.Curve.KeepBytes; c.Layers > 1 && (k == 0 || k > r.TokenBytes) {
			t.Errorf("seed %d: %d bytes keep a token, which touches %d", seed, k, r.TokenBytes)
		}
	}
}

// Sizes without a common unit that is coarse enough are rounded up, and the curve says so.
func TestCurveRounded(t *testing.T) {
	trace := "# n_layer=2 n_expert=8 n_expert_used=1\n# layer=0 expert_bytes=10000019\n# layer=1 expert_bytes=10000079\n" + header
	for i := range 40 {
		trace += fmt.Sprintf("0,1,%d,0,0,%d,1,0,0,0\n0,1,%d,1,0,%d,1,0,0,0\n", i, i%3, i, i%2)
	}
	var budgets []int64
	for b := int64(1e6); b < 60e6; b += 1e6 + 7 {
		budgets = append(budgets, b)
	}
	r, err := cacheString(trace, CacheConfig{Policies: []string{"lru"}, Budgets: budgets})
	must(t, err)
	c := r.Curve
	if c.Exact || c.UnitBytes < 100 {
		t.Fatalf("unit %d, exact %v", c.UnitBytes, c.Exact)
	}
	for _, x := range r.Cells {
		if lo, hi := c.Hits(dump.Decode, x.BudgetBytes), c.Hits(dump.Decode, x.BudgetBytes+c.UnitBytes); x.Decode.Hits < lo || x.Decode.Hits > hi {
			t.Errorf("%d bytes: %d to %d hits by the curve, %d by simulation", x.BudgetBytes, lo, hi, x.Decode.Hits)
		}
	}
}

// A prompt is one pass under OrderBatch, in whatever chunks it was computed.
func TestCacheChunks(t *testing.T) {
	c := smallTrace(9)
	whole := readFile(t, writeTrace(t, c))
	var first []CacheCell
	for i, chunk := range []int{c.Prompt, 1, 3, 7} {
		r, err := cacheString(rechunk(whole, chunk), CacheConfig{Seed: 4})
		must(t, err)
		if i == 0 {
			first = r.Cells
		} else if !slices.Equal(r.Cells, first) {
			t.Errorf("chunks of %d change the hits", chunk)
		}
	}
}

// rechunk reorders the prompt's rows as calls of chunk tokens make them.
func rechunk(trace string, chunk int) string {
	lines := strings.SplitAfter(trace, "\n")
	key := func(line string) (k [4]int) { // turn, phase, number of the chunk, layer
		var step int
		if _, err := fmt.Sscanf(line, "%d,%d,%d,%d,", &k[0], &k[1], &step, &k[3]); err != nil {
			return [4]int{-1}
		}
		if k[2] = step; k[1] == dump.Prefill {
			k[2] = step / chunk
		}
		return k
	}
	slices.SortStableFunc(lines[:len(lines)-1], func(a, b string) int {
		x, y := key(a), key(b)
		return slices.Compare(x[:], y[:])
	})
	return strings.Join(lines, "")
}

func TestCacheBadInput(t *testing.T) {
	row := "0,1,0,0,0,1,0.5,0,100,0\n"
	for _, c := range []struct {
		name, trace string
		cfg         CacheConfig
		want        []string
	}{
		{"empty", "", CacheConfig{}, []string{"x.csv", "no header line"}},
		{"no rows", preamble + header, CacheConfig{}, []string{"no rows"}},
		{"no k", strings.Replace(preamble, "n_expert_used=2", "", 1) + header + row, CacheConfig{}, []string{"no n_expert_used"}},
		{"no n_expert", strings.Replace(preamble, "n_expert=8", "", 1) + header + row, CacheConfig{}, []string{"no n_expert in"}},
		{"k above n_expert", strings.Replace(preamble, "n_expert=8", "n_expert=1", 1) + header, CacheConfig{}, []string{"n_expert_used 2 above n_expert 1"}},
		{"no sizes", "# n_layer=2 n_expert=8 n_expert_used=2\n" + header + row, CacheConfig{}, []string{"no layer sizes", "fiction"}},
		{"size of 0", strings.Replace(preamble, "layer=0 expert_bytes=100", "layer=0 expert_bytes=0", 1) + header + row, CacheConfig{}, []string{"line 6: layer 0 has rows, but no expert_bytes"}},
		{"huge sizes", strings.Replace(preamble, "expert_bytes=100", "expert_bytes=9223372036854775807", 1) + header + row, CacheConfig{}, []string{"layer 0", "exceed"}},
		{"huge model", "# n_layer=9999 n_expert=65536 n_expert_used=1\n# layer=1 expert_bytes=1\n# layer=2 expert_bytes=1\n# layer=3 expert_bytes=1\n# layer=4 expert_bytes=1\n# layer=5 expert_bytes=1\n" + header, CacheConfig{}, []string{"more than 262144 experts"}},
		{"policy", preamble + header + row, CacheConfig{Policies: []string{"lur"}}, []string{`unknown cache policy "lur"`, "belady, lru, lfu, slru, random, layer, layerlfu"}},
		{"policy twice", preamble + header + row, CacheConfig{Policies: []string{"lru", "lru"}}, []string{"lru twice"}},
		{"live policy", preamble + header + row, CacheConfig{Policies: []string{"belady"}, Order: OrderLive}, []string{"want one of lru, slru"}},
		{"live budget", preamble + header + row, CacheConfig{Budgets: []int64{99}, Order: OrderLive}, []string{"one expert's slot needs"}},
		{"budget", preamble + header + row, CacheConfig{Budgets: []int64{0}}, []string{"budget of 0 bytes"}},
		{"order", preamble + header + row, CacheConfig{Order: "x"}, []string{"want batch or live"}},
		{"expert", preamble + header + "0,1,0,0,0,8,0.5,0,100,0\n", CacheConfig{}, []string{"line 6", "expert"}},
	} {
		_, err := cacheString(c.trace, c.cfg)
		for _, want := range c.want {
			if !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("%s: error %v lacks %q", c.name, err, want)
			}
		}
	}
	r, err := cacheString(preamble+header+row+"0,1,0", CacheConfig{})
	if err != nil || r.Torn == nil || !strings.Contains(cacheText(t, r), "torn: the figures are of the 1 whole rows") {
		t.Errorf("torn: %+v %v", r, err)
	}
	// Between belady's two passes the file may not grow.
	calls := 0
	_, err = Cache("x.csv", func() (io.ReadCloser, error) {
		calls++
		return io.NopCloser(strings.NewReader(preamble + header + strings.Repeat(row, calls))), nil
	}, CacheConfig{})
	if err == nil || !strings.Contains(err.Error(), "grew between") {
		t.Errorf("growing file: %v", err)
	}
}

func BenchmarkCache(b *testing.B) {
	path := filepath.Join(b.TempDir(), "route.csv")
	c := gen.DefaultTrace(2e6)
	_, err := gen.WriteTrace(path, c)
	must(b, err)
	st, err := os.Stat(path)
	must(b, err)
	for _, policy := range CachePolicies() {
		b.Run("policy="+policy, func(b *testing.B) {
			b.SetBytes(st.Size())
			b.ReportAllocs()
			for b.Loop() {
				cacheFile(b, path, CacheConfig{Policies: []string{policy}, Budgets: []int64{4000 << 20}})
			}
		})
	}
	b.Run("drop=static", func(b *testing.B) {
		b.SetBytes(st.Size())
		b.ReportAllocs()
		for b.Loop() {
			dropFile(b, path, DropConfig{})
		}
	})
}
