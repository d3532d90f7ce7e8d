//go:build cuda

package cuda_test

import (
	"bytes"
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"sluice/cuda"
	"sluice/engine"
	"sluice/engine/enginetest"
	"sluice/engine/model"
	"sluice/engine/synth"
	"sluice/moe"
	"sluice/moe/store"
)

// narrow is a small geometry: 4 query heads share 2 key/value heads.
var narrow = synth.Geometry{Layers: 3, Embd: 64, Heads: 4, KVHeads: 2, HeadDim: 32, Experts: 12, Used: 3, FF: 32, Context: 1024}

// exactCase is one configuration of which greedy output, dump and trace may not depend on what does not decide about drops.
type exactCase struct {
	arm       model.Arm
	slots     int // experts that the device holds; 0: all
	host      int // experts a layer that the host's cache holds; 0: no cache
	chunk     int
	noGraph   bool
	noOverlap bool
	drop      float64
	inPrefill bool
	disarm    bool
}

func (c exactCase) String() string {
	type plain exactCase // without this method
	return fmt.Sprintf("%+v", plain(c))
}

type exactResult struct {
	tokens      []int32
	logits      []byte // of the last step of each turn
	dump, trace []byte
	drops       model.DropCount
	stats       model.DeviceStats
	read        int64 // bytes that the source has read
}

// expertBytes is the device memory of one expert of a model whose layers are alike: each matrix begins at a multiple of
// 256.
func expertBytes(m *model.Model) (n int64) {
	x := m.Layout.Experts[0][0]
	for _, t := range []store.Extent{x.Gate, x.Up, x.Down} {
		n += (t.Len + 255) &^ 255
	}
	return n
}

// runExact runs two turns: a prompt and some tokens, then a second prompt on the warm caches and some more.
func runExact(t *testing.T, m *model.Model, ids []int32, c exactCase) (r exactResult) {
	t.Helper()
	opt := cuda.Options{NoGraph: c.noGraph, NoOverlap: c.noOverlap}
	if c.slots > 0 {
		opt.CacheBytes = expertBytes(m) * int64(c.slots)
	}
	d := openDevice(t, opt)
	defer d.Close()
	cfg := engine.Config{Device: d, Arm: c.arm, Batch: c.chunk, Ctx: 256, DropInPrefill: c.inPrefill, Drop: moe.Drop{Frac: c.drop, Renorm: true}}
	sc := engine.SourceConfig{}
	if c.host > 0 {
		sc = engine.SourceConfig{BudgetBytes: store.WorkingSet(m.Layout, c.host), Policy: "lru", Lanes: 2, IO: "buffered", Force: true}
	}
	var err error
	if cfg.Source, _, err = engine.OpenSource(m, sc, m.NExpertUsed); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if !c.disarm {
		cfg.SelDump, cfg.Trace = armTaps(t, m, dir)
	}
	s, err := engine.NewSession(m, cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.tokens, r.logits = enginetest.TwoTurns(t, m, s, ids, 20, 6)
	r.drops = s.Drops()
	r.stats, _ = s.DeviceStats()
	r.read = s.SourceStats().BytesRead
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if !c.disarm {
		if err := cfg.SelDump.Close(); err != nil {
			t.Fatal(err)
		}
		if err := cfg.Trace.Close(); err != nil {
			t.Fatal(err)
		}
		r.dump, r.trace = readFile(t, dir+"/sel.bin"), readFile(t, dir+"/route.csv")
	}
	return r
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// sortedChunks puts the records of a dump (n_sel the same everywhere) in one order, for runs whose prompt chunks differ.
func sortedChunks(b []byte, size int) []byte {
	recs := slices.Collect(slices.Chunk(b, size))
	slices.SortFunc(recs, func(a, b []byte) int { return cmp.Or(bytes.Compare(a, b)) })
	return bytes.Join(recs, nil)
}

func randomIDs(m *model.Model, seed uint64, n int) []int32 {
	rng := rand.New(rand.NewPCG(seed, 1))
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(rng.IntN(m.NVocab))
	}
	return ids
}

// same compares a run with one that may not differ. What depends on the chunk is compared where that is the same, and the
// trace where the host's cache, whose state it records, is.
func same(t *testing.T, m *model.Model, c, base exactCase, got, want exactResult) {
	t.Helper()
	if !slices.Equal(got.tokens, want.tokens) {
		t.Errorf("%v: tokens %v, want %v", c, got.tokens, want.tokens)
	}
	if !bytes.Equal(got.logits, want.logits) {
		t.Errorf("%v: logits differ", c)
	}
	if got.drops != want.drops && c.chunk == base.chunk {
		t.Errorf("%v: drops %+v, want %+v", c, got.drops, want.drops)
	}
	if c.disarm {
		return
	}
	size := 2 + 6*m.NExpertUsed
	if c.chunk == base.chunk && !bytes.Equal(got.dump, want.dump) || !bytes.Equal(sortedChunks(got.dump, size), sortedChunks(want.dump, size)) {
		t.Errorf("%v: the dump differs", c)
	}
	if c.chunk == base.chunk && c.host == base.host {
		a, b := got.trace, want.trace
		if c.slots != base.slots { // what the device has is not read
			a, b = withoutBytes(a), withoutBytes(b)
		}
		if !bytes.Equal(a, b) {
			t.Errorf("%v: the trace differs:\n%s", c, firstDifference(a, b))
		}
	}
}

// withoutBytes is a trace without the column expert_bytes, the ninth.
func withoutBytes(trace []byte) []byte {
	lines := bytes.Split(trace, []byte("\n"))
	for i, l := range lines {
		if f := bytes.Split(l, []byte(",")); len(f) >= 10 {
			lines[i] = bytes.Join(append(f[:8:8], f[9:]...), []byte(","))
		}
	}
	return bytes.Join(lines, []byte("\n"))
}

func firstDifference(a, b []byte) string {
	x, y := bytes.Split(a, []byte("\n")), bytes.Split(b, []byte("\n"))
	for i := range min(len(x), len(y)) {
		if !bytes.Equal(x[i], y[i]) {
			return fmt.Sprintf("line %d: %s, want %s", i+1, x[i], y[i])
		}
	}
	return fmt.Sprintf("%d lines, want %d", len(x), len(y))
}

// TestCUDAExact: nothing but what decides about drops changes a byte: arm, device cache, host cache, chunk, graph, overlap,
// taps.
func TestCUDAExact(t *testing.T) {
	for _, typ := range []string{"f16", "q4_0"} {
		t.Run("type="+typ, func(t *testing.T) {
			m := openFile(t, writeFile(t, "m.gguf", build(t, synth.Config{Arch: "qwen2moe", Type: typ, Seed: 5, Geometry: sharedNarrow})))
			ids := randomIDs(m, 3, 40)
			base := exactCase{arm: "table", chunk: 32}
			want := runExact(t, m, ids, base)
			if !want.stats.Resident || !want.stats.Graph {
				t.Fatalf("the base is %+v", want.stats)
			}
			for i, c := range []exactCase{
				base,
				{arm: "host", chunk: 32},
				{arm: "table", chunk: 32, noGraph: true},
				{arm: "table", chunk: 32, disarm: true},
				{arm: "table", chunk: 1},
				{arm: "table", chunk: 7},
				{arm: "host", chunk: 7},
				{arm: "table", chunk: 32, slots: 3},
				{arm: "host", chunk: 32, slots: 3},
				{arm: "table", chunk: 5, slots: 3},
				{arm: "table", chunk: 32, slots: 3, noOverlap: true},
				{arm: "host", chunk: 32, slots: 3, noOverlap: true},
				{arm: "table", chunk: 32, slots: 18},
				{arm: "table", chunk: 32, slots: 18, host: 3},
				{arm: "host", chunk: 32, slots: 18, host: 3},
				{arm: "table", chunk: 32, slots: 3, host: 5, noOverlap: true},
				{arm: "table", chunk: 32, host: 3},
				{arm: "host", chunk: 32, host: 3},
				{arm: "table", chunk: 3, slots: 3, host: 1},
				{arm: "host", chunk: 3, slots: 3, host: 1},
				{arm: "table", chunk: 32, slots: 3, host: 3, disarm: true},
			} {
				if typ != "f16" && i%4 != 1 && !long() {
					continue
				}
				got := runExact(t, m, ids, c)
				same(t, m, c, base, got, want)
				if c.slots > 0 && (got.stats.Resident || got.stats.Misses == 0) {
					t.Errorf("%v: %+v: the case tests nothing", c, got.stats)
				}
				if c.slots == 3 && got.stats.Evictions == 0 {
					t.Errorf("%v: the smallest cache evicted nothing: the case tests nothing", c)
				}
			}
		})
	}
}

// sharedNarrow has a shared expert too.
var sharedNarrow = func() synth.Geometry {
	g := narrow
	g.SharedFF, g.HeadDim = 64, 16
	return g
}()

func build(t testing.TB, c synth.Config) []byte {
	t.Helper()
	data, err := synth.Build(c)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestCUDADrops: with experts dropped the arms agree in every byte, and so do all sizes of the device's cache: drops
// follow from the host's budget alone.
func TestCUDADrops(t *testing.T) {
	m := openFile(t, writeFile(t, "m.gguf", build(t, synth.Config{Arch: "qwen3moe", Type: "f16", Seed: 5, Geometry: narrow})))
	ids := randomIDs(m, 3, 40)
	for _, base := range []exactCase{
		{arm: "host", chunk: 32, host: 3, drop: 0.9},
		{arm: "host", chunk: 8, host: 6, drop: 0.9, inPrefill: true},
	} {
		base.slots = 3
		want := runExact(t, m, ids, base)
		if want.drops.Dropped == 0 || want.drops.Dropped == want.drops.Routed {
			t.Fatalf("%v: %+v: the case tests nothing", base, want.drops)
		}
		for _, slots := range []int{0, 3, 18} {
			for _, arm := range []model.Arm{"host", "table"} {
				c := base
				c.arm, c.slots = arm, slots
				got := runExact(t, m, ids, c)
				same(t, m, c, base, got, want)
				if slots == 0 && got.read >= want.read {
					t.Errorf("%v: %d bytes read, %d with three slots on the device", c, got.read, want.read)
				}
				c.noOverlap, c.noGraph = true, true
				same(t, m, c, base, runExact(t, m, ids, c), want)
			}
		}
	}
}
