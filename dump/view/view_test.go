package view

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice/dump"
	"sluice/dump/dumptest"
)

const (
	droppedTrace  = "../testdata/qwen-dropped.route.csv"
	plainTrace    = "../testdata/qwen.route.csv"
	clusteredDump = "../testdata/clustered-288.sel.bin"
)

type count struct {
	picks, hit, dropped, known int
	weight                     float64
	bytes                      int64
}

func (n *count) add(r *dump.TraceRow) {
	n.picks++
	n.bytes += r.ExpertBytes
	if r.Residency != dump.Miss {
		n.hit++
	}
	if r.Dropped {
		n.dropped++
	}
	if !r.WeightUnknown {
		n.known++
		n.weight += r.Weight
	}
}

// counts of a trace of one turn that begins at position 0, made without this package.
type counts struct {
	expert map[[2]int]*count // layer, expert
	tick   map[int]*count
	first  map[int]struct{ step, expert int } // by layer: a row of the first token
	total  count
}

// at is an expert's count, zero where it was never picked.
func (c *counts) at(layer, expert int) count {
	if n := c.expert[[2]int{layer, expert}]; n != nil {
		return *n
	}
	return count{}
}

func countTrace(t *testing.T, path string) counts {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := dump.NewTraceReader(f)
	if err != nil {
		t.Fatal(err)
	}
	c := counts{expert: map[[2]int]*count{}, tick: map[int]*count{}, first: map[int]struct{ step, expert int }{}}
	var row dump.TraceRow
	for r.Next(&row) == nil {
		if row.Turn != 0 {
			t.Fatal("the trace has several turns")
		}
		at := [2]int{row.Layer, row.Expert}
		if c.expert[at] == nil {
			c.expert[at] = &count{}
		}
		if c.tick[row.Step] == nil {
			c.tick[row.Step] = &count{}
		}
		if _, ok := c.first[row.Layer]; !ok {
			c.first[row.Layer] = struct{ step, expert int }{row.Step, row.Expert}
		}
		c.expert[at].add(&row)
		c.tick[row.Step].add(&row)
		c.total.add(&row)
	}
	return c
}

func countDump(t *testing.T, path string) map[[2]int]int {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, out := dump.NewSelReader(f), map[[2]int]int{}
	for {
		rec, err := r.Next()
		if err != nil {
			return out
		}
		for _, e := range rec.Expert {
			out[[2]int{rec.Layer, int(e)}]++
		}
	}
}

func total(v []uint32) (n int) {
	for _, x := range v {
		n += int(x)
	}
	return n
}

func totalOf(v []float64) (n float64) {
	for _, x := range v {
		n += x
	}
	return n
}

// TestTrace: every table is the trace's rows, counted another way, at every coarseness.
func TestTrace(t *testing.T) {
	for _, path := range []string{plainTrace, droppedTrace} {
		want := countTrace(t, path)
		for _, cells := range []int{0, 100000, 9000, 64, 1} {
			rec := analyseFile(t, path, Options{Cells: cells})
			tb, g := &rec.tables, rec.g
			name := fmt.Sprintf("%s in %d cells", filepath.Base(path), cells)
			if int(rec.Records) != want.total.picks || len(rec.layers) != 48 || rec.nExpert != 128 {
				t.Fatalf("%s: %d records, %d layers, %d experts", name, rec.Records, len(rec.layers), rec.nExpert)
			}
			for what, v := range map[string][]uint32{"picks": tb.picks, "slots": tb.slots, "parts": tb.pPicks} {
				if total(v) != want.total.picks {
					t.Errorf("%s: %s add up to %d, the trace has %d rows", name, what, total(v), want.total.picks)
				}
			}
			for what, v := range map[string][]uint32{"by expert": tb.dropped, "by time": tb.tDropped, "by both": tb.pDropped} {
				if total(v) != want.total.dropped {
					t.Errorf("%s: dropped %s %d, want %d", name, what, total(v), want.total.dropped)
				}
			}
			if n := total(tb.hit) + total(tb.prefetch); n != want.total.hit || n != total(tb.tHit)+total(tb.tPrefetch) || want.total.picks-n != total(tb.pMiss) {
				t.Errorf("%s: %d hits, want %d", name, n, want.total.hit)
			}
			if total(tb.known) != want.total.known || math.Abs(totalOf(tb.weight)-want.total.weight) > 1e-6 || totalOf(tb.bytes) != float64(want.total.bytes) ||
				totalOf(tb.tBytes) != float64(want.total.bytes) || math.Abs(totalOf(tb.tWeight)-want.total.weight) > 1e-6 {
				t.Errorf("%s: weights %v of %d, bytes %v; want %v of %d, %d", name, totalOf(tb.weight), total(tb.known), totalOf(tb.bytes), want.total.weight, want.total.known, want.total.bytes)
			}
			got := make([]int, g.timeBins)
			for i, n := range tb.slots {
				got[i%int(g.timeBins)] += int(n)
			}
			for tick, n := range want.tick {
				got[int64(tick)/g.timeTicks] -= n.picks
			}
			for bin, n := range got {
				if n != 0 {
					t.Errorf("%s: bin %d is off by %d", name, bin, n)
				}
			}
		}
		rec := analyseFile(t, path, Options{})
		for il := range 48 {
			for e := range 128 {
				n := want.at(il, e)
				if at := il*128 + e; int(rec.tables.picks[at]) != n.picks || int(rec.tables.dropped[at]) != n.dropped || rec.tables.bytes[at] != float64(n.bytes) {
					t.Errorf("layer %d expert %d: %d picks, %d dropped, want %+v", il, e, rec.tables.picks[at], rec.tables.dropped[at], n)
				}
			}
		}
	}
}

func TestDump(t *testing.T) {
	want := countDump(t, clusteredDump)
	rec := analyseFile(t, clusteredDump, Options{})
	for at, n := range want {
		if got := rec.tables.picks[rec.x.index[at[0]]*rec.g.expertCells+at[1]]; int(got) != n {
			t.Errorf("layer %d expert %d: %d, want %d", at[0], at[1], got, n)
		}
	}
	if uint64(total(rec.tables.picks)) != rec.x.slots || rec.Records*8 != rec.x.slots || rec.x.ticks != int64(rec.Records)/2 {
		t.Errorf("%d records, %d slots, %d tokens", rec.Records, rec.x.slots, rec.x.ticks)
	}
}

// record writes a dump by hand: per token and layer a list of experts.
func record(layers ...[][]int) []byte {
	var b []byte
	for t := range layers[0] {
		for il, tokens := range layers {
			b = append(b, byte(il), byte(len(tokens[t])))
			for _, e := range tokens[t] {
				b = append(b, byte(e), byte(e>>8), 0, 0, 0x80, 0x3e) // weight 0.25
			}
		}
	}
	return b
}

func analyse(t *testing.T, data string, side *dump.SelMeta) (*Recording, error) {
	t.Helper()
	return Analyse(context.Background(), "x", strings.NewReader(data), side, Options{})
}

// TestLayers: entropy and reuse of routings whose figures are known.
func TestLayers(t *testing.T) {
	even, one, half := make([][]int, 8), make([][]int, 8), make([][]int, 8)
	for i := range even {
		even[i] = []int{2 * i % 8, (2*i + 1) % 8}
		one[i] = []int{3}
		half[i] = []int{i % 8, (i + 1) % 8}
	}
	rec, err := analyse(t, string(record(even, one, half)), &dump.SelMeta{NExpert: 16})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []Layer{
		{Layer: 0, Tokens: 8, Slots: 16, Distinct: 8, Entropy: 3, Effective: 8, Reuse: 0, Resident: 1},
		{Layer: 1, Tokens: 8, Slots: 8, Distinct: 1, Entropy: 0, Effective: 1, Reuse: 1, Resident: 1},
		{Layer: 2, Tokens: 8, Slots: 16, Distinct: 8, Entropy: 3, Effective: 8, Reuse: 0.5, Resident: 1},
	} {
		if got := rec.Layers()[i]; got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	if rec.nExpert != 16 || !strings.Contains(strings.Join(rec.Notes, ";"), "varies, 1 to 2") {
		t.Errorf("%d experts, notes %q", rec.nExpert, rec.Notes)
	}
	single, err := analyse(t, string(record([][]int{{1, 2}})), nil)
	if err != nil || single.Layers()[0].Reuse != -1 {
		t.Errorf("a single token: %+v %v", single, err)
	}
}

// TestClock: turns stand behind each other, whatever positions they begin at.
func TestClock(t *testing.T) {
	var k clock
	for i, c := range []struct {
		turn, step, nth int
		tick            int64
	}{{0, 0, 0, 0}, {0, 1, 0, 1}, {0, 0, 0, 0}, {0, 5, 0, 5}, {3, 100, 1, 6}, {3, 101, 1, 7}, {3, 40, 2, 8}, {4, 0, 3, 9}} {
		if tick, nth := k.at(c.turn, c.step); tick != c.tick || nth != c.nth {
			t.Errorf("%d: tick %d of turn %d, want %+v", i, tick, nth, c)
		}
	}
}

// TestPassClock: the rows of a pass stand behind those of the pass before, in the same places in each layer.
func TestPassClock(t *testing.T) {
	var p passClock
	for i, c := range []struct {
		pass  int64
		layer int
		tick  int64
	}{{1, 0, 0}, {1, 0, 1}, {1, 1, 0}, {1, 1, 1}, {2, 0, 2}, {2, 1, 2}, {4, 0, 3}, {4, 0, 4}, {4, 0, 5}, {5, 0, 6}} {
		if tick := p.at(c.pass, c.layer); tick != c.tick {
			t.Errorf("%d: tick %d, want %+v", i, tick, c)
		}
	}
}

// A trace of several sequences has their tokens beside each other, and reuse is told within a turn.
func TestSequences(t *testing.T) {
	var b strings.Builder
	b.WriteString("# route_trace v1\n# n_layer=2 n_expert=8 n_expert_used=1\nturn,phase,step,layer,slot,expert,weight,residency,expert_bytes,dropped,seq,pass\n")
	row := func(turn, phase, step, layer, expert, seq, pass int) {
		fmt.Fprintf(&b, "%d,%d,%d,%d,0,%d,1,1,0,0,%d,%d\n", turn, phase, step, layer, expert, seq, pass)
	}
	for pass := range 3 { // one decodes and always picks expert 1, one takes its prompt in chunks of two and always picks 2
		for layer := range 2 {
			row(0, 1, 50+pass, layer, 1, 0, pass+1)
			row(1, 0, 2*pass, layer, 2, 7, pass+1)
			row(1, 0, 2*pass+1, layer, 2, 7, pass+1)
		}
	}
	rec, err := analyse(t, b.String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if rec.x.ticks != 9 || rec.x.turns != 2 || len(rec.x.marks) != 1 || rec.x.marks[0] != 1 || rec.Records != 18 {
		t.Errorf("%d ticks, %d turns, marks %v, %d records", rec.x.ticks, rec.x.turns, rec.x.marks, rec.Records)
	}
	for _, l := range rec.Layers() {
		if l.Reuse != 1 || l.Tokens != 9 || l.Distinct != 2 {
			t.Errorf("%+v", l)
		}
	}
	if n := total(rec.tables.compared); n != 2*(2+5) {
		t.Errorf("%d compared", n)
	}
}

func TestGrid(t *testing.T) {
	for _, c := range []struct{ layers, experts, ticks, cells int }{
		{48, 128, 156, DefaultCells}, {5, 16, 1, DefaultCells}, {256, 65536, 1e6, DefaultCells}, {1024, 65536, 3, DefaultCells}, {94, 128, 1e7, DefaultCells / 16}, {1, 1, 1e9, 1},
	} {
		g := newGrid(c.layers, c.experts, int64(c.ticks), c.cells)
		if g.expertCells*g.perCell < c.experts || g.timeBins*g.timeTicks < int64(c.ticks) || g.partBins*g.partTicks < int64(c.ticks) || g.timeBins > maxBins || g.partBins > maxBins {
			t.Errorf("%+v: %+v does not cover it", c, g)
		}
		room := max(c.cells, 8*c.layers) // a layer has one cell at least
		if n := c.layers * g.expertCells; n > room/4+c.layers {
			t.Errorf("%+v: %+v: %d cells of experts", c, g, n)
		}
		if n := int64(c.layers*g.expertCells) * g.partBins; n > int64(room+c.layers) {
			t.Errorf("%+v: %+v: %d cells of experts over time", c, g, n)
		}
	}
}

const header = "# route_trace v1\n# model=m arch=a n_layer=4 n_expert=8 n_expert_used=2\nturn,phase,step,layer,slot,expert,weight,residency,expert_bytes\n"

// TestFaults: what is wrong with an input is said, and where; what is only incomplete is shown with a note.
func TestFaults(t *testing.T) {
	torn := dumptest.Read(t, "truncated-288.sel.bin")
	for _, c := range []struct {
		name, data string
		side       *dump.SelMeta
		want       string
	}{
		{"empty", "", nil, "empty file"},
		{"text", "hello\nworld\n", nil, "text, so no selection dump"},
		{"torn at once", string(torn[:5]), nil, "0 whole records"},
		{"n_sel 0", "\x00\x00\x01", nil, "n_sel 0"},
		{"beyond the sidecar", string(record([][]int{{1, 2}, {9, 3}})), &dump.SelMeta{NExpert: 8}, "record 1 before byte 0x1c: expert 9, the sidecar says 8 experts"},
		{"no rows", header, nil, "a header without rows"},
		{"missing column", strings.Replace(header, ",residency", "", 1) + "0,0,0,0,0,1,0.5,10\n", nil, "residency"},
		{"expert beyond n_expert", header + "0,0,0,0,0,8,0.5,1,10\n", nil, "line 4"},
		{"layer too high", strings.Replace(header, "n_layer=4 ", "", 1) + "0,0,0,2000,0,1,0.5,1,10\n", nil, "layers below 1024"},
		{"expert too high", strings.Replace(header, "n_expert=8 ", "", 1) + "0,0,0,0,0,65536,0.5,1,10\n", nil, "line 4"},
		{"one endless token", header + strings.Repeat("0,0,0,0,0,1,0.5,1,10\n", maxSlots+1), nil, "rows of one token and layer"},
	} {
		if rec, err := analyse(t, c.data, c.side); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %+v %v, want %q", c.name, rec, err, c.want)
		}
	}
	for _, c := range []struct{ name, data, want string }{
		{"torn dump", string(torn), "torn tail"},
		{"torn trace", header + "0,0,0,0,0,1,0.5,1,10\n0,0,0,0,1,2", "torn tail"},
		{"nan weight", header + "0,0,0,0,0,1,nan,1,10\n", "1 weights are no number"},
	} {
		rec, err := analyse(t, c.data, nil)
		if err != nil || !strings.Contains(strings.Join(rec.Notes, "; "), c.want) {
			t.Errorf("%s: %v, want a note of %q", c.name, err, c.want)
		}
	}
	far, err := analyse(t, header+"0,0,0,0,0,1,0.5,1,10\n0,1,2147483647,0,0,1,0.5,1,10\n1,0,0,0,0,1,0.5,1,10\n", nil)
	if err != nil || far.x.ticks != 1<<31+1 || len(far.tables.tokens) != 1*maxBins {
		t.Errorf("a far position: %+v %v", far, err)
	}
	crlf, err := analyse(t, strings.ReplaceAll(header+"0,0,0,0,0,1,0.5,1,10\n0,1,1,3,0,7,0.5,0,10\n", "\n", "\r\n"), nil)
	if err != nil || crlf.x.slots != 2 || len(crlf.layers) != 2 {
		t.Errorf("CRLF: %+v %v", crlf, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	long := strings.NewReader(strings.Repeat(string(record([][]int{{1}})), 1<<16))
	if _, err := Analyse(ctx, "x", long, nil, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestWrite: the page is the same each time, holds nothing that loads, and no name can leave its place.
func TestWrite(t *testing.T) {
	evil := "</script><script>alert(1)</script>"
	rec, err := analyse(t, string(record([][]int{{1, 2}})), &dump.SelMeta{Model: evil, NExpert: 4})
	if err != nil {
		t.Fatal(err)
	}
	rec.Name = evil
	var a, b bytes.Buffer
	if err := errors.Join(Write(&a, []*Recording{rec, analyseFile(t, droppedTrace, Options{})}), Write(&b, []*Recording{rec, analyseFile(t, droppedTrace, Options{})})); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a.Bytes(), b.Bytes()) {
		t.Error("two pages of the same recordings differ")
	}
	if bytes.Contains(a.Bytes(), []byte("<script>alert")) {
		t.Error("a name has become markup")
	}
	for _, load := range []string{"http:", "https:", "src=", "@import", "url("} {
		if bytes.Contains(a.Bytes(), []byte(load)) {
			t.Errorf("the page has %q", load)
		}
	}
	if err := Write(&a, nil); err == nil {
		t.Error("a page of nothing")
	}
}

func FuzzAnalyse(f *testing.F) {
	f.Add([]byte(header + "0,0,0,0,0,1,0.5,1,10\n0,1,1,3,0,7,0.5,0,10\n"))
	f.Add(record([][]int{{1, 2}, {2, 3}}, [][]int{{0}, {700}}))
	f.Fuzz(func(t *testing.T, data []byte) {
		rec, err := Analyse(context.Background(), "fuzz", bytes.NewReader(data), nil, Options{Cells: 4096})
		if err != nil {
			return
		}
		if n := total(rec.tables.picks); uint64(n) != rec.x.slots || n != total(rec.tables.slots) || n != total(rec.tables.pPicks) {
			t.Errorf("%d slots, counted %d", rec.x.slots, n)
		}
		var b bytes.Buffer
		if err := Write(&b, []*Recording{rec}); err != nil {
			t.Error(err)
		}
	})
}
