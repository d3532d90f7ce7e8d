package columns

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"sluice/dump/dumptest"
)

// readerEnv names a folder with a node_modules in which the packages of testdata/reader/package.json are installed.
const readerEnv = "SLUICE_PARQUET_READER"

type foreign struct {
	NumRows   int                 `json:"num_rows"`
	Columns   []string            `json:"columns"`
	Facts     map[string]string   `json:"facts"`
	Encodings map[string][]string `json:"encodings"`
	Rows      [][]any             `json:"rows"`
}

// readForeign reads a file with a Parquet implementation that shares no code with ours.
func readForeign(t *testing.T, file []byte) foreign {
	t.Helper()
	folder := os.Getenv(readerEnv)
	if folder == "" {
		t.Skipf("%s is not set: want a folder in which `npm ci` has installed dump/columns/testdata/reader", readerEnv)
	}
	modules, err := filepath.Abs(filepath.Join(folder, "node_modules"))
	must(t, err)
	dir := t.TempDir() // Node looks for packages beside the script
	must(t, os.Symlink(modules, filepath.Join(dir, "node_modules")))
	must(t, os.WriteFile(filepath.Join(dir, "read.mjs"), readFile(t, "testdata/reader/read.mjs"), 0o666))
	must(t, os.WriteFile(filepath.Join(dir, "x.parquet"), file, 0o666))
	cmd := exec.Command("node", filepath.Join(dir, "read.mjs"), filepath.Join(dir, "x.parquet"))
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, errs.String())
	}
	var f foreign
	must(t, json.Unmarshal(out, &f))
	return f
}

func TestForeignReaderSelection(t *testing.T) {
	data := dumptest.Read(t, "clustered-288.sel.bin")
	file, _ := export(t, data)
	got := readForeign(t, file)
	want := selRows(t, data)
	if got.NumRows != len(want) || len(got.Rows) != len(want) {
		t.Fatalf("%d and %d rows, want %d", got.NumRows, len(got.Rows), len(want))
	}
	if !slices.Equal(got.Columns, []string{"record", "token", "layer", "slot", "expert", "weight"}) {
		t.Errorf("columns %v", got.Columns)
	}
	for i, w := range want {
		r := got.Rows[i]
		for j, v := range []float64{float64(w.Record), float64(w.Token), float64(w.Layer), float64(w.Slot), float64(w.Expert), float64(w.Weight)} {
			if r[j] != v {
				t.Fatalf("row %d: %v, want %+v", i, r, w)
			}
		}
	}
	for column, encoding := range map[string]string{"record": "DELTA_BINARY_PACKED", "token": "DELTA_BINARY_PACKED", "layer": "RLE_DICTIONARY",
		"slot": "RLE_DICTIONARY", "expert": "RLE_DICTIONARY", "weight": "BYTE_STREAM_SPLIT"} {
		if !slices.Contains(got.Encodings[column], encoding) {
			t.Errorf("%s is encoded as %v, want %s", column, got.Encodings[column], encoding)
		}
	}
	if got.Facts["format"] != "memra-moe-sel-v1" || got.Facts["model"] != "m.gguf" {
		t.Errorf("facts %v", got.Facts)
	}
}

func TestForeignReaderTrace(t *testing.T) {
	for _, name := range []string{"qwen-head", "qwen-dropped-part"} {
		data := dumptest.Read(t, name+".route.csv")
		file, _ := export(t, data)
		got := readForeign(t, file)
		want, _ := traceRows(t, data)
		if got.NumRows != len(want) || len(got.Rows) != len(want) {
			t.Fatalf("%d and %d rows, want %d", got.NumRows, len(got.Rows), len(want))
		}
		sum, wantSum := 0.0, 0.0
		for i, w := range want {
			var weight, dropped any
			if w.Weight != nil {
				weight = *w.Weight
				wantSum += *w.Weight
			}
			if w.Dropped != nil {
				dropped = *w.Dropped
			}
			r := got.Rows[i]
			if v, ok := r[6].(float64); ok {
				sum += v
			}
			for j, v := range []any{float64(w.Turn), float64(w.Phase), float64(w.Step), float64(w.Layer), float64(w.Slot), float64(w.Expert),
				weight, float64(w.Residency), float64(w.ExpertBytes), dropped} {
				if r[j] != v {
					t.Fatalf("%s row %d: %v, want %+v", name, i, r, w)
				}
			}
		}
		if sum != wantSum || math.IsNaN(sum) {
			t.Errorf("%s: weights sum to %v, want %v", name, sum, wantSum)
		}
		if got.Facts["format"] != "route_trace v1" || got.Facts["n_layer"] != "48" {
			t.Errorf("facts %v", got.Facts)
		}
	}
}
