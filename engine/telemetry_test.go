package engine_test

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"sluice/engine"
	"sluice/engine/model"
	"sluice/moe"
)

// cachedSession opens the model from a file with a cache of one token's working set and more, which evicts.
func cachedSession(t testing.TB, m *model.Model, budget int64, cfg engine.Config) *engine.Session {
	t.Helper()
	src, _, err := engine.OpenSource(m, engine.SourceConfig{BudgetBytes: budget, Policy: "lru", IO: "buffered"}, m.NExpertUsed)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Source, cfg.Threads = src, 2
	return newSession(t, m, cfg)
}

// TestStepsAddUp: the parts of each step make its wall time, and the steps' counters the session's.
func TestStepsAddUp(t *testing.T) {
	m := openFile(t, demoFile(t))
	ids := loadReference(t).Validation.IDs
	var steps []engine.Step
	tel := engine.NewTelemetry("/", func(p *engine.Step) error {
		steps = append(steps, *p)
		return nil
	})
	defer tel.Close()
	s := cachedSession(t, m, 4<<20, engine.Config{Batch: 32, Telemetry: tel, Drop: moe.Drop{Frac: 0.75, Renorm: true}})
	if _, err := s.Prefill(background, ids[:80]); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids[80:140] {
		if _, err := s.Decode(background, id); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.PrefillAll(background, ids[140:180], func(int, []float32) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if want := 3 + 60 + 2; len(steps) != want {
		t.Fatalf("%d steps, want %d", len(steps), want)
	}
	var sum engine.Step
	pos := 0
	for i, p := range steps {
		if p.Step != i || p.Pos != pos || p.Decode != (i >= 3 && i < 63) {
			t.Fatalf("step %d: %+v at position %d", i, p, pos)
		}
		pos += p.Tokens
		if p.Wall != p.IOWait+p.Compute+p.Manage+p.Other {
			t.Errorf("step %d: parts of %v do not add up: %+v", i, p.Wall, p)
		}
		// A reading of the clock may fall the other way between two parts, not more.
		if p.Wall <= 0 || p.IOWait < 0 || p.Compute <= 0 || p.Manage <= 0 || p.Other < -p.Wall/100 {
			t.Errorf("step %d: %+v", i, p)
		}
		if p.RSS.Anon <= 0 || p.RSS.File <= 0 || p.MajorFaults < 0 {
			t.Errorf("step %d: memory %+v, %d faults", i, p.RSS, p.MajorFaults)
		}
		sum.Tokens += p.Tokens
		sum.Wall += p.Wall
		sum.Other += p.Other
		sum.BytesRead += p.BytesRead
		sum.Reads += p.Reads
		sum.Hits += p.Hits
		sum.Misses += p.Misses
		sum.Evictions += p.Evictions
		sum.Routed += p.Routed
		sum.Dropped += p.Dropped
		sum.Mass += p.Mass
		sum.MassDropped += p.MassDropped
		sum.IOWait += p.IOWait
	}
	st, d := s.SourceStats(), s.Drops()
	if sum.BytesRead != st.BytesRead || sum.Reads != st.Reads || sum.Hits != st.Hits || sum.Misses != st.Misses || sum.Evictions != st.Evictions {
		t.Errorf("steps %+v, source %+v", sum, st)
	}
	if sum.Routed != d.Routed || sum.Dropped != d.Dropped || d.Dropped == 0 || math.Abs(sum.Mass-d.Mass) > 1e-6*d.Mass ||
		math.Abs(sum.MassDropped-d.MassDropped) > 1e-6*d.Mass {
		t.Errorf("steps %+v, session %+v", sum, d)
	}
	if sum.Tokens != s.Pos() || math.Abs(sum.IOWait.Seconds()-st.WaitSeconds) > 1e-4 {
		t.Errorf("steps %+v, %d tokens, waited %g s", sum, s.Pos(), st.WaitSeconds)
	}
	// What is measured is nearly everything: the rest is loops, checks of finiteness, and being kept from running.
	if sum.Other > sum.Wall/3 {
		t.Errorf("%v of %v are in no measured part", sum.Other, sum.Wall)
	}
	prefill, decode := tel.Totals()
	if prefill.Step != 5 || decode.Step != 60 || decode.Tokens != 60 || prefill.Wall+decode.Wall != sum.Wall || prefill.BytesRead+decode.BytesRead != sum.BytesRead {
		t.Errorf("totals %+v and %+v", prefill, decode)
	}
}

// TestStepLog: the two forms have the same names and values, and read back as what was measured.
func TestStepLog(t *testing.T) {
	m := openFile(t, demoFile(t))
	ids := loadReference(t).Validation.IDs
	path := filepath.Join(t.TempDir(), "steps.csv")
	var lines bytes.Buffer
	log := engine.NewStepLog()
	log.JSON(&lines)
	if err := log.CreateCSV(path, [][2]string{{"model", "tiny"}, {"cache_bytes", "4194304"}}); err != nil {
		t.Fatal(err)
	}
	tel := engine.NewTelemetry("/", log.Step)
	s := cachedSession(t, m, 4<<20, engine.Config{Telemetry: tel})
	for _, id := range ids[:20] {
		if _, err := s.Decode(background, id); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(log.Close(), log.Close(), tel.Close()); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if want := "# format=sluice-steps version=1\n# model=tiny\n# cache_bytes=4194304\n"; !strings.HasPrefix(string(data), want) {
		t.Errorf("preamble of %.200q", data)
	}
	r := csv.NewReader(bytes.NewReader(data))
	r.Comment = '#'
	rows, err := r.ReadAll()
	if err != nil || len(rows) != 21 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	dec := json.NewDecoder(&lines)
	var bytesRead, hits, misses int64
	for i, row := range rows[1:] {
		var p map[string]float64
		if err := dec.Decode(&p); err != nil {
			t.Fatal(err)
		}
		if len(p) != len(row) {
			t.Fatalf("%d names in JSON, %d in CSV", len(p), len(row))
		}
		for j, name := range rows[0] {
			v, err := strconv.ParseFloat(row[j], 64)
			if got, ok := p[name]; err != nil || !ok || got != v {
				t.Errorf("step %d: %s is %v in JSON (%v), %s in CSV", i, name, got, ok, row[j])
			}
		}
		if p["wall_us"] != p["io_wait_us"]+p["compute_us"]+p["manage_us"]+p["other_us"] || p["step"] != float64(i) || p["decode"] != 1 {
			t.Errorf("step %d: %v", i, p)
		}
		bytesRead += int64(p["bytes_read"])
		hits += int64(p["hits"])
		misses += int64(p["misses"])
	}
	if _, err := dec.Token(); err != io.EOF {
		t.Errorf("behind the last line: %v", err)
	}
	if st := s.SourceStats(); bytesRead != st.BytesRead || hits != st.Hits || misses != st.Misses {
		t.Errorf("rows: %d bytes, %d hits, %d misses; source %+v", bytesRead, hits, misses, st)
	}
	if err := engine.NewStepLog().CreateCSV(filepath.Join(t.TempDir(), "no", "such"), nil); err == nil {
		t.Error("a folder that is not there: no error")
	}
}

// TestTelemetryAllocatesNothing, while the lines are written too.
func TestTelemetryAllocatesNothing(t *testing.T) {
	m := openFile(t, demoFile(t))
	ids := loadReference(t).Validation.IDs
	log := engine.NewStepLog()
	log.JSON(io.Discard)
	if err := log.CreateCSV(filepath.Join(t.TempDir(), "steps.csv"), nil); err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	tel := engine.NewTelemetry("/", log.Step)
	defer tel.Close()
	s := cachedSession(t, m, 4<<20, engine.Config{Telemetry: tel})
	i := 0
	step := func() {
		if _, err := s.Decode(background, ids[i]); err != nil {
			t.Fatal(err)
		}
		i++
	}
	for range 20 {
		step()
	}
	if n := testing.AllocsPerRun(50, step); n != 0 {
		t.Errorf("%v allocations a token, want 0", n)
	}
}

// TestTelemetryChangesNothing: tokens, drops and reads are those of a session without it, and a receiver's error ends the
// step with that error.
func TestTelemetryChangesNothing(t *testing.T) {
	m := openFile(t, demoFile(t))
	ids := loadReference(t).Validation.IDs[:16]
	run := func(tel *engine.Telemetry) ([]int32, model.DropCount, int64) {
		s := cachedSession(t, m, 4<<20, engine.Config{Telemetry: tel, Drop: moe.Drop{Frac: 0.75, Renorm: true}})
		return greedy(t, m, s, ids, 40), s.Drops(), s.SourceStats().BytesRead
	}
	tokens, drops, read := run(nil)
	gotTokens, gotDrops, gotRead := run(engine.NewTelemetry("/nowhere", nil))
	if string(asBytes(tokens)) != string(asBytes(gotTokens)) || drops != gotDrops || read != gotRead {
		t.Errorf("with telemetry %v %+v %d bytes\nwithout %v %+v %d", gotTokens, gotDrops, gotRead, tokens, drops, read)
	}
	want := errors.New("disk full")
	s := cachedSession(t, m, 4<<20, engine.Config{Telemetry: engine.NewTelemetry("/", func(*engine.Step) error { return want })})
	if _, err := s.Decode(background, 1); !errors.Is(err, want) {
		t.Errorf("receiver's error: %v", err)
	}
	if _, err := s.Prefill(background, ids); !errors.Is(err, want) {
		t.Errorf("receiver's error: %v", err)
	}
}

func asBytes(ids []int32) (b []byte) {
	for _, id := range ids {
		b = strconv.AppendInt(b, int64(id), 10)
		b = append(b, ' ')
	}
	return b
}
