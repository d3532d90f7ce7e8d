package chrometrace

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice/engine"
	"sluice/engine/demo"
	"sluice/engine/enginetest"
	"sluice/engine/model"
	"sluice/moe/store"
)

// TestTrace records a streamed decode and reads the file back as a viewer would.
func TestTrace(t *testing.T) {
	m := enginetest.OpenFile(t, enginetest.WriteFile(t, demo.Name, demo.Model()))
	rec := model.NewRecorder(1<<12, 1<<12)
	src, _, err := engine.OpenSource(m, engine.SourceConfig{BudgetBytes: store.WorkingSet(m.Layout, m.NExpertUsed), IO: "buffered", Lanes: 2, Observer: rec}, m.NExpertUsed)
	if err != nil {
		t.Fatal(err)
	}
	s, err := engine.NewSession(m, engine.Config{Threads: 2, Source: src, Recorder: rec})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Prefill(t.Context(), []int32{1, 2, 3, 4, 5}); err != nil {
		t.Fatal(err)
	}
	for id := range int32(4) {
		if _, err := s.Decode(t.Context(), 10+id); err != nil {
			t.Fatal(err)
		}
	}
	tr := Of(rec, map[string]string{"model": "na\"me"})
	out := filepath.Join(t.TempDir(), "trace.json")
	if err := tr.Save(out); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		OtherData   map[string]any `json:"otherData"`
		TraceEvents []struct {
			Name, Cat, Ph string
			TS, Dur       float64
			TID           int
			Args          map[string]any
		} `json:"traceEvents"`
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	n := map[string]int{}
	threads := map[string]bool{}
	end := map[int]float64{} // of the last op or read of a track
	bytes := 0.0
	for _, e := range doc.TraceEvents {
		n[e.Ph+" "+e.Cat]++
		switch {
		case e.Name == "thread_name":
			threads[e.Args["name"].(string)] = true
		case e.Cat == "op" || e.Cat == "read":
			if e.TS < end[e.TID]-1e-6 || e.Dur < 0 {
				t.Errorf("%s of track %d begins at %g µs, before %g", e.Name, e.TID, e.TS, end[e.TID])
			}
			end[e.TID] = e.TS + e.Dur
			if e.Cat == "read" {
				bytes += e.Args["bytes"].(float64)
			}
		}
	}
	st := s.SourceStats()
	if n["X pass"] != 5 || n["X op"] != len(tr.Ops) || n["X read"] != int(st.Reads) || int64(bytes) != st.BytesRead || n["i cache"] != n["C cache"] || n["i cache"] < 25 {
		t.Errorf("events %v, %g bytes; want %d ops, %d reads of %d bytes", n, bytes, len(tr.Ops), st.Reads, st.BytesRead)
	}
	if !threads["forward pass (team of 2)"] || !threads["expert cache"] || !threads["I/O lane 0"] || doc.OtherData["model"] != "na\"me" || doc.OtherData["lost_ops"] != 0.0 {
		t.Errorf("tracks %v, facts %v", threads, doc.OtherData)
	}
}

func TestMicros(t *testing.T) {
	for v, want := range map[micros]string{0: "0.000", 1: "0.001", 1234567: "1234.567", -1500: "-1.500"} {
		if b, err := v.MarshalJSON(); err != nil || string(b) != want {
			t.Errorf("%d ns: %s %v, want %s", int64(v), b, err, want)
		}
	}
}

func TestEmpty(t *testing.T) {
	var b bytes.Buffer
	if err := (&Trace{}).Write(&b); err != nil || !json.Valid(b.Bytes()) || !strings.Contains(b.String(), "process_name") {
		t.Errorf("%v %s", err, b.Bytes())
	}
}
