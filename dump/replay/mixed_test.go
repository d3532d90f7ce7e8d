package replay_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sluice/dump"
	"sluice/dump/replay"
	"sluice/moe"
	"sluice/moe/store"
)

// mixedRun is a run of several sequences, made of the parts that an engine decides with: an arm and the cache.
type mixedRun struct {
	layers, experts, k, passes, most int

	policy        string
	slots         int // the budget, in slots of the last layer
	drop          moe.Drop
	inPrefill     bool
	prefetch      moe.Prefetch
	prefetchBytes int64
	seed          uint64
}

func (m *mixedRun) String() string {
	return fmt.Sprintf("%d layers, %d of %d experts, %s, %d slots, drop %+v in prefill %t, prefetch %s (%d bytes), seed %d", m.layers, m.k, m.experts, m.policy, m.slots, m.drop, m.inPrefill, m.prefetch, m.prefetchBytes, m.seed)
}

func (m *mixedRun) size(layer int) int64 { return 1000 + 100*int64(layer) }
func (m *mixedRun) slot(layer int) int64 { return m.size(layer) + 24 }
func (m *mixedRun) budget() int64        { return int64(m.slots) * m.slot(m.layers-1) }

// mixedCounts are what the run did.
type mixedCounts struct {
	calls, mixed, decodeCalls int64
	lookups                   int64 // of experts that a row chose, by call
	drops                     [2]int64
	read, ahead               int64
	waves                     int // calls whose experts did not fit together
}

// open is a sequence of the run.
type openSeq struct {
	row    moe.Row
	prompt int
	bias   []float32
	last   [][]int32 // by layer: what its last token chose
}

// run makes the trace.
func (m *mixedRun) run(t *testing.T, path string) (n mixedCounts) {
	t.Helper()
	rng := rand.New(rand.NewPCG(m.seed, 1))
	meta := dump.TraceMeta{Model: "m", Arch: "a", NLayer: m.layers, NExpert: m.experts, NUsed: m.k, Ahead: m.prefetch != moe.PrefetchOff, Seqs: true}
	var layers []store.CacheLayer
	var slots []string
	for il := range m.layers {
		meta.Layers = append(meta.Layers, dump.TraceLayer{Layer: il, ExpertBytes: m.size(il)})
		layers = append(layers, store.CacheLayer{Experts: m.experts, SlotBytes: m.slot(il)})
		slots = append(slots, strconv.FormatInt(m.slot(il), 10))
	}
	meta.Extra = [][2]string{{dump.FactSlotBytes, strings.Join(slots, ",")}, {"cache_bytes", strconv.FormatInt(m.budget(), 10)}, {"cache_policy", m.policy},
		{"drop_frac", strconv.FormatFloat(m.drop.Frac, 'g', -1, 64)}, {dump.FactDropInPrefill, strconv.FormatBool(m.inPrefill)}}
	if meta.Ahead {
		meta.Extra = append(meta.Extra, [2]string{"prefetch", string(m.prefetch)}, [2]string{"prefetch_bytes", strconv.FormatInt(m.prefetchBytes, 10)})
	}
	w, err := dump.CreateTrace(path, meta)
	must(t, err)
	policy, err := store.NewPolicy(m.policy, m.layers*m.experts, m.budget())
	must(t, err)
	cache, err := store.NewCache(policy, m.budget(), layers)
	must(t, err)
	router := &moe.Router{NExpert: m.experts, NUsed: m.k, Norm: true, Scale: 1}
	const maxT = 64
	arm := []func(int, int, int) moe.Arm{moe.NewHostArm, moe.NewTableArm}[m.seed%2](m.experts, m.k, maxT)
	sel, table := moe.NewSelection(m.k, maxT), moe.NewTable(m.experts, m.k, maxT)

	var open []*openSeq
	seqs, turns := int32(0), int32(0)
	for pass := range m.passes {
		if len(open) == 0 || len(open) < m.most && rng.IntN(3) == 0 {
			s := &openSeq{row: moe.Row{Seq: seqs, Turn: turns}, prompt: 1 + rng.IntN(20), last: make([][]int32, m.layers)}
			for range m.experts {
				s.bias = append(s.bias, float32(rng.NormFloat64()))
			}
			seqs, turns, open = seqs+1, turns+1, slices.Insert(open, rng.IntN(len(open)+1), s)
		}
		var rows []moe.Row
		var whose []*openSeq
		var phases [2]bool
		for _, s := range open {
			chunk := 1
			if s.row.Phase = moe.Decode; s.prompt > 0 {
				s.row.Phase, chunk = moe.Prefill, min(s.prompt, 1+rng.IntN(9))
				s.prompt -= chunk
			}
			if len(rows)+chunk > maxT {
				continue
			}
			phases[s.row.Phase] = true
			for range chunk {
				rows, whose = append(rows, s.row), append(whose, s)
				s.row.Step++
			}
		}
		T := len(rows)
		for il := range m.layers {
			call := moe.Call{Layer: il, T: T, Router: router, Logits: make([]float32, T*m.experts), Resident: make([]uint8, m.experts), Sel: sel, Table: table}
			for i := range call.Logits {
				call.Logits[i] = whose[i/m.experts].bias[(i+il)%m.experts] + float32(rng.NormFloat64())
			}
			cache.Residency(il, call.Resident)
			if m.drop.Frac > 0 {
				call.Drop = &m.drop
				if !m.inPrefill {
					call.Exempt = make([]bool, T)
					for i, r := range rows {
						call.Exempt[i] = r.Phase == moe.Prefill
					}
				}
			}
			must(t, arm.Route(&call))
			var kept []int32
			touched := make([]bool, m.experts)
			for i, e := range sel.Expert {
				touched[e] = true
				if sel.Dropped[i] {
					n.drops[rows[i/m.k].Phase]++
				}
			}
			for e := range m.experts {
				if touched[e] {
					n.lookups++
				}
				if token, _ := table.Rows(e); len(token) > 0 {
					kept = append(kept, int32(e))
				}
			}
			next := (il + 1) % m.layers
			ask, askers := m.asks(rng, rows, whose, sel.Expert, il, next)
			out := dump.TraceCall{Layer: il, T: T, K: m.k, Expert: sel.Expert, Weight: sel.Weight, Resident: call.Resident, ReadBytes: make([]int64, m.experts),
				Dropped: sel.Dropped, Ahead: ask, Pass: int64(pass + 1)}
			for _, r := range rows {
				out.Rows = append(out.Rows, dump.Row{Seq: r.Seq, Turn: r.Turn, Phase: uint8(r.Phase), Step: r.Step})
			}
			for waves := 0; len(kept) > 0; waves++ {
				held, err := cache.Demand(il, kept)
				must(t, err)
				for i, missed := range cache.Missed() {
					if missed {
						out.ReadBytes[kept[i]] = m.size(il)
						n.read += m.size(il)
					}
				}
				if kept = kept[held:]; len(kept) == 0 && len(ask) > 0 {
					must(t, cache.Prefetch(next, ask, moe.PrefetchBound(m.prefetchBytes, m.slot(next), m.budget(), askers)))
					out.AheadBytes = int64(len(cache.Ahead())) * m.size(next)
					n.ahead += out.AheadBytes
				}
				cache.Release()
				if waves == 1 {
					n.waves++
				}
			}
			must(t, w.Call(&out))
			n.calls++
			if phases[moe.Decode] {
				n.decodeCalls++
			}
			if phases[0] && phases[1] {
				n.mixed++
			}
		}
		open = slices.DeleteFunc(open, func(s *openSeq) bool { return s.prompt == 0 && rng.IntN(15) == 0 })
		for _, s := range open {
			if s.prompt == 0 && rng.IntN(15) == 0 { // goes back, and takes another prompt
				s.row.Step, s.row.Turn, s.prompt = s.row.Step/2, turns, 1+rng.IntN(9)
				turns++
			}
		}
	}
	must(t, w.Close())
	return n
}

// asks is what a layer call asks for ahead, and how many rows do.
func (m *mixedRun) asks(rng *rand.Rand, rows []moe.Row, whose []*openSeq, chosen []int32, il, next int) (ask []int32, askers int) {
	switch m.prefetch {
	case moe.PrefetchNextLayer: // whatever a router might say
		if next > 0 {
			for _, e := range rng.Perm(m.experts)[:rng.IntN(m.experts)] {
				ask = append(ask, int32(e))
			}
		}
		askers = len(rows)
	case moe.PrefetchLastToken:
		for i := range rows {
			if i+1 == len(rows) || whose[i+1] != whose[i] {
				whose[i].last[il] = slices.Clone(chosen[i*m.k : i*m.k+m.k])
			}
		}
		for i, r := range rows {
			if r.Phase != moe.Decode {
				continue
			}
			askers++
			for _, e := range whose[i].last[next] {
				if !slices.Contains(ask, e) {
					ask = append(ask, e)
				}
			}
		}
	}
	return ask, askers
}

// A replay of a run of several sequences reads and drops what the run did, whatever the policy, the budget, the threshold and
// what is read ahead, while sequences join, leave and take prompts in chunks beside others that decode.
func TestReplaysOfMixedRuns(t *testing.T) {
	rng := rand.New(rand.NewPCG(21, 22))
	dir := t.TempDir()
	var all mixedCounts
	for i := range 120 {
		m := mixedRun{layers: 2 + rng.IntN(3), experts: 8 + rng.IntN(17), k: 2 + rng.IntN(3), passes: 40, most: 1 + rng.IntN(6), policy: store.Policies()[i%len(store.Policies())],
			drop: moe.Drop{Frac: []float64{0, 0.5, 0.9, 1}[rng.IntN(4)], Renorm: rng.IntN(2) == 0}, inPrefill: rng.IntN(3) == 0,
			prefetch: moe.PrefetchModes()[rng.IntN(3)], seed: rng.Uint64N(1 << 20)}
		m.slots = []int{2, m.k, m.experts, m.experts * m.layers / 2, m.experts * m.layers}[rng.IntN(5)]
		if rng.IntN(3) == 0 {
			m.prefetchBytes = int64(1+rng.IntN(4)) * m.slot(0)
		}
		path := filepath.Join(dir, "route.csv")
		n := m.run(t, path)
		checkMixed(t, &m, path, n)
		all.mixed, all.waves, all.read, all.ahead = all.mixed+n.mixed, all.waves+n.waves, all.read+n.read, all.ahead+n.ahead
		all.drops[0], all.drops[1] = all.drops[0]+n.drops[0], all.drops[1]+n.drops[1]
	}
	if all.mixed < 1000 || all.waves < 500 || all.drops[0] < 500 || all.drops[1] < 500 || all.ahead < 1<<20 {
		t.Errorf("%+v: the draw hardly exercises them", all)
	}
}

func checkMixed(t *testing.T, m *mixedRun, path string, n mixedCounts) {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	r, err := replay.Drop("route.csv", f, replay.DropConfig{})
	must(t, err)
	d := r.Dynamic[0]
	if p := d.Reproduction; p == nil || !p.Exact() || p.Drops != n.drops[0]+n.drops[1] || p.Bytes != n.read+n.ahead || r.Reproduced() != nil {
		t.Fatalf("%s: drop: %v (%s), the run dropped %v and read %d, %d ahead", m, p, d.NotReproduced, n.drops, n.read, n.ahead)
	}
	if c := d.Check; c == nil {
		t.Fatalf("%s: not checked: %s", m, d.NoCheck)
	} else {
		for ph, pair := range []struct {
			pre replay.DynamicPhase
			rec replay.RecordedPhase
		}{{c.Predicted.Prefill, c.Prefill}, {c.Predicted.Decode, c.Decode}} {
			// A call whose experts do not fit together may throw out what it has found, so that hits are not to be seen in rows.
			if pair.pre.Dropped != n.drops[ph] || pair.rec.Dropped != n.drops[ph] || pair.pre.BytesRead != pair.rec.BytesRead || pair.pre.Ahead != pair.rec.Ahead ||
				pair.pre.Lookups != pair.rec.Lookups || n.waves == 0 && pair.pre.Misses != pair.rec.Misses {
				t.Fatalf("%s: phase %d: predicted %+v, recorded %+v, dropped %d", m, ph, pair.pre, pair.rec, n.drops[ph])
			}
		}
	}
	live := cacheOf(t, path, []int64{m.budget()}, []string{m.policy})
	if p := live.Reproduction; p == nil || !p.Exact() || p.Bytes != n.read+n.ahead || live.DecodeBatches != n.decodeCalls || live.Batches != n.calls {
		t.Fatalf("%s: live: %v (%s), %d of %d calls decode; the run read %d, %d ahead, %d of %d calls", m, p, live.NotReproduced, live.DecodeBatches, live.Batches,
			n.read, n.ahead, n.decodeCalls, n.calls)
	}
	batch, err := replay.Cache("route.csv", func() (io.ReadCloser, error) { return os.Open(path) }, replay.CacheConfig{Budgets: []int64{m.budget()}})
	must(t, err)
	var text strings.Builder
	must(t, batch.WriteText(&text))
	if want := fmt.Sprintf("batch: the recorded layer calls, of %d passes, eviction", m.passes); batch.Passes != int64(m.passes) || !strings.Contains(text.String(), want) {
		t.Fatalf("%d passes\n%s", batch.Passes, text.String())
	}
	for _, c := range batch.Cells {
		if batch.Batches != n.calls || c.Decode.Lookups+c.Prefill.Lookups != n.lookups {
			t.Fatalf("%s: batch: %d calls, want %d; %+v, want %d lookups", m, batch.Batches, n.calls, c, n.lookups)
		}
	}
}

// A trace that is cut anywhere between rows, as a kill leaves it, is reproduced as far as it goes; one in which a drop or a
// read was made up is not.
func TestReplaysOfCutMixedRuns(t *testing.T) {
	for seed, prefetch := range moe.PrefetchModes() {
		m := mixedRun{layers: 3, experts: 12, k: 3, passes: 12, most: 4, policy: "lru", slots: 14, drop: moe.Drop{Frac: 0.9}, prefetch: prefetch, seed: uint64(seed)}
		path := filepath.Join(t.TempDir(), "route.csv")
		n := m.run(t, path)
		checkMixed(t, &m, path, n)
		data, err := os.ReadFile(path)
		must(t, err)
		head := bytes.Index(data, []byte("\nturn,")) + 1
		head += bytes.IndexByte(data[head:], '\n') + 1
		reproduced := func(data []byte) (drop, live error) {
			r, err := replay.Drop("x", bytes.NewReader(data), replay.DropConfig{})
			must(t, err)
			if r.Dynamic[0].Reproduction == nil {
				t.Fatal(r.Dynamic[0].NotReproduced)
			}
			c, err := replay.Cache("x", func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil },
				replay.CacheConfig{Budgets: []int64{m.budget()}, Policies: []string{m.policy}, Order: replay.OrderLive})
			must(t, err)
			return r.Reproduced(), c.Reproduced()
		}
		for at, line := head, 0; at < len(data); line++ {
			end := at + bytes.IndexByte(data[at:], '\n') + 1
			if drop, live := reproduced(data[:end]); drop != nil || live != nil {
				t.Fatalf("%s: cut behind row %d: %v; %v", prefetch, line, drop, live)
			}
			if line%7 == 0 && end < len(data)*9/10 { // not in the last call, of which nothing is said
				fields := strings.Split(strings.TrimSuffix(string(data[at:end]), "\n"), ",")
				fields[8] = strconv.Itoa(7777) // expert_bytes
				bad := slices.Concat(data[:at], []byte(strings.Join(fields, ",")+"\n"), data[end:])
				if drop, live := reproduced(bad); drop == nil || live == nil {
					t.Fatalf("%s: row %d: bytes that were not read are reproduced", prefetch, line)
				}
			}
			at = end
		}
	}
}
