package profile

import (
	"bytes"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
)

func TestReferenceProfile(t *testing.T) {
	p, err := Read(bytes.NewReader(referenceCSV(t)), "dlv3_ops.csv", Options{})
	if err != nil {
		t.Fatal(err)
	}
	r := p.Report(ReportOptions{})
	for name, write := range map[string]func(io.Writer) error{"dlv3_summary.json": r.WriteJSON, "dlv3_summary.md": r.WriteMarkdown} {
		want, err := os.ReadFile("testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		equalText(t, name, output(t, write), string(want))
	}
	if p.Format != V21 || p.Arch != "blackhole" || !slices.Equal(p.Devices, []string{"0"}) {
		t.Errorf("format %s, architecture %s, devices %v", p.Format, p.Arch, p.Devices)
	}
	if want := []string{"3 ops lie outside the sections"}; !slices.Equal(p.Notes, want) {
		t.Errorf("notes %q, want %q", p.Notes, want)
	}
}

// The columns that a writer is given are those of the real file.
func TestColumnsAreTheRealOnes(t *testing.T) {
	header, _, _ := strings.Cut(string(referenceCSV(t)), "\n")
	if got := strings.Join(Columns(), ","); got != strings.TrimSpace(header) {
		t.Errorf("columns are\n%s\nwant\n%s", got, header)
	}
}

func TestFormatsOfRealFiles(t *testing.T) {
	for _, c := range []struct {
		file   string
		device string
		format Format
		ops    int
		note   string
	}{
		{"v1_oft_integral.csv.gz", "", V1, 21, `no section: none of the 6 signposts ("integral_image_start", "integral_image_end", "integral_image_start", "integral_image_end", "integral_image_start", ...) is eager or trace; the file's 21 ops can be summarised as a whole`},
		{"v2_oft.csv.gz", "", V2, 107, `is eager or trace; the file's 107 ops`},
		{"v21_8devices.csv.gz", "3", V21, 8, "no section: the file has no signpost named eager or trace; its 8 ops can be summarised as a whole"},
	} {
		p, err := Read(bytes.NewReader(unpack(t, "testdata/"+c.file)), c.file, Options{Device: c.device})
		if err != nil {
			t.Errorf("%s: %v", c.file, err)
			continue
		}
		r := p.Report(ReportOptions{Whole: true})
		if p.Format != c.format || r.Whole.Ops != c.ops || r.Eager.Ops != 0 || r.Trace.Ops != 0 {
			t.Errorf("%s: format %s, %d ops, eager %d, trace %d; want %s, %d, 0, 0", c.file, p.Format, r.Whole.Ops, r.Eager.Ops, r.Trace.Ops, c.format, c.ops)
		}
		if !strings.Contains(strings.Join(p.Notes, "\n"), c.note) {
			t.Errorf("%s: notes %q lack %q", c.file, p.Notes, c.note)
		}
		if r.Whole.TopOps[0].Input0 == "?x?x?x?" {
			t.Errorf("%s: no shape was read", c.file)
		}
	}
}

// What belongs to the whole file must be what its sections have together, where nothing lies outside.
func TestWholeIsTheSumOfTheSections(t *testing.T) {
	p := read(t, opsFile("eager,signpost", "m:b0,signpost", "c:l0,signpost", opRow("Matmul", 3000), opRow("Halo", 1000), "eager_end,signpost",
		"trace,signpost", opRow("Matmul", 2000), opRow("Halo", 500), "trace_end,signpost"), Options{})
	r := p.Report(ReportOptions{Whole: true})
	if got := []float64{float64(r.Eager.KernelUS.Value), float64(r.Trace.KernelUS.Value), float64(r.Whole.KernelUS.Value)}; !slices.Equal(got, []float64{4, 2.5, 6.5}) {
		t.Errorf("kernel sums %v", got)
	}
	if g := r.Whole.ByLayer; len(g) != 1 || g[0].Key != "l0" || g[0].Ops != 4 {
		t.Errorf("layers of the whole: %+v, want the trace to have inherited l0", g)
	}
	md := output(t, r.WriteMarkdown)
	if !strings.Contains(md, "| category (whole) |") || !strings.Contains(md, "\nwhole: ops 4 ") {
		t.Errorf("Markdown is not about the whole:\n%s", md)
	}
	if j := output(t, r.WriteJSON); !strings.Contains(j, "\n \"whole\": {") {
		t.Error("JSON has no whole")
	}
}

const opsHeader = "OP CODE,OP TYPE,DEVICE ID,DEVICE ARCH,CORE COUNT,OP TO OP LATENCY [ns],DEVICE FW DURATION [ns],DEVICE KERNEL DURATION [ns]"

// opsFile makes a small file; rows are filled up with empty fields.
func opsFile(rows ...string) string {
	n := strings.Count(opsHeader, ",")
	var b strings.Builder
	b.WriteString(opsHeader + "\n")
	for _, r := range rows {
		b.WriteString(r + strings.Repeat(",", max(0, n-strings.Count(r, ","))) + "\n")
	}
	return b.String()
}

func opRow(code string, kernelNS int) string {
	return code + ",tt_dnn_device,0,blackhole,64,10,0," + string(appendInt(nil, kernelNS))
}

func read(t testing.TB, csv string, o Options) *Profile {
	t.Helper()
	p, err := Read(strings.NewReader(csv), "ops.csv", o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func output(t testing.TB, write func(io.Writer) error) string {
	t.Helper()
	var b bytes.Buffer
	if err := write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// equalText reports the first line that differs.
func equalText(t testing.TB, name, got, want string) {
	t.Helper()
	if got == want {
		return
	}
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range max(len(g), len(w)) {
		a, b := "(ends)", "(ends)"
		if i < len(g) {
			a = g[i]
		}
		if i < len(w) {
			b = w[i]
		}
		if a != b {
			t.Errorf("%s: line %d is\n%s\nwant\n%s", name, i+1, a, b)
			return
		}
	}
}
