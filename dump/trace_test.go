package dump

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"sluice/dump/dumptest"
)

var nan32 = float32(math.NaN())

func TestTraceGoldenText(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.csv")
	must(t, os.WriteFile(path, []byte(strings.Repeat("an older and longer trace\n", 100)), 0o666))
	w, err := CreateTrace(path, TraceMeta{
		Model: "My Model=v1 100%.gguf", Arch: "qwen3moe", NLayer: 2, NExpert: 8, NUsed: 2,
		Layers: []TraceLayer{{0, 1000, 5000}, {1, 900, 4000}},
		Extra:  [][2]string{{"cache_mb", "64"}, {"drop", "0.75 in decode"}},
	})
	must(t, err)
	must(t, w.Call(&TraceCall{
		Turn: 0, Phase: Prefill, Pos0: 0, Layer: 0, T: 3, K: 2,
		Expert:   []int32{5, 1, 1, 5, 2, 1},
		Weight:   []float32{0.75, 0.25, 0.9, 0.1, 1e-5, nan32},
		Resident: []uint8{0, 0, 1, 0, 0, 2, 0, 0}, ReadBytes: []int64{0, 1000, 0, 0, 0, 7, 0, 0},
	}))
	must(t, w.Call(&TraceCall{
		Turn: 1, Phase: Decode, Pos0: 3, Layer: 1, T: 1, K: 2,
		Expert: []int32{1, 7}, Weight: []float32{0.123456789, 0.0625},
		Resident: make([]uint8, 8), ReadBytes: []int64{0, 900, 0, 0, 0, 0, 0, 0}, Dropped: []bool{false, true},
	}))
	must(t, w.Call(&TraceCall{Turn: 1, Phase: Decode, Pos0: 4, Layer: 1, T: 1, K: 1, Expert: []int32{3}})) // all unknown
	must(t, w.Call(&TraceCall{Layer: 1}))                                                                  // no token
	if w.Rows() != 9 {
		t.Errorf("Rows() = %d", w.Rows())
	}
	must(t, w.Close())
	const want = `# route_trace v1
# model=My%20Model%3Dv1%20100%25.gguf arch=qwen3moe n_layer=2 n_expert=8 n_expert_used=2
# layer=0 expert_bytes=1000 dense_bytes=5000
# layer=1 expert_bytes=900 dense_bytes=4000
# cache_mb=64
# drop=0.75%20in%20decode
turn,phase,step,layer,slot,expert,weight,residency,expert_bytes,dropped
0,0,0,0,0,5,0.75,2,7,0
0,0,0,0,1,1,0.25,0,1000,0
0,0,1,0,0,1,0.9,0,0,0
0,0,1,0,1,5,0.1,2,0,0
0,0,2,0,0,2,1e-05,1,0,0
0,0,2,0,1,1,nan,0,0,0
1,1,3,1,0,1,0.123457,0,900,0
1,1,3,1,1,7,0.0625,0,0,1
1,1,4,1,0,3,nan,1,0,0
`
	if d := cmp.Diff(want, string(readFile(t, path))); d != "" {
		t.Error(d)
	}
	wantErr(t, w.Call(&TraceCall{T: 1, K: 1, Expert: []int32{1}}), path, "closed")
}

func TestTraceNilWriter(t *testing.T) {
	var w *TraceWriter
	must(t, w.Call(nil))
	must(t, w.Flush())
	must(t, w.Close())
	if w.Rows() != 0 || w.Notes() != nil {
		t.Error("nil writer recorded something")
	}
}

// What C's printf("%.6g") prints, written down by hand.
func TestWeightIsFormattedAsC(t *testing.T) {
	for _, c := range []struct {
		w    float32
		want string
	}{
		{0, "0"}, {float32(math.Copysign(0, -1)), "-0"}, {1, "1"}, {0.5, "0.5"}, {0.1, "0.1"}, {1.0 / 3, "0.333333"}, {2.0 / 3, "0.666667"},
		{0.0001, "0.0001"}, {0.00012345678, "0.000123457"}, {0.00009999999, "0.0001"}, {0.00001, "1e-05"}, {1.5e-5, "1.5e-05"},
		{1.2345678e-7, "1.23457e-07"}, {1e-10, "1e-10"}, {1e-38, "1e-38"}, {1.4e-45, "1.4013e-45"}, {3.4028235e38, "3.40282e+38"},
		{10, "10"}, {100000, "100000"}, {123456, "123456"}, {1234567, "1.23457e+06"}, {999999.5, "1e+06"}, {999999.4, "999999"}, {1e6, "1e+06"},
		{120000, "120000"}, {0.9999999, "1"}, {0.99999946, "0.999999"}, {0.25, "0.25"}, {0.0835035, "0.0835035"}, {123.456, "123.456"},
		{nan32, "nan"}, {float32(math.Inf(1)), "inf"},
	} {
		if got := string(appendWeight(nil, c.w)); got != c.want {
			t.Errorf("%v (%#x): %q, want %q", c.w, math.Float32bits(c.w), got, c.want)
		}
	}
}

// The same against Python, whose '%.6g' is C's, over all exponents.
func TestWeightIsFormattedAsPython(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 in PATH")
	}
	rng := rand.New(rand.NewPCG(3, 4))
	var bits, want bytes.Buffer
	for i := range 20000 {
		w := math.Float32frombits(rng.Uint32() &^ (1 << 31))
		if i%2 == 0 {
			w = float32(rng.IntN(2000000)) / float32(math.Pow10(rng.IntN(12))) // ties and short decimals
		}
		if math.IsNaN(float64(w)) || math.IsInf(float64(w), 0) {
			continue
		}
		fmt.Fprintln(&bits, math.Float32bits(w))
		want.Write(append(appendWeight(nil, w), '\n'))
	}
	cmd := exec.Command(python, "-c", `import struct,sys
for l in sys.stdin: print('%.6g' % struct.unpack('<f', struct.pack('<I', int(l)))[0])`)
	cmd.Stdin = &bits
	got, err := cmd.Output()
	must(t, err)
	g, w := strings.Split(string(got), "\n"), strings.Split(want.String(), "\n")
	if len(g) != len(w) {
		t.Fatalf("%d lines, want %d", len(w), len(g))
	}
	for i := range g {
		if strings.TrimSpace(g[i]) != w[i] {
			t.Fatalf("%q, python prints %q", w[i], g[i])
		}
	}
}

func TestTraceCallIsCheckedBeforeWriting(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.csv")
	w, err := CreateTrace(path, TraceMeta{NLayer: 4, NExpert: 8, NUsed: 2})
	must(t, err)
	must(t, w.Flush())
	before := readFile(t, path)
	for _, c := range []struct {
		edit func(c *TraceCall)
		want string
	}{
		{func(c *TraceCall) { c.Turn = -1 }, "turn -1"},
		{func(c *TraceCall) { c.Phase = 2 }, "phase 2, want 0 (prefill) or 1 (decode)"},
		{func(c *TraceCall) { c.Pos0 = -1 }, "positions from -1"},
		{func(c *TraceCall) { c.Pos0 = math.MaxInt }, "positions from"},
		{func(c *TraceCall) { c.Layer = -1 }, "layer -1, want 0..3"},
		{func(c *TraceCall) { c.Layer = 4 }, "layer 4, want 0..3"},
		{func(c *TraceCall) { c.K = 0 }, "ragged selection: 4 experts for 2 tokens of 0"},
		{func(c *TraceCall) { c.T = 3 }, "4 experts for 3 tokens of 2"},
		{func(c *TraceCall) { c.T = math.MaxInt }, "ragged"},
		{func(c *TraceCall) { c.T = -2; c.K = -2 }, "ragged"},
		{func(c *TraceCall) { c.Weight = c.Weight[:3] }, "3 weights for 4 experts"},
		{func(c *TraceCall) { c.Dropped = c.Dropped[:3] }, "3 drop flags for 4 experts"},
		{func(c *TraceCall) { c.Expert[3] = 8 }, "position 11, slot 1: expert 8, want 0..7"},
		{func(c *TraceCall) { c.Expert[0] = -1 }, "position 10, slot 0: expert -1"},
		{func(c *TraceCall) { c.Resident = c.Resident[:3] }, "expert 3, want 0..2"},
		{func(c *TraceCall) { c.ReadBytes = c.ReadBytes[:2] }, "expert 2, want 0..1"},
		{func(c *TraceCall) { c.Resident[3] = 3 }, "expert 3: residency 3"},
		{func(c *TraceCall) { c.ReadBytes[3] = -5 }, "expert 3: -5 bytes"},
		{func(c *TraceCall) { c.Weight[2] = -0.5 }, "position 11, slot 0: negative weight -0.5"},
		{func(c *TraceCall) { c.Weight[2] = float32(math.Inf(-1)) }, "negative weight"},
	} {
		call := TraceCall{Pos0: 10, Layer: 3, T: 2, K: 2, Expert: []int32{0, 1, 2, 3}, Weight: make([]float32, 4),
			Resident: make([]uint8, 8), ReadBytes: make([]int64, 8), Dropped: make([]bool, 4)}
		must(t, w.check(&call))
		c.edit(&call)
		wantErr(t, w.Call(&call), path, c.want)
	}
	must(t, w.Close())
	if w.Rows() != 0 || !bytes.Equal(readFile(t, path), before) {
		t.Error("a refused call left something behind")
	}
}

func TestTracePreambleIsChecked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.csv")
	for want, m := range map[string]TraceMeta{
		"n_expert -1":                       {NExpert: -1},
		"n_expert 70000":                    {NExpert: 70000},
		"layer 1: expert_bytes -3":          {Layers: []TraceLayer{{1, -3, 0}}},
		"layer -1":                          {Layers: []TraceLayer{{-1, 0, 0}}},
		`"n_expert" has a meaning`:          {Extra: [][2]string{{"n_expert", "3"}}},
		`"layer" has a meaning`:             {Extra: [][2]string{{"layer", "3"}}},
		`extra key "": empty`:               {Extra: [][2]string{{"", "3"}}},
		`extra key "a b": empty, or has`:    {Extra: [][2]string{{"a b", "3"}}},
		`extra key "a=b"`:                   {Extra: [][2]string{{"a=b", "3"}}},
		`extra key "a" twice`:               {Extra: [][2]string{{"a", "1"}, {"a", "2"}}},
		"4097 extra keys":                   {Extra: make([][2]string, 4097)},
		"preamble line of 65546 bytes":      {Extra: [][2]string{{"long", strings.Repeat("x", 65538)}}},
		"preamble line of 70052 bytes, at ": {Model: strings.Repeat("x", 70000)},
	} {
		_, err := CreateTrace(path, m)
		wantErr(t, err, path, "preamble", want)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("refused, yet created")
	}
}

func readTrace(r io.Reader) (*TraceReader, []TraceRow, error) {
	tr, err := NewTraceReader(r)
	if err != nil {
		return nil, nil, err
	}
	var rows []TraceRow
	for {
		var row TraceRow
		if err := tr.Next(&row); err != nil {
			if again := tr.Next(&row); again != err {
				return tr, rows, fmt.Errorf("error does not stay: %v, then %v", err, again)
			}
			return tr, rows, err
		}
		extra := row.Extra
		row.Extra = nil
		for _, f := range extra {
			row.Extra = append(row.Extra, bytes.Clone(f))
		}
		rows = append(rows, row)
	}
}

// Whatever a writer takes comes back: names of any bytes, weights to six digits, the bytes on one row per expert.
func TestTraceRoundTrip(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for round := range 30 {
		name := make([]byte, rng.IntN(20))
		for i := range name {
			name[i] = byte(rng.Uint32())
		}
		nExpert, nLayer := 1+rng.IntN(300), 1+rng.IntN(5)
		meta := TraceMeta{Model: string(name), Arch: "日本 \u2028\u00a0arch", NLayer: nLayer, NExpert: nExpert, NUsed: 1 + rng.IntN(nExpert),
			Extra: [][2]string{{"path", "C:\\Program Files\\x=%20%.gguf"}, {"empty", ""}, {"名", "\x00\xff\n\r\n#,"}}}
		for l := range nLayer {
			meta.Layers = append(meta.Layers, TraceLayer{l, rng.Int64(), rng.Int64()})
		}
		path := filepath.Join(t.TempDir(), strconv.Itoa(round))
		w, err := CreateTrace(path, meta)
		must(t, err)
		var want []TraceRow
		for range rng.IntN(20) {
			c := TraceCall{Turn: rng.IntN(3), Phase: rng.IntN(2), Pos0: rng.IntN(1000), Layer: rng.IntN(nLayer), T: rng.IntN(20), K: 1 + rng.IntN(8)}
			c.Resident, c.ReadBytes = make([]uint8, nExpert), make([]int64, nExpert)
			for e := range nExpert {
				c.Resident[e], c.ReadBytes[e] = uint8(rng.IntN(3)), rng.Int64()
			}
			read := make(map[int32]bool)
			for i := range c.T * c.K {
				c.Expert = append(c.Expert, rng.Int32N(int32(nExpert)))
				c.Weight = append(c.Weight, rng.Float32()*float32(math.Pow10(rng.IntN(20)-15)))
				c.Dropped = append(c.Dropped, rng.IntN(2) == 0)
				e := c.Expert[i]
				row := TraceRow{Turn: c.Turn, Phase: c.Phase, Step: c.Pos0 + i/c.K, Layer: c.Layer, Slot: i % c.K, Expert: int(e),
					Weight: float64(c.Weight[i]), Residency: int(c.Resident[e]), Dropped: c.Dropped[i]}
				if !read[e] {
					read[e] = true
					row.ExpertBytes = c.ReadBytes[e]
				}
				want = append(want, row)
			}
			must(t, w.Call(&c))
		}
		must(t, w.Close())
		tr, got, err := readTrace(iotest.HalfReader(bytes.NewReader(readFile(t, path))))
		if err != io.EOF || tr.Rows() != w.Rows() {
			t.Fatal(tr.Rows(), w.Rows(), err)
		}
		if d := cmp.Diff(meta, tr.Meta()); d != "" {
			t.Fatal(d)
		}
		if len(got) != len(want) {
			t.Fatalf("%d rows, want %d", len(got), len(want))
		}
		for i := range want {
			if math.Abs(got[i].Weight-want[i].Weight) > 5e-6*want[i].Weight {
				t.Fatalf("row %d: weight %v, want %v", i, got[i].Weight, want[i].Weight)
			}
			got[i].Weight = want[i].Weight
			if d := cmp.Diff(want[i], got[i]); d != "" {
				t.Fatalf("row %d: %s", i, d)
			}
		}
	}
}

const (
	header9 = "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes\n"
	row9    = "0,1,28,3,0,60,0.215444,2,3059712\n"
)

func TestTraceReaderTakes(t *testing.T) {
	row := TraceRow{Phase: 1, Step: 28, Layer: 3, Expert: 60, Weight: 0.215444, Residency: 2, ExpertBytes: 3059712}
	dropped, unknown := row, row
	dropped.Dropped = true
	unknown.WeightUnknown = true
	for name, c := range map[string]struct {
		in   string
		want []TraceRow
	}{
		"no preamble":       {header9 + row9, []TraceRow{row}},
		"no rows":           {header9, nil},
		"no end of line":    {header9 + row9[:len(row9)-1], []TraceRow{row}},
		"crlf":              {strings.ReplaceAll("# route_trace v1\n"+header9+row9+"\n"+row9, "\n", "\r\n"), []TraceRow{row, row}},
		"blank lines":       {"\n\n" + header9 + "\n" + row9 + "\n\n" + row9 + "\n", []TraceRow{row, row}},
		"byte order mark":   {"\xef\xbb\xbf# route_trace v1\n" + header9 + row9, []TraceRow{row}},
		"with dropped":      {header9[:len(header9)-1] + ",dropped\n" + row9[:len(row9)-1] + ",1\n", []TraceRow{dropped}},
		"dropped empty":     {header9[:len(header9)-1] + ",dropped\n" + row9[:len(row9)-1] + ",\n", []TraceRow{row}},
		"reordered":         {"weight,dropped,expert,slot,layer,step,phase,turn,expert_bytes,residency\n0.215444,1,60,0,3,28,1,0,3059712,2\n", []TraceRow{dropped}},
		"comment in rows":   {header9 + row9 + "# summary rows=1\n" + row9, []TraceRow{row, row}},
		"exponent":          {header9 + strings.Replace(row9, "0.215444", "2.15444e-01", 1), []TraceRow{row}},
		"unknown, nan":      {header9 + strings.Replace(row9, "0.215444", "nan", 1), []TraceRow{unknown}},
		"unknown, -NaN":     {header9 + strings.Replace(row9, "0.215444", "-NaN", 1), []TraceRow{unknown}},
		"unknown, infinite": {header9 + strings.Replace(row9, "0.215444", "inf", 1), []TraceRow{unknown}},
	} {
		t.Run(name, func(t *testing.T) {
			_, rows, err := readTrace(strings.NewReader(c.in))
			if err != io.EOF || len(rows) != len(c.want) {
				t.Fatalf("%d rows, %v", len(rows), err)
			}
			for i, r := range rows {
				if r.WeightUnknown && (math.IsNaN(r.Weight) || math.IsInf(r.Weight, 1)) {
					r.Weight = row.Weight
				}
				if d := cmp.Diff(c.want[i], r); d != "" {
					t.Error(d)
				}
			}
		})
	}
}

func TestTraceReaderKeepsWhatItDoesNotKnow(t *testing.T) {
	in := `# route_trace v1
# model=a%20b arch=x n_layer=4 n_expert=64 n_expert_used=2 seed=7
# layer=1 expert_bytes=10 dense_bytes=20 kind=moe
# layer=1 expert_bytes=11
# note seed=8 100%=y%zz
gpu,` + strings.TrimSuffix(header9, "\n") + `,note
0,` + strings.TrimSuffix(row9, "\n") + `,hello world
# summary rows=1
1,` + strings.TrimSuffix(row9, "\n") + `,
`
	tr, rows, err := readTrace(strings.NewReader(in))
	if err != io.EOF {
		t.Fatal(err)
	}
	want := TraceMeta{Model: "a b", Arch: "x", NLayer: 4, NExpert: 64, NUsed: 2, Layers: []TraceLayer{{1, 11, 0}},
		Extra: [][2]string{{"seed", "8"}, {"kind", "moe"}, {"100%", "y%zz"}, {"rows", "1"}}}
	if d := cmp.Diff(want, tr.Meta()); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"gpu", "note"}, tr.ExtraColumns()); d != "" {
		t.Error(d)
	}
	if len(tr.Columns()) != 11 || tr.Line() != 9 {
		t.Error(tr.Columns(), tr.Line())
	}
	if d := cmp.Diff([][]byte{[]byte("0"), []byte("hello world")}, rows[0].Extra); d != "" {
		t.Error(d)
	}
	if string(rows[1].Extra[0]) != "1" || string(rows[1].Extra[1]) != "" {
		t.Errorf("%q", rows[1].Extra)
	}
}

func TestTraceReaderErrors(t *testing.T) {
	edit := func(old, new string) string { return header9 + row9 + strings.Replace(row9, old, new, 1) }
	broken := errors.New("cable unplugged")
	for name, c := range map[string]struct {
		in   string
		want []string
	}{
		"empty":           {"", []string{"no header line"}},
		"preamble only":   {"# route_trace v1\n", []string{"no header line in 17 bytes"}},
		"version":         {"# route_trace v2\n" + header9, []string{"line 1", `version "v2", want v1`}},
		"missing columns": {"turn,phase,step,layer,expert,residency,expert_bytes\n", []string{"line 1", "lacks columns: slot, weight"}},
		"no header":       {row9 + row9, []string{"line 1", "lacks columns: turn"}},
		"column twice":    {"turn," + header9, []string{"line 1", `column 2: "turn" twice`}},
		"bad n_expert":    {"#\n# n_expert=many\n" + header9, []string{"line 2", `n_expert: "many" is not a whole number`}},
		"negative layer":  {"# layer=-1 expert_bytes=3\n" + header9, []string{"line 1", `layer: "-1" is negative`}},
		"huge n_expert":   {"# n_expert=99999999999999999999\n" + header9, []string{"is above 65536"}},
		"text":            {edit("60", "sixty"), []string{"line 3", `column 6 (expert): "sixty" is not a whole number`}},
		"fraction":        {edit("28", "2.8"), []string{"line 3", `column 3 (step): "2.8" is not a whole number`}},
		"space":           {edit("28", " 28"), []string{"column 3 (step)"}},
		"quoted":          {edit("28", `"28"`), []string{"column 3 (step)"}},
		"hexadecimal":     {edit("0.215444", "0x1p-2"), []string{`column 7 (weight): "0x1p-2" is not a number`}},
		"weight as text":  {edit("0.215444", "heavy"), []string{"line 3", `column 7 (weight): "heavy" is not a number`}},
		"weight too big":  {edit("0.215444", "1e999"), []string{`column 7 (weight): "1e999" is out of range`}},
		"weight negative": {edit("0.215444", "-0.2"), []string{`column 7 (weight): "-0.2" is negative`}},
		"weight -inf":     {edit("0.215444", "-inf"), []string{`column 7 (weight): "-inf" is negative`}},
		"weight empty":    {edit("0.215444", ""), []string{"column 7 (weight): empty"}},
		"negative":        {edit(",60,", ",-60,"), []string{`line 3: column 6 (expert): "-60" is negative`}},
		"empty field":     {edit(",60,", ",,"), []string{"column 6 (expert): empty"}},
		"phase 2":         {edit("0,1,28", "0,2,28"), []string{`column 2 (phase): "2" is above 1`}},
		"residency 3":     {edit(",2,3059712", ",3,3059712"), []string{`column 8 (residency): "3" is above 2`}},
		"overflow":        {edit("3059712", "9223372036854775808"), []string{"column 9 (expert_bytes)", "is above 9223372036854775807"}},
		"too short":       {edit(",3059712", ""), []string{"line 3", "column 8: row ends after 8 of 9 columns"}},
		"too long":        {edit("3059712", "3059712,0"), []string{"line 3", "column 10: row goes on past the header's 9 columns"}},
		"expert range":    {"# n_expert=60\n" + header9 + row9, []string{"line 3", `column 6 (expert): "60" is above 59`}},
		"layer range":     {"# n_layer=3\n" + header9 + row9, []string{"line 3", `column 4 (layer): "3" is above 2`}},
		"expert absurd":   {edit(",60,", ",65536,"), []string{`column 6 (expert): "65536" is above 65535`}},
		"dropped 2":       {header9[:len(header9)-1] + ",dropped\n" + row9[:len(row9)-1] + ",2\n", []string{`column 10 (dropped): "2" is above 1`}},
		"long row":        {header9 + row9 + strings.Repeat("1", 70000) + "\n", []string{"line 3", "longer than 65536 bytes"}},
		"long preamble":   {"# x=" + strings.Repeat("1", 70000) + "\n" + header9, []string{"line 1", "longer than 65536 bytes"}},
		"comment in rows": {header9 + row9 + "# n_layer=x\n" + row9, []string{"line 3", `n_layer: "x" is not`}},
		"nul":             {header9 + "\x00\x00\n", []string{"line 2", "column 1 (turn)"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := readTrace(strings.NewReader(c.in))
			wantErr(t, err, append(c.want, "dump: trace: ")...)
			if torn := (*TornError)(nil); errors.As(err, &torn) {
				t.Errorf("reported as torn: %v", err)
			}
		})
	}
	_, rows, err := readTrace(io.MultiReader(strings.NewReader(header9+row9+"0,1"), iotest.ErrReader(broken)))
	if !errors.Is(err, broken) || len(rows) != 1 {
		t.Errorf("%d rows, %v", len(rows), err)
	}
	var manyKeys strings.Builder
	for i := range maxExtra + 1 {
		fmt.Fprintf(&manyKeys, "# k%d=1\n", i)
	}
	_, err = NewTraceReader(strings.NewReader(manyKeys.String() + header9))
	wantErr(t, err, "line 4097", "more than 4096 keys")
}

// Cut after any byte, a trace gives its whole rows and then says where it tore; a cut between rows is a shorter trace.
func TestTraceEveryTruncation(t *testing.T) {
	head := "# route_trace v1\n" + traceHeader + "\n"
	rows := []string{"0,1,28,3,0,60,0.215444,2,3059712,0\n", "0,1,28,3,1,61,1.5e-05,0,17,1\n", "# rows=2\n", "0,1,28,3,2,7,nan,0,0,1\n"}
	data, ends, n := head+strings.Join(rows, ""), []int{}, len(head)
	for _, r := range rows {
		n += len(r)
		if r[0] != '#' {
			ends = append(ends, n)
		}
	}
	for n := range len(data) + 1 {
		_, got, err := readTrace(strings.NewReader(data[:n]))
		if n < len(head)-1 { // a header that lacks just "dropped" is a header
			if len(got) != 0 || err == io.EOF && n < len(head)-1-len(",dropped") {
				t.Fatalf("cut at %d, in the header: %v", n, err)
			}
			continue
		}
		whole, begin := 0, len(head)
		for _, e := range ends {
			if n >= e-1 { // only the end of line is missing: nothing is lost
				whole++
			}
		}
		for _, r := range rows {
			if n < begin+len(r)-1 {
				break
			}
			begin += len(r)
		}
		if len(got) != whole {
			t.Fatalf("cut at %d: %d rows, want %d (%v)", n, len(got), whole, err)
		}
		if err == io.EOF {
			if n > begin && data[begin] != '#' {
				t.Fatalf("cut at %d: %q taken as whole", n, data[begin:n])
			}
			continue
		}
		torn := (*TornError)(nil)
		if !errors.As(err, &torn) || torn.Records != uint64(whole) || torn.Offset != int64(begin) || n <= begin {
			t.Fatalf("cut at %d: %v, want torn at %d after %d", n, err, begin, whole)
		}
		wantErr(t, err, "line ", "column ")
	}
}

func TestTraceReferenceFiles(t *testing.T) {
	for _, c := range []struct {
		name                                                         string
		rows, prefill, miss, withBytes, dropped, unknown, nCol, last int
		bytes                                                        int64
		mass                                                         float64
	}{
		{"qwen-head", 1949, 1949, 1949, 704, 0, 0, 9, 2000, 2064420864, 324.859079765},
		{"qwen-dropped-part", 1999, 999, 1478, 677, 179, 2, 10, 2050, 2011004928, 332.983598775},
	} {
		tr, rows, err := readTrace(bytes.NewReader(dumptest.Read(t, c.name+".route.csv")))
		if err != io.EOF {
			t.Fatal(err)
		}
		m := tr.Meta()
		if m.Model != "Qwen3-30B-A3B-Q4_K_M.gguf" || m.Arch != "qwen3moe" || m.NLayer != 48 || m.NExpert != 128 || m.NUsed != 6 ||
			len(m.Layers) != 48 || m.Layers[6] != (TraceLayer{6, 2654208, 11682816}) || m.Extra != nil {
			t.Errorf("%s: meta %+v", c.name, m)
		}
		got := c
		got.rows, got.nCol, got.last = len(rows), len(tr.Columns()), tr.Line()
		got.prefill, got.miss, got.withBytes, got.dropped, got.unknown, got.bytes, got.mass = 0, 0, 0, 0, 0, 0, 0
		for _, r := range rows {
			if r.Phase == Prefill {
				got.prefill++
			}
			if r.Residency == Miss {
				got.miss++
			}
			if r.ExpertBytes > 0 {
				got.withBytes++
			}
			if r.Dropped {
				got.dropped++
			}
			got.bytes += r.ExpertBytes
			if r.WeightUnknown {
				got.unknown++
			} else {
				got.mass += r.Weight
			}
		}
		if math.Abs(got.mass-c.mass) < 1e-8 {
			got.mass = c.mass
		}
		if got != c {
			t.Errorf("got  %+v\nwant %+v", got, c)
		}
	}
}

// A trace that another engine wrote is reproduced byte for byte from its rows.
func TestTraceWriterReproducesReference(t *testing.T) {
	data := dumptest.Read(t, "qwen-dropped-part.route.csv")
	tr, rows, err := readTrace(bytes.NewReader(data))
	if err != io.EOF {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "a.csv")
	w, err := CreateTrace(path, tr.Meta())
	must(t, err)
	for _, r := range rows {
		resident, read := make([]uint8, 128), make([]int64, 128)
		resident[r.Expert], read[r.Expert] = uint8(r.Residency), r.ExpertBytes
		weight := float32(r.Weight)
		c := TraceCall{Turn: r.Turn, Phase: r.Phase, Pos0: r.Step, Layer: r.Layer, T: 1, K: r.Slot + 1, Expert: make([]int32, r.Slot+1),
			Weight: make([]float32, r.Slot+1), Resident: resident, ReadBytes: read, Dropped: make([]bool, r.Slot+1)}
		c.Expert[r.Slot], c.Weight[r.Slot], c.Dropped[r.Slot] = int32(r.Expert), weight, r.Dropped
		for i := range r.Slot { // rows before it in the call, taken out again below; another expert, or it takes the bytes
			c.Expert[i] = int32((r.Expert + 1) % 128)
		}
		must(t, w.Call(&c))
	}
	must(t, w.Close())
	var got []byte
	lines := bytes.SplitAfter(readFile(t, path), []byte("\n"))
	head := bytes.Count(data[:bytes.Index(data, []byte("turn,"))], []byte("\n")) + 1
	got = append(got, bytes.Join(lines[:head], nil)...)
	at := head
	for _, r := range rows {
		at += r.Slot
		got = append(got, lines[at]...)
		at++
	}
	if !bytes.Equal(got, data) {
		g, w := strings.Split(string(got), "\n"), strings.Split(string(data), "\n")
		for i := range min(len(g), len(w)) {
			if g[i] != w[i] {
				t.Fatalf("line %d: %q, want %q", i+1, g[i], w[i])
			}
		}
		t.Fatal("lengths differ")
	}
}

func TestTraceReaderDoesNotAllocate(t *testing.T) {
	tr, err := NewTraceReader(bytes.NewReader(dumptest.Read(t, "qwen-dropped-part.route.csv")))
	must(t, err)
	var row TraceRow
	if n := testing.AllocsPerRun(1500, func() { must(t, tr.Next(&row)) }); n != 0 {
		t.Errorf("%v allocations per row", n)
	}
}

func TestTraceConcurrentUse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.csv")
	w, err := CreateTrace(path, TraceMeta{})
	must(t, err)
	var wg sync.WaitGroup
	for g := range 2 {
		wg.Go(func() {
			c := TraceCall{Turn: g, T: 2, K: 2, Expert: []int32{1, 2, 2, 1}, ReadBytes: make([]int64, 4+g)}
			for range 300 {
				if err := w.Call(&c); err != nil {
					t.Error(err)
				}
				_ = w.Rows()
			}
		})
	}
	wg.Wait()
	must(t, w.Close())
	if _, rows, err := readTrace(bytes.NewReader(readFile(t, path))); err != io.EOF || len(rows) != 2400 {
		t.Errorf("%d rows, %v", len(rows), err)
	}
}
