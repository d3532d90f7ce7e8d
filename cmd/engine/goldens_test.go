package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"sluice/engine/demo"
	"sluice/kernels"
)

var update = flag.Bool("update", false, "renew the golden files instead of comparing with them")

// goldenEngineEnv names another binary. With -update it is the one that is recorded; without, what it prints is set beside
// ours where a golden differs.
const goldenEngineEnv = "SLUICE_GOLDEN_ENGINE"

const goldenFile = "testdata/goldens.txt"

// TestGoldens: the program does byte for byte what it did when the goldens were recorded. Some 250 settings, drawn from a
// seed, each in processes of its own; goldens_cases_test.go draws them, goldens_parts_test.go says what is compared. For a
// change that is to leave the output as it is: record with the binary of before, bench/scripts/goldens.sh, and compare.
func TestGoldens(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("recorded on amd64: elsewhere Go's own exponential, which sampling and perplexity use, may round otherwise")
	}
	if *update && testing.Short() {
		t.Fatal("-update with -short would renew a tenth: leave one of them out")
	}
	h := &goldenHarness{dir: t.TempDir(), update: *update, other: os.Getenv(goldenEngineEnv), isa: bestISA()}
	h.ours = func(args []string) *exec.Cmd { return child(t, args...) }
	if h.other != "" {
		abs, err := filepath.Abs(h.other)
		if err != nil {
			t.Fatal(err)
		}
		h.theirs = func(args []string) *exec.Cmd { return exec.Command(abs, args...) }
	}
	if h.update && h.theirs != nil {
		h.ours = h.theirs
	}
	h.prepare(t)
	cases := goldenCases()
	t.Run("synth", func(t *testing.T) {
		for _, m := range goldenModels() {
			if len(m.args) > 0 {
				t.Run(m.name, func(t *testing.T) { t.Parallel(); h.synth(t, m) })
			}
		}
	})
	t.Run("set", func(t *testing.T) {
		for i, g := range cases {
			if testing.Short() && i%10 != 0 {
				continue
			}
			t.Run(g.name, func(t *testing.T) { t.Parallel(); h.setting(t, g) })
		}
	})
	if h.update && !t.Failed() {
		if err := h.write(goldenFile, cases); err != nil {
			t.Fatal(err)
		}
	}
}

// goldenHarness runs settings and compares digests with the recorded ones.
type goldenHarness struct {
	dir          string // the models and a folder for each setting
	update       bool
	other        string
	ours, theirs func(args []string) *exec.Cmd
	isa          string // the best of this machine
	want         goldenRecord
	sameReads    bool // direct reads are as they were when recorded
	mu           sync.Mutex
	got          goldenRecord
}

// goldenRecord is the golden file: by name of a setting and of a part, a digest.
type goldenRecord map[string]map[string]string

// prepare makes the models and the text, and tries how this file system reads.
func (h *goldenHarness) prepare(t *testing.T) {
	var err error
	if h.want, err = readGoldens(goldenFile); err != nil && !(h.update && errors.Is(err, os.ErrNotExist)) {
		t.Fatal(err)
	}
	h.got = goldenRecord{}
	if h.update {
		maps.Copy(h.got, h.want)
	}
	text, err := os.ReadFile(filepath.Join("..", "..", "engine", "testdata", "tinymoe-validation.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{goldenText: text[:goldenTextBytes], "demo.gguf": demo.Model()} {
		if err := os.WriteFile(filepath.Join(h.dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	models := goldenModels()
	for _, m := range models {
		if len(m.args) == 0 {
			continue
		}
		if r := h.call(h.ours, h.dir, m.synth()); r.code != 0 {
			t.Fatalf("%s: exit %d\n%s", command(m.synth()), r.code, r.err)
		}
	}
	probe := []string{"run", "-m", models[2].file(), "-p", "The quick brown fox", "-n", "4", "--temp", "0", "-t", "1", "--cache-mb", "2", "--cache-force", "--io-threads", "1", "--prefetch", "off", "--json"}
	r := h.call(h.ours, h.dir, goldenStep{args: probe})
	var doc struct{ IO any }
	if err := json.Unmarshal([]byte(r.out), &doc); err != nil {
		t.Fatalf("%s: %v\n%s", command(goldenStep{args: probe}), err, r.err)
	}
	io, _ := doc.IO.(map[string]any)
	reads := fmt.Sprintf("%v/%.0f/%.0f", io["mode"], io["bytes_read"], io["reads"])
	h.sameReads = h.update || reads == h.want["reads"]["as"]
	h.got["reads"] = map[string]string{"as": reads}
	if !h.sameReads {
		t.Logf("reads here are %s, in the goldens %s: figures of direct reads are not compared", reads, h.want["reads"]["as"])
	}
}

// synth is the command that makes the model.
func (m goldenModel) synth() goldenStep {
	return goldenStep{args: append([]string{"gguf", "synth", m.file()}, m.args...)}
}

// synth compares the bytes of a synthetic model.
func (h *goldenHarness) synth(t *testing.T, m goldenModel) {
	f, err := os.Open(filepath.Join(h.dir, m.file()))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		t.Fatal(err)
	}
	h.compare(t, golden{name: "synth-" + m.name, steps: []goldenStep{m.synth()}}, map[string]string{"file": short(sum.Sum(nil))}, nil)
}

func (h *goldenHarness) setting(t *testing.T, g golden) {
	parts := h.parts(t, h.ours, g)
	h.compare(t, g, parts.digests(), parts)
}

// parts runs a setting.
func (h *goldenHarness) parts(t *testing.T, binary func([]string) *exec.Cmd, g golden) goldenParts {
	dir, err := os.MkdirTemp(h.dir, g.name)
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	parts := goldenParts{}
	for i, s := range g.steps {
		parts.add(i+1, s, dir, h.call(binary, dir, s))
	}
	return parts
}

// call runs one command in a folder. An instruction set that the machine lacks is replaced: it must not be seen in the output.
func (h *goldenHarness) call(binary func([]string) *exec.Cmd, dir string, s goldenStep) result {
	args := slices.Clone(s.args)
	if i := slices.Index(args, "--isa"); i >= 0 && (args[i+1] == "avx512" && h.isa != "avx512" || args[i+1] == "avx2" && h.isa == "generic") {
		args[i+1] = h.isa
	}
	c := binary(args)
	c.Dir = dir
	if c.Env == nil {
		c.Env = os.Environ()
	}
	c.Env = slices.DeleteFunc(c.Env, func(v string) bool { return strings.HasPrefix(v, selDumpEnv+"=") })
	c.Stdin = strings.NewReader(s.stdin)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	code := 0
	if err := c.Run(); err != nil {
		code = c.ProcessState.ExitCode() // nil when it did not start: -1
		if c.ProcessState == nil {
			fmt.Fprintln(&errs, err)
		}
	}
	return result{code, out.String(), errs.String()}
}

// compare names each part that differs, and how to see it by hand.
func (h *goldenHarness) compare(t *testing.T, g golden, got map[string]string, parts goldenParts) {
	t.Helper()
	got["cmd"] = digest(g.byHand())
	if h.update {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.got[g.name] = got
		return
	}
	want := h.want[g.name]
	if want["cmd"] != got["cmd"] {
		t.Fatalf("another setting than %s was recorded under this name: renew the goldens with the binary of before (bench/scripts/goldens.sh)\n%s", goldenFile, g.byHand())
	}
	var differ []string
	for _, name := range slices.Sorted(maps.Keys(maps.Collect(chain(maps.All(want), maps.All(got))))) {
		if want[name] != got[name] && (name != partDirect || h.sameReads) {
			differ = append(differ, name)
		}
	}
	if differ == nil {
		return
	}
	t.Errorf("%s differ from what was recorded. By hand, in an empty folder:\n%s", strings.Join(differ, ", "), g.byHand())
	if h.theirs == nil || parts == nil {
		t.Logf("%s=BINARY shows what another binary gives instead", goldenEngineEnv)
		return
	}
	theirs := h.parts(t, h.theirs, g)
	for _, name := range differ {
		t.Logf("%s: %s", name, firstDifference(theirs[name], parts[name]))
	}
}

func chain[K, V any](a, b func(func(K, V) bool)) func(func(K, V) bool) {
	return func(yield func(K, V) bool) {
		more := true
		a(func(k K, v V) bool { more = yield(k, v); return more })
		if more {
			b(yield)
		}
	}
}

// byHand are the commands of a setting for a shell, from the models on.
func (g golden) byHand() string {
	var b strings.Builder
	for _, m := range g.models {
		switch {
		case m.name == "demo":
			fmt.Fprintf(&b, "cp $SLUICE/engine/demo/tinymoe-q4_k_m.gguf demo.gguf\n")
		case len(m.args) > 0:
			fmt.Fprintln(&b, command(m.synth()))
		}
	}
	if g.steps[0].args[0] == "eval" {
		fmt.Fprintf(&b, "head -c %d $SLUICE/engine/testdata/tinymoe-validation.txt >%s\n", goldenTextBytes, goldenText)
	}
	if len(g.models) > 0 {
		b.WriteString("mkdir x && cd x\n")
	}
	for _, s := range g.steps {
		fmt.Fprintln(&b, command(s))
	}
	return b.String()
}

// command is a command line for a shell.
func command(s goldenStep) string {
	quote := func(a string) string {
		if a != "" && strings.Trim(a, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./,=") == "" {
			return a
		}
		return "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
	}
	var b strings.Builder
	if s.stdin != "" {
		fmt.Fprintf(&b, "printf %%s %s | ", quote(s.stdin))
	}
	b.WriteString("engine")
	for _, a := range s.args {
		b.WriteString(" " + quote(a))
	}
	return b.String()
}

func firstDifference(a, b string) string {
	as, bs := strings.SplitAfter(a, "\n"), strings.SplitAfter(b, "\n")
	for i := range max(len(as), len(bs)) {
		at := func(s []string) string {
			if i < len(s) {
				return s[i][:min(len(s[i]), 400)]
			}
			return ""
		}
		if at(as) != at(bs) {
			return fmt.Sprintf("line %d\n  the other %q\n  ours      %q", i+1, at(as), at(bs))
		}
	}
	return "the other binary gives the same: it is not the recorded one either"
}

func short(sum []byte) string { return fmt.Sprintf("%x", sum[:5]) }

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return short(sum[:])
}

func (p goldenParts) digests() map[string]string {
	d := map[string]string{}
	for name, text := range p {
		d[name] = digest(text)
	}
	return d
}

// bestISA is the best instruction set that the kernels can have here.
func bestISA() string {
	for _, isa := range []string{"avx512", "avx2"} {
		if restore, err := kernels.SetISA(isa); err == nil {
			restore()
			return isa
		}
	}
	return "generic"
}

func readGoldens(path string) (goldenRecord, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	rec := goldenRecord{}
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		if strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 {
			return nil, fmt.Errorf("%s: line %d: want a name and digests", path, n)
		}
		rec[fields[0]] = map[string]string{}
		for _, f := range fields[1:] {
			part, sum, ok := strings.Cut(f, "=")
			if !ok {
				return nil, fmt.Errorf("%s: line %d: %q: want part=digest", path, n, f)
			}
			rec[fields[0]][part] = sum
		}
	}
	return rec, lines.Err()
}

// write keeps what did not run, as where -run chose, and forgets settings that there are no more.
func (h *goldenHarness) write(path string, cases []golden) error {
	known := map[string]bool{"reads": true}
	for _, m := range goldenModels() {
		known["synth-"+m.name] = len(m.args) > 0
	}
	for _, g := range cases {
		known[g.name] = true
	}
	var b bytes.Buffer
	fmt.Fprintln(&b, "# Digests of what the program prints and writes, by setting and part: see goldens_test.go. Renewed by bench/scripts/goldens.sh.")
	for _, name := range slices.Sorted(maps.Keys(h.got)) {
		if !known[name] {
			continue
		}
		b.WriteString(name)
		for _, part := range slices.Sorted(maps.Keys(h.got[name])) {
			fmt.Fprintf(&b, " %s=%s", part, h.got[name][part])
		}
		b.WriteByte('\n')
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}
