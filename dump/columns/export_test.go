package columns

import (
	"bytes"
	"context"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/parquet-go/parquet-go"

	"sluice/dump"
	"sluice/dump/dumptest"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func readFile(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	must(t, err)
	return b
}

func export(t testing.TB, data []byte) ([]byte, *Summary) {
	t.Helper()
	var b bytes.Buffer
	s, err := Export(context.Background(), &b, bytes.NewReader(data), Facts{"model": "m.gguf"})
	must(t, err)
	return b.Bytes(), s
}

// selRows are the rows that a dump must give.
func selRows(t testing.TB, data []byte) []selRow {
	t.Helper()
	var rows []selRow
	tokens := map[int]int64{}
	r := dump.NewSelReader(bytes.NewReader(data))
	for {
		rec, err := r.Next()
		if err != nil {
			return rows
		}
		for i := range rec.Expert {
			rows = append(rows, selRow{int64(r.Records() - 1), tokens[rec.Layer], int32(rec.Layer), int32(i), rec.Expert[i], rec.Weight[i]})
		}
		tokens[rec.Layer]++
	}
}

// sameBits: a signalling NaN may come back as a quiet one, since it went through a float64.
var sameBits = cmp.Comparer(func(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b })

func TestSelectionRoundTrip(t *testing.T) {
	data := dumptest.Read(t, "clustered-288.sel.bin")
	data = append(data, 9, 2, 1, 0, 0, 0, 0xc0, 0x7f, 0xff, 0xff, 0, 0, 0x80, 0xff) // NaN, and -Inf of expert 65535, top-2
	file, s := export(t, data)
	want := selRows(t, data)
	got, err := parquet.Read[selRow](bytes.NewReader(file), int64(len(file)))
	must(t, err)
	if !cmp.Equal(got, want, sameBits) {
		t.Error("rows differ")
	}
	if s.Records != 3001 || s.Rows != 24002 || s.Torn != nil || s.Kind != "selection dump" {
		t.Errorf("%+v", s)
	}
	f, err := parquet.OpenFile(bytes.NewReader(file), int64(len(file)))
	must(t, err)
	for key, want := range map[string]string{"format": "memra-moe-sel-v1", "records": "3001", "model": "m.gguf"} {
		if v, _ := f.Lookup(key); v != want {
			t.Errorf("%s = %q, want %q", key, v, want)
		}
	}
}

// traceRow is what other engines see of a trace.
type traceRow struct {
	Turn        int64    `parquet:"turn"`
	Phase       int32    `parquet:"phase"`
	Step        int64    `parquet:"step"`
	Layer       int32    `parquet:"layer"`
	Slot        int32    `parquet:"slot"`
	Expert      int32    `parquet:"expert"`
	Weight      *float64 `parquet:"weight"`
	Residency   int32    `parquet:"residency"`
	ExpertBytes int64    `parquet:"expert_bytes"`
	Dropped     *bool    `parquet:"dropped"`
}

func traceRows(t testing.TB, data []byte) (rows []traceRow, extras [][]string) {
	t.Helper()
	r, err := dump.NewTraceReader(bytes.NewReader(data))
	must(t, err)
	has := slices.Contains(r.Columns(), "dropped")
	var row dump.TraceRow
	for {
		if err := r.Next(&row); err != nil {
			return rows, extras
		}
		w := traceRow{Turn: int64(row.Turn), Phase: int32(row.Phase), Step: int64(row.Step), Layer: int32(row.Layer), Slot: int32(row.Slot),
			Expert: int32(row.Expert), Residency: int32(row.Residency), ExpertBytes: row.ExpertBytes}
		if !row.WeightUnknown {
			v := row.Weight
			w.Weight = &v
		}
		if has {
			v := row.Dropped
			w.Dropped = &v
		}
		rows = append(rows, w)
		var x []string
		for _, e := range row.Extra {
			x = append(x, string(e))
		}
		extras = append(extras, x)
	}
}

func TestTraceRoundTrip(t *testing.T) {
	for _, name := range []string{"qwen-head", "qwen-dropped-part"} {
		data := dumptest.Read(t, name+".route.csv")
		file, s := export(t, data)
		want, _ := traceRows(t, data)
		got, err := parquet.Read[traceRow](bytes.NewReader(file), int64(len(file)))
		must(t, err)
		if d := cmp.Diff(got, want); d != "" {
			t.Errorf("%s: rows differ:\n%.2000s", name, d)
		}
		if s.Records != uint64(len(want)) || s.Rows != s.Records || s.Kind != "route trace" {
			t.Errorf("%s: %+v", name, s)
		}
		f, err := parquet.OpenFile(bytes.NewReader(file), int64(len(file)))
		must(t, err)
		for key, want := range map[string]string{"format": "route_trace v1", "arch": "qwen3moe", "n_expert_used": "6", "layer.6.expert_bytes": "2654208", "model": "m.gguf"} {
			if v, _ := f.Lookup(key); v != want {
				t.Errorf("%s = %q, want %q", key, v, want)
			}
		}
	}
}

// Columns that the reader does not know travel as text, behind the others.
func TestTraceUnknownColumns(t *testing.T) {
	data := []byte("# route_trace v1\nrank,turn,phase,step,layer,slot,expert,weight,residency,expert_bytes,note\n7,0,1,2,3,4,5,nan,1,0,a b\n8,0,1,2,3,4,6,0.5,0,9,\n")
	file, _ := export(t, data)
	f, err := parquet.OpenFile(bytes.NewReader(file), int64(len(file)))
	must(t, err)
	var names []string
	for _, c := range f.Schema().Columns() {
		names = append(names, c[0])
	}
	if want := "turn phase step layer slot expert weight residency expert_bytes dropped rank note"; strings.Join(names, " ") != want {
		t.Errorf("columns %v, want %s", names, want)
	}
	rows := f.RowGroups()[0].Rows()
	defer rows.Close()
	buf := make([]parquet.Row, 3)
	if n, err := rows.ReadRows(buf); n != 2 || err != io.EOF {
		t.Fatal(n, err)
	}
	if r := buf[0]; r[10].String() != "7" || r[11].String() != "a b" || !r[6].IsNull() || !r[9].IsNull() {
		t.Errorf("%v", r)
	}
	if r := buf[1]; r[11].String() != "" || r[6].Double() != 0.5 || r[8].Int64() != 9 {
		t.Errorf("%v", r)
	}
}

// Sequence and pass are numbers, behind the recording's other columns.
func TestTraceSequences(t *testing.T) {
	data := []byte("# route_trace v1\nturn,phase,step,layer,slot,expert,weight,residency,expert_bytes,ahead,ahead_bytes,dropped,seq,pass\n" +
		"3,0,1,2,3,4,.5,1,0,7 8,9,1,11,1234567890123\n0,1,1,2,3,4,.5,1,0,,,0,0,1234567890124\n")
	file, s := export(t, data)
	got, err := parquet.Read[struct {
		Seq     int64  `parquet:"seq"`
		Pass    int64  `parquet:"pass"`
		Dropped *bool  `parquet:"dropped"`
		Ahead   string `parquet:"ahead"`
	}](bytes.NewReader(file), int64(len(file)))
	must(t, err)
	if len(got) != 2 || s.Rows != 2 || got[0].Seq != 11 || got[0].Pass != 1234567890123 || !*got[0].Dropped || got[0].Ahead != "7 8" ||
		got[1].Seq != 0 || got[1].Pass != 1234567890124 || *got[1].Dropped {
		t.Errorf("%+v", got)
	}
	f, err := parquet.OpenFile(bytes.NewReader(file), int64(len(file)))
	must(t, err)
	var names []string
	for _, c := range f.Schema().Columns() {
		names = append(names, c[0])
	}
	if want := "turn phase step layer slot expert weight residency expert_bytes dropped seq pass ahead ahead_bytes"; strings.Join(names, " ") != want {
		t.Errorf("columns %v, want %s", names, want)
	}
}

func TestSmallerThanTheRecording(t *testing.T) {
	for _, name := range []string{"clustered-288.sel.bin", "qwen-head.route.csv", "qwen-dropped-part.route.csv"} {
		data := dumptest.Read(t, name)
		file, _ := export(t, data)
		t.Logf("%s: %d bytes, Parquet %d", name, len(data), len(file))
		if len(file) >= len(data) {
			t.Errorf("%s: %d bytes, Parquet %d", name, len(data), len(file))
		}
	}
}

func TestSameBytesAgain(t *testing.T) {
	data := dumptest.Read(t, "qwen-head.route.csv")
	a, _ := export(t, data)
	b, _ := export(t, data)
	if !bytes.Equal(a, b) {
		t.Error("two exports of one trace differ")
	}
}

func TestTorn(t *testing.T) {
	file, s := export(t, dumptest.Read(t, "truncated-288.sel.bin"))
	if s.Torn == nil || s.Torn.Records != 1000 || s.Torn.Offset != 50000 || s.Rows != 8000 {
		t.Errorf("%+v %+v", s, s.Torn)
	}
	if rows, err := parquet.Read[selRow](bytes.NewReader(file), int64(len(file))); err != nil || len(rows) != 8000 {
		t.Error(len(rows), err)
	}
}

func TestExportRefuses(t *testing.T) {
	for want, data := range map[string]string{
		"empty file":                  "",
		"neither":                     "",
		"text, so no selection dump":  "hello world\n",
		"lacks columns: residency":    "turn,phase,step,layer,slot,expert,weight,expert_bytes\n",
		"record 1 at byte 8: n_sel 0": "\x01\x01\x01\x00\x00\x00\x00\x00\x00\x00",
		"line 2: column 2 (phase)":    "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes\n0,7,0,0,0,0,0,0,0\n",
	} {
		_, err := Export(context.Background(), io.Discard, strings.NewReader(data), nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", data, err, want)
		}
	}
	if _, err := Export(context.Background(), failing{}, bytes.NewReader(dumptest.Read(t, "clustered-288.sel.bin")), nil); err == nil || !strings.Contains(err.Error(), "short write") {
		t.Error(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	stop()
	if _, err := Export(ctx, io.Discard, bytes.NewReader(dumptest.Read(t, "clustered-288.sel.bin")), nil); err == nil {
		t.Error("not cancelled")
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

func FuzzExport(f *testing.F) {
	f.Add(dumptest.Read(f, "clustered-288.sel.bin")[:120])
	f.Add(dumptest.Read(f, "qwen-dropped-part.route.csv")[:3000])
	f.Add([]byte("# route_trace v1\n,turn,phase,step,layer,slot,expert,weight,residency,expert_bytes,a.b\nx,0,1,2,3,4,5,nan,1,0,\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var b bytes.Buffer
		s, err := Export(context.Background(), &b, bytes.NewReader(data), nil)
		if err != nil {
			return
		}
		file := b.Bytes()
		if s.Kind == "selection dump" {
			got, err := parquet.Read[selRow](bytes.NewReader(file), int64(len(file)))
			if want := selRows(t, data); err != nil || !cmp.Equal(got, want, sameBits) && len(want) > 0 {
				t.Fatal(err, len(got), len(want))
			}
			return
		}
		got, err := parquet.Read[traceRow](bytes.NewReader(file), int64(len(file)))
		if want, _ := traceRows(t, data); err != nil || !cmp.Equal(got, want) && len(want) > 0 {
			t.Fatal(err, len(got), len(want))
		}
	})
}
