package kernels

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Tests take their instruction sets from this file alone, so that none is passed over unseen: what this processor has is
// asked of the system and not only of the code under test, a set that it has must be accepted, and a whole run must have
// come to its end on every one of them. What it lacks is said, to the file that reportEnv names.

// isaSets are the instruction sets of the assembly, and what /proc/cpuinfo calls their extensions; each has those before
// it as well.
var isaSets = []struct {
	name  string
	flags []string
}{
	{"avx2", []string{"avx", "avx2", "f16c", "fma", "bmi2"}},
	{"avx512", []string{"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"}},
}

const reportEnv = "SLUICE_ISA_REPORT"

// promised returns the sets that the processor has by the system's own list, and for each of the others what it lacks.
// Where there is no such list CPUID is all there is.
func promised() (has []string, lacks map[string]string) {
	lacks = map[string]string{}
	if !compiledIn {
		for _, s := range isaSets {
			lacks[s.name] = "this build has no assembly"
		}
		return nil, lacks
	}
	listed := listedFlags()
	var missingFlags []string
	for _, s := range isaSets {
		switch {
		case listed == nil && s.name == "avx2":
			missingFlags = missing(avx2Needs)
		case listed == nil:
			missingFlags = append(missingFlags, missing(avx512Needs)...)
		default:
			for _, f := range s.flags {
				if !slices.Contains(listed, f) {
					missingFlags = append(missingFlags, f)
				}
			}
		}
		if len(missingFlags) == 0 {
			has = append(has, s.name)
		} else {
			lacks[s.name] = "the processor lacks " + strings.Join(missingFlags, " ")
		}
	}
	return has, lacks
}

// listedFlags returns the extensions that the system says programs may use, nil where it says nothing.
func listedFlags() []string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil || runtime.GOARCH != "amd64" {
		return nil
	}
	for line := range strings.Lines(string(text)) {
		if key, list, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "flags" {
			return strings.Fields(list)
		}
	}
	return nil
}

// isaRuns has the instruction sets on which each test came to its end.
var isaRuns = struct {
	sync.Mutex
	sets map[string]map[string]bool
}{sets: map[string]map[string]bool{}}

// takeISA switches to an instruction set until restore is called, for a test's or a benchmark's goroutine alone. It is
// not ok only where the processor lacks something, or the build the assembly.
func takeISA(tb testing.TB, name string) (restore func(), ok bool) {
	tb.Helper()
	back, err := SetISA(name)
	if err != nil {
		if has, _ := promised(); slices.Contains(has, name) {
			tb.Fatalf("the system lists all of %s: %v", name, err)
		}
		tb.Logf("not run: %v", err)
		return nil, false
	}
	return func() {
		back()
		if tb.Skipped() {
			return // seen as missing when the run ends
		}
		test, _, _ := strings.Cut(tb.Name(), "/")
		isaRuns.Lock()
		defer isaRuns.Unlock()
		if isaRuns.sets[test] == nil {
			isaRuns.sets[test] = map[string]bool{}
		}
		isaRuns.sets[test][name] = true
	}, true
}

// isas runs f as a subtest under every instruction set that the processor has, the portable one included.
func isas(t *testing.T, f func(t *testing.T)) {
	t.Run("isa=generic", func(t *testing.T) { onGeneric(t, func() { f(t) }) })
	onEachISA(t, f)
}

// onEachISA runs f as a subtest under every instruction set but the portable one.
func onEachISA(t *testing.T, f func(t *testing.T)) {
	for _, s := range isaSets {
		t.Run("isa="+s.name, func(t *testing.T) {
			restore, ok := takeISA(t, s.name)
			if !ok {
				t.SkipNow()
			}
			defer restore()
			f(t)
		})
	}
}

// onGeneric runs f on the portable path.
func onGeneric(tb testing.TB, f func()) {
	tb.Helper()
	restore, err := SetISA("generic")
	if err != nil {
		tb.Fatal(err)
	}
	defer restore()
	f()
}

func benchEachISA(b *testing.B, name string, f func(b *testing.B)) {
	for _, isa := range []string{"generic", "avx2", "avx512"} {
		if restore, ok := takeISA(b, isa); ok {
			b.Run(name+"/isa="+isa, f)
			restore()
		}
	}
}

func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 && wholeRun() {
		code = isaGate()
	}
	os.Exit(code)
}

// wholeRun reports whether every test was asked for.
func wholeRun() bool {
	for _, name := range []string{"test.run", "test.skip", "test.list", "test.fuzz"} {
		if f := flag.Lookup(name); f != nil && f.Value.String() != "" {
			return false
		}
	}
	return true
}

// isaGate wants every test that ran on some instruction set to have run on all that the processor has, and reports those
// that it has not. It returns the exit status.
func isaGate() int {
	has, lacks := promised()
	skipped := passedOver(isaRuns.sets, has)
	for _, s := range skipped {
		fmt.Println("FAIL: kernels:", s)
	}
	report := isaReport(has, lacks)
	if testing.Verbose() {
		fmt.Print(report)
	}
	if path := os.Getenv(reportEnv); path != "" {
		if err := os.WriteFile(path, []byte(report), 0o644); err != nil {
			fmt.Println("FAIL: kernels:", err)
			return 1
		}
	}
	return min(1, len(skipped))
}

// passedOver names the tests that left out one of the sets.
func passedOver(runs map[string]map[string]bool, has []string) (out []string) {
	tests := 0
	for _, test := range slices.Sorted(maps.Keys(runs)) {
		if strings.HasPrefix(test, "Benchmark") {
			continue
		}
		tests++
		for _, set := range has {
			if !runs[test][set] {
				out = append(out, fmt.Sprintf("%s did not run to its end on %s, which this processor has", test, set))
			}
		}
	}
	if tests == 0 && len(has) > 0 {
		out = append(out, fmt.Sprintf("no test ran on %v, which this processor has", has))
	}
	return out
}

// isaReport says in a line or a few what was tested and what not.
func isaReport(has []string, lacks map[string]string) string {
	if len(lacks) == 0 {
		return "all instruction sets tested: generic " + strings.Join(has, " ") + "\n"
	}
	var b strings.Builder
	for _, s := range isaSets {
		if why, ok := lacks[s.name]; ok {
			fmt.Fprintf(&b, "not tested here: %s (%s): %s\n", s.name, why, routinesOf(s.name))
		}
	}
	fmt.Fprintf(&b, "tested: %s\n", strings.Join(append([]string{"generic"}, has...), " "))
	return b.String()
}

// routinesOf counts an instruction set's assembly routines, file by file.
func routinesOf(set string) string {
	files, _ := filepath.Glob("*_amd64.s")
	total, parts := 0, []string(nil)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err.Error()
		}
		n := 0
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "TEXT ·") && (set == "avx512") == strings.Contains(line, "512(") {
				n++
			}
		}
		if n > 0 {
			total += n
			parts = append(parts, fmt.Sprintf("%s %d", strings.TrimSuffix(file, "_amd64.s"), n))
		}
	}
	return fmt.Sprintf("%d routines (%s)", total, strings.Join(parts, ", "))
}
