package gen

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"sluice/dump"
)

func TestWriteTrace(t *testing.T) {
	dir := t.TempDir()
	c := DefaultTrace(300e3)
	c.Prompt, c.Decode, c.Layers = 5, 20, 6
	c.BudgetBytes, c.Frac, c.State = 200<<20, 0.5, true
	var files [2][]byte
	for i := range files {
		path := filepath.Join(dir, "route.csv")
		n, err := WriteTrace(path, c)
		if err != nil {
			t.Fatal(err)
		}
		if files[i], err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
		tr, err := dump.NewTraceReader(bytes.NewReader(files[i]))
		if err != nil {
			t.Fatal(err)
		}
		var row dump.TraceRow
		hits, misses, dropped := 0, 0, 0
		for err = tr.Next(&row); err == nil; err = tr.Next(&row) {
			switch {
			case row.Dropped:
				dropped++
			case row.Residency == dump.Miss:
				misses++
			default:
				hits++
			}
		}
		if err != io.EOF || tr.Rows() != n || len(files[i]) < 300e3 || hits == 0 || misses == 0 || dropped == 0 {
			t.Errorf("%d rows of %d: %v; %d hits, %d misses, %d dropped", tr.Rows(), n, err, hits, misses, dropped)
		}
	}
	if !bytes.Equal(files[0], files[1]) {
		t.Error("one seed, two traces")
	}
	if _, err := WriteTrace(filepath.Join(dir, "x"), TraceConfig{}); err == nil {
		t.Error("a trace of nothing was written")
	}
}

func TestWriteDump(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sel.bin")
	c := DefaultDump(200e3)
	n, err := WriteDump(path, c)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r := dump.NewSelReader(f)
	for {
		rec, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		seen := make(map[uint16]bool)
		hot := 0
		clusters := make(map[int]bool)
		for _, e := range rec.Expert {
			seen[uint16(e)] = true
			if int(e) < c.Hot {
				hot++
			} else {
				clusters[(int(e)-c.Hot)%c.Clusters] = true
			}
			if int(e) >= c.Experts {
				t.Fatalf("expert %d of %d", e, c.Experts)
			}
		}
		if len(rec.Expert) != c.Used || len(seen) != c.Used || hot != c.HotPicks || len(clusters) != 1 {
			t.Fatalf("%+v", rec)
		}
	}
	if st, err := f.Stat(); err != nil || st.Size() < 200e3 || r.Records() != n {
		t.Errorf("%d records of %d, %v", r.Records(), n, err)
	}
	if _, err := WriteDump(path, DumpConfig{Layers: 1, Experts: 4, Used: 8, Clusters: 1, Bytes: 1}); err == nil {
		t.Error("8 of 4 experts were written")
	}
}
