package inspect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/dump"
	"sluice/dump/dumptest"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const header = "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes,dropped\n"

func TestDetect(t *testing.T) {
	sel := dumptest.Read(t, "truncated-288.sel.bin")
	for _, c := range []struct {
		name, data string
		kind       Kind
		want       string
	}{
		{"dump", string(sel), Selection, ""},
		{"one record", "\x03\x01\x05\x00\x00\x00\x80?", Selection, ""},
		{"torn first record", "\x03", Selection, ""},
		{"trace", "# route_trace v1\n# model=x\n" + header, Trace, ""},
		{"trace without preamble, CRLF", strings.ReplaceAll(header, "\n", "\r\n"), Trace, ""},
		{"trace, byte order mark", "\ufeff# route_trace v1\n" + header, Trace, ""},
		{"empty", "", 0, "empty file"},
		{"text", "The quick brown fox\n", 0, "text, so no selection dump, and no route trace either"},
		{"reordered and short", "phase,turn\n", 0, "lacks columns: step, layer"},
	} {
		r := strings.NewReader(c.data)
		kind, err := Detect(r)
		if kind != c.kind || (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, %v", c.name, kind, err)
		}
		if err == nil && r.Len() != len(c.data) {
			t.Errorf("%s: not rewound", c.name)
		}
	}
	r, w, err := os.Pipe()
	must(t, err)
	defer r.Close()
	defer w.Close()
	if _, err := Detect(r); err == nil || !strings.Contains(err.Error(), "cannot be rewound") {
		t.Error(err)
	}
}

func cat(t testing.TB, data string, o CatOptions) (string, *Torn, error) {
	t.Helper()
	var b bytes.Buffer
	torn, err := Cat(context.Background(), &b, strings.NewReader(data), o)
	return b.String(), torn, err
}

const smallDump = "\x03\x02\x1f\x01\x00\x00\x00\x3f\x00\x00\x00\x00\x80\x3e" + // layer 3: 287 0.5, 0 0.25
	"\x05\x01\x07\x00\x00\x00\xc0\x7f" + // layer 5: 7 NaN
	"\x03\x01\x01\x00\x00\x00\x80\x3f" // layer 3: 1 1.0

func TestCatSelection(t *testing.T) {
	all := "           0  record 0  layer 3  n_sel 2  287:0.5 0:0.25\n" +
		"          14  record 1  layer 5  n_sel 1  7:NaN\n" +
		"          22  record 2  layer 3  n_sel 1  1:1\n"
	lines := strings.SplitAfter(all, "\n")
	for _, c := range []struct {
		o    CatOptions
		want string
	}{
		{CatOptions{Layer: -1}, all},
		{CatOptions{Layer: 3}, lines[0] + lines[2]},
		{CatOptions{Layer: 3, Skip: 1}, lines[2]},
		{CatOptions{Layer: -1, Skip: 1, Limit: 1}, lines[1]},
		{CatOptions{Layer: 5, Skip: 4}, ""},
	} {
		got, torn, err := cat(t, smallDump, c.o)
		must(t, err)
		if got != c.want || torn != nil {
			t.Errorf("%+v:\n%s", c.o, got)
		}
	}
	got, torn, err := cat(t, smallDump+"\x01\x01\x00", CatOptions{Layer: -1})
	must(t, err)
	if got != all || torn == nil || torn.String() != "torn tail: 3 whole records, torn at byte 30" {
		t.Errorf("torn %v\n%s", torn, got)
	}
	if _, _, err := cat(t, smallDump, CatOptions{Layer: 9}); err == nil || !strings.Contains(err.Error(), "layer 9 has no records") {
		t.Error(err)
	}
	if got, _, err := cat(t, smallDump+"\x00\x00", CatOptions{Layer: -1}); err == nil || got != all || !strings.Contains(err.Error(), "record 3 at byte 30: n_sel 0") {
		t.Errorf("%v\n%s", err, got)
	}
}

// The offset that is printed is where the line begins in the file, comments, CRLF and blank lines counted.
func TestCatTraceOffsets(t *testing.T) {
	file := []byte("# route_trace v1\r\n" + strings.TrimSuffix(header, "\n") + ",note\r\n\r\n")
	var begins []int
	for i := range 20000 { // several of the reader's buffers
		if i%7 == 0 {
			file = append(file, "# rows=1\n"...)
		}
		begins = append(begins, len(file))
		file = append(file, "0,1,28,3,0,60,0.5,2,17,1,a\"b\r\n"...)
		if len(file) > 200<<10 {
			break
		}
	}
	data := string(file)
	var b bytes.Buffer
	_, err := Cat(context.Background(), &b, strings.NewReader(data), CatOptions{Layer: -1, JSON: true})
	must(t, err)
	var doc struct {
		Kind    string
		Torn    *Torn
		Records []struct {
			Offset, Line int
			Note         string
			Phase        string
			Weight       float64
			Residency    string
			Dropped      bool
		}
	}
	must(t, json.Unmarshal(b.Bytes(), &doc))
	if doc.Kind != "route trace" || len(doc.Records) != len(begins) {
		t.Fatalf("%d records, want %d", len(doc.Records), len(begins))
	}
	for i, r := range doc.Records {
		if r.Offset != begins[i] || r.Note != `a"b` || r.Phase != "decode" || r.Weight != 0.5 || r.Residency != "hit-prefetch" || !r.Dropped {
			t.Fatalf("record %d: %+v, want offset %d", i, r, begins[i])
		}
	}
	got, _, err := cat(t, data, CatOptions{Layer: -1, Limit: 1})
	must(t, err)
	if want := "         107  line 5  turn 0  decode  step 28  layer 3  slot 0  expert 60  weight 0.5  hit-prefetch  17 bytes  dropped  note=\"a\\\"b\"\n"; got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// What a trace of several sequences says of a row is printed behind what every trace says.
func TestCatSequences(t *testing.T) {
	data := strings.TrimSuffix(header, "\n") + ",seq,pass\n2,0,28,3,0,60,0.5,1,0,0,5,17\n0,1,4,3,0,61,0.5,1,0,1,0,17\n"
	got, torn, err := cat(t, data, CatOptions{Layer: -1})
	must(t, err)
	if torn != nil || !strings.Contains(got, "turn 2  prefill  step 28  layer 3  slot 0  expert 60  weight 0.5  hit  0 bytes  seq 5  pass 17\n") ||
		!strings.Contains(got, "0 bytes  dropped  seq 0  pass 17\n") {
		t.Errorf("%v\n%s", torn, got)
	}
	got, _, err = cat(t, data, CatOptions{Layer: -1, JSON: true})
	must(t, err)
	var doc struct {
		Records []struct {
			Seq, Pass int
			Dropped   bool
		}
	}
	must(t, json.Unmarshal([]byte(got), &doc))
	if len(doc.Records) != 2 || doc.Records[0].Seq != 5 || doc.Records[1].Pass != 17 || !doc.Records[1].Dropped {
		t.Errorf("%s", got)
	}
}

func TestCatJSONSelection(t *testing.T) {
	got, _, err := cat(t, smallDump+"\x01", CatOptions{Layer: -1, JSON: true})
	must(t, err)
	var doc struct {
		Records []struct {
			Offset, Record, Layer int
			Expert                []int
			Weight                []any
		}
		Torn *Torn
	}
	must(t, json.Unmarshal([]byte(got), &doc))
	if len(doc.Records) != 3 || doc.Records[0].Expert[0] != 287 || doc.Records[1].Weight[0] != "NaN" || doc.Torn == nil || doc.Torn.Offset != 30 {
		t.Errorf("%s", got)
	}
}

func TestStatSelection(t *testing.T) {
	data := smallDump + "\x03\x02\x04\x00\x00\x00\x80\x3f\x04\x00\x00\x00\x80\x3f" + "\xff"
	s, err := Stat(context.Background(), strings.NewReader(data), nil)
	must(t, err)
	want := []SelTotal{
		{Layer: 3, Tokens: 3, Slots: 5, MinK: 1, MaxK: 2, Experts: 4, MaxExpert: 287, MeanMass: (0.75 + 1 + 2) / 3, Repeated: 1},
		{Layer: 5, Tokens: 1, Slots: 1, MinK: 1, MaxK: 1, Experts: 1, MaxExpert: 7, NonFinite: 1},
	}
	if s.Records != 4 || s.Bytes != 44 || s.Torn == nil || s.Torn.Offset != 44 || len(s.Sel) != 2 || s.Sel[0] != want[0] || s.Sel[1] != want[1] {
		t.Errorf("%+v", s)
	}
	var b bytes.Buffer
	must(t, s.WriteText(&b))
	for _, want := range []string{"selection dump: 4 records, 44 bytes", "torn tail: 4 whole records, torn at byte 44", "1..2"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("lacks %q:\n%s", want, b.String())
		}
	}
}

// A dump with a rows sidecar is printed with it, as far as it goes.
func TestCatRows(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	w, err := dump.OpenSel(path, dump.SelMeta{Rows: true})
	must(t, err)
	rows := []dump.Row{{Seq: 2, Turn: 4, Step: 7}, {Turn: 1, Phase: dump.Decode, Step: 31}}
	must(t, w.RecordRows(0, 2, 1, []int32{5, 6}, []float32{1, 1}, rows, 12))
	must(t, w.Flush())
	must(t, w.RecordRows(0, 1, 1, []int32{5}, []float32{1}, rows[1:], 13))
	must(t, w.Close())
	data, side := mustRead(t, path), mustRead(t, dump.RowsPath(path))
	for _, c := range []struct {
		json bool
		cut  int
		want string
	}{
		{false, 0, "record 1  layer 0  n_sel 1  6:1  seq 0  turn 1  decode  step 31  pass 12\n"},
		{false, 0, "record 2  layer 0  n_sel 1  5:1  seq 0  turn 1  decode  step 31  pass 13\n"},
		{false, 1, "record 2  layer 0  n_sel 1  5:1\n"},
		{true, 0, `"record": 0, "layer": 0, "expert": [5], "weight": [1], "seq": 2, "turn": 4, "phase": "prefill", "step": 7, "pass": 12}`},
		{true, 1, `"record": 2, "layer": 0, "expert": [5], "weight": [1]}`},
	} {
		got, _, err := cat(t, string(data), CatOptions{Layer: -1, JSON: c.json, Rows: bytes.NewReader(side[:len(side)-c.cut])})
		must(t, err)
		if !strings.Contains(got, c.want) || c.json && !json.Valid([]byte(got)) {
			t.Errorf("want %s in\n%s", c.want, got)
		}
	}
	if _, _, err := cat(t, string(data), CatOptions{Layer: -1, Rows: strings.NewReader("no sidecar at all")}); err == nil || !strings.Contains(err.Error(), "not the rows of a selection dump") {
		t.Error(err)
	}
}

// Whose records are is summed up from the sidecar of a dump, and from the columns of a trace.
func TestStatSequences(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	for _, rows := range []bool{false, true} {
		w, err := dump.OpenSel(path, dump.SelMeta{Rows: rows})
		must(t, err)
		for pass := range 3 {
			for layer := range 2 {
				must(t, w.RecordRows(layer, 3, 1, []int32{1, 2, 3}, []float32{1, 1, 1},
					[]dump.Row{{Seq: 4, Turn: 6, Step: 30}, {Seq: 4, Turn: 6, Step: 31}, {Turn: 9, Phase: dump.Decode, Step: int32(pass)}}, int64(pass+1)))
			}
		}
		must(t, w.Close())
	}
	data, side := mustRead(t, path), mustRead(t, dump.RowsPath(path))
	for _, c := range []struct {
		side []byte
		want RowTotals
		text string
	}{
		{side, RowTotals{Sequences: 5, Turns: 10, Passes: 3, Prefill: 12, Decode: 6, Unknown: 18},
			"whose: 5 sequences, 10 turns, 3 forward passes; 12 records prefill, 6 decode, 18 unknown\nlayer"},
		{side[:20], RowTotals{Unknown: 36, Torn: &Torn{0, 16}},
			"whose: 0 sequences, 0 turns, 0 forward passes; 0 records prefill, 0 decode, 36 unknown\nsidecar: torn tail: 0 whole rows, torn at byte 16\n"},
	} {
		s, err := Stat(context.Background(), bytes.NewReader(data), bytes.NewReader(c.side))
		must(t, err)
		var b bytes.Buffer
		must(t, s.WriteText(&b))
		c.want.pass = s.Rows.pass
		if !cmp.Equal(*s.Rows, c.want, cmp.AllowUnexported(RowTotals{})) || !strings.Contains(b.String(), c.text) || s.Records != 36 {
			t.Errorf("%+v\n%s", s.Rows, b.String())
		}
	}
	if _, err := Stat(context.Background(), bytes.NewReader(data), strings.NewReader("no sidecar at all")); err == nil || !strings.Contains(err.Error(), "not the rows of a selection dump") {
		t.Error(err)
	}
	s, err := Stat(context.Background(), strings.NewReader(strings.TrimSuffix(header, "\n")+",seq,pass\n"+
		"2,0,28,3,0,60,0.5,1,0,0,5,17\n0,1,4,3,0,61,0.5,1,0,1,0,17\n0,1,5,3,0,61,0.5,1,0,1,0,19\n"), nil)
	must(t, err)
	if r := s.Rows; r == nil || r.Sequences != 6 || r.Turns != 3 || r.Passes != 2 || r.Prefill != 1 || r.Decode != 2 {
		t.Errorf("%+v", r)
	}
}

func TestStatTrace(t *testing.T) {
	data := dumptest.Read(t, "qwen-dropped-part.route.csv")
	s, err := Stat(context.Background(), bytes.NewReader(data), nil)
	must(t, err)
	var rows, misses, dropped, unknown uint64
	read, weight := int64(0), 0.0
	for _, l := range s.Trace {
		if l.Hits+l.Prefetched+l.Misses != l.Rows {
			t.Errorf("%+v", l)
		}
		rows, misses, dropped, unknown = rows+l.Rows, misses+l.Misses, dropped+l.Dropped, unknown+l.UnknownRows
		read, weight = read+l.BytesRead, weight+l.Weight
	}
	if rows != 1999 || s.Records != rows || misses != 1478 || dropped != 179 || unknown != 2 || read != 2011004928 || weight < 332.98 || weight > 332.99 || s.Bytes != int64(len(data)) {
		t.Errorf("rows %d misses %d dropped %d unknown %d bytes %d weight %v", rows, misses, dropped, unknown, read, weight)
	}
	var b bytes.Buffer
	must(t, s.WriteText(&b))
	if !strings.Contains(b.String(), "route trace: 1999 rows") {
		t.Error(b.String())
	}
}

func TestCancelledAndFailing(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	stop()
	big := strings.Repeat(smallDump, 30000)
	if _, err := Stat(ctx, strings.NewReader(big), nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := Cat(ctx, io.Discard, strings.NewReader(big), CatOptions{Layer: -1}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := Cat(context.Background(), failing{}, strings.NewReader(big), CatOptions{Layer: -1}); err != io.ErrShortWrite {
		t.Error(err)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

func FuzzCat(f *testing.F) {
	f.Add([]byte(smallDump), false)
	f.Add([]byte("# route_trace v1\n"+header+"0,1,28,3,0,60,0.5,2,17,1\n#\n\n0,1,28,3,0,61,nan,2,17,\n0,1"), true)
	f.Fuzz(func(t *testing.T, data []byte, asJSON bool) {
		var b bytes.Buffer
		torn, err := Cat(context.Background(), &b, bytes.NewReader(data), CatOptions{Layer: -1, JSON: asJSON})
		s, statErr := Stat(context.Background(), bytes.NewReader(data), nil)
		if (err == nil) != (statErr == nil) {
			t.Fatal(err, statErr)
		}
		if err != nil {
			return
		}
		if (torn == nil) != (s.Torn == nil) || torn != nil && (*torn != *s.Torn || torn.Records != s.Records) {
			t.Fatal(torn, s.Torn)
		}
		if asJSON && !json.Valid(b.Bytes()) {
			t.Fatalf("%s", b.Bytes())
		}
		if !asJSON && s.Kind == Selection.String() && uint64(bytes.Count(b.Bytes(), []byte("\n"))) != s.Records {
			t.Fatalf("%d records\n%s", s.Records, b.Bytes())
		}
	})
}

func BenchmarkStat(b *testing.B) {
	data := bytes.Repeat(dumptest.Read(b, "truncated-288.sel.bin")[:50000], 20)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		_, err := Stat(context.Background(), bytes.NewReader(data), nil)
		must(b, err)
	}
}

func mustRead(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	return data
}
