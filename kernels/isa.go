package kernels

import (
	"fmt"
	"strings"

	"github.com/klauspost/cpuid/v2"
)

// The instruction-set switches, the package's only mutable state: the dispatchers branch on them, useAVX512 first. They
// are plain bools and not function variables, because an indirect call would move stack arrays to the heap. useAVX512
// implies useAVX2, so that an operation without an AVX-512 form takes its AVX2 form. Without assembly (another processor
// family, the noasm tag) both stay false.
var useAVX2, useAVX512 = hasAVX2(), hasAVX512()

// The extensions that the assembly may use, all of them checked: the generated "Requires" lines are compared with these
// lists in a test. F16C, FMA3 and BMI2 came with AVX2 or before it in every processor; BW, DQ, VL and VNNI did not come
// with AVX512F.
var (
	avx2Needs   = []cpuid.FeatureID{cpuid.AVX, cpuid.AVX2, cpuid.F16C, cpuid.FMA3, cpuid.BMI2}
	avx512Needs = []cpuid.FeatureID{cpuid.AVX512F, cpuid.AVX512BW, cpuid.AVX512DQ, cpuid.AVX512VL, cpuid.AVX512VNNI}
)

// missing returns those of need that the processor lacks or the system does not save.
func missing(need []cpuid.FeatureID) []string {
	var names []string
	for _, f := range need {
		if !cpuid.CPU.Supports(f) {
			names = append(names, f.String())
		}
	}
	return names
}

func hasAVX2() bool   { return compiledIn && len(missing(avx2Needs)) == 0 }
func hasAVX512() bool { return hasAVX2() && len(missing(avx512Needs)) == 0 }

// ISA returns the instruction set that the dispatchers use now: "generic" is portable Go, "avx2" needs F16C, FMA3 and
// BMI2 as well, "avx512" is F, BW, DQ, VL and VNNI. At start it is the last of these that the processor has.
func ISA() string {
	switch {
	case useAVX512:
		return "avx512"
	case useAVX2:
		return "avx2"
	}
	return "generic"
}

// SetISA makes the dispatchers use the named instruction set, and returns a function that puts the former choice back.
// An error says which extensions the processor lacks, or lists what is compiled in. It must not run while another
// goroutine computes: cmd calls it before it starts anything, a test before its parallel parts.
func SetISA(name string) (restore func(), err error) {
	var need []cpuid.FeatureID
	switch {
	case name == "generic":
	case name == "avx2" && compiledIn:
		need = avx2Needs
	case name == "avx512" && compiledIn:
		need = append(append(need, avx2Needs...), avx512Needs...)
	default:
		choices := "generic"
		if compiledIn {
			choices = "generic, avx2, avx512"
		}
		return nil, fmt.Errorf("kernels: instruction set %q is not compiled in, want one of %s", name, choices)
	}
	if lacks := missing(need); len(lacks) > 0 {
		return nil, fmt.Errorf("kernels: instruction set %q: the processor lacks %s", name, strings.Join(lacks, " "))
	}
	avx2, avx512 := useAVX2, useAVX512
	useAVX2, useAVX512 = name != "generic", name == "avx512"
	return func() { useAVX2, useAVX512 = avx2, avx512 }, nil
}

// Features returns the processor's vector extensions that matter to this package, as found at start by CPUID and checked
// against what the system saves (XCR0): "AVX2 FMA3 F16C", or "none".
func Features() string {
	var names []string
	for _, f := range []cpuid.FeatureID{
		cpuid.SSE3, cpuid.SSSE3, cpuid.SSE4, cpuid.AVX, cpuid.F16C, cpuid.FMA3, cpuid.AVX2, cpuid.AVXVNNI,
		cpuid.AVX512F, cpuid.AVX512BW, cpuid.AVX512VL, cpuid.AVX512DQ, cpuid.AVX512VBMI, cpuid.AVX512VNNI, cpuid.AVX512BF16, cpuid.AVX512FP16,
		cpuid.AMXTILE, cpuid.AMXINT8, cpuid.AMXBF16,
		cpuid.ASIMD, cpuid.ASIMDHP, cpuid.ASIMDDP, cpuid.SVE,
	} {
		if cpuid.CPU.Supports(f) {
			names = append(names, f.String())
		}
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, " ")
}
