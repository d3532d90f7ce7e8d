package sweep

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
)

// slow has round numbers: an operation a nanosecond, 2 bytes a nanosecond from memory, 1 within a cube, half between.
var slow = Topology{PEFlops: 1e9, PEMemBW: 2e9, PEMemLatency: 7, PELinkBW: 1e9, PELinkLatency: 11, CubeLinkBW: 0.5e9, CubeLinkLatency: 13}

func simulate(t *testing.T, top Topology, c Config, k int) float64 {
	t.Helper()
	s, err := New(c, Cases()[k])
	if err != nil {
		t.Fatal(err)
	}
	ns, err := top.Simulate(s)
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

// Small schedules by hand. With d_head 1, one head and S positions: queries take 4 bytes each, a block 4 bytes a position,
// attention 4 operations a pair, a partial 12 bytes, its merge 3 operations and 36 bytes.
func TestSimulateByHand(t *testing.T) {
	base := Config{SKV: 24, TQ: 1, KVHeads: 1, HeadDim: 1, Group: 1}
	const read, write = 7 + 4/2.0, 7 + 4/2.0 // of one query
	const merge = 7 + 36/2.0
	attend := func(pairs float64) float64 { return 7 + 4*pairs }
	for _, c := range []struct {
		name       string
		mode       string
		tq, cubes  int
		pes, index int
		want       float64
	}{
		{"one rank", Decode, 1, 1, 1, 1, read + attend(24) + write},
		{"idle ranks cost nothing", Decode, 1, 4, 6, 1, read + attend(24) + write},
		{"two PEs merge", Decode, 1, 1, 2, 2, read + attend(12) + (12 + 11) + merge + write},
		{"redundant cubes run side by side", Decode, 1, 3, 2, 2, read + attend(12) + (12 + 11) + merge + write},
		// PE 1 and PE 3 send together, PE 2 after its merge; PE 0 merges twice.
		{"four PEs merge in a tree", Decode, 1, 1, 4, 2, read + attend(6) + (12 + 11) + merge + (12 + 11) + merge + write},
		// PE 2 has no partner in the first round and waits in PE 0's queue.
		{"three PEs", Decode, 1, 1, 3, 2, read + attend(8) + (12 + 11) + merge + merge + write},
		{"two cubes merge", Decode, 1, 2, 1, 0, read + attend(12) + (24 + 13) + merge + write},
		// Block of 48 bytes: 96 ns and a latency on the link, longer than the attention of the own block (55 ns).
		{"ring of two waits for the link", Prefill, 2, 2, 1, 0, read + (96 + 13) + attend(12) + write},
		// Two PEs share the cube's link: the second block leaves when the first has.
		{"ring with a shared link", Prefill, 4, 2, 2, 0, read + (192 + 13) + attend(12) + write},
	} {
		cfg := base
		cfg.Mode, cfg.TQ, cfg.C, cfg.P = c.mode, c.tq, c.cubes, c.pes
		if got := simulate(t, slow, cfg, c.index); math.Abs(got-c.want) > 1e-6 {
			t.Errorf("%s: %v ns, want %v", c.name, got, c.want)
		}
	}
	// Attention that outlasts the transfer hides it.
	fast := slow
	fast.CubeLinkBW = 1e12
	cfg := base
	cfg.Mode, cfg.TQ, cfg.C, cfg.P = Prefill, 2, 2, 1
	if got, want := simulate(t, fast, cfg, 0), read+2*attend(12)+write; math.Abs(got-want) > 1e-6 {
		t.Errorf("hidden transfer: %v ns, want %v", got, want)
	}
}

// Twice the speed everywhere is half the time, and no single improvement makes a case slower.
func TestSimulateScales(t *testing.T) {
	for _, c := range []Config{{Mode: Prefill, SKV: 8192, TQ: 512, KVHeads: 1, HeadDim: 128, Group: 8, C: 8, P: 8},
		{Mode: Decode, SKV: 8192, TQ: 1, KVHeads: 1, HeadDim: 128, Group: 8, C: 8, P: 8}} {
		for k := range Cases() {
			before := simulate(t, DefaultTopology(), c, k)
			if again := simulate(t, DefaultTopology(), c, k); again != before {
				t.Errorf("%s case %d: %v, then %v", c.Mode, k, before, again)
			}
			half := DefaultTopology()
			for _, f := range half.fields() {
				if f.zero {
					*f.v /= 2
				} else {
					*f.v *= 2
				}
			}
			if got := simulate(t, half, c, k); math.Abs(got-before/2) > 1e-9*before {
				t.Errorf("%s case %d: %v at double speed, %v before", c.Mode, k, got, before)
			}
			for i := range half.fields() {
				one := DefaultTopology()
				*one.fields()[i].v = *half.fields()[i].v
				if got := simulate(t, one, c, k); got > before*(1+1e-12) {
					t.Errorf("%s case %d: better %s makes %v of %v", c.Mode, k, one.fields()[i].key, got, before)
				}
			}
		}
	}
}

// A schedule that cannot end is an error, not a time.
func TestSimulateNoticesDeadlock(t *testing.T) {
	s, err := New(Config{Mode: Decode, SKV: 4, TQ: 1, KVHeads: 1, HeadDim: 1, Group: 1, C: 1, P: 2}, Cases()[2])
	if err != nil {
		t.Fatal(err)
	}
	s.ranks[1].ops = s.ranks[1].ops[:2]
	if _, err := slow.Simulate(s); err == nil || !strings.Contains(err.Error(), "rank 0 waits for ever") {
		t.Errorf("%v", err)
	}
}

func TestReadTopology(t *testing.T) {
	b, err := json.Marshal(DefaultTopology())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ReadTopology(strings.NewReader(string(b))); err != nil || got != DefaultTopology() {
		t.Errorf("%+v %v", got, err)
	}
	for _, c := range []struct{ name, text, want string }{
		{"empty", "", "line 1 column 1"},
		{"a list", "[]", "line 1 column"},
		{"missing key", `{"pe_flops":1}`, `"pe_mem_bw" is missing`},
		{"null", strings.Replace(string(b), `"pe_mem_bw":256000000000`, `"pe_mem_bw":null`, 1), `"pe_mem_bw" is missing`},
		{"misspelt key", strings.Replace(string(b), "{", `{"pe_memory_bw":1,`, 1), `"pe_memory_bw" is unknown`},
		{"zero bandwidth", strings.Replace(string(b), "128000000000", "0", 1), "pe_link_bw is 0"},
		{"negative latency", strings.Replace(string(b), `_ns":500`, `_ns":-1`, 1), "cube_link_latency_ns is -1"},
		{"number as text", "{\n \"pe_flops\": \"8e12\"}", "line 2 column"},
		{"cut off", "{\n \"pe_flops\": 1,\n", "line 2 column 16"},
	} {
		if _, err := ReadTopology(strings.NewReader(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q in it", c.name, err, c.want)
		}
	}
	if _, err := (Topology{}).Simulate(nil); err == nil {
		t.Error("a topology of zeros")
	}
}
