package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sluice/dump/replay"
	"sluice/moe"
	"sluice/moe/store"
)

// skewedFile is a small model whose routers favour some experts: 4 layers of 32 experts of 102 kB, 4 used.
func skewedFile(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "skewed.gguf")
	call(t, "gguf", "synth", path, "--layers", "4", "--embd", "256", "--heads", "4", "--kv-heads", "2", "--head-dim", "64", "--experts", "32",
		"--used", "4", "--ff", "128", "--type", "q8_0", "--router-skew", "1").want(t, 0)
	return path
}

// reproduceDoc is what a run's document and a replay's are compared by.
type reproduceDoc struct {
	Tokens []int32 `json:"tokens"`
	Cache  struct {
		Hits, Misses int64
	} `json:"cache"`
	Prefetch *prefetchJSON `json:"prefetch"`
	IO       struct {
		BytesRead int64 `json:"bytes_read"`
		Wanted    int64 `json:"bytes_wanted"`
	} `json:"io"`
	Drop dropJSON `json:"drop"`
}

// TestReproduce: a run done twice has the same tokens, drops and reads, and the replay of its trace has every drop and every
// byte of it, whatever the policy, with experts read ahead and from a saved cache too.
func TestReproduce(t *testing.T) {
	file := skewedFile(t)
	for _, policy := range store.Policies() {
		for _, prefetch := range [][]string{nil, {string(moe.PrefetchLastToken)}, {string(moe.PrefetchNextLayer)}, {string(moe.PrefetchNextLayer), "1"}} {
			state := filepath.Join(t.TempDir(), "state")
			for _, loaded := range []bool{false, true} {
				t.Run(fmt.Sprintf("policy=%s/prefetch=%s/loaded=%v", policy, strings.Join(prefetch, "-"), loaded), func(t *testing.T) {
					reproduce(t, file, policy, prefetch, state, loaded)
				})
			}
		}
	}
}

// reproduce runs twice from the saved cache, or from an empty one and saves it.
func reproduce(t *testing.T, file, policy string, prefetch []string, state string, loaded bool) {
	dir := t.TempDir()
	args := []string{"run", "-m", file, "-p", "In the beginning there was", "-n", "40", "--ignore-eos", "--temp", "1", "--seed", "3",
		"--cache-mb", "4", "--cache-policy", policy, "--drop-cold-experts", "0.75", "-b", "3", "--json"}
	if len(prefetch) > 0 {
		args = append(args, "--prefetch", prefetch[0])
	}
	if len(prefetch) > 1 {
		args = append(args, "--prefetch-mb", prefetch[1])
	}
	var replayState []string
	if loaded {
		args = append(args, "--cache-load", state)
		replayState = []string{"--cache-state", state}
	}
	var runs [2]reproduceDoc
	var traces [2]string
	for i := range runs {
		traces[i] = filepath.Join(dir, fmt.Sprintf("%d.csv", i))
		more := []string{"--route-trace", traces[i], "--io", []string{"direct", "buffered"}[i], "--io-threads", strconv.Itoa(1 + 2*i), "-t", strconv.Itoa(1 + i)}
		if !loaded {
			more = append(more, "--cache-save", state)
		}
		r := call(t, append(slices.Clone(args), more...)...)
		r.want(t, 0)
		runs[i] = decode[reproduceDoc](t, r)
	}
	run := runs[1]
	if runs[0].IO.BytesRead < run.IO.BytesRead { // whole blocks, where the file system reads directly
		t.Errorf("direct %+v, buffered %+v", runs[0].IO, run.IO)
	}
	runs[0].IO.BytesRead = run.IO.BytesRead
	if a, b := asText(t, runs[0]), asText(t, run); a != b {
		t.Errorf("two runs differ:\n%s\n%s", a, b)
	}
	if run.IO.BytesRead != run.IO.Wanted || run.Drop.Dropped == 0 || run.Cache.Misses == 0 || len(run.Tokens) != 40 {
		t.Errorf("%+v: buffered reads have no padding, and the case should drop and miss", run)
	}
	if prefetch != nil && (run.Prefetch.Experts == 0 || run.Prefetch.Used == 0) {
		t.Errorf("nothing was read ahead, or nothing of it used: %+v", run.Prefetch)
	}
	if a, b := readFile(t, traces[0]), readFile(t, traces[1]); a != b {
		t.Error("the two traces differ")
	}

	want := fmt.Sprintf("reproduced: %d of %d drops, %d of %d bytes", run.Drop.Dropped, run.Drop.Dropped, run.IO.Wanted, run.IO.Wanted)
	r := call(t, append([]string{"replay", traces[0]}, replayState...)...)
	r.want(t, 0)
	if !strings.Contains(r.out, want) {
		t.Errorf("no %q in\n%s", want, r.out)
	}
	live := append([]string{"replay", "--cache", "--live", traces[0], "--budgets", "4", "--policies", policy}, replayState...)
	r = call(t, live...)
	r.want(t, 0)
	if want := fmt.Sprintf("reproduced: %d of %d bytes (the run's %d drops taken", run.IO.Wanted, run.IO.Wanted, run.Drop.Dropped); !strings.Contains(r.out, want) {
		t.Errorf("no %q in\n%s", want, r.out)
	}
	doc := decode[struct{ Cache []replay.CacheReport }](t, call(t, append(live, "--json")...))
	c := doc.Cache[0].Cells[0]
	if hits := c.Decode.Hits + c.Prefill.Hits; hits != run.Cache.Hits || c.Decode.Lookups+c.Prefill.Lookups-hits != run.Cache.Misses {
		t.Errorf("replayed %+v, the run %+v", c, run.Cache)
	}

	// Without the state it would be another run, and it says so.
	if loaded {
		r = call(t, "replay", traces[0])
		r.want(t, 0)
		if !strings.Contains(r.out, "began with a loaded cache (cache_load=state)") || strings.Contains(r.out, "reproduced:") {
			t.Errorf("without the state:\n%s", r.out)
		}
	}
}

func asText(t *testing.T, doc any) string {
	t.Helper()
	b, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestReproduceFails: a trace that is not what the run did is found out, with the place, and so is a state that is not the
// run's.
func TestReproduceFails(t *testing.T) {
	dir := t.TempDir()
	file, trace := skewedFile(t), filepath.Join(dir, "route.csv")
	state, later, other := filepath.Join(dir, "state"), filepath.Join(dir, "later"), filepath.Join(dir, "other")
	args := []string{"run", "-m", file, "-p", "In the beginning there was", "-n", "20", "--ignore-eos", "--temp", "1", "--seed", "5", "--cache-mb", "4",
		"--drop-cold-experts", "0.75", "--prefetch", "last-token"}
	call(t, append(args, "--cache-save", state)...).want(t, 0)
	call(t, append(args, "--cache-load", state, "--cache-save", later, "--route-trace", trace)...).want(t, 0)
	call(t, "run", "-m", demoFile(t), "-p", "a", "-n", "2", "--temp", "0", "--cache-mb", "4", "--cache-save", other).want(t, 0)
	good := readFile(t, trace)

	// edit changes the first decoded row that the condition takes.
	edit := func(column int, cond func(f []string) bool, to func(old string) string) string {
		lines := strings.Split(good, "\n")
		for i, line := range lines {
			if f := strings.Split(line, ","); len(f) == 12 && f[1] == "1" && cond(f) {
				f[column] = to(f[column])
				lines[i] = strings.Join(f, ",")
				return strings.Join(lines, "\n")
			}
		}
		t.Fatal("no such row: the case tests nothing")
		return ""
	}
	is := func(v string) func(string) string { return func(string) string { return v } }
	const bytesCol, aheadBytesCol, droppedCol = 8, 10, 11
	for _, c := range []struct {
		name, text, state string
		code              int
		want              []string
	}{
		{"as it is", good, state, 0, []string{" reproduced: "}},
		{"a drop more", edit(droppedCol, func(f []string) bool { return f[8] == "104448" }, is("1")), state, 1, []string{"NOT reproduced", "first difference: line "}},
		{"a drop less", edit(droppedCol, func(f []string) bool { return f[11] == "1" }, is("0")), state, 1, []string{"NOT reproduced", "dropped 0 rows, the replay 1"}},
		{"bytes less", edit(bytesCol, func(f []string) bool { return f[8] == "104448" }, is("104447")), state, 1, []string{"read 104447 bytes, the replay 104448"}},
		{"ahead more", edit(aheadBytesCol, func(f []string) bool { return f[10] == "0" }, is("104448")), state, 1, []string{"read 104448 bytes ahead, the replay 0"}},
		{"another expert", edit(5, func(f []string) bool { return f[4] == "0" }, func(old string) string { return string(rune('0' + (len(old)+1)%2)) }), state, 1, []string{"NOT reproduced"}},
		{"a state of later", good, later, 0, []string{"not held against the run row by row: the run began with another cache state"}},
		{"the state of another model", good, other, 1, []string{"other is the cache state of another model"}},
		{"no state", good, "", 0, []string{"began with a loaded cache (cache_load=state)"}},
		{"a state that does not say whose", strings.Replace(good, "# tensor_table=", "# was=", 1), state, 0, []string{" reproduced: ", "is taken to be a state of this model"}},
		{"no padding known", strings.Replace(good, "# slot_bytes=", "# was=", 1), state, 0, []string{"not held against the run row by row: the preamble states no slot_bytes"}},
		{"of a device", strings.Replace(good, "# slot_bytes=", "# device=cuda\n# slot_bytes=", 1), state, 0, []string{" reproduced: ", "residency of ", "(bytes not compared: device=cuda held experts of its own"}},
		{"an unknown prefetch", strings.Replace(good, "# prefetch=last-token", "# prefetch=oracle", 1), state, 0, []string{`prefetch "oracle" is not known`}},
		{"a bad list", edit(9, func([]string) bool { return true }, is("x")), state, 1, []string{"column ahead", `"x"`}},
		{"a bad bound", strings.Replace(good, "# prefetch_bytes=", "# prefetch_bytes=x", 1), state, 1, []string{"prefetch_bytes"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "route.csv")
			if err := os.WriteFile(path, []byte(c.text), 0o644); err != nil {
				t.Fatal(err)
			}
			for _, args := range [][]string{{"replay", path}, {"replay", "--cache", "--live", path, "--budgets", "4", "--policies", "lrfu"}} {
				if strings.Contains(c.name, "drop") && len(args) > 2 {
					continue // there the drops are taken as they are
				}
				if c.state != "" {
					args = append(args, "--cache-state", c.state)
				}
				r := call(t, args...)
				if r.code != c.code {
					t.Errorf("%v: exit %d, want %d", args, r.code, c.code)
				}
				for _, want := range c.want {
					if len(args) > 4 && strings.HasPrefix(want, "not held against the run row by row: ") {
						want = strings.TrimPrefix(want, "not held against the run row by row: ")
					}
					if !strings.Contains(r.out+r.err, want) {
						t.Errorf("%v: no %q in\n%s%s", args, want, r.out, r.err)
					}
				}
			}
		})
	}
	call(t, "replay", trace, "--cache-state", "").want(t, 2, "want a file name")
	call(t, "replay", "--cache", trace, "--cache-state", state).want(t, 2, "no effect with --cache but with --live")
	call(t, "replay", trace, "--cache-state", file).want(t, 1, "not a whole cache state")
	if r := call(t, "replay", "--cache", trace, "--policies", "lru", "--budgets", "4"); !strings.Contains(r.out, "read ahead (last-token) and began with a loaded cache (state)") {
		t.Errorf("batch order:\n%s", r.out)
	}
}

// TestReproduceOlderTrace: a trace without the columns of what was read ahead, as an older release wrote it.
func TestReproduceOlderTrace(t *testing.T) {
	file := skewedFile(t)
	for _, c := range []struct{ prefetch, want string }{
		{"last-token", "(what was read ahead is not in the trace)"},
		{"next-layer", "what prefetch next-layer asked for is not in the trace (no column ahead)"},
	} {
		trace := filepath.Join(t.TempDir(), "route.csv")
		call(t, "run", "-m", file, "-p", "In the beginning", "-n", "20", "--ignore-eos", "--temp", "0", "--cache-mb", "4", "--drop-cold-experts", "0.75",
			"--prefetch", c.prefetch, "--route-trace", trace).want(t, 0)
		var old strings.Builder
		for line := range strings.Lines(readFile(t, trace)) {
			if f := strings.Split(line, ","); len(f) == 12 {
				line = strings.Join(slices.Delete(f, 9, 11), ",")
			}
			old.WriteString(line)
		}
		if err := os.WriteFile(trace, []byte(old.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		r := call(t, "replay", trace)
		r.want(t, 0)
		if !strings.Contains(r.out, c.want) || strings.Contains(r.out, "reproduced: ") != (c.prefetch == "last-token") {
			t.Errorf("%s:\n%s", c.prefetch, r.out)
		}
	}
}

func readFile(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
