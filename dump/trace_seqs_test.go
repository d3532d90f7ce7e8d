package dump

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// mixedCall is a layer call of three sequences: the end of a prompt, and a decoded token each of two others.
func mixedCall() TraceCall {
	return TraceCall{Layer: 0, T: 4, K: 2, Expert: []int32{5, 1, 1, 2, 5, 2, 7, 1}, Weight: []float32{0.75, 0.25, 0.5, 0.5, 0.625, 0.375, 0.5, 0.5},
		Rows: []Row{{Seq: 4, Turn: 6, Phase: Prefill, Step: 30}, {Seq: 4, Turn: 6, Phase: Prefill, Step: 31}, {Seq: 0, Turn: 9, Phase: Decode, Step: 3}, {Seq: 2, Turn: 2, Phase: Decode, Step: 100}},
		Pass: 17, ReadBytes: []int64{0, 1000, 0, 0, 0, 900, 0, 0}, Resident: []uint8{0, 0, 1, 1, 1, 0, 1, 2}}
}

// Sequence and pass are the last two columns; turn, phase and step are each row's own; the bytes of an expert stand on the
// call's first row with it, of whichever sequence.
func TestTraceSeqs(t *testing.T) {
	for _, ahead := range []bool{false, true} {
		path := filepath.Join(t.TempDir(), "a.csv")
		w, err := CreateTrace(path, TraceMeta{Model: "m", Arch: "a", NLayer: 2, NExpert: 8, NUsed: 2, Ahead: ahead, Seqs: true})
		must(t, err)
		call := mixedCall()
		if ahead {
			call.Ahead, call.AheadBytes = []int32{3, 0}, 800
		}
		must(t, w.Call(&call))
		call = TraceCall{Turn: 2, Phase: Decode, Pos0: 101, Layer: 1, T: 1, K: 2, Expert: []int32{5, 1}, Pass: 18} // one sequence's, the first
		must(t, w.Call(&call))
		must(t, w.Close())
		want := `# route_trace v1
# model=m arch=a n_layer=2 n_expert=8 n_expert_used=2
turn,phase,step,layer,slot,expert,weight,residency,expert_bytes,dropped,seq,pass
6,0,30,0,0,5,0.75,0,900,0,4,17
6,0,30,0,1,1,0.25,0,1000,0,4,17
6,0,31,0,0,1,0.5,0,0,0,4,17
6,0,31,0,1,2,0.5,1,0,0,4,17
9,1,3,0,0,5,0.625,0,0,0,0,17
9,1,3,0,1,2,0.375,1,0,0,0,17
2,1,100,0,0,7,0.5,2,0,0,2,17
2,1,100,0,1,1,0.5,0,0,0,2,17
2,1,101,1,0,5,nan,1,0,0,0,18
2,1,101,1,1,1,nan,1,0,0,0,18
`
		if ahead {
			lines := strings.SplitAfter(want, "\n")
			for i, l := range lines {
				f := strings.Split(l, ",")
				if len(f) < 12 {
					continue
				}
				more := []string{"", ""}
				switch {
				case f[0] == "turn":
					more = []string{"ahead", "ahead_bytes"}
				case i == 3:
					more = []string{"3 0", "800"}
				case i == 11:
					more = []string{"", "0"}
				}
				lines[i] = strings.Join(slices.Insert(f, 9, more...), ",")
			}
			want = strings.Join(lines, "")
		}
		text := string(readFile(t, path))
		if d := cmp.Diff(want, text); d != "" {
			t.Fatal(d)
		}
		tr, rows, err := readTrace(strings.NewReader(text))
		if err != io.EOF || !tr.Seqs() || len(rows) != 10 {
			t.Fatalf("%v, seqs %t, %d rows", err, tr.Seqs(), len(rows))
		}
		if r := rows[6]; r.Seq != 2 || r.Pass != 17 || r.Turn != 2 || r.Step != 100 || r.Phase != Decode || r.Residency != HitPrefetch {
			t.Errorf("%+v", r)
		}
		if extra := tr.ExtraColumns(); ahead != slices.Equal(extra, []string{AheadColumn, AheadBytesColumn}) || !ahead && extra != nil {
			t.Errorf("further columns %v", extra)
		}
		// A cut within the last row is seen wherever it is, before the line end too.
		last := strings.LastIndexByte(text[:len(text)-1], '\n') + 1
		for n := last + 1; n < len(text); n++ {
			_, _, err := readTrace(strings.NewReader(text[:n]))
			if torn := (*TornError)(nil); !errors.As(err, &torn) || torn.Records != 9 || torn.Offset != int64(last) {
				t.Errorf("cut at %d (%q): %v", n, text[last:n], err)
			}
		}
	}
}

// Rows of one sequence need no columns: the file is that of a call which says it once.
func TestTraceRowsOfOneSequence(t *testing.T) {
	var files [2][]byte
	for i := range files {
		path := filepath.Join(t.TempDir(), "a.csv")
		w, err := CreateTrace(path, TraceMeta{NExpert: 8})
		must(t, err)
		c := TraceCall{Turn: 3, Phase: Decode, Pos0: 7, T: 2, K: 1, Expert: []int32{5, 1}}
		if i == 1 {
			c = TraceCall{T: 2, K: 1, Expert: c.Expert, Pass: 9, Rows: []Row{{8, 3, Decode, 7}, {8, 3, Decode, 8}}}
		}
		must(t, w.Call(&c))
		must(t, w.Close())
		files[i] = readFile(t, path)
	}
	if !bytes.Equal(files[0], files[1]) {
		t.Errorf("%s\n%s", files[0], files[1])
	}
}

func TestTraceSeqsAreChecked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.csv")
	for _, c := range []struct {
		seqs bool
		edit func(c *TraceCall)
		want string
	}{
		{true, func(c *TraceCall) { c.Rows = c.Rows[1:] }, "rows of 3 tokens, want 4"},
		{true, func(c *TraceCall) { c.Rows = []Row{} }, "rows of 0 tokens, want 4"},
		{true, func(c *TraceCall) { c.Pass = 0 }, "pass 0, want 1..9007199254740991"},
		{true, func(c *TraceCall) { c.Pass = 1 << 53 }, "pass 9007199254740992"},
		{true, func(c *TraceCall) { c.Rows[2].Seq = -1 }, "token 2 of 4: sequence -1, turn 9, position 3: want 0.."},
		{true, func(c *TraceCall) { c.Rows[0].Turn = -1 }, "turn -1"},
		{true, func(c *TraceCall) { c.Rows[3].Step = -1 }, "token 3 of 4: sequence 2, turn 2, position -1"},
		{true, func(c *TraceCall) { c.Rows[3].Phase = 2 }, "phase 2, want 0 (prefill) or 1 (decode)"},
		{true, func(c *TraceCall) { c.Weight[5] = -1 }, "position 3, slot 1: negative weight"},
		{true, func(c *TraceCall) { c.Expert[7] = 8 }, "position 100, slot 1: expert 8, want 0..7"},
		{false, func(*TraceCall) {}, "rows of sequences 4 and 0, but the trace was opened without a column for them"},
	} {
		w, err := CreateTrace(path, TraceMeta{NLayer: 2, NExpert: 8, NUsed: 2, Seqs: c.seqs})
		must(t, err)
		call := mixedCall()
		c.edit(&call)
		wantErr(t, w.Call(&call), path, c.want)
		if w.Rows() != 0 {
			t.Error("a refused call left something behind")
		}
		must(t, w.Close())
	}
}

// The columns are ours where both are there, in any place; one alone is text, like any other.
func TestTraceSeqColumns(t *testing.T) {
	for _, c := range []struct {
		header, row string
		seqs        bool
		extra       []string
		want        string // error
	}{
		{"pass,turn,phase,step,layer,slot,expert,seq,weight,residency,expert_bytes", "12,0,1,2,3,4,5,6,.5,0,0", true, nil, ""},
		{traceHeader + ",seq", "0,1,2,3,4,5,.5,0,0,0,x", false, []string{"seq"}, ""},
		{traceHeader + ",pass", "0,1,2,3,4,5,.5,0,0,0,", false, []string{"pass"}, ""},
		{traceHeader + ",seq,note,pass", "0,1,2,3,4,5,.5,0,0,0,6,n,12", true, []string{"note"}, ""},
		{traceHeader + ",seq,pass", "0,1,2,3,4,5,.5,0,0,0,6,", true, nil, "column 12 (pass): empty"},
		{traceHeader + ",seq,pass", "0,1,2,3,4,5,.5,0,0,0,x,12", true, nil, "column 11 (seq)"},
		{traceHeader + ",seq,pass", "0,1,2,3,4,5,.5,0,0,0,6,9007199254740992", true, nil, "is above 9007199254740991"},
		{traceHeader + ",seq,pass,seq", "", true, nil, `"seq" twice in the header`},
	} {
		tr, rows, err := readTrace(strings.NewReader(c.header + "\n" + c.row + "\n"))
		if c.want != "" {
			wantErr(t, err, c.want)
			continue
		}
		if err != io.EOF || tr.Seqs() != c.seqs || !slices.Equal(tr.ExtraColumns(), c.extra) || c.seqs && (rows[0].Seq != 6 || rows[0].Pass != 12) || !c.seqs && rows[0].Seq != 0 {
			t.Errorf("%s: %v, %t, %v, %+v", c.header, err, tr.Seqs(), tr.ExtraColumns(), rows)
		}
	}
}

// Both paths of the reader take the columns.
func TestTraceSeqsFastPath(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 2))
	var b strings.Builder
	b.WriteString(traceHeader + seqsHeader + "\n")
	const n = 20000
	for range n {
		end := []string{"\n", "\n", "\r\n", "\n#\n"}[rng.IntN(4)]
		fmt.Fprintf(&b, "%d,1,%d,3,0,%d,0.5,0,17,%d,%d,%d%s", rng.IntN(4), rng.IntN(1000), rng.IntN(64), rng.IntN(2), rng.IntN(9), 1+rng.Uint64()>>(11+rng.IntN(50)), end)
	}
	if rows, err := bothPaths(t, []byte(b.String())); rows != n || err != io.EOF {
		t.Errorf("%d rows, %v", rows, err)
	}
	tr, err := NewTraceReader(strings.NewReader(traceHeader + seqsHeader + "\n" + strings.Repeat("0,1,2,3,4,5,.5,0,0,0,6,7\n", 2000)))
	must(t, err)
	var row TraceRow
	if n := testing.AllocsPerRun(1500, func() { must(t, tr.Next(&row)) }); n != 0 || !tr.plain {
		t.Errorf("%v allocations per row, fast path %t", n, tr.plain)
	}
	path := filepath.Join(t.TempDir(), "a.csv")
	w, err := CreateTrace(path, TraceMeta{NExpert: 8, Seqs: true})
	must(t, err)
	defer w.Close()
	c := mixedCall()
	if n := testing.AllocsPerRun(100, func() { must(t, w.Call(&c)) }); n != 0 {
		t.Errorf("%v allocations per call", n)
	}
}
