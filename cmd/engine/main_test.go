package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice/bench"
	"sluice/dump"
	"sluice/engine/demo"
	"sluice/engine/enginetest"
	"sluice/engine/synth"
)

// childEnv makes the test binary behave as the program, for tests that need a process of its own.
const childEnv = "SLUICE_TEST_AS_ENGINE"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		main()
	}
	os.Exit(m.Run())
}

// result is what one call of the program did.
type result struct {
	code     int
	out, err string
}

func call(t testing.TB, args ...string) result {
	t.Helper()
	return callIn(t, "", args...)
}

func callIn(t testing.TB, stdin string, args ...string) result {
	t.Helper()
	var out, errs bytes.Buffer
	code := run(context.Background(), args, streams{strings.NewReader(stdin), &out, &errs})
	return result{code, out.String(), errs.String()}
}

// want fails unless the call ended with the code and its messages hold every text.
func (r result) want(t testing.TB, code int, texts ...string) {
	t.Helper()
	if r.code != code {
		t.Errorf("exit %d, want %d\n%s", r.code, code, r.err)
	}
	for _, s := range texts {
		if !strings.Contains(r.err, s) {
			t.Errorf("message lacks %q:\n%s", s, r.err)
		}
	}
}

func decode[T any](t testing.TB, r result) T {
	t.Helper()
	var v T
	d := json.NewDecoder(strings.NewReader(r.out))
	if err := d.Decode(&v); err != nil {
		t.Fatalf("standard output is no JSON document: %v\n%s\n%s", err, r.out, r.err)
	}
	if d.More() {
		t.Fatalf("more than one document:\n%s", r.out)
	}
	return v
}

// longTest skips a test that takes seconds where short ones are wanted.
func longTest(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("runs for seconds: not in short mode")
	}
}

func demoFile(t testing.TB) string {
	t.Helper()
	return enginetest.WriteFile(t, demo.Name, demo.Model())
}

// TestUsage: a wrong call exits 2 and says what would be right.
func TestUsage(t *testing.T) {
	file := demoFile(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "have bench"},
		{[]string{"fly"}, `unknown command "fly" (have bench`},
		{[]string{"gguf"}, "have info, synth, verify"},
		{[]string{"run"}, "no prompt"},
		{[]string{"run", "--wings"}, "unknown flag: --wings"},
		{[]string{"run", "a", "b"}, "2 prompts"},
		{[]string{"run", "a", "-p", "b"}, "several prompts"},
		{[]string{"run", "a", "--chat"}, "--chat reads messages"},
		{[]string{"run", "a", "--system", "x"}, "--system has no effect without --chat"},
		{[]string{"run", "-f", file, "--no-parse-special"}, "--no-parse-special has no effect"},
		{[]string{"run", "a", "-n", "0"}, "want 1 or more, or -1"},
		{[]string{"run", "a", "-n", "x"}, "invalid argument"},
		{[]string{"run", "a", "--device", "tpu"}, "want cpu, cuda, cuda:N or auto"},
		{[]string{"run", "a", "--isa", "mmx"}, "generic"},
		{[]string{"run", "a", "--arm", "leg"}, "want host or table"},
		{[]string{"run", "a", "--kv", "q1"}, "want f16, f32 or q8_0"},
		{[]string{"run", "a", "--acts", "q1"}, "want q8 or f32"},
		{[]string{"run", "a", "-t", "0"}, "--threads 0: want 1 or more"},
		{[]string{"run", "a", "-c", "100000"}, "want 1..512"},
		{[]string{"run", "a", "-b", "-1"}, "--batch-size -1: want 1 or more"},
		{[]string{"run", "a", "--n-expert-used", "17"}, "want 1..16"},
		{[]string{"run", "a", "--n-expert-used", "0"}, "want 1 or more"},
		{[]string{"run", "a", "--temp", "NaN"}, "want 0..100"},
		{[]string{"run", "a", "--temp", "-1"}, "want 0..100"},
		{[]string{"run", "a", "--top-k", "-1"}, "top-k -1"},
		{[]string{"run", "a", "--top-p", "0"}, "top-p 0"},
		{[]string{"run", "a", "--min-p", "2"}, "min-p 2"},
		{[]string{"run", "a", "--repeat-penalty", "0"}, "repeat penalty 0"},
		{[]string{"run", "a", "--repeat-last-n", "5"}, "no effect without --repeat-penalty"},
		{[]string{"run", "a", "--cache-mb", "many"}, "want auto or a number of MiB"},
		{[]string{"run", "a", "--cache-mb", "-3"}, "want auto or a number of MiB"},
		{[]string{"run", "a", "--cache-mb", "9223372036854775807"}, "want auto or a number of MiB, 0 to 8796093022207"},
		{[]string{"run", "a", "--cache-mb", "0", "--io-threads", "2"}, "--io-threads has no effect with --cache-mb 0"},
		{[]string{"run", "a", "--cache-mb", "0", "--cache-policy", "lru"}, "--cache-policy has no effect"},
		{[]string{"run", "a", "--cache-mb", "0", "--io", "direct"}, "no reads with --cache-mb 0"},
		{[]string{"run", "a", "--dense", "tiny"}, "want one of auto, mmap, warm, anon"},
		{[]string{"run", "a", "--prefetch", "next"}, "want one of auto, off, next-layer, last-token"},
		{[]string{"run", "a", "--prefetch", "next-layer", "--cache-mb", "0"}, "there are no reads with --cache-mb 0"},
		{[]string{"run", "a", "--prefetch-mb", "4"}, "no effect: --prefetch auto is off here (there is no expert cache)"},
		{[]string{"run", "a", "--prefetch-mb", "4", "--cache-mb", "4", "--drop-cold-experts", "0.5"}, "--prefetch auto is off here (with dropping"},
		{[]string{"run", "a", "--prefetch-mb", "4", "--prefetch", "off"}, "no effect with --prefetch off"},
		{[]string{"run", "a", "--prefetch-mb", "4", "--cache-mb", "0"}, "there are no reads with --cache-mb 0"},
		{[]string{"run", "a", "--prefetch", "last-token", "--prefetch-mb", "-1"}, "want 1 to "},
		{[]string{"run", "-m", file, "a", "--cache-mb", "8", "--io", "mmap"}, "want direct or buffered"},
		{[]string{"run", "-m", file, "a", "--cache-mb", "8", "--cache-policy", "fifo"}, "want one of lru, slru"},
		{[]string{"run", "-m", file, "a", "--cache-mb", "8", "--io-threads", "0"}, "want 1 or more"},
		{[]string{"run", "-m", file, "a", "--cache-mb", "1"}, "one token's experts need 3 MiB"},
		{[]string{"run", "a", "--cache-mb", "8", "--io", "direct"}, "is in memory: direct reads need a file"},
		{[]string{"run", "a", "--io", "tape"}, "want direct, buffered or mmap"},
		{[]string{"run", "a", "--drop-cold-experts", "NaN"}, "want 0 to 1"},
		{[]string{"run", "a", "--drop-cold-experts", "Inf"}, "want 0 to 1"},
		{[]string{"run", "a", "--drop-cold-experts", "1e400"}, "invalid argument"},
		{[]string{"run", "a", "--drop-cold-experts", "-0.5"}, "want 0 to 1"},
		{[]string{"run", "a", "--drop-cold-experts", "0.5"}, "drops nothing without an expert cache"},
		{[]string{"run", "a", "--drop-cold-experts", "0.5", "--cache-mb", "0"}, "drops nothing without an expert cache"},
		{[]string{"run", "a", "--drop-in-prefill"}, "no effect without --drop-cold-experts"},
		{[]string{"run", "a", "--drop-no-renorm", "--drop-cold-experts", "0"}, "no effect without --drop-cold-experts"},
		{[]string{"run", "-m", file, "a", "--cache-mb", "8", "--drop-cold-experts", "0.5", "--n-expert-used", "1"}, "can drop nothing"},
		{[]string{"run", "a", "--route-trace", ""}, "want a file name"},
		{[]string{"run", "a", "--json=perhaps"}, "invalid argument"},
		{[]string{"eval"}, "want one: the text file"},
		{[]string{"eval", file, "--mode", "sideways"}, "want prefill or decode"},
		{[]string{"eval", file, "--chunk", "1"}, "want 2 or more"},
		{[]string{"eval", file, "--drop-cold-experts", "0,x"}, "want numbers from 0 to 1"},
		{[]string{"eval", file, "--n-expert-used", "2,0"}, "want whole numbers"},
		{[]string{"eval", file, "--drop-cold-experts", "0.5", "--cache-mb", "8", "--mode", "prefill"}, "drops nothing without --drop-in-prefill"},
		{[]string{"bench", "--pp", "x"}, "want whole numbers"},
		{[]string{"bench", "--repeat", "0"}, "want 1 or more"},
		{[]string{"bench", "--pp", "", "--tg", ""}, "nothing to time"},
		{[]string{"bench", "--tg", "9999"}, "does not fit the context"},
		{[]string{"bench", "argument"}, "unexpected argument"},
		{[]string{"bench", "--depth", "-1"}, "want whole numbers of 0 or more"},
		{[]string{"bench", "--pp", "500", "--depth", "0,100"}, "500 tokens at depth 100 does not fit the context of 512"},
		{[]string{"bench", "--warmup", "-1"}, "want 0 or more"},
		{[]string{"bench", "--threads", "2,0"}, "--threads \"2,0\": want whole numbers"},
		{[]string{"bench", "--threads", ""}, "want whole numbers"},
		{[]string{"bench", "--arm", "host,leg"}, "want host or table"},
		{[]string{"bench", "--cache-mb", "0,many"}, "want auto or a number of MiB"},
		{[]string{"bench", "--cache-mb", "0", "--io-threads", "2"}, "--io-threads has no effect with --cache-mb 0"},
		{[]string{"bench", "--drop-cold-experts", "2"}, "want numbers from 0 to 1"},
		{[]string{"bench", "--drop-cold-experts", "0.5"}, "drops nothing without an expert cache"},
		{[]string{"bench", "--drop-cold-experts", "0.5", "--cache-mb", "0"}, "drops nothing without an expert cache"},
		{[]string{"bench", "--drop-in-prefill"}, "no effect without --drop-cold-experts"},
		{[]string{"bench", "--json", "--csv"}, "want one of them"},
		{[]string{"bench", "--threads", "1,2", "--ops-csv", "x.csv"}, "records one setting: the lists make 2"},
		{[]string{"bench", "--arm", "host,table", "--sel-dump", "x.bin"}, "records one setting: the lists make 2"},
		{[]string{"bench", "--ops-csv", ""}, "want a file name"},
		{[]string{"bench", "--ops-csv", "/nonexistent/ops.csv"}, "there is no folder /nonexistent"},
		{[]string{"gguf", "synth"}, "want one: the file to write"},
		{[]string{"gguf", "synth", "x.gguf", "--type", "q9"}, "q8_0"},
		{[]string{"gguf", "synth", "x.gguf", "--preset", "huge"}, "tiny"},
		{[]string{"gguf", "synth", "x.gguf", "--layers", "0"}, "want 1 or more"},
	} {
		r := call(t, c.args...)
		if r.code != 2 || !strings.Contains(r.err, c.want) || r.out != "" {
			t.Errorf("engine %s: exit %d, want 2 and %q\n%s%s", strings.Join(c.args, " "), r.code, c.want, r.err, r.out)
		}
	}
}

// TestFailures: what is wrong with a file exits 1 and names it.
func TestFailures(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty.gguf")
	cut := filepath.Join(dir, "cut.gguf")
	big := filepath.Join(dir, "big-endian.gguf")
	for path, data := range map[string][]byte{empty: nil, cut: demo.Model()[:8<<20], big: append([]byte("GGUF\x00\x00\x00\x03"), make([]byte, 64)...)} {
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	call(t, "run", "-m", filepath.Join(dir, "none.gguf"), "a").want(t, 1, "none.gguf", "no such file")
	call(t, "run", "-m", empty, "a").want(t, 1, "empty.gguf")
	call(t, "run", "-m", cut, "a").want(t, 1, "cut.gguf", "tensor")
	call(t, "gguf", "info", cut).want(t, 1, "cut.gguf", "tensor")
	call(t, "run", "-m", big, "a").want(t, 1, "big-endian")
	call(t, "eval", filepath.Join(dir, "none.txt")).want(t, 1, "none.txt")
	call(t, "run", "a", "--sel-dump", filepath.Join(dir, "no", "dir")).want(t, 1, filepath.Join(dir, "no", "dir"))
	call(t, "run", "a", "--route-trace", filepath.Join(dir, "no", "dir")).want(t, 1, filepath.Join(dir, "no", "dir"))
	call(t, "run", "-f", filepath.Join(dir, "none.txt")).want(t, 1, "none.txt")
}

// TestRunDocument: the document of run has every field that is promised, and the counts add up.
func TestRunDocument(t *testing.T) {
	file, dir := demoFile(t), t.TempDir()
	sel, trace := filepath.Join(dir, "sel.bin"), filepath.Join(dir, "route.csv")
	r := call(t, "run", "-m", file, "-p", "In the beginning", "-n", "12", "--temp", "0", "--ignore-eos", "--json",
		"--cache-mb", "4", "--drop-cold-experts", "0.5", "--sel-dump", sel, "--route-trace", trace)
	r.want(t, 0, "selection dump: "+sel, "route trace: "+trace, "sampling: greedy")
	raw := decode[map[string]any](t, r)
	for _, path := range []string{"model", "arch", "prompt_tokens", "tokens", "text", "prefill.tokens", "prefill.seconds", "prefill.tps",
		"decode.tokens", "decode.seconds", "decode.tps", "cache.budget_bytes", "cache.resident_bytes", "cache.hits", "cache.misses",
		"cache.hit_rate", "io.bytes_read", "io.reads", "io.seconds", "drop.frac", "drop.routed", "drop.dropped", "drop.weight_dropped",
		"sel_dump.path", "sel_dump.records", "route_trace.path", "route_trace.rows"} {
		at := any(raw)
		for _, key := range strings.Split(path, ".") {
			m, _ := at.(map[string]any)
			v, ok := m[key]
			if !ok {
				t.Errorf("no %s in the document", path)
			}
			at = v
		}
	}
	doc := decode[runJSON](t, r)
	forward := doc.PromptTokens + doc.Decode.Tokens
	if len(doc.Tokens) != 12 || doc.Decode.Tokens != 11 || doc.Prefill.Tokens != doc.PromptTokens || doc.Cache.BudgetBytes != 4<<20 {
		t.Errorf("document %+v", doc)
	}
	if want := forward * 5; doc.SelDump.Records != uint64(want) || doc.RouteTrace.Rows != uint64(4*want) || doc.Drop.Routed != int64(4*want) {
		t.Errorf("%d records, %d rows, %d routed: want %d, %d, %d", doc.SelDump.Records, doc.RouteTrace.Rows, doc.Drop.Routed, want, 4*want, 4*want)
	}
	if doc.Drop.Dropped == 0 || doc.IO.BytesRead == 0 || doc.Cache.Misses == 0 {
		t.Errorf("nothing dropped, read or missed: %+v", doc.SessionJSON)
	}
	if st, err := os.Stat(sel); err != nil || st.Size() != int64(doc.SelDump.Records)*26 {
		t.Errorf("dump: %v bytes, %v, want %d", st.Size(), err, doc.SelDump.Records*26)
	}
	if _, err := dump.ReadSelMeta(sel); err != nil {
		t.Error(err)
	}
	disarmed := decode[map[string]any](t, call(t, "run", "a", "-n", "1", "--json"))
	if v, ok := disarmed["sel_dump"]; !ok || v != nil {
		t.Errorf("disarmed: sel_dump is %v, want null", v)
	}
}

// TestSampledRunsRepeat: the printed seed gives the same text again.
func TestSampledRunsRepeat(t *testing.T) {
	first := call(t, "run", "In the beginning", "-n", "20")
	first.want(t, 0, "seed ")
	seed := strings.Fields(first.err[strings.Index(first.err, "seed ")+5:])[0]
	if again := call(t, "run", "In the beginning", "-n", "20", "--seed", seed); again.out != first.out {
		t.Errorf("seed %s: %q, then %q", seed, first.out, again.out)
	}
	call(t, "run", "a", "-n", "1", "--temp", "0", "--seed", "5").want(t, 0, "--seed has no effect at temperature 0")
}

// TestSelDumpVariable: the variable arms, the flag wins, empty disarms and says so.
func TestSelDumpVariable(t *testing.T) {
	dir := t.TempDir()
	env, flag := filepath.Join(dir, "env.bin"), filepath.Join(dir, "flag.bin")
	t.Setenv(selDumpEnv, env)
	call(t, "run", "a", "-n", "2").want(t, 0, env)
	before, _ := os.ReadFile(env)
	call(t, "run", "a", "-n", "2", "--sel-dump", flag).want(t, 0, flag)
	if after, _ := os.ReadFile(env); !bytes.Equal(before, after) || len(before) == 0 {
		t.Errorf("the variable's file went from %d to %d bytes although the flag was typed", len(before), len(after))
	}
	call(t, "run", "a", "-n", "2", "--sel-dump", "").want(t, 0, "--sel-dump is empty: disarmed")
	t.Setenv(selDumpEnv, "")
	call(t, "run", "a", "-n", "2").want(t, 0, selDumpEnv+" is set but empty: disarmed")
}

// TestControlTokens: a prompt's control tokens are parsed unless asked not to; a file's never are.
func TestControlTokens(t *testing.T) {
	text := "<|im_start|>user"
	ids := func(args ...string) []int32 {
		return decode[runJSON](t, call(t, append([]string{"run", "-n", "1", "--json"}, args...)...)).PromptIDs
	}
	file := filepath.Join(t.TempDir(), "p.txt")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	parsed, literal, fromFile := ids("-p", text), ids("-p", text, "--no-parse-special"), ids("-f", file)
	if parsed[0] != 2046 || literal[0] == 2046 || !slices.Equal(literal, fromFile) {
		t.Errorf("parsed %v, literal %v, from a file %v", parsed, literal, fromFile)
	}
	chat := decode[runJSON](t, callIn(t, "say <|im_end|> twice\n\n", "run", "--chat", "-n", "2", "--json"))
	n := 0
	for _, id := range chat.PromptIDs {
		if id == 2047 {
			n++
		}
	}
	if n != 1 { // the template's own
		t.Errorf("a message's control token was parsed: %v", chat.PromptIDs)
	}
}

// TestChatKeepsTurns: the second turn computes only what is new.
func TestChatKeepsTurns(t *testing.T) {
	doc := decode[runJSON](t, callIn(t, "Who art thou?\nAnd whence?\n", "run", "--chat", "-n", "6", "--temp", "0", "--json", "--system", "Be brief."))
	if len(doc.Turns) != 2 || doc.Turns[0].CacheTokens != 0 || doc.Turns[1].CacheTokens < doc.Turns[0].Prefill.Tokens {
		t.Errorf("turns %+v", doc.Turns)
	}
}

func TestEvalDocument(t *testing.T) {
	longTest(t)
	file, text := demoFile(t), filepath.Join("..", "..", "engine", "testdata", "tinymoe-validation.txt")
	data, err := os.ReadFile(text)
	if err != nil {
		t.Fatal(err)
	}
	short := filepath.Join(t.TempDir(), "short.txt")
	if err := os.WriteFile(short, data[:2500], 0o644); err != nil {
		t.Fatal(err)
	}
	plain := decode[evalJSON](t, call(t, "eval", "-m", file, short, "--chunk", "128", "--json"))
	if plain.Mode != "prefill" || plain.Tokens%127 != 0 || plain.Perplexity < 5 || plain.Perplexity > 100 {
		t.Errorf("eval %+v", plain)
	}
	r := call(t, "eval", "-m", file, short, "--chunk", "128", "--json", "--cache-mb", "4", "--drop-cold-experts", "0,1")
	doc := decode[evalJSON](t, r)
	if len(doc.Rows) != 2 || doc.Rows[0].Mode != "decode" || doc.Rows[0].Perplexity != plain.Perplexity {
		t.Errorf("the undropped row in decode mode: %+v, want perplexity %v", doc.Rows[0], plain.Perplexity)
	}
	if doc.Rows[1].Drop.Dropped == 0 || doc.Rows[1].Perplexity == plain.Perplexity || doc.Rows[1].IO.BytesRead >= doc.Rows[0].IO.BytesRead {
		t.Errorf("the dropped row: %+v", doc.Rows[1])
	}
	k := decode[evalJSON](t, call(t, "eval", "-m", file, short, "--chunk", "128", "--json", "--n-expert-used", "4,2"))
	if len(k.Rows) != 2 || k.Rows[1].NExpertUsed != 2 || k.Rows[0].Perplexity != plain.Perplexity || k.Rows[1].Perplexity <= plain.Perplexity {
		t.Errorf("top-k rows: %+v", k.Rows)
	}
}

func TestBenchDocument(t *testing.T) {
	doc := decode[benchJSON](t, call(t, "bench", "--pp", "16,32", "--tg", "4", "--repeat", "2", "--json"))
	var names []string
	for _, r := range doc.Results {
		names = append(names, r.Test)
		if r.TPS <= 0 || r.MinTPS > r.TPS || r.MaxTPS < r.TPS || len(r.Seconds) != 2 {
			t.Errorf("result %+v", r)
		}
	}
	if !slices.Equal(names, []string{"pp16", "pp32", "tg4"}) || doc.Threads == 0 || doc.Arm != "host" || doc.SessionJSON == nil || doc.Variants != nil {
		t.Errorf("tests %v, document %+v", names, doc)
	}
}

// TestBenchMatrix: lists make a matrix, each result says its setting, and the sessions' reports come by setting.
func TestBenchMatrix(t *testing.T) {
	longTest(t)
	file := demoFile(t)
	args := []string{"bench", "-m", file, "--pp", "8", "--tg", "2", "--depth", "0,8", "--repeat", "1", "--cache-mb", "0,8", "--io-threads", "1,2",
		"--drop-cold-experts", "0,1", "--arm", "host,table", "--threads", "1,2"}
	doc := decode[benchJSON](t, call(t, append(args, "--json")...))
	settings := map[bench.Variant]int{}
	for _, r := range doc.Results {
		settings[r.Config]++
	}
	// With a cache 2 lanes x 2 thresholds x 2 arms x 2 teams, without one 2 arms x 2 teams.
	if len(settings) != 20 || len(doc.Results) != 80 || len(doc.Variants) != 20 || doc.SessionJSON != nil {
		t.Errorf("%d settings, %d results, %d variants", len(settings), len(doc.Results), len(doc.Variants))
	}
	for _, v := range doc.Variants {
		if (v.Cache.BudgetBytes > 0) != (v.Config.CacheMB == "8") || (v.Drop.Frac != v.Config.Drop) {
			t.Errorf("%+v", v)
		}
	}
	r := call(t, append(args, "--csv")...)
	r.want(t, 0)
	if !strings.HasPrefix(r.out, "# format=engine_bench v1\n") || strings.Count(r.out, "\ntg2") != 40 {
		t.Errorf("CSV:\n%s", r.out)
	}
	r = call(t, append(args, "--go-bench")...)
	r.want(t, 0)
	if strings.Count(r.out, "\nBenchmarkDecode/model=") != 40 {
		t.Errorf("benchmark lines:\n%s", r.out)
	}
}

// TestBenchRecords: the recorded run behind the figures, of a streamed model whose tests fill the context one by one.
func TestBenchRecords(t *testing.T) {
	dir := t.TempDir()
	ops, trace := filepath.Join(dir, "ops.csv"), filepath.Join(dir, "trace.json")
	r := call(t, "bench", "-m", demoFile(t), "--cache-mb", "4", "--pp", "500", "--tg", "20", "--repeat", "1", "--warmup", "0", "--ops-csv", ops, "--chrome-trace", trace)
	r.want(t, 0)
	if !strings.Contains(r.err, "ops of a decode step at position") || !strings.Contains(r.out, "storage MB/token") {
		t.Errorf("%s%s", r.out, r.err)
	}
	r = call(t, "profile", ops, filepath.Join(dir, "out.json"))
	r.want(t, 0)
	if !strings.Contains(r.out, "trace op sequence == eager: True") || !strings.Contains(r.out, "SparseMatmulDeviceOperation") {
		t.Errorf("profile of our own file:\n%s", r.out)
	}
	data, err := os.ReadFile(trace)
	if err != nil || !json.Valid(data) || !strings.Contains(string(data), "I/O lane") {
		t.Errorf("trace of %d bytes, %v", len(data), err)
	}
}

func TestGGUFVerbs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	info := decode[synth.Info](t, call(t, "gguf", "synth", path, "--preset", "tiny", "--type", "f16", "--json"))
	doc := decode[infoJSON](t, call(t, "gguf", "info", path, "--json"))
	if doc.Version != 3 || len(doc.Tensors) != info.Tensors || doc.Metadata["general.architecture"] != "qwen3moe" {
		t.Errorf("info: version %d, %d tensors, want 3 and %d", doc.Version, len(doc.Tensors), info.Tensors)
	}
	for _, x := range doc.Tensors {
		if x.Name == "" || x.Type == "" || len(x.Shape) == 0 || x.Offset == 0 || x.Bytes == 0 {
			t.Errorf("tensor %+v", x)
		}
	}
	call(t, "gguf", "verify", path).want(t, 0)
	call(t, "run", "-m", path, "a", "-n", "3").want(t, 0)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range doc.Tensors {
		if x.Name == "blk.1.ffn_up_exps.weight" {
			copy(data[x.Offset+10:], []byte{0x00, 0x7c}) // infinity
		}
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	r := call(t, "gguf", "verify", path)
	if r.code != 1 || !strings.Contains(r.out, "blk.1.ffn_up_exps.weight: 1 values are not finite") {
		t.Errorf("verify of a file with an infinity: exit %d\n%s%s", r.code, r.out, r.err)
	}
}

// TestHelp: every command prints its help on request, with every flag, and nothing malformed.
func TestHelp(t *testing.T) {
	for _, args := range [][]string{{}, {"run"}, {"eval"}, {"bench"}, {"gguf"}, {"gguf", "info"}, {"gguf", "verify"}, {"gguf", "synth"}, {"view"}, {"replay"}, {"coact"}, {"dump"}, {"profile"}, {"roofline"}, {"sweep"}} {
		r := call(t, append(args, "--help")...)
		if r.code != 0 || !strings.Contains(r.out, "Usage:") || strings.Contains(r.out, "%!") || strings.Contains(r.out, "(MISSING)") {
			t.Errorf("engine %v --help: exit %d\n%s%s", args, r.code, r.out, r.err)
		}
	}
}

// TestDiskFull: a recording that cannot be written ends the run with exit 1 and the file's name.
func TestDiskFull(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("no /dev/full on this system")
	}
	for _, flag := range []string{"--sel-dump", "--route-trace"} {
		call(t, "run", "a", "-n", "3", flag, "/dev/full").want(t, 1, "/dev/full", "no space left")
	}
}

// child starts the program in a process of its own.
func child(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	c := exec.Command(os.Args[0], args...)
	c.Env = append(os.Environ(), childEnv+"=1")
	return c
}

// TestKill: a run that is killed leaves readable recordings that miss at most the last second.
func TestKill(t *testing.T) {
	longTest(t)
	// What was written last was written within the second before the kill; on a busy machine a look at the clock may be
	// late, so one good try of three is enough.
	var sel string
	for try := 1; ; try++ {
		sel = filepath.Join(t.TempDir(), "sel.bin")
		c := child(t, "bench", "--pp", "", "--tg", "64", "--repeat", "100000", "--sel-dump", sel)
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3500 * time.Millisecond)
		killed := time.Now()
		if err := c.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = c.Wait()
		st, err := os.Stat(sel)
		if err != nil {
			t.Fatal(err)
		}
		lost := killed.Sub(st.ModTime())
		if lost <= 1500*time.Millisecond {
			break
		}
		if try == 3 {
			t.Fatalf("last flush %v before the kill, three times", lost)
		}
	}
	f, err := os.Open(sel)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r := dump.NewSelReader(f)
	n := 0
	for {
		rec, err := r.Next()
		if err != nil {
			break // a clean end or a torn tail: both are readable files
		}
		if rec.Layer != n%5 {
			t.Fatalf("record %d: layer %d", n, rec.Layer)
		}
		n++
	}
	if n == 0 {
		t.Error("nothing was recorded")
	}
	// The next run appends to it, torn or not.
	call(t, "run", "a", "-n", "2", "--sel-dump", sel).want(t, 0, "selection dump: "+sel)
}

// TestInterrupt: Ctrl-C ends a run cleanly, exit 1, with its recordings whole.
func TestInterrupt(t *testing.T) {
	sel := filepath.Join(t.TempDir(), "sel.bin")
	c := child(t, "run", "a", "-n", "-1", "-c", "512", "--ignore-eos", "--sel-dump", sel, "--json")
	c.Args = append(c.Args, "--temp", "0")
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(400 * time.Millisecond)
	if err := c.Process.Signal(os.Interrupt); err != nil {
		t.Skip("the run was over before the signal")
	}
	err := c.Wait()
	if err == nil {
		t.Skip("the run was over before the signal")
	}
	if code := c.ProcessState.ExitCode(); code != 1 || !strings.Contains(errs.String(), "interrupted") {
		t.Errorf("exit %d\n%s", code, errs.String())
	}
	doc := decode[runJSON](t, result{1, out.String(), errs.String()})
	if doc.Stop != "cancel" || doc.SelDump == nil {
		t.Errorf("document %+v", doc)
	}
}
