package profile

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sluice/dump/scripttest"
)

// summaryScript finds python3 and writes out the script that defined the report. plainSum says that this Python adds up
// floats one by one; since 3.12 its sum compensates rounding errors, so that only sums without any are comparable.
func summaryScript(t *testing.T) (python, script string, plainSum bool) {
	t.Helper()
	python, body := scripttest.Script(t, "002", "profile_summary.py")
	dir := t.TempDir()
	scripttest.Write(t, dir, map[string]string{"profile_summary.py": body})
	v, err := exec.Command(python, "-c", "import sys; print(sys.version_info < (3, 12))").Output()
	if err != nil {
		t.Fatal(err)
	}
	return python, filepath.Join(dir, "profile_summary.py"), strings.TrimSpace(string(v)) == "True"
}

// sameAsScript runs the script in dir on a file there and compares JSON and Markdown with ours, byte for byte.
func sameAsScript(t *testing.T, python, script, dir, csv string, freq float64, device string) {
	t.Helper()
	args := []string{script, csv, "want.json", "--md", "want.md"}
	if freq > 0 {
		args = append(args, "--freq-mhz", fmt.Sprint(freq))
	}
	cmd := exec.Command(python, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PYTHONUTF8=1")
	stdout, err := cmd.Output()
	if ee := (*exec.ExitError)(nil); errors.As(err, &ee) {
		t.Fatalf("%v: %s", err, ee.Stderr)
	} else if err != nil {
		t.Fatal(err)
	}
	if freq == 0 {
		if freq, _, err = ChipFreqMHz(filepath.Join(dir, csv)); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(filepath.Join(dir, csv))
	if err != nil {
		t.Fatal(err)
	}
	p, err := Read(bytes.NewReader(data), csv, Options{Device: device})
	if err != nil {
		t.Fatal(err)
	}
	r := p.Report(ReportOptions{FreqMHz: freq})
	md := output(t, r.WriteMarkdown)
	equalText(t, csv+": JSON", output(t, r.WriteJSON), readText(t, dir, "want.json"))
	equalText(t, csv+": Markdown", md, readText(t, dir, "want.md"))
	equalText(t, csv+": standard output", md, string(stdout))
}

func readText(t *testing.T, dir, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func writeText(t *testing.T, dir, name string, text []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), text, 0o666); err != nil {
		t.Fatal(err)
	}
}

func TestScriptOnRealFiles(t *testing.T) {
	python, script, plainSum := summaryScript(t)
	if !plainSum {
		t.Skip("this Python's sum differs from the one that the reference was made with")
	}
	dir := t.TempDir()
	writeText(t, dir, "dlv3_ops.csv", referenceCSV(t))
	writeText(t, dir, "three.csv", repeatRows(referenceCSV(t), 3))
	writeText(t, dir, "quoted.csv", quoteAll(referenceCSV(t)))
	sameAsScript(t, python, script, dir, "dlv3_ops.csv", 0, "")
	sameAsScript(t, python, script, dir, "three.csv", 1000.5, "")
	sameAsScript(t, python, script, dir, "quoted.csv", 0, "")
	for name, device := range map[string]string{"v1_oft_integral": "", "v2_oft": "", "v21_8devices": AllDevices} {
		data := unpack(t, "testdata/"+name+".csv.gz")
		writeText(t, dir, name+".csv", data)
		sameAsScript(t, python, script, dir, name+".csv", 0, device) // no section: empty summaries
		writeText(t, dir, name+"_sections.csv", inSections(data))
		sameAsScript(t, python, script, dir, name+"_sections.csv", 0, device)
	}
}

// inSections puts all rows of a file into an eager section and again into a trace section.
func inSections(csv []byte) []byte {
	i := bytes.IndexByte(csv, '\n') + 1
	pad := strings.Repeat(",", bytes.Count(csv[:i], []byte{','})-1)
	post := func(name string) string { return name + ",signpost" + pad + "\n" }
	return []byte(string(csv[:i]) + post("eager") + post("m:all") + string(csv[i:]) + post("eager_end") + post("trace") + string(csv[i:]) + post("trace_end"))
}

func TestScriptOnGeneratedFiles(t *testing.T) {
	python, script, plainSum := summaryScript(t)
	for seed := range uint64(10) {
		dir := t.TempDir()
		g := &generator{rng: rand.New(rand.NewPCG(seed, 3)), exact: !plainSum}
		name := "run/ops.csv"
		writeText(t, dir, name, []byte(g.file()))
		switch g.rng.IntN(4) { // where the device log lies, or what stands in it
		case 0:
			writeText(t, dir, "run/"+DeviceLogName, []byte("ARCH: x, CHIP_FREQ[MHz]: 1234.5, more\n1,2\n"))
		case 1:
			writeText(t, dir, ".logs/"+DeviceLogName, []byte(DeviceLogLine("blackhole", 800)+"\r\n"))
			writeText(t, dir, "run/"+DeviceLogName, []byte("no frequency here\n"))
			writeText(t, dir, DeviceLogName, nil)
		}
		sameAsScript(t, python, script, dir, name, 0, "")
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// generator makes valid ops CSV files of every shape.
type generator struct {
	rng   *rand.Rand
	exact bool // times are multiples of 1/8 microsecond, whose sums have no rounding error
	cols  []string
	quote bool
	end   string
	codes []string
}

func (g *generator) pick(s ...string) string { return s[g.rng.IntN(len(s))] }

func (g *generator) file() string {
	g.cols = []string{ColOpType, ColFidelity, ColCores, ColFWStart, ColFWEnd, ColGapNS, ColFWNS, ColKernelNS, "ATTRIBUTES",
		"INPUT_0_MEMORY", "OUTPUT_0_MEMORY", ColTraceID, ColSessionID, "spaß, \"quoted\" 名"}
	for _, d := range "WZYX" {
		switch dim := "INPUT_0_" + string(d); g.rng.IntN(3) {
		case 0:
			g.cols = append(g.cols, dim)
		case 1:
			g.cols = append(g.cols, dim+"_PAD[LOGICAL]")
		default:
			g.cols = append(g.cols, dim+"_PAD[LOGICAL]", dim)
		}
	}
	if g.rng.IntN(2) == 0 {
		g.cols = append(g.cols, ColArch, ColDevice)
	}
	for range g.rng.IntN(4) { // optional columns go missing
		i := g.rng.IntN(len(g.cols))
		if g.cols[i] != ColOpType {
			g.cols = append(g.cols[:i], g.cols[i+1:]...)
		}
	}
	if g.rng.IntN(4) == 0 {
		g.cols = append(g.cols, g.cols[g.rng.IntN(len(g.cols))])
	}
	g.cols = append(g.cols, g.pick(ColOpCode, ColOpName))
	g.rng.Shuffle(len(g.cols), func(i, j int) { g.cols[i], g.cols[j] = g.cols[j], g.cols[i] })
	g.quote = g.rng.IntN(2) == 0
	g.end = g.pick("\n", "\r\n")
	all := []string{"Conv2dDeviceOperation", "conv2d", "ConvTranspose2d", "Matmul", "matmul_x", "Linear", "Halo", "UntilizeWithHalo", "PaddedSlice", "BinaryNg", "Where",
		"Typecast", "UnaryDeviceOperation", "Clamp", "Concat", "Upsample", "Tilize", "ToLayout", "Reshape", "View", "ArgMax", "Reduce", "Sum", "Move", "Shard", "Pad",
		"Softmax", "", " padded ", "ünïcode ☃ 😀", "it's, \"so\"", "a\\b\tc", "line\nbreak", "Pool2D", "?", "trace", "m:no signpost"}
	for range 1 + g.rng.IntN(len(all)) {
		g.codes = append(g.codes, g.pick(all...))
	}
	var b strings.Builder
	b.WriteString(g.row(func(c string) string { return c }))
	eager := g.ops(g.rng.IntN(80))
	replay := eager
	if g.rng.IntN(3) == 0 {
		replay = g.ops(g.rng.IntN(80))
	}
	if g.rng.IntN(8) > 0 {
		g.section(&b, SectionEager, eager, true)
	}
	for range g.rng.IntN(3) {
		b.WriteString(g.op("outside"))
	}
	if g.rng.IntN(8) > 0 {
		g.section(&b, SectionTrace, replay, g.rng.IntN(3) == 0)
	}
	if g.rng.IntN(6) == 0 {
		g.section(&b, SectionEager, eager, true)
	}
	b.WriteString(g.signpost("stop"))
	return b.String()
}

func (g *generator) ops(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = g.pick(g.codes...)
	}
	return out
}

func (g *generator) section(b *strings.Builder, name string, ops []string, labels bool) {
	b.WriteString(g.signpost(name))
	for _, code := range ops {
		if labels && g.rng.IntN(6) == 0 {
			b.WriteString(g.signpost("m:" + g.pick("", "enc", "dec", "?", "né")))
		}
		if labels && g.rng.IntN(3) == 0 {
			b.WriteString(g.signpost("c:" + g.pick("", "l0", "l1", "l2.se_sum", "[enc glue]", "l'3") + g.pick("", "", PostSuffix)))
		}
		if g.rng.IntN(12) == 0 {
			b.WriteString(g.signpost(g.pick("checkpoint", "", "warmup_end")))
		}
		if g.rng.IntN(12) == 0 {
			b.WriteString(g.end)
		}
		b.WriteString(g.op(code))
	}
	b.WriteString(g.signpost(name + SectionEnd))
}

func (g *generator) signpost(code string) string {
	return g.row(func(c string) string {
		switch c {
		case ColOpCode, ColOpName:
			return code
		case ColOpType:
			return TypeSignpost
		}
		return ""
	})
}

func (g *generator) op(code string) string {
	return g.row(func(c string) string {
		if g.rng.IntN(25) == 0 && c != ColOpCode && c != ColOpName && c != ColOpType {
			return g.pick("", " ")
		}
		switch c {
		case ColOpCode, ColOpName:
			return code
		case ColOpType:
			return g.pick("tt_dnn_device", "tt_dnn_device", "python_fallback", "", " signpost")
		case ColFidelity:
			return g.pick("HiFi4", " LoFi", "", "Hi'Fi")
		case ColCores:
			return g.pick("0", "64", "110.5", "119", "120", "130", "1e2")
		case ColFWStart, ColFWEnd:
			return fmt.Sprint(g.rng.Int64N(1 << 44))
		case ColGapNS:
			return g.time(g.rng.IntN(4000) - 500)
		case ColFWNS, ColKernelNS:
			return g.time(g.rng.IntN(300000))
		case ColTraceID, ColSessionID:
			return g.pick("", "1", " 2 ", "10", "é")
		case ColDevice, ColArch:
			return "7"
		}
		if strings.HasPrefix(c, "INPUT_0_") && !strings.HasSuffix(c, "MEMORY") {
			return g.pick("", "7", "32[16]", " 64[64]", "x", "1[", "128[]", "[3]")
		}
		return g.pick("", "DEV_1_L1", " DRAM, \"x\"\n", "-,-")
	})
}

// time writes nanoseconds; with few distinct values, so that rows tie.
func (g *generator) time(ns int) string {
	if g.exact || g.rng.IntN(3) == 0 {
		return fmt.Sprint(ns / 125 * 125)
	}
	return g.pick(fmt.Sprint(ns), fmt.Sprintf("%.3f", float64(ns)/7), fmt.Sprintf("%.2e", float64(ns)), fmt.Sprintf(" %d ", ns))
}

func (g *generator) row(value func(column string) string) string {
	out := make([]string, len(g.cols))
	for i, c := range g.cols {
		v := value(c)
		if strings.ContainsAny(v, ",\"\r\n") || g.quote && g.rng.IntN(3) == 0 {
			v = `"` + strings.ReplaceAll(v, `"`, `""`) + `"`
		}
		out[i] = v
	}
	return strings.Join(out, ",") + g.end
}
