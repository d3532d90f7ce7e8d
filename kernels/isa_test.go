package kernels

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/cpuid/v2"
)

// TestISARequires compares what the generator says each routine needs with what is checked before it may be called. A
// routine with 512 in its name is called when useAVX512 is set, any other when useAVX2 is.
func TestISARequires(t *testing.T) {
	gate := func(need ...[]cpuid.FeatureID) []string {
		names := []string{"SSE", "SSE2", "CMOV", "MMX+"} // part of amd64; the last is avo's name for PREFETCH
		for _, l := range need {
			for _, f := range l {
				names = append(names, f.String())
			}
		}
		return names
	}
	avx2, avx512 := gate(avx2Needs), gate(avx2Needs, avx512Needs)
	files, err := filepath.Glob("*_amd64.s")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d assembly files: %v", len(files), err)
	}
	routines := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var needs []string
		for line := range strings.Lines(string(text)) {
			if list, ok := strings.CutPrefix(line, "// Requires: "); ok {
				needs = strings.Split(strings.TrimSpace(list), ", ")
				continue
			}
			name, ok := strings.CutPrefix(line, "TEXT ·")
			if !ok {
				continue
			}
			name, _, _ = strings.Cut(name, "(")
			routines++
			checked := avx2
			if strings.Contains(name, "512") {
				checked = avx512
			}
			if needs == nil {
				t.Errorf("%s: %s: no Requires line", file, name)
			}
			for _, n := range needs {
				if !slices.Contains(checked, n) {
					t.Errorf("%s: %s needs %s, which is not checked: %v", file, name, n, checked)
				}
			}
			needs = nil
		}
	}
	if routines == 0 {
		t.Error("no routine found")
	}
}

func TestSetISA(t *testing.T) {
	start := ISA()
	for _, name := range []string{"generic", "avx2", "avx512"} {
		restore, err := SetISA(name)
		if err != nil {
			if ISA() != start {
				t.Errorf("%s: refused, but now %s", name, ISA())
			}
			t.Log(err)
			continue
		}
		if ISA() != name {
			t.Errorf("%s set, now %s", name, ISA())
		}
		restore()
		if ISA() != start {
			t.Errorf("%s restored, now %s, was %s", name, ISA(), start)
		}
	}
	for _, name := range []string{"", "mmx", "AVX2", "avx10"} {
		if _, err := SetISA(name); err == nil || !strings.Contains(err.Error(), "generic") {
			t.Errorf("%q: error %v, want one that lists the choices", name, err)
		}
	}
}

// TestISADetected wants the best instruction set that the environment promises (SLUICE_WANT_ISA) or, without that, the
// system's own list, so that a machine on which a path should be tested cannot pass by skipping it.
func TestISADetected(t *testing.T) {
	want := os.Getenv("SLUICE_WANT_ISA")
	if want == "" {
		has, _ := promised()
		want = append([]string{"generic"}, has...)[len(has)]
	}
	if ISA() != want {
		t.Errorf("found %s, want %s; the processor has %s", ISA(), want, Features())
	}
}

// TestISASources wants every test to take its instruction sets from isa_run_test.go, where none is passed over unseen.
func TestISASources(t *testing.T) {
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	direct := regexp.MustCompile(`SetISA\([a-zA-Z]`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if file != "isa_test.go" && file != "isa_run_test.go" && direct.Match(text) {
			t.Errorf("%s switches the instruction set itself, want takeISA, onEachISA or isas", file)
		}
	}
}

// TestISAGate shows the gate one test that ran everywhere, one that did not, and a run of none.
func TestISAGate(t *testing.T) {
	all, half := map[string]bool{"avx2": true, "avx512": true}, map[string]bool{"avx2": true}
	has := []string{"avx2", "avx512"}
	for _, c := range []struct {
		runs map[string]map[string]bool
		has  []string
		want string
	}{
		{map[string]map[string]bool{"TestA": all}, has, ""},
		{map[string]map[string]bool{"TestA": half}, has[:1], ""},
		{map[string]map[string]bool{"TestA": all, "FuzzB": half, "BenchmarkC": half}, has, "FuzzB did not run to its end on avx512"},
		{nil, has, "no test ran on [avx2 avx512]"},
		{nil, nil, ""},
	} {
		got := strings.Join(passedOver(c.runs, c.has), "\n")
		if !strings.HasPrefix(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%v on %v: %q, want %q", c.runs, c.has, got, c.want)
		}
	}
	report := isaReport(has[:1], map[string]string{"avx512": "the processor lacks avx512_vnni"})
	if !strings.HasPrefix(report, "not tested here: avx512 (the processor lacks avx512_vnni): ") || !strings.Contains(report, "mul_vec512 ") || !strings.HasSuffix(report, "tested: generic avx2\n") {
		t.Errorf("report %q", report)
	}
}

// TestISAMissing forces what the processor lacks.
func TestISAMissing(t *testing.T) {
	if !compiledIn {
		t.Skip("no assembly in this build")
	}
	had := cpuid.CPU
	defer func() { cpuid.CPU = had }()
	cpuid.CPU.Disable(cpuid.AVX512VNNI)
	if _, err := SetISA("avx512"); err == nil || !strings.Contains(err.Error(), "lacks AVX512VNNI") {
		t.Errorf("without VNNI: error %v", err)
	}
	if hasAVX512() {
		t.Error("without VNNI: detected")
	}
	cpuid.CPU.Disable(cpuid.AVX2)
	if _, err := SetISA("avx2"); err == nil || !strings.Contains(err.Error(), "lacks") {
		t.Errorf("without AVX2: error %v", err)
	}
	if hasAVX2() {
		t.Error("without AVX2: detected")
	}
}
