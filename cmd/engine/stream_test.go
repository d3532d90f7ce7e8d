package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// streamDoc is the part of a run's document that these flags fill.
type streamDoc struct {
	Tokens []int32 `json:"tokens"`
	Cache  struct {
		Hits, Misses int64
	} `json:"cache"`
	IO struct {
		BytesRead int64 `json:"bytes_read"`
	} `json:"io"`
	Drop struct {
		Dropped int64
	} `json:"drop"`
	CacheLoad *loadJSON   `json:"cache_load"`
	Memory    *memoryJSON `json:"memory"`
	Steps     *stepsJSON  `json:"steps"`
}

// TestCacheKept: a cache saved by one run starts the next ones, which then are all the same.
func TestCacheKept(t *testing.T) {
	file, state := demoFile(t), filepath.Join(t.TempDir(), "state")
	args := []string{"run", "-m", file, "-p", "In the beginning", "-n", "30", "--ignore-eos", "--temp", "0", "--cache-mb", "4", "--drop-cold-experts", "0.75", "--json"}
	r := call(t, append(args, "--cache-save", state)...)
	r.want(t, 0, "experts saved to "+state)
	cold := decode[streamDoc](t, r)
	if cold.CacheLoad != nil || cold.Steps != nil || cold.Memory == nil || cold.Memory.Anon <= 0 || cold.Memory.Peak < cold.Memory.Anon {
		t.Errorf("cold: %+v, memory %+v", cold, cold.Memory)
	}
	var warm [2]streamDoc
	for i := range warm {
		r := call(t, append(args, "--cache-load", state)...)
		r.want(t, 0, "experts loaded", "memory: ")
		warm[i] = decode[streamDoc](t, r)
		if l := warm[i].CacheLoad; l == nil || l.Path != state || l.Experts == 0 || l.BytesRead == 0 {
			t.Fatalf("loaded %+v", l)
		}
		warm[i].CacheLoad, warm[i].Memory = nil, nil
	}
	a, _ := json.Marshal(warm[0])
	b, _ := json.Marshal(warm[1])
	if string(a) != string(b) || warm[0].Drop.Dropped == 0 {
		t.Errorf("two runs from one state differ:\n%s\n%s", a, b)
	}
	if warm[0].Cache == cold.Cache {
		t.Error("a warm start has the hits and misses of a cold one: nothing is shown")
	}
	if err := os.WriteFile(state, []byte("not a state at all, but long enough to be looked at closely, which it is"), 0o644); err != nil {
		t.Fatal(err)
	}
	call(t, append(args, "--cache-load", state)...).want(t, 1, state, "not a whole cache state")
}

// TestStepsLogged: the lines, the file and the document agree.
func TestStepsLogged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "steps.csv")
	r := call(t, "run", "-m", demoFile(t), "-p", "In the beginning", "-n", "12", "--ignore-eos", "--temp", "0", "--cache-mb", "4", "--json", "--progress", "--csv", path)
	r.want(t, 0, "decode: ", "waiting for reads")
	doc := decode[streamDoc](t, r)
	if doc.Steps == nil || doc.Steps.Prefill.Steps != 1 || doc.Steps.Decode.Steps != 11 || doc.Steps.Prefill.BytesRead+doc.Steps.Decode.BytesRead != doc.IO.BytesRead {
		t.Fatalf("steps %+v, %d bytes", doc.Steps, doc.IO.BytesRead)
	}
	var bytesRead int64
	lines := 0
	for line := range strings.Lines(r.err) {
		if !strings.HasPrefix(line, "{") {
			continue
		}
		var p map[string]float64
		if err := json.Unmarshal([]byte(line), &p); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		bytesRead += int64(p["bytes_read"])
		lines++
	}
	if lines != 12 || bytesRead != doc.IO.BytesRead {
		t.Errorf("%d lines with %d bytes read, want 12 with %d", lines, bytesRead, doc.IO.BytesRead)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if text := string(data); strings.Count(text, "\n") < 12 || !strings.Contains(text, "# cache_bytes=4194304\n") || !strings.Contains(text, "\n11,1,15,1,") {
		t.Errorf("%s", text)
	}
}

func TestStreamFlagsRefused(t *testing.T) {
	file := demoFile(t)
	for _, c := range []struct {
		text string
		args []string
	}{
		{"no expert cache", []string{"--cache-mb", "0", "--cache-save", "x"}},
		{"no expert cache", []string{"--io", "mmap", "--cache-load", "x"}},
		{"there is no expert cache", []string{"--cache-load", "x"}}, // auto: everything fits
		{"want a file name", []string{"--cache-mb", "4", "--cache-load", ""}},
		{"only with auto", []string{"--cache-mb", "4", "--cache-ceil-mb", "4"}},
		{"want 1 to 8796093022207", []string{"--cache-ceil-mb", "0"}},
		{"want 1 to 8796093022207", []string{"--cache-ceil-mb", "9223372036854775807"}},
		{"no expert cache with --io mmap", []string{"--cache-ceil-mb", "4", "--io", "mmap"}},
		{"need 3 MiB", []string{"--cache-ceil-mb", "1"}},
	} {
		call(t, append([]string{"run", "-m", file, "-n", "1", "a"}, c.args...)...).want(t, 2, c.text)
	}
	call(t, "run", "-m", file, "-n", "1", "--temp", "0", "a", "--cache-ceil-mb", "4").want(t, 0, "room for 32 of 80 experts", "cut to the ceiling")
	call(t, "run", "-m", file, "-n", "1", "a", "--cache-mb", "4", "--cache-load", filepath.Join(t.TempDir(), "none")).want(t, 1, "none")
	call(t, "run", "-m", file, "-n", "1", "a", "--csv", filepath.Join(t.TempDir(), "no", "such")).want(t, 1, "step log")
	call(t, "gguf", "synth", "--describe", "--router-skew", "NaN").want(t, 2, "want 0 to 8")
	if r := call(t, "gguf", "synth", "--describe", "--router-skew", "1", "--json"); r.code != 0 || !strings.Contains(r.out, `"router_skew": 1`) {
		t.Errorf("exit %d: %s%s", r.code, r.out, r.err)
	}
}
