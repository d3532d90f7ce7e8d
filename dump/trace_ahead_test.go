package dump

import (
	"errors"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func aheadCall() TraceCall {
	return TraceCall{Phase: Decode, Pos0: 3, Layer: 0, T: 2, K: 2, Expert: []int32{5, 1, 1, 2}, Weight: []float32{0.75, 0.25, 0.5, 0.5},
		ReadBytes: []int64{0, 1000, 0, 0, 0, 0, 0, 0}, Ahead: []int32{7, 0, 3}, AheadBytes: 1800}
}

// What is read ahead stands in two columns of its own, on a call's first row, and dropped stays the last one.
func TestTraceAhead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.csv")
	w, err := CreateTrace(path, TraceMeta{Model: "m", Arch: "a", NLayer: 2, NExpert: 8, NUsed: 2, Ahead: true})
	must(t, err)
	call := aheadCall()
	must(t, w.Call(&call))
	call.Layer, call.Ahead, call.AheadBytes = 1, nil, 0
	must(t, w.Call(&call))
	must(t, w.Close())
	const want = `# route_trace v1
# model=m arch=a n_layer=2 n_expert=8 n_expert_used=2
turn,phase,step,layer,slot,expert,weight,residency,expert_bytes,ahead,ahead_bytes,dropped
0,1,3,0,0,5,0.75,1,0,7 0 3,1800,0
0,1,3,0,1,1,0.25,1,1000,,,0
0,1,4,0,0,1,0.5,1,0,,,0
0,1,4,0,1,2,0.5,1,0,,,0
0,1,3,1,0,5,0.75,1,0,,0,0
0,1,3,1,1,1,0.25,1,1000,,,0
0,1,4,1,0,1,0.5,1,0,,,0
0,1,4,1,1,2,0.5,1,0,,,0
`
	text := string(readFile(t, path))
	if d := cmp.Diff(want, text); d != "" {
		t.Error(d)
	}
	tr, err := NewTraceReader(strings.NewReader(text))
	must(t, err)
	if got := tr.ExtraColumns(); !slices.Equal(got, []string{AheadColumn, AheadBytesColumn}) {
		t.Errorf("columns %v", got)
	}
	var row TraceRow
	must(t, tr.Next(&row))
	if string(row.Extra[0]) != "7 0 3" || string(row.Extra[1]) != "1800" || row.Expert != 5 || row.Dropped {
		t.Errorf("%+v", row)
	}
	sum := int64(0)
	for ; err == nil; err = tr.Next(&row) {
		n, bad := tr.AheadBytes()
		must(t, bad)
		sum += n
	}
	if sum != 1800 {
		t.Errorf("%d bytes ahead in all rows, want 1800", sum)
	}
	for _, bad := range []string{"7 0 3,,0", "7 0 3,x,0", "7 0 3,-1,0"} { // a list wants its bytes
		tr, err := NewTraceReader(strings.NewReader(strings.Replace(text, "7 0 3,1800,0", bad, 1)))
		must(t, err)
		must(t, tr.Next(&row))
		if _, err := tr.AheadBytes(); err == nil || !strings.Contains(err.Error(), "line 4: column ahead_bytes") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if err != io.EOF || tr.Rows() != 8 {
		t.Errorf("%v after %d rows", err, tr.Rows())
	}
	// A cut within the last row is seen wherever it is.
	last := strings.LastIndexByte(text[:len(text)-1], '\n') + 1
	for n := last + 1; n < len(text)-1; n++ {
		tr, err := NewTraceReader(strings.NewReader(text[:n]))
		must(t, err)
		for err == nil {
			err = tr.Next(&row)
		}
		if torn := (*TornError)(nil); !errors.As(err, &torn) || torn.Records != 7 || torn.Offset != int64(last) {
			t.Errorf("cut at %d (%q): %v", n, text[last:n], err)
		}
	}
}

// A long list makes a long row, and the buffer has room for it.
func TestTraceAheadLong(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.csv")
	const experts = 10000
	w, err := CreateTrace(path, TraceMeta{NExpert: experts, Ahead: true})
	must(t, err)
	call := TraceCall{T: 1, K: 1, Expert: []int32{0}}
	for e := range experts {
		call.Ahead = append(call.Ahead, int32(experts-1-e))
	}
	for range 40 {
		must(t, w.Call(&call))
	}
	must(t, w.Close())
	tr, err := NewTraceReader(strings.NewReader(string(readFile(t, path))))
	must(t, err)
	var row TraceRow
	for range 40 {
		must(t, tr.Next(&row))
		if list := strings.Fields(string(row.Extra[0])); len(list) != experts || list[experts-1] != "0" {
			t.Fatalf("%d experts", len(list))
		}
	}
	call.Ahead = make([]int32, maxAhead+1)
	w, err = CreateTrace(path, TraceMeta{NExpert: experts, Ahead: true})
	must(t, err)
	wantErr(t, w.Call(&call), path, "read ahead: want at most")
	must(t, w.Close())
}

func TestTraceAheadIsChecked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.csv")
	for _, c := range []struct {
		ahead bool
		edit  func(c *TraceCall)
		want  string
	}{
		{true, func(c *TraceCall) { c.Ahead[1] = 8 }, "expert 8 read ahead, want 0..7"},
		{true, func(c *TraceCall) { c.Ahead[0] = -1 }, "expert -1 read ahead"},
		{true, func(c *TraceCall) { c.AheadBytes = -1 }, "-1 bytes read ahead"},
		{false, func(*TraceCall) {}, "3 experts read ahead, but the trace was opened without"},
		{false, func(c *TraceCall) { c.Ahead = nil }, "opened without"},
	} {
		w, err := CreateTrace(path, TraceMeta{NLayer: 2, NExpert: 8, NUsed: 2, Ahead: c.ahead})
		must(t, err)
		call := aheadCall()
		c.edit(&call)
		wantErr(t, w.Call(&call), path, c.want)
		if w.Rows() != 0 {
			t.Error("a refused call left something behind")
		}
		must(t, w.Close())
	}
}
